//! Whether the program's memory can be read or written. The calls that we serve touch it with loads and stores, where
//! the kernel would answer `EFAULT`; so the kernel is asked first, once per page.
//!
//! A page that was accessible is taken to be accessible for ever: a program that gives memory back and goes on passing
//! it is stopped by a signal, as by any other use of such memory.
#![allow(unsafe_code)]

use crate::errno::Errno;
use crate::raw;
use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// The smallest page size (bytes); each part of a larger page is queried by itself.
const PAGE: usize = 4096;

/// The binary logarithm of [`KNOWN`].
const KNOWN_BITS: u32 = 15;

/// Number of pages that are remembered; they hold 128 MiB of buffers.
const KNOWN: usize = 1 << KNOWN_BITS;

/// What a call does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The call reads it.
    Read,
    /// The call writes it.
    Write,
}

crate::tables! {
    /// Pages that were accessible: the number of the page plus 1, doubled, plus 1 where it was writable. Nothing is
    /// published by an entry, so each access is `Relaxed`; an entry that another thread's overwrites costs one more
    /// question.
    static PAGES: [AtomicUsize; KNOWN] = [const { AtomicUsize::new(0) }; KNOWN];
}

/// Whether the `len` bytes at `p`, of which there is one at least, are known to be accessible, as far as their first
/// and last page tell. No function is called: a call that is not ours is passed on without a frame of ours.
#[inline(always)]
pub fn known<T>(p: *const T, len: usize, access: Access) -> bool {
    let first = p as usize;
    let last = first.wrapping_add(len.wrapping_sub(1));
    known_page(first, access) && (first / PAGE == last / PAGE || known_page(last, access))
}

/// The cell of [`PAGES`] for the page with this number. The number is hashed, because the buffers of a program's threads
/// lie at a regular distance: malloc(3) aligns the arena of each thread to 64 MiB, and stacks are 8 MiB apart. With the
/// low bits of the number alone, threads would overwrite each other's entries, and each call would ask the kernel again.
#[inline(always)]
fn cell(number: usize) -> Option<&'static AtomicUsize> {
    // A multiplicative hash: the upper bits of the product with an odd number. Of the well-known multipliers this one
    // spreads the distances that the test below names best.
    const MULTIPLIER: u64 = 0xD1B5_4A32_D192_ED03;
    let hash = (number as u64).wrapping_mul(MULTIPLIER) >> (u64::BITS - KNOWN_BITS);
    PAGES.get(hash as usize)
}

#[inline(always)]
fn known_page(addr: usize, access: Access) -> bool {
    let number = addr / PAGE;
    let word = cell(number).map_or(0, |cell| cell.load(Ordering::Relaxed));
    match access {
        Access::Read => word >> 1 == number + 1,
        Access::Write => word == entry(number, access),
    }
}

#[inline(always)]
fn entry(number: usize, access: Access) -> usize {
    (number + 1) << 1 | usize::from(access == Access::Write)
}

/// Whether the `len` bytes at `p` can be accessed, as far as their first and last page tell.
#[inline]
pub fn accessible(p: *const c_void, len: usize, access: Access) -> bool {
    len == 0 || known(p, len, access) || probe(p as usize, len, access)
}

/// Whether the `len` bytes at `p` can be read.
#[inline]
pub fn readable<T>(p: *const T, len: usize) -> bool {
    accessible(p.cast(), len, Access::Read)
}

/// Whether the `len` bytes at `p` can be written.
#[inline]
pub fn writable<T>(p: *const T, len: usize) -> bool {
    accessible(p.cast(), len, Access::Write)
}

/// The value at `p`; `None` where it cannot be read. A call that cannot read what it was given leaves the answer to the
/// kernel, which fails it with `EFAULT`.
///
/// # Safety
/// Any bytes are a valid `T`.
#[inline]
pub unsafe fn load<T: Copy>(p: *const T) -> Option<T> {
    // SAFETY: bytes that can be read, which are a valid value by the caller's guarantee.
    readable(p, size_of::<T>()).then(|| unsafe { p.read_unaligned() })
}

