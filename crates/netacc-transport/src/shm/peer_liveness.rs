//! The peer liveness socket, whose end shows that the peer's last sharer has ended: its receipt and its lifetime.

use crate::num::low_half;
use crate::shm::guard::dismiss_shared;
use crate::shm::liveness::Liveness;
use crate::shm::side::Side;
use crate::shm::side_machines::{PEER_GONE, SHARED, UNTOLD};
use crate::shm::slot_side::{SlotSide, View};
use crate::shm::unread::Unread;
use crate::shm::wait_budget::WaitBudget;
use crate::shm::wake::poke;
use crate::shm::{Link, ShmEndpoint};
use crate::wait::WakerSource;
use core::sync::atomic::Ordering;
use netacc_ring::SWITCHED;
use netacc_sys::errno::Errno;
use netacc_sys::{raw, reserved_fds, time};
use rustix::fd::OwnedFd;

/// Whether the first message of a socket of ours passes descriptors. It stays there, so that the child can receive it
/// as well.
#[allow(unsafe_code)]
fn brings_descriptors(fd: i32) -> bool {
    let mut byte = 0u8;
    let mut iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: a zeroed message header is valid: it has no address, buffers or control messages.
    let mut m: libc::msghdr = unsafe { core::mem::zeroed() };
    m.msg_iov = &raw mut iov;
    m.msg_iovlen = 1;
    // Without room for control messages the descriptors are not received, and the truncation flag reports them
    // (unix(7)).
    fd >= 0
        && raw::recvmsg(fd, &raw mut m, libc::MSG_PEEK | libc::MSG_DONTWAIT).is_ok()
        && m.msg_flags & libc::MSG_CTRUNC != 0
}

impl SlotSide {
    /// Marks that the child that is about to be forked has to reset its copy of the connection, since it could not
    /// follow it: a byte could be lost unnoticed, or the child could wait for an end that is never reported. The
    /// connection goes on in this process.
    pub(super) fn reset_in_child(&self) {
        self.state.set(UNTOLD);
    }

    /// Whether `SlotSide::reset_in_child` was called.
    pub fn is_untold(&self) -> bool {
        self.state.look().has(UNTOLD)
    }

    /// In the child of the fork: resets the connection for this process only.
    pub fn reset_if_untold(&self) {
        if self.is_untold() {
            self.die(Errno::CONNRESET);
        }
    }

    /// In the parent, after the fork: clears the mark of `SlotSide::reset_in_child`. True: it was
    /// set, and the connection goes on in this process.
    pub fn forget_untold(&self) -> bool {
        // A connection that was reset in a child stays reset in it, and in its own children, too.
        let mine = !self.is_dead();
        mine && self.state.clear(UNTOLD)
    }
}

impl View {
    /// Whether the peer has marked that it has several sharers. It sends its liveness socket before it stores the mark.
    /// SeqCst: the caller has just stored a mark of its own, which the peer loads after it has stored this one.
    pub(super) fn has_peer_forked(&self) -> bool {
        line!(self, side, self.me.other()).forked.load(Ordering::SeqCst) != 0
    }

    /// Waits a moment for a message on the control socket. The message has been sent or is being sent, so the wait is
    /// short, unless the peer was stopped or is hostile. False: it has not been received.
    pub(super) fn await_word(&self, budget: &WaitBudget, there: impl Fn() -> bool) -> bool {
        if self.link.is_inherited() || there() {
            return true;
        }
        budget.wait(self.link.peer.is_trusted(), |until| self.await_word_until(until, there))
    }

    fn await_word_until(&self, until: u64, there: impl Fn() -> bool) -> bool {
        loop {
            let lost = self.link.is_lost();
            // If another thread is reading the socket, this returns at once.
            self.link.service();
            if there() {
                return true;
            }
            if lost || time::now() >= until {
                return false;
            }
            let _ = raw::poll_one(self.link.control.fd_to_poll(), libc::POLLIN, 1_000_000);
        }
    }
}

