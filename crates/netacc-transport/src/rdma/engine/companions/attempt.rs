//! Client's host: a companion connection that is being made: its port, how far it has come, and the calls that make the
//! companion's first bytes go with the handshake.

use crate::num;
use crate::rdma::engine::companions::watch::without_delay;
use crate::rdma::engine::state::{State, machine};
use crate::timeouts;
use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use libc::{IPPROTO_TCP, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM};
use netacc_sys::addr;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{raw, reserved_fds, time};
use netacc_wire::companion::{HELLO, OwnPort, TOKEN};

pub(in crate::rdma::engine) const COMPANION_CONNECT: u64 = time::ns(timeouts::COMPANION_CONNECT);
/// After this time (ns) a port that does not answer is taken for filtered, if another one is left.
pub(in crate::rdma::engine) const FILTERED: u64 = 1_000_000_000;
/// Number of attempts for a companion that was connected before it could send its token.
pub(in crate::rdma::engine) const TRIES: u32 = 2;
/// How many companions of that kind, which the server's program sees as connections that are reset at once, a process
/// makes in all. Only where `net.ipv4.tcp_fastopen` is off and the thread gets no processor for a fifth of a second are
/// there any.
pub(in crate::rdma::engine) const MOST_EMPTY: u32 = 8;
/// How many there have been.
pub(in crate::rdma::engine) static EMPTY: AtomicU32 = AtomicU32::new(0);
/// Servers that are known to be filtered.
pub(in crate::rdma::engine) const KNOWN: usize = 256;

/// Where a companion is to be connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rdma::engine) enum Port {
    /// The one that the server chose for companions.
    Chosen,
    /// The listener's own.
    Own,
}

impl Port {
    pub fn other(self) -> Port {
        match self {
            Port::Chosen => Port::Own,
            Port::Own => Port::Chosen,
        }
    }
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rdma::engine) enum Stage {
    /// There is no socket yet. For the listener's own port the server is asked whether the companion may come to it.
    Asking,
    Connecting(i32),
    /// The client has sent the companion's token, and the server has not answered.
    Introduced(i32),
}

machine! {
    Stage { Asking, Connecting, Introduced }
    * -> Asking: "the queue pair is up",
    Asking -> Connecting: "a socket connects",
    Asking -> Introduced: "a socket connects, and what it says goes with the handshake",
    Connecting -> Introduced: "it is connected, and says whose companion it is",
    Connecting -> Asking: "it failed, or was connected before it had said anything",
    Introduced -> Asking: "the server did not answer, or not as a companion's",
}

/// A companion connection that is being made.
#[derive(Debug)]
pub(in crate::rdma::engine) struct Attempt {
    pub token: [u8; TOKEN],
    /// The port that the server chose.
    pub chosen: u16,
    pub port: Port,
    /// The other port was tried before.
    pub last: bool,
    stage: Stage,
    /// Since when (ns) this port is tried.
    pub since: u64,
    pub tries: u32,
}

impl Attempt {
    /// An attempt that begins now at `port`; the server has chosen port `chosen` for companions.
    pub fn new(token: [u8; TOKEN], chosen: u16, port: Port) -> Attempt {
        Attempt { token, chosen, port, last: false, stage: Stage::Asking, since: time::now(), tries: 0 }
    }

    pub fn stage(&self) -> Stage {
        self.stage
    }

    pub fn set_stage(&mut self, to: Stage) {
        let chosen = self.chosen;
        self.stage.change(to, format_args!("companion connection, chosen port {chosen}"));
    }

    pub fn fd(&self) -> Option<i32> {
        match self.stage {
            Stage::Asking => None,
            Stage::Connecting(fd) | Stage::Introduced(fd) => Some(fd),
        }
    }

    /// Whether this port will not do.
    pub fn is_late(&self, now: u64) -> bool {
        // A program may take its time to accept what came to its own port.
        let timeout = if self.last || self.port == Port::Own { COMPANION_CONNECT } else { FILTERED };
        now.saturating_sub(self.since) > timeout
    }
}

/// Why there is no companion.
#[derive(Clone, Copy, Debug)]
pub(in crate::rdma::engine) enum Why {
    Error(Errno),
    Refused(OwnPort),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Error(e) => e.fmt(f),
            Why::Refused(OwnPort::Shared) => f.write_str("several processes accept connections there"),
            Why::Refused(OwnPort::Blocking) => f.write_str("the program calls a blocking accept after poll"),
            Why::Refused(OwnPort::Come | OwnPort::Closed) => f.write_str("the program accepts no connections there"),
        }
    }
}

/// Says that a queue pair to `server` has no companion connection, mostly because of a packet filter. An operator hears
/// of that once, since each further queue pair says the same.
pub(in crate::rdma::engine) fn warn_of_none(server: SocketAddr, why: Why) {
    static SAID: AtomicBool = AtomicBool::new(false);
    // Relaxed: nothing else depends on it.
    let again = SAID.swap(true, Ordering::Relaxed);
    let text =
        format_args!("{server}: no companion TCP connection ({why}); connections end where their queue pair fails");
    if again {
        netacc_log::log!(Info, "{text}");
    } else {
        netacc_log::log!(Warn, "{text}");
    }
}

