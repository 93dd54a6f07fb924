//! A process that has become another user says so to its peers.
//!
//! A peer that trusts this process holds wakers of its making and rings them, which could block the peer if the process was
//! taken over later. The kernel tells a peer the sender's user with each message ([`super::guard`]), so one message over each
//! link is enough for the peer to trust the process no longer.

use crate::shm::Link;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use netacc_sys::lock;
use netacc_wire::Message;

/// Every link that this process ever had, in use or not. It only grows, since the memory of links is used again.
static ALL: AtomicPtr<Link> = AtomicPtr::new(ptr::null_mut());

/// The waker that no side has: a message to ring it does nothing.
const NO_WAKER: u32 = 0;

#[allow(unsafe_code)]
fn at(p: &AtomicPtr<Link>) -> Option<&'static Link> {
    // SAFETY: null or a link, which is never freed. Acquire: a link's own pointer was written before it was listed.
    unsafe { p.load(Ordering::Acquire).as_ref() }
}

impl Link {
    /// The link's memory is used for the first time, or again.
    pub(super) fn list(&'static self) {
        if self.listed.swap(1, Ordering::Relaxed) != 0 {
            return;
        }
        let mut first = ALL.load(Ordering::Relaxed);
        loop {
            self.next_listed.store(first, Ordering::Relaxed);
            let this = ptr::from_ref(self).cast_mut();
            // Release: a reader that finds the link finds the next one.
            match ALL.compare_exchange_weak(first, this, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }
}

/// Sends a message over each link, by which the peer learns the user of this process. A peer that does not read its socket does
/// not learn it before it does. Nothing is said in a signal handler that has interrupted a call of ours: the link that it
/// speaks over could end there.
pub fn tell_peers() {
    if lock::interrupted() {
        return;
    }
    let mut next = at(&ALL);
    while let Some(link) = next {
        next = at(&link.next_listed);
        // A link of the parent's has no control socket here, and the user of a side in this process is known.
        if link.hold_if_used() {
            let _ = link.send(Message::Wake { id: NO_WAKER }, None);
            link.put();
        }
    }
}
