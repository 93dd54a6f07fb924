//! The writing end of a ring.

use crate::sync::{AtomicU64, Ordering};
use crate::{Area, ConsumerLine, LARGE, LAST_POSITION, Layout, ProducerLine, SMALL, Violation, bound, eased, to_usize};
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
}

impl Producer {
    /// Resets the cursors to position 0 for a new connection.
    pub fn reset(&self) {
        for w in [&self.pos, &self.tail, &self.layout, &self.calm, &self.limit] {
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

    /// Takes the cursors from the published words, where another sharer of this side (after a fork) published last.
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

    /// Makes room for a message of `want` bytes if that is possible by going to another window.
    ///
    /// It is called before the first [`Producer::chunk`] of a message.
    pub fn prepare(&self, own: &ProducerLine, peer: &ConsumerLine, want: usize) -> Result<(), Violation> {
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
                self.calm.store(0, Ordering::Relaxed);
                self.switch(own, true, pos);
            }
            return Ok(());
        }
        let calm = if want <= SMALL / 2 { self.calm.load(Ordering::Relaxed) + 1 } else { 0 };
        self.calm.store(calm, Ordering::Relaxed);
        if pos.wrapping_sub(layout.origin) >= REWIND || calm >= CALM_WRITES {
            // A switch needs a drained ring: otherwise the large window would overlap itself, and the small
            // one might still hold older bytes.
            let tail = self.refresh(peer)?;
            if tail == pos && Self::may_switch(layout, pos, tail) {
                self.switch(own, calm < CALM_WRITES, pos);
            }
        }
        Ok(())
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
        let free_at = |tail: u64| {
            let within = bound.saturating_sub(pos.wrapping_sub(tail));
            Self::free_in(layout, pos, tail).min(usize::try_from(within).unwrap_or(usize::MAX))
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
    /// window can still be opened. The quarter keeps a writer from being woken for a few bytes.
    pub fn writable(&self, peer: &ConsumerLine) -> Result<bool, Violation> {
        let pos = self.pos.load(Ordering::Relaxed);
        let layout = self.layout();
        let bound = self.bound(peer);
        if Self::takes(layout, bound, pos, self.tail.load(Ordering::Relaxed)) {
            return Ok(true);
        }
        let tail = self.refresh(peer)?;
        let opens = !layout.large && Self::may_switch(layout, pos, tail) && Self::within(bound, pos, tail);
        Ok(Self::takes(layout, bound, pos, tail) || opens)
    }

    /// Whether a quarter of the allowed unread bytes is free.
    fn within(bound: u64, pos: u64, tail: u64) -> bool {
        pos.wrapping_sub(tail) <= eased(bound)
    }

    /// Whether a quarter of the window in use is free.
    fn takes(layout: Layout, bound: u64, pos: u64, tail: u64) -> bool {
        Self::free_in(layout, pos, tail) >= layout.size() / 4 && Self::within(bound, pos, tail)
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

    /// Whether the large window is unused, so that its pages may be freed: the connection uses the small window again
    /// and the consumer has seen it.
    pub fn large_idle(&self, peer: &ConsumerLine) -> bool {
        let layout = self.layout();
        !layout.large && layout.origin != 0 && self.refresh(peer).is_ok_and(|tail| tail > layout.origin)
    }

    /// Whether a write of reasonable size would fit, from the published words only: for a side that several processes
    /// share, whose private cursors may lag behind.
    pub fn writable_by(&self, own: &ProducerLine, peer: &ConsumerLine) -> bool {
        let pos = own.head.load(Ordering::Acquire);
        let tail = peer.tail.load(Ordering::SeqCst);
        let layout = Layout::unpack(own.layout.load(Ordering::Relaxed));
        if pos.wrapping_sub(tail) > CAPACITY || layout.origin > pos {
            return true;
        }
        let bound = self.bound(peer);
        let opens = !layout.large && Self::may_switch(layout, pos, tail) && Self::within(bound, pos, tail);
        Self::takes(layout, bound, pos, tail) || opens
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
