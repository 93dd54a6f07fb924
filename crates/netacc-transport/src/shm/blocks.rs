//! The large windows of a segment that a process has mapped.
//!
//! # Safety
//! [`super::mapping`] says which parts of a segment are mapped, and when.
#![allow(unsafe_code)]

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use netacc_ring::{LARGE, SLOTS};
use netacc_sys::AtomicRef;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::mem::{self, LARGEST_PAGE, Zeroed};
use netacc_sys::slab::{Pooled, Slab};
use rustix::mm::{MremapFlags, mremap, munlock, munmap};

/// Size (bytes) of the large windows of one slot.
pub(super) const PAIR: usize = 2 * LARGE;
/// Number of slots whose large windows are mapped from the beginning. Slot 0 is the connect queue's, so that makes
/// three connections.
pub(super) const FIRST: usize = 4;
/// Number of blocks of large windows: [`FIRST`] slots, as many again, and then twice as many each time.
const BLOCKS: usize = 8;
/// Length (bytes) of what [`Blocks::add`] maps a second time: whole pages, whichever size they have.
const OVERLAP: usize = LARGEST_PAGE;

const _: () = assert!(first_of(BLOCKS - 1) + slots_in(BLOCKS - 1) == SLOTS);

/// Number of slots of a block.
const fn slots_in(block: usize) -> usize {
    if block == 0 { FIRST } else { FIRST << (block - 1) }
}

/// The first slot of a block.
pub(super) const fn first_of(block: usize) -> usize {
    if block == 0 { 0 } else { FIRST << (block - 1) }
}

/// The block of a slot.
#[inline]
pub(super) fn block_of(slot: usize) -> usize {
    (slot / FIRST).checked_ilog2().map_or(0, |n| n as usize + 1)
}

/// The addresses at which a process has the large windows of a segment. Objects are recycled, never freed.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Blocks {
    /// The range of addresses in which the first part of the segment is mapped, and after it that of the next segment
    /// which has this object; null before the first one. Only the thread that maps or unmaps the segment writes it.
    range: AtomicPtr<u8>,
    /// The address of each block, null while it is not mapped. Block 0 is part of the segment's first mapping.
    at: [AtomicPtr<u8>; BLOCKS],
    next_free: AtomicRef<Blocks>,
    /// The object that had a range before this one had; see [`RANGES`].
    earlier: AtomicRef<Blocks>,
}

// SAFETY: all fields are atomics, for which zero is valid: a null address means "not mapped".
unsafe impl Zeroed for Blocks {}

impl Pooled for Blocks {
    fn next_free(&self) -> &AtomicRef<Blocks> {
        &self.next_free
    }
}

static ALL: Slab<Blocks> = Slab::new();
/// The last object that was given a range. It and those that are reached from it by [`Blocks::earlier`] are all that have
/// one.
static RANGES: AtomicRef<Blocks> = AtomicRef::none();
/// Number of objects that are free and have a range.
static SPARE: AtomicUsize = AtomicUsize::new(0);
/// Bytes of segments that the process has mapped, and of ranges that wait for a segment.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Allocates the object of a segment that is about to be mapped. `ENOMEM`: there is no memory for it.
pub(super) fn alloc() -> Result<&'static Blocks> {
    let blocks = ALL.alloc().ok_or(Errno::NOMEM)?;
    if blocks.range().is_some() {
        SPARE.fetch_sub(1, Ordering::Relaxed);
    }
    Ok(blocks)
}

/// Returns the object of a segment that is no longer mapped.
pub(super) fn release(blocks: &'static Blocks) {
    if blocks.range().is_some() {
        SPARE.fetch_add(1, Ordering::Relaxed);
    }
    ALL.release(blocks);
}

/// Whether the next segment needs no further addresses for its first part.
pub(super) fn has_spare() -> bool {
    SPARE.load(Ordering::Relaxed) > 0
}

/// Counts bytes that were mapped by other functions than [`Blocks::reach`]; [`unmap`] subtracts them.
pub(super) fn count(len: usize) {
    MAPPED.fetch_add(len, Ordering::Relaxed);
}

impl Blocks {
    /// The range of addresses that the object has kept from an earlier segment.
    pub(super) fn range(&self) -> Option<NonNull<u8>> {
        // Relaxed: the thread that reads it has the object for itself.
        NonNull::new(self.range.load(Ordering::Relaxed))
    }

    /// Keeps a range of addresses for this segment and all later ones of the object, which has none yet.
    pub(super) fn keep_range(&'static self, at: NonNull<u8>) {
        self.range.store(at.as_ptr(), Ordering::Relaxed);
        RANGES.push(self, &self.earlier);
    }

    /// The address of a block, if it is mapped.
    #[inline]
    fn get(&self, block: usize) -> Option<NonNull<u8>> {
        // Acquire: the mapping was made before its address was published.
        NonNull::new(self.at.get(block)?.load(Ordering::Acquire))
    }

