//! Memory straight from the kernel: anonymous zeroed regions, which live as long as the process unless somebody owns
//! them.
//!
//! # Safety
//! The regions are never unmapped, so `&'static` references into them stay valid; they are zeroed,
//! and only types for which all-zero bytes are a valid value may be placed there ([`Zeroed`]). One that is owned
//! ([`Owned`]) lends its bytes no longer than it lives. When the library is replaced, all of them are given back.
#![allow(unsafe_code)]

use crate::errno::Result;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ops::{Deref, DerefMut};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munlock};
use rustix::process::{Resource, getrlimit};

/// The largest size (bytes) that the kernel's pages can have on this processor, and so a multiple of every other one: a
/// kernel for AArch64 has pages of 4, 16 or 64 KiB. A mapping may begin at each multiple of it, whichever size they
/// have.
pub const LARGEST_PAGE: usize = if cfg!(target_arch = "x86_64") { 4096 } else { 65536 };

/// A type for which all-zero memory is a valid, initial value, and which needs no drop.
///
/// # Safety
/// The implementor promises just that.
pub unsafe trait Zeroed: Sync {}

// SAFETY: plain words whose zero is a value.
unsafe impl Zeroed for core::sync::atomic::AtomicU64 {}
// SAFETY: a plain word, of which zero is a value.
unsafe impl Zeroed for core::sync::atomic::AtomicU32 {}
// SAFETY: a plain word, of which zero is a value.
unsafe impl Zeroed for core::sync::atomic::AtomicI32 {}
// SAFETY: a plain word, of which zero (null) is a value.
unsafe impl<T> Zeroed for core::sync::atomic::AtomicPtr<T> {}
// SAFETY: each element may be zero.
unsafe impl<T: Zeroed, const N: usize> Zeroed for [T; N] {}

/// Maps `len` zeroed bytes, which are committed only when touched, and lie in huge pages where the kernel gives those
/// unasked.
pub fn map(len: usize) -> Result<NonNull<u8>> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh private mapping overlaps nothing.
    let at = unsafe { mmap_anonymous(ptr::null_mut(), len, first_access(), flags)? };
    let at = NonNull::new(at.cast()).ok_or(crate::Errno::NOMEM)?;
    // SAFETY: mapped just now, and nobody knows of it.
    unsafe { open_up(at, len).inspect_err(|_| unmap(at, len))? };
    note(at, len);
    Ok(at)
}

crate::tables! {
    /// The mappings of [`map`] (address and length), so that all of them can be given back when the library is replaced.
    /// One that finds no place here stays then.
    static NOTED: [[AtomicUsize; 2]; 512] = [const { [const { AtomicUsize::new(0) }; 2] }; 512];
}

