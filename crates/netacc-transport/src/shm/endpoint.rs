//! One side of one connection in shared memory.

use crate::endpoint::{Endpoint, Interest, Readiness, Shut};
use crate::iov::Iov;
use crate::shm::family::Direction;
use crate::shm::link::{Link, Side};
use crate::shm::segment::{FATE_QUEUED, FATE_REFUSED, FATE_TAKEN, FATE_WITHDRAWN, Segment, Slot, WIPED};
use crate::wait::WaitSet;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use netacc_ring::{
    Area, CLOSED, Consumer, FIN, GONE, MOVED, OPEN, Producer, RESET, Ring, Violation, notify_data, notify_room,
};
use netacc_stats::{Counter, Reason, page};
use netacc_sys::cpu;
use netacc_sys::errno::{Errno, Result};

/// Our side has ended its stream.
pub(super) const TX_SHUT: u32 = 1;
/// shutdown(SHUT_RD) was called here.
pub(super) const RX_SHUT: u32 = 2;
/// The peer's end of stream has been seen.
pub(super) const PEER_FIN: u32 = 4;
/// The connection was reset; `error` was set when this bit was.
pub(super) const DEAD: u32 = 8;
/// In use.
pub(super) const LIVE: u32 = 16;
/// Every process of the peer's family that held the connection is gone.
pub(super) const WITNESS_GONE: u32 = 32;
/// Our process forked while the connection was open: others of our family may use it.
pub(super) const SHARED: u32 = 64;
/// The peer, or another process of our family, has left the rings; see [`super::depart`].
pub(super) const MOVING: u32 = 128;
/// We have followed: what we write goes to the kernel socket.
pub(super) const ON_KERNEL: u32 = 256;
/// It was our family that left.
pub(super) const FAMILY_MOVED: u32 = 512;
/// Nobody holds the other end of our base, though the peer lives: see `hear_kernel_ends`.
pub(super) const BASE_GONE: u32 = 1024;
/// Our large window holds pages.
const LARGE_USED: u32 = 1 << 16;

/// Threads that wait for the same direction as another one that is registered already.
const EXTRA: usize = 4;

/// One side of a slot. Lives inside its [`Link`], is reused for one connection after the other.
#[derive(Debug)]
pub struct ShmEndpoint {
    link: AtomicPtr<Link>,
    index: AtomicU32,
    pub(super) flags: AtomicU32,
    pub(super) error: AtomicI32,
    pub(super) epoch: AtomicU32,
    pub(super) tx: Producer,
    pub(super) rx: Consumer,
    /// Doorbells of further threads that sleep for this endpoint.
    extra: [AtomicU32; EXTRA],
    /// The socket layer's object for this connection.
    pub owner: AtomicUsize,
    /// The socket layer's registration that the watching channel reports to.
    pub registration: AtomicUsize,
    /// The channel (of ours) that watches, 0: none.
    pub channel: AtomicU32,
    /// SO_RCVLOWAT.
    pub(super) lowat: AtomicU32,
    /// Calls of shutdown(2) so far.
    pub(super) turns: AtomicU32,
    /// A writer found no room and waits for some.
    pub(super) room_asked: AtomicU32,
    /// How often such a writer could go on.
    pub(super) rooms: AtomicU32,
    /// The end of the peer's base that the peer passed to us (descriptor + 1).
    pub(super) witness: AtomicI32,
    /// The application's descriptor that is our base (number + 1).
    pub(super) base: AtomicI32,
    /// The kernel socket whose bytes come before the ring's (number + 1).
    pub(super) tail: AtomicI32,
    /// The kernel socket on which a connection that left the rings goes on (private descriptor + 1).
    pub(super) kernel: AtomicI32,
    /// Which connection `kernel` was passed for.
    pub(super) kernel_epoch: AtomicU32,
    /// The peer's end of that pair, for the rest of its family (private descriptor + 1).
    pub(super) spare: AtomicI32,
    /// Bytes that we sent by the kernel, of a connection that began there.
    pub(super) sent_before: AtomicU64,
}

/// Everything an operation needs, looked up once.
pub(super) struct View {
    pub(super) slot: &'static Slot,
    pub(super) seg: Segment,
    pub(super) link: &'static Link,
    pub(super) me: Side,
    pub(super) index: usize,
}

impl View {
    pub(super) fn tx_area(&self) -> Option<Area> {
        self.seg.area(self.index, self.me)
    }

    pub(super) fn rx_area(&self) -> Option<Area> {
        self.seg.area(self.index, self.me.other())
    }
}

impl ShmEndpoint {
    pub(crate) fn attach(&self, link: &'static Link, index: usize) {
        self.index.store(index as u32, Ordering::Relaxed);
        self.link.store(core::ptr::from_ref(link).cast_mut(), Ordering::Relaxed);
        self.flags.store(0, Ordering::Relaxed);
    }

