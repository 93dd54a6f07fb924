//! The windows with the bytes of one direction in shared memory.
//!
//! # Safety
//! An [`Area`] is made once from two pointers that stay valid, as its maker guarantees; afterwards every access is at
//! an offset that [`crate::Layout::offset`] masks into the window, so no claim of a peer leads outside. The peer may
//! change the bytes while they are copied: they are only copied as raw bytes, never interpreted in place.
#![allow(unsafe_code)]

use crate::{LARGE, Layout, SMALL};
use core::ptr::NonNull;

/// The small and the large window of one direction.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    small: NonNull<u8>,
    large: NonNull<u8>,
}

// SAFETY: the pointers are to shared memory that any thread may copy from and to.
unsafe impl Send for Area {}
// SAFETY: the pointers are to shared memory that any thread may copy from and to.
unsafe impl Sync for Area {}

impl Area {
    /// An area of these two windows.
    ///
    /// # Safety
    /// `small` must be valid for reads and writes of [`SMALL`] bytes and `large` of [`LARGE`] bytes
    /// for as long as the area is used.
    pub unsafe fn new(small: NonNull<u8>, large: NonNull<u8>) -> Area {
        Area { small, large }
    }

    /// The address of stream position `at` and the bytes up to the window's end from there.
    #[inline]
    pub fn at(&self, layout: Layout, at: u64) -> (NonNull<u8>, usize) {
        let off = layout.offset(at);
        let base = if layout.large { self.large } else { self.small };
        debug_assert!(off < if layout.large { LARGE } else { SMALL });
        // SAFETY: `off` is below the window's size, and the maker of the area guarantees that the window is valid.
        (unsafe { base.add(off) }, layout.size() - off)
    }
}
