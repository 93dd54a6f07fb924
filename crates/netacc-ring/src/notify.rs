//! Whom to wake after something was published. Both functions are to be called right after
//! [`crate::Producer::publish`] or [`crate::Consumer::publish`], whose full fence orders the looks here.

use crate::sync::Ordering;
use crate::{ReadySet, SideLine};

/// Wakers to ring: up to one for the subscribed ready set and one for a sleeping thread; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    /// The waker of the ready set that watches the connection.
    pub ready_set: u32,
    /// The waker of a thread that sleeps for this connection.
    pub thread: u32,
}

/// After data (or the end of data) was published: `peer` is the line of the side that reads.
///
/// `ready_set` gives the shared ready set of a number the peer claims; `None` for a number that cannot be.
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

/// After room was published: `peer` is the line of the side that writes. Nothing is done unless it waits.
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
