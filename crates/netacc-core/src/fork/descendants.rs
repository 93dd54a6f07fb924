//! The descendants of this process that may still have something of its own, and the ancestors that may ask for it.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{Lock, raw, reserved_fds, time};
use rustix::pipe::{PipeFlags, pipe_with};

/// Most forks that are remembered because their children (or their children) may still live. Beyond that connections
/// stay shared, which costs a little speed and nothing else.
const FORKS: usize = 64;

/// Descendants that share something, known by pipes.
#[derive(Debug)]
pub(super) struct Descendants {
    /// Reading ends (descriptor + 1) of pipes whose writing ends the descendants hold: the kernel ends one when
    /// the last of them is gone or runs another program.
    pipes: [AtomicI32; FORKS],
    /// Number of pipes in `pipes`, or `FORKS + 1` when there was no room for one.
    live: AtomicU32,
}

/// Descendants that may have a connection of ours.
pub(super) static CONNECTED: Descendants = Descendants::new();

/// Descendants that may have an epoll instance of ours, and no connection.
pub(super) static WAITING: Descendants = Descendants::new();

/// Guards `CONNECTED` and `WAITING`.
pub(super) static LOCK: Lock = Lock::new();

/// Forks under way, whose child is or is about to be there and is not counted yet.
pub(super) static FORKING: AtomicU32 = AtomicU32::new(0);

/// Number of generations of sharers that are told apart.
const GENERATIONS: usize = 16;

/// The writing ends (descriptor + 1) of the pipes at which the processes before this one wait for the end of their
/// descendants, the oldest first.
static HELD: [AtomicI32; GENERATIONS] = [const { AtomicI32::new(0) }; GENERATIONS];

/// Set in a process of which more ancestors wait than `HELD` has places.
static TOO_DEEP: AtomicBool = AtomicBool::new(false);

/// Makes the pipe of a fork: its reading end for this process, its writing end for the descendants.
pub(super) fn end_of_life() -> Option<(i32, i32)> {
    let (r, w) = pipe_with(PipeFlags::CLOEXEC).ok()?;
    let r = reserved_fds::adopt(r).ok()?;
    Some((r, reserved_fds::adopt(w).ok()?))
}

/// The pipes that a process of our own holds while it goes on with a connection: all processes that share the connection's slot
/// learn from them that the slot is still in use.
#[derive(Debug)]
pub(crate) struct Heir {
    pipe: Option<(i32, i32)>,
    /// Descriptors that the new process keeps open, or -1.
    pub(crate) held: [i32; GENERATIONS + 1],
}

impl Heir {
    /// Prepares for the new process. This process makes a pipe of its own only if `asked_for`: where it gives the slot
    /// to a next connection later.
    pub(crate) fn begin(asked_for: bool) -> Result<Heir> {
        if TOO_DEEP.load(Ordering::Relaxed) {
            return Err(Errno::MFILE);
        }
        let pipe = if asked_for { Some(end_of_life().ok_or(Errno::MFILE)?) } else { None };
        let mut held = [-1; GENERATIONS + 1];
        let before = HELD.iter().map(|h| h.load(Ordering::Relaxed) - 1);
        for (place, fd) in held.iter_mut().zip(before.chain(pipe.map(|(_, writing)| writing))) {
            *place = fd;
        }
        Ok(Heir { pipe, held })
    }

    /// Ends the preparation in this process, when the new process was `made` or could not be.
    pub(crate) fn end(self, made: bool) {
        let Some((reading, writing)) = self.pipe else { return };
        reserved_fds::close(writing);
        if made { CONNECTED.remember(reading) } else { reserved_fds::close(reading) }
    }
}

impl Descendants {
    const fn new() -> Descendants {
        Descendants { pipes: [const { AtomicI32::new(0) }; FORKS], live: AtomicU32::new(0) }
    }

