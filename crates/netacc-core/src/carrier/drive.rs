//! The program's threads do the work while they call us anyway, so that a message needs no other thread.
//!
//! A call that writes, or that is about to wait, does a [`turn`](drive): it looks at the completion queues and carries what
//! there is. A thread that has to sleep takes the *duty* if nobody has it: it sleeps on the completion channels too
//! ([`attend`]). Meanwhile the carrier's own thread keeps away, as its [`Watch`] says, and looks every few milliseconds
//! whether the program still does the work. All this is per engine: a thread that works on one connection does it for
//! that connection's engine only ([`Who`]).
//!
//! **No turn is lost.** A thread that finds the lock taken leaves a mark (`asked`); the thread that gives the lock back
//! looks at the mark and does the turn. **No completion is missed**: while the carrier's thread sleeps for long, either
//! it sleeps on the completion channels and the doorbells of all links, or a thread with the duty sleeps on the
//! channels and the carrier's thread on the doorbells.
//!
//! A turn that only moves bytes allocates nothing, unless a reader's ring has no room for them: a signal handler may send,
//! wherever it has interrupted the program.

use crate::carrier::direct::Reader;
use crate::carrier::engine::Engine;
use crate::carrier::engines::{self, MOST, Place};
use core::sync::atomic::{Ordering, fence};
use netacc_sys::lock;
use netacc_transport::WaitSet;
use netacc_transport::rdma::{Armed, Device};
use netacc_transport::shm::ShmEndpoint;

/// Largest number of rounds of one turn; what is left then is done by the carrier's thread.
const ROUNDS: usize = 64;

/// What the carrier's thread sleeps on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    /// The thread does not sleep.
    Awake,
    /// The thread sleeps on everything.
    All,
    /// The program does the work: it does not sleep on what the program's threads see by themselves, and not for long.
    Brief,
    /// A thread of the program sleeps on the completion channels, and has done so for a while: it sleeps on everything
    /// else.
    Others,
}

/// Held while a thread of the program sleeps on the completion channels.
#[derive(Debug)]
pub struct Duty {
    /// Index of the channels in the set that it sleeps on.
    first: usize,
    /// The engines of those channels, a bit for each.
    engines: u64,
}

const _: () = assert!(MOST <= u64::BITS as usize);

/// The engines whose work a thread does.
#[derive(Clone, Copy, Debug)]
pub enum Who {
    /// All engines of the process.
    All,
    /// This engine alone.
    One(usize),
}

impl Who {
    /// The engines whose work a thread does that waits for this connection.
    pub fn of(ep: &ShmEndpoint) -> Who {
        ep.engine().map_or(Who::All, Who::One)
    }

    fn has(self, n: usize) -> bool {
        match self {
            Who::All => true,
            Who::One(one) => one == n,
        }
    }
}

/// How [`attend`] went.
#[derive(Debug)]
pub enum Attend {
    /// Other threads sleep on the completion channels.
    No,
    /// There is something already.
    Look,
    /// The calling thread sleeps on the completion channels, as long as it has this.
    Yes(Duty),
}

/// A turn of the work by the calling thread, for each engine that carries a connection.
#[inline]
pub fn drive() {
    engines::all().iter().for_each(turn_if_carrying);
}

/// A turn of the work by the calling thread, for the engine that carries this connection, if there is one.
#[inline]
pub fn drive_for(ep: &ShmEndpoint) {
    if let Some(place) = ep.engine().and_then(engines::at) {
        turn_if_carrying(place);
    }
}

#[inline]
fn turn_if_carrying(place: &Place) {
    // Relaxed: a thread that has such a connection learnt of it from a thread that saw this number.
    if place.carried.load(Ordering::Relaxed) != 0 {
        turn(place);
    }
}

/// A turn of the work for a connection that is about to begin.
pub fn begin(engine: Option<usize>) {
    if let Some(place) = engine.and_then(engines::at) {
        turn(place);
    }
}

pub(super) fn turn(place: &Place) {
    turn_by(place, |e| e.turn_for(None));
}

/// Does a turn of the work; `work` is what the engine does in each.
pub(super) fn turn_by(place: &Place, mut work: impl FnMut(&mut Engine)) {
    // A signal handler that has interrupted the thread in the middle of a call of ours leaves the work to that call,
    // which ends with a turn.
    if lock::interrupted() {
        return place.asked.store(true, Ordering::SeqCst);
    }
    loop {
        place.asked.store(true, Ordering::SeqCst);
        // With the fence in `was_asked`: either we get the lock, or its holder sees the mark when it has given it back.
        fence(Ordering::SeqCst);
        if !place.try_with(&mut work) || !was_asked(place) {
            return;
        }
    }
}

/// Whether another thread has asked for a turn, after the lock was given back.
pub(super) fn was_asked(place: &Place) -> bool {
    fence(Ordering::SeqCst);
    place.asked.load(Ordering::SeqCst)
}

