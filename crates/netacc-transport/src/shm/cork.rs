//! Bytes that a writer holds back (TCP_CORK of tcp(7), MSG_MORE of send(2)): they are in the ring, but not published to
//! the reader yet.
//!
//! They are held for at most 200 ms, after which the writer's program may be busy elsewhere. So the reader ends a hold.
//! The writer stores the position up to which it has written and the time until which these bytes are held (`held` and
//! `held_until` in its consumer line), sets [`HOLDING`] beside its head, and wakes a sleeping reader, which finds
//! nothing to read and sleeps until that time. A reader that checks later, or finds that the writer's process has
//! ended, publishes the bytes on the writer's behalf.
//!
//! A side that several processes share holds no bytes back, since a sharer does not know the others' bytes. On a
//! connection to another host no bytes are held back either.

use crate::shm::ShmEndpoint;
use crate::shm::queued_connect::QueuedConnect;
use crate::shm::side::Side;
use crate::shm::side_machines::{CORKED, HOLDS, MORE, SHARED, Switch, SwitchEvent};
use crate::shm::slot_side::{SlotSide, View};
use crate::wait::WaitSet;
use core::sync::atomic::Ordering;
use netacc_ring::HOLDING;
use netacc_sys::time;

/// Longest time (ns) for which bytes are held.
const CEILING: u64 = 200_000_000;

/// Number of bytes that are published at once although more may follow: those of a full segment over loopback.
const SEGMENT: u64 = 65_483;

impl SlotSide {
    /// Notes whether the following writes have MSG_MORE. The caller holds the `tx` lock.
    pub fn set_more(&self, on: bool) {
        if on {
            self.state.set(MORE);
        } else {
            self.state.clear(MORE);
        }
    }
}

impl View {
    /// Whether the peer holds bytes back.
    #[inline]
    pub(super) fn is_held(&self) -> bool {
        line!(self, producer, self.me.other()).fin.load(Ordering::Acquire) & HOLDING != 0
    }

    /// Ends the peer's hold, since this side leaves the ring.
    pub(super) fn end_hold(&self) {
        if self.is_held() {
            let to = line!(self, consumer, self.me.other()).held.load(Ordering::Acquire);
            line!(self, producer, self.me.other()).head.fetch_max(to, Ordering::SeqCst);
        }
    }
}

impl ShmEndpoint {
    /// Sets TCP_CORK. The caller holds the `tx` lock.
    pub fn set_cork(&self, on: bool) {
        if on {
            self.side.state.set(CORKED);
        } else {
            self.side.state.clear(CORKED);
            self.push();
        }
    }

    /// Publishes the bytes that are held back. The caller holds the `tx` lock.
    #[inline]
    pub fn push(&self) {
        if self.side.state.glance().has(HOLDS)
            && let Some(v) = self.side.view()
        {
            self.release(&v);
        }
    }

    /// Publishes all written bytes and ends the hold.
    #[cold]
    pub(super) fn release(&self, v: &View) {
        let own = line!(v, producer, v.me);
        self.side.state.clear(HOLDS);
        self.rings.tx.publish(own);
        // Cleared after the publication: a reader that does not see the mark sees the bytes.
        own.fin.fetch_and(!HOLDING, Ordering::SeqCst);
        self.announce_data(v);
        if v.peer_switched(&self.passed) {
            self.side.on::<Switch>(SwitchEvent::PeerLeaves);
        }
    }