/// Writes `value` to `p`. False where that cannot be written.
///
/// # Safety
/// `p` is where the program wants the value.
#[inline]
pub unsafe fn store<T: Copy>(p: *mut T, value: T) -> bool {
    let there = writable(p, size_of::<T>());
    if there {
        // SAFETY: bytes that can be written, in memory that the program has named for that.
        unsafe { p.write_unaligned(value) };
    }
    there
}

/// The text at `p` up to its first zero byte; `None` where a byte of it cannot be read.
///
/// # Safety
/// The program leaves the text as it is for as long as the result is used.
pub unsafe fn text<'a>(p: *const c_char) -> Option<&'a CStr> {
    let mut at = p.cast::<u8>();
    loop {
        // No byte of the next page is read before it is known to be there.
        let rest = PAGE - at as usize % PAGE;
        if !readable(at, 1) {
            return None;
        }
        // SAFETY: the rest of a page that can be read.
        let part = unsafe { core::slice::from_raw_parts(at, rest) };
        if part.contains(&0) {
            // SAFETY: all pages up to the zero byte can be read.
            return Some(unsafe { CStr::from_ptr(p) });
        }
        at = at.wrapping_add(rest);
    }
}

/// How many of the `len` bytes at `p` can be written before the first that cannot.
#[cold]
pub fn writable_part(p: *mut c_void, len: usize) -> usize {
    let mut part = 0;
    while part < len {
        let at = p.cast::<u8>().wrapping_add(part);
        if !writable(at, 1) {
            break;
        }
        part += PAGE - at as usize % PAGE;
    }
    part.min(len)
}

/// The kernel's set of signals at `p`; none where that cannot be read.
#[allow(clippy::not_unsafe_ptr_arg_deref, reason = "it is examined first")]
pub fn signal_set(p: *const core::ffi::c_void) -> u64 {
    // SAFETY: any eight bytes are a set of signals.
    unsafe { load(p.cast::<u64>()) }.unwrap_or(0)
}

/// Set once the kernel is no longer queried.
static SILENT: AtomicBool = AtomicBool::new(false);

/// Has all memory taken to be accessible from here on: the program is about to forbid itself system calls, and may be
/// killed for one of ours.
pub fn stop_probing() {
    SILENT.store(true, Ordering::Relaxed);
}

/// Whether the kernel is queried.
pub fn is_probing() -> bool {
    !SILENT.load(Ordering::Relaxed)
}

#[cold]
#[inline(never)]
fn probe(first: usize, len: usize, access: Access) -> bool {
    let Some(last) = first.checked_add(len - 1) else {
        return false;
    };
    [first, last].into_iter().all(|addr| known_page(addr, access) || probe_page(addr, access))
}

fn probe_page(addr: usize, access: Access) -> bool {
    let number = addr / PAGE;
    if number == 0 || SILENT.load(Ordering::Relaxed) {
        return number != 0;
    }
    let there = match access {
        Access::Read => probed_by_read(addr),
        Access::Write => probed_by_write(addr),
    };
    if there && let Some(cell) = cell(number) {
        cell.store(entry(number, access), Ordering::Relaxed);
    }
    there
}

/// rt_sigprocmask(2) reads the set before it refuses an operation that does not exist.
fn probed_by_read(addr: usize) -> bool {
    const NO_OPERATION: usize = 99;
    const SET: usize = 8;
    // SAFETY: the kernel reads from `addr` at most, and says so where it cannot; no mask is changed.
    let answer = unsafe { raw::syscall6(libc::SYS_rt_sigprocmask, [NO_OPERATION, addr & !(SET - 1), 0, SET, 0, 0]) };
    answer != -(Errno::FAULT.0 as isize)
}

