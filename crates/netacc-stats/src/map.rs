//! The mapping behind the page: the only unsafe code of this crate.
//!
//! # Safety
//!
//! A mapping of [`PAGE_SIZE`] bytes is handed out as `&'static Page`. That is
//! sound because
//! - the address comes from `mmap`, so it is aligned to a memory page, and the
//!   length is that of the type;
//! - the type is made of atomics only: any bytes are a valid value, and another
//!   process writing to them is no data race of ours;
//! - the mapping is not unmapped, only replaced in place by another of the
//!   same length (in a forked child), until [`give_back`] whose caller guarantees
//!   that no reference is left;
//! - the memfd is sealed against changes of its size before it is mapped, so no
//!   access can fall beyond its end (SIGBUS).

#![allow(unsafe_code)]

use core::ptr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, mremap_fixed,
    munlock, munmap,
};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::page::{PAGE_SIZE, Page, PageOf, SOCK_ENTRIES};
use crate::sock::SockEntry;

/// Divisor of a limited address space: the page takes at most this part of it.
const SHARE: u64 = 8;

type FullPage = PageOf<[SockEntry; SOCK_ENTRIES]>;

/// Whether the program locks what it maps (mlockall(2)).
static LOCKING: AtomicBool = AtomicBool::new(false);

/// Notes, before [`init`], that the program locks what it maps. The page is then
/// mapped without access, unlocked, and made accessible only then: the kernel
/// brings all locked memory into RAM unless it cannot be accessed.
pub fn note_locking() {
    LOCKING.store(true, Relaxed);
}

/// The page that takes counts before [`init`], or if there is no memory for a full one.
#[unsafe(link_section = ".bss.netacc_tables")]
static EMPTY: PageOf<[SockEntry; 0]> = PageOf::empty();

/// Null, or a mapping as described at the top of this module.
static MAPPED: AtomicPtr<FullPage> = AtomicPtr::new(ptr::null_mut());

/// The page of this process.
///
/// Before [`init`] this is a page that takes counts but has no socket entries.
#[inline]
#[must_use]
pub fn page() -> &'static Page {
    // Acquire: pairs with the Release that published the filled header.
    let mapped = MAPPED.load(Acquire);
    if mapped.is_null() {
        return &EMPTY;
    }
    // SAFETY: only `init` and `reinit_after_fork` store to MAPPED, and only
    // addresses of live mappings that stay (see the top of this module).
    unsafe { &*mapped }
}

/// Makes the page of this process and publishes it.
///
/// `program` is the name to show (cut to 63 bytes). The caller keeps the
/// descriptor open for as long as the process lives: readers find the page by
/// it. What was counted before the first call is carried over. Called again, it
/// replaces the page by a new one.
///
/// # Errors
///
/// The errno of memfd_create, ftruncate or mmap; `FBIG` if RLIMIT_FSIZE is below
/// [`PAGE_SIZE`], `NOMEM` if RLIMIT_AS is below eight times that. [`page`] then
/// stays as it was.
pub fn init(program: &[u8], pid: u32) -> Result<OwnedFd, Errno> {
    let fd = make_memfd()?;
    let fresh = map(fd.as_fd())?;
    // SAFETY: `map` made the mapping just now and nobody unmaps it.
    let page: &'static Page = unsafe { &*fresh };
    if MAPPED.load(Relaxed).is_null() {
        page.take_counts(&EMPTY);
    }
    page.publish(program, pid, now_ns());
    // Release: pairs with the Acquire in `page`.
    MAPPED.store(fresh, Release);
    Ok(fd)
}

/// Gives a forked child a page of its own, in place of its parent's.
///
/// It is called in the child while that has one thread, and never after `vfork`,
/// which shares the memory with the parent. References to the old page then
/// refer to the new one. The program's name, the configuration and the entries of
/// the descriptors in `keep` are taken over; counters begin at zero. The caller
/// closes the inherited descriptor and keeps the returned one.
///
/// # Errors
///
/// The errors are those of [`init`]. The child then counts into private memory, which is not read; it never goes on
/// writing into the page of its parent.
pub fn reinit_after_fork(pid: u32, keep: impl IntoIterator<Item = i32>) -> Result<OwnedFd, Errno> {
    let old = MAPPED.load(Relaxed);
    if old.is_null() {
        return Err(Errno::NODEV);
    }
    let made = replace(old, pid, keep);
    if made.is_err() {
        // SAFETY: `old` is a mapping of PAGE_SIZE bytes of ours; MAP_FIXED puts
        // zeroed memory of the same length and protection in its place.
        let private = unsafe {
            mmap_anonymous(
                old.cast(),
                PAGE_SIZE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
            )
        };
        if private.is_err() {
            MAPPED.store(ptr::null_mut(), Release);
        }
    }
    made
}

