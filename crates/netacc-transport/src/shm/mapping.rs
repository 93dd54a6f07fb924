//! Creating and mapping the segment of a link.
//!
//! The file has room for the windows of all slots from the beginning, which takes no memory, since it is sparse. A
//! mapping takes address space, which a program may limit (RLIMIT_AS), and memory if the program locks all of its own
//! (mlockall(2)). So a process first maps the shared words, the small windows and the large windows of the first few
//! slots. The large windows of further slots are mapped in blocks of doubling size, before a connection begins in one
//! of them: so the windows of every connection are mapped at both of its ends, and if that is not possible the
//! connection goes by TCP. A block stays mapped at its address until the link ends.
//!
//! The first part, with all of the words, lies in a range of addresses that is never given back: when the link has ended
//! there is anonymous memory, and later the first part of another segment. A thread that looks at a connection without a
//! lock (poll, `FIONREAD`, `SO_ERROR`) may have read the segment's address just before another thread closes the link's last
//! connection. What it reads then is meaningless, and no fault.
//!
//! # Safety
//! The memfd has its full size from the beginning and is sealed against shrinking, so no access to a mapping of it can
//! fault. Blocks are published by their address, and unmapped when the last user of the link is gone: only a thread that
//! holds a lock of the connection accesses a window.
#![allow(unsafe_code)]

use crate::shm::blocks::{self, Blocks, FIRST, PAIR, afford};
use crate::shm::segment::{LARGE_AT, SEGMENT, SMALL_AT, SMALL_PAGE, Segment};
use crate::shm::side::Side;
use core::ptr::{self, NonNull};
use netacc_ring::{LARGE, SLOTS};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::mem;
use netacc_sys::{reserved_fds, signals};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

/// Size (bytes) of the part that is mapped from the beginning.
const HEAD: usize = LARGE_AT + FIRST * PAIR;

const _: () = assert!(LARGE_AT + SLOTS * PAIR == SEGMENT);

/// Checks that the process's limits permit one more segment, before a connection to a peer is made. `EFBIG`:
/// RLIMIT_FSIZE is too small; `ENOMEM`: RLIMIT_AS is.
pub(super) fn affordable() -> Result<()> {
    let limit = getrlimit(Resource::Fsize).current;
    if limit.is_some_and(|limit| limit < SEGMENT as u64) {
        return Err(Errno(libc::EFBIG));
    }
    if blocks::has_spare() { Ok(()) } else { afford(HEAD) }
}

/// Sets the size of a memfd and seals it.
fn fix_size(fd: &OwnedFd) -> Result<()> {
    // Beyond RLIMIT_FSIZE the kernel refuses, and sends a signal that would end the program (setrlimit(2)).
    signals::without(libc::SIGXFSZ, || ftruncate(fd, SEGMENT as u64))?;
    fcntl_add_seals(fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(())
}

/// Maps the beginning of a segment: where the object has a range, there, else where the kernel likes.
fn map_head(fd: BorrowedFd<'_>, blocks: &'static Blocks) -> Result<NonNull<u8>> {
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    let at = match blocks.range() {
        Some(range) => {
            let flags = flags | MapFlags::FIXED;
            // SAFETY: the range is ours, no segment is mapped there, and a thread that looks there by a stale address
            // only reads what it does not believe, or writes a hint.
            unsafe { mmap(range.as_ptr().cast(), HEAD, mem::first_access(), flags, fd, 0)? }
        }
        None => {
            afford(HEAD)?;
            // SAFETY: the kernel chooses a free range for the mapping, so that no existing one changes.
            unsafe { mmap(ptr::null_mut(), HEAD, mem::first_access(), flags, fd, 0)? }
        }
    };
    let at: NonNull<u8> = NonNull::new(at.cast()).ok_or(Errno::NOMEM)?;
    if blocks.range().is_none() {
        blocks::count(HEAD);
        blocks.keep_range(at);
    }
    // SAFETY: the mapping was just made, and no other code knows it. Its exclusion from core dumps has no other effect.
    unsafe {
        let _ = madvise(at.as_ptr().cast(), HEAD, Advice::LinuxDontDump);
        mem::open_up(at, HEAD).inspect_err(|_| leave_range(at))?;
    }
    Ok(at)
}

/// Takes a segment out of its range, which keeps its addresses and can still be read and written.
///
/// # Safety
/// `at` is the range of a segment of which only stale addresses are left.
unsafe fn leave_range(at: NonNull<u8>) {
    // Where the program locks all of its memory the kernel would bring all of the range into memory. There, and where the
    // kernel refuses, the segment stays mapped until the next one takes its place.
    if !mem::is_locking() {
        // SAFETY: the caller guarantees that the range is one of ours.
        unsafe {
            make_private(at.as_ptr(), HEAD);
            let _ = madvise(at.as_ptr().cast(), HEAD, Advice::LinuxDontDump);
        }
    }
}

/// Puts private memory, which is zero, in the place of a part of a segment. In one step: a thread that accesses it meanwhile
/// finds the one or the other.
///
/// # Safety
/// The range is a mapping of a segment, and nobody relies on what is there.
unsafe fn make_private(at: *mut u8, len: usize) {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the caller guarantees that the range is ours. A failure leaves it as it is.
    let _ = unsafe { mmap_anonymous(at.cast(), len, ProtFlags::READ | ProtFlags::WRITE, flags) };
}

/// Gives all memory of segments, and the addresses that were kept for them, back to the kernel.
///
/// # Safety
/// Nobody uses a segment, nor looks at one, any more.
pub unsafe fn give_back_all_segments() {
    blocks::each_range(|blocks, range| {
        // SAFETY: mapped by `map_head` or `leave_range`, and the caller guarantees that nobody uses it.
        unsafe {
            blocks.unmap();
            let _ = munmap(range.as_ptr().cast(), HEAD);
        }
    });
}

/// A segment that has just been mapped.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    /// The segment in the mapping.
    pub seg: Segment,
    /// The memfd's inode number according to the kernel: no two memfds have the same. 0: both sides of the link are in
    /// this process and share one mapping.
    pub file: u64,
}

