//! Peers of another user: what they must not do, and what follows if they do it.
//!
//! A connection with such a peer never leaves the rings by a socket that one side passes to the other, unless that was
//! passed before the peer became another user. A side that passes a socket keeps a copy of it, and so can interfere with
//! what the program at the other end reads, writes and waits for. A side that needs a kernel socket makes both ends of a
//! pair itself and leaves its place at the ring to a small process of its own, which looks like a fork to the peer.
//!
//! Each side decides for itself which peers it trusts, and root trusts fewer users than trust it. So each side tells
//! the other in the segment's header whether it takes descriptors. A false word does no harm, since a side acts on it
//! only if it trusts the other one.

use crate::limits::RELAY_WAIT_MS;
use crate::shm::passed::PassedSockets;
use crate::shm::segment::{LENDING_UNKNOWN, REFUSES_LENT, TAKES_LENT};
use crate::shm::sharers::poll_all_ends;
use crate::shm::side_machines::{AHEAD, PEER_GONE};
use crate::shm::slot_side::View;
use crate::shm::slots::CONTROL_SLOT;
use crate::shm::{Link, ShmEndpoint, Side, SlotSide};
use core::sync::atomic::Ordering;
use netacc_ring::{RESET, SWITCHED};
use netacc_stats::{Counter, Reason, page};
use netacc_sys::errno::Errno;
use netacc_sys::set_once::SetOnce;
use netacc_sys::time;
use netacc_wire::Message;

/// An act of a peer that no process with this library does.
#[derive(Clone, Copy, Debug)]
pub struct Offence {
    /// The peer's process id; 0: not known.
    pub pid: u32,
    /// The peer's user.
    pub uid: u32,
    /// The slot of the connection.
    pub slot: usize,
    /// The act, as the end of a sentence that begins with the peer.
    pub what: &'static str,
}

static ON_OFFENCE: SetOnce<fn(&Offence)> = SetOnce::new();

/// Sets the function that is called for every offence, by the thread that finds it. Only the first call has an effect.
pub fn on_offence(report: fn(&Offence)) {
    ON_OFFENCE.set(report);
}

impl Link {
    /// Stores in the header whether this side takes descriptors from the peer.
    pub(super) fn publish_trust(&self) {
        let word = if self.peer.is_trusted() { TAKES_LENT } else { REFUSES_LENT };
        if let Some(cell) = self.segment().as_ref().and_then(|s| s.header().lending.get(self.side().index())) {
            // Relaxed: the word stands for itself.
            cell.store(word, Ordering::Relaxed);
        }
    }

    /// Whether either side may pass descriptors to the other. The kernel tells the peer the sender of each message, and
    /// the peer refuses descriptors of a process that has changed its user since the link was made.
    pub fn trust_is_mutual(&self) -> bool {
        let theirs = self
            .segment()
            .as_ref()
            .and_then(|s| s.header().lending.get(self.side().other().index()))
            .map_or(LENDING_UNKNOWN, |cell| cell.load(Ordering::Relaxed));
        let takes = match theirs {
            TAKES_LENT => true,
            // A server that has not taken the link up yet will trust root and its own user.
            LENDING_UNKNOWN => self.peer.will_trust_us(),
            _ => false,
        };
        // The child of a fork, whatever its present user is, communicates over the liveness socket that was passed
        // before.
        self.peer.is_trusted() && takes && (self.is_inherited() || self.peer.goes_on_trusting_us())
    }

    /// Whether a message passes what a stranger must not pass. If so, the connection that it names is reset; the caller
    /// closes the descriptor and ends the link.
    pub(super) fn refuses(&'static self, m: &Message) -> bool {
        let (Message::OldSubflow { slot, generation } | Message::SwitchToKernel { slot, generation }) = *m else {
            return false;
        };
        if self.peer.is_trusted() {
            return false;
        }
        // A slot that was never used has no connection, and its endpoint must not take memory.
        match self.endpoints().find(|ep| ep.side.slot_index() == slot as usize) {
            Some(ep) => ep.refuse_passed(generation),
            None => self.report(slot as usize, PASSED),
        }
        true
    }

    /// Resets all connections of a peer that has passed a descriptor although it is not trusted.
    pub(super) fn reset_all(&'static self) {
        self.report(0, PASSED);
        for ep in self.endpoints().filter(|ep| ep.side.is_live() && ep.side.slot_index() != CONTROL_SLOT) {
            if let Some(v) = ep.side.view() {
                line!(v, producer, v.me).fin.store(RESET, Ordering::SeqCst);
                ep.fail(Errno::CONNRESET);
            }
        }
    }

