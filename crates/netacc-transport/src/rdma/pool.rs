//! The registered buffers of a device, in regions that come when they are needed and go when they are not.

use crate::rdma::registered::Registered;
use alloc::vec::Vec;
use netacc_stats::{Counter, page};
use netacc_verbs::{Error, Pd, Result, Sge};

extern crate alloc;

/// Buffers that may hold messages on their way out, of all queue pairs together.
const SENDING: usize = 64;
/// A region that nobody has used for so many looks ([`Pool::tick`]) is given back.
const PATIENCE: u32 = 10;
/// A region that is larger than what is missing is at most this part of what there is: a thousand queue pairs are not to
/// pay for two thousand, nor have a thousand regions.
const SPARE: usize = 8;
/// But up to so many bytes it may be as large as all that there is: to register is a good part of what a queue pair costs,
/// and who has several of them soon has more.
const LITTLE: usize = 256 * 1024;
/// Bits of a buffer's number that say where in its region it is; the others say which region.
const PLACE: u32 = 20;
/// The number of a buffer has to fit into the number of a work request, beside a bit.
const REGIONS: usize = 1 << (31 - PLACE);

/// How large buffers and regions are.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// A buffer.
    pub message: usize,
    /// The first region.
    pub first: usize,
    /// A region is never larger.
    pub largest: usize,
}

/// A buffer's number.
pub type Buffer = u32;

#[derive(Debug)]
struct Region {
    mr: Registered,
    free: Vec<u32>,
    all: usize,
    unused: u32,
}

/// Registered buffers of one size. One that is taken to send from is counted apart.
#[derive(Debug)]
pub struct Pool {
    /// `None`: the device is gone.
    pd: Option<Pd>,
    sizes: Sizes,
    regions: Vec<Option<Region>>,
    /// Buffers that are taken to send from: the messages in them are to be sent, under way, or not yet confirmed.
    sending: usize,
    /// The last of those.
    kept: usize,
    /// Somebody was to send and found none.
    short: bool,
    /// The last attempt to register more failed, and why, as long as nobody has asked.
    refused: bool,
    refusal: Option<Error>,
}

impl Pool {
    pub(super) fn new(pd: &Pd, sizes: Sizes) -> Pool {
        let message = sizes.message.max(1);
        let first = sizes.first.max(message);
        let sizes = Sizes { message, first, largest: sizes.largest.max(first) };
        Pool::empty(Some(pd.clone()), sizes)
    }

    fn empty(pd: Option<Pd>, sizes: Sizes) -> Pool {
        let regions = Vec::new();
        Pool { pd, sizes, regions, sending: 0, kept: 0, short: false, refused: false, refusal: None }
    }

    /// One with buffers of the same size, of which it will never have any.
    pub(super) fn without_device(&self) -> Pool {
        Pool::empty(None, self.sizes)
    }

    /// Bytes of each buffer.
    pub fn size(&self) -> usize {
        self.sizes.message
    }

    fn each(&self) -> impl Iterator<Item = &Region> {
        self.regions.iter().flatten()
    }

    /// Registers one more region, since so many bytes are missing.
    fn grow(&mut self, missing: usize) -> Result<()> {
        let total = self.each().map(|r| r.mr.len()).sum();
        let last = self.each().map(|r| r.mr.len()).max();
        let mut len = next_region(self.sizes, total, last, missing);
        let at = match self.regions.iter().position(Option::is_none) {
            Some(at) => at,
            None if self.regions.len() < REGIONS => {
                self.regions.push(None);
                self.regions.len() - 1
            }
            None => return Err(Error::Misuse { verb: "ibv_reg_mr", why: "too many regions" }),
        };
        let pd = self.pd.as_ref().ok_or(Error::NoDevice)?;
        let mr = Registered::new(pd, len).or_else(|e| {
            // A limit may leave room for what is missing and nothing to spare.
            let least = next_region(self.sizes, 0, last, missing);
            if least >= len {
                return Err(e);
            }
            len = least;
            Registered::new(pd, len)
        })?;
        let all = (len / self.sizes.message).min(1 << PLACE);
        // The first is taken first.
        let free = (0..all as u32).rev().collect();
        if let Some(place) = self.regions.get_mut(at) {
            *place = Some(Region { mr, free, all, unused: 0 });
        }
        Ok(())
    }

    /// Registers as much as is needed for so many buffers to be free.
    pub(super) fn ensure(&mut self, buffers: usize) -> Result<()> {
        loop {
            let free = self.each().map(|r| r.free.len()).sum();
            if buffers <= free {
                return Ok(());
            }
            let missing = (buffers - free).saturating_mul(self.sizes.message);
            self.grow(missing).inspect_err(|e| (self.refused, self.refusal) = (true, Some(*e)))?;
        }
    }

