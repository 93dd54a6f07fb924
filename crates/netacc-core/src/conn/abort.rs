//! connect(2) with AF_UNSPEC, or after the end of a connection: the socket is unconnected again.
//!
//! From then on it is a kernel socket, which must behave as a TCP socket does after this: it has a pending ECONNRESET
//! if the connection was alive. So the descriptor gets a kernel socket that really was connected, to a listener of our
//! own, and then disconnected.

use crate::conn::source_port::bind_beside;
use crate::epoll::paths;
use crate::fd::placeholder::{replace_everywhere, set_status_flags};
use crate::fd::table;
use crate::object::address::with_address;
use crate::object::reference::Ref;
use crate::object::socket::{CONNECTING, ConnState, NAMED_ADDRESS, NAMED_PORT, PLACEHOLDER, REBOUND, Socket};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use libc::{SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{addr, raw};
use netacc_transport::Endpoint;
use netacc_transport::shm::ShmEndpoint;

/// Disconnects the socket. The peer sees a reset if the connection still existed. A reset that no call has reported yet stays
/// to be reported.
pub fn abort(r: Ref<Socket>, ep: &'static ShmEndpoint) -> Result<()> {
    let s = r.obj;
    let alive = !ep.observed().has_ended();
    let real = raw::socket(s.domain(), SOCK_STREAM | SOCK_CLOEXEC, 0)?;
    if ep.liveness.fd() < 0 {
        stay_bound(r, real);
    }
    if alive || ep.take_error() == libc::ECONNRESET {
        // Without a loopback address only the pending error will be missing.
        let _ = connect_and_give_up(s, real);
    }
    s.apply_options(real);
    set_status_flags(s, real, libc::O_RDWR);
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

/// Binds the kernel socket `real` to what the program has named, the address or the port, which a disconnected socket keeps.
fn stay_bound(r: Ref<Socket>, real: i32) {
    let s = r.obj;
    let named = s.flags() & (NAMED_ADDRESS | NAMED_PORT);
    let (Some(mut at), true) = (s.local.get(), named != 0 && !s.has(PLACEHOLDER)) else { return };
    if named & NAMED_ADDRESS == 0 {
        at.set_ip(any(s.domain()));
    }
    let done = if named & NAMED_PORT != 0 {
        table::reach(r).map_or(Err(Errno::BADF), |fd| bind_beside(fd, s, real, at))
    } else {
        with_address(SocketAddr::new(at.ip(), 0), s.domain(), |p, len| raw::bind(real, p, len))
    };
    if let Err(e) = done {
        netacc_log::log!(Debug, "fd {}: the disconnected socket is not bound to {at} ({e})", s.first_fd());
    }
}

fn any(domain: i32) -> IpAddr {
    if domain == libc::AF_INET { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
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
    // A bind to all addresses would take the one away that the application has named.
    let named = addr::local_of(fd).filter(|_| s.has(NAMED_ADDRESS));
    let ip = named.map_or_else(|| any(s.domain()), |a| a.ip());
    let _ = with_address(SocketAddr::new(ip, 0), s.domain(), |p, len| raw::bind(fd, p, len));
}
