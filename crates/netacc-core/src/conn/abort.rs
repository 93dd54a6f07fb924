//! connect(2) with AF_UNSPEC, or after the end of a connection: the socket is unconnected again.
//!
//! From then on it is the kernel's, which must show what a TCP socket shows after this: a pending
//! ECONNRESET if the connection was alive. So it gets a kernel socket that really was connected, to a
//! listener of our own, and really was given up.

use crate::epoll::paths;
use crate::fd::placeholder::replace_everywhere;
use crate::object::address::with_address;
use crate::object::socket::{CONNECTING, ConnState, NONBLOCK, PLACEHOLDER, REBOUND, Socket};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use libc::{SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM};
use netacc_sys::errno::Result;
use netacc_sys::{addr, raw};
use netacc_transport::Endpoint;
use netacc_transport::shm::ShmEndpoint;

/// Gives the connection up. The peer sees a reset, if there still was a connection.
pub fn abort(s: &'static Socket, ep: &'static ShmEndpoint) -> Result<()> {
    let alive = !ep.has_ended();
    let real = raw::socket(s.domain(), SOCK_STREAM | SOCK_CLOEXEC, 0)?;
    if alive {
        // Without a loopback address only the pending error will be missing.
        let _ = connect_and_give_up(s, real);
    }
    s.apply_options(real);
    let flags = if s.has(NONBLOCK) { libc::O_NONBLOCK } else { 0 };
    let _ = raw::fcntl(real, libc::F_SETFL, (libc::O_RDWR | flags) as usize);
    let guards = (s.rx.lock(), s.tx.lock());
    if !core::ptr::eq(s.endpoint().map_or(core::ptr::null(), core::ptr::from_ref), ep) {
        // Another thread was faster.
        drop(guards);
        return raw::close(real);
    }
    // The liveness socket under the numbers, if there is one, has to outlive what is done to the slot.
    ep.keep_liveness();
    let _ = replace_everywhere(s, real);
    s.drop_endpoint();
    // Before the state: a socket without a placeholder is not made real once more.
    s.set(PLACEHOLDER | CONNECTING | REBOUND, false);
    s.set_state(ConnState::Aborted);
    paths::to_kernel(s, ep);
    // Threads that wait for it look again, and find the kernel's socket.
    ep.poke_self();
    ep.close(alive);
    drop(guards);
    raw::close(real)
}

fn connect_and_give_up(s: &Socket, real: i32) -> Result<()> {
    let ip: IpAddr = if s.domain() == libc::AF_INET { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    let listener = raw::socket(s.domain(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)?;
    let done = with_address(SocketAddr::new(ip, 0), s.domain(), |p, len| raw::bind(listener, p, len))
        .and_then(|()| raw::listen(listener, 1))
        .and_then(|()| {
            let at = addr::local_of(listener).unwrap_or(SocketAddr::new(ip, 0));
            with_address(at, s.domain(), |p, len| raw::connect(real, p, len))
        });
    // AF_UNSPEC is 0.
    let nobody = [0u64; 4];
    let done = done.and_then(|()| raw::connect(real, nobody.as_ptr().cast(), 16));
    let _ = raw::close(listener);
    done
}

/// Reserves a port for a aborted socket that is to connect again. A socket that the application bound still has its
/// port, and the kernel refuses another one.
pub fn bind_anew(fd: i32, s: &Socket) {
    let any: IpAddr =
        if s.domain() == libc::AF_INET { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let _ = with_address(SocketAddr::new(any, 0), s.domain(), |p, len| raw::bind(fd, p, len));
}
