//! One side of one connection in shared memory.

use crate::endpoint::{Endpoint, Interest, Readiness, Shut};
use crate::iov::Iov;
use crate::shm::link::{Link, Side};
use crate::shm::segment::{Segment, Slot};
use crate::wait::WaitSet;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use netacc_ring::{
    Area, CLOSED, Consumer, FIN, OPEN, Producer, RESET, Ring, Violation, notify_data, notify_room,
};
use netacc_stats::{Counter, page};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{cpu, private};
use rustix::fd::OwnedFd;

/// Our side has ended its stream.
const TX_SHUT: u32 = 1;
/// shutdown(SHUT_RD) was called here.
const RX_SHUT: u32 = 2;
/// The peer's end of stream has been seen.
const PEER_FIN: u32 = 4;
/// The connection was reset; `error` was set when this bit was.
const DEAD: u32 = 8;
/// In use.
const LIVE: u32 = 16;

/// Threads that wait for the same direction as another one that is registered already.
const EXTRA: usize = 4;

/// One side of a slot. Lives inside its [`Link`], is reused for one connection after the other.
#[derive(Debug)]
pub struct ShmEndpoint {
    link: AtomicPtr<Link>,
    index: AtomicU32,
    flags: AtomicU32,
    error: AtomicI32,
    epoch: AtomicU32,
    tx: Producer,
    rx: Consumer,
    /// Doorbells of further threads that sleep for this endpoint.
    extra: [AtomicU32; EXTRA],
    /// The socket layer's object for this connection.
    pub owner: AtomicUsize,
    /// The socket layer's registration that the watching channel reports to.
    pub registration: AtomicUsize,
    /// The channel (of ours) that watches, 0: none.
    pub channel: AtomicU32,
    /// The connection's base that the peer passed (descriptor + 1).
    base: AtomicI32,
}

/// Everything an operation needs, looked up once.
struct View {
    slot: &'static Slot,
    seg: Segment,
    link: &'static Link,
    me: Side,
    index: usize,
}

impl View {
    fn tx_area(&self) -> Option<Area> {
        self.seg.area(self.index, self.me)
    }

    fn rx_area(&self) -> Option<Area> {
        self.seg.area(self.index, self.me.other())
    }
}

