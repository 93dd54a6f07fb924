//! Queue pairs between hosts.
//!
//! A [`QpConn`] is a connected queue pair that carries messages ([`netacc_wire::frame`]) of many connections, by SEND
//! into buffers that the other side has posted: no peer gets a key to our memory. It never sends what the other side
//! has no buffer for, since that would end an iWARP connection. A [`Device`] is what all queue pairs on one RDMA device
//! share.
//!
//! If a queue pair fails, its messages go on over a [`Stream`]; a [`MsgPath`] is one of the two.
//!
//! [`engine`] joins the connections to rings; the files beside it do not know what the connections are.

mod bounds;
mod chain;
mod conn;
mod credits;
mod device;
pub mod engine;
mod failover;
mod line;
mod path;
mod pool;
mod qp;
mod registered;
mod stats;
mod tcp_path;
mod unacked;

pub use conn::{Completion, Head, QpConn, hello};
pub use device::{Armed, Device};
pub use failover::FailoverState;
pub use path::{FrameBuffer, MsgPath};
pub use pool::{Buffer, Pool, Sizes};
pub use stats::QpStats;
pub use tcp_path::Stream;

/// The RDMA port of a TCP listener's port, if there is one.
pub fn port_of(tcp: u16) -> Option<u16> {
    tcp.checked_add(20_000)
}
