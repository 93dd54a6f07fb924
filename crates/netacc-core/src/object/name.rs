//! The name of an object among the kernel's events (see `epoll::cookies`).

use core::sync::atomic::AtomicU32;

/// Place in the table and stamp of an object.
#[derive(Debug)]
pub(crate) struct Name {
    /// Index of its cell; 0: none yet.
    pub(crate) index: AtomicU32,
    pub(crate) stamp: AtomicU32,
}
