//! Queue pairs between hosts.
//!
//! A [`Pipe`] is a connected queue pair that carries messages ([`netacc_wire::frame`]) of many connections, by SEND
//! into buffers that the other side has posted: no peer gets a key to our memory. It never sends what the other side
//! has no buffer for, since that would end an iWARP connection. A [`Device`] is what all pipes on one RDMA device share.
//!
//! If a queue pair fails, its messages go on over a [`Stream`]; a [`Way`] is one of the two.
//!
//! This folder does not know what the connections are: `netacc-core`'s `carrier` joins them to rings.

mod chain;
mod device;
mod flow;
mod kept;
mod left;
mod line;
mod pipe;
mod pool;
mod qp;
mod registered;
mod shown;
mod stream;
mod way;

pub use device::{Armed, Device};
pub use left::Left;
pub use pipe::{Completion, Head, Pipe, greeting};
pub use pool::{Buffer, Pool, Sizes};
pub use shown::Shown;
pub use stream::Stream;
pub use way::{Place, Way};

/// The RDMA port of a TCP listener's port, if there is one.
pub fn port_of(tcp: u16) -> Option<u16> {
    tcp.checked_add(20_000)
}