/// Notes a mapping. Relaxed, here and in what follows: only the thread that has the mapping changes its line, and the one
/// that gives all back has waited for the others.
fn note(at: NonNull<u8>, len: usize) {
    // Not read first, since the page of zeroes that the kernel would show then is replaced at the write.
    let free = |[start, _]: &&[AtomicUsize; 2]| {
        start.compare_exchange(0, at.addr().get(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    if let Some([_, length]) = NOTED.iter().find(free) {
        length.store(len, Ordering::Relaxed);
    }
}

/// Notes that a mapping of [`map`] lies at `to` now, with this length (0: nowhere).
pub(crate) fn moved(from: *mut u8, to: *mut u8, len: usize) {
    if let Some([start, length]) = NOTED.iter().find(|[start, _]| start.load(Ordering::Relaxed) == from.addr()) {
        length.store(len, Ordering::Relaxed);
        start.store(if len == 0 { 0 } else { to.addr() }, Ordering::Relaxed);
    }
}

/// Gives all memory of [`map`] and [`array`] back to the kernel. It reads as zero from then on, so that a thread that is
/// between two instructions of a call which only passes on finds that nothing is ours.
///
/// # Safety
/// No thread is inside the library ([`crate::visits`]), and none comes in again.
pub unsafe fn give_all_back() {
    for [start, length] in &NOTED {
        let len = length.swap(0, Ordering::Relaxed);
        if let Some(at) = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(start.swap(0, Ordering::Relaxed))) {
            // SAFETY: a mapping of ours, and the caller guarantees that nobody uses what is in it.
            unsafe { clear(at, len) };
        }
    }
    if let Some(at) = NonNull::new(OURS.0.get().cast::<u8>()) {
        // SAFETY: pages of our own, and the caller guarantees that nobody uses what is in them.
        unsafe { clear(at, size_of::<Ours>()) };
    }
}

/// Replaces memory by memory that is zero and takes none until it is written to.
///
/// # Safety
/// The range is mapped and ours, and nobody relies on what is in it.
pub unsafe fn clear(at: NonNull<u8>, len: usize) {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    let address = at.as_ptr().cast();
    // After mlockall(MCL_FUTURE) the kernel would lock what is mapped there, and bring all of it into memory.
    // SAFETY: the caller guarantees that the range is ours; private memory of no file is zero then.
    let is_clear = is_locking()
        && unsafe { munlock(address, len).and_then(|()| madvise(address, len, Advice::LinuxDontNeed)).is_ok() };
    if len > 0 && !is_clear {
        // SAFETY: the caller guarantees that the range is ours. A failure leaves it as it is.
        let _ = unsafe { mmap_anonymous(address, len, ProtFlags::READ | ProtFlags::WRITE, flags) };
    }
}

/// Set once the program has called mlockall(MCL_FUTURE).
static LOCKING: AtomicBool = AtomicBool::new(false);

/// Notes that the program is about to call mlockall(MCL_FUTURE). If the kernel drops the request (in the child of a
/// fork, or when the program takes it back), the note costs only some system calls.
pub fn note_locking() {
    LOCKING.store(true, Ordering::Relaxed);
}

/// Whether the program has called mlockall(MCL_FUTURE).
pub fn is_locking() -> bool {
    LOCKING.load(Ordering::Relaxed)
}

/// How a mapping of ours may be accessed until [`open_up`]. After mlockall(MCL_FUTURE) the kernel locks what is mapped
/// and brings all of it into memory at once, except what cannot be accessed.
pub fn first_access() -> ProtFlags {
    if is_locking() { ProtFlags::empty() } else { ProtFlags::READ | ProtFlags::WRITE }
}

/// Makes a fresh mapping that was made with [`first_access`] readable and writable. Its pages come into memory when
/// they are touched, as in a program that locks nothing; the program's own memory stays locked as it wants.
///
/// # Safety
/// The range is a mapping of the caller's.
pub unsafe fn open_up(at: NonNull<u8>, len: usize) -> Result<()> {
    if is_locking() {
        // SAFETY: the caller guarantees that the range is a mapping of the caller's.
        unsafe { permit(at.as_ptr().cast(), len, MprotectFlags::READ | MprotectFlags::WRITE)? };
    }
    Ok(())
}

/// Makes a fresh mapping accessible that the kernel has locked, and that cannot be accessed yet: it is not locked any more.
///
/// # Safety
/// The range is a mapping of the caller's.
pub unsafe fn permit(at: *mut c_void, len: usize, access: MprotectFlags) -> Result<()> {
    // SAFETY: the caller guarantees that the range is a mapping of the caller's.
    let _ = unsafe { munlock(at, len) };
    // SAFETY: the caller guarantees that the range is a mapping of the caller's.
    unsafe { mprotect(at, len, access)? };
    Ok(())
}

/// Divisor of the limit of the address space (RLIMIT_AS): no use of ours takes more than the limit divided by it.
const SHARE: u64 = 8;

/// Whether the process may give `len` bytes of its address space to one use of ours. Where the address space has a
/// limit, most of it is left to the program, which would have all of it with the kernel's TCP.
pub fn is_affordable(len: usize) -> bool {
    getrlimit(Resource::As).current.is_none_or(|limit| len as u64 <= limit / SHARE)
}

/// Maps a zeroed object that is shared with all processes forked from this one. It lives as long as the process.
pub fn shared<T: Zeroed>() -> Result<&'static T> {
    const { assert!(align_of::<T>() <= 4096) };
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping overlaps nothing.
    let p = unsafe { mmap_anonymous(ptr::null_mut(), size_of::<T>(), access, MapFlags::SHARED)? };
    // SAFETY: the mapping is large enough, aligned, zeroed and never removed, and T: Zeroed.
    unsafe { p.cast::<T>().as_ref() }.ok_or(crate::Errno::NOMEM)
}

/// Unmaps a region got from [`map`].
///
/// # Safety
/// Nothing may refer to the region any more.
pub unsafe fn unmap(p: NonNull<u8>, len: usize) {
    moved(p.as_ptr(), ptr::null_mut(), 0);
    // SAFETY: the caller guarantees that nothing refers to the region any more.
    let _ = unsafe { rustix::mm::munmap(p.as_ptr().cast(), len) };
}

/// Bytes in a mapping of their own, zero at first. An allocator's memory may have been used before, and all of it has
/// to be cleared then; here bytes that are not touched cost nothing.
#[derive(Debug)]
pub struct Owned {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: plain bytes, which are reached through it alone.
unsafe impl Send for Owned {}
// SAFETY: plain bytes, which are reached through it alone.
unsafe impl Sync for Owned {}

impl Owned {
    /// Maps `len` zeroed bytes, and one at least.
    pub fn new(len: usize) -> Result<Owned> {
        let len = len.max(1);
        Ok(Owned { at: map(len)?, len })
    }
}

impl Default for Owned {
    /// No bytes and no mapping.
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
        // SAFETY: mapped by `new` with that length, or none, and the borrow is the only one.
        unsafe { core::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

/// Largest array (bytes) that comes from the library's own zeroed pages: a mapping and the page tables for it take
/// longer than what a first connect does with them.
const SMALL: usize = 256 << 10;
/// Pages that are handed out from the beginning and never returned. Untouched ones take no memory.
#[repr(C, align(4096))]
struct Ours(UnsafeCell<[u8; 2 * SMALL]>);

// SAFETY: plain bytes, each of which is handed out to one caller only.
unsafe impl Sync for Ours {}

crate::tables! {
    static OURS: Ours = Ours(UnsafeCell::new([0; 2 * SMALL]));
}
static HANDED_OUT: AtomicUsize = AtomicUsize::new(0);

/// `len` zeroed bytes of our own pages, if enough of them are left.
fn small(len: usize, align: usize) -> Option<NonNull<u8>> {
    if len > SMALL || align > align_of::<Ours>() {
        return None;
    }
    let room = |used: usize| {
        let start = used.next_multiple_of(align);
        (start + len <= size_of::<Ours>()).then_some((start, start + len))
    };
    // Relaxed: a thread that has a range has it alone, and its zeroes were there before the process.
    let before =
        HANDED_OUT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| room(used).map(|(_, end)| end)).ok()?;
    let (start, _) = room(before)?;
    // SAFETY: the range is within the static, as `room` says.
    NonNull::new(unsafe { OURS.0.get().cast::<u8>().add(start) })
}

/// Where the kernel may use huge pages without being asked, the first access to so large an array (bytes) would clear 2 MiB. A
/// process with few descriptors uses a page of it.
const HUGE: usize = 2 << 20;

/// A zeroed array that lives as long as the process; untouched pages cost nothing.
pub fn array<T: Zeroed>(n: usize) -> Result<&'static [T]> {
    let len = n.saturating_mul(size_of::<T>()).max(1);
    let p = small(len, align_of::<T>()).map_or_else(|| map(len), Ok)?;
    if len >= HUGE {
        // SAFETY: a mapping of ours, of which nothing but the kind of its pages changes.
        let _ = unsafe { madvise(p.as_ptr().cast(), len, Advice::LinuxNoHugepage) };
    }
    // SAFETY: the range is large enough, aligned, zeroed, nobody else's for ever, and T: Zeroed.
    Ok(unsafe { core::slice::from_raw_parts(p.as_ptr().cast(), n) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU32, AtomicU64};

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

    #[test]
    fn small_arrays_do_not_overlap_and_the_rest_is_mapped() {
        let mut seen = Vec::new();
        // These arrays take more than our own pages have.
        for n in 1..300 {
            let (a, b) = (array::<AtomicU32>(n).unwrap(), array::<AtomicU64>(2 * n).unwrap());
            let all = a.iter().map(|c| c.swap(1, Ordering::Relaxed)).sum::<u32>();
            assert!(all == 0 && b.iter().all(|c| c.swap(2, Ordering::Relaxed) == 0), "{n}");
            seen.extend([(a.as_ptr().addr(), 4 * n), (b.as_ptr().addr(), 16 * n)]);
        }
        seen.sort_unstable();
        assert!(seen.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0), "they overlap");
        assert!(small(SMALL, 1).is_none() && small(1, 8192).is_none());
    }
}
