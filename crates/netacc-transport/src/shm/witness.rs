//! The peer's end of its base, which tells when the last process of its family is gone: how it comes, and how long it
//! stays.

use crate::shm::ShmEndpoint;
use crate::shm::endpoint::{DEAD, PEER_GONE, SHARED, UNTOLD, View};
use crate::shm::guard::dismiss_shared;
use crate::shm::link::Side;
use crate::shm::patience::Patience;
use core::sync::atomic::Ordering;
use netacc_ring::MOVED;
use netacc_sys::errno::Errno;
use netacc_sys::{private, raw, time};
use rustix::fd::OwnedFd;

/// Whether descriptors wait to be taken from a socket of ours. They stay there, so that the child can take them as
/// well.
#[allow(unsafe_code)]
fn brings_descriptors(fd: i32) -> bool {
    let mut byte = 0u8;
    let mut iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: a message header of zeroes is one without anything.
    let mut m: libc::msghdr = unsafe { core::mem::zeroed() };
    m.msg_iov = &raw mut iov;
    m.msg_iovlen = 1;
    // unix(7): without room for them the descriptors are not taken, and the flag reports them.
    fd >= 0
        && raw::recvmsg(fd, &raw mut m, libc::MSG_PEEK | libc::MSG_DONTWAIT).is_ok()
        && m.msg_flags & libc::MSG_CTRUNC != 0
}

impl ShmEndpoint {
    /// To be called between [`ShmEndpoint::share`] and the fork: what the peer says of its own fork or departure over
    /// the control socket must have come, since a child hears nothing there. The peer may have told a departure over
    /// our base instead.
    ///
    /// What did not come within `patience` may still come to the child over the base.
    pub fn before_fork(&self, patience: &Patience) {
        let link = self.link();
        // No lock keeps other threads from closing the connection meanwhile, which may be the last one that holds the
        // link.
        if !link.hold_if_used() {
            return;
        }
        if let Some(v) = self.view().filter(|v| !v.link.is_inherited()) {
            self.await_witness(&v, patience);
            let fin = &line!(v, producer, v.me.other()).fin;
            if !link.trusts_peer() {
                // A stranger does not depart, whatever its mark says.
                return link.put();
            }
            let told = || {
                let _using = self.using();
                self.kernel_fd() >= 0 || brings_descriptors(self.base_fd())
            };
            self.await_word(&v, patience, || fin.load(Ordering::SeqCst) & MOVED == 0 || told());
        }
        link.put();
    }

    /// A child that is about to be forked cannot know what becomes of the connection: its copy is reset, since
    /// otherwise a byte could be lost in silence, or the child could wait for an end that nobody reports. The
    /// connection goes on here.
    pub(super) fn leave_untold(&self) {
        self.flags.fetch_or(UNTOLD, Ordering::AcqRel);
    }

    /// Whether [`ShmEndpoint::leave_untold`] was called.
    pub fn is_untold(&self) -> bool {
        self.flags.load(Ordering::Acquire) & UNTOLD != 0
    }

    /// In the child of the fork: resets the connection here, and tells nobody else.
    pub fn reset_if_untold(&self) {
        if self.is_untold() {
            self.die(Errno::CONNRESET);
        }
    }

    /// In the parent, after the fork. True: the child did not get what it needed, nor does a later one without a base.
    pub fn forget_untold(&self) -> bool {
        // A connection that has died in a child is reset there for ever, and in that process's own children too.
        let mine = self.flags.load(Ordering::Acquire) & DEAD == 0;
        mine && self.flags.fetch_and(!UNTOLD, Ordering::AcqRel) & UNTOLD != 0 && self.base_fd() < 0
    }

    /// If the peer forks, its end of the base comes: waits for it. False: it has not come.
    pub(super) fn await_witness(&self, v: &View, patience: &Patience) -> bool {
        let forked = &line!(v, side, v.me.other()).forked;
        self.await_word(v, patience, || self.witness_fd() >= 0 || forked.load(Ordering::SeqCst) == 0)
    }

    /// Waits a moment for something that is on its way over the control socket. It was sent before or is being sent, so
    /// this is short, unless the peer was stopped or lies. False: it has not come.
    pub(super) fn await_word(&self, v: &View, patience: &Patience, there: impl Fn() -> bool) -> bool {
        if v.link.is_inherited() || there() {
            return true;
        }
        patience.wait(v.link.trusts_peer(), |until| self.await_word_until(v, until, there))
    }

