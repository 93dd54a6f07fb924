//! The step in which an accelerated connection becomes a kernel socket, and how a side follows its peer there.

use crate::epoll::paths;
use crate::fd::placeholder::replace_everywhere;
use crate::object::reference::Ref;
use crate::object::socket::{CONNECTING, ConnState, NONBLOCK, PLACEHOLDER, Socket};
use crate::process_mode;
use netacc_stats::{Reason, Transport, page};
use netacc_sys::errno::Errno;
use netacc_sys::raw;
use netacc_transport::shm::ShmEndpoint;

/// Follows a peer or another sharer that has switched the connection from the ring to a kernel socket.
#[cold]
pub fn accept(r: Ref<Socket>) {
    let s = r.obj;
    let locks = (s.rx.lock(), s.tx.lock());
    let Some(ep) = s.endpoint().filter(|e| r.valid() && s.is_shm() && e.must_switch()) else { return };
    match ep.accept_switch() {
        Ok(Some(kernel)) => {
            let why = process_mode::reason().filter(|why| *why == Reason::Operator);
            complete(s, ep, kernel, why.unwrap_or(Reason::PeerMoved));
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

/// Makes `kernel` the socket of the connection. The caller holds both direction locks.
pub(crate) fn complete(s: &'static Socket, ep: &'static ShmEndpoint, kernel: i32, why: Reason) {
    paths::withdraw(s, ep);
    s.apply_options(kernel);
    let mode = libc::O_RDWR | if s.has(NONBLOCK) { libc::O_NONBLOCK } else { 0 };
    let _ = raw::fcntl(kernel, libc::F_SETFL, mode as usize);
    // A liveness socket under the numbers has to stay open until the slot is released.
    ep.keep_liveness();
    if let Err(e) = replace_everywhere(s, kernel) {
        netacc_log::log!(Error, "fd {}: cannot put the kernel socket under its numbers: {e}", s.first_fd());
    }
    s.set(PLACEHOLDER | CONNECTING, false);
    s.set_state(ConnState::Demoted);
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