    /// The link this endpoint belongs to.
    #[inline]
    #[allow(unsafe_code)]
    pub fn link(&self) -> &'static Link {
        // SAFETY: set in `attach` before the endpoint is reachable, to a link, which is never freed.
        unsafe { &*self.link.load(Ordering::Relaxed) }
    }

    /// The slot number.
    pub fn slot_index(&self) -> usize {
        self.index.load(Ordering::Relaxed) as usize
    }

    #[inline]
    pub(super) fn view(&self) -> Option<View> {
        let link = self.link();
        let seg = link.segment()?;
        let index = self.index.load(Ordering::Relaxed) as usize;
        Some(View { slot: seg.slot(index)?, seg, link, me: link.side(), index })
    }

    /// Whether a connection is open here.
    #[inline]
    pub fn is_live(&self) -> bool {
        self.flags.load(Ordering::Acquire) & LIVE != 0
    }

    /// Begins a connection in this slot, unless there is one. The client also wipes the shared words; the server then finds
    /// them wiped, or the client lies and hurts itself.
    pub fn begin(&'static self, epoch: u32) -> bool {
        let Some(v) = self.view() else { return false };
        if self.is_live() {
            return false;
        }
        v.link.hold();
        if v.me == Side::Client {
            let s = v.slot;
            s.wipe(Side::Client);
            line!(v, side, Side::Client).cpu.store(cpu::current(), Ordering::Relaxed);
            // A server that closed after us has wiped its own words, which are in its cache. Relaxed: whoever
            // claimed the slot has acquired the mark. If it lies, it hurts its own connection.
            let before = s.open.epoch.load(Ordering::Relaxed);
            if before == 0 || s.open.server_done.load(Ordering::Relaxed) != before | WIPED {
                s.wipe(Side::Server);
                line!(v, side, Side::Server).cpu.store(cpu::NO_CPU, Ordering::Relaxed);
            }
            s.open.epoch.store(epoch, Ordering::Relaxed);
            s.open.fate.store(FATE_QUEUED, Ordering::Relaxed);
            s.open.leaving.store(0, Ordering::Relaxed);
        }
        self.tx.reset();
        self.rx.reset();
        self.error.store(0, Ordering::Relaxed);
        self.epoch.store(epoch, Ordering::Relaxed);
        self.base.store(0, Ordering::Relaxed);
        self.tail.store(0, Ordering::Relaxed);
        if self.kernel_epoch.load(Ordering::Relaxed) != epoch {
            self.drop_kernel();
        }
        self.registration.store(0, Ordering::Relaxed);
        self.channel.store(0, Ordering::Relaxed);
        self.lowat.store(1, Ordering::Relaxed);
        self.room_asked.store(0, Ordering::Relaxed);
        self.flags.store(LIVE, Ordering::Release);
        page().count(Counter::SlotsInUse);
        true
    }

    pub(super) fn violated(&self, v: &View) -> Errno {
        page().count(Counter::ProtocolErrors);
        page().fallback(Reason::ProtocolError);
        // The peer broke the rules of this connection only: reset it on both sides.
        line!(v, producer, v.me).fin.store(RESET, Ordering::SeqCst);
        self.die(Errno::CONNRESET);
        self.tell_data(v);
        Errno(self.take_error())
    }

    /// The connection was reset. The first to notice leaves the error for whoever asks next.
    pub(super) fn die(&self, e: Errno) {
        if self.flags.fetch_or(DEAD, Ordering::AcqRel) & DEAD == 0 {
            self.error.store(e.0, Ordering::Release);
        }
    }

    fn is_dead(&self) -> bool {
        self.flags.load(Ordering::Acquire) & DEAD != 0
    }

    /// What the peer's words and the link's state say about the stream's end.
    pub(super) fn observe(&self, v: &View) -> u32 {
        let flags = self.flags.load(Ordering::Acquire);
        if flags & DEAD != 0 {
            return flags;
        }
        if flags & (SHARED | TX_SHUT) == SHARED && line!(v, producer, v.me).fin.load(Ordering::Acquire) & FIN != 0 {
            // Another process of our family ended our stream.
            self.flags.fetch_or(TX_SHUT, Ordering::AcqRel);
        }
        let peer = v.me.other();
        // Acquire: a final head was published before the mark.
        let fin = line!(v, producer, peer).fin.load(Ordering::Acquire);
        if fin & FIN != 0 && flags & PEER_FIN == 0 {
            self.flags.fetch_or(PEER_FIN, Ordering::AcqRel);
        }
        if flags & MOVING == 0 {
            if fin & MOVED != 0 {
                self.flags.fetch_or(MOVING, Ordering::AcqRel);
            } else if flags & SHARED != 0 && line!(v, producer, v.me).fin.load(Ordering::Acquire) & MOVED != 0 {
                self.flags.fetch_or(MOVING | FAMILY_MOVED, Ordering::AcqRel);
            }
        }
        let over = TX_SHUT | PEER_FIN;
        if fin & RESET != 0 && self.flags.load(Ordering::Acquire) & over == over {
            // Both ends were sent before: nothing is left that a reset could reach.
        } else if fin & RESET != 0 {
            // tcp(7): a reset after the peer's end of stream is EPIPE, else ECONNRESET.
            self.die(if fin & FIN != 0 { Errno::PIPE } else { Errno::CONNRESET });
        } else if fin == OPEN
            && self.peer_died(v)
            // Whoever ended or moved the stream said so before it went: look again, now that it is gone.
            && line!(v, producer, peer).fin.load(Ordering::Acquire) == OPEN
        {
            // The peer died without closing. The kernel would have closed its sockets: a reset if it
            // left unread data behind, else an end of stream. As long as the kernel's socket of a promoted
            // connection has not ended, it has to tell that, and has bytes that come first.
            if self.tail.load(Ordering::Relaxed) != 0 && (self.tail_ready().is_some() || self.is_dead()) {
                return self.flags.load(Ordering::Acquire);
            }
            match self.peer_left_unread(v).map(|n| n.saturating_add(self.left_before(v))) {
                Some(0) => {
                    self.flags.fetch_or(PEER_FIN, Ordering::AcqRel);
                }
                _ => self.die(Errno::CONNRESET),
            }
        }
        self.flags.load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn tell_data(&self, v: &View) {
        let peer = v.me.other();
        let channel = |n| {
            let c = v.seg.channel(peer, n)?;
            // The moment of the first news counts, as in the kernel's ready list.
            if !c.has(v.index) {
                line!(v, producer, v.me).when.store(cpu::ticks(), Ordering::Relaxed);
            }
            Some(c)
        };
        let r = notify_data(line!(v, side, peer), v.index, channel);
        if r != Ring::default() {
            self.ring(v, r);
        }
    }

    /// When the peer had news for us: it orders events of several connections, and is no more than a claim.
    #[inline]
    pub fn arrived(&self) -> u64 {
        self.view().map_or(0, |v| line!(v, producer, v.me.other()).when.load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn tell_room(&self, v: &View, always: bool) {
        let peer = v.me.other();
        let enough = || always || self.rx.room_to_tell(line!(v, producer, peer));
        let r = notify_room(line!(v, side, peer), v.index, |n| v.seg.channel(peer, n), enough);
        if r != Ring::default() {
            self.ring(v, r);
        }
    }

    /// Makes our own sleepers and our own channel look at this connection again.
    pub fn poke_self(&self) {
        if !self.is_live() && self.index.load(Ordering::Relaxed) != 0 {
            return;
        }
        let Some(v) = self.view() else { return };
        let own = line!(v, side, v.me);
        let data = notify_data(own, v.index, |n| v.seg.channel(v.me, n));
        let tx = own.tx_waiter.swap(0, Ordering::SeqCst);
        for id in [data.channel, data.thread, tx] {
            if id != 0 {
                v.link.ring_own(id);
            }
        }
        self.wake_extra(&v);
    }

    /// Lets the peer know which CPU we use; written only when it changed, the line is shared.
    #[inline]
    fn note_cpu(&self, v: &View) {
        let c = cpu::current();
        let line = line!(v, side, v.me);
        if line.cpu.load(Ordering::Relaxed) != c {
            line.cpu.store(c, Ordering::Relaxed);
        }
    }

    fn wake_extra(&self, v: &View) {
        for e in &self.extra {
            if e.load(Ordering::SeqCst) != 0 {
                let id = e.swap(0, Ordering::SeqCst);
                if id != 0 {
                    v.link.ring_own(id);
                }
            }
        }
    }

    /// Registers `bell` in `cell`, or as a further waiter when another thread is there already.
    pub(super) fn register(&self, cell: &AtomicU32, bell: u32, set: &mut WaitSet) {
        for _ in 0..EXTRA {
            match cell.compare_exchange(0, bell, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return,
                Err(b) if b == bell => return,
                Err(_) => {}
            }
            let Some(mine) =
                self.extra.iter().find(|e| e.compare_exchange(0, bell, Ordering::SeqCst, Ordering::SeqCst).is_ok())
            else {
                break;
            };
            // Whoever leaves `cell` rings the extras afterwards. If it left before we were in, nobody
            // would: then we take its place.
            if cell.load(Ordering::SeqCst) != 0 {
                return;
            }
            let _ = mine.compare_exchange(bell, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
        set.bounded = true;
    }

    fn unregister(&self, v: &View, cell: &AtomicU32, bell: u32) {
        let _ = cell.compare_exchange(bell, 0, Ordering::SeqCst, Ordering::SeqCst);
        let mut others = false;
        for e in &self.extra {
            let _ = e.compare_exchange(bell, 0, Ordering::SeqCst, Ordering::SeqCst);
            others |= e.load(Ordering::SeqCst) != 0;
        }
        if others {
            self.wake_extra(v);
        }
    }

    /// Sets which of our channels hears of this connection (0: none).
    pub fn watch(&self, channel: u32) {
        self.channel.store(channel, Ordering::Relaxed);
        let Some(v) = self.view() else { return };
        let watch = &line!(v, side, v.me).watch;
        if channel != 0 {
            // SeqCst: the caller looks at the connection afterwards; the peer publishes, then looks here.
            watch.store(channel, Ordering::SeqCst);
        } else if !self.peer_left(&v) {
            // Release suffices: a hint that comes late names nobody. A peer that is gone does not look, and
            // the line need not be fetched.
            watch.store(0, Ordering::Release);
        }
    }

    /// Whether the peer has closed for good and looks at no word of the slot any more.
    fn peer_left(&self, v: &View) -> bool {
        // Acquire: its last looks come before what we do to the words now.
        line!(v, producer, v.me.other()).fin.load(Ordering::Acquire) & GONE != 0
    }

    /// Asks for a bit in the watching channel when there is room; true when there is room already.
    pub fn want_room(&self) -> bool {
        let Some(v) = self.view() else { return true };
        // SeqCst exchange, then the look: the peer publishes its tail, then looks at `want_room`.
        line!(v, side, v.me).want_room.swap(1, Ordering::SeqCst);
        let there = self.readiness().writable();
        if !there {
            self.room_asked.store(1, Ordering::Release);
        }
        there
    }

    /// Whether the connect queue's waiters (slot 0) must look: arms `set` for the whole link.
    pub fn arm_queue(&self, set: &mut WaitSet) -> bool {
        let Some(v) = self.view() else { return true };
        let bell = set.bell(v.link);
        if bell != 0 {
            self.register(&line!(v, side, v.me).rx_waiter, bell, set);
        }
        v.seg.queued() > 0 || v.link.is_lost()
    }

    /// Undoes [`ShmEndpoint::arm_queue`].
    pub fn disarm_queue(&self, set: &WaitSet) {
        if let Some(v) = self.view()
            && let Some(bell) = set.borrowed_bell(v.link)
        {
            self.unregister(&v, &line!(v, side, v.me).rx_waiter, bell);
        }
    }

    /// Server: takes a queued connect. False if the client withdrew it.
    pub fn take(&self) -> bool {
        self.decide(FATE_TAKEN)
    }

    /// Client: withdraws a connect that the server has not taken. False if it has.
    pub fn withdraw(&self) -> bool {
        self.decide(FATE_WITHDRAWN)
    }

    /// What became of a queued connect or an offered promotion: a `FATE_` value.
    pub fn fate(&self) -> u32 {
        self.view().map_or(FATE_WITHDRAWN, |v| v.slot.open.fate.load(Ordering::Acquire))
    }

    /// How long ago the connect or offer was made (ns).
    pub fn age(&self) -> u64 {
        let when = self.view().map_or(0, |v| v.slot.open.when.load(Ordering::Relaxed));
        netacc_sys::time::now().saturating_sub(when)
    }

    /// Server: a promotion is refused.
    pub fn refuse(&self, epoch: u32) {
        self.decide(FATE_REFUSED);
        self.never_mind(epoch);
    }

    /// Server: a withdrawn connect needs nothing more from us.
    pub fn never_mind(&self, epoch: u32) {
        if let Some(v) = self.view() {
            v.slot.open.server_done.store(epoch, Ordering::Release);
        }
    }

    /// Client: the server's process died before it took the connect. Somebody else may serve it.
    pub fn orphaned(&self) -> bool {
        self.is_live() && self.view().is_some_and(|v| self.is_orphan(&v))
    }

    pub(super) fn is_orphan(&self, v: &View) -> bool {
        v.me == Side::Client
            && (v.link.is_lost() || v.link.is_left())
            && v.slot.open.fate.load(Ordering::Acquire) == FATE_QUEUED
    }

    /// Everything written so far, piece by piece, of a connection whose peer has read nothing.
    pub fn replay(&self, mut piece: impl FnMut(*const u8, usize)) {
        let Some(v) = self.view() else { return };
        let Some(area) = v.tx_area() else { return };
        self.tx.replay(&area, |p, n| piece(p.as_ptr(), n));
    }

    /// Whether our stream was ended.
    pub fn ended(&self) -> bool {
        self.flags.load(Ordering::Acquire) & TX_SHUT != 0
    }

    /// The connection cannot go on.
    pub fn fail(&self, e: Errno) {
        self.die(e);
        self.poke_self();
    }

    fn decide(&self, fate: u32) -> bool {
        // AcqRel: whoever decides first, the other one sees what led to it.
        self.view().is_some_and(|v| {
            let cell = &v.slot.open.fate;
            cell.compare_exchange(FATE_QUEUED, fate, Ordering::AcqRel, Ordering::Acquire).is_ok()
        })
    }

    /// Tells the server that a connect was queued (client, on slot 0).
    pub fn announce(&self) {
        if let Some(v) = self.view() {
            self.tell_data(&v);
        }
    }

    /// Makes the peer look at this connection again.
    pub fn stir_peer(&self) {
        if let Some(v) = self.view() {
            self.tell_data(&v);
            self.tell_room(&v, true);
        }
    }

    fn write(&self, v: &View, src: &mut Iov<'_>) -> core::result::Result<usize, Violation> {
        let (own, peer) = (line!(v, producer, v.me), line!(v, consumer, v.me.other()));
        let Some(area) = v.tx_area() else {
            return Err(Violation);
        };
        let _family = self.enter(v, Direction::Write)?;
        if self.family_left(v) {
            return Ok(0);
        }
        self.tx.prepare(own, peer, src.left())?;
        let mut n = 0;
        while src.left() > 0 {
            let Some((ptr, len)) = self.tx.chunk(&area, peer, src.left())? else {
                break;
            };
            src.copy_to(ptr.as_ptr(), len);
            self.tx.advance(len);
            n += len;
        }
        let flags = self.flags.load(Ordering::Relaxed);
        if self.tx.is_large() {
            if flags & LARGE_USED == 0 {
                self.flags.fetch_or(LARGE_USED, Ordering::Relaxed);
            }
        } else if flags & LARGE_USED != 0 && self.tx.large_idle(peer) {
            // The connection has gone small again: the pages of the large window go back to the system.
            self.flags.fetch_and(!LARGE_USED, Ordering::Relaxed);
            v.seg.drop_large(v.index, v.me);
        }
        if n > 0 {
            self.tx.publish(own);
            self.tell_data(v);
            // SeqCst, after the SeqCst publication: a reader that has left saw these bytes, or we see that it left.
            if line!(v, producer, v.me.other()).fin.load(Ordering::SeqCst) & MOVED != 0 {
                self.flags.fetch_or(MOVING, Ordering::AcqRel);
            }
        }
        Ok(n)
    }

    fn read(&self, v: &View, dst: &mut Iov<'_>, peek: bool) -> core::result::Result<usize, Violation> {
        let (own, peer) = (line!(v, consumer, v.me), line!(v, producer, v.me.other()));
        let Some(area) = v.rx_area() else {
            return Err(Violation);
        };
        let _family = self.enter(v, Direction::Read)?;
        if self.family_left(v) {
            return Ok(0);
        }
        let mut n = 0;
        while dst.left() > 0 {
            let Some((ptr, len)) = self.rx.chunk(&area, own, peer, if peek { n } else { 0 })? else {
                break;
            };
            let len = len.min(dst.left());
            dst.copy_from(ptr.as_ptr(), len);
            n += len;
            if !peek {
                self.rx.advance(len);
            }
        }
        if n > 0 && !peek {
            self.rx.publish(own);
            self.tell_room(v, false);
        }
        Ok(n)
    }

    /// Discards up to `n` readable bytes without copying (MSG_TRUNC on a stream, tcp(7)).
    pub fn discard(&self, n: usize) -> usize {
        let Some(v) = self.view() else { return 0 };
        if self.tail.load(Ordering::Relaxed) != 0 {
            let before = self.discard_before(n);
            if before > 0 {
                return before + if before < n { self.discard_ring(&v, n - before) } else { 0 };
            }
        }
        self.discard_ring(&v, n)
    }

    fn discard_ring(&self, v: &View, n: usize) -> usize {
        if self.tail.load(Ordering::Relaxed) != 0 && self.tail_ready().is_some() {
            return 0;
        }
        let (own, peer) = (line!(v, consumer, v.me), line!(v, producer, v.me.other()));
        let Some(area) = v.rx_area() else { return 0 };
        let Ok(_family) = self.enter(v, Direction::Read) else {
            return 0;
        };
        if self.family_left(v) {
            return 0;
        }
        let mut done = 0;
        while done < n {
            let Ok(Some((_, len))) = self.rx.chunk(&area, own, peer, 0) else {
                break;
            };
            let len = len.min(n - done);
            self.rx.advance(len);
            done += len;
        }
        if done > 0 {
            self.rx.publish(own);
            self.tell_room(v, false);
        }
        done
    }

    /// Fills the ring from `fill(ptr, len) -> bytes`, for sendfile and splice. At most `want` bytes;
    /// `fill` may return fewer, 0 ends it.
    pub fn write_with(&self, want: usize, mut fill: impl FnMut(*mut u8, usize) -> Result<usize>) -> Result<usize> {
        let Some(v) = self.view() else {
            return Err(Errno::PIPE);
        };
        self.check_writable(&v)?;
        if self.flags.load(Ordering::Acquire) & MOVING != 0 {
            return self.fill_kernel(want, fill);
        }
        let (own, peer) = (line!(v, producer, v.me), line!(v, consumer, v.me.other()));
        let Some(area) = v.tx_area() else {
            return Err(Errno::PIPE);
        };
        let Ok(_family) = self.enter(&v, Direction::Write) else {
            return Err(self.violated(&v));
        };
        if self.family_left(&v) {
            return Err(Errno::AGAIN);
        }
        if self.tx.prepare(own, peer, want).is_err() {
            return Err(self.violated(&v));
        }
        let mut n = 0;
        let mut failed = None;
        while n < want {
            match self.tx.chunk(&area, peer, want - n) {
                Ok(Some((ptr, len))) => match fill(ptr.as_ptr(), len) {
                    Ok(0) => {
                        failed = Some(Ok(0));
                        break;
                    }
                    Ok(k) => {
                        self.tx.advance(k.min(len));
                        n += k.min(len);
                    }
                    Err(e) => {
                        failed = Some(Err(e));
                        break;
                    }
                },
                Ok(None) => break,
                Err(Violation) => return Err(self.violated(&v)),
            }
        }
        if n > 0 {
            self.tx.publish(own);
            self.tell_data(&v);
            // As in `write`.
            if line!(v, producer, v.me.other()).fin.load(Ordering::SeqCst) & MOVED != 0 {
                self.flags.fetch_or(MOVING, Ordering::AcqRel);
            } else if self.peer_closed(&v) {
                self.answered_by_reset(&v);
            }
            return Ok(n);
        }
        failed.unwrap_or(Err(Errno::AGAIN))
    }

    /// Empties the ring into `drain(ptr, len) -> bytes`, for splice.
    pub fn read_with(&self, want: usize, mut drain: impl FnMut(*const u8, usize) -> Result<usize>) -> Result<usize> {
        let Some(v) = self.view() else { return Ok(0) };
        let (own, peer) = (line!(v, consumer, v.me), line!(v, producer, v.me.other()));
        let Some(area) = v.rx_area() else {
            return Ok(0);
        };
        let Ok(_family) = self.enter(&v, Direction::Read) else {
            return Err(self.violated(&v));
        };
        if self.family_left(&v) {
            return Err(Errno::AGAIN);
        }
        let mut n = 0;
        let mut failed = None;
        while n < want {
            match self.rx.chunk(&area, own, peer, 0) {
                Ok(Some((ptr, len))) => {
                    let len = len.min(want - n);
                    match drain(ptr.as_ptr(), len) {
                        Ok(k) => {
                            self.rx.advance(k.min(len));
                            n += k.min(len);
                            if k < len {
                                break;
                            }
                        }
                        Err(e) => {
                            failed = Some(e);
                            break;
                        }
                    }
                }
                Ok(None) => break,
                Err(Violation) => return Err(self.violated(&v)),
            }
        }
        if n > 0 {
            self.rx.publish(own);
            self.tell_room(&v, false);
            return Ok(n);
        }
        match failed {
            Some(e) => Err(e),
            None => self.nothing_read(&v),
        }
    }

    /// There were no bytes: an error, the end, or `EAGAIN`.
    fn nothing_read(&self, v: &View) -> Result<usize> {
        let flags = self.observe(v);
        // The end was marked after the last bytes; now that the mark is seen, look for them again.
        if self.has_data(v) && flags & (RX_SHUT | DEAD | PEER_FIN) != 0 {
            return Err(Errno::CONNABORTED);
        }
        if flags & DEAD != 0 && flags & PEER_FIN == 0 {
            let e = self.error.swap(0, Ordering::AcqRel);
            if e != 0 {
                return Err(Errno(e));
            }
        }
        if flags & (RX_SHUT | DEAD | PEER_FIN) != 0 { Ok(0) } else { Err(Errno::AGAIN) }
    }

    /// Errors that come before any writing.
    fn check_writable(&self, v: &View) -> Result<()> {
        let flags = self.observe(v);
        if flags & (TX_SHUT | DEAD) != 0 {
            let e = self.error.swap(0, Ordering::AcqRel);
            return Err(if e != 0 { Errno(e) } else { Errno::PIPE });
        }
        Ok(())
    }

    /// Bytes went to a peer that is closed. As on the wire: this write goes out, the answer is a reset, the
    /// next write fails.
    #[cold]
    fn answered_by_reset(&self, v: &View) {
        let fin = self.flags.load(Ordering::Acquire) & PEER_FIN != 0;
        self.die(if fin { Errno::PIPE } else { Errno::CONNRESET });
        // Where the peer only shut both directions down, it is reset as well.
        line!(v, producer, v.me).fin.fetch_or(RESET, Ordering::SeqCst);
        self.tell_data(v);
    }

    /// Ends our stream for good and tells the peer. `Some` if that has left the rings: whether it is to be reset.
    fn end(&'static self, v: &View, abort: bool) -> Option<bool> {
        let reset = self.has_data(v) || abort;
        let fin = &line!(v, producer, v.me).fin;
        fin.fetch_or(if reset { RESET } else { FIN }, Ordering::SeqCst);
        // A peer that leaves the rings marks that and then looks at our end: one of us sees the other.
        if line!(v, producer, v.me.other()).fin.load(Ordering::SeqCst) & MOVED != 0 {
            self.flags.fetch_or(MOVING, Ordering::AcqRel);
            return Some(reset);
        }
        fin.fetch_or(CLOSED, Ordering::SeqCst);
        // Nobody of ours is to be told anything any more.
        let side = line!(v, side, v.me);
        for w in [&side.watch, &side.rx_waiter, &side.tx_waiter, &side.want_room] {
            w.store(0, Ordering::Relaxed);
        }
        self.tell_data(v);
        self.tell_room(v, true);
        // Release: these were our last looks. The peer that sees it may wipe what it wrote.
        fin.fetch_or(GONE, Ordering::Release);
        None
    }

    /// Whether nobody at the other end will ever read again.
    fn peer_closed(&self, v: &View) -> bool {
        line!(v, producer, v.me.other()).fin.load(Ordering::Acquire) & CLOSED != 0 || self.peer_died(v)
    }
}

impl Endpoint for ShmEndpoint {
    fn try_write(&self, src: &mut Iov<'_>) -> Result<usize> {
        let Some(v) = self.view() else {
            return Err(Errno::PIPE);
        };
        self.note_cpu(&v);
        self.check_writable(&v)?;
        if self.flags.load(Ordering::Relaxed) & MOVING != 0 {
            return self.write_kernel(src);
        }
        if self.peer_closed(&v) {
            let n = src.left();
            if n > 0 {
                src.skip(n);
                self.answered_by_reset(&v);
            }
            return Ok(n);
        }
        if src.left() == 0 {
            return Ok(0);
        }
        match self.write(&v, src) {
            Ok(0) => Err(Errno::AGAIN),
            Ok(n) => Ok(n),
            Err(Violation) => Err(self.violated(&v)),
        }
    }

    fn try_read(&self, dst: &mut Iov<'_>, peek: bool) -> Result<usize> {
        let Some(v) = self.view() else { return Ok(0) };
        self.note_cpu(&v);
        if self.tail.load(Ordering::Relaxed) != 0 {
            match self.read_before(dst, peek) {
                Err(done) => return done,
                Ok(0) => {}
                // What the ring has to say beside bytes the next call hears.
                Ok(n) => return Ok(n + self.read(&v, dst, peek).unwrap_or(0)),
            }
        }
        loop {
            if dst.left() == 0 && self.has_data(&v) {
                return Ok(0);
            }
            match self.read(&v, dst, peek) {
                Ok(0) => match self.nothing_read(&v) {
                    Err(Errno::CONNABORTED) => {}
                    r => return r,
                },
                Ok(n) => return Ok(n),
                Err(Violation) => return Err(self.violated(&v)),
            }
        }
    }

    fn readiness(&self) -> Readiness {
        let Some(v) = self.view() else {
            return Readiness(Readiness::HUP | Readiness::IN | Readiness::OUT);
        };
        let flags = self.observe(&v);
        let mut r = 0;
        if flags & DEAD != 0 && self.error.load(Ordering::Acquire) != 0 {
            r |= Readiness::ERR;
        }
        let no_rx = flags & (RX_SHUT | PEER_FIN | DEAD) != 0;
        let no_tx = flags & (TX_SHUT | DEAD) != 0;
        if no_rx && no_tx {
            r |= Readiness::HUP;
        }
        if no_rx {
            r |= Readiness::IN | Readiness::RDHUP;
        }
        if self.has_data(&v) && (self.lowat() <= 1 || self.waiting_in_all(&v) >= self.lowat() as u64) {
            r |= Readiness::IN;
        }
        let room = match flags & (MOVING | ON_KERNEL) {
            0 => self.peer_closed(&v) || self.has_room(&v),
            f => f & ON_KERNEL != 0 && self.kernel_room(),
        };
        if no_tx || room {
            r |= Readiness::OUT;
        }
        Readiness(r)
    }

    fn arm(&'static self, interest: Interest, set: &mut WaitSet) -> bool {
        let Some(v) = self.view() else { return true };
        let bell = set.bell(v.link);
        let own = line!(v, side, v.me);
        if bell != 0 {
            if interest.read {
                self.register(&own.rx_waiter, bell, set);
            }
            if interest.write {
                self.register(&own.tx_waiter, bell, set);
            }
        }
        self.add_kernel_ends(&v, interest.read, set);
        if interest.write && self.kernel_fd() >= 0 {
            set.add(self.kernel_fd(), libc::POLLOUT);
        }
        // The registration is a SeqCst exchange; the peer publishes, then looks at it. Our look comes
        // after, so one of us sees the other.
        core::sync::atomic::fence(Ordering::SeqCst);
        let r = self.readiness();
        // Somebody may have left the rings, or this endpoint, before we registered.
        (interest.read && r.readable()) || (interest.write && r.writable()) || self.displaced() || !self.is_live()
    }

    fn disarm(&self, interest: Interest, set: &WaitSet) {
        let Some(v) = self.view() else { return };
        let Some(bell) = set.borrowed_bell(v.link) else {
            return;
        };
        let own = line!(v, side, v.me);
        if interest.read {
            self.unregister(&v, &own.rx_waiter, bell);
        }
        if interest.write {
            self.unregister(&v, &own.tx_waiter, bell);
        }
        self.hear_kernel_ends(&v);
    }

    fn shutdown(&self, how: Shut) {
        let Some(v) = self.view() else { return };
        let bits = match how {
            Shut::Read => RX_SHUT,
            Shut::Write => TX_SHUT,
            Shut::Both => RX_SHUT | TX_SHUT,
        };
        let old = self.flags.fetch_or(bits, Ordering::AcqRel);
        if (old | bits) & (RX_SHUT | TX_SHUT) == RX_SHUT | TX_SHUT {
            // Whoever writes to us from now on gets a reset, as from a closed socket.
            line!(v, producer, v.me).fin.fetch_or(FIN | CLOSED, Ordering::SeqCst);
            self.tell_room(&v, true);
        }
        if bits & !old & TX_SHUT != 0 {
            line!(v, producer, v.me).fin.fetch_or(FIN, Ordering::SeqCst);
            self.tell_data(&v);
            if old & ON_KERNEL != 0 {
                let _ = netacc_sys::raw::shutdown(self.kernel_fd(), libc::SHUT_WR);
            }
        }
        self.stir();
    }

    fn close(&'static self, abort: bool) {
        let Some(v) = self.view() else { return };
        if self.observe(&v) & (MOVING | DEAD) == MOVING {
            return self.close_moved(abort);
        }
        let mut wiped = 0;
        if self.peer_left(&v) {
            // Nobody is there to be told. What we wrote is in our cache and of no use to the client, which begins
            // with the words wiped. Where a side is or was several processes, that is left to it.
            let alone = self.base.load(Ordering::Relaxed) == 0 && self.witness.load(Ordering::Relaxed) == 0;
            if v.me == Side::Server && alone {
                v.slot.wipe(Side::Server);
                wiped = WIPED;
            }
        } else if let Some(reset) = self.end(&v, abort) {
            return self.close_moved(reset);
        }
        self.close_witness();
        self.drop_kernel();
        self.end_tail(self.tail_fd());
        let gone = self.flags.swap(0, Ordering::AcqRel) & WITNESS_GONE != 0;
        let epoch = self.epoch.load(Ordering::Relaxed);
        let done = &v.slot.open.server_done;
        // Release: after this the client may use the slot for another connection. Where the server's
        // processes ended without a word, the client knows it from the kernel.
        if v.me == Side::Server || gone {
            done.store(epoch | wiped, Ordering::Release);
        }
        if v.me == Side::Client {
            v.link.slots.closed(v.index);
        }
        v.link.slot_left();
        v.link.put();
    }

    fn unread(&self) -> usize {
        let Some(v) = self.view() else { return 0 };
        self.waiting_in_all(&v) as usize
    }

    fn unsent(&self) -> usize {
        let Some(v) = self.view() else { return 0 };
        self.outstanding(self.peer_left_unread(&v).unwrap_or(0))
    }

    fn take_error(&self) -> i32 {
        if let Some(v) = self.view() {
            self.observe(&v);
        }
        self.error.swap(0, Ordering::AcqRel)
    }

    fn peer_cpu(&self) -> u32 {
        let Some(v) = self.view() else {
            return cpu::NO_CPU;
        };
        line!(v, side, v.me.other()).cpu.load(Ordering::Relaxed)
    }
}
