//! The two rings of a connection as one side sees them: its private positions in both.
//!
//! The sharers of a side ([`super::sharers`]) have no private positions in common, so on a shared side the published
//! words count.

use crate::shm::side::Side;
use crate::shm::slot_side::{SlotSide, View};
use netacc_ring::{Consumer, Producer, Violation};

/// A direction of a shared side.
#[derive(Clone, Copy, Debug)]
pub(super) enum Direction {
    Read = 0,
    Write = 1,
}

/// The ring that this side writes, and the one that it reads.
#[derive(Debug)]
pub(crate) struct Rings {
    pub(super) tx: Producer,
    pub(super) rx: Consumer,
}

impl Rings {
    /// Begins with two empty rings.
    pub(super) fn begin(&self) {
        self.tx.reset();
        self.rx.reset();
    }

    /// Continues where the last sharer has published.
    pub(super) fn resync(&self, v: &View, dir: Direction) -> core::result::Result<(), Violation> {
        let peer = v.me.other();
        match dir {
            Direction::Read => self.rx.resync(line!(v, consumer, v.me), line!(v, producer, peer)),
            Direction::Write => self.tx.resync(line!(v, producer, v.me), line!(v, consumer, peer)),
        }
    }

    /// Whether the ring has anything to read.
    #[inline]
    pub(super) fn has_data(&self, side: &SlotSide, v: &View) -> bool {
        let peer = line!(v, producer, v.me.other());
        if side.is_shared() {
            Consumer::available_by(line!(v, consumer, v.me), peer) > 0
        } else {
            self.rx.readable(peer)
        }
    }

    /// Whether a write would find room; `can_open` tells whether there is memory for a larger window.
    #[inline]
    pub(super) fn has_room(&self, side: &SlotSide, v: &View, can_open: impl Fn() -> bool) -> bool {
        let peer = line!(v, consumer, v.me.other());
        if side.is_shared() {
            return self.tx.writable_by(line!(v, producer, v.me), peer);
        }
        self.tx.writable(peer, can_open).unwrap_or(true)
    }

    /// Whether the peer's writer would find room, from the published words only.
    pub(super) fn peer_has_room(v: &View) -> bool {
        Consumer::has_room_by(line!(v, consumer, v.me), line!(v, producer, v.me.other()))
    }

    /// Number of bytes in the ring that can be read.
    pub(super) fn waiting_in(&self, side: &SlotSide, v: &View) -> u64 {
        let peer = line!(v, producer, v.me.other());
        if side.is_shared() {
            return Consumer::available_by(line!(v, consumer, v.me), peer);
        }
        self.rx.available(peer).unwrap_or(0)
    }

    /// Number of our bytes that the peer has not read; `None` if its words are impossible.
    pub(super) fn peer_left_unread(&self, side: &SlotSide, v: &View) -> Option<u64> {
        let peer = line!(v, consumer, v.me.other());
        if side.is_shared() {
            return Some(Producer::unread_by(line!(v, producer, v.me), peer));
        }
        self.tx.unread(peer).ok()
    }

    /// Whether the peer's program has read all that we have written.
    pub(crate) fn is_all_read(&self, side: &SlotSide) -> bool {
        side.view().is_none_or(|v| self.peer_left_unread(side, &v).unwrap_or(0) == 0)
    }

    /// Calls `piece` for all bytes that were written so far to a connection whose peer has read none.
    pub(super) fn replay(&self, v: &View, mut piece: impl FnMut(*const u8, usize)) {
        let Some(area) = v.tx_area() else { return };
        self.tx.replay(&area, |p, n| piece(p.as_ptr(), n));
    }
}
