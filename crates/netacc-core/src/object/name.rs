//! The name of an object among the kernel's events (see `epoll::cookies`).

use core::sync::atomic::AtomicU32;

/// Index and stamp by which an object is named in the kernel's set.
#[derive(Debug)]
pub(crate) struct Name {
    /// Index of the object's cell in the table; 0: none yet.
    pub(crate) index: AtomicU32,
    pub(crate) stamp: AtomicU32,
}
