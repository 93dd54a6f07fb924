//! The connect queue of a link: claiming, queueing and taking connects.

use crate::shm::Link;
use crate::shm::segment::{BATCH, CONNECT_QUEUED, Segment, ServedBy};
use crate::shm::server_state::ServerState;
use crate::shm::side::Side;
use crate::shm::slot_side::SlotSide;
use crate::shm::slots::{CONTROL_SLOT, Claimed, SLOTS};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use netacc_sys::{SharedCell, cpu};

/// What this side of a link knows of the connect queue. It is used under the owner's lock.
#[derive(Debug)]
pub struct ConnectQueue {
    /// The last position of the other side that this side has loaded. The shared position is loaded only when it
    /// matters, since each load takes the cache line away from the other side.
    seen: AtomicU64,
    /// The entries up to `seen`, which are read at once to spare the client's cache line (server side).
    batch: [AtomicU32; BATCH],
    /// Position up to which the client had queued connects when the server last counted the connections in the kernel's
    /// queue of the listener, or took the link up (server side).
    pub filled_at_count: SharedCell<u64>,
    /// Position up to which the client had queued connects when an operator switched the server's process off (server
    /// side).
    pub filled_when_off: AtomicU64,
    /// Set when the server did not accept a connect that waited here (client side); see [`ConnectQueue::is_stuck`].
    pub stuck: AtomicU32,
}

impl ConnectQueue {
    /// Begins with an empty queue.
    pub(super) fn begin(&self) {
        self.stuck.store(0, Ordering::Relaxed);
        self.filled_at_count.set(0);
        self.filled_when_off.store(0, Ordering::Relaxed);
        self.seen.store(0, Ordering::Relaxed);
    }

    /// Queues a connect (client). False: the queue is full.
    pub(super) fn push(&self, seg: Segment, slot: u32) -> bool {
        seg.push(slot, &self.seen)
    }

    /// Takes the next connect, and says which one comes after it if that is known (server).
    fn pop(&self, seg: Segment) -> Option<(u32, Option<u32>)> {
        seg.pop(&self.seen, &self.batch)
    }

    /// Whether a connect was seen that has not been taken yet. Does not check for new ones.
    pub fn seen_queued(&self, seg: Segment) -> bool {
        seg.known(&self.seen)
    }

    /// Whether as many connects wait as the listener allows (client).
    pub fn is_full(&self, seg: Segment) -> bool {
        seg.backlog_full(&self.seen)
    }

    /// Number of connects that wait (client): exact, or else at least as many.
    pub fn waiting(&self, seg: Segment, exact: bool) -> u64 {
        seg.waiting(if exact { 0 } else { u64::MAX }, &self.seen)
    }

    /// Client: whether the process at the other end has left a connect waiting, and connects still wait there.
    pub fn is_stuck(&self, seg: Option<Segment>) -> bool {
        if self.stuck.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let stuck = seg.is_some_and(|s| s.queued() > 0);
        if !stuck {
            self.stuck.store(0, Ordering::Relaxed);
        }
        stuck
    }
}

impl Segment {
    /// Number of connects that the server has taken (client).
    pub fn connects_taken(self) -> u64 {
        // Relaxed: callers only compare the number with an earlier one.
        self.header().popped.load(Ordering::Relaxed)
    }

    /// Stores how many processes serve the listener: the server tells the client, or a client notes what the name of the
    /// rendezvous has told it.
    pub fn set_served_by(self, by: ServedBy) {
        // Relaxed: the word stands for itself.
        self.header().many.store(by as u32, Ordering::Relaxed);
    }

    /// How many processes serve the listener, as the server has said.
    pub fn served_by(self) -> ServedBy {
        match self.header().many.load(Ordering::Relaxed) {
            0 => ServedBy::One,
            2 => ServedBy::Acceptors,
            3 => ServedBy::Forked,
            _ => ServedBy::Several,
        }
    }

