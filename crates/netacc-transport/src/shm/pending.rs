//! Connects that are pending because the listener's backlog is full.
//!
//! In the kernel a connect for which the listener's queue has no room is not established: its program sees it pending
//! (`EINPROGRESS`, not writable) until the server has accepted others. Here it is queued nevertheless, so that it is
//! accepted in order whatever the client is doing then, and the client determines how many connects are still before
//! it.

use crate::shm::queued_connect::QueuedConnect;
use crate::shm::segment::{CONNECT_QUEUED, CONNECT_TAKEN};
use crate::shm::server_state::ServerState;
use crate::shm::side_machines::{Life, LifeEvent};
use crate::shm::slot_side::{SlotSide, View};
use crate::shm::{Link, ShmEndpoint, registry};
use core::sync::atomic::Ordering;
use netacc_sys::time;

/// Interval (ns) at which a client checks whether there is room in the queue, since no wake-up comes for that.
const STEP: u64 = 1_000_000;

/// The connects of this client that wait at one listener, on all of its links there: a link has fewer slots than a backlog
/// may allow.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    /// Number of connects that were ever queued, and of those that the server has taken.
    pushed: u64,
    popped: u64,
    /// Number of links, and the number of the newest.
    links: u32,
    newest: u32,
}

impl Waiting {
    /// Counts on the links to the listener of `link` with numbers up to `newest`.
    fn at_listener(link: &'static Link, newest: u32) -> Waiting {
        let mut waiting = Waiting::default();
        for l in registry::to_listener_of(link).filter(|l| l.id() <= newest) {
            let Some(h) = l.segment().map(|seg| seg.header()) else { continue };
            // The server's position comes first: it is never past the client's that is loaded after it.
            let popped = h.popped.load(Ordering::Acquire);
            waiting.pushed = waiting.pushed.wrapping_add(h.pushed.load(Ordering::Acquire));
            waiting.popped = waiting.popped.wrapping_add(popped);
            waiting.links += 1;
            waiting.newest = waiting.newest.max(l.id());
        }
        waiting
    }
}

impl QueuedConnect {
    /// Marks a connect that is about to be queued as pending. Called under the lock that orders connects.
    pub(super) fn begin_pending(&self, side: &SlotSide) {
        if let Some(v) = side.view() {
            // Relaxed: `pushed` is only written under the lock that the caller holds.
            self.queued_at.set(v.seg.header().pushed.load(Ordering::Relaxed));
            let before = Waiting::at_listener(v.link, u32::MAX);
            self.queued_in_all.set(before.pushed);
            self.links.store(before.links, Ordering::Relaxed);
            self.newest.store(before.newest, Ordering::Relaxed);
            side.on::<Life>(LifeEvent::FindNoRoom);
        }
    }

    /// Whether the connect is not established: it is in the queue, and before it are as many others as the backlog allows;
    /// or a thread here has withdrawn it, and is about to give the socket another path; or it ends with its listener, and the
    /// reset follows.
    fn waits_for_room(&self, v: &View) -> bool {
        match v.slot.open.outcome.load(Ordering::Acquire) {
            CONNECT_TAKEN => false,
            CONNECT_QUEUED => !self.has_room(v),
            _ => true,
        }
    }

    /// Whether fewer connects than the backlog allows are before one that is in the queue.
    fn has_room(&self, v: &View) -> bool {
        let h = v.seg.header();
        let (popped, at) = (h.popped.load(Ordering::Acquire), self.queued_at.get());
        let limit = u64::from(h.backlog.load(Ordering::Relaxed));
        let before = self.before_on_all(v).unwrap_or_else(|| at.saturating_sub(popped));
        // Connects before it that the server has accepted, or that their clients have withdrawn, make room for this one.
        // Those that a listener takes at its end make none: it stores its state before it takes them.
        (before < limit || before - v.seg.withdrawn_between(popped, at).min(before) < limit)
            && v.seg.server() != ServerState::Closed
    }

    /// Number of connects that wait before it if there were several links to the listener; `None`: there was one, or one
    /// of them has ended since.
    fn before_on_all(&self, v: &View) -> Option<u64> {
        let links = self.links.load(Ordering::Relaxed);
        if links < 2 {
            return None;
        }
        let now = Waiting::at_listener(v.link, self.newest.load(Ordering::Relaxed));
        let at = self.queued_in_all.get();
        (now.links == links).then(|| at.saturating_sub(now.popped))
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
        // A listener that ends takes the connects that wait there and resets them. Such a connect was never established, so
        // the reset is looked for before the connect counts as established.
        if !waits && !self.observe(v).is_dead() && self.side.on::<Life>(LifeEvent::Establish).is_pending() {
            // This wakes threads that wait until the socket is writable, edge-triggered ones too.
            self.room_came();
        }
        waits
    }
}
