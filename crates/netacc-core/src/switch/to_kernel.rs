//! The step in which an accelerated connection becomes a kernel socket, and how a side follows its peer there.

use crate::epoll::paths;
use crate::fd::placeholder::{replace_everywhere, status_flags};
use crate::object::reference::Ref;
use crate::object::socket::{CONNECTING, ConnState, PLACEHOLDER, Socket};
use crate::process_mode;
use crate::switch::comeback;
use core::sync::atomic::Ordering;
use netacc_stats::{Reason, Transport, page};
use netacc_sys::errno::Errno;
use netacc_sys::raw;
use netacc_transport::shm::ShmEndpoint;
use netacc_transport::shm::segment::Leave;

/// Follows a peer or another sharer that has switched the connection from the ring to a kernel socket.
#[cold]
pub fn accept(r: Ref<Socket>) {
    let s = r.obj;
    let locks = (s.rx.lock(), s.tx.lock());
    let Some(ep) = s.ring().filter(|e| r.valid() && e.must_switch()) else { return };
    match ep.accept_switch() {
        Ok(Some(kernel)) => {
            let why = process_mode::reason().filter(|why| *why == Reason::Operator);
            let comes_back = ep.side.may_come_back() && comeback::how_long(s, ep, Reason::Operator) == Leave::ForNow;
            let how_long = if comes_back { Leave::ForNow } else { Leave::ForGood };
            complete(s, ep, kernel, (why.unwrap_or(Reason::PeerMoved), how_long));
        }
        Ok(None) => {
            drop(locks);
            paths::stirred(s);
        }
        Err(e) => {
            netacc_log::log!(
                Warn,
                "fd {}: the peer left shared memory and passed no socket ({e}); the connection is reset",
                s.first_fd()
            );
            ep.fail(Errno::CONNRESET);
        }
    }
}

/// Makes `kernel` the socket of the connection, for this reason and this long. The caller holds both direction locks.
pub(crate) fn complete(s: &'static Socket, ep: &'static ShmEndpoint, kernel: i32, (why, how_long): (Reason, Leave)) {
    paths::withdraw(s, ep);
    s.apply_options(kernel);
    let _ = raw::fcntl(kernel, libc::F_SETFL, status_flags(s) as usize);
    // A liveness socket under the numbers has to stay open until the slot is released.
    ep.keep_liveness();
    if let Err(e) = replace_everywhere(s, kernel) {
        netacc_log::log!(Error, "fd {}: cannot put the kernel socket under its numbers: {e}", s.first_fd());
    }
    s.set(PLACEHOLDER | CONNECTING, false);
    let upgrade = if how_long == Leave::ForNow { comeback::begin(s, ep, kernel) } else { None };
    s.upgrade.left.fetch_add(1, Ordering::Relaxed);
    s.set_state(upgrade.map_or(ConnState::Demoted, ConnState::Candidate));
    paths::to_kernel(s, ep);
    page().demoted(why);
    if let Some(e) = s.stats() {
        e.set_transport(Transport::Tcp);
        e.set_reason(why);
    }
    netacc_log::log!(Info, "fd {}: moved to a kernel socket ({})", s.first_fd(), why.name());
    // Threads that sleep on the connection wake, check it again, and find the kernel socket.
    ep.poke_self();
    s.drop_endpoint();
    ep.let_go();
}
