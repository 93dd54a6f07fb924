//! The links to processes in other network namespaces, which are in the [pool](crate::conn::pool) under stand-ins.

use crate::conn::pool::claim_on;
use crate::conn::targets::{POOL, Target, add, links, retain, sweep, sweep_all, target_or_unused};
use core::net::SocketAddr;
use netacc_sys::errno::Errno;
use netacc_transport::shm::Link;
use netacc_transport::shm::claim::Claim;
use netacc_transport::shm::rendezvous::NoLink;
use netacc_wire::Entrance;

/// The destination that stands for an entrance of the host directory in the pool: an address of the block that is kept
/// free for discarding packets (RFC 6666), to which nobody connects.
fn stand_in(entrance: Entrance) -> SocketAddr {
    let ip = DISCARD | u128::from(entrance.id);
    SocketAddr::new(core::net::Ipv6Addr::from(ip).into(), entrance.port)
}

/// 100::/64.
const DISCARD: u128 = 0x0100 << 112;

fn is_stand_in(dest: SocketAddr) -> bool {
    matches!(dest.ip(), core::net::IpAddr::V6(ip) if u128::from(ip) >> 64 == DISCARD >> 64)
}

/// The target that stands for an entrance. Under [`POOL`].
fn neighbour(entrance: Entrance) -> Option<&'static Target> {
    target_or_unused(stand_in(entrance), is_stand_in)
}

/// Claims a slot on a link to the process behind an entrance of the host directory: on the one that there is, or on one
/// that `connect` makes.
pub fn claim_neighbour(
    entrance: Entrance,
    connect: impl FnOnce() -> core::result::Result<&'static Link, NoLink>,
) -> core::result::Result<Claim, NoLink> {
    let no_memory = NoLink::Resources(Errno::NOMEM);
    let mut order = POOL.lock();
    let t = neighbour(entrance).ok_or(no_memory)?;
    sweep(t);
    for link in links(t) {
        match claim_on(link, order) {
            Ok(claim) => return Ok(claim),
            Err(o) => order = o,
        }
    }
    sweep_all();
    let link = connect()?;
    add(t, link);
    claim_on(link, order).map_err(|_| no_memory)
}

/// Gives up the links to the process behind an entrance, which does not have the connection that was offered there. The
/// connections of a link go on.
pub fn release_neighbour(entrance: Entrance) {
    let _order = POOL.lock();
    if let Some(t) = neighbour(entrance) {
        retain(t, |_| false);
    }
}
