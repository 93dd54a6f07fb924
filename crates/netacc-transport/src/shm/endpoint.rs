//! One side of one connection in shared memory.

use crate::endpoint::Endpoint;
use crate::shm::delays::Delays;
use crate::shm::edges::Edges;
use crate::shm::heir_waker::HeirWaker;
use crate::shm::liveness::Liveness;
use crate::shm::old_subflow::OldSubflow;
use crate::shm::passed::PassedSockets;
use crate::shm::queued_connect::QueuedConnect;
use crate::shm::rings::Rings;
use crate::shm::segment::{CONNECT_QUEUED, WIPED};
use crate::shm::side::Side;
use crate::shm::side_machines::{Ends, EndsEvent, Switch, SwitchEvent};
use crate::shm::side_state::SideState;
use crate::shm::slot_side::{SlotSide, View};
use crate::shm::standstill::Standstill;
use crate::shm::waiters::Waiters;
use crate::shm::windows::{self, WindowCharge};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use netacc_ring::{CLOSED, FIN, HOLDING, OPEN, RESET, SWITCHED, has_not_ended};
use netacc_stats::{Counter, Reason, page};
use netacc_sys::errno::Errno;
use netacc_sys::{cpu, time};

/// One side of a slot. It lives inside its [`Link`], and is reused for one connection after the other.
#[derive(Debug)]
pub struct ShmEndpoint {
    /// Which side of which slot the endpoint is, and the state of its connection.
    pub side: SlotSide,
    /// The rings of both directions.
    pub(crate) rings: Rings,
    /// Threads of this process that wait for the connection, beside those that the words in shared memory name.
    pub waiters: Waiters,
    /// The socket layer's object for this connection.
    pub owner: AtomicUsize,
    /// The socket layer's registration that the subscribed ready set reports to.
    pub registration: AtomicUsize,
    /// Our ready set that watches the endpoint; 0: none.
    pub ready_set: AtomicU32,
    /// The counters by which edge-triggered epoll recognises new events, and SO_RCVLOWAT.
    pub edges: Edges,
    /// What a client notes of its connect in the queue.
    pub connect: QueuedConnect,
    /// The sockets whose ends show which processes still hold the connection.
    pub liveness: Liveness,
    /// The wakers by which a process that is alone with the connection after a fork is woken.
    pub heir_waker: HeirWaker,
    /// The old subflow, whose bytes come before the ring's.
    pub old_subflow: OldSubflow,
    /// The sockets that a process which has left the rings passes for the connection.
    pub passed: PassedSockets,
    /// Time that our threads have lost by waiting for words of the peer, in this and earlier connections of the slot.
    pub(super) delays: Delays,
    /// What the connection's windows cost this process.
    pub(super) charge: WindowCharge,
    /// Since when both ends write and neither reads.
    pub standstill: Standstill,
}

/// Notes that the peer or one of our sharers has left the ring. False: it must not have done so, and the connection is
/// reset.
fn note_leaving(ep: &ShmEndpoint, v: &View, state: SideState, fin: u32) -> bool {
    let left = if fin & SWITCHED != 0 {
        SwitchEvent::PeerLeaves
    } else if state.is_shared() && line!(v, producer, v.me).fin.load(Ordering::Acquire) & SWITCHED != 0 {
        SwitchEvent::SharerLeaves
    } else {
        return true;
    };
    let may_follow = v.may_follow(&ep.passed);
    if may_follow {
        ep.side.on::<Switch>(left);
    } else {
        ep.reset_for(v, "marked the connection as switched");
    }
    may_follow
}

/// Notes that the peer died without closing. The kernel would have closed its sockets: with a reset if it left unread
/// data behind, otherwise with an end of stream. As long as the old subflow of a promoted connection has not ended, it
/// reports the end, and has bytes that come first.
fn note_death(ep: &ShmEndpoint, v: &View) {
    if ep.old_subflow.is_there() && (ep.old_subflow.is_ready(&ep.side).is_some() || ep.side.is_dead()) {
        return;
    }
    let unread = ep.rings.peer_left_unread(&ep.side, v);
    match unread.map(|n| n.saturating_add(ep.old_subflow.unread_before(v))) {
        // If the peer is an RDMA engine, the program on the other host may live, and has not ended its stream.
        Some(0) if !(ep.side.is_remote() || v.link.is_remote()) => drop(ep.side.on::<Ends>(EndsEvent::PeerEnd)),
        _ => ep.side.die(Errno::CONNRESET),
    }
}

impl ShmEndpoint {
    /// To be called before the endpoint's link is used again.
    pub(crate) fn reset(&self) {
        self.side.state.reset();
        self.passed.reset();
    }

    /// Ends the connection in this process, while others may go on with it. Descriptors that another thread has just
    /// received for it are dropped, too.
    pub(super) fn leave(&self) {
        windows::end(self);
        self.passed.leave(self.side.generation.load(Ordering::Relaxed));
        self.side.state.end(self.side.place());
        self.passed.drop_all();
    }

    /// Drops the descriptors that the peer has passed: the link ends, or this is the child of a fork, and the
    /// connection does not belong to the program.
    pub fn drop_passed(&self) {
        self.liveness.close_peer(&self.side);
        self.liveness.owed_dial.forget();
        self.heir_waker.close_peers();
        self.passed.drop_all();
    }

