//! The registered buffers of a device, in regions that come when they are needed and go when they are not.

use crate::limits::UNUSED_REGION_TICKS;
use crate::num;
use crate::rdma::registered::Registered;
use alloc::vec::Vec;
use netacc_stats::{Counter, page};
use netacc_verbs::{Error, Pd, Result, Sge};
use netacc_wire::frame::larger;

extern crate alloc;

/// Most buffers that may hold messages on their way out, of all queue pairs together. A large one counts as as many as
/// it is worth.
const SENDING: usize = 64;
/// Most of those that may be large buffers, which stay taken until their messages are confirmed; that may be never.
const SENDING_LARGE: usize = 32;
/// Most of the others that may stay taken by sent messages until these are confirmed. The rest is for messages that are
/// on their way.
const STAYING: usize = 24;
const _: () = assert!(SENDING_LARGE + STAYING < SENDING);
/// Number of large buffers that are registered when there is none to send from.
const LARGE: usize = 4;
/// A region that is larger than what is missing is at most this part of what there is: a thousand queue pairs are not
/// to pay for two thousand, nor have a thousand regions.
const GROWTH_LIMIT: usize = 8;
/// Bytes up to which a region may yet be as large as all that there is: to register is a good part of what a queue pair
/// costs, and a program that has several of them soon has more.
const LITTLE: usize = 256 * 1024;
/// Bits of a buffer's number that say where in its region it is; the others say which region.
const OFFSET_BITS: u32 = 20;
/// The number of a buffer has to fit into the number of a work request, beside a bit.
const REGIONS: usize = 1 << (31 - OFFSET_BITS);

/// The sizes (bytes) of buffers and regions.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Size of a buffer; a large one has [`larger`].
    pub message: usize,
    /// Size of the first region.
    pub first: usize,
    /// Size of the largest region.
    pub largest: usize,
}

/// A buffer's number.
pub type Buffer = u32;

#[derive(Debug)]
struct Region {
    mr: Registered,
    /// Size (bytes) of a buffer.
    size: usize,
    free: Vec<u32>,
    all: usize,
    unused: u32,
}

