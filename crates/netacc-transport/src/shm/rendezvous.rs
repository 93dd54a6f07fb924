//! The rendezvous, by which an accelerated connect finds the listener: a `SOCK_SEQPACKET` socket in the abstract UNIX
//! namespace (unix(7)), named after address and port. The abstract namespace belongs to the network namespace: in
//! another one, the same address belongs to another host.

use crate::shm::control::send_message;
use crate::shm::guard::{dismiss, pass_credentials, refuse_descriptors};
use crate::shm::link::Link;
use crate::shm::mapping::{self, Mapped};
use crate::shm::owner::{Asked, Word};
use crate::shm::procfs;
use crate::shm::segment::{SEGMENT, Segment, ServedBy};
use crate::shm::side::Side;
use crate::shm::users::{Trust, is_one_user, trusted};
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::sync::atomic::Ordering;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{raw, reserved_fds};
use netacc_wire::{Message, Name, Scope};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, getsockname, listen, socket_with,
};

pub(super) const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Largest number of processes that may have a rendezvous each for a listener that they inherited or received.
pub const PLACES: u16 = 8;

/// Makes a listening rendezvous socket. `EADDRINUSE`: the name is taken.
pub fn listen_at(name: &Name, backlog: i32) -> Result<OwnedFd> {
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
    // Accepted sockets inherit this.
    pass_credentials(fd.as_fd());
    bind(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    listen(&fd, backlog)?;
    Ok(fd)
}

/// Number of attempts to learn who holds the name of a pair.
const ASKED: u32 = 20;

/// Makes a socket that holds the name of a pair of addresses ([`Name::pair`]). `EADDRINUSE`: another one of this user, or of
/// root, holds it. Whatever else has the name means nothing, since anybody can take it: `EPERM`.
pub fn hold_pair(local: SocketAddr, peer: SocketAddr) -> Result<OwnedFd> {
    // Those who only ask who holds the name wait there for ever.
    const ASKING: i32 = 128;
    let name = Name::pair(local, peer);
    for _ in 0..ASKED {
        match listen_at(&name, ASKING) {
            Err(Errno::ADDRINUSE) => match holder(&name) {
                Ok(uid) if trusted(uid) => return Err(Errno::ADDRINUSE),
                // The holder is about to listen, or has just given the name up.
                Err(Errno::CONNREFUSED) => raw::sched_yield(),
                _ => return Err(Errno::PERM),
            },
            held => return held,
        }
    }
    Err(Errno::PERM)
}

/// The user whose socket listens at the name. `ECONNREFUSED`: none does.
fn holder(name: &Name) -> Result<u32> {
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
    connect(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    let uid = raw::peer_credentials(fd.as_raw_fd())?.1;
    reserved_fds::drop_raw(fd);
    Ok(uid)
}

/// Why no link could be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLink {
    /// No process listens at the rendezvous.
    Nobody,
    /// Only a NetACC with another version of the protocol listens there.
    Version,
    /// A process listens there that is not the owner of the TCP listener.
    Stranger,
    /// The rendezvous's own queue is full.
    Busy,
    /// There are no descriptors, or there is no memory.
    Resources(Errno),
}

/// The scopes whose listeners would get a connection to `dest`, the most specific first, as TCP
/// chooses.
fn scopes(dest: IpAddr) -> [Scope; 3] {
    match dest {
        IpAddr::V4(_) => [Scope::Addr(dest), Scope::Any4, Scope::Dual],
        IpAddr::V6(_) => [Scope::Addr(dest), Scope::Any6, Scope::Dual],
    }
}

/// Connects to the rendezvous that serves `dest` and makes a link with a fresh segment. `member` is the cookie of the
/// listener that the link has to lead to; `None`: the one that the kernel chooses for `from`. `place` is tried first.
pub fn connect_link(
    from: SocketAddr,
    dest: SocketAddr,
    member: Option<u64>,
    place: u16,
) -> core::result::Result<&'static Link, NoLink> {
    let res = |e: rustix::io::Errno| NoLink::Resources(Errno::from(e));
    mapping::affordable().map_err(NoLink::Resources)?;
    // The kernel is asked for the listener first, since most servers have no NetACC, and nobody looks for their names then.
    let asked = Asked::new(from, dest, member);
    if asked.is_plain() {
        return Err(NoLink::Nobody);
    }
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None).map_err(res)?;
    pass_credentials(fd.as_fd());
    let made = find(&fd, asked, member, place).and_then(|found| Ok((client_link(&fd, asked, found.0)?, found)));
    match made {
        Ok((Made { mapped, uid, pid, listener }, (found, several))) => {
            let link = reserved_fds::adopt(fd)
                .and_then(|control| Link::new(Side::Client, mapped, control, Trust::in_user(uid), pid));
            let link = link.inspect_err(|_| mapped.discard()).map_err(NoLink::Resources)?;
            link.peer.set_uid(uid);
            link.listener.member.store(found, Ordering::Relaxed);
            // The server stores this as well, but only when it takes the link up, and it may sleep in the kernel until
            // then. If the name does not tell it, the word stays as it is, since the server may have written it
            // already.
            if let Some(segment) = link.segment().filter(|_| several) {
                segment.set_served_by(ServedBy::Several);
            }
            link.listener.cookie.store(listener, Ordering::Relaxed);
            Ok(link)
        }
        Err(e) => {
            dismiss(fd);
            Err(e)
        }
    }
}

