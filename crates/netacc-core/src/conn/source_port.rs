//! The source port of an accelerated connection: a real one of the kernel's, which no other socket gets while the
//! connection lives, so that getsockname(2) and the peer show what they would show over TCP.

use crate::conn::ports;
use crate::fd::placeholder::{materialize, replace_everywhere, status_flags};
use crate::object::address::with_address;
use crate::object::socket::{PLACEHOLDER, SHARED, Socket};
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::Ordering;
use netacc_stats::Reason;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{addr, raw, reserved_fds, time};
use netacc_transport::shm::slots::Slots;
use netacc_transport::shm::{Link, owner, rendezvous};

/// Largest number of ports per link that sockets of our own reserve, as far as descriptors allow. Further connections
/// on the link hold their port by their own descriptor.
const RESERVED_PORTS: usize = 100;

/// Whether a further port may be held by a socket of our own.
fn may_keep_port(link: &Link) -> bool {
    link.slots.ports_kept() < RESERVED_PORTS && Slots::all_ports_kept() < reserved_fds::room_for_savings()
}

/// The address to which bind(2) bound a real socket. It has no port where IP_BIND_ADDRESS_NO_PORT leaves that to
/// connect(2).
pub(super) fn bound_to(fd: i32, s: &Socket) -> Option<SocketAddr> {
    if s.has(PLACEHOLDER) {
        return None;
    }
    addr::local_of(fd).filter(|a| a.port() != 0 || !a.ip().is_unspecified())
}

/// Whether one of the two addresses would be an IPv4 address and the other one an IPv6 address, or IPv4 addresses are excluded
/// (`IPV6_V6ONLY`, which a bind to an IPv6 address sets too). The kernel has an error for each of these.
pub(super) fn mixes_families(fd: i32, s: &Socket, dest: IpAddr) -> bool {
    if s.domain() != libc::AF_INET6 {
        return false;
    }
    let own = bound_to(fd, s).map(|b| b.ip()).filter(|ip| !ip.is_unspecified());
    let differ = own.is_some_and(|own| rendezvous::destination(own).is_ipv4() != dest.is_ipv4());
    // A placeholder has the kernel's default where the program has set nothing.
    let excludes = || match s.opts.get(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) {
        Some(only) => only != 0,
        None => raw::getsockopt_int(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY).is_ok_and(|only| only != 0),
    };
    differ || (dest.is_ipv4() && excludes())
}

/// Binds the socket to a port now, so that the kernel can tell which listener of a reuseport group the connection is
/// for.
pub(super) fn choose(fd: i32, s: &Socket, ip: IpAddr, target: SocketAddr) -> Option<u64> {
    let port = match bound_to(fd, s).filter(|b| b.port() != 0) {
        Some(b) => b.port(),
        None => take_port(fd, s, ip).ok()?,
    };
    let member = owner::listener_cookie(SocketAddr::new(ip, port), target)?;
    s.member.store(member, Ordering::Relaxed);
    Some(member)
}

/// Whether another socket may be bound to the port of the connection, as SO_REUSEADDR on both allows. The kernel knows
/// that only if the connection's own descriptor holds the port.
pub(super) fn shares_port(s: &Socket) -> bool {
    s.opts.get(libc::SOL_SOCKET, libc::SO_REUSEADDR).is_some_and(|on| on != 0)
}

/// Takes the pair of addresses that a connection of the socket to `dest` would have, if other sockets may be bound to its
/// port. False: a connection in shared memory has that pair, here or in another process.
pub(super) fn take_pair(fd: i32, s: &Socket, dest: SocketAddr) -> bool {
    if s.has(PLACEHOLDER) || !shares_port(s) {
        return true;
    }
    let Some(bound) = bound_to(fd, s).filter(|b| b.port() != 0) else { return true };
    let target = SocketAddr::new(rendezvous::destination(dest.ip()), dest.port());
    let own = match bound.ip() {
        any if any.is_unspecified() => ports::local_source(target.ip(), time::coarse()),
        own => Some(rendezvous::destination(own)),
    };
    own.is_none_or(|own| s.pair_name.take(SocketAddr::new(own, bound.port()), target))
}

