//! What a peer that left the rings passed for a connection: the kernel socket on which it goes on, and what belongs to that.
//! It may come before the connection is taken, and is kept until a thread follows (see [`super::depart`]).

use crate::shm::ShmEndpoint;
use crate::shm::control::Passed;
use crate::shm::endpoint::View;
use crate::shm::sockets::replace;
use core::sync::atomic::Ordering;
use netacc_sys::{private, raw};
use rustix::fd::{AsRawFd, OwnedFd};

/// In the place of the kernel socket: a descriptor was lost on its way here, since the process has as many open as it
/// may. It is not passed again.
const LOST: i32 = -1;

impl ShmEndpoint {
    /// The peer passed our end of the pair for connection `epoch`, perhaps before we have taken that.
    pub(crate) fn learn_moved(&self, epoch: u32, fd: OwnedFd) {
        if !(self.expects(epoch) && self.will_go_on()) || self.goes_on(epoch) {
            return private::drop_raw(fd);
        }
        self.of_epoch(epoch);
        self.learn_kernel(fd);
    }

    /// The peer passed the kernel socket of connection `epoch` that it has not read to its end.
    pub(crate) fn learn_left_over(&self, epoch: u32, fd: OwnedFd) {
        if !(self.expects(epoch) && self.will_go_on()) {
            return private::drop_raw(fd);
        }
        self.of_epoch(epoch);
        self.keep_left_over(fd);
    }

    /// The peer passed something for connection `epoch`, and it was lost: ends the connection, or else a thread that
    /// waits for the socket would wait for ever.
    pub(crate) fn miss(&self, epoch: u32) {
        if self.expects(epoch) && self.will_go_on() && !self.goes_on(epoch) {
            self.of_epoch(epoch);
            self.lose_kernel();
        }
    }

    /// Whether connection `epoch` has the socket that it goes on over. No other socket is taken, whatever the peer
    /// passes: another thread may be working with this one, so it must not be closed.
    fn goes_on(&self, epoch: u32) -> bool {
        self.kernel_epoch.load(Ordering::Relaxed) == epoch && self.kernel_fd() >= 0
    }

    fn lose_kernel(&self) {
        replace(&self.kernel, LOST);
        self.poke_self();
    }

    /// Whether what the peer passed was lost.
    pub(super) fn has_missed(&self) -> bool {
        self.kernel.load(Ordering::Acquire) == LOST
    }

    /// The socket that the connection goes on over, or -1.
    pub fn kernel_fd(&self) -> i32 {
        self.kernel.load(Ordering::Acquire).max(0) - 1
    }

    /// Drops what was passed for an earlier connection.
    fn of_epoch(&self, epoch: u32) {
        if self.kernel_epoch.swap(epoch, Ordering::Relaxed) != epoch {
            self.drop_kernel();
        }
    }

    /// Connection `epoch` begins: drops what was passed for the one before. What lies here may also belong to this
    /// connection, if it came early or is coming this moment.
    pub(super) fn forget_kernel_of_another(&self, v: &View, epoch: u32) {
        // Acquire: a thread that sees what has just been passed sees the epoch that was written before it.
        let there = [&self.kernel, &self.spare, &self.left_over].iter().any(|c| c.load(Ordering::Acquire) != 0);
        let another = || self.kernel_epoch.load(Ordering::Acquire) != epoch;
        if there && another() {
            // The thread that takes in what is passed holds this.
            let _reading = v.link.stop_reading(1_000_000);
            if another() {
                self.drop_kernel();
            }
        }
    }

    fn keep_left_over(&self, fd: OwnedFd) {
        match private::adopt(fd) {
            Ok(fd) => replace(&self.left_over, fd + 1),
            // Without this descriptor the socket would be a stream with a hole.
            Err(_) => self.lose_kernel(),
        }
    }

    pub(super) fn learn_kernel(&self, fd: OwnedFd) {
        // The socket comes to lie under the application's number, so it has to be a stream socket, whatever the peer
        // says it passed.
        if raw::getsockopt_int(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_TYPE) != Ok(libc::SOCK_STREAM) {
            return private::drop_raw(fd);
        }
        if self.has_missed() {
            return private::drop_raw(fd);
        }
        match private::adopt(fd) {
            Ok(fd) => replace(&self.kernel, fd + 1),
            Err(_) => replace(&self.kernel, LOST),
        }
        self.poke_self();
    }

    /// Keeps the near end, which is to be sent back for the rest of the peer's family.
    pub(super) fn learn_spare(&self, fd: OwnedFd) {
        if let Ok(fd) = private::adopt(fd) {
            replace(&self.spare, fd + 1);
        }
    }

    /// Takes in what came over a base or witness.
    pub(super) fn learn_passed(&self, passed: Passed) {
        if passed.lost && self.kernel_fd() < 0 {
            return self.lose_kernel();
        }
        if let Some(t) = passed.tail {
            self.keep_left_over(t);
        }
        if let Some(s) = passed.spare {
            self.learn_spare(s);
        }
        // Last: another thread follows as soon as it sees this, and then is done with the others. A spare that came
        // later would stay here, and the program that reads the other end's stream would never see it end.
        if let Some(k) = passed.kernel {
            self.learn_kernel(k);
        }
    }

    /// In the child of a fork: forgets what another thread of the parent was just taking in, which is only in our
    /// memory. What lies on the base is still there.
    pub fn forget_missing(&self) {
        for cell in [&self.kernel, &self.spare, &self.left_over] {
            let fd = cell.load(Ordering::Relaxed) - 1;
            if fd >= 0 && !private::is_open(fd) {
                cell.store(0, Ordering::Relaxed);
                private::give_back(fd);
            }
        }
        let witness = self.witness_fd();
        if witness >= 0 && !private::is_open(witness) {
            self.witness.store(0, Ordering::Relaxed);
            private::give_back(witness);
        }
    }

    pub(super) fn drop_kernel(&self) {
        replace(&self.kernel, 0);
        replace(&self.spare, 0);
        replace(&self.left_over, 0);
    }
}
