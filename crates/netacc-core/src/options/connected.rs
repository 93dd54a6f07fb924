//! Values of the kernel's options on a connection over loopback. A connection in shared memory has no kernel socket to
//! ask, and an unconnected socket behaves differently: it has the initial buffer and segment sizes and no path MTU, and
//! succeeds where a connection returns an error.

use crate::object::reference::Ref;
use crate::object::socket::Socket;
use crate::outcome::Outcome;
use crate::switch::demote;
use core::ffi::c_void;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicU64, Ordering};
use libc::{AF_INET, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOCK_CLOEXEC, SOCK_STREAM, SOL_SOCKET};
use netacc_stats::Reason;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{addr, raw};

/// Options whose value is determined by the connection.
const INHERITED_OPTIONS: [(i32, i32); 6] = [
    (SOL_SOCKET, libc::SO_SNDBUF),
    (SOL_SOCKET, libc::SO_RCVBUF),
    (IPPROTO_TCP, libc::TCP_MAXSEG),
    (IPPROTO_TCP, libc::TCP_WINDOW_CLAMP),
    (IPPROTO_IP, libc::IP_MTU),
    (IPPROTO_IPV6, libc::IPV6_MTU),
];

/// The values per address family, in the order of [`INHERITED_OPTIONS`]; bit 32 marks a known one.
static ANSWERS: [[AtomicU64; INHERITED_OPTIONS.len()]; 2] =
    [const { [const { AtomicU64::new(0) }; INHERITED_OPTIONS.len()] }; 2];

const KNOWN: u64 = 1 << 32;

/// A kernel connection over loopback, which is closed on drop.
#[derive(Debug)]
pub struct Connection(i32);

impl Connection {
    /// Opens a socket that is connected to itself, which needs no second one.
    pub fn open(domain: i32) -> Result<Connection> {
        let ip: IpAddr = if domain == AF_INET { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
        let it = Connection(raw::socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0)?);
        // A linger time of 0 closes it by a reset, so that its port is free again at once.
        let linger = [1i32, 0];
        raw::setsockopt(it.0, SOL_SOCKET, libc::SO_LINGER, linger.as_ptr().cast(), size_of_val(&linger) as u32)?;
        addr::with(SocketAddr::new(ip, 0), |p, n| raw::bind(it.0, p, n))?;
        let own = addr::local_of(it.0).ok_or(Errno::NOTCONN)?;
        addr::with(own, |p, n| raw::connect(it.0, p, n))?;
        Ok(it)
    }

    /// The socket's descriptor.
    pub fn fd(&self) -> i32 {
        self.0
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let _ = raw::close(self.0);
    }
}

/// Whether the kernel validates a value of the option differently on a connection.
pub fn judges(level: i32, name: i32) -> bool {
    matches!(
        (level, name),
        (
            IPPROTO_TCP,
            libc::TCP_WINDOW_CLAMP
                | libc::TCP_FASTOPEN
                | libc::TCP_FASTOPEN_CONNECT
                | libc::TCP_FASTOPEN_NO_COOKIE
                | libc::TCP_MAXSEG
        ) | (IPPROTO_IPV6, libc::IPV6_V6ONLY)
    )
}

/// Sets TCP_ULP, which puts another protocol of the kernel (kTLS) on top of its TCP, so that the connection has to be
/// demoted.
///
/// TLS libraries try it on every connection: if the kernel refuses it on a connection of its own, this one is left in
/// the ring.
#[cold]
pub fn upper_layer(fd: i32, r: Ref<Socket>, p: *const c_void, len: u32) -> Outcome {
    let judge = Connection::open(r.obj.domain());
    if let Ok(judge) = &judge
        && let Err(e) = raw::setsockopt(judge.fd(), IPPROTO_TCP, libc::TCP_ULP, p, len)
    {
        return Outcome::Failed(e);
    }
    Outcome::pass_after(demote::demote(fd, r, Reason::Unsupported))
}

/// The value of an option that was never set, if it is determined by the connection. The kernel is asked once.
pub fn tells(domain: i32, level: i32, name: i32) -> Option<i32> {
    let at = INHERITED_OPTIONS.iter().position(|told| *told == (level, name))?;
    let [v4, v6] = &ANSWERS;
    let answers = if domain == AF_INET { v4 } else { v6 };
    // Relaxed: the value is one word, and every thread gets the same one from the kernel.
    let known = answers.get(at)?.load(Ordering::Relaxed);
    if known & KNOWN != 0 {
        return Some(known as u32 as i32);
    }
    read_options(domain, answers);
    let told = answers.get(at)?.load(Ordering::Relaxed);
    (told & KNOWN != 0).then_some(told as u32 as i32)
}

#[cold]
fn read_options(domain: i32, answers: &[AtomicU64; INHERITED_OPTIONS.len()]) {
    let Ok(connection) = Connection::open(domain) else { return };
    for ((level, name), answer) in INHERITED_OPTIONS.iter().zip(answers) {
        if let Ok(v) = raw::getsockopt_int(connection.fd(), *level, *name) {
            answer.store(KNOWN | u64::from(v as u32), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn answers_are_those_of_any_connection_over_loopback() {
        let l = TcpListener::bind("127.0.0.1:0").unwrap();
        let c = TcpStream::connect(l.local_addr().unwrap()).unwrap();
        // The size of segments depends on the window that each side has seen.
        assert!(tells(AF_INET, IPPROTO_TCP, libc::TCP_MAXSEG).is_some_and(|size| size > 536));
        for (level, name) in
            INHERITED_OPTIONS.into_iter().filter(|(level, _)| matches!(*level, SOL_SOCKET | IPPROTO_IP))
        {
            let real = raw::getsockopt_int(c.as_raw_fd(), level, name).unwrap();
            for _ in 0..2 {
                assert_eq!(tells(AF_INET, level, name), Some(real), "option {name} of level {level}");
            }
        }
        assert_eq!(tells(AF_INET, SOL_SOCKET, libc::SO_KEEPALIVE), None);
    }

    #[test]
    fn a_connection_is_refused_what_a_socket_is_not() {
        let c = Connection::open(AF_INET).unwrap();
        let clamp = |v| raw::setsockopt_int(c.fd(), IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, v);
        assert_eq!(clamp(0), Err(Errno::INVAL));
        assert_eq!(clamp(100_000), Ok(()));
    }
}
