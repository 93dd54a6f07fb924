//! The waker of a process that goes on alone with a connection which its parent has accepted.
//!
//! The link and its wakers stay the parent's, so a child is woken by a byte on its liveness socket. That is a send(2), for
//! which the kernel makes a message each time, where a process with a link of its own is woken by a write(2) to an eventfd.
//! A server that forks a process for each connection would pay the difference with every request. So before it forks it makes an
//! eventfd for a connection that it has not used yet, and passes it to the peer. The child, once it is alone with the
//! connection, stores [`HEIR_WAKER`] as the number of a thread that waits. A peer that has the eventfd writes to it, and any
//! other one sends the byte. The child sleeps on both, so that it need not know which.

use crate::num::{self, low_half};
use crate::shm::ShmEndpoint;
use crate::shm::segment::{HEIR_WAKER, LIVENESS_WAKER};
use crate::shm::side::Side;
use crate::shm::slot_side::{SlotSide, View};
use crate::wakers;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use netacc_sys::reserved_fds;
use netacc_wire::Message;
use rustix::fd::OwnedFd;

/// The eventfds of one connection by which a process that is alone with it is woken, on either side.
#[derive(Debug)]
pub struct HeirWaker {
    /// The one on which the threads of this side sleep (reserved descriptor + 1); 0: there is none.
    own: AtomicI32,
    /// The one that the peer has passed (reserved descriptor + 1), and in the upper half the generation of its connection. It
    /// stays open until the slot has another one or the link ends, since a thread may be writing to it.
    peers: AtomicU64,
}

impl HeirWaker {
    /// The descriptor on which the threads of this side sleep, or -1. An epoll instance enters it beside the liveness
    /// socket.
    pub fn fd(&self) -> i32 {
        // Relaxed: it is stored before the fork that makes the process which uses it.
        self.own.load(Ordering::Relaxed) - 1
    }

    /// The peer's, or -1.
    pub(super) fn peers_fd(&self) -> i32 {
        low_half(self.peers.load(Ordering::Relaxed)).cast_signed() - 1
    }

    /// The number by which a process that is alone with the connection asks to be woken.
    pub(super) fn mark(&self) -> u32 {
        if self.fd() >= 0 { HEIR_WAKER } else { LIVENESS_WAKER }
    }

    /// Takes the ringing of the own one back, if the kernel reports it.
    pub(super) fn silence(&self) {
        let fd = self.fd();
        if fd >= 0 {
            wakers::silence(fd);
        }
    }

    /// Wakes the peer's process that is alone with this connection; false if it has passed no waker.
    pub(super) fn ring(&self, side: &SlotSide) -> bool {
        // Acquire: the descriptor is open once its number is seen.
        let word = self.peers.load(Ordering::Acquire);
        let there = low_half(word) != 0 && (word >> 32) as u32 == side.generation.load(Ordering::Relaxed);
        if there {
            wakers::ring(low_half(word).cast_signed() - 1);
        }
        there
    }

    /// To be called when the connection ends in this process: closes the own one where no thread sleeps on it, since the link is
    /// this process's own. A child's stays open, as another thread may be about to silence it; a fork makes few of them.
    pub(super) fn close_own(&self, v: &View) {
        let there = self.own.load(Ordering::Relaxed) != 0;
        if there && !v.link.is_inherited() {
            reserved_fds::close(self.own.swap(0, Ordering::Relaxed) - 1);
        }
    }

    /// Has the threads of this side woken by bytes: an epoll instance could not enter the own one.
    pub fn give_up(&self) {
        self.own.store(0, Ordering::Relaxed);
    }

    /// Closes the peer's: the link ends.
    pub(super) fn close_peers(&self) {
        let there = self.peers.load(Ordering::Relaxed) != 0;
        let fd = if there { low_half(self.peers.swap(0, Ordering::Relaxed)).cast_signed() - 1 } else { -1 };
        if fd >= 0 {
            reserved_fds::close(fd);
        }
    }

    /// Called in the child of a fork: forgets the peer's if another thread of the parent was just storing it.
    pub(super) fn forget_missing(&self) {
        let fd = self.peers_fd();
        if fd >= 0 && !reserved_fds::is_open(fd) {
            self.peers.store(0, Ordering::Relaxed);
            reserved_fds::give_back(fd);
        }
    }
}

/// To be called before a fork, after the liveness sockets of all connections were passed: makes the child's waker for a
/// connection that was accepted and not used yet, which the child is likely to go on with. Returns whether it did. Without it the
/// child is woken by bytes.
pub fn make(ep: &ShmEndpoint) -> bool {
    let Some(v) = ep.side.view().filter(|v| v.me == Side::Server && v.link.trust_is_mutual()) else { return false };
    let used = || {
        line!(v, producer, v.me).head.load(Ordering::Relaxed) != 0
            || line!(v, consumer, v.me).tail.load(Ordering::Relaxed) != 0
    };
    if ep.side.is_remote() || v.link.is_inherited() || ep.heir_waker.fd() >= 0 || used() {
        return false;
    }
    let Ok(fd) = wakers::create_above() else { return false };
    let (slot, generation) = (num::small(v.index), ep.side.generation.load(Ordering::Relaxed));
    let sent = v.link.control.send(Message::HeirWaker { slot, generation }, Some(fd)).is_ok();
    if sent {
        ep.heir_waker.own.store(fd + 1, Ordering::Relaxed);
    } else {
        reserved_fds::close(fd);
    }
    sent
}

/// Stores the waker that the peer has passed for connection `generation`. A peer has one for each connection.
pub(super) fn learn(ep: &ShmEndpoint, generation: u32, fd: OwnedFd) {
    if !ep.side.expects(generation) {
        return reserved_fds::drop_raw(fd);
    }
    // It can be done without, so it takes no number that the program could have.
    let Ok(fd) = reserved_fds::park(fd) else { return };
    let new = u64::from(generation) << 32 | u64::from((fd + 1).cast_unsigned());
    let first = |old: u64| (low_half(old) == 0 || (old >> 32) as u32 != generation).then_some(new);
    // Release: see [`HeirWaker::ring`]. No thread writes to the one of an earlier connection any more.
    let replaced = match ep.heir_waker.peers.fetch_update(Ordering::Release, Ordering::Relaxed, first) {
        Ok(old) => low_half(old).cast_signed() - 1,
        Err(_) => fd,
    };
    if replaced >= 0 {
        reserved_fds::close(replaced);
    }
}