    /// The large windows of a slot, if they are mapped: the client's and, behind it, the server's.
    #[inline]
    pub(super) fn windows(&self, slot: usize) -> Option<NonNull<u8>> {
        let block = block_of(slot);
        let at = self.get(block)?;
        // SAFETY: the slot belongs to the block, whose mapping has the windows of all of its slots.
        Some(unsafe { at.add((slot - first_of(block)) * PAIR) })
    }

    /// Maps the block after the last mapped one. That needs no descriptor: the new mapping begins with a second mapping
    /// of the last [`OVERLAP`] mapped bytes (mremap(2) with an old size of 0), and continues in the file from there.
    #[cold]
    fn add(&self, block: usize) -> Result<()> {
        let before = block.checked_sub(1).ok_or(Errno::INVAL)?;
        let last = self.get(before).ok_or(Errno::NOMEM)?.as_ptr().wrapping_add(slots_in(before) * PAIR - OVERLAP);
        let len = OVERLAP + slots_in(block) * PAIR;
        afford(len)?;
        if mem::is_locking() {
            // SAFETY: the pages belong to our mapping, and munlock(2) does not change their contents. Otherwise the new
            // mapping would be locked as these pages are.
            let _ = unsafe { munlock(last.cast(), OVERLAP) };
        }
        // SAFETY: the pages are mapped and stay so with an old size of 0, and the kernel chooses a free range for the
        // second mapping.
        let fresh = unsafe { mremap(last.cast(), 0, len, MremapFlags::MAYMOVE)? };
        let at = fresh.cast::<u8>().wrapping_add(OVERLAP);
        MAPPED.fetch_add(len, Ordering::Relaxed);
        let cell = self.at.get(block).ok_or(Errno::INVAL)?;
        // Release: pairs with the Acquire in `get`. If another thread was first, its mapping is used.
        if cell.compare_exchange(ptr::null_mut(), at, Ordering::Release, Ordering::Relaxed).is_err() {
            // SAFETY: the range was just mapped, and no other code knows its address.
            unsafe { unmap(fresh.cast(), len) };
        }
        Ok(())
    }

    /// Stores the address of the first block.
    pub(super) fn begin(&self, at: *mut u8) {
        if let Some(first) = self.at.first() {
            first.store(at, Ordering::Release);
        }
    }

    /// Maps the blocks up to that of a slot, as far as they are not mapped.
    pub(super) fn reach(&self, slot: usize) -> Result<()> {
        let mut missing = (1..=block_of(slot)).filter(|block| self.get(*block).is_none());
        missing.try_for_each(|block| self.add(block))
    }

    /// Calls `f` with address and length of the mapping of each block but the first, which belongs to the segment's first
    /// mapping.
    pub(super) fn each_further(&self, mut f: impl FnMut(*mut u8, usize)) {
        for block in 1..BLOCKS {
            if let Some(at) = self.get(block) {
                f(at.as_ptr().wrapping_sub(OVERLAP), OVERLAP + slots_in(block) * PAIR);
            }
        }
    }

    /// Unmaps all blocks but the first, which belongs to the segment's first mapping.
    ///
    /// # Safety
    /// Nothing refers to the large windows any more.
    pub(super) unsafe fn unmap(&self) {
        for (block, cell) in self.at.iter().enumerate() {
            let at = cell.swap(ptr::null_mut(), Ordering::Relaxed);
            if block > 0 && !at.is_null() {
                // SAFETY: `add` has mapped the block with the overlap before it, and the caller guarantees that nothing
                // refers to it.
                unsafe { unmap(at.wrapping_sub(OVERLAP), OVERLAP + slots_in(block) * PAIR) };
            }
        }
    }
}

/// Calls `f` with each object that has a range, and the range.
pub(super) fn each_range(mut f: impl FnMut(&'static Blocks, NonNull<u8>)) {
    for blocks in RANGES.list(|blocks| &blocks.earlier) {
        if let Some(range) = blocks.range() {
            f(blocks, range);
        }
    }
}

/// Unmaps a range.
///
/// # Safety
/// The range is a mapping of a segment to which nothing refers any more.
unsafe fn unmap(at: *mut u8, len: usize) {
    // SAFETY: the caller guarantees a mapping of a segment to which nothing refers any more.
    let _ = unsafe { munmap(at.cast(), len) };
    MAPPED.fetch_sub(len, Ordering::Relaxed);
}

/// Checks that the process may map `len` more bytes of segments. `ENOMEM`: the limit of its address space (RLIMIT_AS)
/// leaves too little.
pub(super) fn afford(len: usize) -> Result<()> {
    let wanted = MAPPED.load(Ordering::Relaxed).saturating_add(len);
    if mem::is_affordable(wanted) { Ok(()) } else { Err(Errno::NOMEM) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_is_in_one_block() {
        let mut slots = (0..BLOCKS).flat_map(|block| (0..slots_in(block)).map(move |n| (block, first_of(block) + n)));
        for slot in 0..SLOTS {
            assert_eq!(slots.next(), Some((block_of(slot), slot)));
        }
        assert_eq!(slots.next(), None);
    }
}
