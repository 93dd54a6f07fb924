//! A link's entry on the stats page.

use crate::num;
use crate::shm::link::Link;
use crate::shm::side::Side;
use core::sync::atomic::Ordering;
use netacc_ring::SLOTS;
use netacc_stats::{Counter, LinkEntry, LinkKind, NewLink, page};
use netacc_sys::time;

impl Link {
    fn stats_entry(&self) -> Option<&'static LinkEntry> {
        page().link(self.entry.load(Ordering::Relaxed).checked_sub(1)?)
    }

    /// Gives the link an entry on the stats page. If no entry is free, its connections are counted nevertheless.
    pub(super) fn enter(&self) {
        let place = page().open_link(&NewLink {
            id: self.id(),
            kind: LinkKind::Shm,
            server: self.side() == Side::Server,
            peer_pid: self.peer_pid(),
            now_ns: time::realtime(),
            // Slot 0 is the connect queue's.
            capacity: const { num::constant(SLOTS) - 1 },
            address: self.segment().map_or(0, |seg| seg.as_ptr() as u64),
        });
        self.entry.store(place.map_or(0, |place| place + 1), Ordering::Relaxed);
    }

    /// Closes the link's entry.
    pub(super) fn close_stats(&self) {
        if let Some(entry) = self.stats_entry() {
            entry.close(self.id());
        }
        self.entry.store(0, Ordering::Relaxed);
    }

    /// Counts a connection of ours that has taken a slot.
    pub(super) fn slot_taken(&self) {
        match self.stats_entry() {
            Some(entry) => entry.taken(),
            None => page().count(Counter::SlotsInUse),
        }
    }

    /// Counts a connection of ours that has left its slot. Connections that this process has by a fork are counted
    /// where they were opened.
    pub(super) fn count_slot_closed(&self) {
        if self.is_inherited() {
            return;
        }
        match self.stats_entry() {
            Some(entry) => {
                if entry.left() {
                    entry.idle_since(time::realtime_coarse());
                }
            }
            None => page().sub(Counter::SlotsInUse, 1),
        }
    }
}
