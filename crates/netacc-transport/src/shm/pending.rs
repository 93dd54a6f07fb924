//! Connects that are pending because the listener's backlog is full.
//!
//! In the kernel a connect for which the listener's queue has no room is not established: its program sees it pending
//! (`EINPROGRESS`, not writable) until the server has accepted others. Here it is queued nevertheless, so that it is
//! accepted in order whatever the client is doing then, and the client determines how many connects are still before
//! it.

use crate::shm::ShmEndpoint;
use crate::shm::queued_connect::QueuedConnect;
use crate::shm::segment::CONNECT_QUEUED;
use crate::shm::side_machines::{Life, LifeEvent};
use crate::shm::slot_side::{SlotSide, View};
use core::sync::atomic::Ordering;
use netacc_sys::time;

/// Interval (ns) at which a client checks whether there is room in the queue, since no wake-up comes for that.
const STEP: u64 = 1_000_000;

impl QueuedConnect {
    /// Marks a connect that is about to be queued as pending. Called under the lock that orders connects.
    pub(super) fn begin_pending(&self, side: &SlotSide) {
        if let Some(v) = side.view() {
            // Relaxed: `pushed` is only written under the lock that the caller holds.
            self.queued_at.store(v.seg.header().pushed.load(Ordering::Relaxed), Ordering::Relaxed);
            side.on::<Life>(LifeEvent::FindNoRoom);
        }
    }

    /// Whether the connect is in the queue, and before it as many others as the backlog allows.
    fn waits_for_room(&self, v: &View) -> bool {
        let h = v.seg.header();
        let (popped, at) = (h.popped.load(Ordering::Acquire), self.queued_at.load(Ordering::Relaxed));
        let limit = u64::from(h.backlog.load(Ordering::Relaxed));
        let before = at.saturating_sub(popped);
        // Connects before it that the server has accepted, or that their clients have withdrawn, make room for this
        // one.
        v.slot.open.outcome.load(Ordering::Acquire) == CONNECT_QUEUED
            && before >= limit
            && before - v.seg.withdrawn_between(popped, at).min(before) >= limit
    }

    /// Time ([`time::now`]) of the next check of a pending connect.
    pub(super) fn next_look() -> u64 {
        time::now().saturating_add(STEP)
    }
}

impl ShmEndpoint {
    /// Whether the connect still waits for room in the listener's queue.
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.side.state.look().is_pending() && self.side.view().is_some_and(|v| self.still_pending(&v))
    }

    /// Whether a connect that was pending still is.
    #[cold]
    pub(super) fn still_pending(&self, v: &View) -> bool {
        let waits = self.connect.waits_for_room(v);
        if !waits && self.side.on::<Life>(LifeEvent::Establish).is_pending() {
            // This wakes threads that wait until the socket is writable, edge-triggered ones too.
            self.room_came();
        }
        waits
    }
}
