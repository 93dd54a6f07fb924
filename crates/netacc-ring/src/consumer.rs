//! The reading end of a ring.

use crate::sync::{AtomicU64, Ordering};
use crate::{Area, ConsumerLine, LARGE, LAST_POSITION, Layout, ProducerLine, SMALL, Violation, bound, eased, to_usize};
use core::ptr::NonNull;

const CAPACITY: u64 = (SMALL + LARGE) as u64;

/// Private cursors of the reading end. As with [`crate::Producer`], one thread at a time calls its methods.
#[derive(Debug, Default)]
pub struct Consumer {
    /// Position of the next byte to read, published or not.
    pos: AtomicU64,
    /// The last `head` that was checked; never below `pos`.
    head: AtomicU64,
    /// The layout in force at `pos`.
    layout: AtomicU64,
}

impl Consumer {
    /// Resets the cursors to position 0 for a new connection.
    pub fn reset(&self) {
        for w in [&self.pos, &self.head, &self.layout] {
            w.store(0, Ordering::Relaxed);
        }
    }

    /// Takes the cursors from the published words, where another sharer of this side (after a fork) stopped reading.
    pub fn resync(&self, own: &ConsumerLine, peer: &ProducerLine) -> Result<(), Violation> {
        let pos = own.tail.load(Ordering::Acquire);
        let layout = Layout::unpack(own.layout.load(Ordering::Relaxed));
        let head = peer.head.load(Ordering::Acquire);
        if head.wrapping_sub(pos) > CAPACITY || layout.origin > pos || pos > LAST_POSITION {
            return Err(Violation);
        }
        self.pos.store(pos, Ordering::Relaxed);
        self.head.store(head, Ordering::Relaxed);
        self.layout.store(layout.pack(), Ordering::Relaxed);
        Ok(())
    }

    /// Loads the peer's head once, checks it, and remembers it.
    #[inline]
    fn refresh(&self, peer: &ProducerLine) -> Result<u64, Violation> {
        // Acquire: the bytes and the layout up to this head are visible. SeqCst: a waiter that has registered (a SeqCst
        // exchange) and then loads this sees the new head, or the producer sees the waiter.
        let head = peer.head.load(Ordering::SeqCst);
        let pos = self.pos.load(Ordering::Relaxed);
        let old = self.head.load(Ordering::Relaxed);
        if head < old || head.wrapping_sub(pos) > CAPACITY {
            return Err(Violation);
        }
        self.head.store(head, Ordering::Relaxed);
        Ok(head)
    }

    /// Number of bytes that can be read now (FIONREAD).
    #[inline]
    pub fn available(&self, peer: &ProducerLine) -> Result<u64, Violation> {
        Ok(self.refresh(peer)?.wrapping_sub(self.pos.load(Ordering::Relaxed)))
    }

    /// Whether there are bytes to read. Another thread may call it beside the reader, since it changes nothing.
    #[inline]
    pub fn readable(&self, peer: &ProducerLine) -> bool {
        peer.head.load(Ordering::SeqCst) != self.pos.load(Ordering::Relaxed)
    }

    /// The contiguous bytes that begin `skip` bytes after the read position; `None` when there are none.
    ///
    /// `skip` serves MSG_PEEK over several chunks; a plain reader passes 0 and advances.
    #[inline]
    pub fn chunk(
        &self,
        area: &Area,
        own: &ConsumerLine,
        peer: &ProducerLine,
        skip: usize,
    ) -> Result<Option<(NonNull<u8>, usize)>, Violation> {
        let base = self.pos.load(Ordering::Relaxed);
        let pos = base + skip as u64;
        let mut head = self.head.load(Ordering::Relaxed);
        if head <= pos {
            head = self.refresh(peer)?;
            if head <= pos {
                return Ok(None);
            }
        }
        let mut end = head;
        let mut layout = Layout::unpack(self.layout.load(Ordering::Relaxed));
        // Loaded after the head: a layout that covers bytes below it is visible by now. A newer layout only makes the
        // chunk stop at its origin.
        let claim = Layout::unpack(peer.layout.load(Ordering::Relaxed));
        if claim != layout {
            if claim.origin > pos {
                end = end.min(claim.origin);
            } else if claim.origin < layout.origin || claim.origin < base {
                return Err(Violation);
            } else {
                layout = claim;
                if skip == 0 {
                    self.layout.store(claim.pack(), Ordering::Relaxed);
                    own.layout.store(claim.pack(), Ordering::Relaxed);
                }
            }
        }
        let (ptr, to_end) = area.at(layout, pos);
        Ok(Some((ptr, to_usize(end.wrapping_sub(pos)).min(to_end))))
    }

    /// Advances over `n` bytes of the last chunk, which have been copied out.
    #[inline]
    pub fn advance(&self, n: usize) {
        self.pos.store(self.pos.load(Ordering::Relaxed) + n as u64, Ordering::Relaxed);
    }

    /// Returns everything advanced over to the producer; a full fence like [`crate::Producer::publish`].
    #[inline]
    pub fn publish(&self, own: &ConsumerLine) {
        own.tail.swap(self.pos.load(Ordering::Relaxed), Ordering::SeqCst);
    }

    /// Whether a producer that waits for room should be woken now: a quarter of the window is free, and a quarter of
    /// the bytes that the producer's limit allows in the ring. A consumer that keeps reading always gets there.
    #[inline]
    pub fn room_to_announce(&self, own: &ConsumerLine, peer: &ProducerLine) -> bool {
        let used = peer.head.load(Ordering::Acquire).wrapping_sub(self.pos.load(Ordering::Relaxed));
        let size = Layout::unpack(self.layout.load(Ordering::Relaxed)).size() as u64;
        // Relaxed: see `Producer::set_limit`.
        let bound = bound(peer.limit.load(Ordering::Relaxed).into(), &own.window);
        used <= eased(size.min(bound))
    }

    /// Whether the producer has the room that [`Consumer::room_to_announce`] asks for, from the published words only: for a
    /// thread that does not read.
    pub fn has_room_by(own: &ConsumerLine, peer: &ProducerLine) -> bool {
        // Relaxed: a layout that the consumer has not adopted counts as the one before it, which is no larger than the bytes
        // in it.
        let size = Layout::unpack(own.layout.load(Ordering::Relaxed)).size() as u64;
        Self::available_by(own, peer) <= eased(size.min(bound(peer.limit.load(Ordering::Relaxed).into(), &own.window)))
    }

    /// Number of bytes that can be read, from the published words only: for a side that several processes share.
    pub fn available_by(own: &ConsumerLine, peer: &ProducerLine) -> u64 {
        let n = peer.head.load(Ordering::SeqCst).wrapping_sub(own.tail.load(Ordering::Acquire));
        n.min(CAPACITY)
    }
}
