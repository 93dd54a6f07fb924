//! The liveness socket of a connection between strangers.
//!
//! Before a process forks, it makes a socket by whose end the peer sees that the connection's last holder has ended
//! (see [`super::sharers`]). Processes that trust each other pass one end of a socket pair for that. A process must not
//! have a stranger's socket, let alone close it ([`super::guard`]), so here no descriptor is passed: the socket under
//! the program's numbers *listens* at a name that is sent to the peer, which connects to it. The kernel makes both ends
//! of that connection, so each side has a file that no other process can affect. The bytes over it are the same as over
//! the pair.
//!
//! The first sharer that sleeps on the connection accepts it. When that process ends or closes, the peer
//! sees an end and connects once more: if that is refused, no process holds the listening socket any more, and the last
//! holder is gone. An attempt that fails for another reason is made again later ([`super::redial`]).
//!
//! Names of sockets are public (`/proc/net/unix`), so half of the token is not in the name: the peer sends the whole
//! token first.

use crate::limits::ACCEPTS_PER_LOOK;
use crate::num;
use crate::shm::guard::{FirstMessage, dismiss_shared, first_bare_message, refuse_descriptors};
use crate::shm::last_look::LastLook;
use crate::shm::numbers::ProgramNumber;
use crate::shm::owed_dial::OwedDial;
use crate::shm::procfs;
use crate::shm::side_machines::{ARRIVED, LivenessSocket, LivenessSocketEvent, PEER_GONE, PEER_LIVENESS_CHANGED};
use crate::shm::slot_side::{SlotSide, View};
use crate::timeouts;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{Lock, SharedCell, lock, lock_rank, raw, reserved_fds, time};
use netacc_wire::Name;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with, socketpair,
};
use rustix::rand::{GetRandomFlags, getrandom};

/// Number of connections to a liveness socket that may wait to be accepted. The peer makes one; a third party that
/// learns the name could make others, which are closed at the next look.
const BACKLOG: i32 = 16;

/// Number of wake-ups after which a liveness socket is read. A socket holds some 200 messages of a byte.
const LEFT: u32 = 32;

const LIVENESS_ACCEPT: u64 = time::ns(timeouts::LIVENESS_ACCEPT);

/// Lock of the thread that accepts connections, so that no other thread reads a descriptor that it may close.
static ACCEPTING: Lock<{ lock_rank::NONE }> = Lock::new();

fn unix_socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let _ = refuse_descriptors(fd.as_fd());
    Ok(fd)
}

/// Makes a listening socket, and the token by which the peer finds it and proves that it is the peer.
pub(super) fn open() -> Result<(OwnedFd, u64)> {
    let mut bytes = [0u8; 8];
    if getrandom(&mut bytes, GetRandomFlags::empty()) != Ok(bytes.len()) {
        return Err(Errno::AGAIN);
    }
    // A token of 0 stands for a passed socket.
    let token = u64::from_le_bytes(bytes) | 1;
    let fd = unix_socket()?;
    let name = Name::liveness(token);
    let made = SocketAddrUnix::new_abstract_name(name.as_bytes())
        .and_then(|name| bind(&fd, &name))
        .and_then(|()| listen(&fd, BACKLOG));
    match made {
        Ok(()) => Ok((fd, token)),
        Err(e) => {
            reserved_fds::drop_raw(fd);
            Err(e.into())
        }
    }
}

/// Result of a connection attempt to the peer's liveness socket.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Dialed {
    /// The attempt succeeded. The value is the reserved descriptor of the connection, over which the token was sent.
    Connected(i32),
    /// No process holds the socket any more.
    Gone,
    /// The attempt failed for another reason, so nothing is known of the socket's holders.
    NotNow,
}

impl From<Errno> for Dialed {
    fn from(e: Errno) -> Dialed {
        match e {
            // The name is free, or its socket does not listen any more; or the last holder ended in between.
            Errno::CONNREFUSED | Errno::NOENT | Errno::PIPE | Errno::CONNRESET => Dialed::Gone,
            // This process is short of descriptors or memory, the peer's backlog is full, or something of that kind.
            _ => Dialed::NotNow,
        }
    }
}

