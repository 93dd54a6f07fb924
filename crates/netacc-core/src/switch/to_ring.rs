//! The moment in which a connection of the kernel goes over to a ring.

use crate::epoll::paths;
use crate::fd::table;
use crate::limits::PROMOTION_TAIL;
use crate::object::reference::Ref;
use crate::object::socket::{ConnState, Socket};
use crate::operator::hearing;
use core::sync::atomic::Ordering;
use netacc_stats::{Reason, Transport, page};
use netacc_sys::raw;
use netacc_sys::signals::Blocked;
use netacc_transport::shm::ShmEndpoint;

/// Whether a connection that is no candidate any more has gone over. Under both direction locks.
pub(crate) fn decided(r: Ref<Socket>) -> Option<bool> {
    let s = r.obj;
    (!r.valid() || !s.is_candidate()).then(|| r.valid() && s.is_shm())
}

/// Whether a side may offer or take a promotion: little enough is under way by the kernel, in and out. What the peer has
/// not sent yet cannot be seen; it is little as long as what has come leaves room for more.
pub(crate) fn tail_is_short(fd: i32) -> bool {
    let asked = |what: u64| {
        let mut n = 0i32;
        raw::ioctl(fd, what as usize, (&raw mut n).addr()).map_or(usize::MAX, |_| n.max(0) as usize)
    };
    let room = raw::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0).max(0) as usize;
    asked(libc::TIOCOUTQ) <= PROMOTION_TAIL && asked(libc::FIONREAD) <= PROMOTION_TAIL.min(room / 4)
}

/// Goes over to the ring: our half of the TCP stream ends here. Under both direction locks, and for the server
/// under the same hold as `take`.
pub(crate) fn switch_to_ring(fd: i32, r: Ref<Socket>, ep: &'static ShmEndpoint) -> bool {
    let s = r.obj;
    // A handler of this thread must not close the number in the middle.
    let _b = Blocked::all();
    let Some(fd) = number(fd, r) else { return false };
    let _ = raw::shutdown(fd, libc::SHUT_WR);
    ep.set_old_subflow(fd, s.kernel_sent.load(Ordering::Relaxed), s.kernel_read.load(Ordering::Relaxed));
    paths::accelerate(s, || {
        s.set_endpoint(ep);
        s.set_state(ConnState::Shm);
    });
    true
}

/// A number of the socket, `fd` if that still is one; under a direction lock. A number that was closed may belong to
/// another file by now. A thread that closes a number ends the candidacy before (`closing::remove`), so the number is
/// good as long as it is in the table and we hold the lock.
pub(crate) fn number(fd: i32, r: Ref<Socket>) -> Option<i32> {
    Some(fd).filter(|n| table::get(*n).is_some_and(|e| e.is(r))).or_else(|| table::number_of(r, fd))
}

pub(crate) fn promoted(fd: i32, s: &'static Socket, ep: &'static ShmEndpoint) {
    hearing::recheck();
    let remote = ep.is_remote();
    let entry = s.stats();
    page().promoted(entry.map_or(Reason::None, |e| e.reason()));
    if let Some(e) = entry {
        e.set_transport(if remote { Transport::Rdma } else { Transport::Shm });
        e.set_reason(Reason::None);
        // Of a connection to another host only the engine in our own process is seen here.
        e.set_peer_pid(if remote { 0 } else { ep.link().peer_pid() });
        e.set_link(ep.stats_link());
    }
    netacc_log::log!(Info, "fd {fd}: promoted to {}", if remote { "RDMA" } else { "shared memory" });
}