    /// A free buffer. The oldest regions are filled first, so that the others may go.
    pub(super) fn take(&mut self) -> Option<Buffer> {
        let (at, region) = self
            .regions
            .iter_mut()
            .enumerate()
            .find_map(|(at, r)| Some((at, r.as_mut().filter(|r| !r.free.is_empty())?)))?;
        let place = region.free.pop()?;
        page().add(Counter::RegisteredUsed, self.sizes.message as u64);
        Some((at as u32) << PLACE | place)
    }

    /// It is free again.
    pub(super) fn put(&mut self, buffer: Buffer) {
        if let Some(region) = self.regions.get_mut((buffer >> PLACE) as usize).and_then(Option::as_mut) {
            // As many places as there are: this allocates nothing.
            region.free.push(buffer & ((1 << PLACE) - 1));
            page().sub(Counter::RegisteredUsed, self.sizes.message as u64);
        }
    }

    /// Whether a buffer of an older region than this one's is free.
    pub(super) fn has_older(&self, buffer: Buffer) -> bool {
        let before = self.regions.iter().take((buffer >> PLACE) as usize);
        before.flatten().any(|r| !r.free.is_empty())
    }

    /// The buffer itself, or for it one of an older region, so that its own may go some time.
    pub(super) fn exchange(&mut self, buffer: Buffer) -> Buffer {
        if !self.has_older(buffer) {
            return buffer;
        }
        let Some(other) = self.take() else { return buffer };
        self.put(buffer);
        other
    }

    /// A free buffer to send from, and where it begins. Where there is none, [`Pool::more`] may find one.
    pub fn take_to_send(&mut self) -> Option<(Buffer, *mut u8)> {
        let taken = (self.sending < SENDING).then(|| self.take()).flatten();
        self.short |= taken.is_none() && self.sending < SENDING && !self.refused;
        let buffer = taken?;
        self.sending += 1;
        let (mr, start) = self.find(buffer)?;
        Some((buffer, mr.as_ptr().wrapping_add(start)))
    }

    /// It has been sent.
    pub fn sent(&mut self, buffer: Buffer) {
        self.sending -= 1;
        self.put(buffer);
    }

    /// Buffers to send from are so few that none is to wait for a confirmation.
    pub(super) fn is_scarce(&self) -> bool {
        self.sending > SENDING / 2 || self.refused
    }

    /// A message has been sent, and stays in its buffer until it is confirmed.
    pub(super) fn keep(&mut self) {
        self.kept += 1;
    }

    /// One that stayed is confirmed.
    pub(super) fn confirmed(&mut self, buffer: Buffer) {
        self.kept -= 1;
        self.sent(buffer);
    }

    /// Whether somebody waits for a buffer that could be had by [`Pool::more`].
    pub fn is_short(&self) -> bool {
        self.short
    }

    /// Whether who waits for a buffer to send from might wait for ever: none is under way, and no more are to be had.
    /// Messages are confirmed when the other side has something to say, and that may be an answer to what waits.
    pub fn is_dry(&self) -> bool {
        self.sending == self.kept && self.refused
    }

    /// Registers more if somebody waits for it. Not for a thread that may have been interrupted in malloc.
    pub fn more(&mut self) {
        if core::mem::take(&mut self.short) {
            // As many again: who sends by many queue pairs is not to wait for each one.
            let _ = self.ensure(self.sending.clamp(1, SENDING / 4));
        }
    }

    /// Why no more was to be had, once.
    pub fn take_refusal(&mut self) -> Option<Error> {
        self.refusal.take()
    }

    /// Whether any region is registered.
    pub fn holds_any(&self) -> bool {
        self.each().next().is_some()
    }

    /// Once in a while: what has not been used for long is given back.
    pub fn tick(&mut self) {
        self.refused = false;
        for place in &mut self.regions {
            let Some(region) = place else { continue };
            region.unused = if region.free.len() == region.all { region.unused + 1 } else { 0 };
            if region.unused > PATIENCE {
                *place = None;
            }
        }
    }

    /// A buffer without memory, for tests.
    #[cfg(test)]
    pub(super) fn number(&mut self) -> Buffer {
        self.sending += 1;
        self.sending as Buffer
    }

    /// How many are taken, and how many of them stay until their messages are confirmed; for tests.
    #[cfg(test)]
    pub(super) fn taken(&self) -> (usize, usize) {
        (self.sending, self.kept)
    }

    /// For tests, without memory.
    #[cfg(test)]
    pub(super) fn numbers() -> Pool {
        Pool::empty(None, Sizes { message: 8, first: 8, largest: 8 })
    }