/// Connects `fd` to a rendezvous: returns the cookie of a listener that may share its port, 0 for one that has its port
/// alone, and whether its name tells that several processes may serve the listener.
fn find(fd: &OwnedFd, asked: Asked, member: Option<u64>, place: u16) -> core::result::Result<(u64, bool), NoLink> {
    let dest = asked.dest;
    let mut several = false;
    let connects = |name: &Name| {
        several = name.is_of_several();
        dial(fd, name)
    };
    match search(|| asked.cookie(), dest, member, place, connects)? {
        Some(found) => Ok((found, several)),
        None if member.is_none() && meets_other_version(fd, dest) => Err(NoLink::Version),
        None => Err(NoLink::Nobody),
    }
}

/// Whether the listener at `dest` has a NetACC of another version. A Hello is sent to it, whose version it can read, so
/// that it reports the reason as well; `fd` cannot be used afterwards.
fn meets_other_version(fd: &OwnedFd, dest: SocketAddr) -> bool {
    let mut names = netacc_wire::other_versions()
        .flat_map(|version| scopes(dest.ip()).map(|scope| Name::of_version(version, scope, dest.port(), 0)));
    let met = names.any(|name| dial(fd, &name) == Ok(true));
    if met {
        let hello = Message::Hello { pid: raw::getpid(), segment: 0 };
        // That listener may have ended meanwhile, or its queue may be full.
        let _ = send_message(fd.as_fd(), hello, None);
    }
    met
}

