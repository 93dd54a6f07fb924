//! Queries of the owner of a TCP socket, by sock_diag(7).
//!
//! A query is one message each way over a netlink socket, which is kept for the next query. It takes about three
//! microseconds. A connect over an existing link makes one query.

use crate::num;
use crate::shm::users::is_one_user;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{Lock, cpu, lock_rank, raw, reserved_fds};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const REQUEST: usize = 16 + 56;
/// Offsets of `idiag_cookie`, `idiag_uid` and `idiag_inode` in `struct inet_diag_msg`, after the netlink header.
const COOKIE_AT: usize = 16 + 44;
const UID_AT: usize = 16 + 64;
/// Offset of the attributes, which follow the `struct inet_diag_msg`.
const ATTRIBUTES_AT: usize = 16 + 72;
/// Type of the attribute with a `struct inet_diag_sockopt` (Linux 5.10).
const INET_DIAG_SOCKOPT: u16 = 22;
/// Bit of its first byte: `mc_loop` (`IP_MULTICAST_LOOP`), which is set in each new socket of either family.
const MULTICAST_LOOP: u8 = 1 << 4;
/// An option of linux/in.h that libc does not name.
const IP_RECVERR_RFC4884: i32 = 26;
/// Bit of its second byte: `recverr_rfc4884` (`IP_RECVERR_RFC4884`), which is clear in each new socket.
const RECVERR_RFC4884: u8 = 1 << 1;
/// Offset of `idiag_rqueue`: for a listener the number of connections that wait to be accepted.
const WAITING_AT: usize = 16 + 56;
/// Offset of `idiag_wqueue`: for a listener its backlog.
const BACKLOG_AT: usize = 16 + 60;
const INODE_AT: usize = 16 + 68;
const TCP_ESTABLISHED: u8 = 1;
const TCP_LISTEN: u8 = 10;
/// The number of the loopback interface, in every network namespace. Packets that a host sends to itself arrive there.
const LOOPBACK: u32 = 1;
/// Number of source ports that are tried: the kernel may name a connection that has the port, and not the listener.
const PORTS: u16 = 4;

/// The kernel's answer about a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    state: u8,
    owned: Owned,
}

/// A socket and its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owned {
    /// The kernel's number for the socket, which no other socket ever has (`SO_COOKIE`).
    pub cookie: u64,
    /// The user id of its creator.
    pub uid: u32,
    /// The inode number, by which /proc/PID/fd shows the socket; 0: no process has it open.
    pub inode: u32,
    /// Backlog, if the socket listens.
    pub backlog: u32,
    /// Number of connections that wait to be accepted, if the socket listens.
    pub waiting: u32,
    /// Whether the kernel shows that no process ever called [`mark`] for the socket.
    pub is_unmarked: bool,
    /// Whether the kernel shows that a process called [`mark_shared`] for the socket.
    pub is_shared: bool,
}

impl Owned {
    /// Number of connections for which the listener's queue has room. Like the kernel, it lets one more wait than the
    /// backlog says.
    pub fn room(&self) -> u32 {
        self.backlog.saturating_add(1).saturating_sub(self.waiting)
    }
}

/// Marks a listener, before a rendezvous is opened for it. A client learns from the kernel's answer that there is no mark, and
/// need not look for names: it is one question in place of eighty.
///
/// The mark is an option for multicast packets, which a TCP socket never receives, so that it has no effect. Every process
/// that has the socket shares the mark, and it stays when a rendezvous is closed.
pub fn mark(listener: i32) {
    // A listener without the mark is served by TCP, which is all that can be done where the kernel refuses.
    let _ = raw::setsockopt_int(listener, libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP, 0);
}

/// Marks a listener that several processes serve. A client whose link none of them has taken up learns so that another one
/// than that which it waits for may accept. The mark is shared and stays as that of [`mark`] does; it is an option for
/// datagrams.
pub fn mark_shared(listener: i32) {
    // A client that is not told waits for the process that has its link.
    let _ = raw::setsockopt_int(listener, libc::IPPROTO_IP, IP_RECVERR_RFC4884, 1);
}