impl Mapped {
    /// Unmaps a segment for which no link was made, so that nothing refers to it.
    pub(super) fn discard(self) {
        // SAFETY: only links lend references into the segment, and no link was made for this one.
        unsafe { self.seg.unmap() };
    }
}

impl Segment {
    /// Creates a memfd of the size of a segment, sealed against any change of that size.
    pub fn create() -> Result<OwnedFd> {
        let fd = memfd_create(c"netacc-link", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        match fix_size(&fd) {
            Ok(()) => Ok(fd),
            Err(e) => {
                reserved_fds::drop_raw(fd);
                Err(e)
            }
        }
    }

    /// Maps a segment that may come from a peer. `EPROTO` unless it is an ordinary memfd of the right size that is
    /// sealed against shrinking and growing.
    pub fn map(fd: BorrowedFd<'_>) -> Result<Mapped> {
        let (seals, stat) = (fcntl_get_seals(fd)?, fstat(fd)?);
        // A memfd of huge pages (MFD_HUGETLB) can be sealed as well, but an access to it faults if the host has none
        // left.
        let ordinary = fstatfs(fd)?.f_type == libc::TMPFS_MAGIC;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW)
            || usize::try_from(stat.st_size) != Ok(SEGMENT)
            || !ordinary
        {
            return Err(Errno::PROTO);
        }
        Ok(Mapped { seg: Segment::map_own(fd)?, file: stat.st_ino })
    }

    /// Maps a segment that was made here.
    pub fn map_own(fd: BorrowedFd<'_>) -> Result<Segment> {
        let blocks = blocks::alloc()?;
        let base = map_head(fd.as_fd(), blocks).inspect_err(|_| blocks::release(blocks))?;
        blocks.begin(base.as_ptr().wrapping_add(LARGE_AT));
        Ok(Segment { base: base.cast(), blocks })
    }

    /// Maps the large windows of a slot, unless they are mapped.
    #[inline]
    pub fn reach(&self, slot: usize) -> Result<()> {
        if self.blocks.windows(slot).is_some() { Ok(()) } else { self.reach_now(slot) }
    }

    #[cold]
    fn reach_now(&self, slot: usize) -> Result<()> {
        self.blocks.reach(slot)
    }

    /// Unmaps all of the segment.
    ///
    /// # Safety
    /// No reference into the segment may be used afterwards, apart from looks whose result is not believed.
    pub unsafe fn unmap(self) {
        // SAFETY: the range is that of `map_head`, and the caller guarantees that what is read there afterwards is not
        // believed. Windows are accessed under the locks of a connection, and none is left.
        unsafe {
            self.blocks.unmap();
            leave_range(self.base.cast());
        }
        blocks::release(self.blocks);
    }

    /// Takes the windows of a slot out of this process's memory. Where the kernel's pages are larger than the small windows of
    /// one slot, those stay.
    pub(super) fn forget_windows(&self, slot: usize) {
        let small = self.small_windows(slot).map(|at| (at, SMALL_PAGE));
        let large = self.blocks.windows(slot).map(|at| (at.as_ptr(), PAIR));
        for (at, len) in small.into_iter().chain(large) {
            // SAFETY: the range lies within a mapping of the segment, and the slot's connection is not open here.
            unsafe { make_private(at, len) };
        }
    }

    /// Takes all of the segment out of this process's memory, which has no open connection in it. The addresses stay mapped
    /// until [`Segment::unmap`].
    pub(super) fn forget(&self) {
        // SAFETY: the mappings are those of the segment. Who still looks there does not believe what is found.
        unsafe {
            make_private(self.base.as_ptr().cast(), HEAD);
            self.blocks.each_further(|at, len| make_private(at, len));
        }
    }

