//! Memory straight from the kernel: anonymous zeroed regions, which live as long as the process unless somebody owns them.
//!
//! # Safety
//! The regions are never unmapped, so `&'static` references into them stay valid; they are zeroed,
//! and only types for which all-zero bytes are a valid value may be placed there ([`Zeroed`]). One that is owned
//! ([`Owned`]) lends its bytes no longer than it lives.
#![allow(unsafe_code)]

use crate::errno::Result;
use core::ops::{Deref, DerefMut};
use core::ptr::{self, NonNull};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// A type for which all-zero memory is a valid, initial value, and which needs no drop.
///
/// # Safety
/// The implementor promises just that.
pub unsafe trait Zeroed: Sync {}

// SAFETY: plain words whose zero is a value.
unsafe impl Zeroed for core::sync::atomic::AtomicU64 {}
// SAFETY: as above.
unsafe impl Zeroed for core::sync::atomic::AtomicU32 {}
// SAFETY: as above.
unsafe impl Zeroed for core::sync::atomic::AtomicI32 {}
// SAFETY: as above; null is a value.
unsafe impl<T> Zeroed for core::sync::atomic::AtomicPtr<T> {}

/// Maps `len` zeroed bytes, committed only when touched.
pub fn map(len: usize) -> Result<NonNull<u8>> {
    // SAFETY: a fresh private mapping overlaps nothing.
    let p = unsafe {
        mmap_anonymous(
            ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )?
    };
    NonNull::new(p.cast()).ok_or(crate::Errno::NOMEM)
}

/// Unmaps a region got from [`map`].
///
/// # Safety
/// Nothing may refer to the region any more.
pub unsafe fn unmap(p: NonNull<u8>, len: usize) {
    // SAFETY: the caller's promise.
    let _ = unsafe { rustix::mm::munmap(p.as_ptr().cast(), len) };
}

/// Bytes of a mapping of their own, zero at first. Unlike an allocator's, which may have been used before and then has to
/// clear all of them, those that are not touched cost nothing.
#[derive(Debug)]
pub struct Owned {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: plain bytes, which are reached through it alone.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Owned {
    /// So many bytes, and one at least.
    pub fn new(len: usize) -> Result<Owned> {
        let len = len.max(1);
        Ok(Owned { at: map(len)?, len })
    }
}

impl Default for Owned {
    /// None.
    fn default() -> Owned {
        Owned { at: NonNull::dangling(), len: 0 }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: ours, and what it has lent has ended.
            unsafe { unmap(self.at, self.len) };
        }
    }
}

impl Deref for Owned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped by `new` with that length, or none.
        unsafe { core::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl DerefMut for Owned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is the only one.
        unsafe { core::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

/// A zeroed array that lives as long as the process; untouched pages cost nothing.
pub fn array<T: Zeroed>(n: usize) -> Result<&'static [T]> {
    let p = map(n.saturating_mul(size_of::<T>()).max(1))?;
    // SAFETY: the mapping is large enough, page-aligned, zeroed, never unmapped, and T: Zeroed.
    Ok(unsafe { core::slice::from_raw_parts(p.as_ptr().cast(), n) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_owned_is_zero_again_and_goes_with_its_owner() {
        for _ in 0..3 {
            let mut bytes = Owned::new(3 << 20).unwrap();
            assert!(bytes.len() == 3 << 20 && bytes.iter().all(|b| *b == 0));
            bytes.fill(7);
        }
        assert!(Owned::default().is_empty());
        assert_eq!(Owned::new(0).unwrap().len(), 1);
    }
}