    /// Whether a connect may be left waiting that was queued while nobody waited for it: its process has been taken up, and
    /// serves a connection for any time after each accept(2). A process that takes the link up later looks at the queue.
    pub fn may_be_left(self) -> bool {
        self.served_by() == ServedBy::Acceptors && self.server() == ServerState::Open
    }

    /// Time (ns) for which the first connect in the queue has waited; `None`: none waits (client).
    pub fn front_age(self, now: u64) -> Option<u64> {
        self.front_time().map(|when| now.saturating_sub(when))
    }

    /// Whether the next connect comes from a client on another host (server).
    pub fn front_is_remote(self) -> bool {
        self.front().flatten().is_some_and(|open| open.remote_engine() != 0)
    }

    /// Whether the server has announced that several processes serve the listener.
    pub fn served_by_many(self) -> bool {
        self.served_by() != ServedBy::One
    }

    /// Whether the server has announced that several processes serve the listener, or has not announced anything yet.
    pub fn may_be_served_by_many(self) -> bool {
        self.served_by_many() || self.server() == ServerState::Pending
    }

    /// Client: announces another link to this listener to the server.
    pub fn set_more(self) {
        self.header().more.store(1, Ordering::SeqCst);
    }

    /// Server: whether the client has announced another link by [`Segment::set_more`]; true once.
    pub fn take_more(self) -> bool {
        let more = &self.header().more;
        more.load(Ordering::Relaxed) != 0 && more.swap(0, Ordering::SeqCst) != 0
    }

    /// Client: hint whether the process at the other end sleeps until a connect comes.
    pub fn server_waits(self) -> bool {
        let Some(side) = self.slot(CONTROL_SLOT).and_then(|slot| slot.own.get(Side::Server.index())).map(|o| &o.side)
        else {
            return false;
        };
        let watching = || {
            let n = side.subscriber.load(Ordering::Relaxed);
            n != 0 && self.ready_set(Side::Server, n).is_some_and(netacc_ring::ReadySet::is_armed)
        };
        side.rx_waiter.load(Ordering::Relaxed) != 0 || watching()
    }
}

impl Link {
    /// Claims a slot for a connection (client). `None`: no slot is free, or its windows could not be mapped.
    pub fn claim(&'static self) -> Option<Claimed> {
        let seg = self.segment()?;
        let ended = |slot| self.endpoint(slot).is_some_and(|ep| ep.liveness.servers_gone(&ep.side));
        let claimed = self.slots.claim(seg, ended)?;
        if seg.reach(claimed.slot).is_err() {
            // The server has not seen this use of the slot, so its mark is still that of the previous use.
            self.slots.closed(claimed.slot);
            return None;
        }
        Some(claimed)
    }

    /// Takes the next connect (server, under the owner's lock).
    pub fn pop(&'static self) -> Option<u32> {
        let (slot, next) = self.queue.pop(self.segment()?)?;
        // Prefetches the words of the next connect while this one is handled.
        if let Some(ep) = next.and_then(|n| self.endpoint(n as usize)) {
            cpu::prefetch(ep);
        }
        Some(slot)
    }

    /// Whether a connect waits (server, under the owner's lock). Withdrawn ones are removed from the front.
    pub fn has_queued(&'static self) -> bool {
        let Some(seg) = self.segment() else { return false };
        // The number of steps is limited, since a client may keep queueing connects.
        for _ in 0..SLOTS {
            if !seg.front_is_withdrawn() {
                break;
            }
            let Some(slot) = self.pop() else { break };
            if let (Some(ep), Some(s)) = (self.endpoint(slot as usize), seg.slot(slot as usize))
                && slot != 0
                && !ep.side.is_live()
            {
                ep.side.never_mind(s.open.generation.load(Ordering::Relaxed));
            }
        }
        seg.queued() > 0
    }
}

impl SlotSide {
    /// Server: takes [`SlotSide::take`] back for a connect that has not begun here, so that its client may withdraw
    /// it.
    pub fn untake(&self) {
        if let Some(v) = self.view() {
            // Release: pairs with the client's Acquire load of the outcome.
            v.slot.open.outcome.store(CONNECT_QUEUED, Ordering::Release);
        }
    }
}
