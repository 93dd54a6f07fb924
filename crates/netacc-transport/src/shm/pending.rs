//! Connects that a full backlog keeps pending.
//!
//! In the kernel a connect for which the listener's queue has no room is not established: its program sees it pending
//! (`EINPROGRESS`, not writable) until the server has accepted others. Here it is queued all the same, so that it is
//! accepted in its turn whatever the client does meanwhile, and the client counts how many are still before it.

use crate::shm::ShmEndpoint;
use crate::shm::endpoint::View;
use crate::shm::segment::CONNECT_QUEUED;
use crate::shm::side_state::{Life, LifeEvent};
use core::sync::atomic::Ordering;
use netacc_sys::time;

/// Nobody tells a client that there is room in the queue: it looks at this interval (ns).
const STEP: u64 = 1_000_000;

impl ShmEndpoint {
    /// The connect that is about to be queued finds no room. Under the lock of who queues.
    pub fn begin_pending(&self) {
        if let Some(v) = self.view() {
            // Relaxed: written under the lock that the caller holds.
            self.queued_at.store(v.seg.header().pushed.load(Ordering::Relaxed), Ordering::Relaxed);
            self.on::<Life>(LifeEvent::FindNoRoom);
        }
    }

    /// Whether the connect still waits for room in the listener's queue.
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.state.look().is_pending() && self.view().is_some_and(|v| self.still_pending(&v))
    }

    /// The same, of one that was.
    #[cold]
    pub(super) fn still_pending(&self, v: &View) -> bool {
        let h = v.seg.header();
        let (popped, at) = (h.popped.load(Ordering::Acquire), self.queued_at.load(Ordering::Relaxed));
        let limit = u64::from(h.backlog.load(Ordering::Relaxed));
        let before = at.saturating_sub(popped);
        // What the server took before it leaves its place to this one, and so does what was given up and lies there still.
        let waits = v.slot.open.outcome.load(Ordering::Acquire) == CONNECT_QUEUED
            && before >= limit
            && before - v.seg.withdrawn_between(popped, at).min(before) >= limit;
        if !waits && self.on::<Life>(LifeEvent::Establish).is_pending() {
            // This is news for a thread that waits until it can write, by edges too.
            self.room_came();
        }
        waits
    }

    /// When the next look at a pending connect is due ([`time::now`]).
    pub(super) fn next_look() -> u64 {
        time::now().saturating_add(STEP)
    }
}
