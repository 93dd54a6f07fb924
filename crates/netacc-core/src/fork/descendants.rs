//! Pipes by which a process knows whether descendants that share connections or epoll instances still live.

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{Lock, SharedCell, lock_rank, own_limit, raw, reserved_fds, time};
use rustix::fd::OwnedFd;
use rustix::pipe::{PipeFlags, pipe_with};

/// Largest number of forks that are tracked because descendants may still live. Beyond it connections stay shared,
/// which only makes them a little slower.
const FORKS: usize = 64;

/// Divisor of the number of descriptors that we may have: the pipes by which forks are tracked.
const PART_OF_DESCRIPTORS: usize = 16;

/// Descendants that share objects with this process, tracked by pipes.
#[derive(Debug)]
pub(super) struct Descendants {
    /// Reading ends (descriptor + 1) of pipes whose writing ends the descendants hold: the kernel closes one when the
    /// last of them has ended or executed another program.
    pipes: [AtomicI32; FORKS],
    /// Number of pipes in `pipes`, or `FORKS + 1` if one found no room.
    live: AtomicU32,
}

/// Descendants that may have a connection of ours.
pub(super) static CONNECTED: Descendants = Descendants::new();

/// Descendants that may have an epoll instance of ours, and no connection.
pub(super) static WAITING: Descendants = Descendants::new();

/// Guards `CONNECTED` and `WAITING`.
pub(super) static LOCK: Lock<{ lock_rank::LEAF }> = Lock::new();

/// Number of forks in progress, whose children are not tracked yet.
pub(super) static FORKING: AtomicU32 = AtomicU32::new(0);

/// Number of generations of sharers that are distinguished.
const GENERATIONS: usize = 16;

/// The writing ends (descriptor + 1) of the pipes at which the processes before this one wait for the end of their
/// descendants, the oldest first.
static HELD: [AtomicI32; GENERATIONS] = [const { AtomicI32::new(0) }; GENERATIONS];

/// Set in a process with more waiting ancestors than `HELD` has places.
static TOO_DEEP: SharedCell<bool> = SharedCell::<bool>::new(false);

/// The descriptors of [`HELD`], for the copy of the library that takes this one's place.
pub(crate) fn held() -> impl Iterator<Item = i32> {
    HELD.iter().map(|cell| cell.load(Ordering::Relaxed) - 1).filter(|fd| *fd >= 0)
}

/// Goes on holding a descriptor that another copy of the library has held.
pub(crate) fn go_on_holding(fd: i32) {
    let free = |cell: &&AtomicI32| cell.load(Ordering::Relaxed) == 0;
    match HELD.iter().find(free) {
        Some(cell) => cell.store(fd + 1, Ordering::Relaxed),
        None => TOO_DEEP.set(true),
    }
}

/// How a process knows when the descendants of one fork have ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Tracked {
    /// They share nothing with it.
    #[default]
    Needless,
    /// By a pipe: its reading end is this process's, its writing end the descendants'.
    By {
        /// Our descriptor of the reading end.
        reading: i32,
        /// Our descriptor of the writing end.
        writing: i32,
    },
    /// It does not, since there was no number for a pipe.
    Lost,
}

impl Tracked {
    /// Makes the pipe of a fork. It is not worth a number that the program may need.
    pub(super) fn begin() -> Tracked {
        let pipe = if is_crowded() { None } else { ends(reserved_fds::park) };
        pipe.map_or(Tracked::Lost, |(reading, writing)| Tracked::By { reading, writing })
    }
}

/// Whether there are as many pipes as the limit of descriptors allows.
fn is_crowded() -> bool {
    let most = own_limit::room() / PART_OF_DESCRIPTORS;
    let is_full = || (CONNECTED.count() + WAITING.count()) as usize >= most;
    is_full() && {
        let _ended = (CONNECTED.all_ended(), WAITING.all_ended());
        is_full()
    }
}

/// Makes a pipe of which both ends, the reading one first, are ours.
fn ends(keep: fn(OwnedFd) -> Result<i32>) -> Option<(i32, i32)> {
    let (r, w) = pipe_with(PipeFlags::CLOEXEC).ok()?;
    let r = keep(r).ok()?;
    match keep(w) {
        Ok(w) => Some((r, w)),
        Err(_) => {
            reserved_fds::close(r);
            None
        }
    }
}

/// The pipes that a helper process holds while it continues a connection: they show all processes that share the
/// connection's slot that the slot is still in use.
#[derive(Debug)]
pub(crate) struct Heir {
    pipe: Option<(i32, i32)>,
    /// Descriptors that the new process keeps open, or -1.
    pub(crate) held: [i32; GENERATIONS + 1],
}

