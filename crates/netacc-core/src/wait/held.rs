//! Our own numbers by which a call sleeps on a candidate's kernel socket, whose number may get another file meanwhile.

use core::sync::atomic::{AtomicI32, Ordering};
use netacc_sys::reserved_fds;

/// Our own numbers (+ 1) for the kernel sockets of candidates on which a poll sleeps. Meanwhile the connection can be
/// promoted and demoted again to another kernel socket under the same number: a ppoll(2) that the old socket wakes
/// would then look at the new one, and sleep on without a wake-up.
static COPIES: [AtomicI32; 64] = [const { AtomicI32::new(0) }; 64];

/// Our own numbers (+ 1) for the kernel sockets on which a reading call sleeps, for the reason given at [`COPIES`].
/// They are separate from those, so that a read finds a place even if polls have taken all others.
static READ: [AtomicI32; 64] = [const { AtomicI32::new(0) }; 64];

/// An entry of [`COPIES`] or [`READ`].
pub(crate) struct Held(&'static AtomicI32);

impl Held {
    /// A copy of `fd` for a poll, if there is room for one.
    pub(crate) fn to_poll(fd: i32) -> Option<Held> {
        Held::of(fd, &COPIES)
    }

    /// A copy of `fd` for a call that reads, if there is room for one.
    pub(crate) fn to_read(fd: i32) -> Option<Held> {
        Held::of(fd, &READ)
    }

    fn of(fd: i32, cells: &'static [AtomicI32]) -> Option<Held> {
        let ours = reserved_fds::copy(fd).ok()?;
        // AcqRel: a thread that closes the number, here or in the child of a fork, sees its file.
        let free = |c: &&AtomicI32| c.compare_exchange(0, ours + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let cell = cells.iter().find(free);
        if cell.is_none() {
            reserved_fds::close(ours);
        }
        cell.map(Held)
    }

    /// The number; -1 in the child of a fork that a signal handler made during the call.
    pub(crate) fn fd(&self) -> i32 {
        self.0.load(Ordering::Relaxed) - 1
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let fd = self.0.swap(0, Ordering::AcqRel) - 1;
        if fd >= 0 {
            reserved_fds::close(fd);
        }
    }
}

/// Called in the child of a fork: closes the numbers, since the sleeping threads are the parent's.
pub fn after_fork() {
    for cell in COPIES.iter().chain(&READ) {
        drop(Held(cell));
    }
}
