//! Memory straight from the kernel: anonymous zeroed regions that live as long as the process.
//!
//! # Safety
//! The regions are never unmapped, so `&'static` references into them stay valid; they are zeroed,
//! and only types for which all-zero bytes are a valid value may be placed there ([`Zeroed`]).
#![allow(unsafe_code)]

use crate::errno::Result;
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

/// A zeroed array that lives as long as the process; untouched pages cost nothing.
pub fn array<T: Zeroed>(n: usize) -> Result<&'static [T]> {
    let p = map(n.saturating_mul(size_of::<T>()).max(1))?;
    // SAFETY: the mapping is large enough, page-aligned, zeroed, never unmapped, and T: Zeroed.
    Ok(unsafe { core::slice::from_raw_parts(p.as_ptr().cast(), n) })
}