    /// Begins a connection in this slot. False: there is one, or its windows cannot be mapped. The client also resets
    /// the shared words; if it does not, it harms only its own connection.
    pub fn begin(&'static self, generation: u32) -> bool {
        let Some(v) = self.side.view() else { return false };
        if self.side.is_live() || v.seg.reach(v.index).is_err() {
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
            Side::Server if v.link.peer.is_trusted() => v.slot.open.remote_engine(),
            Side::Server => 0,
        };
        self.side.remote.store(peer_end, Ordering::Relaxed);
        self.rings.begin();
        windows::begin(self);
        self.side.error.store(0, Ordering::Relaxed);
        self.side.began.set(time::coarse());
        self.side.generation.store(generation, Ordering::Relaxed);
        drop(self.liveness.take());
        self.old_subflow.forget();
        self.passed.forget_those_of_another(&v, generation);
        self.liveness.forget_stale_peer(&self.side, generation);
        self.registration.store(0, Ordering::Relaxed);
        self.ready_set.store(0, Ordering::Relaxed);
        self.connect.begin();
        self.edges.begin();
        self.standstill.begin();
        self.side.state.begin(v.place());
        v.link.stats.slot_taken();
        true
    }

    /// Handles a violation by the peer: resets the connection, and returns the error for the current call.
    pub(super) fn violated(&self, v: &View) -> Errno {
        page().count(Counter::ProtocolErrors);
        page().fallback(Reason::ProtocolError);
        // The violation concerns this connection only, which is reset on both sides.
        line!(v, producer, v.me).fin.store(RESET, Ordering::SeqCst);
        self.side.die(Errno::CONNRESET);
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

    /// Updates the state by the peer's words and the link's state, which show ends, resets and switches, and returns
    /// it.
    #[inline]
    pub(super) fn observe(&self, v: &View) -> SideState {
        let state = self.side.state.look();
        // Acquire: a final head was published before the mark.
        let fin = line!(v, producer, v.me.other()).fin.load(Ordering::Acquire);
        // In nearly every call both sides live and go on, so that nothing changes the state.
        if state.is_settled() && fin & !HOLDING == OPEN && !self.peer_died(v) {
            return state;
        }
        self.observe_change(v)
    }

    /// The state after a look at the peer's words and the link's state.
    pub fn observed(&self) -> SideState {
        self.side.view().map_or(SideState::CLOSED, |v| self.observe(&v))
    }

    /// The part of [`ShmEndpoint::observe`] that notes changes. It is out of line, so that nearly every call needs few
    /// registers.
    #[cold]
    #[inline(never)]
    fn observe_change(&self, v: &View) -> SideState {
        let state = self.side.state.look();
        if state.is_dead() {
            return state;
        }
        if state.is_shared() && !state.has_shut_both() {
            // Another of our sharers may have ended our stream, or both streams.
            let fin = line!(v, producer, v.me).fin.load(Ordering::Acquire);
            let both = fin & CLOSED != 0;
            if fin & FIN != 0 && (both || !state.has_shut()) {
                self.side.state.shut(v.place(), both, true);
            }
        }
        let peer = v.me.other();
        // Acquire: a final head was published before the mark.
        let fin = line!(v, producer, peer).fin.load(Ordering::Acquire);
        if fin & FIN != 0 && !state.has_peer_ended() {
            self.side.on::<Ends>(EndsEvent::PeerEnd);
        }
        if state.switch() == Switch::Idle && !note_leaving(self, v, state, fin) {
            return self.side.state.look();
        }
        if fin & RESET != 0 && self.side.state.look().ends() == Ends::Closed {
            // Both ends were sent before: there is nothing left that a reset could reach.
        } else if fin & RESET != 0 {
            // A reset after the peer's end of stream is reported as EPIPE, any other as ECONNRESET (tcp(7)).
            self.side.die(if fin & FIN != 0 { Errno::PIPE } else { Errno::CONNRESET });
        } else if has_not_ended(fin)
            && self.peer_died(v)
            // A process that ended or switched its stream stored its mark before it died, so the mark is loaded again,
            // now that the process is gone.
            && has_not_ended(line!(v, producer, peer).fin.load(Ordering::Acquire))
        {
            note_death(self, v);
        } else if self.side.state.look().ends() == Ends::CloseWait && self.died_after_its_end(v) {
            self.side.die(Errno::PIPE);
        }
        self.side.state.look()
    }

    /// Whether the peer died after it had ended its stream, and left bytes of ours unread: the kernel would have sent a
    /// reset, which is then reported as EPIPE (tcp(7)). If the peer had read all of them, a writer learns of its death
    /// when it writes.
    #[cold]
    fn died_after_its_end(&self, v: &View) -> bool {
        let fin = || line!(v, producer, v.me.other()).fin.load(Ordering::Acquire);
        let ended = |fin: u32| fin & (FIN | CLOSED | SWITCHED | RESET) == FIN;
        // The peer stores its marks before it dies, so they are loaded again, now that it is gone.
        ended(fin()) && self.peer_died(v) && ended(fin()) && self.rings.peer_left_unread(&self.side, v) != Some(0)
    }

    /// Whether any byte was written to a connect that waits in its queue.
    pub fn has_written(&self) -> bool {
        let mut any = false;
        if let Some(v) = self.side.view() {
            self.rings.replay(&v, |_, n| any |= n > 0);
        }
        any
    }

    /// Resets a connection that cannot go on, and wakes its threads.
    pub fn fail(&self, e: Errno) {
        self.side.die(e);
        self.poke_self();
    }

    /// Tells the server that a connect was queued (client, on slot 0).
    /// Returns whether somebody waits for it there.
    pub fn announce(&self) -> bool {
        self.side.view().is_some_and(|v| self.announce_data(&v))
    }

    /// Wakes the peer, so that it checks this connection again.
    pub fn stir_peer(&self) {
        if let Some(v) = self.side.view() {
            self.announce_data(&v);
            self.announce_room(&v, true);
        }
    }
}