/// Connects to the peer's socket and sends the token.
pub(super) fn dial(token: u64) -> Dialed {
    let Ok(fd) = unix_socket() else { return Dialed::NotNow };
    let name = Name::liveness(token);
    let connected = SocketAddrUnix::new_abstract_name(name.as_bytes()).and_then(|name| connect(&fd, &name));
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let said =
        connected.map_err(Errno::from).and_then(|()| raw::send(fd.as_raw_fd(), token.to_le_bytes().as_ptr(), 8, flags));
    match said {
        Ok(_) => reserved_fds::adopt(fd).map_or(Dialed::NotNow, Dialed::Connected),
        Err(e) => {
            reserved_fds::drop_raw(fd);
            e.into()
        }
    }
}

/// The process at the other end of an accepted connection, as far as it is known.
enum Caller {
    /// The process has sent the token.
    Peer,
    /// The process has not sent anything yet.
    Silent,
    /// The process has sent something else, or has ended.
    Stranger,
}

fn caller(fd: i32, token: u64) -> Caller {
    match first_bare_message(fd) {
        FirstMessage::Nothing => Caller::Silent,
        FirstMessage::End | FirstMessage::Message { descriptors: true, .. } => Caller::Stranger,
        FirstMessage::Message { .. } => {
            let mut said = [0u8; 8];
            let n = raw::recv(fd, said.as_mut_ptr(), said.len(), libc::MSG_DONTWAIT);
            if n == Ok(said.len()) && u64::from_le_bytes(said) == token { Caller::Peer } else { Caller::Stranger }
        }
    }
}

impl SlotSide {
    /// Whether our liveness socket listens, and this process has not accepted the peer's connection to it.
    pub fn liveness_listens(&self) -> bool {
        self.state.look().liveness_socket() == LivenessSocket::Listens
    }

    /// Whether [`SlotSide::take_peer_liveness_change`] or [`Liveness::take_arrived`] would report a change.
    #[inline]
    pub fn has_other_files(&self) -> bool {
        self.state.glance().has(PEER_LIVENESS_CHANGED | ARRIVED)
    }

    /// Whether the peer liveness socket was replaced by another file since the last call: an epoll instance has to add
    /// the new file.
    pub fn take_peer_liveness_change(&self) -> bool {
        self.state.clear(PEER_LIVENESS_CHANGED)
    }
}

/// A liveness socket (or -1) that is closed after everything else of a connection: when the peer liveness socket of a
/// client ends, it may use the slot again.
#[derive(Debug)]
pub(super) struct OwnLiveness(i32);

impl Drop for OwnLiveness {
    fn drop(&mut self) {
        if self.0 >= 0 {
            reserved_fds::close(self.0);
        }
    }
}

/// The sockets of one side of a connection whose ends show which processes still hold it.
#[derive(Debug)]
pub struct Liveness {
    /// The application's descriptor that is our liveness socket.
    pub(super) own: ProgramNumber,
    /// The socket that was accepted from our listening liveness socket (reserved descriptor + 1).
    accepted: AtomicI32,
    /// The token that the peer has to send first on that socket.
    token: AtomicU64,
    /// The peer liveness socket (reserved descriptor + 1), and in the upper half the generation of its connection. It
    /// is one word, since the socket may be received while the connection begins.
    pub(super) peer: AtomicU64,
    /// The token by which the peer's liveness socket is found, if that liveness socket listens; 0 otherwise.
    pub(super) peer_token: SharedCell<u64>,
    /// Number of connections that were made to the peer's listening liveness socket. While our own liveness socket
    /// listens and the peer has none: the time (in units of 2^24 ns) of the last check for the peer; see
    /// [`Liveness::is_abandoned`].
    pub(super) dialed: AtomicU32,
    /// A connection to the peer's listening liveness socket that could not be made yet.
    pub(super) owed_dial: OwedDial,
    /// Number of wake-up bytes that were left in the liveness socket; see [`Liveness::may_leave_byte`].
    left: AtomicU32,
    /// When a call that does not wait has last looked at the liveness sockets.
    pub(super) last_look: LastLook,
    /// Held by the thread that reads a liveness socket of either side; see [`super::drain`].
    pub(super) draining: Lock<{ lock_rank::NONE }>,
}

