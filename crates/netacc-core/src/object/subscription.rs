//! Subscriptions of epoll instances to the ready sets of links.

use crate::object::instance::Epoll;
use crate::object::name::Name;
use netacc_sys::mem::Zeroed;
use netacc_sys::slab::Pooled;
use netacc_sys::{AtomicRef, SharedCell};
use netacc_transport::shm::Link;

/// An instance's claim on one ready set of one link.
#[derive(Debug)]
#[repr(align(64))]
pub struct Subscription {
    pub(crate) next_free: AtomicRef<Subscription>,
    pub(crate) name: Name,
    pub(crate) link: AtomicRef<Link>,
    pub(crate) epoll: AtomicRef<Epoll>,
    pub(crate) ready_set: SharedCell<u32>,
    /// Number of registrations that use it; under `STRUCTURE`.
    pub(crate) users: SharedCell<u32>,
    /// Number of connections over RDMA among them; under `STRUCTURE`.
    pub(crate) remote: SharedCell<u32>,
    /// Set while it is in the active list: its ready set is checked in every round, so the peer need not write the
    /// waker.
    pub(crate) active: SharedCell<bool>,
    pub(crate) next: AtomicRef<Subscription>,
    pub(crate) next_active: AtomicRef<Subscription>,
}

#[allow(unsafe_code)]
mod zeroed {
    // SAFETY: the type consists of atomics, for which zero is valid and a fresh object.
    unsafe impl super::Zeroed for super::Subscription {}
}

impl Pooled for Subscription {
    fn next_free(&self) -> &AtomicRef<Subscription> {
        &self.next_free
    }
}

impl Subscription {
    /// The link, while the subscription holds it.
    pub(crate) fn link(&self) -> Option<&'static Link> {
        self.link.load()
    }
}