/// Tries the names that the rendezvous for `dest` may have, in a client's order, until `there` returns true. Returns
/// the cookie of a listener that may share its port, 0 for one that has its port alone. `there` may connect, or only
/// look the name up. `chosen` is the cookie of the listener that the kernel would choose, if it tells.
pub fn search<E, F: FnMut(&Name) -> core::result::Result<bool, E>>(
    chosen: impl FnOnce() -> Option<u64>,
    dest: SocketAddr,
    member: Option<u64>,
    place: u16,
    mut there: F,
) -> core::result::Result<Option<u64>, E> {
    let at = |there: &mut F, place: u16, cookie: Option<u64>| {
        let scopes = if member.is_none() { scopes(dest.ip()) } else { [Scope::Any4; 3] };
        let known = scopes.into_iter().filter(|_| member.is_none()).map(|s| (s, 0));
        for (scope, found) in known.chain(cookie.map(|c| (Scope::One(c), c))) {
            if there(&Name::at(scope, dest.port(), place))? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    };
    // Usually only a few processes have the listener, at the lowest places. If no process is at `place`, its remainders
    // modulo ever smaller powers of two are tried, so that each process gets its share of the links.
    let lower = core::iter::successors(Some(PLACES), |n| Some(n / 2)).take_while(|n| *n > 1);
    let mut tried = 0;
    for at_most in lower {
        let place = place % at_most;
        if place == 0 || place == tried {
            continue;
        }
        tried = place;
        if let Some(found) = at(&mut there, place, member)? {
            return Ok(Some(found));
        }
    }
    if let Some(found) = at(&mut there, 0, member)? {
        return Ok(Some(found));
    }
    let cookie = member.or_else(chosen);
    if member.is_none()
        && let Some(c) = cookie
        && there(&Name::new(Scope::One(c), dest.port()))?
    {
        return Ok(Some(c));
    }
    // The process with the first place may have ended, and others may still have the listener.
    for place in 1..PLACES {
        if let Some(found) = at(&mut there, place, cookie)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Whether another process than the one with the first place has a rendezvous for the listener at `dest` that this cookie
/// tells from others of its port (0: it has its port alone). It sees a client that comes and goes.
pub fn has_others(dest: SocketAddr, member: u64) -> bool {
    let Ok(fd) = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None) else { return false };
    let scopes =
        || scopes(dest.ip()).into_iter().filter(|_| member == 0).chain((member != 0).then_some(Scope::One(member)));
    let mut names = (1..PLACES).flat_map(|place| scopes().map(move |scope| Name::at(scope, dest.port(), place)));
    let there = names.any(|name| matches!(dial(&fd, &name), Ok(true) | Err(NoLink::Busy)));
    reserved_fds::drop_raw(fd);
    there
}

/// Connects `fd` to the rendezvous with this name; returns whether there is one.
fn dial(fd: &OwnedFd, name: &Name) -> core::result::Result<bool, NoLink> {
    let res = |e: rustix::io::Errno| NoLink::Resources(Errno::from(e));
    let addr = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(res)?;
    match connect(fd, &addr) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::CONNREFUSED) => Ok(false),
        Err(rustix::io::Errno::AGAIN) => Err(NoLink::Busy),
        Err(e) => Err(res(e)),
    }
}

/// Checks that process `pid` of user `uid`, which has a rendezvous, may serve the TCP listener of the kernel's answer
/// `word`. Returns the listener's cookie, 0 if the kernel does not tell it.
///
/// Any user can bind an abstract name, so the listener has to belong to that user. Root needs no proof; a process of
/// our own user, which may have received the listener from another user (systemd.socket(5)), has to have it open. If
/// the kernel gives no answer, root and our own user are trusted.
pub fn accepts(uid: u32, pid: u32, word: Word) -> core::result::Result<u64, NoLink> {
    match word {
        Word::Listener(l) if l.uid == uid && is_one_user(uid) => Ok(l.cookie),
        Word::Listener(l) if trusted(uid) && (uid == 0 || procfs::has_socket(pid, l.inode)) => Ok(l.cookie),
        Word::Listener(_) => Err(NoLink::Stranger),
        Word::Nobody => Err(NoLink::Nobody),
        Word::Untold if trusted(uid) => Ok(0),
        Word::Untold => Err(NoLink::Stranger),
    }
}

/// The parts of a client's link.
struct Made {
    mapped: Mapped,
    uid: u32,
    pid: u32,
    listener: u64,
}

/// Sends a Hello over `fd` and makes the client's side of the link, if the process there may serve the listener.
/// `member` is the cookie of a listener that may share its port; 0: it has its port alone.
fn client_link(fd: &OwnedFd, asked: Asked, member: u64) -> core::result::Result<Made, NoLink> {
    let (pid, uid) = raw::peer_credentials(fd.as_raw_fd()).map_err(NoLink::Resources)?;
    let word = asked.of_member(member);
    let told = accepts(uid, pid, word)?;
    let listener = if member != 0 { member } else { told };
    let backlog = match word {
        Word::Listener(listener) => Some(listener.backlog.saturating_add(1)),
        _ => None,
    };
    Ok(Made { mapped: greet(fd, Trust::in_user(uid), backlog)?, uid, pid, listener })
}