    pub(super) fn report(&self, slot: usize, what: &'static str) {
        if let Some(report) = ON_OFFENCE.get() {
            report(&Offence { pid: self.peer_pid(), uid: self.peer.uid(), slot, what });
        }
    }
}

/// Amount that each relay adds to the word `forked` of its side.
const RELAY: u32 = 4;

/// The [`Offence::what`] of a peer that passes a descriptor although it is not trusted.
const PASSED: &str = "passed a descriptor that it must not pass";

impl SlotSide {
    pub(super) fn report(&self, what: &'static str) {
        self.link().report(self.slot_index(), what);
    }

    /// Counts a relay that is about to begin; see `SlotSide::let_relays_end`.
    pub fn relay_begins(&self) {
        if let Some(v) = self.view() {
            line!(v, side, v.me).forked.fetch_add(RELAY, Ordering::SeqCst);
        }
    }

    /// Undoes [`SlotSide::relay_begins`]: the relay has passed on all of its bytes, or could not be made.
    pub fn relay_ends(&self) {
        if let Some(v) = self.view() {
            let one_less = |word: u32| word.checked_sub(RELAY);
            let _ = line!(v, side, v.me).forked.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
        }
    }

    /// Marks this process as a relay, which does not wait for relays.
    pub fn become_relay(&self) {
        self.state.set(AHEAD);
    }

    /// Waits for relays before a sharer writes or ends its stream. A program that was executed with the connection may
    /// just have written and ended: its bytes come first, and its relay may still have them. While such a program goes
    /// on, this process waits only once per connection, since the order of bytes of different processes is then
    /// undefined.
    pub(super) fn let_relays_end(&self, v: &View) {
        let state = self.state.glance();
        if !state.is_shared() || state.has(AHEAD) {
            return;
        }
        // The wait is bounded, since the peer can write the word, too.
        let at_work = || line!(v, side, v.me).forked.load(Ordering::SeqCst) >= RELAY;
        if at_work()
            && !(0..RELAY_WAIT_MS).any(|_| {
                time::pause();
                !at_work()
            })
        {
            self.state.set(AHEAD);
        }
    }

    /// Whether every process that had the other end is known to be gone: then no more bytes arrive in the ring.
    pub fn peer_is_gone(&self) -> bool {
        self.state.look().has(PEER_GONE)
    }
}

impl View {
    /// Whether the connection may go on at a kernel socket: the peer is trusted, or has `passed` that socket before it
    /// became another user.
    pub(super) fn may_follow(&self, passed: &PassedSockets) -> bool {
        self.link.peer.is_trusted() || passed.kernel_fd() >= 0
    }

    /// Whether the peer has left the rings. The mark of a peer that may not do that does not count. SeqCst: the caller has
    /// published before this; a peer that leaves stores its mark and then loads the ring's words for the last time.
    pub(super) fn peer_switched(&self, passed: &PassedSockets) -> bool {
        line!(self, producer, self.me.other()).fin.load(Ordering::SeqCst) & SWITCHED != 0 && self.may_follow(passed)
    }
}

/// To be called before the trust in the peer ends: receives the socket of a connection that the peer has left, which may
/// wait in a liveness socket. What waits there comes from before the message that ends the trust.
pub(super) fn take_passed_socket(ep: &ShmEndpoint) {
    if ep.side.is_live()
        && ep.passed.kernel_fd() < 0
        && let Some(v) = ep.side.view().filter(|v| v.peer_switched(&ep.passed))
    {
        poll_all_ends(ep, &v);
    }
}

impl ShmEndpoint {
    /// Resets the connection on both sides, since the peer has done `what`, which no peer may do. The error is left for
    /// the next call that asks for it.
    #[cold]
    pub(super) fn reset_for(&self, v: &View, what: &'static str) {
        page().count(Counter::ProtocolErrors);
        page().fallback(Reason::ProtocolError);
        self.side.report(what);
        line!(v, producer, v.me).fin.store(RESET, Ordering::SeqCst);
        self.fail(Errno::CONNRESET);
        self.announce_data(v);
    }

    fn refuse_passed(&self, generation: u32) {
        match self.side.view().filter(|_| {
            self.side.is_live() && self.side.generation.load(Ordering::Relaxed) == generation && !self.side.is_dead()
        }) {
            Some(v) => self.reset_for(&v, PASSED),
            None => self.side.report(PASSED),
        }
    }
}