/// Gives a socket that is bound to a port on all addresses the one that its connection has, `local`: connect(2) does so,
/// after which the port is free on the other addresses. The kernel does not know of the connection, so a socket that is
/// bound to that address replaces the other one. If it cannot be made, the port stays taken on all of them. The caller
/// holds both direction locks.
pub(super) fn narrow(fd: i32, s: &Socket, local: SocketAddr) {
    // The processes that had the socket before a fork share the one that they have.
    if s.has(SHARED) {
        return;
    }
    let Ok(real) = raw::socket(s.domain(), libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) else { return };
    // A bind to one address of IPv6 sets IPV6_V6ONLY, which connect(2) leaves as it was.
    let only = raw::getsockopt_int(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
    let done = bind_beside(fd, s, real, local).and_then(|()| replace_everywhere(s, real)).and(only);
    let _ = raw::close(real);
    if let Ok(only) = done {
        let _g = s.meta.lock();
        s.opts.set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, only);
    }
}

/// Binds the socket `real` to `local` beside the socket `fd`, which has the port on all addresses, and gives it the options
/// of `s`.
pub(super) fn bind_beside(fd: i32, s: &Socket, real: i32, local: SocketAddr) -> Result<()> {
    s.apply_options(real);
    raw::fcntl(real, libc::F_SETFL, status_flags(s) as usize)?;
    let get = |name| raw::getsockopt_int(fd, libc::SOL_SOCKET, name);
    let (port, own) = (get(libc::SO_REUSEPORT)?, get(libc::SO_REUSEADDR)?);
    let set = |fd, name, on| raw::setsockopt_int(fd, libc::SOL_SOCKET, name, on);
    set(real, libc::SO_REUSEPORT, port)?;
    // Two sockets that both allow it may have one port (socket(7)). It is never free meanwhile.
    set(real, libc::SO_REUSEADDR, 1)?;
    set(fd, libc::SO_REUSEADDR, 1)?;
    let bound = with_address(local, s.domain(), |p, n| raw::bind(real, p, n));
    set(fd, libc::SO_REUSEADDR, own)?;
    set(real, libc::SO_REUSEADDR, own)?;
    bound
}

/// Reserves a local port that no other socket gets while the connection lives. The slot keeps it for its next
/// connections, or, beyond [`RESERVED_PORTS`], the connection's own descriptor holds it.
pub(super) fn reserve(fd: i32, s: &Socket, link: &Link, slot: usize, ip: IpAddr) -> Result<u16> {
    if s.has(PLACEHOLDER) && !shares_port(s) && may_keep_port(link) {
        match rendezvous::reserve_port(ip) {
            Ok((holder, port)) => {
                link.slots.keep_port(slot, reserved_fds::adopt(holder)?, port);
                return Ok(port);
            }
            // Without a further descriptor, the connection's own one holds the port.
            Err(Errno::MFILE | Errno::NFILE) => {}
            Err(e) => return Err(e),
        }
    }
    take_port(fd, s, ip)
}

/// Binds the kernel's own socket to a port.
fn take_port(fd: i32, s: &Socket, ip: IpAddr) -> Result<u16> {
    let real = !s.has(PLACEHOLDER);
    materialize(fd, s)?;
    let a = SocketAddr::new(ip, 0);
    let mut buf = [0u64; 4];
    let mut len = size_of_val(&buf) as u32;
    addr::write(a, s.domain(), buf.as_mut_ptr().cast(), &raw mut len);
    // With the option set the kernel would choose the port in its own connect(2), which is never called.
    let late = real && raw::getsockopt_int(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT) == Ok(1);
    let leave = |on| raw::setsockopt_int(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, on);
    if late {
        leave(0)?;
    }
    let bound = raw::bind(fd, buf.as_ptr().cast(), len);
    if late {
        leave(1)?;
    }
    bound?;
    addr::local_of(fd).map(|a| a.port()).filter(|p| *p != 0).ok_or(Errno::ADDRINUSE)
}

/// The reason that is reported when no port is free.
pub(super) fn no_port(e: Errno) -> Reason {
    match e {
        Errno::MFILE | Errno::NFILE => Reason::NoDescriptors,
        Errno::NOMEM | Errno(libc::ENOBUFS) => Reason::NoMemory,
        Errno::ADDRINUSE => Reason::NoPort,
        _ => Reason::Unsupported,
    }
}
