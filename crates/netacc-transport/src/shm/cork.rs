//! Bytes that a writer holds back (TCP_CORK of tcp(7), MSG_MORE of send(2)): they lie in the ring, and the reader is not shown
//! them yet.
//!
//! They are held for 200 ms at most, and by then the writer's program may be elsewhere. So it is the reader that sees
//! to the end of a hold. The writer says up to where it has written and until when that is held (`held` and
//! `held_until` beside what it says as a reader), marks [`HOLDING`] beside its head, and wakes a reader that sleeps.
//! That one finds nothing to read and sleeps on until then. A reader that looks later, or finds that the writer's
//! process is gone, publishes in the writer's stead.
//!
//! A side that several processes share holds nothing back, since they do not know of each other's bytes; nor does a connection
//! to another host.

use crate::shm::ShmEndpoint;
use crate::shm::endpoint::View;
use crate::shm::side::Side;
use crate::shm::side_state::{CORKED, HOLDS, MORE, SHARED, Switch, SwitchEvent};
use crate::wait::WaitSet;
use core::sync::atomic::Ordering;
use netacc_ring::HOLDING;
use netacc_sys::time;

/// How long (ns) bytes are held at most.
const CEILING: u64 = 200_000_000;

/// Number of bytes that are never held back: what a segment over loopback takes.
const SEGMENT: u64 = 65_483;

impl ShmEndpoint {
    /// TCP_CORK. The caller holds the lock for writing.
    pub fn set_cork(&self, on: bool) {
        if on {
            self.state.set(CORKED);
        } else {
            self.state.clear(CORKED);
            self.push();
        }
    }

    /// Whether the calls that follow are made with MSG_MORE. The caller holds the lock for writing.
    pub fn set_more(&self, on: bool) {
        if on {
            self.state.set(MORE);
        } else {
            self.state.clear(MORE);
        }
    }

    /// What is held back goes out. The caller holds the lock for writing.
    #[inline]
    pub fn push(&self) {
        if self.state.glance().has(HOLDS)
            && let Some(v) = self.view()
        {
            self.release(&v);
        }
    }

    /// Everything that was written is visible, and the hold is over.
    #[cold]
    pub(super) fn release(&self, v: &View) {
        let own = line!(v, producer, v.me);
        self.state.clear(HOLDS);
        self.tx.publish(own);
        // After the bytes: a reader that sees no mark sees them.
        own.fin.fetch_and(!HOLDING, Ordering::SeqCst);
        self.announce_data(v);
        if self.peer_switched(v) {
            self.on::<Switch>(SwitchEvent::PeerLeaves);
        }
    }

    /// `n` bytes were copied in, of a call that is done (`whole`) or has found no more room: are they shown or held back?
    #[cold]
    pub(super) fn hold(&self, v: &View, n: usize, whole: bool) {
        let state = self.state.glance();
        if !whole || !state.has(CORKED | MORE) || state.has(SHARED) || state.is_left() || self.is_remote() {
            return self.release(v);
        }
        let (own, said) = (line!(v, producer, v.me), line!(v, consumer, v.me));
        let pos = self.tx.position();
        let over = state.has(HOLDS) && time::now() >= said.held_until.load(Ordering::Relaxed);
        // Of a hold that is over the bytes go out, and those of this call are held anew.
        let before = if over { pos.saturating_sub(n as u64) } else { 0 };
        let head = own.head.load(Ordering::Relaxed).max(before);
        let full = pos.saturating_sub(head) / SEGMENT * SEGMENT;
        if full > 0 || over {
            // The reader may have published as much, at the end of a hold. SeqCst: as by `publish`.
            own.head.fetch_max(head + full, Ordering::SeqCst);
        } else if state.has(HOLDS) {
            // SeqCst: a reader whose last look was before this sees the end of the hold in its sleep, or it has passed
            // here too.
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
        // SeqCst: publishes what was said, and is the fence before the look at the reader's registration.
        own.fin.fetch_or(HOLDING, Ordering::SeqCst);
        self.state.set(HOLDS);
        self.announce_data(v);
    }

    /// Whether the peer holds bytes back.
    #[inline]
    pub(super) fn is_held(&self, v: &View) -> bool {
        line!(v, producer, v.me.other()).fin.load(Ordering::Acquire) & HOLDING != 0
    }

    /// Whether a look is due at a time that nobody tells: the peer holds bytes back, or the connect is pending.
    pub fn is_held_back(&self) -> bool {
        // A connect that was pending when it was looked at last is looked at, whatever it is now.
        self.view().is_some_and(|v| self.is_held(&v)) || self.state.glance().is_pending()
    }

    /// When ([`time::now`]) to look again for what nobody tells: the end of the peer's hold, if that has not come, or
    /// of a pending connect.
    #[inline]
    pub fn held_until(&self) -> Option<u64> {
        let v = self.view()?;
        if self.is_pending() {
            return Some(ShmEndpoint::next_look());
        }
        if self.is_held(&v) { self.left_of_hold(&v) } else { None }
    }

    #[cold]
    fn left_of_hold(&self, v: &View) -> Option<u64> {
        let until = line!(v, consumer, v.me.other()).held_until.load(Ordering::Relaxed);
        // A peer may say what it likes, and then holds nothing back.
        let left = until.saturating_sub(time::now());
        ((1..=CEILING).contains(&left) && !self.peer_died(v)).then_some(until)
    }

    /// Up to where the peer's bytes may be read by now: where a hold is over, further than its head says.
    #[inline]
    pub(super) fn visible(&self, v: &View) -> u64 {
        let head = line!(v, producer, v.me.other()).head.load(Ordering::Acquire);
        if self.is_held(v) { head.max(self.held_to(v)) } else { head }
    }

    #[cold]
    fn held_to(&self, v: &View) -> u64 {
        if self.left_of_hold(v).is_some() { 0 } else { line!(v, consumer, v.me.other()).held.load(Ordering::Acquire) }
    }

    /// Bytes whose hold is over and that are not published.
    #[inline]
    pub(super) fn overdue(&self, v: &View) -> u64 {
        if !self.is_held(v) {
            return 0;
        }
        self.visible(v).saturating_sub(line!(v, producer, v.me.other()).head.load(Ordering::Acquire))
    }

    /// Publishes them. True: there were some. The caller holds the lock for reading, so that the connection is this one.
    #[cold]
    pub(super) fn take_overdue(&self, v: &View) -> bool {
        let own = line!(v, producer, v.me.other());
        let head = own.head.load(Ordering::Acquire);
        let to = self.visible(v);
        // The writer's own publication is never behind this one; if it came first there is nothing to do.
        to > head && own.head.compare_exchange(head, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// A hold does not matter any more, since this side leaves the ring.
    pub(super) fn end_hold(&self, v: &View) {
        if self.is_held(v) {
            let to = line!(v, consumer, v.me.other()).held.load(Ordering::Acquire);
            line!(v, producer, v.me.other()).head.fetch_max(to, Ordering::SeqCst);
        }
    }

    /// Makes a sleep that waits for bytes end when the hold does.
    #[inline]
    pub(super) fn bound_by_hold(&self, v: &View, set: &mut WaitSet) {
        if self.is_held(v)
            && let Some(until) = self.left_of_hold(v)
        {
            set.wake_at(until);
        }
    }
}
