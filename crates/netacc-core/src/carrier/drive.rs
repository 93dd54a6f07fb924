//! The program's threads do the work while they call us anyway, so that a message needs no other thread.
//!
//! A call that writes, or that is about to wait, does a [`turn`](drive): it looks at the completion queues and carries what
//! there is. A thread that has to sleep takes the *duty* if nobody has it: it sleeps on the completion channels too
//! ([`attend`]). Meanwhile the carrier's own thread keeps away, as its [`Watch`] says, and looks every few milliseconds
//! whether the program still does the work.
//!
//! **No turn is lost.** Who finds the lock taken leaves a mark (`ASKED`); who gives the lock back looks at the mark and does
//! the turn. **Nobody is unheard**: while the carrier's thread sleeps for long, either it hears the completion channels and
//! the doorbells of all links, or a thread with the duty hears the channels, and the thread the doorbells.
//!
//! A turn that only moves bytes allocates nothing, unless a reader's ring has no room for them: a signal handler may send,
//! wherever it has interrupted the program.

use crate::carrier::engine::Engine;
use crate::carrier::{ACTIVE, SHARED, with};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use netacc_sys::lock;
use netacc_transport::WaitSet;
use netacc_transport::rdma::Device;

/// Connections that are carried: without any a process with local ones alone has no cost. Written under the lock.
pub(super) static CARRIED: AtomicUsize = AtomicUsize::new(0);

/// Somebody wanted a turn while another one had the lock.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Rounds of one turn; what is left then is for the carrier's thread.
const ROUNDS: usize = 64;

/// What the carrier's thread sleeps on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    /// It does not sleep.
    Awake,
    /// Everything.
    All,
    /// The program does the work: nothing that the program's threads see by themselves, and not for long.
    Brief,
    /// A thread of the program sleeps on the completion channels, and has done so for a while: everything else.
    Others,
}

/// A thread of the program sleeps on the completion channels.
#[derive(Debug)]
pub struct Duty {
    /// Where the channels are in the set that it sleeps on.
    first: usize,
    channels: usize,
}

/// How [`attend`] went.
#[derive(Debug)]
pub enum Attend {
    /// Others hear the completion channels.
    No,
    /// There is something already.
    Look,
    /// The calling thread does, as long as it has this.
    Yes(Duty),
}

/// A turn of the work by the calling thread, if any connection is carried.
#[inline]
pub fn drive() {
    // Relaxed: who has such a connection has been told of it by somebody who saw the number.
    if CARRIED.load(Ordering::Relaxed) != 0 {
        turn();
    }
}

/// The same for a connection that is about to begin.
pub fn begin() {
    if ACTIVE.load(Ordering::Relaxed) {
        turn();
    }
}

#[allow(unsafe_code)]
pub(super) fn turn() {
    // A handler that has interrupted the thread in the middle of a call of ours: that call is followed by a turn.
    if lock::interrupted() {
        return ASKED.store(true, Ordering::SeqCst);
    }
    loop {
        ASKED.store(true, Ordering::SeqCst);
        // With the fence in `was_asked`: either we get the lock, or its holder sees the mark when it has given it back.
        fence(Ordering::SeqCst);
        let Some(_g) = SHARED.lock.try_lock() else { return };
        ASKED.store(false, Ordering::SeqCst);
        // SAFETY: under the lock.
        let Some(engine) = (unsafe { (*SHARED.engine.get()).as_mut() }) else { return };
        engine.turn();
        drop(_g);
        if !was_asked() {
            return;
        }
    }
}

/// Whether somebody has asked for a turn, after the lock was given back.
pub(super) fn was_asked() -> bool {
    fence(Ordering::SeqCst);
    ASKED.load(Ordering::SeqCst)
}

/// The calling thread is about to sleep on `set`, which gets the completion channels as well if it is to hear them.
pub fn attend(set: &mut WaitSet) -> Attend {
    if !ACTIVE.load(Ordering::Relaxed) || lock::interrupted() {
        return Attend::No;
    }
    with(|e| e.attend(set)).unwrap_or(Attend::No)
}

/// The thread is awake again, after a sleep on `set`.
pub fn leave(duty: Duty, set: &WaitSet) {
    let heard = (duty.first..duty.first + duty.channels).any(|at| set.revents(at) != 0);
    with(|e| e.leave(if heard { duty.channels } else { 0 }));
}

impl Engine {
    fn turn(&mut self) {
        self.turns = self.turns.wrapping_add(1);
        for _ in 0..ROUNDS {
            if !self.round() {
                return;
            }
        }
        self.ring();
    }

    fn attend(&mut self, set: &mut WaitSet) -> Attend {
        if self.duty.is_some() || self.watch == Watch::All || self.devices.is_empty() {
            return Attend::No;
        }
        self.arm_queues();
        // Completions that came before the arming have no event.
        if self.round() {
            self.turn();
            return Attend::Look;
        }
        self.duty = Some(self.devices.len());
        let first = set.len();
        for fd in self.devices.iter().map(Device::fd) {
            set.add(fd, libc::POLLIN);
        }
        Attend::Yes(Duty { first, channels: self.devices.len() })
    }

    fn leave(&mut self, channels: usize) {
        self.duty = None;
        self.take_events(channels);
        self.turn();
        if self.watch == Watch::Others {
            self.ring();
        }
    }

    /// Takes the events of the first `channels` devices.
    fn take_events(&mut self, channels: usize) {
        for device in self.devices.iter().take(channels) {
            if device.take_events() {
                self.armed = false;
            }
        }
    }

    /// What the carrier's thread is to sleep on, when there is nothing to do.
    pub(super) fn next_watch(&mut self) -> Watch {
        let driven = core::mem::replace(&mut self.turns_seen, self.turns) != self.turns;
        match self.duty {
            _ if driven => Watch::Brief,
            Some(_) => Watch::Others,
            None => Watch::All,
        }
    }
}