/// Unmaps the page. [`page`] is one without socket entries from then on.
///
/// # Safety
/// Nobody uses a reference to the page any more.
pub unsafe fn give_back() {
    let mapped = MAPPED.swap(ptr::null_mut(), Relaxed);
    if !mapped.is_null() {
        // SAFETY: a mapping of [`PAGE_SIZE`] bytes, and the caller guarantees that nobody uses it.
        let _ = unsafe { munmap(mapped.cast(), PAGE_SIZE) };
    }
}

/// Puts a fresh page at the address `old`.
fn replace(old: *mut FullPage, pid: u32, keep: impl IntoIterator<Item = i32>) -> Result<OwnedFd, Errno> {
    let fd = make_memfd()?;
    // The new page is first mapped elsewhere, since both pages are needed while entries are copied. Then it is moved: the
    // memory that was written stays mapped, where a second mapping would have each part of it brought in by a page fault once
    // more.
    let aside = map(fd.as_fd())?;
    {
        // SAFETY: both are live mappings; the references end with this block,
        // before either mapping changes.
        let (fresh, parent): (&Page, &Page) = unsafe { (&*aside, &*old) };
        fresh.inherit(parent, keep);
        fresh.publish_inherited(pid, now_ns());
    }
    // SAFETY: `aside` was mapped above and no reference to it is left. `old` is the mapping in MAPPED, of the same length,
    // whose users expect exactly such a page there.
    let moved = unsafe { mremap_fixed(aside.cast(), PAGE_SIZE, PAGE_SIZE, MremapFlags::MAYMOVE, old.cast()) };
    if let Err(e) = moved {
        // SAFETY: `aside` was mapped above and no reference to it is left.
        let _ = unsafe { munmap(aside.cast(), PAGE_SIZE) };
        return Err(e);
    }
    Ok(fd)
}

/// A memfd of the page's size, sealed against changes of it.
fn make_memfd() -> Result<OwnedFd, Errno> {
    // Growing a file beyond RLIMIT_FSIZE raises SIGXFSZ, which would kill the program.
    let limit = getrlimit(Resource::Fsize).current;
    if limit.is_some_and(|limit| limit < PAGE_SIZE as u64) {
        return Err(Errno::FBIG);
    }
    // The page takes only a small part of a limited address space, which the program needs itself.
    let limit = getrlimit(Resource::As).current;
    if limit.is_some_and(|limit| limit / SHARE < PAGE_SIZE as u64) {
        return Err(Errno::NOMEM);
    }
    let fd = memfd_create(c"netacc-stats", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, PAGE_SIZE as u64)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// Maps a memfd of [`make_memfd`].
fn map(fd: BorrowedFd<'_>) -> Result<*mut FullPage, Errno> {
    // NORESERVE: untouched memory pages cost nothing, even under strict overcommit.
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    let apart = LOCKING.load(Relaxed);
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let first = if apart { ProtFlags::empty() } else { prot };
    // SAFETY: the kernel chooses free addresses.
    let address = unsafe { mmap(ptr::null_mut(), PAGE_SIZE, first, flags, fd, 0)? };
    // SAFETY: the range was mapped just now. A core dump without it lacks nothing of the program's.
    let _ = unsafe { madvise(address, PAGE_SIZE, Advice::LinuxDontDump) };
    // SAFETY: the range was mapped just now, and no other code knows of it.
    if apart && let Err(e) = unsafe { open_up(address) } {
        // SAFETY: the range was mapped just now, and no other code knows of it.
        let _ = unsafe { munmap(address, PAGE_SIZE) };
        return Err(e);
    }
    Ok(address.cast())
}

/// Makes an inaccessible mapping of the page readable and writable, and unlocks it.
///
/// # Safety
/// `address` is such a mapping of [`PAGE_SIZE`] bytes.
unsafe fn open_up(address: *mut core::ffi::c_void) -> Result<(), Errno> {
    // SAFETY: the caller guarantees that `address` is such a mapping of [`PAGE_SIZE`] bytes.
    unsafe {
        let _ = munlock(address, PAGE_SIZE);
        mprotect(address, PAGE_SIZE, MprotectFlags::READ | MprotectFlags::WRITE)
    }
}

/// CLOCK_REALTIME in nanoseconds.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos)
}
