//! The connect queue of a link: claiming, queueing and taking connects.

use crate::shm::Link;
use crate::shm::segment::{CONNECT_QUEUED, SERVER_PENDING};
use crate::shm::side::Side;
use crate::shm::slot_side::SlotSide;
use crate::shm::slots::{CONTROL_SLOT, Claimed, SLOTS};
use core::sync::atomic::Ordering;
use netacc_sys::cpu;

impl Link {
    /// Claims a slot for a connection (client). `None`: no slot is free, or its windows could not be mapped.
    pub fn claim(&'static self) -> Option<Claimed> {
        let seg = self.segment()?;
        let claimed =
            self.slots.claim(seg, |slot| self.endpoint(slot).is_some_and(|ep| ep.liveness.servers_gone(&ep.side)))?;
        if seg.reach(claimed.slot).is_err() {
            // The server has not seen this use of the slot, so its mark is still that of the previous use.
            self.slots.closed(claimed.slot);
            return None;
        }
        Some(claimed)
    }

    /// Queues a connect (client, under the owner's lock). False: the queue is full.
    pub fn push(&self, slot: u32) -> bool {
        self.segment().is_some_and(|s| s.push(slot, &self.seen))
    }

    /// Takes the next connect (server, under the owner's lock).
    pub fn pop(&'static self) -> Option<u32> {
        let (slot, next) = self.segment()?.pop(&self.seen, &self.batch)?;
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

    /// Whether a connect was seen that has not been taken yet. Does not check for new ones.
    pub fn seen_queued(&self) -> bool {
        self.segment().is_some_and(|s| s.known(&self.seen))
    }

    /// Whether as many connects wait as the listener allows (client, under the owner's lock).
    pub fn backlog_full(&self) -> bool {
        self.segment().is_some_and(|s| s.backlog_full(&self.seen))
    }

    /// Number of connects that the server has taken (client).
    pub fn connects_taken(&self) -> u64 {
        // Relaxed: callers only compare the number with an earlier one.
        self.segment().map_or(0, |s| s.header().popped.load(Ordering::Relaxed))
    }

    /// Stores whether several processes serve the listener: the server tells the client, or a client notes what the
    /// name of the rendezvous has told it.
    pub fn set_many(&self, many: bool) {
        if let Some(s) = self.segment() {
            s.header().many.store(many.into(), Ordering::Relaxed);
        }
    }

    /// Client: announces another link to this listener to the server.
    pub fn set_more(&self) {
        if let Some(s) = self.segment() {
            s.header().more.store(1, Ordering::SeqCst);
        }
    }

    /// Server: whether the client has announced another link by [`Link::set_more`]; true once.
    pub fn take_more(&self) -> bool {
        self.segment().is_some_and(|s| {
            s.header().more.load(Ordering::Relaxed) != 0 && s.header().more.swap(0, Ordering::SeqCst) != 0
        })
    }

    /// Client: hint whether the process at the other end sleeps until a connect comes.
    pub fn server_waits(&self) -> bool {
        let Some((seg, slot)) = self.segment().and_then(|s| Some((s, s.slot(CONTROL_SLOT)?))) else { return false };
        let Some(side) = slot.own.get(Side::Server.index()).map(|o| &o.side) else { return false };
        let watching = || {
            let n = side.subscriber.load(Ordering::Relaxed);
            n != 0 && seg.ready_set(Side::Server, n).is_some_and(netacc_ring::ReadySet::is_armed)
        };
        side.rx_waiter.load(Ordering::Relaxed) != 0 || watching()
    }

    /// Client: whether the process at the other end has left a connect waiting, and connects still wait there.
    pub fn is_stuck(&self) -> bool {
        if self.stuck.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let stuck = self.segment().is_some_and(|s| s.queued() > 0);
        if !stuck {
            self.stuck.store(0, Ordering::Relaxed);
        }
        stuck
    }

    /// Whether the server has announced that several processes serve the listener, or has not announced anything yet.
    pub fn may_be_served_by_many(&self) -> bool {
        self.segment().is_some_and(|s| {
            let h = s.header();
            h.many.load(Ordering::Relaxed) != 0 || h.server.load(Ordering::Relaxed) == SERVER_PENDING
        })
    }

    /// Whether the server has announced that several processes serve the listener.
    pub fn served_by_many(&self) -> bool {
        self.segment().is_some_and(|s| s.header().many.load(Ordering::Relaxed) != 0)
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