/// FUTEX_WAKE_OP of futex(2) adds 0 to a word, in one step, so that no thread misses a store of its own there.
fn probed_by_write(addr: usize) -> bool {
    /// A futex word without waiters.
    static NOBODY: AtomicU32 = AtomicU32::new(0);
    const ADD_NOTHING: usize = (libc::FUTEX_OP_ADD as usize) << 28;
    let op = (libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG) as usize;
    let word = addr & !(size_of::<u32>() - 1);
    // SAFETY: the kernel accesses a word of ours and, where it can, one at `addr`, whose value stays what it is.
    let answer = unsafe { raw::syscall6(libc::SYS_futex, [NOBODY.as_ptr() as usize, op, 0, 0, word, ADD_NOTHING]) };
    answer != -(Errno::FAULT.0 as isize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three pages of memory with the accesses named.
    fn pages(access: [i32; 3]) -> *mut u8 {
        // SAFETY: a fresh mapping, which the test keeps; the calls change nothing else.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let p = libc::mmap(core::ptr::null_mut(), 3 * PAGE, libc::PROT_NONE, flags, -1, 0).cast::<u8>();
            for (i, prot) in access.into_iter().enumerate() {
                assert_eq!(libc::mprotect(p.add(i * PAGE).cast(), PAGE, prot), 0);
            }
            p
        }
    }

    #[test]
    fn memory_is_told_by_its_pages() {
        let p = pages([libc::PROT_READ | libc::PROT_WRITE, libc::PROT_READ, libc::PROT_NONE]);
        // SAFETY: within the three pages.
        let at = |n: usize| unsafe { p.add(n) };
        for _ in 0..2 {
            assert!(readable(at(0), PAGE) && writable(at(0), PAGE));
            assert!(readable(at(PAGE), PAGE) && !writable(at(PAGE), 1));
            assert!(!readable(at(2 * PAGE), 1) && !writable(at(2 * PAGE), 1));
            assert!(readable(at(0), 2 * PAGE) && !writable(at(0), 2 * PAGE));
            assert!(!readable(at(2 * PAGE - 1), 2) && readable(at(2 * PAGE - 1), 1));
            assert!(readable(at(2 * PAGE), 0));
        }
        // SAFETY: the first page can be read.
        assert_eq!(unsafe { *p }, 0);
    }

    /// The first pages of 256 arenas and of 256 stacks, as a program with that many threads has them.
    #[test]
    fn buffers_of_threads_do_not_displace_each_other() {
        let place = |number: usize| core::ptr::from_ref(cell(number).unwrap()) as usize;
        for distance in [128 << 20, 64 << 20, 8 << 20, (8 << 20) + PAGE, 2 << 20] {
            let mut places: Vec<usize> = (0..256)
                .flat_map(|n| (0..8).map(move |page| place(0x7f00_0000_0000 / PAGE + n * distance / PAGE + page)))
                .collect();
            places.sort_unstable();
            let pages = places.len();
            places.dedup();
            assert_eq!(places.len(), pages, "{distance}");
        }
    }

    #[test]
    fn what_cannot_be_read_or_written_is_left_alone() {
        let p = pages([libc::PROT_READ | libc::PROT_WRITE, libc::PROT_READ, libc::PROT_NONE]);
        // SAFETY: within the three pages; the text ends where the memory does, or is not ended by a zero byte at all.
        unsafe {
            let value = p.add(PAGE - 8).cast::<[u8; 8]>();
            assert!(store(value, *b"12345678") && !store(p.add(PAGE - 4).cast(), *b"12345678"));
            assert_eq!(load(value), Some(*b"12345678"));
            assert_eq!(load(p.add(2 * PAGE - 4).cast::<[u8; 8]>()), None);
            assert_eq!(text(value.cast()), Some(c"12345678"));
            assert_eq!(libc::mprotect(p.add(PAGE).cast(), PAGE, libc::PROT_READ | libc::PROT_WRITE), 0);
            p.add(PAGE).write_bytes(b'x', PAGE);
            assert_eq!(text(p.add(PAGE).cast()), None);
            assert_eq!(text(core::ptr::null()), None);
            assert_eq!([0, 10, 3 * PAGE].map(|len| writable_part(p.add(PAGE).cast(), len)), [0, 10, PAGE]);
        }
    }

    #[test]
    fn nothing_is_where_no_program_has_memory() {
        for p in [0, 8, PAGE - 1, usize::MAX - 4, 1 << 63] {
            assert!(!readable(p as *const u8, 1), "{p:#x}");
            assert!(!writable(p as *const u8, 1), "{p:#x}");
        }
        assert!(!readable(usize::MAX as *const u8, 2));
    }
}
