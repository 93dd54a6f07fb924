//! An epoll instance's claim on one ready set of one link.

use crate::object::instance::Epoll;
use crate::object::name::Name;
use crate::object::reference::at;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use netacc_sys::mem::Zeroed;
use netacc_sys::slab::Pooled;
use netacc_transport::shm::Link;

/// One instance's ready set on one link.
#[derive(Debug)]
#[repr(align(64))]
pub struct Subscription {
    pub(crate) next_free: AtomicPtr<Subscription>,
    pub(crate) name: Name,
    pub(crate) link: AtomicPtr<Link>,
    pub(crate) epoll: AtomicPtr<Epoll>,
    pub(crate) ready_set: AtomicU32,
    /// Number of registrations that hear by it; under `STRUCTURE`.
    pub(crate) users: AtomicU32,
    /// Set while it is in the active list: its ready set is looked at in every round, so the peer need not ring.
    pub(crate) active: AtomicU32,
    pub(crate) next: AtomicPtr<Subscription>,
    pub(crate) next_active: AtomicPtr<Subscription>,
}

#[allow(unsafe_code)]
mod zeroed {
    // SAFETY: only atomics; zero is a fresh object.
    unsafe impl super::Zeroed for super::Subscription {}
}

impl Pooled for Subscription {
    fn next_free(&self) -> &AtomicPtr<Subscription> {
        &self.next_free
    }
}

impl Subscription {
    /// The link, while the subscription holds it.
    pub(crate) fn link(&self) -> Option<&'static Link> {
        at(self.link.load(Ordering::Acquire))
    }
}
