//! The program's threads do the work while they call us anyway, so that a message needs no other thread.
//!
//! A call that writes, or that is about to wait, does a [`progress_engine`](drive): it looks at the completion queues
//! and carries what there is. A thread that has to sleep takes the *poller token* if nobody has it: it sleeps on the
//! completion channels too ([`arm`]). Meanwhile the engine's own thread keeps away, as its [`SleepOn`] says, and looks
//! every few milliseconds whether the program still does the work. All this is per engine: a thread that works on one
//! connection does it for that connection's engine only ([`ProgressScope`]).
//!
//! **No progress is lost.** A thread that finds the lock taken leaves a mark (`progress_wanted`); the thread that gives the lock back
//! looks at the mark and does the work. **No completion is missed**: while the engine thread sleeps for long, either
//! it sleeps on the completion channels and the wakers of all links, or a thread with the poller token sleeps on the
//! channels and the engine thread on the wakers.
//!
//! Progress that only moves bytes allocates nothing, unless a reader's ring has no room for them: a signal handler may send,
//! wherever it has interrupted the program.

use crate::WaitSet;
use crate::rdma::engine::cell::{self, EngineCell, MOST};
use crate::rdma::engine::ring_bypass::Reader;
use crate::rdma::engine::worker::Engine;
use crate::rdma::{Armed, Device};
use crate::shm::ShmEndpoint;
use core::sync::atomic::{Ordering, fence};
use netacc_sys::lock;

/// Largest number of rounds of one call; what is left then is done by the engine thread.
const MAX_ROUNDS: usize = 64;

/// What the engine thread sleeps on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SleepOn {
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
pub struct PollerToken {
    /// Index of the channels in the set that it sleeps on.
    first: usize,
    /// The engines of those channels, a bit for each.
    engines: u64,
}

const _: () = assert!(MOST <= u64::BITS as usize);

/// The engines whose work a thread does.
#[derive(Clone, Copy, Debug)]
pub enum ProgressScope {
    /// All engines of the process.
    All,
    /// This engine alone.
    One(usize),
}

impl ProgressScope {
    /// The engines whose work a thread does that waits for this connection.
    pub fn of(ep: &ShmEndpoint) -> ProgressScope {
        ep.engine().map_or(ProgressScope::All, ProgressScope::One)
    }

    fn has(self, n: usize) -> bool {
        match self {
            ProgressScope::All => true,
            ProgressScope::One(one) => one == n,
        }
    }
}

/// How [`arm`] went.
#[derive(Debug)]
pub enum ArmOutcome {
    /// Other threads sleep on the completion channels.
    No,
    /// There is something already.
    Ready,
    /// The calling thread sleeps on the completion channels, as long as it has this.
    Yes(PollerToken),
}

/// Progress by the calling thread, for each engine that carries a connection.
#[inline]
pub fn progress() {
    cell::all().iter().for_each(progress_if_carrying);
}

/// Progress by the calling thread, for the engine that carries this connection, if there is one.
#[inline]
pub fn progress_for(ep: &ShmEndpoint) {
    if let Some(cell) = ep.engine().and_then(cell::at) {
        progress_if_carrying(cell);
    }
}

#[inline]
fn progress_if_carrying(cell: &EngineCell) {
    // Relaxed: a thread that has such a connection learnt of it from a thread that saw this number.
    if cell.carried.load(Ordering::Relaxed) != 0 {
        progress_engine(cell);
    }
}

/// Progress for a connection that is about to begin.
pub fn begin(engine: Option<usize>) {
    if let Some(cell) = engine.and_then(cell::at) {
        progress_engine(cell);
    }
}

pub(super) fn progress_engine(cell: &EngineCell) {
    progress_with(cell, |e| e.progress_for(None));
}

/// Does progress; `work` is what the engine does in each.
pub(super) fn progress_with(cell: &EngineCell, mut work: impl FnMut(&mut Engine)) {
    // A signal handler that has interrupted the thread in the middle of a call of ours leaves the work to that call,
    // which ends with a pass over all work.
    if lock::interrupted() {
        return cell.progress_wanted.store(true, Ordering::SeqCst);
    }
    loop {
        cell.progress_wanted.store(true, Ordering::SeqCst);
        // With the fence in `take_progress_wanted`: either we get the lock, or its holder sees the mark when it has
        // given it back.
        fence(Ordering::SeqCst);
        if !cell.try_with(&mut work) || !take_progress_wanted(cell) {
            return;
        }
    }
}

/// Whether another thread has asked for progress, after the lock was given back.
pub(super) fn take_progress_wanted(cell: &EngineCell) -> bool {
    fence(Ordering::SeqCst);
    cell.progress_wanted.load(Ordering::SeqCst)
}