/// The kernel's answer about the listener that a connection would reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// There is a listener.
    Listener(Owned),
    /// There is no listener.
    Nobody,
    /// The kernel gives no answer: it has no sock_diag(7), or the process may not use it.
    Untold,
}

/// The listener that a connection to `dest` would reach. Of several that share a port by `SO_REUSEPORT` it is the one
/// that the kernel would choose for a connection from `from`, whose port may be any.
pub fn listener(from: Option<SocketAddr>, dest: SocketAddr) -> Word {
    for more in 0..PORTS {
        let from = from.map(|f| SocketAddr::new(f.ip(), f.port().wrapping_add(more).max(1)));
        match query(dest, from) {
            Ok(Some(found)) if found.state == TCP_LISTEN => return Word::Listener(found.owned),
            Ok(Some(_)) => {}
            Ok(None) if is_there() => return Word::Nobody,
            Ok(None) | Err(_) => return Word::Untold,
        }
    }
    Word::Untold
}

/// A connection that is to be made, and what the kernel has said of its listener.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    from: SocketAddr,
    pub(super) dest: SocketAddr,
    /// `None`: the kernel was not asked, since the member of a group is known.
    word: Option<Word>,
}

impl Asked {
    /// Asks the kernel, unless it was asked for the `member` of a group.
    pub(super) fn new(from: SocketAddr, dest: SocketAddr, member: Option<u64>) -> Asked {
        Asked { from, dest, word: member.is_none().then(|| listener(Some(from), dest)) }
    }

    /// Whether the listener certainly has no rendezvous, or is none.
    pub(super) fn is_plain(&self) -> bool {
        match self.word {
            Some(Word::Listener(listener)) => listener.is_unmarked,
            Some(Word::Nobody) => true,
            Some(Word::Untold) | None => false,
        }
    }

    /// The cookie of the listener, if the kernel tells it.
    pub(super) fn cookie(&self) -> Option<u64> {
        match self.word {
            Some(Word::Listener(listener)) => Some(listener.cookie),
            Some(_) => None,
            None => listener_cookie(self.from, self.dest),
        }
    }

    /// What the kernel says of the listener with this cookie among those of a group; 0: of the one that has its port alone.
    pub(super) fn of_member(&self, member: u64) -> Word {
        match self.word {
            Some(Word::Listener(listener)) if member == 0 || listener.cookie == member => Word::Listener(listener),
            // Listeners that share a port belong to one user, but each has its own cookie.
            _ => listener((member != 0).then_some(self.from), self.dest),
        }
    }
}

/// The cookie (`SO_COOKIE`) of the listener that a connection from `from` to `dest` would reach, if the kernel tells.
/// Of several that share a port by `SO_REUSEPORT` it is the one that the kernel would choose. `None` also when an
/// earlier connection with these addresses is in TIME_WAIT.
pub fn listener_cookie(from: SocketAddr, dest: SocketAddr) -> Option<u64> {
    query(dest, Some(from)).ok()?.filter(|f| f.state == TCP_LISTEN).map(|f| f.owned.cookie)
}

/// The user id of the creator of the end `local` of an established connection to `remote`. `None`: there is no such
/// connection, or the number does not stand for one user.
pub fn connection_uid(local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    let found = query(local, Some(remote)).ok()??;
    (found.state == TCP_ESTABLISHED && is_one_user(found.owned.uid)).then_some(found.owned.uid)
}

/// Whether a process still has the end `local` of the connection to `remote`, of which the caller has the other end: a
/// stream that a program has only shut down has a holder, and one that every process has closed has none. True if the
/// kernel does not tell.
pub fn is_held(local: SocketAddr, remote: SocketAddr) -> bool {
    let held = |a, b| query(a, Some(b)).ok().flatten().is_some_and(|f| f.owned.inode != 0);
    held(local, remote) || !held(remote, local)
}

