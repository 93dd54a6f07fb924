//! The listener at the other end of a client's link.

use core::sync::atomic::{AtomicU64, Ordering};

/// Which listener is at the other end (client side).
#[derive(Debug)]
pub struct PeerListener {
    /// The kernel's cookie for it where several may share its port; 0: it is the only one.
    pub member: AtomicU64,
    /// The kernel's cookie for it at the time when the link was made, whether others share its port or not; 0: the
    /// kernel does not tell.
    pub cookie: AtomicU64,
    /// Time ([`netacc_sys::cpu::ticks`]) at which the kernel last confirmed that this listener would get a connection.
    /// Under the owner's lock.
    pub confirmed: AtomicU64,
}

impl PeerListener {
    /// Nothing is known of the listener of a new link.
    pub(super) fn begin(&self) {
        for word in [&self.member, &self.cookie, &self.confirmed] {
            word.store(0, Ordering::Relaxed);
        }
    }
}
