//! A process that has become another user says so to its peers.
//!
//! A peer that trusts this process holds wakers of its making and rings them, which could block the peer if the process was
//! taken over later. The kernel tells a peer the sender's user with each message ([`super::guard`]), so one message over each
//! link is enough for the peer to trust the process no longer.

use crate::shm::registry;
use netacc_sys::lock;
use netacc_wire::Message;

/// The waker that no side has: a message to ring it does nothing.
const NO_WAKER: u32 = 0;

/// Sends a message over each link, by which the peer learns the user of this process. A peer that does not read its socket does
/// not learn it before it does. Nothing is said in a signal handler that has interrupted a call of ours: the link that it
/// speaks over could end there.
pub fn tell_peers() {
    if lock::interrupted() {
        return;
    }
    // A link of the parent's has no control socket here, and the user of a side in this process is known.
    registry::each_used(|link| {
        let _ = link.send(Message::Wake { id: NO_WAKER }, None);
    });
}