impl Liveness {
    /// Stores the application's descriptor that is our liveness socket.
    pub(super) fn set(&self, fd: i32) {
        self.own.set(fd);
    }

    /// Whether there is a liveness socket of ours, for a decision that depends on no other data.
    pub(super) fn is_there(&self) -> bool {
        self.own.is_set()
    }

    /// Whether there is neither a liveness socket of ours nor of the peer's, so that no side has or had sharers.
    pub(super) fn has_none(&self) -> bool {
        !self.is_there() && self.peer.load(Ordering::Relaxed) == 0
    }

    /// Whether process `pid`, which the word names, is one of our sharers: the peer could have written any number.
    pub(super) fn has_sharer(&self, pid: u32) -> bool {
        let liveness = self.fd();
        if liveness < 0 {
            return false;
        }
        #[allow(unsafe_code)]
        // SAFETY: the caller holds a direction's lock, and the liveness socket stays open while it does.
        let liveness = unsafe { rustix::fd::BorrowedFd::borrow_raw(liveness) };
        procfs::has_open(pid, liveness)
    }

    /// Makes the liveness socket. Returns the end for our side, and either the peer's end, if that can be passed, or
    /// the token by which the peer finds the socket.
    pub(super) fn make(&self, side: &SlotSide, v: &View) -> Result<(OwnedFd, Option<OwnedFd>, u64)> {
        if v.link.trust_is_mutual() {
            let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
            return Ok((ours, Some(theirs), 0));
        }
        let (ours, token) = open()?;
        self.token.store(token, Ordering::Relaxed);
        side.on::<LivenessSocket>(LivenessSocketEvent::Listen);
        Ok((ours, None, token))
    }

    /// Forgets the liveness socket in this process. If its descriptor is one of ours, the drop of the returned value
    /// closes it.
    pub(super) fn take(&self) -> OwnLiveness {
        let fd = self.own.take();
        self.drop_accepted();
        OwnLiveness(if fd >= 0 && reserved_fds::is(fd) { fd } else { -1 })
    }

    /// The descriptor of our liveness socket, or -1. It has a number of the application's, unless the application has
    /// closed that.
    pub fn fd(&self) -> i32 {
        self.own.fd()
    }

    /// Our end of the peer's connection to the liveness socket, or -1.
    pub fn accepted_fd(&self) -> i32 {
        self.accepted.load(Ordering::Acquire) - 1
    }

    /// The socket over which a process without a link of its own is woken, or -1: the liveness socket, or the socket
    /// that was accepted from it.
    pub fn to_poll(&self, side: &SlotSide) -> i32 {
        match self.accepted_fd() {
            fd if fd >= 0 && !side.liveness_listens() => fd,
            _ => self.fd(),
        }
    }

    /// Whether a wake-up byte may stay in the liveness socket. An edge-triggered entry of an epoll instance reports each
    /// further byte, so most of them need no system call; a socket that is full would take none.
    pub(super) fn may_leave_byte(&self) -> bool {
        // Relaxed: the number only bounds how many bytes there are.
        self.left.fetch_add(1, Ordering::Relaxed) % LEFT != LEFT - 1
    }

