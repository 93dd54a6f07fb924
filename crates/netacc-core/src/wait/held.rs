//! Numbers of ours by which a call sleeps on a kernel's socket that may get another place meanwhile.

use core::sync::atomic::{AtomicI32, Ordering};
use netacc_sys::reserved_fds;

/// Numbers of ours (+ 1) for the kernel's sockets of candidates that a poll sleeps on. While it sleeps, such a
/// connection can be promoted and come back to another kernel socket under the same number: ppoll(2) woken by the
/// old socket would look at the new one, and sleep on with nobody to wake it.
static COPIES: [AtomicI32; 64] = [const { AtomicI32::new(0) }; 64];

/// Numbers of ours (+ 1) for the kernel's sockets that a call that reads sleeps on, for the reason given at [`COPIES`].
/// They are apart from those, so that a read finds a place however many a poll has taken.
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
        // AcqRel: the thread that closes it, here or in the child of a fork, sees it whole.
        let free = |c: &&AtomicI32| c.compare_exchange(0, ours + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let cell = cells.iter().find(free);
        if cell.is_none() {
            reserved_fds::close(ours);
        }
        cell.map(Held)
    }

    /// Its number; -1 in the child of a fork that a signal handler made under the call.
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

/// Called in the child of a fork: the sleepers are the parent's.
pub fn after_fork() {
    for cell in COPIES.iter().chain(&READ) {
        drop(Held(cell));
    }
}
