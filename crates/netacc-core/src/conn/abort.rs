//! connect(2) with AF_UNSPEC, or after the end of a connection: the socket is unconnected again.
//!
//! From then on it is a kernel socket, which must behave as a TCP socket does after this: it has a pending ECONNRESET
//! if the connection was alive. So the descriptor gets a kernel socket that really was connected, to a listener of our
//! own, and then disconnected.

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

/// Disconnects the socket. The peer sees a reset if the connection still existed.
pub fn abort(s: &'static Socket, ep: &'static ShmEndpoint) -> Result<()> {
    let alive = !ep.observed().has_ended();
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
        // Another thread has disconnected it first.
        drop(guards);
        return raw::close(real);
    }
    // A liveness socket under the numbers has to stay open until the slot is released.
    ep.keep_liveness();
    let _ = replace_everywhere(s, real);
    s.drop_endpoint();
    // The flag is cleared before the state changes, so that no thread materializes the socket once more.
    s.set(PLACEHOLDER | CONNECTING | REBOUND, false);
    s.set_state(ConnState::Aborted);
    paths::to_kernel(s, ep);
    // Threads that sleep on the connection wake, check it again, and find the kernel socket.
    ep.poke_self();
    ep.close(alive);
    s.pair_name.release();
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
    // A zeroed address has the family AF_UNSPEC, which is 0.
    let nobody = [0u64; 4];
    let done = done.and_then(|()| raw::connect(real, nobody.as_ptr().cast(), 16));
    let _ = raw::close(listener);
    done
}

/// Reserves a port for a disconnected socket that is about to connect again. A socket that the application bound still
/// has its port, and the kernel refuses another one.
pub fn bind_anew(fd: i32, s: &Socket) {
    let any: IpAddr =
        if s.domain() == libc::AF_INET { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let _ = with_address(SocketAddr::new(any, 0), s.domain(), |p, len| raw::bind(fd, p, len));
}
