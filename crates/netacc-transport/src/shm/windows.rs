//! The memory of a connection's windows: when they open, and when their pages go back to the system.

use crate::num;
use crate::shm::ShmEndpoint;
use crate::shm::budget::{self, Peer};
use crate::shm::side::Side;
use crate::shm::slot_side::View;
use crate::timeouts;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use netacc_ring::{LARGE, SMALL, STEP, Violation};
use netacc_stats::{Counter, page};
use netacc_sys::{SharedCell, time};

/// What a young connection that ends may leave in its large windows (bytes), as long as those of the process have no more
/// in all: connections that come and go use the same few slots again and again.
const LEFT: u64 = 1 << 20;

/// What this process has charged to its budget for one connection.
#[derive(Debug)]
pub(super) struct WindowCharge {
    /// The process that has counted the connection ([`budget::process`]); 0: none.
    counted: AtomicU32,
    /// Number of bytes of the large window that are charged.
    open: AtomicU32,
    /// Number of bytes that are charged because a thread was told that a write finds room, and that the next write opens.
    promised: AtomicU32,
    /// Position of the writer at the last visit of [`give_back_if_idle`], and when it was first seen there ([`time::now`]).
    seen: AtomicU64,
    seen_at: SharedCell<u64>,
}

/// To be called when this side closes a connection: gives the pages of the windows that nobody accesses any more back to the
/// system. That is our own large one if the peer has read everything, and all if the peer has closed the connection.
pub(super) fn give_back_windows(ep: &ShmEndpoint, v: &View) {
    const LASTING: u64 = time::ns(timeouts::LASTING_CONNECTION);
    let age = time::coarse().saturating_sub(ep.side.began.get());
    // The windows of a connection to another host are registered with a device. Other sharers may go on with a connection.
    if ep.side.is_remote() || !ep.liveness.has_none() || (age < LASTING && budget::large() <= LEFT) {
        return;
    }
    let released = v.peer_released();
    let may_go = |producer: Side| {
        // Relaxed: a hint. A direction that has carried little has never had its large window.
        let was_large = line!(v, producer, producer).head.load(Ordering::Relaxed) > SMALL as u64;
        was_large && (released || (producer == v.me && ep.rings.peer_left_unread(&ep.side, v) == Some(0)))
    };
    for producer in [Side::Client, Side::Server].into_iter().filter(|producer| may_go(*producer)) {
        v.seg.drop_large(v.index, producer);
    }
    if released && age >= LASTING {
        v.seg.drop_small(v.index);
    }
}

impl WindowCharge {
    fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed) as usize
    }

    /// Sets what is open, and returns what was.
    fn set_open(&self, bytes: usize) -> usize {
        self.open.swap(u32::try_from(bytes).unwrap_or(u32::MAX), Ordering::Relaxed) as usize
    }

    /// Takes what was promised, and returns how many bytes it is.
    fn take_promise(&self) -> usize {
        // Most connections have none. Relaxed: the number orders nothing.
        if self.promised.load(Ordering::Relaxed) == 0 { 0 } else { self.promised.swap(0, Ordering::Relaxed) as usize }
    }
}

fn peer(ep: &ShmEndpoint) -> Peer {
    if ep.side.link().peer.is_trusted() { Peer::Trusted } else { Peer::Stranger }
}

/// Begins to count the windows of a connection, which has only the small ones.
pub(super) fn begin(ep: &ShmEndpoint) {
    end(ep);
    ep.charge.seen.store(0, Ordering::Relaxed);
    ep.charge.seen_at.set(0);
    ep.charge.counted.store(budget::process(), Ordering::Relaxed);
    budget::connection_begins();
}

/// Ends the counting for a connection that this process closes or leaves.
pub(super) fn end(ep: &ShmEndpoint) {
    let open = ep.charge.set_open(0) + ep.charge.take_promise();
    if ep.charge.counted.swap(0, Ordering::Relaxed) == budget::process() {
        budget::connection_ended(peer(ep), open);
    }
}

/// In the child of a fork: counts a connection that it has with its parent, once for all of its numbers. Its windows are
/// charged to both, since either may go on with them.
pub fn recount(ep: &ShmEndpoint) {
    let me = budget::process();
    if ![0, me].contains(&ep.charge.counted.load(Ordering::Relaxed)) {
        ep.charge.counted.store(me, Ordering::Relaxed);
        budget::connection_begins();
        budget::take(peer(ep), ep.charge.open() + ep.charge.promised.load(Ordering::Relaxed) as usize);
    }
}

/// Makes room for a message of `want` bytes, as far as there is memory. Called under the writer's lock.
#[inline]
pub(super) fn prepare(ep: &ShmEndpoint, v: &View, want: usize) -> Result<(), Violation> {
    let (own, peer) = (line!(v, producer, v.me), line!(v, consumer, v.me.other()));
    ep.rings.tx.prepare(own, peer, want, |extent| open(ep, extent))?;
    if ep.side.state.glance().is_shared() {
        settle(ep);
    }
    Ok(())
}