/// Registered buffers, of one size in each region. Buffers that are taken to send from are counted apart.
#[derive(Debug)]
pub struct Pool {
    /// `None`: the device is gone.
    pd: Option<Pd>,
    sizes: Sizes,
    /// Size (bytes) of a large buffer. If that is no more than that of another, there are no large ones.
    large: usize,
    regions: Vec<Option<Region>>,
    /// Number of send buffers in use: the messages in them are to be sent, in flight, or not yet confirmed.
    sending: usize,
    /// Number of large buffers among them.
    sending_large: usize,
    /// Number of buffers whose message has been sent, and stays.
    unacked: usize,
    /// Set when a message was to be sent and found no buffer, or only a small one.
    short: bool,
    short_of_large: bool,
    /// Set when the last attempt to register more failed, and why, until that is asked for.
    refused: bool,
    refused_large: bool,
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
        let large = Some(larger(sizes.message)).filter(|large| *large <= sizes.largest).unwrap_or(sizes.message);
        Pool {
            pd,
            sizes,
            large,
            regions,
            sending: 0,
            sending_large: 0,
            unacked: 0,
            short: false,
            short_of_large: false,
            refused: false,
            refused_large: false,
            refusal: None,
        }
    }

    /// A pool with buffers of the same size, of which it will never have any.
    pub(super) fn without_device(&self) -> Pool {
        Pool::empty(None, self.sizes)
    }

    /// Size (bytes) of each buffer that is not large.
    pub fn size(&self) -> usize {
        self.sizes.message
    }

    /// Size (bytes) of this buffer.
    pub(super) fn size_of(&self, buffer: Buffer) -> usize {
        self.region(buffer).map_or(self.sizes.message, |region| region.size)
    }

    /// Whether it is a large one.
    pub(super) fn is_large(&self, buffer: Buffer) -> bool {
        self.size_of(buffer) > self.sizes.message
    }

    /// Number of small buffers that it counts as.
    fn worth(&self, buffer: Buffer) -> usize {
        self.size_of(buffer) / self.sizes.message
    }

    fn worth_if_large(&self, buffer: Buffer) -> usize {
        if self.is_large(buffer) { self.worth(buffer) } else { 0 }
    }

    fn each(&self) -> impl Iterator<Item = &Region> {
        self.regions.iter().flatten()
    }

    fn of(&self, size: usize) -> impl Iterator<Item = &Region> {
        self.each().filter(move |r| r.size == size)
    }

    /// Registers one more region for buffers of `size` bytes, since `missing` bytes are missing.
    fn grow(&mut self, size: usize, missing: usize) -> Result<()> {
        let total = self.of(size).map(|r| r.mr.len()).sum();
        let last = self.of(size).map(|r| r.mr.len()).max();
        let small = size == self.sizes.message;
        let (least, mut len) = if small {
            (next_region(self.sizes, 0, last, missing), next_region(self.sizes, total, last, missing))
        } else {
            // The buffers of a stream are registered together, with a part of what there is: a thousand streams are not
            // to have as many regions.
            (missing.min(self.sizes.largest), missing.max(total / GROWTH_LIMIT / size * size).min(self.sizes.largest))
        };
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
            if least >= len {
                return Err(e);
            }
            len = least;
            Registered::new(pd, len)
        })?;
        let all = (len / size).min(1 << OFFSET_BITS);
        // The first buffer is taken first.
        let free = (0..num::small(all)).rev().collect();
        if let Some(place) = self.regions.get_mut(at) {
            *place = Some(Region { mr, size, free, all, unused: 0 });
        }
        Ok(())
    }

    /// Registers as much as is needed for `buffers` buffers to be free.
    pub(super) fn ensure(&mut self, buffers: usize) -> Result<()> {
        self.ensure_of(self.sizes.message, buffers).inspect_err(|e| (self.refused, self.refusal) = (true, Some(*e)))
    }

    /// Registers as much as is needed for `buffers` buffers to be free, if that can be; returns whether they are.
    pub(super) fn has_or_gets(&mut self, buffers: usize) -> bool {
        self.ensure_of(self.sizes.message, buffers).is_ok()
    }

    /// Registers as much as is needed for `buffers` large buffers to be free; returns whether they are. Large ones are
    /// never needed.
    pub(super) fn ensure_large(&mut self, buffers: usize) -> bool {
        let there = self.large > self.sizes.message && !self.refused_large;
        self.refused_large = !there || self.ensure_of(self.large, buffers).is_err();
        !self.refused_large
    }

    fn ensure_of(&mut self, size: usize, buffers: usize) -> Result<()> {
        loop {
            let free = self.of(size).map(|r| r.free.len()).sum();
            if buffers <= free {
                return Ok(());
            }
            let missing = (buffers - free).saturating_mul(size);
            let grown = self.grow(size, missing);
            // Large buffers are never needed: a limit may have room for these in their place.
            if grown.is_err() && !(size == self.sizes.message && self.give_back_large()) {
                return grown;
            }
        }
    }

    /// Gives back the large buffers that are not in use. Returns whether there were some.
    fn give_back_large(&mut self) -> bool {
        let size = self.sizes.message;
        let mut any = false;
        for place in &mut self.regions {
            if place.as_ref().is_some_and(|r| r.size > size && r.free.len() == r.all) {
                *place = None;
                any = true;
            }
        }
        any
    }

    /// A free buffer that is not large.
    pub(super) fn take(&mut self) -> Option<Buffer> {
        self.take_of(self.sizes.message)
    }

    /// Takes a free buffer of this size. The oldest regions are filled first, so that the others may go.
    fn take_of(&mut self, size: usize) -> Option<Buffer> {
        let of = |r: &&mut Region| r.size == size && !r.free.is_empty();
        let (at, region) =
            self.regions.iter_mut().enumerate().find_map(|(at, r)| Some((at, r.as_mut().filter(of)?)))?;
        let place = region.free.pop()?;
        page().add(Counter::RegisteredUsed, size as u64);
        Some(num::small(at) << OFFSET_BITS | place)
    }

    /// Makes a buffer free again.
    pub(super) fn put(&mut self, buffer: Buffer) {
        if let Some(region) = self.regions.get_mut((buffer >> OFFSET_BITS) as usize).and_then(Option::as_mut) {
            // There are as many places as that, so that this allocates nothing.
            region.free.push(buffer & ((1 << OFFSET_BITS) - 1));
            page().sub(Counter::RegisteredUsed, region.size as u64);
        }
    }

    /// Whether a buffer of an older region than this one's is free.
    pub(super) fn has_older(&self, buffer: Buffer) -> bool {
        let (before, size) = (self.regions.iter().take((buffer >> OFFSET_BITS) as usize), self.size_of(buffer));
        before.flatten().any(|r| r.size == size && !r.free.is_empty())
    }

    /// Returns the buffer itself or another one for it: a large one or not, as wanted, or else one of an older region,
    /// so that its own region may go some time.
    pub(super) fn exchange(&mut self, buffer: Buffer, large: bool) -> Buffer {
        let wanted = if large { self.large } else { self.sizes.message };
        if wanted == self.size_of(buffer) && !self.has_older(buffer) {
            return buffer;
        }
        let Some(other) = self.take_of(wanted) else { return buffer };
        self.put(buffer);
        other
    }

    /// Takes a free buffer to send up to `len` bytes from; returns it, where it begins, and how many bytes it holds:
    /// fewer, if that is all there is. If there is none, or no large one, [`Pool::more`] may find one.
    pub fn take_to_send(&mut self, len: usize) -> Option<(Buffer, *mut u8, usize)> {
        let (room, worth) = (self.sending < SENDING, self.large / self.sizes.message);
        let allowed = self.sending_large + worth <= SENDING_LARGE && self.sending + worth <= SENDING;
        let large = len > self.sizes.message && self.large > self.sizes.message && allowed;
        let mut taken = large.then(|| self.take_of(self.large)).flatten();
        self.short_of_large |= large && taken.is_none() && !self.refused_large;
        if taken.is_none() && room {
            taken = self.take();
            // Where no more can be had a large one will do.
            if taken.is_none() && self.refused && allowed {
                taken = self.take_of(self.large);
            }
            self.short |= taken.is_none() && !self.refused;
        }
        let buffer = taken?;
        self.sending += self.worth(buffer);
        self.sending_large += self.worth_if_large(buffer);
        let (region, start) = self.find(buffer)?;
        Some((buffer, region.mr.as_ptr().wrapping_add(start), region.size))
    }

    /// To be called when the message of a buffer has been sent.
    pub fn sent(&mut self, buffer: Buffer) {
        self.sending -= self.worth(buffer);
        self.sending_large -= self.worth_if_large(buffer);
        self.put(buffer);
    }

    /// Whether the message in this buffer, which has been sent, may stay there until it is confirmed: there may be too
    /// few buffers to send from. Large ones have a share of their own.
    pub(super) fn may_keep(&self, buffer: Buffer) -> bool {
        self.is_large(buffer) || (self.sending - self.sending_large <= STAYING && !self.refused)
    }

    /// The buffer stays taken after its message was sent, until that is confirmed.
    pub(super) fn keep(&mut self, buffer: Buffer) {
        self.unacked += self.worth(buffer);
    }

    /// The message of a buffer that stayed is confirmed.
    pub(super) fn acked(&mut self, buffer: Buffer) {
        self.unacked -= self.worth(buffer);
        self.sent(buffer);
    }

    /// Whether a message waits for a buffer that could be had by [`Pool::more`], or could do with a large one.
    pub fn is_short(&self) -> bool {
        self.short || self.short_of_large
    }

    /// Whether a message that waits for a buffer might wait for ever: none is in flight, and no more can be registered.
    /// Messages are confirmed when the other side has something to say, and that may be an answer to what waits.
    pub fn is_dry(&self) -> bool {
        self.sending == self.unacked && self.refused
    }

    /// Registers more if a message waits for it. Not for a thread that may have been interrupted in malloc.
    pub fn more(&mut self) {
        if core::mem::take(&mut self.short) {
            // As many again: a program that sends by many queue pairs is not to wait for each one.
            let _ = self.ensure(self.sending.clamp(1, SENDING / 4));
        }
        if core::mem::take(&mut self.short_of_large) {
            self.ensure_large(LARGE);
        }
    }

    /// Why no more could be had, once.
    pub fn take_refusal(&mut self) -> Option<Error> {
        self.refusal.take()
    }

    /// Whether any region is registered.
    pub fn holds_any(&self) -> bool {
        self.each().next().is_some()
    }

    /// Done once in a while: gives back what has not been used for long.
    pub fn tick(&mut self) {
        (self.refused, self.refused_large) = (false, false);
        for place in &mut self.regions {
            let Some(region) = place else { continue };
            region.unused = if region.free.len() == region.all { region.unused + 1 } else { 0 };
            if region.unused > UNUSED_REGION_TICKS {
                *place = None;
            }
        }
    }

    /// A buffer without memory, for tests.
    #[cfg(test)]
    pub(super) fn number(&mut self) -> Buffer {
        self.sending += 1;
        num::small(self.sending)
    }

    /// Number of buffers that are taken, and of those among them that stay until their messages are confirmed; for
    /// tests.
    #[cfg(test)]
    pub(super) fn taken(&self) -> (usize, usize) {
        (self.sending, self.unacked)
    }

    /// A pool for tests, without memory.
    #[cfg(test)]
    pub(super) fn numbers() -> Pool {
        Pool::empty(None, Sizes { message: 1 << 21, first: 1 << 21, largest: 1 << 21 })
    }

    fn region(&self, buffer: Buffer) -> Option<&Region> {
        self.regions.get((buffer >> OFFSET_BITS) as usize)?.as_ref()
    }

    fn find(&self, buffer: Buffer) -> Option<(&Region, usize)> {
        let region = self.region(buffer)?;
        Some((region, (buffer & ((1 << OFFSET_BITS) - 1)) as usize * region.size))
    }

    /// The address in a buffer, `skip` bytes from its beginning.
    pub(super) fn at(&self, buffer: Buffer, skip: usize) -> Option<*const u8> {
        let (region, start) = self.find(buffer)?;
        Some(region.mr.as_ptr().wrapping_add(start + skip).cast_const())
    }

    /// The place of `len` bytes of a buffer, `skip` bytes from its beginning; `None` if the buffer is shorter.
    fn within(&self, buffer: Buffer, skip: usize, len: usize) -> Option<(&Registered, usize)> {
        let (region, start) = self.find(buffer)?;
        (skip.checked_add(len)? <= region.size).then_some((&region.mr, start + skip))
    }

    /// Copies from a buffer, `skip` bytes from its beginning; false if the buffer is shorter.
    pub fn read(&self, buffer: Buffer, skip: usize, to: &mut [u8]) -> bool {
        self.within(buffer, skip, to.len()).is_some_and(|(mr, at)| mr.read(at, to))
    }

    /// Copies into a buffer, `skip` bytes from its beginning; false if the buffer is shorter.
    pub(super) fn write(&self, buffer: Buffer, skip: usize, bytes: &[u8]) -> bool {
        self.within(buffer, skip, bytes.len()).is_some_and(|(mr, at)| mr.write(at, bytes))
    }

    /// The first `len` bytes of a buffer, except the first `skip` of them.
    pub(super) fn sge(&self, buffer: Buffer, skip: usize, len: usize) -> Option<Sge<'_>> {
        let len = len.checked_sub(skip)?;
        let (mr, at) = self.within(buffer, skip, len)?;
        mr.sge(at, len)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let used: usize = self.each().map(|r| (r.all - r.free.len()) * r.size).sum();
        page().sub(Counter::RegisteredUsed, used as u64);
    }
}

/// The length of a region that comes after `total` bytes, of which the largest region has `last`, when `missing` bytes
/// are missing. They may need a further one.
fn next_region(sizes: Sizes, total: usize, last: Option<usize>, missing: usize) -> usize {
    let Some(last) = last else { return sizes.first };
    let spare = total.min(LITTLE).max(total / GROWTH_LIMIT);
    let wanted = last.saturating_mul(2).min(missing.max(spare)).min(sizes.largest);
    // The size of the first region times a power of two.
    let mut len = sizes.first;
    while len <= wanted / 2 {
        len *= 2;
    }
    len
}

#[cfg(test)]
mod tests;