/// Makes a segment and sends it with a Hello over `fd`, to a process that is trusted so far. `backlog` is the largest number of
/// connects that may wait there, if it is known.
pub(super) fn greet(fd: &OwnedFd, trust: Trust, backlog: Option<u32>) -> core::result::Result<Mapped, NoLink> {
    let memfd = Segment::create().map_err(NoLink::Resources)?;
    let mapped = Segment::map(memfd.as_fd()).map_err(NoLink::Resources);
    if !trust.is_given() {
        // Such a server must not pass descriptors to us.
        refuse_descriptors(fd.as_fd());
    }
    if let (Ok(mapped), Some(backlog)) = (&mapped, backlog) {
        mapped.seg.set_backlog(backlog);
    }
    let hello = Message::Hello { pid: raw::getpid(), segment: SEGMENT as u64 };
    let sent = mapped.and_then(|mapped| {
        let sent = send_message(fd.as_fd(), hello, Some(memfd.as_fd())).inspect_err(|_| mapped.discard());
        sent.map(|()| mapped).map_err(NoLink::Resources)
    });
    reserved_fds::drop_raw(memfd);
    sent
}

/// Determines the source address of a connection: a datagram socket is connected, which sends nothing (udp(7)).
#[derive(Debug)]
pub struct SourceProbe {
    fd: i32,
    /// The address that the connection would come from.
    pub source: IpAddr,
}

impl SourceProbe {
    /// Asks for the route to `dest`; `None` if there is none.
    pub fn new(dest: IpAddr) -> Option<SourceProbe> {
        let family = if dest.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let fd = socket_with(family, SocketType::DGRAM, FLAGS, None).ok()?.into_raw_fd();
        // From here on the socket is closed with `probe`.
        let mut probe = SourceProbe { fd, source: dest };
        #[allow(unsafe_code)]
        // SAFETY: the descriptor is ours, and open while `probe` lives.
        let fd = unsafe { BorrowedFd::borrow_raw(probe.fd) };
        connect(fd, &SocketAddr::new(dest, 9)).ok()?;
        probe.source = SocketAddr::try_from(getsockname(fd).ok()?).ok()?.ip();
        Some(probe)
    }

    /// The source address, if `dest` is an address of this host.
    pub fn own_source(&self, dest: IpAddr) -> Option<IpAddr> {
        let loopback = matches!(dest, IpAddr::V4(a) if a.is_loopback()) && self.source.is_loopback();
        (self.source == dest || loopback).then_some(self.source)
    }

    /// Returns the non-blocking socket, over which a probe can be sent to the destination. The caller closes it.
    pub fn into_socket(self) -> i32 {
        let fd = self.fd;
        core::mem::forget(self);
        fd
    }
}

impl Drop for SourceProbe {
    fn drop(&mut self) {
        let _ = raw::close(self.fd);
    }
}

/// The address that a connection to `dest` would come from, if `dest` is an address of this host; `None` if it is not.
pub fn local_source(dest: IpAddr) -> Option<IpAddr> {
    SourceProbe::new(dest)?.own_source(dest)
}

/// Whether `ip` is an address of this host that a connection may come from.
pub fn is_local(ip: IpAddr) -> bool {
    ip.is_loopback() || local_source(ip) == Some(ip)
}

/// Makes a socket that holds a local port of `ip`, and returns it with the port.
pub fn reserve_port(ip: IpAddr) -> Result<(OwnedFd, u16)> {
    let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = socket_with(family, SocketType::STREAM, FLAGS, None)?;
    let bound = bind(&fd, &SocketAddr::new(ip, 0))
        .and_then(|()| getsockname(&fd))
        .map_err(Errno::from)
        .and_then(|a| SocketAddr::try_from(a).map_err(|_| Errno::AFNOSUPPORT));
    match bound {
        Ok(a) => Ok((fd, a.port())),
        Err(e) => {
            reserved_fds::drop_raw(fd);
            Err(e)
        }
    }
}

/// The address that a connection to `ip` reaches: `0.0.0.0` and `::` mean this host, and a mapped IPv4 address is one
/// of IPv4.
pub fn destination(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(a) if a.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(a) if a.is_unspecified() => core::net::Ipv6Addr::LOCALHOST.into(),
        IpAddr::V6(a) => a.to_ipv4_mapped().map_or(ip, IpAddr::V4),
        IpAddr::V4(_) => ip,
    }
}

/// The raw number of an owned descriptor, for poll lists.
pub fn raw(fd: &OwnedFd) -> i32 {
    fd.as_raw_fd()
}