    /// Accepts the peer's connection to our liveness socket, if there is one. True: it was accepted by this call.
    pub(super) fn accept(&self, side: &SlotSide) -> bool {
        let liveness = self.fd();
        if !side.liveness_listens() || liveness < 0 {
            return false;
        }
        // If this is a signal handler, the thread that it has interrupted may hold the lock.
        let budget = if lock::interrupted() { 0 } else { LIVENESS_ACCEPT };
        let Some(_accepting) = ACCEPTING.lock_within(budget) else { return false };
        let token = self.token.load(Ordering::Relaxed);
        for _ in 0..ACCEPTS_PER_LOOK {
            let waiting = self.accepted_fd();
            match if waiting >= 0 { caller(waiting, token) } else { Caller::Silent } {
                Caller::Peer => {
                    // A thread that sees this state polls the accepted socket.
                    side.on::<LivenessSocket>(LivenessSocketEvent::Accept);
                    return true;
                }
                Caller::Stranger => self.drop_accepted(),
                Caller::Silent => {}
            }
            let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            let Ok(fd) = raw::accept4(liveness, core::ptr::null_mut(), core::ptr::null_mut(), flags) else { break };
            #[allow(unsafe_code)]
            // SAFETY: the descriptor was just accepted, and no other code owns it.
            let adopted = reserved_fds::adopt(unsafe { rustix::fd::FromRawFd::from_raw_fd(fd) });
            if let Ok(fd) = adopted {
                // An earlier silent connection belongs to a third party, since the peer sends as soon as it is
                // connected.
                self.drop_accepted();
                self.accepted.store(fd + 1, Ordering::Release);
                side.state.set(ARRIVED);
            }
        }
        false
    }

    /// Whether the peer's process has ended without ever having connected to our liveness socket, so that no
    /// connection's end shows this. It is checked at most every 17 ms until the peer has connected.
    pub(super) fn is_abandoned(&self, side: &SlotSide, v: &View) -> bool {
        if !side.liveness_listens() || self.accepted_fd() >= 0 {
            return false;
        }
        let now = num::low_half(time::now() >> 24);
        if self.dialed.swap(now, Ordering::Relaxed) == now || self.accept(side) {
            return false;
        }
        let gone = side.liveness_listens() && self.accepted_fd() < 0 && !v.link.peer.lives();
        if gone {
            side.state.set(PEER_GONE);
        }
        gone
    }

    pub(super) fn drop_accepted(&self) {
        let there = self.accepted.load(Ordering::Relaxed) != 0;
        if there {
            let fd = self.accepted.swap(0, Ordering::AcqRel) - 1;
            if fd >= 0 {
                dismiss_shared(fd);
            }
        }
    }

    /// The socket that was accepted from our liveness socket since the last call, or -1: an epoll instance has to add
    /// it.
    pub fn take_arrived(&self, side: &SlotSide) -> i32 {
        if side.state.clear(ARRIVED) { self.accepted_fd() } else { -1 }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn accept(listener: &OwnedFd) -> Option<i32> {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        raw::accept4(listener.as_raw_fd(), core::ptr::null_mut(), core::ptr::null_mut(), flags).ok()
    }

    #[test]
    fn only_a_caller_with_the_token_is_the_peer() {
        let (listener, token) = open().unwrap();
        let Dialed::Connected(ours) = dial(token) else { panic!("its backlog has room") };
        let theirs = accept(&listener).unwrap();
        assert!(matches!(caller(theirs, token), Caller::Peer));
        assert!(matches!(caller(theirs, token), Caller::Silent));
        reserved_fds::close(ours);
        // This caller knows only the name.
        let name = Name::liveness(token);
        let third = unix_socket().unwrap();
        connect(&third, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        let theirs = accept(&listener).unwrap();
        assert!(matches!(caller(theirs, token), Caller::Silent));
        rustix::io::write(&third, b"12345678").unwrap();
        assert!(matches!(caller(theirs, token), Caller::Stranger));
        drop(listener);
        assert_eq!(dial(token), Dialed::Gone);
    }

    #[test]
    fn a_full_backlog_is_no_end() {
        let (listener, token) = open().unwrap();
        let name = Name::liveness(token);
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let others: Vec<OwnedFd> = core::iter::repeat_with(|| unix_socket().unwrap())
            .take_while(|other| connect(other, &name).is_ok())
            .collect();
        assert!(others.len() >= BACKLOG as usize);
        assert_eq!(dial(token), Dialed::NotNow);
        drop((others, listener));
        assert_eq!(dial(token), Dialed::Gone);
    }

    #[test]
    fn a_lack_of_descriptors_or_memory_is_no_end() {
        for e in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN, Errno::INTR] {
            assert_eq!(Dialed::from(e), Dialed::NotNow);
        }
    }
}