macro_rules! line {
    ($view:expr, $field:ident, $side:expr) => {
        match $side {
            Side::Client => {
                let [c, _] = &$view.slot.$field;
                c
            }
            Side::Server => {
                let [_, s] = &$view.slot.$field;
                s
            }
        }
    };
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
    fn view(&self) -> Option<View> {
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

    /// Begins a connection in this slot. The client also wipes the shared words; the server then finds
    /// them wiped, or the client lies and hurts itself.
    pub fn begin(&'static self, epoch: u32) -> bool {
        let Some(v) = self.view() else { return false };
        v.link.hold();
        if v.me == Side::Client {
            let s = v.slot;
            for p in &s.producer {
                p.head.store(0, Ordering::Relaxed);
                p.layout.store(0, Ordering::Relaxed);
                p.fin.store(OPEN, Ordering::Relaxed);
            }
            for c in &s.consumer {
                c.tail.store(0, Ordering::Relaxed);
                c.layout.store(0, Ordering::Relaxed);
                c.closed.store(0, Ordering::Relaxed);
            }
            for l in &s.side {
                for w in [&l.watch, &l.rx_waiter, &l.tx_waiter, &l.want_room] {
                    w.store(0, Ordering::Relaxed);
                }
                l.cpu.store(cpu::NO_CPU, Ordering::Relaxed);
            }
            s.open.epoch.store(epoch, Ordering::Relaxed);
        }
        self.tx.reset();
        self.rx.reset();
        self.error.store(0, Ordering::Relaxed);
        self.epoch.store(epoch, Ordering::Relaxed);
        self.registration.store(0, Ordering::Relaxed);
        self.channel.store(0, Ordering::Relaxed);
        self.flags.store(LIVE, Ordering::Release);
        true
    }

    /// The peer passed its end of this connection's base.
    pub(crate) fn learn_base(&self, epoch: u32, fd: OwnedFd) {
        if !self.is_live() || self.epoch.load(Ordering::Relaxed) != epoch {
            return private::drop_raw(fd);
        }
        if let Ok(fd) = private::adopt(fd) {
            let old = self.base.swap(fd + 1, Ordering::AcqRel);
            if old != 0 {
                private::close(old - 1);
            }
        }
        self.poke_self();
    }

    fn violated(&self, v: &View) -> Errno {
        page().count(Counter::ProtocolErrors);
        // The peer broke the rules of this connection only: reset it on both sides.
        line!(v, producer, v.me).fin.store(RESET, Ordering::SeqCst);
        self.die(Errno::CONNRESET);
        self.tell_data(v);
        Errno(self.take_error())
    }

    /// The connection was reset. The first to notice leaves the error for whoever asks next.
    fn die(&self, e: Errno) {
        if self.flags.fetch_or(DEAD, Ordering::AcqRel) & DEAD == 0 {
            self.error.store(e.0, Ordering::Release);
        }
    }

    /// What the peer's words and the link's state say about the stream's end.
    fn observe(&self, v: &View) -> u32 {
        let flags = self.flags.load(Ordering::Acquire);
        if flags & DEAD != 0 {
            return flags;
        }
        let peer = v.me.other();
        // Acquire: a final head was published before the mark.
        let fin = line!(v, producer, peer).fin.load(Ordering::Acquire);
        if fin & FIN != 0 && flags & PEER_FIN == 0 {
            self.flags.fetch_or(PEER_FIN, Ordering::AcqRel);
        }
        if fin & RESET != 0 {
            // tcp(7): a reset after the peer's end of stream is EPIPE, else ECONNRESET.
            self.die(if fin & FIN != 0 { Errno::PIPE } else { Errno::CONNRESET });
        } else if v.link.is_lost() && fin == OPEN {
            // The peer died without closing. The kernel would have closed its sockets: a reset if it
            // left unread data behind, else an end of stream.
            match self.tx.unread(line!(v, consumer, peer)) {
                Ok(0) => {
                    self.flags.fetch_or(PEER_FIN, Ordering::AcqRel);
                }
                _ => self.die(Errno::CONNRESET),
            }
        }
        self.flags.load(Ordering::Acquire)
    }

    fn ring(&self, v: &View, ring: Ring) {
        v.link.ring(ring);
    }

    #[inline]
    fn tell_data(&self, v: &View) {
        let peer = v.me.other();
        let r = notify_data(line!(v, side, peer), v.index, |n| v.seg.channel(peer, n));
        if r != Ring::default() {
            self.ring(v, r);
        }
    }

    #[inline]
    fn tell_room(&self, v: &View, always: bool) {
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
    fn register(&self, cell: &AtomicU32, bell: u32, set: &mut WaitSet) {
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

    /// Our process gives the connection up without ending it: another process of our family, which
    /// inherited it over a fork, goes on with it. Its last holder's end is told by the kernel.
    pub fn leave_shared(&self) {
        let Some(v) = self.view() else { return };
        let base = self.base.swap(0, Ordering::AcqRel);
        if base != 0 {
            private::close(base - 1);
        }
        self.flags.store(0, Ordering::Release);
        if v.me == Side::Client {
            v.link.slots.burned();
        }
        v.link.put();
    }

    /// Sets which of our channels hears of this connection (0: none).
    pub fn watch(&self, channel: u32) {
        self.channel.store(channel, Ordering::Relaxed);
        if let Some(v) = self.view() {
            line!(v, side, v.me).watch.store(channel, Ordering::SeqCst);
        }
    }

    /// Asks for a bit in the watching channel when there is room; true when there is room already.
    pub fn want_room(&self) -> bool {
        let Some(v) = self.view() else { return true };
        // SeqCst exchange, then the look: the peer publishes its tail, then looks at `want_room`.
        line!(v, side, v.me).want_room.swap(1, Ordering::SeqCst);
        self.readiness().writable()
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

    /// Tells the server that a connect was queued (client, on slot 0).
    pub fn announce(&self) {
        if let Some(v) = self.view() {
            self.tell_data(&v);
        }
    }

    fn write(&self, v: &View, src: &mut Iov<'_>) -> core::result::Result<usize, Violation> {
        let (own, peer) = (line!(v, producer, v.me), line!(v, consumer, v.me.other()));
        let Some(area) = v.tx_area() else { return Err(Violation) };
        self.tx.prepare(own, peer, src.left())?;
        let mut n = 0;
        while src.left() > 0 {
            let Some((ptr, len)) = self.tx.chunk(&area, peer, src.left())? else { break };
            src.copy_to(ptr.as_ptr(), len);
            self.tx.advance(len);
            n += len;
        }
        if n > 0 {
            self.tx.publish(own);
            self.tell_data(v);
        }
        Ok(n)
    }

    fn read(&self, v: &View, dst: &mut Iov<'_>, peek: bool) -> core::result::Result<usize, Violation> {
        let (own, peer) = (line!(v, consumer, v.me), line!(v, producer, v.me.other()));
        let Some(area) = v.rx_area() else { return Err(Violation) };
        let mut n = 0;
        while dst.left() > 0 {
            let Some((ptr, len)) = self.rx.chunk(&area, own, peer, if peek { n } else { 0 })? else { break };
            let len = len.min(dst.left());
            dst.copy_from(ptr.as_ptr(), len);
            if !peek {
                self.rx.advance(len);
            }
            n += len;
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
        let (own, peer) = (line!(v, consumer, v.me), line!(v, producer, v.me.other()));
        let Some(area) = v.rx_area() else { return 0 };
        let mut done = 0;
        while done < n {
            let Ok(Some((_, len))) = self.rx.chunk(&area, own, peer, 0) else { break };
            let len = len.min(n - done);
            self.rx.advance(len);
            done += len;
        }
        if done > 0 {
            self.rx.publish(own);
            self.tell_room(&v, false);
        }
        done
    }

    /// Fills the ring from `fill(ptr, len) -> bytes`, for sendfile and splice. At most `want` bytes;
    /// `fill` may return fewer, 0 ends it.
    pub fn write_with(&self, want: usize, mut fill: impl FnMut(*mut u8, usize) -> Result<usize>) -> Result<usize> {
        let Some(v) = self.view() else { return Err(Errno::PIPE) };
        self.check_writable(&v)?;
        let (own, peer) = (line!(v, producer, v.me), line!(v, consumer, v.me.other()));
        let Some(area) = v.tx_area() else { return Err(Errno::PIPE) };
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
            return Ok(n);
        }
        failed.unwrap_or(Err(Errno::AGAIN))
    }

    /// Empties the ring into `drain(ptr, len) -> bytes`, for splice.
    pub fn read_with(&self, want: usize, mut drain: impl FnMut(*const u8, usize) -> Result<usize>) -> Result<usize> {
        let Some(v) = self.view() else { return Ok(0) };
        let (own, peer) = (line!(v, consumer, v.me), line!(v, producer, v.me.other()));
        let Some(area) = v.rx_area() else { return Ok(0) };
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
        if self.rx.readable(line!(v, producer, v.me.other())) && flags & (RX_SHUT | DEAD | PEER_FIN) != 0 {
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

    /// Whether nobody at the other end will ever read again.
    fn peer_closed(&self, v: &View) -> bool {
        line!(v, consumer, v.me.other()).closed.load(Ordering::Acquire) != 0 || v.link.is_lost()
    }
}

impl Endpoint for ShmEndpoint {
    fn try_write(&self, src: &mut Iov<'_>) -> Result<usize> {
        let Some(v) = self.view() else { return Err(Errno::PIPE) };
        self.note_cpu(&v);
        self.check_writable(&v)?;
        if self.peer_closed(&v) {
            // As on the wire: this write goes out, the answer is a reset, the next write fails.
            let n = src.left();
            if n > 0 {
                let fin = self.flags.load(Ordering::Acquire) & PEER_FIN != 0;
                self.die(if fin { Errno::PIPE } else { Errno::CONNRESET });
                src.skip(n);
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
        loop {
            if dst.left() == 0 && self.rx.readable(line!(v, producer, v.me.other())) {
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
        let Some(v) = self.view() else { return Readiness(Readiness::HUP | Readiness::IN | Readiness::OUT) };
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
        if self.rx.readable(line!(v, producer, v.me.other())) {
            r |= Readiness::IN;
        }
        if no_tx || self.peer_closed(&v) || self.tx.writable(line!(v, consumer, v.me.other())).unwrap_or(true) {
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
        let base = self.base.load(Ordering::Relaxed);
        if base != 0 {
            set.add(base - 1, libc::POLLIN | libc::POLLRDHUP);
        }
        // The registration is a SeqCst exchange; the peer publishes, then looks at it. Our look comes
        // after, so one of us sees the other.
        core::sync::atomic::fence(Ordering::SeqCst);
        let r = self.readiness();
        (interest.read && r.readable()) || (interest.write && r.writable())
    }

    fn disarm(&self, interest: Interest, set: &WaitSet) {
        let Some(v) = self.view() else { return };
        let Some(bell) = set.borrowed_bell(v.link) else { return };
        let own = line!(v, side, v.me);
        if interest.read {
            self.unregister(&v, &own.rx_waiter, bell);
        }
        if interest.write {
            self.unregister(&v, &own.tx_waiter, bell);
        }
    }

    fn shutdown(&self, how: Shut) {
        let Some(v) = self.view() else { return };
        if how != Shut::Read && self.flags.fetch_or(TX_SHUT, Ordering::AcqRel) & TX_SHUT == 0 {
            line!(v, producer, v.me).fin.fetch_or(FIN, Ordering::SeqCst);
            self.tell_data(&v);
        }
        if how != Shut::Write {
            self.flags.fetch_or(RX_SHUT, Ordering::AcqRel);
        }
        self.poke_self();
    }

    fn close(&self, abort: bool) {
        let Some(v) = self.view() else { return };
        let unread = self.rx.readable(line!(v, producer, v.me.other()));
        let own = line!(v, producer, v.me);
        own.fin.fetch_or(if unread || abort { RESET } else { FIN }, Ordering::SeqCst);
        line!(v, consumer, v.me).closed.store(CLOSED, Ordering::SeqCst);
        // Nobody of ours is to be told anything any more.
        let side = line!(v, side, v.me);
        for w in [&side.watch, &side.rx_waiter, &side.tx_waiter, &side.want_room] {
            w.store(0, Ordering::Relaxed);
        }
        self.tell_data(&v);
        self.tell_room(&v, true);
        let base = self.base.swap(0, Ordering::AcqRel);
        if base != 0 {
            private::close(base - 1);
        }
        self.flags.store(0, Ordering::Release);
        match v.me {
            Side::Client => v.link.slots.closed(v.index),
            // Release: after this the client may use the slot for another connection.
            Side::Server => v.slot.open.server_done.store(self.epoch.load(Ordering::Relaxed), Ordering::Release),
        }
        v.link.put();
    }

    fn unread(&self) -> usize {
        let Some(v) = self.view() else { return 0 };
        self.rx.available(line!(v, producer, v.me.other())).unwrap_or(0) as usize
    }

    fn unsent(&self) -> usize {
        let Some(v) = self.view() else { return 0 };
        self.tx.unread(line!(v, consumer, v.me.other())).unwrap_or(0) as usize
    }

    fn take_error(&self) -> i32 {
        if let Some(v) = self.view() {
            self.observe(&v);
        }
        self.error.swap(0, Ordering::AcqRel)
    }

    fn peer_cpu(&self) -> u32 {
        let Some(v) = self.view() else { return cpu::NO_CPU };
        line!(v, side, v.me.other()).cpu.load(Ordering::Relaxed)
    }
}

impl ShmEndpoint {
    /// Whether both directions have ended: what tcp(7) calls not connected.
    pub fn is_over(&self) -> bool {
        let Some(v) = self.view() else { return true };
        let flags = self.observe(&v);
        flags & DEAD != 0 || flags & (TX_SHUT | PEER_FIN) == TX_SHUT | PEER_FIN
    }
}