    /// Publishes or holds back `n` bytes that were copied in, of a call that is complete (`whole`) or has found no more
    /// room.
    #[cold]
    pub(super) fn hold(&self, v: &View, n: usize, whole: bool) {
        let state = self.side.state.glance();
        if !whole || !state.has(CORKED | MORE) || state.has(SHARED) || state.is_left() || self.side.is_remote() {
            return self.release(v);
        }
        let (own, said) = (line!(v, producer, v.me), line!(v, consumer, v.me));
        let pos = self.rings.tx.position();
        let over = state.has(HOLDS) && time::now() >= said.held_until.load(Ordering::Relaxed);
        // The bytes of a hold that has expired are published, and a new hold begins for those of this call.
        let before = if over { pos.saturating_sub(n as u64) } else { 0 };
        let head = own.head.load(Ordering::Relaxed).max(before);
        let full = pos.saturating_sub(head) / SEGMENT * SEGMENT;
        if full > 0 || over {
            // The reader may have published the same bytes, at the end of a hold. SeqCst: see `Producer::publish`.
            own.head.fetch_max(head + full, Ordering::SeqCst);
        } else if state.has(HOLDS) {
            // SeqCst: a reader that checked before this sleeps until the end of the hold, or that end has passed here
            // too.
            said.held.store(pos, Ordering::SeqCst);
            if time::now() >= said.held_until.load(Ordering::Relaxed) {
                self.release(v);
            }
            return;
        }
        if head + full == pos {
            return self.release(v);
        }
        said.held_until.store(time::now().saturating_add(CEILING), Ordering::Relaxed);
        said.held.store(pos, Ordering::Relaxed);
        // SeqCst: publishes the two words, and is the fence before the load of the reader's registration.
        own.fin.fetch_or(HOLDING, Ordering::SeqCst);
        self.side.state.set(HOLDS);
        self.announce_data(v);
    }

    /// Whether the connection has to be checked at a later time without a wake-up: the peer holds bytes back, or the
    /// connect is pending.
    pub fn is_held_back(&self) -> bool {
        // A connect that was pending at the last check is checked, whatever its state is now.
        self.side.view().is_some_and(|v| v.is_held()) || self.side.state.glance().is_pending()
    }

    /// Time ([`time::now`]) of the next check without a wake-up: the end of the peer's hold, or the next check of a
    /// pending connect.
    #[inline]
    pub fn held_until(&self) -> Option<u64> {
        let v = self.side.view()?;
        if self.is_pending() {
            return Some(QueuedConnect::next_look());
        }
        if v.is_held() { self.left_of_hold(&v) } else { None }
    }

    #[cold]
    fn left_of_hold(&self, v: &View) -> Option<u64> {
        let until = line!(v, consumer, v.me.other()).held_until.load(Ordering::Relaxed);
        // A peer may store any time; one that is too far ahead is treated as expired.
        let left = until.saturating_sub(time::now());
        ((1..=CEILING).contains(&left) && !self.peer_died(v)).then_some(until)
    }

    /// Position up to which the peer's bytes may be read now: beyond its head if a hold has expired.
    #[inline]
    pub(super) fn visible(&self, v: &View) -> u64 {
        let head = line!(v, producer, v.me.other()).head.load(Ordering::Acquire);
        if v.is_held() { head.max(self.held_to(v)) } else { head }
    }

    #[cold]
    fn held_to(&self, v: &View) -> u64 {
        if self.left_of_hold(v).is_some() { 0 } else { line!(v, consumer, v.me.other()).held.load(Ordering::Acquire) }
    }

    /// Number of bytes whose hold has expired and that are not published.
    #[inline]
    pub(super) fn overdue(&self, v: &View) -> u64 {
        if !v.is_held() {
            return 0;
        }
        self.visible(v).saturating_sub(line!(v, producer, v.me.other()).head.load(Ordering::Acquire))
    }

    /// Publishes the bytes of an expired hold. True: there were some. The caller holds the `rx` lock, so that the slot
    /// keeps its connection.
    #[cold]
    pub(super) fn take_overdue(&self, v: &View) -> bool {
        let own = line!(v, producer, v.me.other());
        let head = own.head.load(Ordering::Acquire);
        let to = self.visible(v);
        // The writer's own publication is never behind this one; if it came first, nothing has to be done.
        to > head && own.head.compare_exchange(head, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Limits a sleep that waits for bytes to the end of the hold.
    #[inline]
    pub(super) fn bound_by_hold(&self, v: &View, set: &mut WaitSet) {
        if v.is_held()
            && let Some(until) = self.left_of_hold(v)
        {
            set.wake_at(until);
        }
    }
}