/// Opens the large window to the extent `wanted` (bytes), as far as there is memory. The windows of a connection to
/// another host are registered as a whole, and processes that share a side do not know how far the others have opened
/// it.
#[cold]
fn open(ep: &ShmEndpoint, wanted: usize) -> usize {
    if ep.side.is_remote() || ep.side.is_shared() {
        return LARGE;
    }
    let charged = ep.charge.open() + ep.charge.take_promise();
    let extent = if wanted > charged { budget::extend(peer(ep), charged, wanted) } else { charged };
    ep.charge.set_open(extent);
    extent
}

/// Charges what another sharer of this side has opened.
#[cold]
pub(super) fn settle(ep: &ShmEndpoint) {
    let extent = ep.rings.tx.extent();
    let charged = ep.charge.set_open(extent);
    if extent >= charged {
        budget::take(peer(ep), extent - charged);
    } else {
        budget::closed(peer(ep), charged - extent);
    }
}

/// Whether a write would find room.
#[inline]
pub(super) fn has_room(ep: &ShmEndpoint, v: &View) -> bool {
    ep.rings.has_room(&ep.side, v, || ep.side.is_remote() || is_promised(ep))
}

/// Whether there is memory for a further step of the large window. It is charged from here on, so that what poll(2) has
/// promised for one connection is not given to another one before the program writes.
#[cold]
fn is_promised(ep: &ShmEndpoint) -> bool {
    if ep.charge.promised.load(Ordering::Relaxed) != 0 {
        return true;
    }
    let promised = budget::may_extend(peer(ep), ep.charge.open());
    if promised {
        budget::take(peer(ep), STEP);
        let first =
            ep.charge.promised.compare_exchange(0, const { num::constant(STEP) }, Ordering::Relaxed, Ordering::Relaxed);
        // Another thread may have promised it, or the connection has ended and nobody would take it back.
        if first.is_err() {
            budget::closed(peer(ep), STEP);
        } else if ep.charge.counted.load(Ordering::Relaxed) != budget::process() {
            budget::closed(peer(ep), ep.charge.take_promise());
        }
    }
    promised
}

/// Takes a promise back that no write needs any more, since the reader has made room. Called under the writer's lock.
fn take_back_promise(ep: &ShmEndpoint, v: &View) {
    if ep.rings.has_room(&ep.side, v, || false) {
        budget::closed(peer(ep), ep.charge.take_promise());
    }
}

/// Gives the pages of the large window back if no byte is in it. Called under the writer's lock. Returns whether it did.
pub(super) fn close(ep: &ShmEndpoint, v: &View) -> bool {
    let (own, consumer) = (line!(v, producer, v.me), line!(v, consumer, v.me.other()));
    if ep.side.is_remote() || ep.side.is_shared() || !ep.rings.tx.close_large(own, consumer) {
        return false;
    }
    v.seg.drop_large(v.index, v.me);
    let bytes = ep.charge.set_open(0);
    budget::closed(peer(ep), bytes);
    page().add(Counter::WindowGivenBackBytes, bytes as u64);
    true
}

/// Whether the large window is open, or a part of it is promised, as far as a thread without a lock can tell.
pub fn is_open(ep: &ShmEndpoint) -> bool {
    ep.charge.open() != 0 || ep.charge.promised.load(Ordering::Relaxed) != 0
}

/// Gives the pages of the large window back if nothing was written for a while, or since the last visit if memory is scarce,
/// and all was read. `now` is [`time::now`]. The caller holds the writer's lock, so that no thread of this process writes;
/// the peer reads no byte of a window that it has read to its end. Returns whether it did.
pub fn give_back_if_idle(ep: &ShmEndpoint, now: u64) -> bool {
    const IDLE: u64 = time::ns(timeouts::IDLE_WINDOW);
    const MODEST_IDLE: u64 = time::ns(timeouts::IDLE_MODEST_WINDOW);
    let Some(v) = ep.side.view().filter(|_| is_open(ep) && ep.side.is_live()) else { return false };
    if ep.side.state.look().is_left() {
        return false;
    }
    take_back_promise(ep, &v);
    let at = ep.rings.tx.position();
    if ep.charge.seen.swap(at, Ordering::Relaxed) != at {
        ep.charge.seen_at.set(now);
        return false;
    }
    let idle = now.saturating_sub(ep.charge.seen_at.get());
    let enough = if ep.charge.open() > budget::MODEST { IDLE } else { MODEST_IDLE };
    (idle >= enough || budget::is_scarce()) && close(ep, &v)
}