    /// Remembers a fork by the end of its pipe.
    pub(super) fn remember(&self, reading: i32) {
        // A process that forks for each request must not run out of places because it never sleeps in between.
        let _g = LOCK.lock();
        self.forget_ended();
        match self.pipes.iter().find(|d| d.load(Ordering::Relaxed) == 0) {
            Some(d) => {
                d.store(reading + 1, Ordering::Relaxed);
                self.live.fetch_add(1, Ordering::Relaxed);
            }
            None => {
                reserved_fds::close(reading);
                self.live.store(FORKS as u32 + 1, Ordering::Relaxed);
            }
        }
    }

    /// Whether there are no descendants, as far as is known without asking the kernel.
    pub(super) fn none(&self) -> bool {
        self.live.load(Ordering::Relaxed) == 0
    }

    /// Whether there are no descendants any more; asks the kernel.
    pub(super) fn all_ended(&self) -> bool {
        if self.none() {
            return true;
        }
        let _g = LOCK.lock();
        self.forget_ended();
        self.none()
    }

    /// Forgets the forks of which no descendant is left. Under `LOCK`.
    fn forget_ended(&self) {
        let mut polled = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; FORKS];
        for (p, d) in polled.iter_mut().zip(&self.pipes) {
            p.fd = d.load(Ordering::Relaxed) - 1;
        }
        let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        if !raw::ppoll(polled.as_mut_ptr(), FORKS, &raw mut ts, core::ptr::null()).is_ok_and(|n| n > 0) {
            return;
        }
        for (p, d) in polled.iter().zip(&self.pipes) {
            if p.fd >= 0 && p.revents != 0 {
                // In this order: another thread may fork in between, and the child closes what it finds.
                d.store(0, Ordering::Relaxed);
                reserved_fds::close(p.fd);
                self.live.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Called in the child of a fork: the pipes are the parent's.
    pub(super) fn after_fork(&self) {
        for d in &self.pipes {
            let fd = d.swap(0, Ordering::Relaxed) - 1;
            if fd >= 0 {
                reserved_fds::close(fd);
            }
        }
        self.live.store(0, Ordering::Relaxed);
    }
}

/// Whether no descendant can hold a connection of ours any more. Asks the kernel.
pub(crate) fn alone() -> bool {
    !under_way() && CONNECTED.all_ended()
}

/// Whether no descendant can use an epoll instance of ours, as far as is known without asking the kernel.
pub(crate) fn nobody_inherits() -> bool {
    !under_way() && CONNECTED.none() && WAITING.none()
}

/// Whether a thread is about to fork: what it has shared has to stay where it is until the child is there.
pub(crate) fn under_way() -> bool {
    FORKING.load(Ordering::SeqCst) != 0
}

/// Repeats `what` until it is done, while another thread's fork is in its way, which takes a moment. Whether a fork
/// that takes longer, or is this thread's own, ever ends is not known: then `what` has to be done later or not at all.
pub(crate) fn let_pass(mut what: impl FnMut() -> bool) {
    for _ in 0..200 {
        if what() {
            return;
        }
        time::pause();
    }
}

/// Whether this process never forked, or no descendant is left that could have a connection of ours, as far as is known
/// without asking the kernel.
pub(crate) fn has_no_children() -> bool {
    !under_way() && CONNECTED.none()
}

/// In the child: keeps the pipe at which the parent waits. Pipes of ancestors that do not wait any more make room for
/// it.
pub(super) fn hold(writing: i32) {
    let free = || HELD.iter().find(|h| h.load(Ordering::Relaxed) == 0);
    if free().is_none() {
        HELD.iter().for_each(forget_if_gone);
    }
    match free() {
        Some(h) => h.store(writing + 1, Ordering::Relaxed),
        None => TOO_DEEP.store(true, Ordering::Relaxed),
    }
}

/// Closes the writing end of a pipe that nobody reads (pipe(7): poll(2) reports an error there).
fn forget_if_gone(held: &AtomicI32) {
    let fd = held.load(Ordering::Relaxed) - 1;
    let mut p = libc::pollfd { fd, events: 0, revents: 0 };
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let _ = raw::ppoll(&raw mut p, 1, &raw mut ts, core::ptr::null());
    if p.revents & libc::POLLERR != 0 {
        held.store(0, Ordering::Relaxed);
        reserved_fds::close(fd);
    }
}
