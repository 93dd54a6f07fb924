//! The step in which a connection on kernel TCP switches to a ring.

use crate::conn::shown;
use crate::epoll::paths;
use crate::fd::table;
use crate::limits::PROMOTION_TAIL;
use crate::object::reference::Ref;
use crate::object::socket::{ConnState, Socket};
use crate::operator::requests;
use core::sync::atomic::Ordering;
use netacc_stats::{Reason, Transport, page};
use netacc_sys::raw;
use netacc_sys::signals::Blocked;
use netacc_transport::shm::ShmEndpoint;

/// The outcome of a candidacy: whether the connection switched to a ring; `None`: it is still a candidate. Called under
/// both direction locks.
pub(crate) fn decided(r: Ref<Socket>) -> Option<bool> {
    let s = r.obj;
    (!r.valid() || !s.is_candidate()).then(|| r.valid() && s.is_shm())
}

/// Whether a side may offer or accept a promotion: few enough bytes are in flight in the kernel, in both directions.
/// The bytes that the peer has not sent yet are not visible; they are few as long as the receive buffer has room.
pub(crate) fn tail_is_short(fd: i32) -> bool {
    let asked = |what: u64| {
        let mut n = 0i32;
        raw::ioctl(fd, what as usize, (&raw mut n).addr()).map_or(usize::MAX, |_| n.max(0) as usize)
    };
    let room = raw::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0).max(0) as usize;
    asked(libc::TIOCOUTQ) <= PROMOTION_TAIL && asked(libc::FIONREAD) <= PROMOTION_TAIL.min(room / 4)
}

/// Switches to the ring and ends our half of the TCP stream. Called under both direction locks; the server has called
/// `take` without releasing them in between.
pub(crate) fn switch_to_ring(fd: i32, r: Ref<Socket>, ep: &'static ShmEndpoint) -> bool {
    let s = r.obj;
    // Signals are blocked, since a handler of this thread must not close the number in between.
    let _b = Blocked::all();
    let Some(fd) = number(fd, r) else { return false };
    let _ = raw::shutdown(fd, libc::SHUT_WR);
    ep.old_subflow.set(&ep.side, fd, s.kernel_sent.load(Ordering::Relaxed), s.kernel_read.load(Ordering::Relaxed));
    paths::accelerate(s, || {
        s.set_endpoint(ep);
        s.set_state(ConnState::Shm);
    });
    true
}

/// A number of the socket, `fd` if that still is one; called under a direction lock. A closed number may belong to
/// another file by now. A thread that closes a number first ends the candidacy (`closing::remove`), so the number is
/// valid as long as it is in the table and the lock is held.
pub(crate) fn number(fd: i32, r: Ref<Socket>) -> Option<i32> {
    Some(fd).filter(|n| table::get(*n).is_some_and(|e| e.is(r))).or_else(|| table::reach(r))
}

pub(crate) fn promoted(fd: i32, s: &'static Socket, ep: &'static ShmEndpoint) {
    requests::check_again();
    let entry = s.stats();
    page().promoted(entry.map_or(Reason::None, |e| e.reason()));
    let transport = shown::transport(ep);
    if let Some(e) = entry {
        e.set_transport(transport);
        e.set_reason(Reason::None);
        shown::carrier(e, ep);
    }
    netacc_log::log!(
        Info,
        "fd {fd}: promoted to {}",
        if transport == Transport::Rdma { "RDMA" } else { "shared memory" }
    );
}
