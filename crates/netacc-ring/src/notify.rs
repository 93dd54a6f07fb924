//! Whom to wake after something was published. Both functions are to be called right after
//! [`crate::Producer::publish`] or [`crate::Consumer::publish`], whose full fence orders the looks here.

use crate::sync::Ordering;
use crate::{Channel, SideLine};

/// Doorbells to ring: up to one for the watching channel and one for a sleeping thread; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    /// The doorbell of the channel that watches the connection.
    pub channel: u32,
    /// The doorbell of a thread that sleeps for this connection.
    pub thread: u32,
}

/// After data (or the end of data) was published: `peer` is the line of the side that reads.
///
/// `channel` gives the shared channel of a number the peer claims; `None` for a number that cannot be.
#[inline]
pub fn notify_data<'a>(peer: &SideLine, slot: usize, channel: impl Fn(u32) -> Option<&'a Channel>) -> Ring {
    let mut ring = Ring::default();
    let watch = peer.watch.load(Ordering::SeqCst);
    if watch != 0 && channel(watch).is_some_and(|c| c.mark(slot)) {
        ring.channel = watch;
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
    channel: impl Fn(u32) -> Option<&'a Channel>,
    enough: impl Fn() -> bool,
) -> Ring {
    let mut ring = Ring::default();
    let want = peer.want_room.load(Ordering::SeqCst) != 0;
    let waiter = peer.tx_waiter.load(Ordering::SeqCst) != 0;
    if !(want || waiter) || !enough() {
        return ring;
    }
    if want && peer.want_room.swap(0, Ordering::SeqCst) != 0 {
        let watch = peer.watch.load(Ordering::SeqCst);
        if watch != 0 && channel(watch).is_some_and(|c| c.mark(slot)) {
            ring.channel = watch;
        }
    }
    if waiter {
        ring.thread = peer.tx_waiter.swap(0, Ordering::SeqCst);
    }
    ring
}
