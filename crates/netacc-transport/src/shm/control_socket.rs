//! The control socket of a link, as far as it needs nothing else of the link: sending, and who reads.
//!
//! # Safety
//! Descriptors are borrowed by their numbers while a reference to the link, or the caller, keeps them open. Links are
//! never freed.
#![allow(unsafe_code)]

use crate::shm::guard::dismiss_reserved;
use crate::shm::slot_side::SlotSide;
use crate::shm::{Link, owed_dial};
use crate::{num, timeouts};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{AtomicRef, Guard, Lock, SharedCell, lock_rank, raw, reserved_fds, time};
use netacc_wire::Message;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::IoSlice;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Size (bytes) of the buffer that is requested for messages to a peer which does not read them. The kernel doubles it,
/// and net.core.wmem_max limits it: with the usual limit of 208 KiB there is room for a message for each slot of a
/// link.
const CONTROL_BUFFER: i32 = 512 * 1024;

const UNRESPONSIVE_PEER: u64 = time::ns(timeouts::UNRESPONSIVE_PEER);

/// Sends one message without waiting. `EAGAIN`: the socket is full.
pub fn send_message(fd: BorrowedFd<'_>, m: Message, pass: Option<BorrowedFd<'_>>) -> Result<()> {
    let bytes = m.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut anc = SendAncillaryBuffer::new(&mut space);
    let fds;
    if let Some(p) = pass {
        fds = [p];
        anc.push(SendAncillaryMessage::ScmRights(&fds));
    }
    sendmsg(fd, &[IoSlice::new(&bytes)], &mut anc, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The control socket of a link.
#[derive(Debug)]
pub struct ControlSocket {
    /// Its descriptor + 1; 0: closed.
    socket: AtomicI32,
    /// Held by the thread that reads it.
    pub(crate) reader: Lock<{ lock_rank::NONE }>,
    /// Not 0: a message has arrived since the reader last began to read; see [`Link::service`].
    pub(super) more: AtomicU32,
    /// The next link in a list of links whose control sockets are not read for now; see [`super::unread::Unread`].
    pub(super) next_unread: AtomicRef<Link>,
    /// Time ([`netacc_sys::time::now`]) until which no fork waits for room in it, since the peer has left it full.
    deaf_until: SharedCell<u64>,
    /// Not 0: its first message waits for a free number (see [`super::control`]), and those behind it wait, too.
    stalled: AtomicU32,
}

impl ControlSocket {
    /// Begins with a reserved descriptor.
    pub(super) fn begin(&self, fd: i32) {
        self.socket.store(fd + 1, Ordering::Relaxed);
        self.deaf_until.set(0);
        self.stalled.store(0, Ordering::Relaxed);
    }

    /// Closes the socket. A peer that is not trusted may have put descriptors into it whose close blocks.
    pub(super) fn close(&self, is_peer_trusted: bool) {
        self.set_stalled(false);
        match self.socket.swap(0, Ordering::Relaxed) - 1 {
            -1 => {}
            fd if is_peer_trusted => reserved_fds::close(fd),
            fd => dismiss_reserved(fd),
        }
    }

    /// In the child of a fork: closes its descriptor of the parent's socket, which stays as it is.
    pub(super) fn leave_to_parent(&self) {
        self.set_stalled(false);
        let fd = self.socket.swap(0, Ordering::Relaxed) - 1;
        if fd >= 0 {
            reserved_fds::close(fd);
        }
    }

    /// The descriptor, or -1.
    #[inline]
    pub fn fd(&self) -> i32 {
        self.socket.load(Ordering::Relaxed) - 1
    }

    /// Notes whether the first message waits for a free number. Until it has one, threads look again before they sleep
    /// ([`super::redial`]).
    pub(super) fn set_stalled(&self, stalled: bool) {
        if self.is_stalled() != stalled {
            match (self.stalled.swap(stalled.into(), Ordering::Relaxed) != 0, stalled) {
                (false, true) => owed_dial::begin(),
                (true, false) => owed_dial::end(),
                _ => {}
            }
        }
    }

    /// Whether the first message waits for a free number.
    pub(super) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed) != 0
    }

    /// The descriptor for a thread that is about to sleep; -1 if a message that stays would end each sleep.
    pub fn fd_to_poll(&self) -> i32 {
        if self.is_stalled() { -1 } else { self.fd() }
    }

    /// The socket, if it is open.
    pub(super) fn borrowed(&self) -> Option<BorrowedFd<'_>> {
        let fd = self.fd();
        // SAFETY: the descriptor is ours and stays open while the caller has its reference to the link.
        (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Sends a message to the peer with a descriptor of ours beside it.
    pub(crate) fn send(&self, m: Message, pass: Option<i32>) -> Result<()> {
        let Some(c) = self.borrowed() else { return Err(Errno::PIPE) };
        // SAFETY: the caller keeps this descriptor open during the call.
        let pass = pass.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
        send_message(c.as_fd(), m, pass)
    }

    /// Offers to promote the TCP connection that the slot describes.
    pub fn offer(&self, slot: u32, generation: u32) -> Result<()> {
        self.send(Message::Promote { slot, generation }, None)
    }

    /// Offers to promote the TCP connection to a server in another network namespace. `stamp` is the time stamp of its
    /// SYN.
    pub fn offer_to_neighbour(&self, slot: u32, generation: u32, stamp: u32) -> Result<()> {
        self.send(Message::PromoteNeighbour { slot, generation, stamp }, None)
    }

    /// Tells the server that this process has found out that the connection offered for this side of a slot is theirs.
    pub fn confirm_neighbour(&self, side: &SlotSide) -> Result<()> {
        let slot = num::small(side.slot_index());
        let generation = side.generation.load(Ordering::Relaxed);
        self.send(Message::ConfirmNeighbour { slot, generation }, None)
    }

    /// Has the kernel take more messages to a peer that does not read them now. A fork sends one for each connection,
    /// and with the kernel's usual buffer of 208 KiB, of which a message takes 768 bytes, that many do not fit.
    pub(super) fn widen(&self) -> bool {
        raw::setsockopt_int(self.fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, CONTROL_BUFFER).is_ok()
    }

    /// Whether the peer has left the socket full, and no fork waits for room again yet.
    pub(super) fn is_deaf(&self) -> bool {
        time::now() < self.deaf_until.get()
    }

    /// Notes that the peer has left the socket full.
    pub(super) fn becomes_deaf(&self) {
        self.deaf_until.set(time::now().saturating_add(UNRESPONSIVE_PEER));
    }

    /// Whether messages may wait in the control socket of which the kernel has told an epoll instance already.
    #[inline]
    pub fn has_more_to_read(&self) -> bool {
        self.more.load(Ordering::Relaxed) != 0
    }

    /// Keeps all threads from reading the control socket while the guard lives. `None`: another thread still reads
    /// after `budget` ns. The link may end meanwhile; the lock stays valid for every use of the object.
    pub fn stop_reading(&'static self, budget: u64) -> Option<Guard<'static>> {
        self.reader.lock_within(budget)
    }
}
