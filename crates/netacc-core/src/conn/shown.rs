//! What the statistics page shows of a connection that has a ring: its transport, its link and the other process.

use crate::object::socket::Socket;
use core::net::SocketAddr;
use core::sync::atomic::{Ordering, fence};
use netacc_stats::{Reason, SockEntry, State, Transport, page};
use netacc_sys::time;
use netacc_transport::shm::{self, ShmEndpoint};

/// The transport behind the ring.
pub(crate) fn transport(ep: &ShmEndpoint) -> Transport {
    if ep.side.is_remote() || ep.side.link().is_remote() { Transport::Rdma } else { Transport::Shm }
}

/// Shows a connection that has just been accepted, or whose connect has just been queued. Other threads must be able to
/// find the socket by its number and its addresses.
pub(crate) fn opened(s: &Socket, ep: &'static ShmEndpoint, local: SocketAddr, peer: SocketAddr) {
    let Some(e) = s.stats() else { return };
    e.open(State::Established, transport(ep), Reason::None, time::realtime_coarse());
    e.set_addrs(&local.into(), &peer.into());
    carrier(e, ep);
}

/// Shows what carries the connection. Its transport must have been shown before.
pub(crate) fn carrier(e: &SockEntry, ep: &'static ShmEndpoint) {
    let link = ep.side.link();
    e.set_link(link.id().into());
    if transport(ep) == Transport::Shm {
        return e.set_peer_pid(link.peer_pid());
    }
    // The peer of a connection to another host is the engine in our own process, so no process number is shown.
    e.set_peer_pid(0);
    // SeqCst: the engine shows the queue pair in the slot, or that it has failed, and then looks for the sockets; the
    // socket can be found, and then looks at the slot. One of them sees the other.
    fence(Ordering::SeqCst);
    e.set_link(ep.side.stats_link());
    if shm::has_failed_over(ep) {
        e.set_transport(Transport::Tcp);
        e.set_reason(Reason::QpFailed);
        page().fallback(Reason::QpFailed);
    }
}
