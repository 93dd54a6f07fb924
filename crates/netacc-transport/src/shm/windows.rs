//! The memory of a connection's windows: when they open, and when their pages go back to the system.

use crate::shm::ShmEndpoint;
use crate::shm::budget::{self, Peer};
use crate::shm::side::Side;
use crate::shm::slot_side::View;
use crate::timeouts;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use netacc_ring::{LARGE, SMALL, Violation};
use netacc_stats::{Counter, page};
use netacc_sys::time;

/// What a young connection that ends may leave in its large windows (bytes), as long as those of the process have no more
/// in all: connections that come and go use the same few slots again and again.
const LEFT: u64 = 1 << 20;

/// What this process has charged to its budget for one connection.
#[derive(Debug)]
pub(super) struct WindowCharge {
    /// 1: the connection is counted.
    counted: AtomicU32,
    /// Number of bytes of the large window that are charged.
    open: AtomicU32,
    /// Position of the writer at the last visit of [`ShmEndpoint::give_back_if_idle`].
    seen: AtomicU64,
}

/// To be called when this side closes a connection: gives the pages of the large windows that nobody accesses any more back
/// to the system. That is our own if the peer has read everything, and both if the peer has closed the connection.
pub(super) fn give_back_windows(ep: &ShmEndpoint, v: &View) {
    const LASTING: u64 = time::ns(timeouts::LASTING_CONNECTION);
    let age = time::coarse().saturating_sub(ep.side.began.load(Ordering::Relaxed));
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
}

impl ShmEndpoint {
    fn window_peer(&self) -> Peer {
        if self.side.link().peer.is_trusted() { Peer::Trusted } else { Peer::Stranger }
    }

    /// Begins to count the windows of a connection, which has only the small ones.
    pub(super) fn charge_windows(&self) {
        self.uncharge_windows();
        let c = &self.charge;
        c.open.store(0, Ordering::Relaxed);
        c.seen.store(0, Ordering::Relaxed);
        c.counted.store(1, Ordering::Relaxed);
        budget::connection_begins();
    }

    /// Ends the counting for a connection that this process closes or leaves.
    pub(super) fn uncharge_windows(&self) {
        if self.charge.counted.swap(0, Ordering::Relaxed) != 0 {
            budget::connection_ended(self.window_peer(), self.charge.open.swap(0, Ordering::Relaxed) as usize);
        }
    }

    /// In the child of a fork: counts a connection that it has with its parent. Its windows are charged to both, since
    /// either may go on with them.
    pub fn recount_windows(&self) {
        if self.charge.counted.load(Ordering::Relaxed) != 0 {
            budget::connection_begins();
            budget::take(self.window_peer(), self.charge.open.load(Ordering::Relaxed) as usize);
        }
    }

    /// Makes room for a message of `want` bytes, as far as there is memory. Called under the writer's lock.
    #[inline]
    pub(super) fn prepare(&self, v: &View, want: usize) -> Result<(), Violation> {
        let (own, peer) = (line!(v, producer, v.me), line!(v, consumer, v.me.other()));
        self.rings.tx.prepare(own, peer, want, |extent| self.open_window(extent))?;
        if self.side.state.glance().is_shared() {
            self.settle_window();
        }
        Ok(())
    }

    /// Opens the large window to the extent `wanted` (bytes), as far as there is memory. The windows of a connection to
    /// another host are registered as a whole, and processes that share a side do not know how far the others have opened
    /// it.
    #[cold]
    fn open_window(&self, wanted: usize) -> usize {
        if self.side.is_remote() || self.side.is_shared() {
            return LARGE;
        }
        let open = self.charge.open.load(Ordering::Relaxed) as usize;
        let extent = budget::extend(self.window_peer(), open, wanted);
        self.charge.open.store(u32::try_from(extent).unwrap_or(u32::MAX), Ordering::Relaxed);
        extent
    }

    /// Whether a write would find room.
    #[inline]
    pub(super) fn has_room(&self, v: &View) -> bool {
        self.rings.has_room(&self.side, v, || {
            let open = self.charge.open.load(Ordering::Relaxed) as usize;
            self.side.is_remote() || budget::may_extend(self.window_peer(), open)
        })
    }

    /// Charges what another sharer of this side has opened.
    #[cold]
    fn settle_window(&self) {
        let extent = self.rings.tx.extent();
        let charged = self.charge.open.swap(u32::try_from(extent).unwrap_or(u32::MAX), Ordering::Relaxed) as usize;
        if extent > charged {
            budget::take(self.window_peer(), extent - charged);
        }
    }

    /// Gives the pages of the large window back if no byte is in it. Called under the writer's lock. Returns whether it
    /// did.
    pub(super) fn close_window(&self, v: &View) -> bool {
        let (own, peer) = (line!(v, producer, v.me), line!(v, consumer, v.me.other()));
        if self.side.is_remote() || self.side.is_shared() || !self.rings.tx.close_large(own, peer) {
            return false;
        }
        v.seg.drop_large(v.index, v.me);
        let open = self.charge.open.swap(0, Ordering::Relaxed) as usize;
        budget::closed(self.window_peer(), open);
        page().add(Counter::WindowGivenBackBytes, open as u64);
        true
    }

    /// Whether the large window is open, as far as a thread without a lock can tell.
    pub fn has_open_window(&self) -> bool {
        self.charge.open.load(Ordering::Relaxed) != 0
    }

    /// Gives the pages of the large window back if nothing was written since the last visit, and all was read. The caller
    /// holds the writer's lock, so that no thread of this process writes; the peer reads no byte of a window that it has
    /// read to its end. Returns whether it did.
    pub fn give_back_if_idle(&self) -> bool {
        let Some(v) = self.side.view().filter(|_| self.has_open_window() && self.side.is_live()) else { return false };
        if self.side.state.look().is_left() {
            return false;
        }
        let at = self.rings.tx.position();
        self.charge.seen.swap(at, Ordering::Relaxed) == at && self.close_window(&v)
    }
}
