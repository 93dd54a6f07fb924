//! Wakers for peers of another user: datagram sockets that are found by a name.
//!
//! A waker between strangers must need no trust. A write to an eventfd of the peer's could block, since its maker decides
//! about its flags and its counter. So a side that is not to pass descriptors makes a datagram socket that nobody else has
//! and tells its peer a token, half of which is the socket's name in the abstract namespace (unix(7)). The peer sends an
//! almost empty datagram to that name, from a socket that nobody else has: with `MSG_DONTWAIT` such a send never waits,
//! whatever the other side does. At the name the kernel finds nothing but a datagram socket.
//!
//! Names are public (`/proc/net/unix`), so the datagram consists of the other half of the token. A filter in the kernel
//! drops every other datagram before it can wake the sleeper.
//!
//! A peer that knows the token could put descriptors into the socket, whose close may block the thread that receives them
//! ([`super::guard`]). The kernel refuses them where it can (Linux 6.16); elsewhere each datagram is looked at first.

use crate::shm::guard::{self, FirstMessage, dismiss_reserved};
use core::sync::atomic::{AtomicI32, Ordering};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{SharedCell, raw, reserved_fds};
use netacc_wire::{Name, proof};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, sendto, socket_with};
use rustix::rand::{GetRandomFlags, getrandom};

/// Number of names that are tried for a waker. Half a token has 32 bits, so hardly ever is one taken.
const NAMES: u32 = 4;

/// Largest number of rounds in which a waker is emptied: more than a socket holds (`net.unix.max_dgram_qlen`), while a peer
/// that goes on sending keeps a thread no longer than that.
const ROUNDS: usize = 256;

/// 1: the kernel refuses descriptors that are sent to our wakers, as the first one has shown.
static REFUSES: SharedCell<u32> = SharedCell::<u32>::new(0);

/// Result of emptying a waker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Emptied {
    /// The waker rings no more.
    Silent,
    /// The peer has put descriptors into the socket, which a thread of the program must not receive.
    HoldsDescriptors,
}

/// Makes a waker, at a private descriptor number, and the token by which the peer finds it.
pub(super) fn create() -> Result<(i32, u64)> {
    let fd = datagram_socket()?;
    let made = name(&fd);
    match made {
        Ok(token) => Ok((reserved_fds::adopt(fd)?, token)),
        Err(e) => {
            reserved_fds::drop_raw(fd);
            Err(e)
        }
    }
}

/// The socket from which one side of a link rings the peer's wakers (descriptor + 1), made when it is first needed; 0: there
/// is none. It is the link's alone, since a peer that leaves its datagrams unread uses up its buffer. It has no name, so
/// nobody can send to it, and its close cannot block.
#[derive(Debug)]
pub(super) struct Sender(AtomicI32);

impl Sender {
    /// Rings the waker with this token. `EAGAIN`: the waker is full, or the peer has left too many of our datagrams unread.
    /// `ECONNREFUSED`: this process cannot reach it, as from another network namespace.
    pub(super) fn ring(&self, token: u64) -> Result<()> {
        ring(self.open()?, token)
    }

    fn open(&self) -> Result<i32> {
        if self.fd() >= 0 {
            return Ok(self.fd());
        }
        let made = create_sender()?;
        // AcqRel: a thread that finds the descriptor uses a socket that is there.
        self.0.compare_exchange(0, made + 1, Ordering::AcqRel, Ordering::Acquire).map(|_| made).or_else(|other| {
            reserved_fds::close(made);
            Ok(other - 1)
        })
    }

    /// The descriptor, or -1.
    pub(super) fn fd(&self) -> i32 {
        self.0.load(Ordering::Acquire) - 1
    }

    /// Closes the socket.
    pub(super) fn close(&self) {
        let fd = self.0.swap(0, Ordering::Relaxed) - 1;
        if fd >= 0 {
            reserved_fds::close(fd);
        }
    }
}

fn create_sender() -> Result<i32> {
    reserved_fds::adopt(datagram_socket()?)
}

fn datagram_socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?)
}

