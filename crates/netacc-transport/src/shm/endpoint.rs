//! One side of one connection in shared memory.

use crate::endpoint::Endpoint;
use crate::shm::delays::Delays;
use crate::shm::edges::Edges;
use crate::shm::link::Link;
use crate::shm::machine::{Machine, Place};
use crate::shm::segment::{CONNECT_QUEUED, CONNECT_REFUSED, CONNECT_TAKEN, CONNECT_WITHDRAWN, Segment, Slot, WIPED};
use crate::shm::side::Side;
use crate::shm::side_machines::{Ends, EndsEvent, Life, LifeEvent, Switch, SwitchEvent};
use crate::shm::side_state::{SideState, StateWord};
use crate::shm::waiters::Waiters;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use netacc_ring::{Area, CLOSED, Consumer, FIN, HOLDING, OPEN, Producer, RESET, SWITCHED};
use netacc_stats::{Counter, Reason, page};
use netacc_sys::cpu;
use netacc_sys::errno::Errno;
use netacc_sys::lock::Lock;

/// One side of a slot. It lives inside its [`Link`], and is reused for one connection after the other.
#[derive(Debug)]
pub struct ShmEndpoint {
    link: AtomicPtr<Link>,
    pub(super) index: AtomicU32,
    pub(super) state: StateWord,
    pub(super) error: AtomicI32,
    pub(super) generation: AtomicU32,
    pub(super) tx: Producer,
    pub(super) rx: Consumer,
    /// Threads of ours that sleep for this endpoint, beside those that the words in shared memory name.
    pub(super) waiters: Waiters,
    /// Set if the other program is on another host; stored when the connection begins, so that a wait touches no
    /// further line.
    pub(super) remote: AtomicU32,
    /// The socket layer's object for this connection.
    pub owner: AtomicUsize,
    /// The socket layer's registration that the subscribed ready set reports to.
    pub registration: AtomicUsize,
    /// Our ready set that watches the endpoint; 0: none.
    pub ready_set: AtomicU32,
    /// What edge-triggered epoll goes by, and SO_RCVLOWAT.
    pub(super) edges: Edges,
    /// Its position in the connect queue, of one that is pending; see [`super::pending`].
    pub(super) queued_at: AtomicU64,
    /// The end of the peer's liveness socket that the peer passed to us (descriptor + 1), and in the upper half the
    /// generation of the connection it was passed for: one word, since it may come while the connection begins.
    pub(super) peer_liveness: AtomicU64,
    /// Number of threads that use the number of `liveness` or `old_subflow` just now; see [`super::numbers`].
    pub(super) users: AtomicU32,
    /// Held by the thread that reads a liveness socket of either side; see [`super::drain`].
    pub(super) draining: Lock,
    /// The application's descriptor that is our liveness socket (number + 1).
    pub(super) liveness: AtomicI32,
    /// The socket that was accepted from a liveness socket that listens (private descriptor + 1), and the token that it has to
    /// send first.
    pub(super) accepted: AtomicI32,
    pub(super) token: AtomicU64,
    /// The token by which the peer's liveness socket is found, if that liveness socket listens; 0 otherwise.
    pub(super) peer_token: AtomicU64,
    /// Number of times that the peer's liveness socket was connected to. Where our own liveness socket listens: when
    /// the peer was last looked for.
    pub(super) dialed: AtomicU32,
    /// The kernel socket whose bytes come before the ring's (number + 1).
    pub(super) old_subflow: AtomicI32,
    /// The kernel socket on which a connection that left the rings goes on (private descriptor + 1).
    pub(super) kernel: AtomicI32,
    /// The generation of the connection that `kernel` was passed for.
    pub(super) kernel_generation: AtomicU32,
    /// The generation of the last connection that this process has left to its other sharers or taken elsewhere: what is
    /// still passed for it is nobody's here.
    pub(super) left: AtomicU32,
    /// The peer's end of that pair, for its other sharers (private descriptor + 1).
    pub(super) sibling_copy: AtomicI32,
    /// What we sent by TCP and a peer that left the rings has not read (private descriptor + 1).
    pub(super) unread_return: AtomicI32,
    /// Number of bytes that we sent by the kernel, for a connection that began there.
    pub(super) sent_before: AtomicU64,
    /// Time (ns) that our threads lost by the peer's words, in this and earlier connections of the slot.
    pub(super) delays: Delays,
}

