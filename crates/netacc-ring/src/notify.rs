//! The decision which waiters to wake after a publication. Both functions must be called right after
//! [`crate::Producer::publish`] or [`crate::Consumer::publish`], whose full fence comes before the loads here.

use crate::sync::Ordering;
use crate::{ReadySet, SideLine};

/// The wakers to write: at most one for the subscribed ready set and one for a sleeping thread; 0 means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    /// The waker of the ready set that watches the connection.
    pub ready_set: u32,
    /// The waker of a thread that sleeps for this connection.
    pub thread: u32,
}

/// Determines the wakers after data or the end of the stream was published. `peer` is the line of the side that reads.
///
/// `ready_set` returns the shared ready set with the number that the peer claims; `None` for an impossible number.
#[inline]
pub fn notify_data<'a>(peer: &SideLine, slot: usize, ready_set: impl Fn(u32) -> Option<&'a ReadySet>) -> Ring {
    let mut ring = Ring::default();
    let subscriber = peer.subscriber.load(Ordering::SeqCst);
    if subscriber != 0 && ready_set(subscriber).is_some_and(|c| c.set(slot)) {
        ring.ready_set = subscriber;
    }
    if peer.rx_waiter.load(Ordering::SeqCst) != 0 {
        ring.thread = peer.rx_waiter.swap(0, Ordering::SeqCst);
    }
    ring
}

/// Determines the wakers after room was published. `peer` is the line of the side that writes. Does nothing unless that
/// side waits for room and `enough` returns true.
#[inline]
pub fn notify_room<'a>(
    peer: &SideLine,
    slot: usize,
    ready_set: impl Fn(u32) -> Option<&'a ReadySet>,
    enough: impl Fn() -> bool,
) -> Ring {
    let mut ring = Ring::default();
    let want = peer.want_room.load(Ordering::SeqCst) != 0;
    let waiter = peer.tx_waiter.load(Ordering::SeqCst) != 0;
    if !(want || waiter) || !enough() {
        return ring;
    }
    if want && peer.want_room.swap(0, Ordering::SeqCst) != 0 {
        let subscriber = peer.subscriber.load(Ordering::SeqCst);
        if subscriber != 0 && ready_set(subscriber).is_some_and(|c| c.set(slot)) {
            ring.ready_set = subscriber;
        }
    }
    if waiter {
        ring.thread = peer.tx_waiter.swap(0, Ordering::SeqCst);
    }
    ring
}
