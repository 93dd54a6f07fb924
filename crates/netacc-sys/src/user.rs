//! Whether the program's memory can be read or written. The calls that we serve touch it with loads and stores, where
//! the kernel would answer `EFAULT`; so the kernel is asked first, once per page.
//!
//! A page that was accessible is taken to be accessible for ever: a program that gives memory back and goes on passing
//! it is stopped by a signal, as by any other use of such memory.
#![allow(unsafe_code)]

use crate::errno::Errno;
use crate::raw;
use core::ffi::c_void;
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

/// Pages that were accessible: the number of the page plus 1, doubled, plus 1 where it was writable. Nothing is
/// published by an entry, so each access is `Relaxed`; an entry that another thread's overwrites costs one more
/// question.
static PAGES: [AtomicUsize; KNOWN] = [const { AtomicUsize::new(0) }; KNOWN];

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

/// The kernel's set of signals at `p`; none where that cannot be read.
#[allow(clippy::not_unsafe_ptr_arg_deref, reason = "it is examined first")]
pub fn signal_set(p: *const core::ffi::c_void) -> u64 {
    let p = p.cast::<u64>();
    // SAFETY: eight bytes that can be read; a program that unmaps them meanwhile would crash without us, too.
    if readable(p, size_of::<u64>()) { unsafe { p.read_unaligned() } } else { 0 }
}

/// Set once the kernel is no longer queried.
static SILENT: AtomicBool = AtomicBool::new(false);

/// Has all memory taken to be accessible from here on: the program is about to forbid itself system calls, and may be
/// killed for one of ours.
pub fn stop_probing() {
    SILENT.store(true, Ordering::Relaxed);
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
    fn nothing_is_where_no_program_has_memory() {
        for p in [0, 8, PAGE - 1, usize::MAX - 4, 1 << 63] {
            assert!(!readable(p as *const u8, 1), "{p:#x}");
            assert!(!writable(p as *const u8, 1), "{p:#x}");
        }
        assert!(!readable(usize::MAX as *const u8, 2));
    }
}
