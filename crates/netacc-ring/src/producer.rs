//! The writing end of a ring.

use crate::sync::{AtomicU64, Ordering};
use crate::{
    Area, ConsumerLine, LARGE, LAST_POSITION, Layout, ProducerLine, SMALL, STEP, Violation, bound, eased, to_usize,
};
use core::ptr::NonNull;

/// Largest number of unread bytes: a full small window and, after it, a full large one.
const CAPACITY: u64 = (SMALL + LARGE) as u64;
/// Offset beyond which a drained large window is used from its start again, so that its first lines stay in the cache.
const REWIND: u64 = LARGE as u64 / 8;
/// Number of small writes into a drained large window after which the connection uses the small window again.
const CALM_WRITES: u64 = if cfg!(loom) { 2 } else { 1024 };

/// Private cursors of the writing end.
///
/// All methods are called by one thread at a time (the owner's direction lock); the fields are `Relaxed` atomics, so
/// that a violation of this rule would garble a stream but not be undefined behaviour.
#[derive(Debug, Default)]
pub struct Producer {
    /// Position after the last byte copied in, published or not.
    pos: AtomicU64,
    /// The last `tail` that was checked; never above `pos`, never falls.
    tail: AtomicU64,
    /// The layout for bytes at `pos`.
    layout: AtomicU64,
    /// Number of small writes since the large window was last needed.
    calm: AtomicU64,
    /// Number of bytes that may be unread beside those of the consumer's window (SO_SNDBUF); 0: as many as fit. Another
    /// thread may set it beside the writer.
    limit: AtomicU64,
    /// Number of bytes of the large window, from its start, that may be written: what the owner's budget has granted. A
    /// window that is not wholly open does not go round, but begins anew once it is drained.
    extent: AtomicU64,
}

impl Producer {
    /// Resets the cursors to position 0 for a new connection, whose large window is not open.
    pub fn reset(&self) {
        for w in [&self.pos, &self.tail, &self.layout, &self.calm, &self.limit, &self.extent] {
            w.store(0, Ordering::Relaxed);
        }
    }

    /// Limits the unread bytes on this side to `bytes`; 0: as many as fit. A writer that waits for room has to check
    /// again.
    pub fn set_limit(&self, own: &ProducerLine, bytes: u32) {
        self.limit.store(bytes.into(), Ordering::Relaxed);
        // Relaxed: a writer that registers afterwards does so with a SeqCst exchange, and the consumer loads the limit
        // after it has found the registration.
        own.limit.store(bytes, Ordering::Relaxed);
    }

    /// Number of bytes that may be unread.
    #[inline]
    fn bound(&self, peer: &ConsumerLine) -> u64 {
        bound(self.limit.load(Ordering::Relaxed), &peer.window)
    }