/// The socket of the last query (reserved descriptor + 1), which is kept for the next one; its users hold
/// `SOCK_DIAG_LOCK`.
static CACHED_SOCKET: AtomicI32 = AtomicI32::new(0);
static SOCK_DIAG_LOCK: Lock<{ lock_rank::NONE }> = Lock::new();
/// Set once the kernel has answered a query, so that a negative answer can be trusted.
static ANSWERS: AtomicBool = AtomicBool::new(false);

/// Called in the child of a fork, which would receive answers to its parent's queries: closes the socket.
pub fn after_fork() {
    let kept = CACHED_SOCKET.swap(0, Ordering::Relaxed);
    if kept != 0 {
        reserved_fds::close(kept - 1);
    }
}

/// Whether the kernel has sock_diag(7) for TCP. A kernel without it answers `ENOENT` for every socket; only a kernel
/// with it answers a request to list the sockets of no state, with an empty list.
fn is_there() -> bool {
    if ANSWERS.load(Ordering::Relaxed) {
        return true;
    }
    let mut nothing = request(SocketAddr::from(([0; 4], 0)), None);
    put(&mut nothing, 6, &(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    put(&mut nothing, 20, &[0; 4]);
    let mut reply = NO_REPLY;
    let there = exchange(&mut nothing, &mut reply).is_ok() && kind(&reply) == Some(NLMSG_DONE);
    if there {
        ANSWERS.store(true, Ordering::Relaxed);
    }
    there
}

/// Queries the socket with these addresses; `None` if there is none, or if the kernel has no sock_diag(7). A function of its own,
/// so that question and answer do not stay on a small stack while a link is made.
#[inline(never)]
fn query(local: SocketAddr, remote: Option<SocketAddr>) -> Result<Option<Found>> {
    let mut reply = NO_REPLY;
    exchange(&mut request(local, remote), &mut reply)?;
    if let Some(found) = parse(&reply) {
        ANSWERS.store(true, Ordering::Relaxed);
        return Ok(Some(found));
    }
    match error(&reply) {
        Some(libc::ENOENT) => Ok(None),
        _ => Err(Errno::PROTO),
    }
}

type Reply = [u8; 512];
const NO_REPLY: Reply = [0; 512];

/// Sends a query and receives the kernel's answer, which is available as soon as the query has been sent.
fn exchange(question: &mut [u8; REQUEST], reply: &mut Reply) -> Result<()> {
    let Some(_alone) = SOCK_DIAG_LOCK.try_lock() else {
        let fd = open()?;
        let done = exchange_over(fd.as_raw_fd(), question, reply);
        reserved_fds::drop_raw(fd);
        return done;
    };
    let kept = match CACHED_SOCKET.load(Ordering::Relaxed) {
        0 => reserved_fds::adopt(open()?)?,
        kept => kept - 1,
    };
    let done = exchange_over(kept, question, reply);
    // A socket with an error may still receive answers to earlier queries, so it is not kept.
    CACHED_SOCKET.store(if done.is_ok() { kept + 1 } else { 0 }, Ordering::Relaxed);
    if done.is_err() {
        reserved_fds::close(kept);
    }
    done
}

fn open() -> Result<OwnedFd> {
    Ok(socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))?)
}

fn exchange_over(fd: i32, question: &mut [u8; REQUEST], reply: &mut Reply) -> Result<()> {
    // The sequence number comes from a clock, since a counter would have the same values in another process that shares
    // the socket.
    let number = num::low_half(cpu::ticks()).to_ne_bytes();
    put(question, 8, &number);
    raw::send(fd, question.as_ptr(), question.len(), libc::MSG_DONTWAIT)?;
    raw::recv(fd, reply.as_mut_ptr(), reply.len(), libc::MSG_DONTWAIT)?;
    if reply.get(8..12) == Some(&number[..]) { Ok(()) } else { Err(Errno::PROTO) }
}