impl Liveness {
    /// Makes the reserved descriptor `fd` the peer liveness socket of connection `generation`. It is closed if there is
    /// one already.
    fn set_peer(&self, side: &SlotSide, generation: u32, fd: i32) {
        let new = u64::from(generation) << 32 | u64::from((fd + 1).cast_unsigned());
        // A connection has one peer liveness socket. A second one is refused, so that a peer cannot make this process
        // close a descriptor that another thread reads.
        let first = |old: u64| (low_half(old) == 0 || (old >> 32) as u32 != generation).then_some(new);
        match self.peer.fetch_update(Ordering::AcqRel, Ordering::Acquire, first) {
            Ok(old) => self.close_word(side, old),
            Err(_) => reserved_fds::close(fd),
        }
    }

    /// Whether there is a peer liveness socket.
    #[inline]
    pub(super) fn has_peer(&self) -> bool {
        self.peer.load(Ordering::Acquire) != 0
    }

    /// Called in the child of a fork: forgets a socket that another thread of the parent was just storing.
    pub(super) fn forget_missing_peer(&self) {
        let fd = self.peer_fd();
        if fd >= 0 && !reserved_fds::is_open(fd) {
            self.peer.store(0, Ordering::Relaxed);
            reserved_fds::give_back(fd);
        }
    }

    /// Waits for the peer liveness socket if the peer has forked. False: it has not been received in time.
    pub(super) fn await_peer(&self, v: &View, budget: &WaitBudget) -> bool {
        v.await_word(budget, || self.peer_fd() >= 0 || !v.has_peer_forked())
    }

    /// The generation of the connection that the peer liveness socket belongs to, if there is one.
    pub(super) fn peer_generation(&self) -> Option<u32> {
        let word = self.peer.load(Ordering::Acquire);
        (low_half(word) != 0).then_some((word >> 32) as u32)
    }

    /// Called when the connection ends here: closes the peer liveness socket, except at a client. If the server has
    /// sharers, none of them can tell that it was the last to use the slot, but the end of this socket shows it.
    pub(super) fn release_peer(&self, side: &SlotSide, v: &View) {
        let told = side.state.look().has(PEER_GONE | SHARED);
        if told || v.me == Side::Server || v.link.is_inherited() {
            self.close_peer(side);
        }
    }

    /// Client: whether all of the server's sharers that had the last connection in this slot have ended. The slot is
    /// closed here, and no other sharer of ours has it.
    pub(super) fn servers_gone(&self, side: &SlotSide) -> bool {
        let fd = self.peer_fd();
        if fd < 0 || side.is_live() {
            return false;
        }
        let mut rest = [0u8; 64];
        // Wake-up bytes that are no longer needed may precede the end. If a sharer keeps sending them, this is checked
        // again later.
        let ended = (0..64).find_map(|_| match raw::recv(fd, rest.as_mut_ptr(), rest.len(), libc::MSG_DONTWAIT) {
            Ok(0) | Err(Errno::CONNRESET) => Some(true),
            Ok(_) => None,
            Err(_) => Some(false),
        });
        let gone = ended == Some(true) && self.has_peer_ended(side);
        if gone {
            self.close_peer(side);
        }
        gone
    }

    pub(super) fn close_peer(&self, side: &SlotSide) {
        // The word is loaded first, since most connections have no such socket.
        let there = self.peer.load(Ordering::Relaxed) != 0;
        if there {
            self.close_word(side, self.peer.swap(0, Ordering::AcqRel));
        }
    }

    /// Closes the socket of a word of `peer_liveness`, in which a stranger may have put a descriptor whose close
    /// blocks.
    fn close_word(&self, side: &SlotSide, w: u64) {
        let fd = low_half(w).cast_signed() - 1;
        if fd >= 0 {
            if side.link().peer.is_trusted() { reserved_fds::close(fd) } else { dismiss_shared(fd) }
        }
    }

