//! Descriptors that a peer which has left the rings passes for a connection: the kernel socket on which it goes on, and
//! those that belong to it. They may be received before the connect is accepted, and are kept until a thread follows
//! (see [`super::switch`]).

use crate::shm::ShmEndpoint;
use crate::shm::passing::Passed;
use crate::shm::side::Side;
use crate::shm::slot_side::{SlotSide, View};
use crate::shm::sockets::{end_at_close, replace};
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use netacc_sys::{raw, reserved_fds};
use rustix::fd::{AsRawFd, OwnedFd};

/// Value of [`PassedSockets::kernel`]: a descriptor was lost when it was received, since this process has reached its
/// limit. It is not passed again.
const LOST: i32 = -1;

/// The sockets that a process which has left the rings has passed, or passes, for a connection.
#[derive(Debug)]
pub struct PassedSockets {
    /// The kernel socket on which a connection goes on that another process has taken off the rings (reserved
    /// descriptor + 1), or [`LOST`].
    kernel: AtomicI32,
    /// The generation of the connection that `kernel` was passed for.
    generation: AtomicU32,
    /// The generation of the last connection that this process has left to its other sharers or switched: descriptors
    /// that are still passed for it are dropped.
    left: AtomicU32,
    /// The enclosed copy of the peer's end of that pair, which is sent back for the peer's other sharers (reserved
    /// descriptor + 1).
    sibling_copy: AtomicI32,
    /// The old subflow with bytes that this side has sent and a peer that left the rings has not read (reserved
    /// descriptor + 1).
    unread_return: AtomicI32,
}

impl PassedSockets {
    /// To be called before the endpoint's link is used again.
    pub(super) fn reset(&self) {
        self.left.store(0, Ordering::Relaxed);
    }

    /// Notes that this process has left connection `generation`, which others may continue.
    pub(super) fn leave(&self, generation: u32) {
        self.left.store(generation, Ordering::Release);
    }

    /// Whether this process may still go on with connection `generation`, for which descriptors are kept. Otherwise it
    /// needs no socket, and a socket that it kept would keep the stream from ending.
    pub(super) fn may_go_on(&self, side: &SlotSide, generation: u32) -> bool {
        let left = self.left.load(Ordering::Acquire) == generation;
        side.is_live() || (side.link().side() == Side::Server && !left)
    }

    /// Whether connection `generation` has received the socket on which it goes on. No other socket is accepted after
    /// that: another thread may be using this one, so it must not be closed.
    fn goes_on(&self, generation: u32) -> bool {
        self.generation.load(Ordering::Relaxed) == generation && self.kernel_fd() >= 0
    }

    /// Whether a descriptor for connection `generation` is kept.
    fn takes(&self, side: &SlotSide, generation: u32) -> bool {
        side.expects(generation) && self.may_go_on(side, generation) && !self.goes_on(generation)
    }

