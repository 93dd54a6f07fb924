//! Descriptors of a connection that lie under numbers of the program's: the liveness socket, and the old subflow.
//!
//! The program may close such a number at any time, and the kernel gives it to the program's next file. So a number is
//! used in three steps: the thread says so ([`ShmEndpoint::using`]), looks the number up, and makes its system call.
//! A thread that takes a number away first says where the descriptor lies from then on, then waits until nobody uses
//! one ([`ShmEndpoint::release_number`]), and only then lets the kernel have the number.

use crate::shm::ShmEndpoint;
use crate::shm::sockets::keep;
use crate::timeouts;
use core::sync::atomic::{AtomicI32, Ordering, fence};
use netacc_sys::errno::Errno;
use netacc_sys::lock::{self, Held};
use netacc_sys::{raw, reserved_fds, time};

const HANDLER_NUMBER_WAIT: u64 = time::ns(timeouts::HANDLER_NUMBER_WAIT);

/// As long as this lives, numbers of the liveness socket and the old subflow that were looked up after it was made stay
/// what they are.
#[derive(Debug)]
pub struct Using<'a> {
    ep: &'a ShmEndpoint,
    /// Counts as a lock, so that a signal handler knows that it has interrupted a user.
    #[expect(dead_code, reason = "counts as long as it lives")]
    held: Held,
}

impl Drop for Using<'_> {
    fn drop(&mut self) {
        // Not below 0: in the child of a fork that a signal handler made, the count began anew. Release: the system
        // call comes before it.
        let _ = self.ep.users.fetch_update(Ordering::Release, Ordering::Relaxed, |n| n.checked_sub(1));
    }
}

impl ShmEndpoint {
    /// To be called before the number of the liveness socket or the old subflow is looked up for a system call that
    /// does not sleep.
    pub fn using(&self) -> Using<'_> {
        let held = Held::one_more();
        self.users.fetch_add(1, Ordering::SeqCst);
        // The number is looked up after this. A thread that changes it looks for users after that: one of both sees the
        // other.
        fence(Ordering::SeqCst);
        Using { ep: self, held }
    }

    /// In the child of a fork the users are threads of the parent.
    pub(super) fn forget_users(&self) {
        self.users.store(0, Ordering::Relaxed);
    }

    /// Waits until no thread uses a number that was looked up before.
    fn await_users(&self) {
        fence(Ordering::SeqCst);
        let mut until = None;
        while self.users.load(Ordering::Acquire) != 0 {
            let now = time::now();
            if lock::interrupted() && now > *until.get_or_insert(now.saturating_add(HANDLER_NUMBER_WAIT)) {
                return;
            }
            raw::sched_yield();
        }
    }

    /// Whether the liveness socket or the old subflow lies under the number.
    pub fn lies_under(&self, fd: i32) -> bool {
        self.liveness_fd() == fd || self.old_subflow_fd() == fd
    }

    /// To be called when the number, under which the liveness socket or the old subflow lies, is about to be another
    /// file's. `other`: the connection has that number as well; without one, what lay there lies under a number of ours
    /// from then on. The caller holds both direction locks.
    pub fn release_number(&self, fd: i32, other: Option<i32>) {
        for cell in self.lying_under(fd) {
            match other {
                Some(other) => go_on(cell, fd, other + 1),
                None => keep(cell),
            }
        }
        if self.lies_under(fd) && reserved_fds::release_reserve() {
            self.lying_under(fd).for_each(keep);
        }
        if self.old_subflow_fd() == fd {
            // No descriptor is left by which it could be read, and it holds bytes of the stream.
            self.fail(Errno::CONNRESET);
        }
        self.lying_under(fd).for_each(|cell| go_on(cell, fd, 0));
        self.renumbered();
    }

    /// As [`ShmEndpoint::release_number`], when the number is another file's already: the program closed it behind our
    /// back.
    pub fn lose_number(&self, fd: i32, other: Option<i32>) {
        self.lying_under(fd).for_each(|cell| go_on(cell, fd, other.map_or(0, |n| n + 1)));
        self.renumbered();
    }

    fn lying_under(&self, fd: i32) -> impl Iterator<Item = &AtomicI32> {
        [&self.liveness, &self.old_subflow].into_iter().filter(move |cell| cell.load(Ordering::Acquire) == fd + 1)
    }

    /// To be called when what lay under a number of the program's lies elsewhere.
    fn renumbered(&self) {
        // A thread that is about to sleep may have put the number among those that it sleeps on, and is registered by
        // then.
        self.poke_self();
        self.await_users();
    }

    /// To be called when the program's number of the liveness socket is about to refer to something else: from then on
    /// the liveness socket lies under a number of ours, for calls that sleep.
    pub fn keep_liveness(&self) {
        self.keep_own(&self.liveness);
    }

    /// To be called when the program's number by which the old subflow is read is about to refer to something else: from then
    /// on the old subflow is read by a number of ours.
    pub fn keep_old_subflow(&self) {
        self.keep_own(&self.old_subflow);
    }

    fn keep_own(&self, cell: &AtomicI32) {
        let before = cell.load(Ordering::Acquire);
        keep(cell);
        if cell.load(Ordering::Acquire) != before {
            self.renumbered();
        }
    }
}

fn go_on(cell: &AtomicI32, fd: i32, word: i32) {
    // AcqRel: a thread that finds the new number sees the file that was put there before. If the cell has changed, the
    // number has left it already.
    let _ = cell.compare_exchange(fd + 1, word, Ordering::AcqRel, Ordering::Relaxed);
}