    /// Takes the cursors from the published words, where another sharer of this side (after a fork) published last. It
    /// may have opened all of the large window.
    pub fn resync(&self, own: &ProducerLine, peer: &ConsumerLine) -> Result<(), Violation> {
        let pos = own.head.load(Ordering::Acquire);
        let layout = Layout::unpack(own.layout.load(Ordering::Relaxed));
        let tail = peer.tail.load(Ordering::Acquire);
        if pos.wrapping_sub(tail) > CAPACITY || layout.origin > pos || pos > LAST_POSITION {
            return Err(Violation);
        }
        self.pos.store(pos, Ordering::Relaxed);
        self.tail.store(tail, Ordering::Relaxed);
        self.layout.store(layout.pack(), Ordering::Relaxed);
        if layout.large {
            self.extent.store(LARGE as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    fn layout(&self) -> Layout {
        Layout::unpack(self.layout.load(Ordering::Relaxed))
    }

    /// Loads the peer's tail once, checks it, and remembers it.
    fn refresh(&self, peer: &ConsumerLine) -> Result<u64, Violation> {
        // Acquire: the consumer has copied the bytes out before it published this tail, so we may overwrite them.
        // SeqCst: a waiter that has registered (a SeqCst exchange) and then loads this sees the new tail, or the
        // consumer sees the waiter.
        let tail = peer.tail.load(Ordering::SeqCst);
        let pos = self.pos.load(Ordering::Relaxed);
        let old = self.tail.load(Ordering::Relaxed);
        if tail < old || tail > pos {
            return Err(Violation);
        }
        self.tail.store(tail, Ordering::Relaxed);
        Ok(tail)
    }

    /// Number of bytes that fit into the current window given `tail`.
    fn free_in(layout: Layout, pos: u64, tail: u64) -> usize {
        layout.size().saturating_sub(to_usize(pos.wrapping_sub(tail.max(layout.origin))))
    }

    /// Number of bytes that may be written at `pos` before the end of what is open of the large window; any number if it
    /// is wholly open, or the small one is in use.
    fn before_end(&self, layout: Layout, pos: u64) -> usize {
        let extent = self.extent.load(Ordering::Relaxed);
        if !layout.large || extent >= LARGE as u64 {
            return usize::MAX;
        }
        to_usize(extent.saturating_sub(pos.wrapping_sub(layout.origin)))
    }

    /// Asks `open` to open the first `want` bytes of the large window, or all of it if it has fewer, in whole steps.
    fn extend(&self, want: u64, open: impl FnOnce(usize) -> usize) {
        let want = to_usize(want.min(LARGE as u64)).next_multiple_of(STEP);
        if want > self.extent() {
            let granted = open(want).min(LARGE).max(self.extent());
            self.extent.store(granted as u64, Ordering::Relaxed);
        }
    }

    /// Whether a new layout may begin at `pos`: the consumer must have adopted the one in force,
    /// since the shared word holds only the newest. It has if it read a byte of it, or if no byte
    /// was written under it; position 0 is adopted by definition.
    fn may_switch(layout: Layout, pos: u64, tail: u64) -> bool {
        layout.origin == 0 || tail > layout.origin || pos == layout.origin
    }

    fn switch(&self, own: &ProducerLine, large: bool, pos: u64) -> Layout {
        let layout = Layout { large, origin: pos };
        self.layout.store(layout.pack(), Ordering::Relaxed);
        // Relaxed: the `head` that makes the first byte of this layout visible is published later
        // with SeqCst and orders it. Seen early, it only tells the consumer to stop at `pos`.
        own.layout.store(layout.pack(), Ordering::Relaxed);
        layout
    }

    /// Makes room for a message of `want` bytes if that is possible by going to another window, or by opening more of the
    /// large one: `open` is asked for an extent (bytes) and returns the extent that it grants.
    ///
    /// It is called before the first [`Producer::chunk`] of a message.
    pub fn prepare(
        &self,
        own: &ProducerLine,
        peer: &ConsumerLine,
        want: usize,
        open: impl FnOnce(usize) -> usize,
    ) -> Result<(), Violation> {
        let pos = self.pos.load(Ordering::Relaxed);
        let layout = self.layout();
        if !layout.large {
            if want <= Self::free_in(layout, pos, self.tail.load(Ordering::Relaxed)) {
                return Ok(());
            }
            let tail = self.refresh(peer)?;
            // Small to large is possible with bytes pending: the windows do not overlap. At the very
            // first layout `tail == origin == 0` counts as adopted.
            if want > Self::free_in(layout, pos, tail) && Self::may_switch(layout, pos, tail) {
                self.extend(want as u64, open);
                if self.extent() > 0 {
                    self.calm.store(0, Ordering::Relaxed);
                    self.switch(own, true, pos);
                }
            }
            return Ok(());
        }
        let calm = if want <= SMALL / 2 { self.calm.load(Ordering::Relaxed) + 1 } else { 0 };
        self.calm.store(calm, Ordering::Relaxed);
        let used = pos.wrapping_sub(layout.origin);
        let ends = want > self.before_end(layout, pos);
        if used >= REWIND || calm >= CALM_WRITES || ends {
            // A switch needs a drained ring: otherwise the large window would overlap itself, and the small
            // one might still hold older bytes.
            let tail = self.refresh(peer)?;
            let rewinds = tail == pos && Self::may_switch(layout, pos, tail);
            if rewinds {
                self.switch(own, calm < CALM_WRITES, pos);
            }
            if ends {
                let used = if rewinds { 0 } else { used };
                self.extend(used.saturating_add(want as u64), open);
                // Nothing was written since the window was closed, so the ring is drained.
                if self.extent() == 0 {
                    self.switch(own, false, pos);
                }
            }
        }
        Ok(())
    }

    /// Number of bytes of the large window, from its start, that are open.
    #[inline]
    pub fn extent(&self) -> usize {
        to_usize(self.extent.load(Ordering::Relaxed))
    }

    /// Closes the large window if no byte of it will be accessed any more, so that its pages may be given back. False:
    /// it is in use, or was not open. A connection that uses it goes on at its start with the next message, which opens it
    /// again: in the small window it could not return to the large one before the reader has read something.
    pub fn close_large(&self, own: &ProducerLine, peer: &ConsumerLine) -> bool {
        let pos = self.pos.load(Ordering::Relaxed);
        let layout = self.layout();
        let Ok(tail) = self.refresh(peer) else { return false };
        let over =
            if layout.large { tail == pos && Self::may_switch(layout, pos, tail) } else { tail >= layout.origin };
        if !over || self.extent() == 0 {
            return false;
        }
        if layout.large {
            self.switch(own, true, pos);
        }
        self.extent.store(0, Ordering::Relaxed);
        true
    }

    /// The next free contiguous bytes, at most `want`; `None` when the ring is full.
    #[inline]
    pub fn chunk(
        &self,
        area: &Area,
        peer: &ConsumerLine,
        want: usize,
    ) -> Result<Option<(NonNull<u8>, usize)>, Violation> {
        let pos = self.pos.load(Ordering::Relaxed);
        let layout = self.layout();
        let bound = self.bound(peer);
        let before_end = self.before_end(layout, pos);
        let free_at = |tail: u64| {
            let within = bound.saturating_sub(pos.wrapping_sub(tail));
            Self::free_in(layout, pos, tail).min(usize::try_from(within).unwrap_or(usize::MAX)).min(before_end)
        };
        let mut free = free_at(self.tail.load(Ordering::Relaxed));
        if free < want {
            free = free_at(self.refresh(peer)?);
            if free == 0 {
                return Ok(None);
            }
        }
        let (ptr, to_end) = area.at(layout, pos);
        Ok(Some((ptr, want.min(free).min(to_end))))
    }

    /// Advances over `n` bytes, which have been copied into the last chunk.
    #[inline]
    pub fn advance(&self, n: usize) {
        self.pos.store(self.pos.load(Ordering::Relaxed) + n as u64, Ordering::Relaxed);
    }

    /// Stream position after the last byte copied in, published or not.
    #[inline]
    pub fn position(&self) -> u64 {
        self.pos.load(Ordering::Relaxed)
    }

    /// Makes everything advanced over visible to the consumer.
    ///
    /// The exchange is a full fence: the caller's later loads (does the peer sleep?) come after the moment at which the
    /// peer can see the new head. The peer does the reverse.
    #[inline]
    pub fn publish(&self, own: &ProducerLine) {
        own.head.swap(self.pos.load(Ordering::Relaxed), Ordering::SeqCst);
    }

    /// Whether a write of reasonable size would go in: a quarter of the window is free, or the large
    /// window can still be opened, for which `can_open` tells whether there is memory. The quarter keeps a writer from being
    /// woken for a few bytes.
    pub fn writable(&self, peer: &ConsumerLine, can_open: impl Fn() -> bool) -> Result<bool, Violation> {
        let pos = self.pos.load(Ordering::Relaxed);
        let layout = self.layout();
        let bound = self.bound(peer);
        let before_end = self.before_end(layout, pos) >= STEP / 4;
        if before_end && Self::takes(layout, bound, pos, self.tail.load(Ordering::Relaxed)) {
            return Ok(true);
        }
        let tail = self.refresh(peer)?;
        if Self::takes(layout, bound, pos, tail) {
            return Ok(before_end || tail == pos || can_open());
        }
        Ok(Self::opens(layout, bound, pos, tail) && (self.extent() > 0 || can_open()))
    }

    /// Whether a quarter of the allowed unread bytes is free.
    fn within(bound: u64, pos: u64, tail: u64) -> bool {
        pos.wrapping_sub(tail) <= eased(bound)
    }

    /// Whether a quarter of the window in use is free.
    fn takes(layout: Layout, bound: u64, pos: u64, tail: u64) -> bool {
        Self::free_in(layout, pos, tail) >= layout.size() / 4 && Self::within(bound, pos, tail)
    }

    /// Whether the large window may be opened for a write at `pos`.
    fn opens(layout: Layout, bound: u64, pos: u64, tail: u64) -> bool {
        !layout.large && Self::may_switch(layout, pos, tail) && Self::within(bound, pos, tail)
    }

    /// Number of bytes that the consumer has not read yet (SIOCOUTQ).
    pub fn unread(&self, peer: &ConsumerLine) -> Result<u64, Violation> {
        let tail = self.refresh(peer)?;
        Ok(self.pos.load(Ordering::Relaxed).wrapping_sub(tail))
    }

    /// Whether the large window is in use.
    #[inline]
    pub fn is_large(&self) -> bool {
        self.layout().large
    }

    /// Whether a write of reasonable size would fit, from the published words only: for a side that several processes
    /// share, whose private cursors may lag behind, and which opens the large window as a whole.
    pub fn writable_by(&self, own: &ProducerLine, peer: &ConsumerLine) -> bool {
        let pos = own.head.load(Ordering::Acquire);
        let tail = peer.tail.load(Ordering::SeqCst);
        let layout = Layout::unpack(own.layout.load(Ordering::Relaxed));
        if pos.wrapping_sub(tail) > CAPACITY || layout.origin > pos {
            return true;
        }
        let bound = self.bound(peer);
        Self::takes(layout, bound, pos, tail) || Self::opens(layout, bound, pos, tail)
    }

    /// Number of bytes that the consumer has not read yet, from the published words only.
    pub fn unread_by(own: &ProducerLine, peer: &ConsumerLine) -> u64 {
        let n = own.head.load(Ordering::Acquire).wrapping_sub(peer.tail.load(Ordering::Acquire));
        n.min(CAPACITY)
    }

    /// Calls `piece` with the bytes written so far, in order, of a ring whose consumer has read none. There are
    /// at most two pieces, since a second change of layout needs a consumer that reads.
    pub fn replay(&self, area: &Area, mut piece: impl FnMut(NonNull<u8>, usize)) {
        let pos = self.pos.load(Ordering::Relaxed);
        let layout = self.layout();
        let first = Layout { large: false, origin: 0 };
        if layout.origin > 0 {
            piece(area.at(first, 0).0, to_usize(layout.origin).min(SMALL));
        }
        let n = to_usize(pos.saturating_sub(layout.origin)).min(layout.size());
        if n > 0 {
            piece(area.at(layout, layout.origin).0, n);
        }
    }
}