impl Heir {
    /// Prepares for the new process. This process makes a pipe of its own only if `asked_for`, when it will use the
    /// slot for another connection later.
    pub(crate) fn begin(asked_for: bool) -> Result<Heir> {
        if TOO_DEEP.get() {
            return Err(Errno::MFILE);
        }
        let pipe = if asked_for { Some(ends(reserved_fds::adopt).ok_or(Errno::MFILE)?) } else { None };
        let mut held = [-1; GENERATIONS + 1];
        let before = HELD.iter().map(|h| h.load(Ordering::Relaxed) - 1);
        for (place, fd) in held.iter_mut().zip(before.chain(pipe.map(|(_, writing)| writing))) {
            *place = fd;
        }
        Ok(Heir { pipe, held })
    }

    /// Ends the preparation in this process. `made`: the new process exists.
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

    /// Tracks a fork by the reading end of its pipe.
    pub(super) fn remember(&self, reading: i32) {
        // Ended forks are removed here too: a process that forks for each request and never sleeps would otherwise use
        // up all places.
        let _g = LOCK.lock();
        self.forget_ended();
        match self.pipes.iter().find(|d| d.load(Ordering::Relaxed) == 0) {
            Some(d) => {
                d.store(reading + 1, Ordering::Relaxed);
                self.live.fetch_add(1, Ordering::Relaxed);
            }
            None => {
                reserved_fds::close(reading);
                self.lose();
            }
        }
    }

    /// Notes a fork of which it will never be known whether its descendants have ended.
    pub(super) fn lose(&self) {
        // One more than those that can end.
        self.live.store(FORKS as u32 + 1, Ordering::Relaxed);
    }

    /// Whether no descendant is tracked. Does not ask the kernel.
    pub(super) fn none(&self) -> bool {
        self.count() == 0
    }

    /// Number of forks that are tracked, or more than [`FORKS`] if one is not.
    fn count(&self) -> u32 {
        self.live.load(Ordering::Relaxed)
    }

    /// Whether all descendants have ended. Asks the kernel.
    pub(super) fn all_ended(&self) -> bool {
        if self.none() {
            return true;
        }
        let _g = LOCK.lock();
        self.forget_ended();
        self.none()
    }

    /// Removes the forks of which no descendant is left. Under `LOCK`.
    fn forget_ended(&self) {
        let mut polled = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; FORKS];
        for (p, d) in polled.iter_mut().zip(&self.pipes) {
            p.fd = d.load(Ordering::Relaxed) - 1;
        }
        // The pipes lie in the first free places, and the kernel looks at each place that it is given.
        let used = polled.iter().rposition(|p| p.fd >= 0).map_or(0, |last| last + 1);
        let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        if !raw::ppoll(polled.as_mut_ptr(), used, &raw mut ts, core::ptr::null()).is_ok_and(|n| n > 0) {
            return;
        }
        for (p, d) in polled.iter().zip(&self.pipes) {
            if p.fd >= 0 && p.revents != 0 {
                // The entry is cleared before the close: another thread may fork in between, and its child closes the
                // entries that it finds.
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

/// Whether no tracked descendant can use an epoll instance of ours. Does not ask the kernel.
pub(crate) fn nobody_inherits() -> bool {
    !under_way() && CONNECTED.none() && WAITING.none()
}

/// Whether a thread is about to fork: shared objects must not change until the child exists.
pub(crate) fn under_way() -> bool {
    FORKING.load(Ordering::SeqCst) != 0
}

/// Repeats `what` until it returns true, while another thread's fork prevents it, which takes a moment. If the fork
/// takes longer, or is this thread's own, the function gives up, and the caller does the work later or not at all.
pub(crate) fn let_pass(mut what: impl FnMut() -> bool) {
    for _ in 0..200 {
        if what() {
            return;
        }
        time::pause();
    }
}

/// Whether this process never forked, or tracks no descendant that could have a connection of ours. Does not ask the
/// kernel.
pub(crate) fn has_no_children() -> bool {
    !under_way() && CONNECTED.none()
}

/// In the child: keeps the writing end of the parent's pipe. It may replace one of an ancestor that no longer waits.
pub(super) fn hold(writing: i32) {
    let free = || HELD.iter().find(|h| h.load(Ordering::Relaxed) == 0);
    if free().is_none() {
        HELD.iter().for_each(forget_if_gone);
    }
    match free() {
        Some(h) => h.store(writing + 1, Ordering::Relaxed),
        None => TOO_DEEP.set(true),
    }
}

/// Closes the writing end of a pipe without a reader (pipe(7): poll(2) reports an error there).
fn forget_if_gone(held: &AtomicI32) {
    let fd = held.load(Ordering::Relaxed) - 1;
    if raw::events_now(fd, 0) & libc::POLLERR != 0 {
        held.store(0, Ordering::Relaxed);
        reserved_fds::close(fd);
    }
}
