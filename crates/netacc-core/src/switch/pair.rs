//! A connected pair of kernel sockets, for a connection that leaves shared memory.

use crate::object::address::with_address;
use crate::object::socket::Socket;
use crate::timeouts;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use libc::{SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{addr, raw, reserved_fds, time};
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

const LOOPBACK_CONNECT: i64 = time::ns(timeouts::LOOPBACK_CONNECT) as i64;

/// Number of bytes that a pair of UNIX sockets should hold in each direction: a ring, plus the bytes that the peer
/// writes before it sees that we leave it. The kernel doubles the size (socket(7)), of which its own bookkeeping takes
/// a part; usually 208 KiB are allowed.
const ROOM: i32 = 1 << 18;

/// Makes the two ends `local_end` and `peer_end`. They are TCP sockets with the host addresses of the connection, so
/// that a program without this library finds the kind of socket that it expects; the ports differ, since those of the
/// connection are in use. The ends are a pair of UNIX sockets if TCP sockets cannot be made, or if the peer's address
/// belongs to another host, which must not appear as the address of a local socket. UNIX sockets carry the bytes as
/// well, but have no reset.
pub fn connected(s: &Socket) -> Result<(OwnedFd, OwnedFd)> {
    tcp(s).or_else(|_| {
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Unlike TCP sockets, UNIX sockets never enlarge their buffers, and unread bytes count against the sender's
        // buffer.
        for fd in [&pair.0, &pair.1] {
            let _ = raw::setsockopt_int(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, ROOM);
        }
        Ok(pair)
    })
}

/// A descriptor of our own that is closed on drop, without libc.
struct Fd(i32);

impl Drop for Fd {
    fn drop(&mut self) {
        let _ = raw::close(self.0);
    }
}

impl Fd {
    fn into_owned(self) -> OwnedFd {
        let n = self.0;
        core::mem::forget(self);
        #[allow(unsafe_code)]
        // SAFETY: the descriptor is open, and `self`, which owned it, is forgotten.
        unsafe {
            OwnedFd::from_raw_fd(n)
        }
    }
}

fn tcp(s: &Socket) -> Result<(OwnedFd, OwnedFd)> {
    let ip = |a: Option<SocketAddr>| a.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |a| a.ip());
    let (local, peer) = (ip(s.local.get()), ip(s.peer.get()));
    let open = |flags: i32| raw::socket(s.domain(), SOCK_STREAM | SOCK_CLOEXEC | flags, 0).map(Fd);
    let bind = |fd: &Fd, ip: IpAddr| with_address(SocketAddr::new(ip, 0), s.domain(), |p, n| raw::bind(fd.0, p, n));
    let (listener, local_end) = (open(SOCK_NONBLOCK)?, open(SOCK_NONBLOCK)?);
    bind(&listener, peer)?;
    raw::listen(listener.0, 8)?;
    // The port of `local_end` only has to be unique together with this listener's. After the connection's end a bound
    // port stays in use for a minute, and a program that passes many connections on would make the kernel's search for
    // a free port longer and longer.
    let late = |on| raw::setsockopt_int(local_end.0, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, on);
    let _ = late(1);
    bind(&local_end, local)?;
    let at = addr::local_of(listener.0).ok_or(Errno::NOTCONN)?;
    match with_address(at, s.domain(), |p, n| raw::connect(local_end.0, p, n)) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(e) => return Err(e),
    }
    let _ = late(0);
    let mine = addr::local_of(local_end.0);
    loop {
        if raw::poll_one(listener.0, libc::POLLIN, LOOPBACK_CONNECT)? == 0 {
            return Err(Errno::AGAIN);
        }
        let remote = match raw::accept4(listener.0, core::ptr::null_mut(), core::ptr::null_mut(), SOCK_CLOEXEC) {
            Ok(fd) => Fd(fd),
            Err(Errno::AGAIN | Errno::INTR) => continue,
            Err(e) => return Err(e),
        };
        // Any process may connect to the listener while it is open, so only our own socket is accepted.
        if mine.is_some() && addr::peer_of(remote.0) == mine {
            raw::fcntl(local_end.0, libc::F_SETFL, libc::O_RDWR as usize)?;
            return Ok((local_end.into_owned(), remote.into_owned()));
        }
    }
}

/// Closes one end of the pair without libc.
pub fn discard(fd: OwnedFd) {
    reserved_fds::drop_raw(fd);
}
