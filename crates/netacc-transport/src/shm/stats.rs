//! A link's entry on the stats page.

use crate::num;
use crate::shm::Link;
use crate::shm::side::Side;
use core::sync::atomic::{AtomicU32, Ordering};
use netacc_ring::SLOTS;
use netacc_stats::{Counter, LinkEntry, LinkKind, NewLink, page};
use netacc_sys::time;

/// A link's place on the stats page: the index of its entry + 1; 0: none, as in the child of a fork.
#[derive(Debug)]
pub(super) struct StatsPlace(AtomicU32);

impl StatsPlace {
    fn entry(&self) -> Option<&'static LinkEntry> {
        page().link(self.0.load(Ordering::Relaxed).checked_sub(1)?)
    }

    /// Gives the link an entry. If no entry is free, its connections are counted nevertheless.
    pub(super) fn open(&self, link: &Link) {
        let place = page().open_link(&NewLink {
            id: link.id(),
            kind: LinkKind::Shm,
            server: link.side() == Side::Server,
            peer_pid: link.peer_pid(),
            now_ns: time::realtime(),
            // Slot 0 is the connect queue's.
            capacity: const { num::constant(SLOTS) - 1 },
            address: link.segment().map_or(0, |seg| seg.as_ptr() as u64),
        });
        self.0.store(place.map_or(0, |place| place + 1), Ordering::Relaxed);
    }

    /// Closes the entry of the link with this number.
    pub(super) fn close(&self, id: u32) {
        if let Some(entry) = self.entry() {
            entry.close(id);
        }
        self.forget();
    }

    /// In the child of a fork: the entry is on the parent's stats page.
    pub(super) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Counts a connection of ours that has taken a slot.
    pub(super) fn slot_taken(&self) {
        match self.entry() {
            Some(entry) => entry.taken(),
            None => page().count(Counter::SlotsInUse),
        }
    }

    /// Counts a connection of ours that has left its slot. Connections that this process has by a fork are counted
    /// where they were opened.
    pub(super) fn slot_closed(&self, inherited: bool) {
        if inherited {
            return;
        }
        match self.entry() {
            Some(entry) => {
                if entry.left() {
                    entry.idle_since(time::realtime_coarse());
                }
            }
            None => page().sub(Counter::SlotsInUse, 1),
        }
    }
}