fn put(message: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = message.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

/// A `struct nlmsghdr` and a `struct inet_diag_req_v2` for an exact look-up: the kernel finds the socket that a SYN
/// with these addresses would reach.
fn request(dest: SocketAddr, remote: Option<SocketAddr>) -> [u8; REQUEST] {
    let mut r = [0u8; REQUEST];
    let mut put = |at: usize, b: &[u8]| put(&mut r, at, b);
    put(0, &const { num::constant(REQUEST) }.to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &NLM_F_REQUEST.to_ne_bytes());
    let family = if dest.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    put(16, &[byte(family), byte(libc::IPPROTO_TCP), 0, 0]);
    put(20, &u32::MAX.to_ne_bytes());
    // `idiag_sport` and `idiag_src` describe the socket that is looked up; a listener has no remote end.
    put(24, &dest.port().to_be_bytes());
    match dest.ip() {
        IpAddr::V4(a) => put(28, &a.octets()),
        IpAddr::V6(a) => put(28, &a.octets()),
    }
    if let Some(remote) = remote {
        put(26, &remote.port().to_be_bytes());
        match remote.ip() {
            IpAddr::V4(a) => put(44, &a.octets()),
            IpAddr::V6(a) => put(44, &a.octets()),
        }
    }
    put(60, &LOOPBACK.to_ne_bytes());
    put(64, &[0xff; 8]); // no cookie
    r
}

fn kind(reply: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes(reply.get(4..6)?.try_into().ok()?))
}

fn word(reply: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(reply.get(at..at + 4)?.try_into().ok()?))
}

/// The number of an address family or a protocol in the byte that the message has for it.
fn byte(number: i32) -> u8 {
    // 0 stands for no family and no protocol. The kernel answers with an error.
    u8::try_from(number).unwrap_or(0)
}

/// The error code of the answer, if it is an error.
fn error(reply: &[u8]) -> Option<i32> {
    let code = word(reply, 16).filter(|_| kind(reply) == Some(NLMSG_ERROR))?;
    Some(code.cast_signed().wrapping_neg())
}

/// Reads the state and the socket's values from a `struct inet_diag_msg`.
fn parse(reply: &[u8]) -> Option<Found> {
    if kind(reply)? != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    // The cookie is two words, the lower one first.
    let cookie = u64::from(word(reply, COOKIE_AT + 4)?) << 32 | u64::from(word(reply, COOKIE_AT)?);
    let owned = Owned {
        cookie,
        uid: word(reply, UID_AT)?,
        inode: word(reply, INODE_AT)?,
        backlog: word(reply, BACKLOG_AT)?,
        waiting: word(reply, WAITING_AT)?,
        is_unmarked: options(reply).is_some_and(|[bits, _]| bits & MULTICAST_LOOP != 0),
        is_shared: options(reply).is_some_and(|[_, bits]| bits & RECVERR_RFC4884 != 0),
    };
    Some(Found { state: *reply.get(17)?, owned })
}

/// The two bytes of the socket's `struct inet_diag_sockopt`, if the kernel gives it.
fn options(reply: &[u8]) -> Option<[u8; 2]> {
    let length = usize::try_from(word(reply, 0)?).ok()?;
    let mut rest = reply.get(ATTRIBUTES_AT..length)?;
    loop {
        let (header, _) = rest.split_first_chunk::<4>()?;
        let [length, kind] = [[header[0], header[1]], [header[2], header[3]]].map(u16::from_ne_bytes);
        if kind == INET_DIAG_SOCKOPT {
            return rest.get(4..usize::from(length))?.first_chunk().copied();
        }
        rest = rest.get(usize::from(length.max(4)).next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
#[path = "owner_tests.rs"]
mod tests;