    /// Stores the socket on which the connection goes on (+ 1), or [`LOST`]. False: there is one already, which another
    /// thread may be using.
    fn set_kernel(&self, word: i32) -> bool {
        // AcqRel: a thread that finds the socket sees the descriptors that were passed with it.
        self.kernel.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn lose_kernel(&self) {
        let _ = self.set_kernel(LOST);
    }

    /// Whether a descriptor that the peer passed was lost.
    pub(super) fn has_missed(&self) -> bool {
        self.kernel.load(Ordering::Acquire) == LOST
    }

    /// The socket on which the connection goes on, or -1.
    pub fn kernel_fd(&self) -> i32 {
        self.kernel.load(Ordering::Acquire).max(0) - 1
    }

    /// All three descriptors; -1 where there is none.
    pub(super) fn descriptors(&self) -> [i32; 3] {
        self.cells().map(|c| c.load(Ordering::Acquire).max(0) - 1)
    }

    fn cells(&self) -> [&AtomicI32; 3] {
        [&self.kernel, &self.sibling_copy, &self.unread_return]
    }

    /// Drops descriptors that were passed for an earlier connection in the slot. When an open connection began, such
    /// descriptors were dropped ([`PassedSockets::forget_those_of_another`]), and those that it has received over its
    /// liveness sockets are its own.
    pub(super) fn of_generation(&self, side: &SlotSide, generation: u32) {
        if self.generation.swap(generation, Ordering::Relaxed) != generation && !side.is_live() {
            self.drop_all();
        }
    }

    /// Called when connection `generation` begins: drops descriptors that were passed for the previous one. Stored
    /// descriptors may also belong to this connection, if they came early or are being received now.
    pub(super) fn forget_those_of_another(&self, v: &View, generation: u32) {
        // Acquire: a thread that sees a descriptor sees the generation that was stored before it.
        let there = self.cells().iter().any(|c| c.load(Ordering::Acquire) != 0);
        let another = || self.generation.load(Ordering::Acquire) != generation;
        if there && another() {
            // The thread that receives passed descriptors holds this lock.
            let _reading = v.link.control.stop_reading(1_000_000);
            if another() {
                self.drop_all();
            }
        }
    }

    /// Stores the old subflow with unread bytes of ours. False: it was lost, and bytes would be missing from the stream
    /// without it.
    fn keep_unread_return(&self, fd: OwnedFd) -> bool {
        let kept = reserved_fds::adopt(fd).map(|fd| replace(&self.unread_return, fd + 1)).is_ok();
        if !kept {
            self.lose_kernel();
        }
        kept
    }

    /// Stores the socket on which the connection goes on. False: it is none, or another one was lost before it.
    fn keep_kernel(&self, fd: OwnedFd) -> bool {
        // The socket will be put under the application's number, so it has to be a stream socket, whatever the peer has
        // passed.
        let is_stream = raw::getsockopt_int(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_TYPE) == Ok(libc::SOCK_STREAM);
        if !is_stream || self.has_missed() {
            reserved_fds::drop_raw(fd);
            return false;
        }
        match reserved_fds::adopt(fd) {
            Ok(fd) if self.set_kernel(fd + 1) => {}
            Ok(fd) => reserved_fds::close(fd),
            Err(_) => self.lose_kernel(),
        }
        true
    }

    /// Keeps the copy of the local end, which has to be sent back for the peer's other sharers.
    fn keep_sibling_copy(&self, fd: OwnedFd) {
        if let Ok(fd) = reserved_fds::adopt(fd) {
            replace(&self.sibling_copy, fd + 1);
        }
    }

    /// Stores descriptors that were received over a liveness socket of either side. Another thread may receive the same
    /// ones over the control socket: the second copies are dropped. Returns whether the connection's threads have to
    /// check it again.
    pub(super) fn keep(&self, side: &SlotSide, passed: Passed) -> bool {
        if self.kernel_fd() >= 0 {
            let all = [passed.kernel, passed.sibling_copy, passed.old_subflow];
            all.into_iter().flatten().for_each(reserved_fds::drop_raw);
            return false;
        }
        if passed.lost {
            self.lose_kernel();
            return true;
        }
        // For a connect that was not accepted yet, only the passed message has the generation.
        if passed.kernel.is_some() && side.is_live() {
            // The generation is stored first, so that a thread that finds the socket knows its connection.
            self.generation.store(side.generation.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let lost = passed.old_subflow.is_some_and(|t| !self.keep_unread_return(t));
        if let Some(s) = passed.sibling_copy {
            self.keep_sibling_copy(s);
        }
        // The socket is stored last: another thread follows as soon as it sees it, and then handles the other
        // descriptors. A sibling copy that was stored later would stay open here, and the reader of the other end would
        // never see its stream end.
        passed.kernel.is_some_and(|k| self.keep_kernel(k)) || lost
    }

    /// Takes the enclosed copy of the peer's end, if there is one: the caller closes it.
    pub(super) fn take_sibling_copy(&self) -> Option<i32> {
        Some(self.sibling_copy.swap(0, Ordering::AcqRel) - 1).filter(|fd| *fd >= 0)
    }

    /// Takes the old subflow with unread bytes of ours, if there is one: the caller closes it.
    pub(super) fn take_unread_return(&self) -> Option<i32> {
        Some(self.unread_return.swap(0, Ordering::AcqRel) - 1).filter(|fd| *fd >= 0)
    }

    /// Called in the child of a fork: forgets descriptors that another thread of the parent was just storing, which the
    /// child does not have. Messages on the liveness socket are still there.
    pub(super) fn forget_missing(&self) {
        for cell in self.cells() {
            let fd = cell.load(Ordering::Relaxed) - 1;
            if fd >= 0 && !reserved_fds::is_open(fd) {
                cell.store(0, Ordering::Relaxed);
                reserved_fds::give_back(fd);
            }
        }
    }

    /// Closes all descriptors.
    pub(super) fn drop_all(&self) {
        self.cells().into_iter().for_each(|cell| replace(cell, 0));
    }
}

impl ShmEndpoint {
    /// Stores our end of the pair, which the peer passed for connection `generation`, perhaps before the connect is
    /// accepted.
    pub(crate) fn learn_switch(&self, generation: u32, fd: OwnedFd) {
        if !self.passed.takes(&self.side, generation) {
            if !self.passed.goes_on(generation) {
                // This process has closed the connection, in the ordinary way or with the mark of a reset. The socket's
                // close would reset it in either case, and the bytes that this side has sent would be lost.
                end_at_close(fd.as_raw_fd());
            }
            return reserved_fds::drop_raw(fd);
        }
        self.passed.of_generation(&self.side, generation);
        if self.passed.keep_kernel(fd) {
            self.poke_self();
        }
    }

    /// Stores the old subflow that the peer has not read to its end and passed for connection `generation`.
    pub(crate) fn learn_unread_return(&self, generation: u32, fd: OwnedFd) {
        if !self.passed.takes(&self.side, generation) {
            return reserved_fds::drop_raw(fd);
        }
        self.passed.of_generation(&self.side, generation);
        if !self.passed.keep_unread_return(fd) {
            self.poke_self();
        }
    }

    /// Notes that the peer has passed a descriptor for connection `generation` that was lost: without this note a
    /// thread would wait for the socket forever.
    pub(crate) fn miss(&self, generation: u32) {
        if self.passed.takes(&self.side, generation) {
            self.passed.of_generation(&self.side, generation);
            self.passed.lose_kernel();
            self.poke_self();
        }
    }

    /// Called in the child of a fork: forgets descriptors that another thread of the parent was just storing.
    pub fn forget_missing(&self) {
        self.passed.forget_missing();
        self.liveness.forget_missing_peer();
        self.heir_waker.forget_missing();
    }
}
