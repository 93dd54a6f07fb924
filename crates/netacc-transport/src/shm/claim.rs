//! Claiming and queueing a slot at a client, and taking it from the queue at the server.

use crate::Endpoint;
use crate::num;
use crate::shm::segment::{CONNECT_REFUSED, Segment};
use crate::shm::slot_side::SlotSide;
use crate::shm::slots::{CONTROL_SLOT, Claimed};
use crate::shm::{Link, ShmEndpoint};
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use netacc_stats::{Reason, page};
use netacc_sys::Guard;
use netacc_sys::errno::Errno;

/// A claimed slot on a link, which the caller fills in and [queues](Claim::push) under the lock that orders connects.
#[derive(Debug)]
pub struct Claim {
    /// The link that the slot is on.
    pub link: &'static Link,
    /// The claimed slot and its generation.
    pub claimed: Claimed,
    /// Whether the listener's queue is full, so that the connect is pending.
    pub pending: bool,
    /// Guard of the lock that keeps the order of connects on the link.
    pub order: Guard<'static>,
}

/// What came of a connect that was to be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// The server takes it.
    Queued,
    /// It is in the queue of a process that was not waiting for connects and may be serving a connection for any time, while
    /// others wait. The client withdraws it and goes elsewhere.
    Left,
    /// The queue was full, and the connect is not in it.
    Full,
}

impl Claim {
    /// Begins the connection of the slot, between these addresses of the client and of the server.
    pub fn begin(&self, local: SocketAddr, target: SocketAddr) -> Result<&'static ShmEndpoint, Reason> {
        let Some(ep) = self.link.endpoint(self.claimed.slot).filter(|ep| ep.begin(self.claimed.generation)) else {
            // The endpoint is in use although its slot was free, which is inconsistent. Its user will close it, and the
            // slot is never claimed again.
            self.link.slots.burned();
            return Err(Reason::NoMemory);
        };
        if let Some(sl) = self.link.segment().and_then(|seg| seg.slot(self.claimed.slot)) {
            sl.open.write(local, target);
        }
        Ok(ep)
    }

    /// Queues the connect and wakes the server.
    pub fn push(self) -> Pushed {
        let Claim { link, claimed, pending, order } = self;
        if pending && let Some(ep) = link.endpoint(claimed.slot) {
            ep.connect.begin_pending(&ep.side);
        }
        let pushed = link.segment().is_some_and(|s| link.queue.push(s, num::small(claimed.slot)));
        drop(order);
        if !pushed {
            return Pushed::Full;
        }
        let heard = link.endpoint(CONTROL_SLOT).is_some_and(ShmEndpoint::announce);
        let left = !heard && link.segment().is_some_and(Segment::may_be_left);
        if left { Pushed::Left } else { Pushed::Queued }
    }
}

/// Takes a queued connect and begins the server's side of its slot. `None`: the client has withdrawn it, or it cannot
/// begin here. A client that names an impossible slot, or one that is in use, loses its link.
pub fn take_slot(link: &'static Link, slot: u32) -> Option<&'static ShmEndpoint> {
    begin_slot(link, slot, SlotSide::take)
}

/// Takes a queued connect at the end of its listener, and resets it. Its client was never connected, and must not count it as
/// established before it sees the reset.
pub fn refuse_slot(link: &'static Link, slot: u32) {
    if let Some(ep) = begin_slot(link, slot, |side| side.decide(CONNECT_REFUSED)) {
        ep.close(true);
    }
}

fn begin_slot(link: &'static Link, slot: u32, decide: fn(&SlotSide) -> bool) -> Option<&'static ShmEndpoint> {
    let ep = link.endpoint(slot as usize).filter(|e| slot != 0 && !e.side.is_live());
    let generation =
        link.segment().and_then(|s| s.slot(slot as usize)).map(|s| s.open.generation.load(Ordering::Relaxed));
    match (ep, generation) {
        (Some(ep), Some(_)) if !ep.side.has_windows() => {
            // No byte of it has been read, so the client makes the connect again, by TCP if it cannot get another link
            // either.
            page().fallback(Reason::NoMemory);
            link.refuse_connects();
            ep.stir_peer();
            None
        }
        (Some(ep), Some(generation)) => {
            if !decide(&ep.side) {
                ep.side.never_mind(generation);
                return None;
            }
            ep.begin(generation).then_some(ep)
        }
        _ => {
            link.expel();
            None
        }
    }
}

/// The reason that is reported when there is no segment for a link.
pub fn segment_lacks(e: Errno) -> Reason {
    if e == Errno(libc::EFBIG) { Reason::FileSize } else { Reason::NoMemory }
}
