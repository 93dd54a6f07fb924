//! Descriptors of a connection under the program's numbers: the liveness socket, and the old subflow.
//!
//! The program may close such a number at any time, and the kernel gives it to the program's next file. So a number is
//! used in three steps: the thread announces the use ([`Users::begin`]), looks the number up, and makes its
//! system call. A thread that removes a number first stores the number under which the descriptor can be found from
//! then on, then waits until no thread uses the old one ([`ShmEndpoint::release_number`]), and only then lets the
//! kernel have it.

use crate::shm::ShmEndpoint;
use crate::timeouts;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering, fence};
use netacc_sys::errno::Errno;
use netacc_sys::lock::{self, Held};
use netacc_sys::{raw, reserved_fds, time};

const HANDLER_NUMBER_WAIT: u64 = time::ns(timeouts::HANDLER_NUMBER_WAIT);

/// The number of threads that are using a number of the liveness socket or the old subflow.
#[derive(Debug)]
pub(super) struct Users(AtomicU32);

/// Guard of a use: numbers of the liveness socket and the old subflow that are looked up while it lives keep their
/// files.
#[derive(Debug)]
pub(super) struct Using<'a> {
    users: &'a Users,
    /// Counts as a lock, so that a signal handler knows that it has interrupted a user.
    #[expect(dead_code, reason = "counts as long as it lives")]
    held: Held,
}

impl Drop for Using<'_> {
    fn drop(&mut self) {
        // The count must not fall below 0: it was reset in the child of a fork that a signal handler made. Release: the
        // system call comes before it.
        let _ = self.users.0.fetch_update(Ordering::Release, Ordering::Relaxed, |n| n.checked_sub(1));
    }
}

impl Users {
    /// To be called before the number of the liveness socket or the old subflow is looked up for a system call that
    /// does not sleep.
    pub(super) fn begin(&self) -> Using<'_> {
        let held = Held::one_more();
        self.0.fetch_add(1, Ordering::SeqCst);
        // The number is looked up after this fence, and a thread that changes it checks for users after its change: one
        // of the two sees the other.
        fence(Ordering::SeqCst);
        Using { users: self, held }
    }

    /// Called in the child of a fork: resets the count, since the users are threads of the parent.
    pub(super) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Waits until no thread uses a number that was looked up before. A signal handler gives up after
    /// [`HANDLER_NUMBER_WAIT`], since the user may be the thread that it has interrupted.
    fn wait(&self) {
        fence(Ordering::SeqCst);
        let mut until = None;
        while self.0.load(Ordering::Acquire) != 0 {
            let now = time::now();
            if lock::interrupted() && now > *until.get_or_insert(now.saturating_add(HANDLER_NUMBER_WAIT)) {
                return;
            }
            raw::sched_yield();
        }
    }
}

/// A descriptor of the connection, which may lie under a number of the program's (number + 1; 0: there is none; negative:
/// it is ours, was [retired](ProgramNumber::retire), and is still to be closed).
#[derive(Debug)]
pub(super) struct ProgramNumber(AtomicI32);

impl ProgramNumber {
    /// The number, or -1.
    pub(super) fn fd(&self) -> i32 {
        self.0.load(Ordering::Acquire).max(0) - 1
    }

    /// The number, also of a retired descriptor, or -1.
    pub(super) fn open_fd(&self) -> i32 {
        self.0.load(Ordering::Acquire).abs() - 1
    }

    /// Whether there is a number, for a decision that depends on no other data.
    #[inline]
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Stores a number.
    pub(super) fn set(&self, fd: i32) {
        self.0.store(fd + 1, Ordering::Release);
    }

    /// Forgets the number when a connection begins.
    pub(super) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Forgets the number and returns it, or -1.
    pub(super) fn take(&self) -> i32 {
        if self.is_set() { self.0.swap(0, Ordering::AcqRel).max(0) - 1 } else { -1 }
    }

