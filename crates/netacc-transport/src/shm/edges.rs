//! Counters of a connection's events, by which edge-triggered epoll recognises new ones.
//!
//! Only threads of this process write them. The counters are Relaxed, since each change is followed by a wake-up, whose
//! fence comes before the sleeper's check. Only the request for room is stored with Release and taken by an AcqRel
//! exchange: room is counted once for each request, after what the writer did before it.

use crate::shm::side_state::SideState;
use core::sync::atomic::{AtomicU32, Ordering};

/// Progress of a connection. Edge-triggered epoll reports a connection again when one of these values has changed,
/// which corresponds to a wake-up in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EdgeSeq {
    /// Stream position up to which data has arrived, combined (from bit 48 on, by exclusive or) with the number of
    /// times that `SO_RCVLOWAT` was set when enough data was there.
    pub data: u64,
    /// Which ends and resets have been seen (the low eight bits), and the number of calls of shutdown(2) (the bits
    /// above).
    pub edges: u32,
    /// Number of times that a writer that had found no room could go on.
    pub room: u32,
}

/// The counts behind an [`EdgeSeq`], and SO_RCVLOWAT.
#[derive(Debug)]
pub struct Edges {
    /// The value of SO_RCVLOWAT.
    lowat: AtomicU32,
    /// Number of times that SO_RCVLOWAT was set when enough data was there.
    nudges: AtomicU32,
    /// Number of calls of shutdown(2) so far.
    shutdowns: AtomicU32,
    /// Not 0: a writer has found no room and waits for some.
    room_wanted: AtomicU32,
    /// Number of times that such a writer could go on.
    rooms: AtomicU32,
}

impl Edges {
    /// Prepares for a new connection. The counters keep their values, since only changes matter.
    pub(super) fn begin(&self) {
        self.lowat.store(1, Ordering::Relaxed);
        self.room_wanted.store(0, Ordering::Relaxed);
    }

    /// The value of SO_RCVLOWAT.
    #[inline]
    pub fn lowat(&self) -> usize {
        self.lowat.load(Ordering::Relaxed) as usize
    }

    /// Sets SO_RCVLOWAT.
    pub(super) fn set_lowat(&self, n: u32) {
        self.lowat.store(n.max(1), Ordering::Relaxed);
    }

    /// Counts a setting of SO_RCVLOWAT for which enough bytes were there.
    pub(super) fn count_nudge(&self) {
        self.nudges.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a call of shutdown(2).
    pub(super) fn count_shutdown(&self) {
        self.shutdowns.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts room that has come for a writer that waits.
    pub(super) fn count_room(&self) {
        self.rooms.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a writer has found no room and waits for some.
    pub(super) fn want_room(&self) {
        self.room_wanted.store(1, Ordering::Release);
    }

    /// Whether a writer waits for room.
    #[inline]
    pub(super) fn wants_room(&self) -> bool {
        self.room_wanted.load(Ordering::Relaxed) != 0
    }

    /// Counts room for a writer that waits, once, if it has room now.
    #[inline]
    pub(super) fn find_room(&self, has_room: impl FnOnce() -> bool) {
        if self.wants_room() && has_room() && self.room_wanted.swap(0, Ordering::AcqRel) != 0 {
            self.count_room();
        }
    }

    /// The ends and shutdowns as in [`EdgeSeq::edges`].
    #[inline]
    pub(super) fn ends(&self, state: SideState) -> u32 {
        self.shutdowns.load(Ordering::Relaxed).wrapping_shl(8) | state.ends_seen()
    }

    /// The counters of a connection with these ends that has received bytes up to `position`.
    #[inline]
    pub(super) fn seq(&self, ends: u32, position: u64) -> EdgeSeq {
        let nudges = u64::from(self.nudges.load(Ordering::Relaxed)) << 48;
        EdgeSeq { data: position ^ nudges, edges: ends, room: self.rooms.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_counts_once_for_a_writer_that_waits() {
        let n = || AtomicU32::new(0);
        let edges = Edges { lowat: n(), nudges: n(), shutdowns: n(), room_wanted: n(), rooms: n() };
        edges.begin();
        let room = || edges.seq(0, 0).room;
        edges.find_room(|| true);
        assert_eq!(room(), 0);
        edges.want_room();
        edges.find_room(|| false);
        assert_eq!(room(), 0);
        edges.find_room(|| true);
        edges.find_room(|| true);
        assert_eq!(room(), 1);
    }
}
