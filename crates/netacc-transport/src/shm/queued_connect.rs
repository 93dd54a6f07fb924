//! A queued connect: what the server or the client decides about it, and what becomes of it if the server dies first.
//!
//! Offered promotions are decided in the same way.

use crate::shm::segment::{CONNECT_QUEUED, CONNECT_REFUSED, CONNECT_TAKEN, CONNECT_WITHDRAWN};
use crate::shm::server_state::is_handing_on;
use crate::shm::side::Side;
use crate::shm::slot_side::{SlotSide, View};
use core::sync::atomic::{AtomicU32, Ordering};
use netacc_sys::{SharedCell, time};

/// What a client notes of a connect in the queue.
#[derive(Debug)]
pub struct QueuedConnect {
    /// Position of a pending connect in the connect queue; see [`super::pending`].
    pub(super) queued_at: SharedCell<u64>,
    /// The same in the order of all connects to the listener, on [`QueuedConnect::links`] links.
    pub(super) queued_in_all: SharedCell<u64>,
    /// Number of links to the listener when it was queued, and the number of the newest of them.
    pub(super) links: AtomicU32,
    pub(super) newest: AtomicU32,
    /// Time before which a queued connect whose server has died is not made again; see [`QueuedConnect::queue_again`].
    kept_until: SharedCell<u64>,
}

impl QueuedConnect {
    /// Begins with a connect that is not kept.
    pub(super) fn begin(&self) {
        self.kept_until.set(0);
    }

    /// Whether a connect whose server has died is not to be made again yet.
    pub(super) fn is_kept(&self) -> bool {
        let until = self.kept_until.get();
        until != 0 && time::now() < until
    }

    /// Client: queues a connect again that was withdrawn from a process which has died. It is not
    /// [orphaned](QueuedConnect::is_orphaned) before the time `until` ([`time::now`]).
    pub fn queue_again(&self, side: &SlotSide, until: u64) -> bool {
        self.kept_until.set(until);
        side.view().is_some_and(|v| {
            // Nobody else decides any more, since the server is gone.
            let cell = &v.slot.open.outcome;
            cell.compare_exchange(CONNECT_WITHDRAWN, CONNECT_QUEUED, Ordering::AcqRel, Ordering::Acquire).is_ok()
        })
    }

    /// Client: whether the server's process died before it took the connect, which is to be made again now. Another
    /// process may serve it.
    pub fn is_orphaned(&self, side: &SlotSide) -> bool {
        side.is_live() && side.view().is_some_and(|v| v.is_orphan()) && !self.is_kept()
    }
}

impl SlotSide {
    /// Server: takes a queued connect. False if the client withdrew it.
    pub fn take(&self) -> bool {
        self.decide(CONNECT_TAKEN)
    }

    /// Client: withdraws a connect that the server has not taken. False if it has.
    pub fn withdraw(&self) -> bool {
        self.decide(CONNECT_WITHDRAWN)
    }

    /// The outcome of a queued connect or an offered promotion: a `CONNECT_` value.
    pub fn outcome(&self) -> u32 {
        self.view().map_or(CONNECT_WITHDRAWN, |v| v.slot.open.outcome.load(Ordering::Acquire))
    }

    /// Time (ns) since the connect or offer was made.
    pub fn age(&self) -> u64 {
        let when = self.view().map_or(0, |v| v.slot.open.when.load(Ordering::Relaxed));
        time::now().saturating_sub(when)
    }

    /// Server: refuses a promotion.
    pub fn refuse(&self, generation: u32) {
        self.decide(CONNECT_REFUSED);
        self.never_mind(generation);
    }

    /// Server: releases the slot of a connect that did not begin here, because it was withdrawn or refused.
    pub fn never_mind(&self, generation: u32) {
        if let Some(v) = self.view() {
            // Release: after this the client may use the slot again.
            v.slot.open.server_done.store(generation, Ordering::Release);
        }
    }

    /// Client: whether the connect waits in its queue.
    pub fn is_queued(&self) -> bool {
        self.is_live() && self.outcome() == CONNECT_QUEUED && self.view().is_some_and(|v| v.me == Side::Client)
    }

    /// Sets the outcome of a queued connect. False: it was set before.
    pub(super) fn decide(&self, outcome: u32) -> bool {
        // AcqRel: whichever side decides first, the other one sees what led to it.
        self.view().is_some_and(|v| {
            let cell = &v.slot.open.outcome;
            cell.compare_exchange(CONNECT_QUEUED, outcome, Ordering::AcqRel, Ordering::Acquire).is_ok()
        })
    }
}

impl View {
    pub(super) fn is_orphan(&self) -> bool {
        // The slot's own line comes first: it no longer changes once the connect is taken, while the link's header,
        // which `is_withdrawn` loads, changes with every connect.
        self.me == Side::Client
            && self.slot.open.outcome.load(Ordering::Acquire) == CONNECT_QUEUED
            && (self.link.is_lost() || (self.link.is_withdrawn() && !is_handing_on(self.link)))
    }
}