    /// Notes that the descriptor under number `fd` is not used any more. One of ours stays open until [`close`], since
    /// another thread may be passing it to the peer. False: another thread has retired or replaced it, so what was found
    /// under `fd` may belong to another file.
    ///
    /// [`close`]: ProgramNumber::close
    pub(super) fn retire(&self, fd: i32) -> bool {
        let retired = if reserved_fds::is(fd) { -fd - 1 } else { 0 };
        // AcqRel: a thread that sees no number sees all uses of it.
        self.0.compare_exchange(fd + 1, retired, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Forgets the number when the connection leaves the ring, and closes a descriptor of ours, also a retired one. The
    /// caller holds both direction locks.
    pub(super) fn close(&self) {
        let fd = self.0.swap(0, Ordering::AcqRel).abs() - 1;
        if fd >= 0 && reserved_fds::is(fd) {
            reserved_fds::close(fd);
        }
    }

    /// Replaces number `fd` by another one, or by -1. False: another thread has done so already.
    pub(super) fn replace(&self, fd: i32, other: i32) -> bool {
        // AcqRel: a thread that sees the new number sees its file, and all uses of the old one.
        self.0.compare_exchange(fd + 1, other + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Replaces the program's number, which is about to get another file, by a duplicate at a reserved number. False:
    /// there is no number, it is a reserved one, or no reserved one is free, so that it stays as it is.
    fn keep(&self) -> bool {
        let fd = self.fd();
        if fd < 0 || reserved_fds::is(fd) {
            return false;
        }
        match reserved_fds::copy(fd) {
            Ok(ours) if self.replace(fd, ours) => true,
            Ok(ours) => {
                reserved_fds::close(ours);
                // Another thread has replaced it.
                true
            }
            Err(_) => false,
        }
    }
}

impl ShmEndpoint {
    /// Whether the number is that of the liveness socket or the old subflow.
    pub fn lies_under(&self, fd: i32) -> bool {
        self.lying_under(fd).next().is_some()
    }

    fn lying_under(&self, fd: i32) -> impl Iterator<Item = &ProgramNumber> {
        [&self.liveness.own, self.old_subflow.number()].into_iter().filter(move |number| number.fd() == fd)
    }

    /// To be called before the number of the liveness socket or the old subflow gets another file. `other` is another
    /// number of the connection; without one, the descriptor is duplicated to a number of ours. The caller holds both
    /// direction locks.
    pub fn release_number(&self, fd: i32, other: Option<i32>) {
        for number in self.lying_under(fd) {
            let _ = match other {
                Some(other) => number.replace(fd, other),
                None => number.keep(),
            };
        }
        if self.lies_under(fd) && reserved_fds::release_reserve() {
            for number in self.lying_under(fd) {
                let _ = number.keep();
            }
        }
        if self.old_subflow.fd() == fd {
            // The old subflow has bytes of the stream, and no descriptor is left by which they could be read.
            self.fail(Errno::CONNRESET);
        }
        self.lose_number(fd, None);
    }

    /// To be called when the number already has another file, since the program closed it by a call that was not
    /// intercepted. `other` is another number of the connection.
    pub fn lose_number(&self, fd: i32, other: Option<i32>) {
        for number in self.lying_under(fd) {
            let _ = number.replace(fd, other.unwrap_or(-1));
        }
        self.renumbered();
    }

    /// To be called after a descriptor has moved from a number of the program's to another one.
    fn renumbered(&self) {
        // A thread that is about to sleep on the old number has registered already, so it is woken.
        self.poke_self();
        self.side.users.wait();
    }

    /// Duplicates the liveness socket to a number of ours for sleeping calls, before the program's number gets another
    /// file.
    pub fn keep_liveness(&self) {
        if self.liveness.own.keep() {
            self.renumbered();
        }
    }

    /// Duplicates the old subflow to a number of ours, by which it is read from then on, before the program's number
    /// gets another file.
    pub fn keep_old_subflow(&self) {
        if self.old_subflow.number().keep() {
            self.renumbered();
        }
    }
}
