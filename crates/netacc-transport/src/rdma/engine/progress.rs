//! The program's threads do the work while they call us anyway, so that a message needs no other thread.
//!
//! A call that writes, or that is about to wait, makes progress (`EngineCell::progress`): it looks at the completion
//! queues and carries what there is. A thread that has to sleep takes the *poller token* if nobody has it: it sleeps on
//! the completion channels too ([`arm`]). Meanwhile the engine's own thread keeps away, as its `SleepOn` says, and
//! looks every few milliseconds whether the program still does the work. All this is per engine: a thread that works on
//! one connection does it for that connection's engine only ([`ProgressScope`]).
//!
//! **The token goes to a thread that waits for bytes.** A thread that waits for new connections alone would wake for
//! each message, and wake the thread that the message is for. It takes the token only if nobody has it, and anybody else
//! takes it away. The channels then wake both threads once more. From then on it sleeps without the token, until the
//! engine's thread finds that nobody does the work.
//!
//! **No progress is lost.** A thread that finds the lock taken leaves a mark (`progress_wanted`); the thread that gives
//! the lock back looks at the mark and does the work. **No completion is missed**: while the engine thread sleeps for
//! long, either it sleeps on the completion channels and the wakers of all links, or a thread with the poller token
//! sleeps on the channels and the engine thread on the wakers.
//!
//! Progress that only moves bytes allocates nothing, unless a reader's ring has no room for them: a signal handler may
//! send, wherever it has interrupted the program.

use crate::WaitSet;
use crate::rdma::engine::cell::{self, EngineCell};
use crate::rdma::engine::mux::reader::Reader;
use crate::rdma::engine::sleep::{Poller, SleepOn};
use crate::rdma::engine::status::MOST;
use crate::rdma::engine::worker::Engine;
use crate::rdma::{Armed, Device};
use crate::shm::ShmEndpoint;
use core::ptr;
use netacc_sys::lock;

/// Largest number of rounds of one call; what is left then is done by the engine thread.
const MAX_ROUNDS: usize = 64;

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
    /// All engines of the process, for a thread that waits for no bytes of a connection over RDMA: it gives way to one
    /// that does.
    Bystander,
    /// This engine alone.
    One(usize),
}

impl ProgressScope {
    /// The engines whose work a thread does that waits for this connection.
    pub fn of(ep: &ShmEndpoint) -> ProgressScope {
        ep.side.engine().map_or(ProgressScope::All, ProgressScope::One)
    }

    fn has(self, n: usize) -> bool {
        match self {
            ProgressScope::All | ProgressScope::Bystander => true,
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
    if let Some(cell) = ep.side.engine().and_then(cell::at) {
        progress_if_carrying(cell);
    }
}

#[inline]
fn progress_if_carrying(cell: &EngineCell) {
    // A thread that has such a connection learnt of it from a thread that saw this number.
    if cell.status.carried.get() != 0 {
        cell.progress();
    }
}

/// Progress for a connection that is about to begin.
pub fn begin(engine: Option<usize>) {
    if let Some(cell) = engine.and_then(cell::at) {
        cell.progress();
    }
}

/// To be called when the calling thread is about to sleep on `set`, which gets the completion channels as well if the
/// thread is to sleep on them.
pub fn arm(set: &mut WaitSet, scope: ProgressScope) -> ArmOutcome {
    let all = cell::all();
    if all.is_empty() || lock::interrupted() {
        return ArmOutcome::No;
    }
    let poller =
        Poller { channels: 0, set: ptr::from_ref(set).addr(), gives_way: matches!(scope, ProgressScope::Bystander) };
    let mut token = PollerToken { first: set.len(), engines: 0 };
    let mut look = false;
    for (n, place) in all.iter().enumerate() {
        // An engine that this thread does not listen to is listened to by the engine's own thread.
        if !scope.has(n) || place.status.devices.get() == 0 {
            continue;
        }
        match place.with(|e| e.arm_poller(set, poller)) {
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
        // A hint for the thread.
        self.status.progress_count.add(1);
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

    /// To be called after work that may have posted sends, or taken events for another thread: a thread that sleeps on
    /// the channels still hears of all that it has to.
    pub fn stay_armed(&mut self) {
        // Each time they report more, so that this ends.
        while (self.sleep.poller.is_some() || self.sleep.on == SleepOn::All)
            && self.sleep.armed != Armed::All
            && self.sleep.arm(&self.mux.qps.devices)
        {
            // This is no progress of the program's, after which the thread would keep away.
            self.progress_rounds_for(None);
        }
    }

    fn arm_poller(&mut self, set: &mut WaitSet, poller: Poller) -> Took {
        let taken = match self.sleep.poller {
            _ if poller.gives_way && self.sleep.claimed => true,
            Some(other) => poller.gives_way || !other.gives_way,
            None => false,
        };
        if taken || self.sleep.on == SleepOn::All || self.mux.qps.devices.is_empty() {
            return Took::Nothing;
        }
        self.sleep.arm(&self.mux.qps.devices);
        // Completions that came before the arming have no event.
        if self.progress_once() {
            self.progress_for(None);
            return Took::Ready;
        }
        let channels = self.mux.qps.devices.len();
        (self.sleep.poller, self.sleep.doubted) = (Some(Poller { channels, ..poller }), false);
        self.sleep.claimed = !poller.gives_way;
        for fd in self.mux.qps.devices.iter().map(Device::fd) {
            set.add(fd, libc::POLLIN);
        }
        Took::Channels
    }

    /// Gives the poller token back, unless another thread has taken it. The channels were at `first` in the set; returns
    /// their number.
    fn disarm_poller(&mut self, set: &WaitSet, first: usize, progress: bool) -> usize {
        // Once it was taken, there may be another number of devices: an event too many is harmless, and the thread with
        // the token finds one that we miss.
        let ours = self.sleep.poller.take_if(|poller| poller.set == ptr::from_ref(set).addr());
        let channels = ours.map_or(self.mux.qps.devices.len(), |poller| poller.channels);
        if (first..first + channels).any(|at| set.revents(at) != 0) {
            self.sleep.take_events(&self.mux.qps.devices, channels);
        }
        if progress {
            self.progress_for(None);
        }
        if self.sleep.on == SleepOn::Others {
            self.ring();
        }
        channels
    }
}
