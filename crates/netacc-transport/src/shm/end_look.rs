//! Looking for the end of a peer in calls that do not wait. A call that waits sleeps on the sockets that tell of the end;
//! one that only looks at shared memory would never hear of a process that was killed, or that ended without a close.

use crate::shm::ShmEndpoint;
use crate::shm::sharers::poll_liveness_after;
use crate::wait::WaitSet;
use netacc_sys::raw;

/// Whether the peer's sockets have not been looked at in the tick `now` of the kernel's clock
/// ([`netacc_sys::time::coarse`]). Needs no pin: a wrong answer costs a look, or leaves it to the next tick.
#[inline]
pub fn is_due(ep: &ShmEndpoint, now: u64) -> bool {
    let link = ep.side.link();
    let by_link = !link.is_inherited() && !link.is_lost() && link.last_look.is_due(now);
    !ep.side.is_remote() && (by_link || (tells_by_liveness(ep) && ep.liveness.last_look.is_due(now)))
}

/// Whether the end of the peer shows at a liveness socket, since one of the two sides has forked.
fn tells_by_liveness(ep: &ShmEndpoint) -> bool {
    ep.side.link().is_inherited() || ep.liveness.has_peer()
}

/// Whether one of the liveness sockets that tell of the peer shows an end.
fn has_liveness_ended(ep: &ShmEndpoint) -> bool {
    // A socket that listens shows no end: what was accepted from it does.
    let is_inherited = ep.side.link().is_inherited();
    let own = if is_inherited { [ep.liveness.to_poll(&ep.side), ep.liveness.accepted_fd()] } else { [-1, -1] };
    let ended = |fd| raw::events_now(fd, libc::POLLRDHUP) & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0;
    [ep.liveness.peer_fd(), own[0], own[1]].into_iter().any(|fd| fd >= 0 && ended(fd))
}

/// Takes in what the peer's sockets tell, above all its end, once in each tick `now` of the kernel's clock. Returns
/// whether it has looked. The caller pins the connection and holds no lock.
#[cold]
pub fn look(ep: &'static ShmEndpoint, now: u64) -> bool {
    let link = ep.side.link();
    // Another thread may take the connection out of the ring meanwhile, and that may be the last user of the link.
    if ep.side.is_remote() || !link.hold_if_used() {
        return false;
    }
    let by_link = !link.is_inherited() && !link.is_lost() && link.last_look.take(now);
    if by_link {
        link.service_if_readable();
    }
    let by_liveness = ep.side.is_live() && tells_by_liveness(ep) && ep.liveness.last_look.take(now);
    // Nothing is read before the end: a byte there may be meant for another process that has the connection.
    if let Some(v) = ep.side.view().filter(|_| by_liveness && has_liveness_ended(ep)) {
        poll_liveness_after(ep, &v, &WaitSet::new());
    }
    link.put();
    by_link || by_liveness
}