/// Everything that an operation needs, looked up once.
pub(super) struct View {
    pub(super) slot: &'static Slot,
    pub(super) seg: Segment,
    pub(super) link: &'static Link,
    pub(super) me: Side,
    pub(super) index: usize,
}

impl View {
    /// What the log calls this side.
    pub(super) fn place(&self) -> Place {
        Place { link: self.link.id(), slot: self.index as u32 }
    }

    pub(super) fn tx_area(&self) -> Option<Area> {
        self.seg.area(self.index, self.me)
    }

    pub(super) fn rx_area(&self) -> Option<Area> {
        self.seg.area(self.index, self.me.other())
    }
}

impl ShmEndpoint {
    /// Says once and for all which endpoint this is: in fresh memory, perhaps by several threads at once, which store
    /// the same values.
    pub(crate) fn attach(&self, link: &'static Link, index: usize) {
        self.index.store(index as u32, Ordering::Relaxed);
        // Release: a thread that sees the link sees the index.
        self.link.store(core::ptr::from_ref(link).cast_mut(), Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_attached(&self) -> bool {
        !self.link.load(Ordering::Acquire).is_null()
    }

    /// To be called before its link is used anew.
    pub(crate) fn reset(&self) {
        self.state.reset();
        self.left.store(0, Ordering::Relaxed);
    }

    /// The link this endpoint belongs to.
    #[inline]
    #[allow(unsafe_code)]
    pub fn link(&self) -> &'static Link {
        // SAFETY: set in `attach` before the endpoint is reachable, to a link, which is never freed.
        unsafe { &*self.link.load(Ordering::Relaxed) }
    }

    /// What the log calls this side.
    pub(super) fn place(&self) -> Place {
        Place { link: self.link().id(), slot: self.slot_index() as u32 }
    }

    /// Has an event happen to one of the machines of this side. Returns the state before.
    #[cold]
    pub(super) fn on<M: Machine>(&self, event: M::Event) -> SideState {
        self.state.on::<M>(self.place(), event)
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
        self.state.look().is_live()
    }

    /// Whether connection `generation` is open here, or is about to begin (server), or waits for the end of the server's
    /// processes (client; see [`ShmEndpoint::servers_gone`]): then what the peer passes for it is kept.
    pub(super) fn expects(&self, generation: u32) -> bool {
        let Some(v) = self.view().filter(|_| generation != 0) else { return false };
        let expected = if self.is_live() {
            self.generation.load(Ordering::Relaxed) == generation
        } else {
            let open = &v.slot.open;
            open.generation.load(Ordering::Relaxed) == generation
                && open.server_done.load(Ordering::Acquire) & !WIPED != generation
                && (v.me == Side::Server || v.link.slots.is_closing(v.index))
        };
        if expected {
            // This is noted for an open connection, too, which another thread may be about to close.
            v.link.passed.store(1, Ordering::Relaxed);
        }
        expected
    }

    /// Whether connection `generation`, for which something is kept, is not over here: otherwise this process needs no
    /// socket to go on over, and would keep the stream of the one that it got from ending.
    pub(super) fn will_go_on(&self, generation: u32) -> bool {
        let left = self.left.load(Ordering::Acquire) == generation;
        self.is_live() || (self.link().side() == Side::Server && !left)
    }

    /// The connection is over in this process, and others may go on with it. What another thread has just taken in for it
    /// is dropped, too.
    pub(super) fn leave(&self) {
        self.left.store(self.generation.load(Ordering::Relaxed), Ordering::Release);
        self.state.end(self.place());
        self.drop_kernel();
    }

    /// Drops what the peer passed: the link ends, or this is the child of a fork and the endpoint does not belong to
    /// the program.
    pub fn drop_passed(&self) {
        self.close_peer_liveness();
        self.drop_kernel();
    }

    /// Whether the windows of this slot are mapped, or could be just now: without them no connection can begin.
    pub fn has_windows(&self) -> bool {
        self.view().is_some_and(|v| v.seg.reach(v.index).is_ok())
    }

    /// Begins a connection in this slot, unless there is one or no room for its windows. The client also wipes the
    /// shared words; the server then finds them wiped, or else the client lies and hurts itself.
    pub fn begin(&'static self, generation: u32) -> bool {
        let Some(v) = self.view() else { return false };
        if self.is_live() || v.seg.reach(v.index).is_err() {
            return false;
        }
        v.link.hold();
        if v.me == Side::Client {
            let s = v.slot;
            s.wipe(Side::Client);
            line!(v, side, Side::Client).cpu.store(cpu::current(), Ordering::Relaxed);
            // A server that closed after us has wiped its own words, which are in its cache. Relaxed: the thread that
            // claimed the slot has acquired the mark. If the server lies, it hurts its own connection.
            let before = s.open.generation.load(Ordering::Relaxed);
            if before == 0 || s.open.server_done.load(Ordering::Relaxed) != before | WIPED {
                s.wipe(Side::Server);
                line!(v, side, Side::Server).cpu.store(cpu::NO_CPU, Ordering::Relaxed);
            }
            s.open.generation.store(generation, Ordering::Relaxed);
            s.open.outcome.store(CONNECT_QUEUED, Ordering::Relaxed);
            s.open.leaving.store(0, Ordering::Relaxed);
        }
        // A client's slot may still say what its last connection was. A server loads the peer's word here and nowhere else,
        // and believes it of its own user alone.
        let peer_end = match v.me {
            Side::Client => v.link.remote.load(Ordering::Relaxed),
            Side::Server if v.link.trusts_peer() => v.slot.open.remote_engine(),
            Side::Server => 0,
        };
        self.remote.store(peer_end, Ordering::Relaxed);
        self.tx.reset();
        self.rx.reset();
        self.error.store(0, Ordering::Relaxed);
        self.generation.store(generation, Ordering::Relaxed);
        drop(self.take_liveness());
        self.old_subflow.store(0, Ordering::Relaxed);
        self.forget_kernel_of_another(&v, generation);
        self.forget_stale_peer_liveness(generation);
        self.registration.store(0, Ordering::Relaxed);
        self.ready_set.store(0, Ordering::Relaxed);
        self.edges.begin();
        self.state.begin(v.place());
        v.link.slot_taken();
        true
    }

    pub(super) fn violated(&self, v: &View) -> Errno {
        page().count(Counter::ProtocolErrors);
        page().fallback(Reason::ProtocolError);
        // The peer broke the rules of this connection only: resets it on both sides.
        line!(v, producer, v.me).fin.store(RESET, Ordering::SeqCst);
        self.die(Errno::CONNRESET);
        self.announce_data(v);
        match self.take_error() {
            // The error has been reported already.
            0 => Errno::PIPE,
            e => Errno(e),
        }
    }

    /// Deals with a violation as `violated` does, for a call that reads: for it a reset that has been reported is the
    /// end of the stream.
    pub(super) fn violated_for_reader(&self, v: &View) -> netacc_sys::errno::Result<usize> {
        match self.violated(v) {
            Errno::PIPE => Ok(0),
            e => Err(e),
        }
    }

    /// Marks the connection as reset. The first thread to notice leaves the error for the next call that asks for it.
    pub(super) fn die(&self, e: Errno) {
        if !self.on::<Life>(LifeEvent::Reset).is_dead() {
            self.error.store(e.0, Ordering::Release);
        }
    }

    /// Whether a reset has been found, or caused, by a call here.
    pub fn is_dead(&self) -> bool {
        self.state.look().is_dead()
    }

    /// What the peer's words and the link's state say about the stream's end.
    #[inline]
    pub(super) fn observe(&self, v: &View) -> SideState {
        let state = self.state.look();
        // Acquire: a final head was published before the mark.
        let fin = line!(v, producer, v.me.other()).fin.load(Ordering::Acquire);
        // Nearly every look finds two living sides that go on, and nothing that would change the state.
        if state.is_settled() && fin & !HOLDING == OPEN && !self.peer_died(v) {
            return state;
        }
        self.observe_change(v)
    }

    /// Looks as [`ShmEndpoint::observe`] does, and notes what has changed. Out of line, so that nearly every look needs few
    /// registers.
    #[cold]
    #[inline(never)]
    fn observe_change(&self, v: &View) -> SideState {
        let state = self.state.look();
        if state.is_dead() {
            return state;
        }
        if state.is_shared() && !state.has_shut_both() {
            // Another of our sharers may have ended our stream, or both.
            let fin = line!(v, producer, v.me).fin.load(Ordering::Acquire);
            let both = fin & CLOSED != 0;
            if fin & FIN != 0 && (both || !state.has_shut()) {
                self.state.shut(v.place(), both, true);
            }
        }
        let peer = v.me.other();
        // Acquire: a final head was published before the mark.
        let fin = line!(v, producer, peer).fin.load(Ordering::Acquire);
        if fin & FIN != 0 && !state.has_peer_ended() {
            self.on::<Ends>(EndsEvent::PeerEnd);
        }
        if state.switch() == Switch::Idle {
            let left = if fin & SWITCHED != 0 {
                Some(SwitchEvent::PeerLeaves)
            } else if state.is_shared() && line!(v, producer, v.me).fin.load(Ordering::Acquire) & SWITCHED != 0 {
                Some(SwitchEvent::SharerLeaves)
            } else {
                None
            };
            if left.is_some() && !v.link.trusts_peer() {
                self.reset_for(v, "marked the connection as moved");
                return self.state.look();
            }
            if let Some(left) = left {
                self.on::<Switch>(left);
            }
        }
        if fin & RESET != 0 && self.state.look().ends() == Ends::Closed {
            // Both ends were sent before: there is nothing left that a reset could reach.
        } else if fin & RESET != 0 {
            // tcp(7): a reset after the peer's end of stream is EPIPE, else ECONNRESET.
            self.die(if fin & FIN != 0 { Errno::PIPE } else { Errno::CONNRESET });
        } else if fin & !HOLDING == OPEN
            && self.peer_died(v)
            // A process that ended or moved the stream said so before it went: look again, now that it is gone.
            && line!(v, producer, peer).fin.load(Ordering::Acquire) & !HOLDING == OPEN
        {
            // The peer died without closing. The kernel would have closed its sockets: a reset if it left unread data
            // behind, else an end of stream. As long as the kernel's socket of a promoted connection has not ended,
            // that socket reports the end, and has bytes that come first.
            if self.old_subflow.load(Ordering::Relaxed) != 0 && (self.old_subflow_ready().is_some() || self.is_dead()) {
                return self.state.look();
            }
            match self.peer_left_unread(v).map(|n| n.saturating_add(self.unread_before(v))) {
                // If the peer is an engine, the program on the other host lives, and has not ended its stream.
                Some(0) if !(self.is_remote() || v.link.is_remote()) => {
                    self.on::<Ends>(EndsEvent::PeerEnd);
                }
                _ => self.die(Errno::CONNRESET),
            }
        } else if self.state.look().ends() == Ends::CloseWait && self.died_after_its_end(v) {
            self.die(Errno::PIPE);
        }
        self.state.look()
    }

    /// Whether the peer died after it had ended its stream, and left bytes of ours unread: the kernel would have sent a reset,
    /// which tcp(7) tells as EPIPE then. Of a peer that had read all of them a writer hears when it writes.
    #[cold]
    fn died_after_its_end(&self, v: &View) -> bool {
        let fin = || line!(v, producer, v.me.other()).fin.load(Ordering::Acquire);
        let ended = |fin: u32| fin & (FIN | CLOSED | SWITCHED | RESET) == FIN;
        // What it said before it went is looked at again, now that it is gone.
        ended(fin()) && self.peer_died(v) && ended(fin()) && self.peer_left_unread(v) != Some(0)
    }

    /// When the peer had news for us (ticks): it orders events of several connections, and is no more than a claim.
    #[inline]
    pub fn arrived(&self) -> u64 {
        self.view().map_or(0, |v| line!(v, producer, v.me.other()).when.load(Ordering::Relaxed))
    }

    /// Server: takes a queued connect. False if the client withdrew it.
    pub fn take(&self) -> bool {
        self.decide(CONNECT_TAKEN)
    }

    /// Client: withdraws a connect that the server has not taken. False if it has.
    pub fn withdraw(&self) -> bool {
        self.decide(CONNECT_WITHDRAWN)
    }

    /// What became of a queued connect or an offered promotion: a `CONNECT_` value.
    pub fn outcome(&self) -> u32 {
        self.view().map_or(CONNECT_WITHDRAWN, |v| v.slot.open.outcome.load(Ordering::Acquire))
    }

    /// Time (ns) since the connect or offer was made.
    pub fn age(&self) -> u64 {
        let when = self.view().map_or(0, |v| v.slot.open.when.load(Ordering::Relaxed));
        netacc_sys::time::now().saturating_sub(when)
    }

    /// Server: refuses a promotion.
    pub fn refuse(&self, generation: u32) {
        self.decide(CONNECT_REFUSED);
        self.never_mind(generation);
    }

    /// Server: marks a withdrawn connect as done with.
    pub fn never_mind(&self, generation: u32) {
        if let Some(v) = self.view() {
            v.slot.open.server_done.store(generation, Ordering::Release);
        }
    }

    /// Client: whether the server's process died before it took the connect. Another process may serve it.
    pub fn orphaned(&self) -> bool {
        self.is_live() && self.view().is_some_and(|v| self.is_orphan(&v))
    }

    /// Client: whether the connect waits in its queue.
    pub fn is_queued(&self) -> bool {
        self.is_live() && self.outcome() == CONNECT_QUEUED && self.view().is_some_and(|v| v.me == Side::Client)
    }

    pub(super) fn is_orphan(&self, v: &View) -> bool {
        // The slot's own line first: it is at rest once the connect is taken, while the link's header, which `is_withdrawn`
        // reads, moves with every connect.
        v.me == Side::Client
            && v.slot.open.outcome.load(Ordering::Acquire) == CONNECT_QUEUED
            && (v.link.is_lost() || v.link.is_withdrawn())
    }

    /// Whether anything was written so far to a connect that waits in its queue.
    pub fn has_written(&self) -> bool {
        let mut any = false;
        self.replay(|_, n| any |= n > 0);
        any
    }

    /// Whether our stream was ended.
    pub fn ended(&self) -> bool {
        self.state.look().has_shut()
    }

    /// Ends a connection that cannot go on.
    pub fn fail(&self, e: Errno) {
        self.die(e);
        self.poke_self();
    }

    pub(super) fn decide(&self, outcome: u32) -> bool {
        // AcqRel: whichever side decides first, the other one sees what led to it.
        self.view().is_some_and(|v| {
            let cell = &v.slot.open.outcome;
            cell.compare_exchange(CONNECT_QUEUED, outcome, Ordering::AcqRel, Ordering::Acquire).is_ok()
        })
    }

    /// Tells the server that a connect was queued (client, on slot 0).
    pub fn announce(&self) {
        if let Some(v) = self.view() {
            self.announce_data(&v);
        }
    }

    /// Makes the peer look at this connection again.
    pub fn stir_peer(&self) {
        if let Some(v) = self.view() {
            self.announce_data(&v);
            self.announce_room(&v, true);
        }
    }
}
