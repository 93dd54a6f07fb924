//! Connections in an epoll instance of whose peers no sleeping thread hears: each call asks for them.

use crate::object::instance::Epoll;
use alloc::vec::Vec;
use netacc_transport::shm::Link;

/// Whether the instance has connections for which no waker is written, or entries in a set that belongs to another
/// process.
pub(super) fn is_unheard(e: &Epoll) -> bool {
    let hinted = e.with_liveness.get() + e.listened.get();
    e.polled.get() > hinted || e.is_inherited()
}

/// Reads the control sockets of connections that have no subscription in this instance, so that the kernel's set has
/// none of their link: otherwise the end of the peer's process would be noticed by no thread.
#[cold]
pub(super) fn serve_polled(e: &Epoll) {
    // Each link once, and after the instance's lock: what a message does to a connection is not known here.
    let mut links: Vec<&'static Link> = Vec::new();
    {
        let _g = e.lock.lock();
        for reg in e.registered() {
            let polled = reg.source().is_polled();
            let socket = reg.sock.get().filter(|s| polled && s.is_shm());
            let Some(link) = socket.and_then(|s| s.endpoint()).map(|ep| ep.side.link()) else { continue };
            let is_known = links.iter().any(|l| core::ptr::eq(*l, link));
            if !is_known && !link.is_inherited() && !link.is_lost() && link.hold_if_used() {
                links.push(link);
            }
        }
    }
    for link in links {
        link.service_if_readable();
        link.put();
    }
}