    /// Gives the page of a slot's small windows back to the system, of which no side accesses a byte any more. Where the
    /// kernel's pages are larger, it stays.
    pub(super) fn drop_small(&self, slot: usize) {
        let Some(at) = self.small_windows(slot) else { return };
        // SAFETY: the range lies within the mapping; MADV_REMOVE leaves zero pages behind, which is a valid content for
        // raw bytes.
        let _ = unsafe { madvise(at.cast(), SMALL_PAGE, Advice::LinuxRemove) };
    }

    /// The address of a slot's small windows. `None`: they share a page of the kernel's with those of other slots, and calls
    /// for a page would concern these as well.
    fn small_windows(&self, slot: usize) -> Option<*mut u8> {
        let has_page = rustix::param::page_size() <= SMALL_PAGE;
        has_page.then(|| self.base.as_ptr().cast::<u8>().wrapping_add(SMALL_AT + slot * SMALL_PAGE))
    }

    /// Gives the pages of a large window back to the system.
    pub fn drop_large(&self, slot: usize, producer: Side) {
        let Some(windows) = self.blocks.windows(slot) else { return };
        let at = windows.as_ptr().wrapping_add(producer.index() * LARGE);
        // SAFETY: the range lies within the mapping; MADV_REMOVE leaves zero pages behind, which is a valid content for
        // raw bytes.
        let _ = unsafe { madvise(at.cast(), LARGE, Advice::LinuxRemove) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::blocks::{block_of, first_of};

    #[test]
    fn a_segment_of_another_size_or_unsealed_is_refused() {
        let fd = memfd_create(c"x", MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(Segment::map(fd.as_fd()).is_err());
        ftruncate(&fd, SEGMENT as u64).unwrap();
        assert!(Segment::map(fd.as_fd()).is_err(), "not sealed");
        let fd = Segment::create().unwrap();
        assert!(Segment::map(fd.as_fd()).is_ok());
        assert!(ftruncate(&fd, 10).is_err());
    }

    /// Writes and reads through two mappings of one file.
    #[test]
    fn blocks_are_those_of_the_file_in_whatever_order_they_are_mapped() {
        let fd = Segment::create().unwrap();
        let (a, b) = (Segment::map(fd.as_fd()).unwrap().seg, Segment::map(fd.as_fd()).unwrap().seg);
        for slot in (1..SLOTS).rev() {
            b.reach(slot).unwrap();
        }
        for slot in 0..SLOTS {
            let is_first = slot == first_of(block_of(slot));
            assert_eq!(a.blocks.windows(slot).is_some(), slot == 0 || !is_first, "slot {slot}");
            a.reach(slot).unwrap();
            let ends = [0, PAIR - 1];
            let at = |s: &Segment, end: usize| s.blocks.windows(slot).unwrap().as_ptr().wrapping_add(end);
            let byte = u8::try_from(slot % 256).unwrap() | 1;
            for end in ends {
                // SAFETY: the range is mapped, and no other code uses it.
                unsafe {
                    at(&a, end).write_volatile(byte);
                    assert_eq!(at(&b, end).read_volatile(), byte, "slot {slot}");
                    at(&b, end).write_volatile(0);
                }
            }
        }
        assert!(a.reach(SLOTS).is_err());
        // SAFETY: nothing refers to the mappings any more.
        unsafe {
            a.unmap();
            b.unmap();
        }
    }

    /// The number of bytes of the mappings of this file, and the kernel's flags of each.
    fn mapped(inode: u64) -> (usize, Vec<String>) {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let (mut ours, mut bytes, mut flags) = (false, 0, Vec::new());
        for line in smaps.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            match words.as_slice() {
                ["Size:", kib, _] if ours => bytes += kib.parse::<usize>().unwrap() << 10,
                ["VmFlags:", rest @ ..] if ours => flags.push(rest.join(" ")),
                [range, _, _, _, file, ..] if range.contains('-') => ours = file.parse() == Ok(inode),
                _ => {}
            }
        }
        (bytes, flags)
    }

    #[test]
    fn what_is_mapped_grows_with_the_slots_and_is_in_no_core_dump() {
        let fd = Segment::create().unwrap();
        let Mapped { seg, file } = Segment::map(fd.as_fd()).unwrap();
        assert!(mapped(file).0 < 5 << 20, "{:?}", mapped(file));
        seg.reach(20).unwrap();
        let (bytes, flags) = mapped(file);
        assert!(bytes < 20 << 20, "{bytes}");
        let all = |flag: &str| flags.iter().all(|line| line.split(' ').any(|word| word == flag));
        assert!(flags.len() == 4 && all("dd") && all("wr"), "{flags:?}");
        // SAFETY: nothing refers to the mapping any more.
        unsafe { seg.unmap() };
        assert_eq!(mapped(file).0, 0);
    }
}