/// To be called when the calling thread is about to sleep on `set`, which gets the completion channels as well if the
/// thread is to sleep on them.
pub fn attend(set: &mut WaitSet, who: Who) -> Attend {
    let all = engines::all();
    if all.is_empty() || lock::interrupted() {
        return Attend::No;
    }
    let mut duty = Duty { first: set.len(), engines: 0 };
    let mut look = false;
    for (n, place) in all.iter().enumerate() {
        // Relaxed: an engine that this thread does not listen to is listened to by the engine's own thread.
        if !who.has(n) || place.devices.load(Ordering::Relaxed) == 0 {
            continue;
        }
        match place.with(|e| e.attend(set)) {
            None | Some(Took::Nothing) => {}
            Some(Took::Look) => {
                look = true;
                break;
            }
            Some(Took::Channels) => duty.engines |= 1 << n,
        }
    }
    match (look, duty.engines) {
        (false, 0) => Attend::No,
        (false, _) => Attend::Yes(duty),
        (true, _) => {
            leave(duty, set, true);
            Attend::Look
        }
    }
}

/// To be called when the thread is awake again, after a sleep on `set`; it does a turn, or will at once.
pub fn leave(duty: Duty, set: &WaitSet, turn: bool) {
    let mut at = duty.first;
    let mut engines = duty.engines;
    while engines != 0 {
        let n = engines.trailing_zeros() as usize;
        engines &= engines - 1;
        at += engines::at(n).and_then(|place| place.with(|e| e.leave(set, at, turn))).unwrap_or(0);
    }
}

/// What a thread takes on of an engine's work.
enum Took {
    /// Others sleep on its completion channels.
    Nothing,
    /// There is something already.
    Look,
    /// The thread sleeps on them.
    Channels,
}

impl Engine {
    /// Does a turn; what comes for `reader` goes to it.
    pub(super) fn turn_for(&mut self, reader: Option<&mut Reader<'_, '_>>) {
        // Relaxed: a hint for the thread. Written under the lock.
        let turns = &self.place.turns;
        turns.store(turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.rounds_for(reader);
    }

    fn rounds_for(&mut self, mut reader: Option<&mut Reader<'_, '_>>) {
        for _ in 0..ROUNDS {
            // A completion that comes from now on is found by the thread that waits for it, since it arms the queues
            // and looks again.
            if !self.round_for(reader.as_deref_mut()) || !self.rest {
                return;
            }
        }
        self.ring();
    }

    /// Arms the completion queues, so that they report to their channels all that a thread that sleeps there has to
    /// hear of. True if they were armed for less before: then completions may have come of which the channels say
    /// nothing.
    pub(super) fn arm_queues(&mut self) -> bool {
        let needs = self.devices.iter().map(Device::needs).max().unwrap_or(Armed::No);
        let more = self.armed < needs;
        if more {
            self.devices.iter().for_each(|d| d.arm(needs));
            self.armed = needs;
        }
        more
    }

    /// Keeps the thread, which was about to sleep, awake, since it has something else to wait for: threads that sleep
    /// from now on hear the channels.
    pub fn stay_awake(&mut self) {
        self.watch = Watch::Awake;
    }

    /// To be called after work that may have posted sends, or taken events for another thread: a thread that sleeps on
    /// the channels still hears of all that it has to.
    pub fn stay_armed(&mut self) {
        // Each time they report more, so that this ends.
        while (self.duty.is_some() || self.watch == Watch::All) && self.armed != Armed::All && self.arm_queues() {
            // This is no turn of the program's, after which the thread would keep away.
            self.rounds_for(None);
        }
    }

    fn attend(&mut self, set: &mut WaitSet) -> Took {
        if self.duty.is_some() || self.watch == Watch::All || self.devices.is_empty() {
            return Took::Nothing;
        }
        self.arm_queues();
        // Completions that came before the arming have no event.
        if self.round() {
            self.turn_for(None);
            return Took::Look;
        }
        (self.duty, self.doubted) = (Some(self.devices.len()), false);
        for fd in self.devices.iter().map(Device::fd) {
            set.add(fd, libc::POLLIN);
        }
        Took::Channels
    }

    /// Ends the duty. The channels were at `first` in the set; returns their number.
    fn leave(&mut self, set: &WaitSet, first: usize, turn: bool) -> usize {
        // A thread that took the duty from us meanwhile may have found another number of devices: an event too many is
        // harmless, and the next thread with the duty finds one that we miss.
        let channels = self.duty.take().unwrap_or(self.devices.len());
        if (first..first + channels).any(|at| set.revents(at) != 0) {
            self.take_events(channels);
        }
        if turn {
            self.turn_for(None);
        }
        if self.watch == Watch::Others {
            self.ring();
        }
        channels
    }

    /// Takes the events of the first `channels` devices.
    fn take_events(&mut self, channels: usize) {
        for device in self.devices.iter().take(channels) {
            if device.take_events() {
                self.armed = Armed::No;
            }
        }
    }

    /// What the carrier's thread is to sleep on, when there is nothing to do.
    pub(super) fn next_watch(&mut self) -> Watch {
        let turns = self.place.turns.load(Ordering::Relaxed);
        let driven = core::mem::replace(&mut self.turns_seen, turns) != turns;
        match self.duty {
            _ if driven => Watch::Brief,
            Some(_) => Watch::Others,
            None => Watch::All,
        }
    }
}