/// A socket of our own at `ip`.
pub(in crate::rdma::engine) fn socket_at(ip: IpAddr) -> Result<i32> {
    let fd = reserved_fds::raise(raw::socket(addr::domain(ip), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)?);
    // The port of one that connects need only be free towards its destination.
    let _ = raw::setsockopt_int(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
    without_delay(fd);
    let bound = addr::with(SocketAddr::new(ip, 0), |p, n| raw::bind(fd, p, n));
    bound.map(|()| fd).inspect_err(|_| reserved_fds::close(fd))
}

/// Has the kernel keep what is said on a socket that is about to connect, and connect when there is something: without
/// a cookie of the server's (tcp(7), `TCP_FASTOPEN_CONNECT`), which need not know anything of that.
pub(in crate::rdma::engine) fn speak_first(fd: i32) -> Result<()> {
    /// linux/tcp.h; since Linux 4.15.
    const TCP_FASTOPEN_NO_COOKIE: i32 = 34;
    raw::setsockopt_int(fd, IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE, 1)?;
    raw::setsockopt_int(fd, IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, 1)
}

/// Connects a socket and sends its token as early as the kernel permits. Returns whether the token was sent.
pub(in crate::rdma::engine) fn open(fd: i32, there: SocketAddr, said: &[u8; HELLO]) -> Result<bool> {
    let first = speak_first(fd).is_ok();
    match addr::with(there, |p, n| raw::connect(fd, p, n)) {
        // Nothing has happened yet.
        Ok(()) if first => {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            match raw::send(fd, said.as_ptr(), HELLO, flags) {
                Ok(HELLO) => Ok(true),
                Err(Errno::INPROGRESS) => Ok(false),
                Ok(_) => Err(Errno::IO),
                Err(e) => Err(e),
            }
        }
        Ok(()) | Err(Errno::INPROGRESS) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Has the kernel keep back the acknowledgement that ends the handshake, some 200 ms, for the first bytes to go with it
/// (tcp(7): the option means something else to a listener).
pub(in crate::rdma::engine) fn hold_back(fd: i32) {
    let _ = raw::setsockopt_int(fd, IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 1);
}

/// Whether the handshake ended before there was anything to say, as far as the kernel's counters of packets tell.
pub(in crate::rdma::engine) fn was_too_slow(fd: i32) -> bool {
    /// Where `tcp_info` has them (linux/tcp.h): `tcpi_total_retrans`, `tcpi_segs_out`.
    const REPEATED: usize = 100;
    const SENT: usize = 136;
    const ALL: u32 = 144;
    let mut info = [0u8; ALL as usize];
    let mut len = ALL;
    if raw::getsockopt(fd, IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len).is_err() {
        return false;
    }
    let word = |at: usize| info.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u32::from_ne_bytes(*b));
    // The first packet of the handshake is one of them.
    word(SENT) > word(REPEATED).saturating_add(1)
}

/// Closes a connection so that the other side sees that no token was sent.
pub(in crate::rdma::engine) fn reset(fd: i32) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let value = core::ptr::from_ref(&linger).cast();
    let _ = raw::setsockopt(
        fd,
        libc::SOL_SOCKET,
        libc::SO_LINGER,
        value,
        const { num::constant(size_of::<libc::linger>()) },
    );
    reserved_fds::close(fd);
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_wire::companion as wire;
    use std::io::Read;
    use std::net::{Ipv4Addr, TcpListener};
    use std::vec::Vec;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn connected(fd: i32) {
        let mut p = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
        let mut ts = libc::timespec { tv_sec: 10, tv_nsec: 0 };
        assert_eq!(raw::ppoll(&raw mut p, 1, &raw mut ts, core::ptr::null()), Ok(1));
    }

    /// What is heard of a companion in the moment in which it is accepted.
    fn heard_at_once(listener: &TcpListener) -> Vec<u8> {
        let (mut accepted, _) = listener.accept().unwrap();
        accepted.set_nonblocking(true).unwrap();
        let mut heard = [0; HELLO];
        let n = accepted.read(&mut heard).unwrap_or(0);
        heard[..n].to_vec()
    }

    #[test]
    fn what_a_companion_says_comes_with_the_handshake() {
        let listener = TcpListener::bind((HERE, 0)).unwrap();
        let said = wire::hello(&[7; TOKEN]);
        for _ in 0..100 {
            let fd = socket_at(HERE).unwrap();
            if open(fd, listener.local_addr().unwrap(), &said) == Ok(true) {
                assert_eq!(heard_at_once(&listener), said);
            }
            reserved_fds::close(fd);
        }
    }

    #[test]
    fn what_is_held_back_comes_with_the_handshake() {
        let listener = TcpListener::bind((HERE, 0)).unwrap();
        for _ in 0..100 {
            let fd = socket_at(HERE).unwrap();
            hold_back(fd);
            let _ = addr::with(listener.local_addr().unwrap(), |p, n| raw::connect(fd, p, n));
            connected(fd);
            let said = wire::hello(&[7; TOKEN]);
            // Somebody else may have had the processor for a fifth of a second.
            let too_slow = was_too_slow(fd);
            assert_eq!(raw::send(fd, said.as_ptr(), HELLO, 0), Ok(HELLO));
            let heard = heard_at_once(&listener);
            assert!(too_slow || heard == said);
            reserved_fds::close(fd);
        }
    }

    #[test]
    fn a_handshake_that_has_ended_without_a_word_is_seen() {
        let listener = TcpListener::bind((HERE, 0)).unwrap();
        let fd = socket_at(HERE).unwrap();
        let _ = addr::with(listener.local_addr().unwrap(), |p, n| raw::connect(fd, p, n));
        connected(fd);
        assert!(was_too_slow(fd));
        reset(fd);
    }

    #[test]
    fn a_port_is_given_up_sooner_if_another_is_left() {
        let attempt = |port, last| Attempt { last, since: 1, ..Attempt::new([0; TOKEN], 1, port) };
        for (port, last, timeout) in [
            (Port::Chosen, false, FILTERED),
            (Port::Chosen, true, COMPANION_CONNECT),
            (Port::Own, false, COMPANION_CONNECT),
        ] {
            assert!(!attempt(port, last).is_late(timeout + 1) && attempt(port, last).is_late(timeout + 2));
        }
    }
}