/// To be called when the calling thread is about to sleep on `set`, which gets the completion channels as well if the
/// thread is to sleep on them.
pub fn arm(set: &mut WaitSet, scope: ProgressScope) -> ArmOutcome {
    let all = cell::all();
    if all.is_empty() || lock::interrupted() {
        return ArmOutcome::No;
    }
    let mut token = PollerToken { first: set.len(), engines: 0 };
    let mut look = false;
    for (n, place) in all.iter().enumerate() {
        // Relaxed: an engine that this thread does not listen to is listened to by the engine's own thread.
        if !scope.has(n) || place.devices.load(Ordering::Relaxed) == 0 {
            continue;
        }
        match place.with(|e| e.arm_poller(set)) {
            None | Some(Took::Nothing) => {}
            Some(Took::Ready) => {
                look = true;
                break;
            }
            Some(Took::Channels) => token.engines |= 1 << n,
        }
    }
    match (look, token.engines) {
        (false, 0) => ArmOutcome::No,
        (false, _) => ArmOutcome::Yes(token),
        (true, _) => {
            disarm(token, set, true);
            ArmOutcome::Ready
        }
    }
}

/// To be called when the thread is awake again, after a sleep on `set`; it makes progress, or will at once.
pub fn disarm(token: PollerToken, set: &WaitSet, progress: bool) {
    let mut at = token.first;
    let mut engines = token.engines;
    while engines != 0 {
        let n = engines.trailing_zeros() as usize;
        engines &= engines - 1;
        at += cell::at(n).and_then(|cell| cell.with(|e| e.disarm_poller(set, at, progress))).unwrap_or(0);
    }
}

/// What a thread takes on of an engine's work.
enum Took {
    /// Others sleep on its completion channels.
    Nothing,
    /// There is something already.
    Ready,
    /// The thread sleeps on them.
    Channels,
}

impl Engine {
    /// Makes progress; what comes for `reader` goes to it.
    pub(super) fn progress_for(&mut self, reader: Option<&mut Reader<'_, '_>>) {
        // Relaxed: a hint for the thread. Written under the lock.
        let count = &self.cell.progress_count;
        count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.progress_rounds_for(reader);
    }

    fn progress_rounds_for(&mut self, mut reader: Option<&mut Reader<'_, '_>>) {
        for _ in 0..MAX_ROUNDS {
            // A completion that comes from now on is found by the thread that waits for it, since it arms the queues
            // and looks again.
            if !self.progress_once_for(reader.as_deref_mut()) || !self.rest {
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
        self.sleep_on = SleepOn::Awake;
    }

    /// To be called after work that may have posted sends, or taken events for another thread: a thread that sleeps on
    /// the channels still hears of all that it has to.
    pub fn stay_armed(&mut self) {
        // Each time they report more, so that this ends.
        while (self.poller.is_some() || self.sleep_on == SleepOn::All) && self.armed != Armed::All && self.arm_queues()
        {
            // This is no progress of the program's, after which the thread would keep away.
            self.progress_rounds_for(None);
        }
    }

    fn arm_poller(&mut self, set: &mut WaitSet) -> Took {
        if self.poller.is_some() || self.sleep_on == SleepOn::All || self.devices.is_empty() {
            return Took::Nothing;
        }
        self.arm_queues();
        // Completions that came before the arming have no event.
        if self.progress_once() {
            self.progress_for(None);
            return Took::Ready;
        }
        (self.poller, self.doubted) = (Some(self.devices.len()), false);
        for fd in self.devices.iter().map(Device::fd) {
            set.add(fd, libc::POLLIN);
        }
        Took::Channels
    }

    /// Gives the poller token back. The channels were at `first` in the set; returns their number.
    fn disarm_poller(&mut self, set: &WaitSet, first: usize, progress: bool) -> usize {
        // A thread that took the poller token from us meanwhile may have found another number of devices: an event too many is
        // harmless, and the next thread with the poller token finds one that we miss.
        let channels = self.poller.take().unwrap_or(self.devices.len());
        if (first..first + channels).any(|at| set.revents(at) != 0) {
            self.take_events(channels);
        }
        if progress {
            self.progress_for(None);
        }
        if self.sleep_on == SleepOn::Others {
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

    /// What the engine thread is to sleep on, when there is nothing to do.
    pub(super) fn next_sleep(&mut self) -> SleepOn {
        let count = self.cell.progress_count.load(Ordering::Relaxed);
        let driven = core::mem::replace(&mut self.progress_seen, count) != count;
        match self.poller {
            _ if driven => SleepOn::Brief,
            Some(_) => SleepOn::Others,
            None => SleepOn::All,
        }
    }
}