    /// Called when connection `generation` begins: closes a peer liveness socket of the previous connection. One that
    /// came early belongs to this connection and is kept.
    pub(super) fn forget_stale_peer(&self, side: &SlotSide, generation: u32) {
        let w = self.peer.load(Ordering::Acquire);
        // If the word has changed since, another thread has stored the peer liveness socket of this connection.
        if w != 0
            && (w >> 32) as u32 != generation
            && self.peer.compare_exchange(w, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            self.close_word(side, w);
        }
    }

    /// The descriptor of the peer liveness socket, or -1.
    pub fn peer_fd(&self) -> i32 {
        low_half(self.peer.load(Ordering::Acquire)).cast_signed() - 1
    }
}

impl ShmEndpoint {
    /// To be called between [`ShmEndpoint::share`] and the fork: waits for the peer's messages about its own fork or
    /// switch on the control socket, which a child does not read. The peer may have announced a switch over our
    /// liveness socket instead.
    ///
    /// A message that does not come within `budget` may still reach the child over the liveness socket.
    pub fn before_fork(&self, budget: &WaitBudget) {
        let link = self.side.link();
        // No lock keeps another thread from closing the connection during this call, and that may be the last user of
        // the link.
        if !link.hold_if_used() {
            return;
        }
        if let Some(v) = self.side.view().filter(|v| !v.link.is_inherited()) {
            self.liveness.await_peer(&v, budget);
            let fin = &line!(v, producer, v.me.other()).fin;
            if !link.peer.is_trusted() {
                // A stranger must not pass a socket, whatever its mark says.
                return link.put();
            }
            let told = || {
                let _using = self.side.users.begin();
                self.passed.kernel_fd() >= 0 || brings_descriptors(self.liveness.fd())
            };
            v.await_word(budget, || fin.load(Ordering::SeqCst) & SWITCHED == 0 || told());
        }
        link.put();
    }

    /// To be called right before the fork, when no other thread reads the control sockets of `unread`. A peer that has
    /// marked its fork has sent its liveness socket before. If the peer liveness socket is not received here by a last
    /// check, the child would not see the end of the peer's last process, or would see the wrong end, so its copy of
    /// the connection is reset. A peer that forks later has received the other end of our liveness socket, which its
    /// children share.
    ///
    /// A switch that the peer has marked and not announced yet is different: the peer announces it to the child over
    /// our liveness socket (see `pass_socket`).
    pub fn about_to_fork(&self, unread: &Unread) {
        let link = self.side.link();
        if !link.hold_if_used() {
            return;
        }
        if let Some(v) = self.side.view().filter(|v| !v.link.is_inherited() && v.link.peer.is_trusted()) {
            let is_missing = || {
                let gone = v.link.is_lost() || self.side.state.look().has(PEER_GONE);
                !gone && self.liveness.peer_fd() < 0
            };
            if v.has_peer_forked() && is_missing() {
                unread.take_in(v.link);
                if is_missing() {
                    self.side.reset_in_child();
                }
            }
        }
        link.put();
    }

    /// Stores the peer liveness socket, which the peer passed for connection `generation`, perhaps before the connect
    /// is accepted.
    pub(crate) fn learn_liveness(&self, generation: u32, fd: OwnedFd) {
        if !self.side.expects(generation) {
            return reserved_fds::drop_raw(fd);
        }
        match reserved_fds::adopt(fd) {
            Ok(fd) => {
                self.liveness.peer_token.set(0);
                self.learn_peer_liveness(generation, fd);
            }
            Err(_) => self.poke_self(),
        }
    }

    /// Makes the reserved descriptor `fd` the peer liveness socket, and wakes the threads that wait for it.
    pub(super) fn learn_peer_liveness(&self, generation: u32, fd: i32) {
        self.liveness.set_peer(&self.side, generation, fd);
        self.liveness.ring_if_owed(&self.side);
        // A few descriptors are reserved: such a connection takes one descriptor more than a kernel socket, and could
        // not be demoted if none were left.
        reserved_fds::reserve();
        reserved_fds::hold_spare();
        let rung = poke(self, Link::ring);
        if let Some(v) = self.side.view() {
            self.wake_for_peer_liveness(&v, rung);
        }
    }
}
