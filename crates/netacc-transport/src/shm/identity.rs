//! Notifying peers after the process has become another user.
//!
//! A peer that trusts this process has its wakers and writes them, which could block the peer if another user controls
//! this process. The kernel tells a peer the sender's user with each message ([`super::guard`]), so one message over
//! each link is enough to end the peer's trust.

use crate::shm::registry;
use netacc_sys::lock;
use netacc_wire::Message;

/// A waker number that no side has: a message to write it does nothing.
const NO_WAKER: u32 = 0;

/// Sends a message over each link, by which the kernel tells the peer the user of this process. The peer learns it when
/// it reads its socket. No message is sent in a signal handler that has interrupted one of our calls, since the link
/// could be ending there.
pub fn tell_peers() {
    if lock::interrupted() {
        return;
    }
    // A link of the parent has no control socket here, so nothing is sent over it. If a socket is full, the next
    // message tells the peer.
    registry::each_used(|link| {
        let _ = link.control.send(Message::Wake { id: NO_WAKER }, None);
    });
}
