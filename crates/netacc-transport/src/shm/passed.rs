//! Descriptors that a peer which has left the rings passes for a connection: the kernel socket on which it goes on, and
//! those that belong to it. They may be received before the connect is accepted, and are kept until a thread follows
//! (see [`super::switch`]).

use crate::shm::ShmEndpoint;
use crate::shm::passing::Passed;
use crate::shm::slot_side::View;
use crate::shm::sockets::{end_at_close, replace};
use core::sync::atomic::Ordering;
use netacc_sys::{raw, reserved_fds};
use rustix::fd::{AsRawFd, OwnedFd};

/// Value of `ShmEndpoint::kernel`: a descriptor was lost when it was received, since this process has reached its
/// limit. It is not passed again.
const LOST: i32 = -1;

impl ShmEndpoint {
    /// Stores our end of the pair, which the peer passed for connection `generation`, perhaps before the connect is
    /// accepted.
    pub(crate) fn learn_switch(&self, generation: u32, fd: OwnedFd) {
        if !(self.side.expects(generation) && self.will_go_on(generation)) || self.goes_on(generation) {
            if !self.goes_on(generation) {
                // This process has closed the connection, in the ordinary way or with the mark of a reset. The socket's
                // close would reset it in either case, and the bytes that this side has sent would be lost.
                end_at_close(fd.as_raw_fd());
            }
            return reserved_fds::drop_raw(fd);
        }
        self.of_generation(generation);
        self.learn_kernel(fd);
    }

    /// Stores the old subflow that the peer has not read to its end and passed for connection `generation`.
    pub(crate) fn learn_unread_return(&self, generation: u32, fd: OwnedFd) {
        if !(self.side.expects(generation) && self.will_go_on(generation)) || self.goes_on(generation) {
            return reserved_fds::drop_raw(fd);
        }
        self.of_generation(generation);
        self.keep_unread_return(fd);
    }

    /// Notes that the peer has passed a descriptor for connection `generation` that was lost: without this note a
    /// thread would wait for the socket forever.
    pub(crate) fn miss(&self, generation: u32) {
        if self.side.expects(generation) && self.will_go_on(generation) && !self.goes_on(generation) {
            self.of_generation(generation);
            self.lose_kernel();
        }
    }

    /// Whether connection `generation` has received the socket on which it goes on. No other socket is accepted after
    /// that: another thread may be using this one, so it must not be closed.
    fn goes_on(&self, generation: u32) -> bool {
        self.kernel_generation.load(Ordering::Relaxed) == generation && self.kernel_fd() >= 0
    }

    fn lose_kernel(&self) {
        let _ = self.take_kernel(LOST);
        self.poke_self();
    }

    /// Stores the socket on which the connection goes on (+ 1), or [`LOST`]. False: there is one already, which another
    /// thread may be using.
    fn take_kernel(&self, word: i32) -> bool {
        // AcqRel: a thread that finds the socket sees the descriptors that were passed with it.
        self.kernel.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether a descriptor that the peer passed was lost.
    pub(super) fn has_missed(&self) -> bool {
        self.kernel.load(Ordering::Acquire) == LOST
    }

    /// The socket on which the connection goes on, or -1.
    pub fn kernel_fd(&self) -> i32 {
        self.kernel.load(Ordering::Acquire).max(0) - 1
    }

    /// Drops descriptors that were passed for an earlier connection in the slot. When an open connection began, such
    /// descriptors were dropped ([`ShmEndpoint::forget_kernel_of_another`]), and those that it has received over its
    /// liveness sockets are its own.
    pub(super) fn of_generation(&self, generation: u32) {
        if self.kernel_generation.swap(generation, Ordering::Relaxed) != generation && !self.side.is_live() {
            self.drop_kernel();
        }
    }

    /// Called when connection `generation` begins: drops descriptors that were passed for the previous one. Stored
    /// descriptors may also belong to this connection, if they came early or are being received now.
    pub(super) fn forget_kernel_of_another(&self, v: &View, generation: u32) {
        // Acquire: a thread that sees a descriptor sees the generation that was stored before it.
        let there =
            [&self.kernel, &self.sibling_copy, &self.unread_return].iter().any(|c| c.load(Ordering::Acquire) != 0);
        let another = || self.kernel_generation.load(Ordering::Acquire) != generation;
        if there && another() {
            // The thread that receives passed descriptors holds this lock.
            let _reading = v.link.stop_reading(1_000_000);
            if another() {
                self.drop_kernel();
            }
        }
    }

    fn keep_unread_return(&self, fd: OwnedFd) {
        match reserved_fds::adopt(fd) {
            Ok(fd) => replace(&self.unread_return, fd + 1),
            // Without this descriptor, bytes would be missing from the stream.
            Err(_) => self.lose_kernel(),
        }
    }

    pub(super) fn learn_kernel(&self, fd: OwnedFd) {
        // The socket will be put under the application's number, so it has to be a stream socket, whatever the peer has
        // passed.
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

    /// Keeps the copy of the local end, which has to be sent back for the peer's other sharers.
    pub(super) fn learn_sibling_copy(&self, fd: OwnedFd) {
        if let Ok(fd) = reserved_fds::adopt(fd) {
            replace(&self.sibling_copy, fd + 1);
        }
    }

    /// Stores descriptors that were received over a liveness socket of either side. Another thread may receive the same
    /// ones over the control socket: the second copies are dropped.
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
        // For a connect that was not accepted yet, only the passed message has the generation.
        if passed.kernel.is_some() && self.side.is_live() {
            // The generation is stored first, so that a thread that finds the socket knows its connection.
            self.kernel_generation.store(self.side.generation.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        if let Some(t) = passed.old_subflow {
            self.keep_unread_return(t);
        }
        if let Some(s) = passed.sibling_copy {
            self.learn_sibling_copy(s);
        }
        // The socket is stored last: another thread follows as soon as it sees it, and then handles the other
        // descriptors. A sibling copy that was stored later would stay open here, and the reader of the other end would
        // never see its stream end.
        if let Some(k) = passed.kernel {
            self.learn_kernel(k);
        }
    }

    /// Called in the child of a fork: forgets descriptors that another thread of the parent was just storing, which the
    /// child does not have. Messages on the liveness socket are still there.
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
