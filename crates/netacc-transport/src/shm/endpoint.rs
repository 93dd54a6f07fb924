//! One side of one connection in shared memory.

use crate::endpoint::Endpoint;
use crate::num;
use crate::shm::delays::Delays;
use crate::shm::edges::Edges;
use crate::shm::link::Link;
use crate::shm::machine::{Machine, Place};
use crate::shm::owed_dial::OwedDial;
use crate::shm::segment::{CONNECT_QUEUED, Segment, Slot, WIPED};
use crate::shm::side::Side;
use crate::shm::side_machines::{Ends, EndsEvent, Life, LifeEvent, Switch, SwitchEvent};
use crate::shm::side_state::{SideState, StateWord};
use crate::shm::waiters::Waiters;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use netacc_ring::{Area, CLOSED, Consumer, FIN, HOLDING, OPEN, Producer, RESET, SWITCHED, has_not_ended};
use netacc_stats::{Counter, Reason, page};
use netacc_sys::cpu;
use netacc_sys::errno::Errno;
use netacc_sys::{Lock, lock_rank};

/// One side of a slot. It lives inside its [`Link`], and is reused for one connection after the other.
#[derive(Debug)]
pub struct ShmEndpoint {
    link: AtomicPtr<Link>,
    pub(super) index: AtomicU32,
    pub(super) state: StateWord,
    /// The error (errno) that the next call reports; 0: none.
    pub(super) error: AtomicI32,
    pub(super) generation: AtomicU32,
    pub(super) tx: Producer,
    pub(super) rx: Consumer,
    /// Threads of this process that wait for the connection, beside those that the words in shared memory name.
    pub(super) waiters: Waiters,
    /// Number + 1 of the RDMA engine that carries the connection, if the other program is on another host; 0: it is on
    /// this host. Stored when the connection begins, so that a wait touches no further cache line.
    pub(super) remote: AtomicU32,
    /// The socket layer's object for this connection.
    pub owner: AtomicUsize,
    /// The socket layer's registration that the subscribed ready set reports to.
    pub registration: AtomicUsize,
    /// Our ready set that watches the endpoint; 0: none.
    pub ready_set: AtomicU32,
    /// The counters by which edge-triggered epoll recognises new events, and SO_RCVLOWAT.
    pub(super) edges: Edges,
    /// Position of a pending connect in the connect queue; see [`super::pending`].
    pub(super) queued_at: AtomicU64,
    /// Time before which a queued connect whose server has died is not made again; see [`ShmEndpoint::queue_again`].
    pub(super) kept_until: AtomicU64,
    /// The peer liveness socket (reserved descriptor + 1), and in the upper half the generation of its connection. It
    /// is one word, since the socket may be received while the connection begins.
    pub(super) peer_liveness: AtomicU64,
    /// Number of threads that are using the number of `liveness` or `old_subflow`; see [`super::numbers`].
    pub(super) users: AtomicU32,
    /// Held by the thread that reads a liveness socket of either side; see [`super::drain`].
    pub(super) draining: Lock<{ lock_rank::NONE }>,
    /// The application's descriptor that is our liveness socket (number + 1).
    pub(super) liveness: AtomicI32,
    /// The socket that was accepted from our listening liveness socket (reserved descriptor + 1).
    pub(super) accepted: AtomicI32,
    /// The token that the peer has to send first on that socket.
    pub(super) token: AtomicU64,
    /// The token by which the peer's liveness socket is found, if that liveness socket listens; 0 otherwise.
    pub(super) peer_token: AtomicU64,
    /// Number of connections that were made to the peer's listening liveness socket. While our own liveness socket
    /// listens and the peer has none: the time (in units of 2^24 ns) of the last check for the peer; see
    /// [`ShmEndpoint::is_abandoned`].
    pub(super) dialed: AtomicU32,
    /// A connection to the peer's listening liveness socket that could not be made yet.
    pub(super) owed_dial: OwedDial,
    /// The old subflow, whose bytes come before the ring's (descriptor + 1); negative: it was read to its end, and the
    /// descriptor is still to be closed.
    pub(super) old_subflow: AtomicI32,
    /// The kernel socket on which a connection goes on that another process has taken off the rings (reserved
    /// descriptor + 1; [`super::passed`] has a value for a lost one).
    pub(super) kernel: AtomicI32,
    /// The generation of the connection that `kernel` was passed for.
    pub(super) kernel_generation: AtomicU32,
    /// The generation of the last connection that this process has left to its other sharers or switched: descriptors
    /// that are still passed for it are dropped.
    pub(super) left: AtomicU32,
    /// The enclosed copy of the peer's end of that pair, which is sent back for the peer's other sharers (reserved
    /// descriptor + 1).
    pub(super) sibling_copy: AtomicI32,
    /// The old subflow with bytes that this side has sent and a peer that left the rings has not read (reserved
    /// descriptor + 1).
    pub(super) unread_return: AtomicI32,
    /// Number of bytes that this side has sent over the old subflow.
    pub(super) sent_before: AtomicU64,
    /// Time that our threads have lost by waiting for words of the peer, in this and earlier connections of the slot.
    pub(super) delays: Delays,
}