/// Gives the socket a name by a new token, after which only datagrams that prove it arrive.
fn name(fd: &OwnedFd) -> Result<u64> {
    if guard::refuse_descriptors(fd.as_fd()) {
        // The same kernel answers for every socket.
        REFUSES.set(1);
    }
    let mut taken = Errno::ADDRINUSE;
    for _ in 0..NAMES {
        let mut bytes = [0u8; 8];
        if getrandom(&mut bytes, GetRandomFlags::empty()) != Ok(bytes.len()) {
            return Err(Errno::AGAIN);
        }
        // A token of 0 stands for an eventfd.
        let token = u64::from_le_bytes(bytes) | 1;
        // The filter comes first, so that no datagram of another process can arrive before it.
        admit_only(fd.as_fd(), proof(token))?;
        match SocketAddrUnix::new_abstract_name(Name::waker(token).as_bytes()).and_then(|at| bind(fd, &at)) {
            Ok(()) => return Ok(token),
            Err(e) => taken = e.into(),
        }
        if taken != Errno::ADDRINUSE {
            break;
        }
    }
    Err(taken)
}

/// Has the kernel drop every datagram that does not begin with `proof`. The program is one of the classic packet filter
/// (socket(7), `SO_ATTACH_FILTER`), which any process may attach to its own sockets.
fn admit_only(fd: BorrowedFd<'_>, proof: [u8; 4]) -> Result<()> {
    // Codes of the classic packet filter (linux/bpf_common.h).
    const LOAD_WORD: u16 = 0x20;
    const IS_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        step(LOAD_WORD, 0, 0, 0),
        step(IS_EQUAL, 0, 1, u32::from_be_bytes(proof)),
        step(RETURN, 0, 0, u32::MAX),
        step(RETURN, 0, 0, 0),
    ];
    let program = libc::sock_fprog { len: 4, filter: steps.as_mut_ptr() };
    let size = const { crate::num::constant(size_of::<libc::sock_fprog>()) };
    raw::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, (&raw const program).cast(), size)
}

/// Rings the waker with this token from one of our sockets.
#[allow(unsafe_code)]
pub(super) fn ring(from: i32, token: u64) -> Result<()> {
    // SAFETY: the caller keeps this descriptor open during the call.
    let from = unsafe { BorrowedFd::borrow_raw(from) };
    let to = SocketAddrUnix::new_abstract_name(Name::waker(token).as_bytes())?;
    sendto(from, &proof(token), SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &to)?;
    Ok(())
}

/// Takes all rings of a waker back, for an epoll instance: to that a full socket would report nothing new.
pub(super) fn silence(fd: i32) -> Emptied {
    empty(fd, REFUSES.get() != 0)
}

/// Takes one ring of a waker back, for a thread that sleeps in ppoll. There is hardly ever another one, which would end the
/// next sleep, and a look for it costs as much as all else of the ring.
pub(super) fn take_ring(fd: i32) -> Emptied {
    take(fd, REFUSES.get() != 0).1
}

/// Empties a waker.
fn empty(fd: i32, refuses: bool) -> Emptied {
    for _ in 0..ROUNDS {
        let (taken, emptied) = if refuses { (raw::discard_datagrams(fd), Emptied::Silent) } else { take(fd, refuses) };
        if !taken || emptied == Emptied::HoldsDescriptors {
            return emptied;
        }
    }
    Emptied::Silent
}

/// Receives one datagram, and returns whether there was one. Unless the kernel `refuses` descriptors, it is looked at
/// before.
fn take(fd: i32, refuses: bool) -> (bool, Emptied) {
    if !refuses && matches!(guard::first_bare_message(fd), FirstMessage::Message { descriptors: true, .. }) {
        return (false, Emptied::HoldsDescriptors);
    }
    (raw::recv(fd, [0u8; 4].as_mut_ptr(), 4, libc::MSG_DONTWAIT).is_ok(), Emptied::Silent)
}

/// Closes a waker of ours, into which the peer may have put descriptors whose close blocks.
pub(super) fn close(fd: i32) {
    if REFUSES.get() != 0 { reserved_fds::close(fd) } else { dismiss_reserved(fd) }
}

