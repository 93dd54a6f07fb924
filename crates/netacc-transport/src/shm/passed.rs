//! What a peer that left the rings passed for a connection: the kernel socket on which it goes on, and what belongs to that.
//! It may come before the connection is taken, and is kept until a thread follows (see [`super::switch`]).

use crate::shm::ShmEndpoint;
use crate::shm::endpoint::View;
use crate::shm::passing::Passed;
use crate::shm::sockets::{end_at_close, replace};
use core::sync::atomic::Ordering;
use netacc_sys::{raw, reserved_fds};
use rustix::fd::{AsRawFd, OwnedFd};

/// In the place of the kernel socket: a descriptor was lost on its way here, since the process has as many open as it
/// may. It is not passed again.
const LOST: i32 = -1;

impl ShmEndpoint {
    /// The peer passed our end of the pair for connection `generation`, perhaps before we have taken that.
    pub(crate) fn learn_switch(&self, generation: u32, fd: OwnedFd) {
        if !(self.expects(generation) && self.will_go_on(generation)) || self.goes_on(generation) {
            if !self.goes_on(generation) {
                // This process has closed the connection, in good order or with a mark that it is reset. The socket
                // would reset it in any case, and what this side has sent would be lost.
                end_at_close(fd.as_raw_fd());
            }
            return reserved_fds::drop_raw(fd);
        }
        self.of_generation(generation);
        self.learn_kernel(fd);
    }

    /// The peer passed the kernel socket of connection `generation` that it has not read to its end.
    pub(crate) fn learn_unread_return(&self, generation: u32, fd: OwnedFd) {
        if !(self.expects(generation) && self.will_go_on(generation)) || self.goes_on(generation) {
            return reserved_fds::drop_raw(fd);
        }
        self.of_generation(generation);
        self.keep_unread_return(fd);
    }

    /// The peer passed something for connection `generation`, and it was lost: ends the connection, or else a thread that
    /// waits for the socket would wait for ever.
    pub(crate) fn miss(&self, generation: u32) {
        if self.expects(generation) && self.will_go_on(generation) && !self.goes_on(generation) {
            self.of_generation(generation);
            self.lose_kernel();
        }
    }

    /// Whether connection `generation` has the socket that it goes on over. No other socket is taken, whatever the peer
    /// passes: another thread may be working with this one, so it must not be closed.
    fn goes_on(&self, generation: u32) -> bool {
        self.kernel_generation.load(Ordering::Relaxed) == generation && self.kernel_fd() >= 0
    }

    fn lose_kernel(&self) {
        let _ = self.take_kernel(LOST);
        self.poke_self();
    }

    /// Stores the socket that the connection goes on over. False: it has one, which came another way and which another
    /// thread may be working with.
    fn take_kernel(&self, word: i32) -> bool {
        // AcqRel: a thread that finds the socket sees what was passed with it.
        self.kernel.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether what the peer passed was lost.
    pub(super) fn has_missed(&self) -> bool {
        self.kernel.load(Ordering::Acquire) == LOST
    }

    /// The socket that the connection goes on over, or -1.
    pub fn kernel_fd(&self) -> i32 {
        self.kernel.load(Ordering::Acquire).max(0) - 1
    }

    /// Drops what was passed for an earlier connection. Of an open connection nothing earlier lies here since it began
    /// (see [`ShmEndpoint::forget_kernel_of_another`]), and what came over its liveness sockets is its own.
    pub(super) fn of_generation(&self, generation: u32) {
        if self.kernel_generation.swap(generation, Ordering::Relaxed) != generation && !self.is_live() {
            self.drop_kernel();
        }
    }

    /// Connection `generation` begins: drops what was passed for the one before. What lies here may also belong to this
    /// connection, if it came early or is coming this moment.
    pub(super) fn forget_kernel_of_another(&self, v: &View, generation: u32) {
        // Acquire: a thread that sees what has just been passed sees the generation that was written before it.
        let there =
            [&self.kernel, &self.sibling_copy, &self.unread_return].iter().any(|c| c.load(Ordering::Acquire) != 0);
        let another = || self.kernel_generation.load(Ordering::Acquire) != generation;
        if there && another() {
            // The thread that takes in what is passed holds this.
            let _reading = v.link.stop_reading(1_000_000);
            if another() {
                self.drop_kernel();
            }
        }
    }

    fn keep_unread_return(&self, fd: OwnedFd) {
        match reserved_fds::adopt(fd) {
            Ok(fd) => replace(&self.unread_return, fd + 1),
            // Without this descriptor the socket would be a stream with a hole.
            Err(_) => self.lose_kernel(),
        }
    }

    pub(super) fn learn_kernel(&self, fd: OwnedFd) {
        // The socket comes to lie under the application's number, so it has to be a stream socket, whatever the peer
        // says it passed.
        if raw::getsockopt_int(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_TYPE) != Ok(libc::SOCK_STREAM) {
            return reserved_fds::drop_raw(fd);
        }
        if self.has_missed() {
            return reserved_fds::drop_raw(fd);
        }
        match reserved_fds::adopt(fd) {
            Ok(fd) if self.take_kernel(fd + 1) => {}
            Ok(fd) => reserved_fds::close(fd),
            Err(_) => drop(self.take_kernel(LOST)),
        }
        self.poke_self();
    }

    /// Keeps the local end, which is to be sent back for the peer's other sharers.
    pub(super) fn learn_sibling_copy(&self, fd: OwnedFd) {
        if let Ok(fd) = reserved_fds::adopt(fd) {
            replace(&self.sibling_copy, fd + 1);
        }
    }

    /// Takes in what came over a liveness socket of either side. The same may come over the control socket, to which
    /// another thread listens: what comes second is dropped.
    pub(super) fn learn_passed(&self, passed: Passed) {
        if self.kernel_fd() >= 0 {
            return [passed.kernel, passed.sibling_copy, passed.old_subflow]
                .into_iter()
                .flatten()
                .for_each(reserved_fds::drop_raw);
        }
        if passed.lost {
            return self.lose_kernel();
        }
        // A connect that has not been taken has its generation only in what was passed for it.
        if passed.kernel.is_some() && self.is_live() {
            // First, so that a thread that finds the socket knows whose it is.
            self.kernel_generation.store(self.generation.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        if let Some(t) = passed.old_subflow {
            self.keep_unread_return(t);
        }
        if let Some(s) = passed.sibling_copy {
            self.learn_sibling_copy(s);
        }
        // Last: another thread follows as soon as it sees this, and then is done with the others. A sibling copy that came
        // later would stay here, and the program that reads the other end's stream would never see it end.
        if let Some(k) = passed.kernel {
            self.learn_kernel(k);
        }
    }

    /// In the child of a fork: forgets what another thread of the parent was just taking in, which is only in our
    /// memory. What lies on the liveness socket is still there.
    pub fn forget_missing(&self) {
        for cell in [&self.kernel, &self.sibling_copy, &self.unread_return] {
            let fd = cell.load(Ordering::Relaxed) - 1;
            if fd >= 0 && !reserved_fds::is_open(fd) {
                cell.store(0, Ordering::Relaxed);
                reserved_fds::give_back(fd);
            }
        }
        let peer_liveness = self.peer_liveness_fd();
        if peer_liveness >= 0 && !reserved_fds::is_open(peer_liveness) {
            self.peer_liveness.store(0, Ordering::Relaxed);
            reserved_fds::give_back(peer_liveness);
        }
    }

    pub(super) fn drop_kernel(&self) {
        replace(&self.kernel, 0);
        replace(&self.sibling_copy, 0);
        replace(&self.unread_return, 0);
    }
}