    fn find(&self, buffer: Buffer) -> Option<(&Registered, usize)> {
        let region = self.regions.get((buffer >> PLACE) as usize)?.as_ref()?;
        Some((&region.mr, (buffer & ((1 << PLACE) - 1)) as usize * self.sizes.message))
    }

    /// Where a buffer begins, `skip` bytes on.
    pub(super) fn at(&self, buffer: Buffer, skip: usize) -> Option<*const u8> {
        let (mr, start) = self.find(buffer)?;
        Some(mr.as_ptr().wrapping_add(start + skip).cast_const())
    }

    /// Copies from a buffer, `skip` bytes on; false if there is not so much.
    pub fn read(&self, buffer: Buffer, skip: usize, to: &mut [u8]) -> bool {
        let within = skip.checked_add(to.len()).is_some_and(|end| end <= self.sizes.message);
        within && self.find(buffer).is_some_and(|(mr, start)| mr.read(start + skip, to))
    }

    /// Copies into a buffer, `skip` bytes on; false if it has not so much.
    pub(super) fn write(&self, buffer: Buffer, skip: usize, bytes: &[u8]) -> bool {
        let within = skip.checked_add(bytes.len()).is_some_and(|end| end <= self.sizes.message);
        within && self.find(buffer).is_some_and(|(mr, start)| mr.write(start + skip, bytes))
    }

    /// The first `len` bytes of a buffer, but for `skip` of them.
    pub(super) fn sge(&self, buffer: Buffer, skip: usize, len: usize) -> Option<Sge<'_>> {
        let (mr, start) = self.find(buffer).filter(|_| len <= self.sizes.message)?;
        mr.sge(start + skip, len.checked_sub(skip)?)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let used: usize = self.each().map(|r| r.all - r.free.len()).sum();
        page().sub(Counter::RegisteredUsed, (used * self.sizes.message) as u64);
    }
}

/// The length of a region that comes after `total` bytes, of which the largest region has `last`, when so many bytes are
/// missing. They may need a further one.
fn next_region(sizes: Sizes, total: usize, last: Option<usize>, missing: usize) -> usize {
    let Some(last) = last else { return sizes.first };
    let spare = total.min(LITTLE).max(total / SPARE);
    let wanted = last.saturating_mul(2).min(missing.max(spare)).min(sizes.largest);
    // The first one times a power of two.
    let mut len = sizes.first;
    while len <= wanted / 2 {
        len *= 2;
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::flow::FIRST;

    const K: usize = 1024;
    const USUAL: Sizes = Sizes { message: 16 * K, first: 16 * K, largest: 8 * K * K };

    /// The regions of so many queue pairs, made one after the other, and one buffer to send from.
    fn regions(sizes: Sizes, pairs: usize) -> Vec<usize> {
        let mut found: Vec<usize> = Vec::new();
        for pair in 1..=pairs {
            let need = (pair * usize::from(FIRST) + 1) * sizes.message;
            while let total = found.iter().sum::<usize>()
                && total < need
            {
                found.push(next_region(sizes, total, found.iter().copied().max(), need - total));
            }
        }
        found
    }

    #[test]
    fn one_queue_pair_has_what_it_needs_and_each_region_is_for_as_many_as_there_were() {
        assert_eq!(regions(USUAL, 1), [16 * K, 32 * K, 32 * K]);
        for (pairs, calls, room) in [(2, 4, 2), (3, 5, 4), (4, 5, 4), (5, 6, 8), (8, 6, 8), (9, 7, 12), (13, 8, 16)] {
            let found = regions(USUAL, pairs);
            assert_eq!((found.len(), found.iter().sum::<usize>()), (calls, (room * 64 + 16) * K), "{pairs}");
        }
    }

    #[test]
    fn many_queue_pairs_have_few_regions_and_little_to_spare() {
        let many = regions(USUAL, 1000);
        assert!(many.len() < 100, "{} regions", many.len());
        assert!(many.iter().sum::<usize>() <= 1000 * 64 * K * 9 / 8, "{many:?}");
        let few = regions(Sizes { largest: K * K, ..USUAL }, 1000);
        assert_eq!(few.iter().max(), Some(&(K * K)));
    }

    #[test]
    fn a_region_is_at_most_twice_the_largest_before() {
        assert_eq!(next_region(USUAL, 16 * K, Some(16 * K), 1024 * K), 32 * K);
        assert_eq!(next_region(USUAL, 48 * K, Some(32 * K), 1024 * K), 64 * K);
    }

    #[test]
    fn every_region_holds_a_buffer() {
        for message in [1024, 16 * K, 16 * K * K] {
            let sizes = Sizes { message, first: message, largest: message };
            assert_eq!(regions(sizes, 1), vec![message; usize::from(FIRST) + 1]);
        }
    }
}