/// In the child of a fork: closes its descriptor of the parent's waker, which stays as it is.
pub(super) fn leave_to_parent(fd: i32) {
    if REFUSES.get() != 0 { reserved_fds::close(fd) } else { guard::dismiss_shared(fd) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use rustix::io::IoSlice;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg_addr};

    fn rings(waker: i32) -> bool {
        raw::events_now(waker, libc::POLLIN) != 0
    }

    /// Sends a datagram to the name of a waker, with a descriptor beside it.
    fn pass(token: u64, bytes: &[u8]) -> rustix::io::Result<usize> {
        let from = datagram_socket().unwrap();
        let to = SocketAddrUnix::new_abstract_name(Name::waker(token).as_bytes()).unwrap();
        let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut anc = SendAncillaryBuffer::new(&mut space);
        let fds = [from.as_fd()];
        assert!(anc.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg_addr(&from, &to, &[IoSlice::new(bytes)], &mut anc, SendFlags::DONTWAIT)
    }

    #[test]
    fn a_ring_stays_until_it_is_taken_back() {
        let ((waker, token), from) = (create().unwrap(), create_sender().unwrap());
        assert!(!rings(waker));
        for source in [from, waker] {
            assert_eq!(ring(source, token), Ok(()));
            assert_eq!(ring(source, token), Ok(()));
            assert!(rings(waker));
            assert_eq!(silence(waker), Emptied::Silent);
            assert!(!rings(waker), "one look takes all rings back");
        }
        close(waker);
        assert_eq!(ring(from, token), Err(Errno::CONNREFUSED));
        reserved_fds::close(from);
    }

    #[test]
    fn whoever_knows_only_the_name_wakes_nobody() {
        let ((waker, token), from) = (create().unwrap(), create_sender().unwrap());
        for other in [token ^ 1, token ^ (1 << 31)] {
            assert_eq!(Name::waker(other), Name::waker(token));
            assert_eq!(ring(from, other), Ok(()), "the kernel drops it");
        }
        let to = SocketAddrUnix::new_abstract_name(Name::waker(token).as_bytes()).unwrap();
        for short in [0, 1, 3] {
            let bytes = proof(token);
            // SAFETY: the descriptor is open.
            #[allow(unsafe_code)]
            let from = unsafe { BorrowedFd::borrow_raw(from) };
            let _ = sendto(from, bytes.get(..short).unwrap(), SendFlags::DONTWAIT, &to);
        }
        assert!(!rings(waker));
        assert_eq!(ring(from, token), Ok(()));
        assert!(rings(waker));
        close(waker);
        reserved_fds::close(from);
    }

    #[test]
    fn a_full_waker_keeps_nobody_and_rings_once() {
        let ((waker, token), from) = (create().unwrap(), create_sender().unwrap());
        let taken = (0..100_000).take_while(|_| ring(from, token).is_ok()).count();
        assert!((1..100_000).contains(&taken), "{taken}");
        assert_eq!(ring(from, token), Err(Errno::AGAIN));
        assert!(rings(waker));
        assert_eq!(silence(waker), Emptied::Silent);
        assert!(!rings(waker));
        assert_eq!(ring(from, token), Ok(()));
        close(waker);
        reserved_fds::close(from);
    }

    #[test]
    fn descriptors_do_not_arrive_where_the_kernel_can_refuse_them() {
        let (waker, token) = create().unwrap();
        let passed = pass(token, &proof(token));
        if REFUSES.get() != 0 {
            assert_eq!(passed, Err(rustix::io::Errno::PERM));
            assert!(!rings(waker));
        } else {
            assert_eq!(silence(waker), Emptied::HoldsDescriptors);
        }
        close(waker);
    }

    #[test]
    fn descriptors_are_seen_before_they_are_received_where_it_cannot() {
        let (waker, token) = create().unwrap();
        let from = create_sender().unwrap();
        // As an older kernel leaves it.
        let _ = raw::setsockopt_int(waker, libc::SOL_SOCKET, 83, 1);
        assert_eq!(ring(from, token), Ok(()));
        assert_eq!(empty(waker, false), Emptied::Silent);
        assert!(!rings(waker));
        assert_eq!(ring(from, token), Ok(()));
        assert_eq!(take(waker, false), (true, Emptied::Silent));
        assert_eq!(take(waker, false), (false, Emptied::Silent));
        assert_eq!(ring(from, token), Ok(()));
        assert_eq!(pass(token, &proof(token)), Ok(4));
        assert_eq!(empty(waker, false), Emptied::HoldsDescriptors, "behind an ordinary one, too");
        assert!(rings(waker), "it stays for the thread that closes such sockets");
        dismiss_reserved(waker);
        reserved_fds::close(from);
    }
}