/// The parts of an endpoint that an operation needs, looked up once.
pub(super) struct View {
    pub(super) slot: &'static Slot,
    pub(super) seg: Segment,
    pub(super) link: &'static Link,
    pub(super) me: Side,
    pub(super) index: usize,
}

impl View {
    /// The name of this side in log lines.
    pub(super) fn place(&self) -> Place {
        Place { link: self.link.id(), slot: num::small(self.index) }
    }

    pub(super) fn tx_area(&self) -> Option<Area> {
        self.seg.area(self.index, self.me)
    }

    pub(super) fn rx_area(&self) -> Option<Area> {
        self.seg.area(self.index, self.me.other())
    }
}

impl ShmEndpoint {
    /// Sets the endpoint's link and slot, which never change. Several threads may do so at once in fresh memory: they
    /// store the same values.
    pub(crate) fn attach(&self, link: &'static Link, index: usize) {
        self.index.store(num::small(index), Ordering::Relaxed);
        // Release: a thread that sees the link sees the index.
        self.link.store(core::ptr::from_ref(link).cast_mut(), Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_attached(&self) -> bool {
        !self.link.load(Ordering::Acquire).is_null()
    }

    /// To be called before the endpoint's link is used again.
    pub(crate) fn reset(&self) {
        self.state.reset();
        self.left.store(0, Ordering::Relaxed);
    }

    /// The link this endpoint belongs to.
    #[inline]
    #[allow(unsafe_code)]
    pub fn link(&self) -> &'static Link {
        // SAFETY: `attach` stores the address before the endpoint is handed out, and links are never freed.
        unsafe { &*self.link.load(Ordering::Relaxed) }
    }

    /// The name of this side in log lines.
    pub(super) fn place(&self) -> Place {
        Place { link: self.link().id(), slot: self.index.load(Ordering::Relaxed) }
    }

    /// Applies an event to one of the state machines of this side. Returns the previous state.
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

    /// Whether descriptors that the peer passes for connection `generation` are kept: it is open here, or is about to
    /// begin (server), or its slot waits for the end of the server's processes (client; see
    /// [`ShmEndpoint::servers_gone`]).
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
            // This is noted for an open connection, too, since another thread may be about to close it.
            v.link.passed.store(1, Ordering::Relaxed);
        }
        expected
    }

    /// Whether this process may still go on with connection `generation`, for which descriptors are kept. Otherwise it
    /// needs no socket, and a socket that it kept would keep the stream from ending.
    pub(super) fn will_go_on(&self, generation: u32) -> bool {
        let left = self.left.load(Ordering::Acquire) == generation;
        self.is_live() || (self.link().side() == Side::Server && !left)
    }

    /// Ends the connection in this process, while others may go on with it. Descriptors that another thread has just
    /// received for it are dropped, too.
    pub(super) fn leave(&self) {
        self.left.store(self.generation.load(Ordering::Relaxed), Ordering::Release);
        self.state.end(self.place());
        self.drop_kernel();
    }

    /// Drops the descriptors that the peer has passed: the link ends, or this is the child of a fork, and the
    /// connection does not belong to the program.
    pub fn drop_passed(&self) {
        self.close_peer_liveness();
        self.owed_dial.forget();
        self.drop_kernel();
    }

    /// Whether the windows of this slot are mapped, or could be mapped now: without them no connection can begin.
    pub fn has_windows(&self) -> bool {
        self.view().is_some_and(|v| v.seg.reach(v.index).is_ok())
    }

    /// Begins a connection in this slot. False: there is one, or its windows cannot be mapped. The client also resets
    /// the shared words; if it does not, it harms only its own connection.
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
            // A server that closed after us has reset its own words, which are in its cache. Relaxed: the thread that
            // claimed the slot has loaded the mark with Acquire. A server that sets it wrongly harms only its own
            // connection.
            let before = s.open.generation.load(Ordering::Relaxed);
            if before == 0 || s.open.server_done.load(Ordering::Relaxed) != before | WIPED {
                s.wipe(Side::Server);
                line!(v, side, Side::Server).cpu.store(cpu::NO_CPU, Ordering::Relaxed);
            }
            s.open.generation.store(generation, Ordering::Relaxed);
            s.open.outcome.store(CONNECT_QUEUED, Ordering::Relaxed);
            s.open.leaving.store(0, Ordering::Relaxed);
        }
        // At a client the word in the slot may still be that of the last connection. A server loads the client's word
        // only here, and believes only a client that it trusts.
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
        self.kept_until.store(0, Ordering::Relaxed);
        self.edges.begin();
        self.state.begin(v.place());
        v.link.slot_taken();
        true
    }

    /// Handles a violation by the peer: resets the connection, and returns the error for the current call.
    pub(super) fn violated(&self, v: &View) -> Errno {
        page().count(Counter::ProtocolErrors);
        page().fallback(Reason::ProtocolError);
        // The violation concerns this connection only, which is reset on both sides.
        line!(v, producer, v.me).fin.store(RESET, Ordering::SeqCst);
        self.die(Errno::CONNRESET);
        self.announce_data(v);
        match self.take_error() {
            // The error has been reported already.
            0 => Errno::PIPE,
            e => Errno(e),
        }
    }

    /// Handles a violation as `violated` does, for a call that reads: once the reset has been reported, such a call
    /// finds the end of the stream.
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

    /// Updates the state by the peer's words and the link's state, which show ends, resets and switches, and returns
    /// it.
    #[inline]
    pub(super) fn observe(&self, v: &View) -> SideState {
        let state = self.state.look();
        // Acquire: a final head was published before the mark.
        let fin = line!(v, producer, v.me.other()).fin.load(Ordering::Acquire);
        // In nearly every call both sides live and go on, so that nothing changes the state.
        if state.is_settled() && fin & !HOLDING == OPEN && !self.peer_died(v) {
            return state;
        }
        self.observe_change(v)
    }

    /// The part of [`ShmEndpoint::observe`] that notes changes. It is out of line, so that nearly every call needs few
    /// registers.
    #[cold]
    #[inline(never)]
    fn observe_change(&self, v: &View) -> SideState {
        let state = self.state.look();
        if state.is_dead() {
            return state;
        }
        if state.is_shared() && !state.has_shut_both() {
            // Another of our sharers may have ended our stream, or both streams.
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
                self.reset_for(v, "marked the connection as switched");
                return self.state.look();
            }
            if let Some(left) = left {
                self.on::<Switch>(left);
            }
        }
        if fin & RESET != 0 && self.state.look().ends() == Ends::Closed {
            // Both ends were sent before: there is nothing left that a reset could reach.
        } else if fin & RESET != 0 {
            // A reset after the peer's end of stream is reported as EPIPE, any other as ECONNRESET (tcp(7)).
            self.die(if fin & FIN != 0 { Errno::PIPE } else { Errno::CONNRESET });
        } else if has_not_ended(fin)
            && self.peer_died(v)
            // A process that ended or switched its stream stored its mark before it died, so the mark is loaded again,
            // now that the process is gone.
            && has_not_ended(line!(v, producer, peer).fin.load(Ordering::Acquire))
        {
            // The peer died without closing. The kernel would have closed its sockets: with a reset if it left unread
            // data behind, otherwise with an end of stream. As long as the old subflow of a promoted connection has not
            // ended, it reports the end, and has bytes that come first.
            if self.has_old_subflow() && (self.old_subflow_ready().is_some() || self.is_dead()) {
                return self.state.look();
            }
            match self.peer_left_unread(v).map(|n| n.saturating_add(self.unread_before(v))) {
                // If the peer is an RDMA engine, the program on the other host may live, and has not ended its stream.
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

    /// Whether the peer died after it had ended its stream, and left bytes of ours unread: the kernel would have sent a
    /// reset, which is then reported as EPIPE (tcp(7)). If the peer had read all of them, a writer learns of its death
    /// when it writes.
    #[cold]
    fn died_after_its_end(&self, v: &View) -> bool {
        let fin = || line!(v, producer, v.me.other()).fin.load(Ordering::Acquire);
        let ended = |fin: u32| fin & (FIN | CLOSED | SWITCHED | RESET) == FIN;
        // The peer stores its marks before it dies, so they are loaded again, now that it is gone.
        ended(fin()) && self.peer_died(v) && ended(fin()) && self.peer_left_unread(v) != Some(0)
    }

    /// Time (ticks) of the peer's last event for us, by which events of several connections are ordered. The peer can
    /// store any value.
    #[inline]
    pub fn arrived(&self) -> u64 {
        self.view().map_or(0, |v| line!(v, producer, v.me.other()).when.load(Ordering::Relaxed))
    }

    /// Whether any byte was written to a connect that waits in its queue.
    pub fn has_written(&self) -> bool {
        let mut any = false;
        self.replay(|_, n| any |= n > 0);
        any
    }

    /// Whether our stream was ended.
    pub fn ended(&self) -> bool {
        self.state.look().has_shut()
    }

    /// Resets a connection that cannot go on, and wakes its threads.
    pub fn fail(&self, e: Errno) {
        self.die(e);
        self.poke_self();
    }

    /// Tells the server that a connect was queued (client, on slot 0).
    pub fn announce(&self) {
        if let Some(v) = self.view() {
            self.announce_data(&v);
        }
    }

    /// Wakes the peer, so that it checks this connection again.
    pub fn stir_peer(&self) {
        if let Some(v) = self.view() {
            self.announce_data(&v);
            self.announce_room(&v, true);
        }
    }
}