    fn await_word_until(&self, v: &View, until: u64, there: impl Fn() -> bool) -> bool {
        loop {
            let lost = v.link.is_lost();
            // Another thread may be the one that reads.
            v.link.service();
            if there() {
                return true;
            }
            if lost || time::now() >= until {
                return false;
            }
            let mut p = libc::pollfd { fd: v.link.control_fd(), events: libc::POLLIN, revents: 0 };
            let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            let _ = raw::ppoll(&raw mut p, 1, &raw mut ts, core::ptr::null());
        }
    }

    /// Takes the end of the base that the peer passed for connection `epoch`, perhaps before we have taken that.
    pub(crate) fn learn_base(&self, epoch: u32, fd: OwnedFd) {
        if !self.expects(epoch) {
            return private::drop_raw(fd);
        }
        match private::adopt(fd) {
            Ok(fd) => {
                self.peer_token.store(0, Ordering::Relaxed);
                self.learn_witness(epoch, fd);
            }
            Err(_) => self.poke_self(),
        }
    }

    /// From now on `fd` (private) tells of the end of the peer's last holder.
    pub(super) fn learn_witness(&self, epoch: u32, fd: i32) {
        let new = u64::from(epoch) << 32 | (fd + 1) as u64;
        // A connection has one base. A peer that sends a second does not make us close what another thread reads.
        let first = |old: u64| (old as u32 == 0 || (old >> 32) as u32 != epoch).then_some(new);
        match self.witness.fetch_update(Ordering::AcqRel, Ordering::Acquire, first) {
            Ok(old) => self.close_word(old),
            Err(_) => private::close(fd),
        }
        self.ring_if_owed();
        // Connections that cost a descriptor more than by TCP can be given back only while there are some descriptors.
        private::reserve();
        self.poke_self();
        if let Some(v) = self.view() {
            self.ring_for_witness(&v);
        }
    }

    /// The epoch of the connection that the witness belongs to, if there is one.
    pub(super) fn witness_epoch(&self) -> Option<u32> {
        let word = self.witness.load(Ordering::Acquire);
        (word as u32 != 0).then_some((word >> 32) as u32)
    }

    /// The connection ends here. A client keeps the witness: if the server is a family, none of its processes can say
    /// that it was the last to use the slot, but the kernel can.
    pub(super) fn release_witness(&self, v: &View) {
        let told = self.flags.load(Ordering::Acquire) & (PEER_GONE | SHARED) != 0;
        if told || v.me == Side::Server || v.link.is_inherited() {
            self.close_witness();
        }
    }

    /// Client: whether no process is left of a server's family that had the last connection in this slot. The slot is
    /// closed here, and no other process of ours has it.
    pub(super) fn servers_gone(&self) -> bool {
        let fd = self.witness_fd();
        if fd < 0 || self.is_live() {
            return false;
        }
        let mut rest = [0u8; 64];
        // Before the end there may be wake-up bytes that nobody needs any more; a family that goes on sending them is
        // asked again later.
        let ended = (0..64).find_map(|_| match raw::recv(fd, rest.as_mut_ptr(), rest.len(), libc::MSG_DONTWAIT) {
            Ok(0) | Err(Errno::CONNRESET) => Some(true),
            Ok(_) => None,
            Err(_) => Some(false),
        });
        let gone = ended == Some(true) && self.has_peer_ended();
        if gone {
            self.close_witness();
        }
        gone
    }

    pub(super) fn close_witness(&self) {
        // A look first: most connections have none.
        let there = self.witness.load(Ordering::Relaxed) != 0;
        if there {
            self.close_word(self.witness.swap(0, Ordering::AcqRel));
        }
    }

    /// Closes the descriptor of a word of `witness`. A stranger may have put something into it that blocks.
    fn close_word(&self, w: u64) {
        let fd = w as u32 as i32 - 1;
        if fd >= 0 {
            if self.link().trusts_peer() { private::close(fd) } else { dismiss_shared(fd) }
        }
    }

    /// Connection `epoch` begins: a witness that lies here belongs to it, if it came early, or to the connection
    /// before.
    pub(super) fn forget_witness_of_another(&self, epoch: u32) {
        let w = self.witness.load(Ordering::Acquire);
        // If the word changes here, the witness of this connection is coming.
        if w != 0
            && (w >> 32) as u32 != epoch
            && self.witness.compare_exchange(w, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            self.close_word(w);
        }
    }

    /// The witness's descriptor, or -1.
    pub fn witness_fd(&self) -> i32 {
        self.witness.load(Ordering::Acquire) as u32 as i32 - 1
    }
}
