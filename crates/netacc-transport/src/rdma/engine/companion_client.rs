//! Client's host: how the companion connection of a queue pair is made, the TCP connection beside it
//! ([`companion`](crate::rdma::engine::companion)).
//!
//! The client tries the port that the server chose for companions. In a network that lets through what is documented and
//! nothing else, that port is closed; then the client asks by the queue pair whether it may come to the listener's own port,
//! P, which is open since programs connect there. Where P was the only way to a server, the next companion begins with it.
//!
//! At P the server's host knows the companion by what it says first, so this has to be there as soon as the program
//! accepts the connection: it goes with the handshake. The client's kernel has it before it connects ([`speak_first`]),
//! sends it with the first packet, which the server's kernel throws away there, and again with the packet that ends the
//! handshake. Where that is switched off (`net.ipv4.tcp_fastopen`), the kernel keeps that last packet back until there
//! are bytes to go with it ([`hold_back`]), and a companion that was connected without them is reset and made again.

use crate::rdma::engine::companion::{COMPANION_CONNECT, Companion, without_delay};
use crate::rdma::engine::qp::{QpRecord, tag};
use crate::rdma::engine::worker::Engine;
use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, IPPROTO_TCP, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM};
use netacc_sys::addr;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{raw, reserved_fds, time};
use netacc_wire::companion::{self as wire, HELLO, OwnPort, TOKEN, WELCOME};
use netacc_wire::frame::{Frame, Kind};

/// After this time (ns) a port that does not answer is taken for filtered, if another one is left.
const FILTERED: u64 = 1_000_000_000;
/// How often a companion is tried that was connected before it had said anything.
const TRIES: u32 = 2;
/// How many companions of that kind, which the server's program sees as connections that are reset at once, a process makes in
/// all. Only where `net.ipv4.tcp_fastopen` is off and the thread gets no processor for a fifth of a second are there any.
const MOST_EMPTY: u32 = 8;
/// How many there have been.
static EMPTY: AtomicU32 = AtomicU32::new(0);
/// Servers that are known to be filtered.
const KNOWN: usize = 256;

/// Where a companion is to be connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Port {
    /// The one that the server chose for companions.
    Chosen,
    /// The listener's own.
    Own,
}

impl Port {
    fn other(self) -> Port {
        match self {
            Port::Chosen => Port::Own,
            Port::Own => Port::Chosen,
        }
    }
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The server is asked whether the companion may come to its own port.
    Asking,
    Connecting(i32),
    /// The client has said whose companion it is, and the server has not answered.
    Introduced(i32),
}

/// A companion connection that is being made.
#[derive(Debug)]
pub(super) struct Attempt {
    token: [u8; TOKEN],
    /// The port that the server chose.
    chosen: u16,
    port: Port,
    /// The other port was tried before.
    last: bool,
    stage: Stage,
    /// Since when (ns) this port is tried.
    since: u64,
    tries: u32,
}

impl Attempt {
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
enum Why {
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

/// Says that a queue pair to `server` has no companion connection, mostly because of a packet filter. An operator hears of
/// that once, since each further queue pair says the same.
fn warn_of_none(server: SocketAddr, why: Why) {
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
fn socket_at(ip: IpAddr) -> Result<i32> {
    let fd = reserved_fds::raise(raw::socket(addr::domain(ip), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)?);
    // The port of one that connects need only be free towards its destination.
    let _ = raw::setsockopt_int(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
    without_delay(fd);
    let bound = addr::with(SocketAddr::new(ip, 0), |p, n| raw::bind(fd, p, n));
    bound.map(|()| fd).inspect_err(|_| reserved_fds::close(fd))
}

/// Has the kernel keep what is said on a socket that is about to connect, and connect when there is something: without
/// a cookie of the server's (tcp(7), `TCP_FASTOPEN_CONNECT`), which need not know anything of that.
fn speak_first(fd: i32) -> Result<()> {
    /// linux/tcp.h; since Linux 4.15.
    const TCP_FASTOPEN_NO_COOKIE: i32 = 34;
    raw::setsockopt_int(fd, IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE, 1)?;
    raw::setsockopt_int(fd, IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, 1)
}

/// Connects a socket, and says who it is for as early as the kernel lets us. Whether that was said.
fn open(fd: i32, there: SocketAddr, said: &[u8; HELLO]) -> Result<bool> {
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
fn hold_back(fd: i32) {
    let _ = raw::setsockopt_int(fd, IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 1);
}

/// Whether the handshake ended before there was anything to say, as far as the kernel's counters of packets tell.
fn was_too_slow(fd: i32) -> bool {
    /// Where `tcp_info` has them (linux/tcp.h): `tcpi_total_retrans`, `tcpi_segs_out`.
    const REPEATED: usize = 100;
    const SENT: usize = 136;
    let mut info = [0u8; 144];
    let mut len = info.len() as u32;
    if raw::getsockopt(fd, IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len).is_err() {
        return false;
    }
    let word = |at: usize| info.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u32::from_ne_bytes(*b));
    // The first packet of the handshake is one of them.
    word(SENT) > word(REPEATED).saturating_add(1)
}

/// Closes a connection so that the other side sees that nothing was said.
fn reset(fd: i32) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let value = core::ptr::from_ref(&linger).cast();
    let _ = raw::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, value, size_of::<libc::linger>() as u32);
    reserved_fds::close(fd);
}

impl Engine {
    /// The companion of queue pair `at` begins to be connected, if the server waits for it.
    pub(super) fn connect_companion(&mut self, at: usize, offered: wire::CompanionOffer) {
        let wire::CompanionOffer::At(chosen, token) = offered else { return };
        let Some(qp) = self.qps.get_mut(at) else { return };
        let Some((_, theirs)) = qp.ips else { return };
        let port = if self.companions.filtered.contains(&theirs) { Port::Own } else { Port::Chosen };
        let since = time::now();
        qp.companion =
            Companion::Connecting(Attempt { token, chosen, port, last: false, stage: Stage::Asking, since, tries: 0 });
        if !qp.parts(&mut self.devices).is_some_and(|(qp_index, _)| qp_index.keep()) {
            return self.drop_companion(at);
        }
        self.try_port(at);
    }

    fn attempt(&mut self, at: usize) -> Option<&mut Attempt> {
        match &mut self.qps.get_mut(at)?.companion {
            Companion::Connecting(attempt) => Some(attempt),
            _ => None,
        }
    }

    /// Where the companion is to be connected.
    fn destination(&self, at: usize) -> Option<(IpAddr, SocketAddr)> {
        let qp = self.qps.get(at)?;
        let (ours, theirs) = qp.ips?;
        let Companion::Connecting(attempt) = &qp.companion else { return None };
        let port = if attempt.port == Port::Own { qp.port } else { attempt.chosen };
        Some((ours, SocketAddr::new(theirs, port)))
    }

    fn try_port(&mut self, at: usize) {
        let Some(attempt) = self.attempt(at) else { return };
        attempt.since = time::now();
        match attempt.port {
            Port::Chosen => self.dial_companion(at),
            Port::Own => self.ask_for_own_port(at),
        }
    }

    fn ask_for_own_port(&mut self, at: usize) {
        let Some(qp) = self.qps.get_mut(at) else { return };
        // A queue pair that has failed cannot ask; and a process that is stalled over and over is not to show more.
        if !qp.is_up() || EMPTY.load(Ordering::Relaxed) >= MOST_EMPTY {
            return self.port_failed(at, Why::Error(Errno::TIMEDOUT));
        }
        let kind = Kind::OwnPort;
        qp.resets.push_back(Frame {
            kind,
            credits: 0,
            large: false,
            conn: 0,
            generation: 0,
            window: 0,
            acked: 0,
            next: 0,
        });
        if let Companion::Connecting(attempt) = &mut qp.companion {
            attempt.stage = Stage::Asking;
        }
        self.unstall(at);
    }

    /// The server says whether the companion may come to its own port. False: it was not asked.
    pub(super) fn own_port_answered(&mut self, at: usize, answer: OwnPort) -> bool {
        match self.attempt(at) {
            Some(Attempt { stage: Stage::Asking, port: Port::Own, .. }) => {}
            // It has been given up, or is there by the other port.
            _ => return true,
        }
        match answer {
            OwnPort::Come => self.dial_companion(at),
            no => self.port_failed(at, Why::Refused(no)),
        }
        true
    }

    fn dial_companion(&mut self, at: usize) {
        let Some((ours, there)) = self.destination(at) else { return };
        let name = u64::from(tag(&self.qps, at));
        let own = self.attempt(at).filter(|a| a.port == Port::Own).map(|a| wire::hello(&a.token));
        let done = socket_at(ours).and_then(|fd| {
            let begun = match own {
                Some(said) => {
                    hold_back(fd);
                    open(fd, there, &said)
                }
                None => match addr::with(there, |p, n| raw::connect(fd, p, n)) {
                    Ok(()) | Err(Errno::INPROGRESS) => Ok(false),
                    Err(e) => Err(e),
                },
            };
            let watched = begun.and_then(|said| {
                let (events, stage) =
                    if said { (EPOLLIN, Stage::Introduced(fd)) } else { (EPOLLOUT, Stage::Connecting(fd)) };
                self.companions.epoll_ctl(EPOLL_CTL_ADD, fd, events, name).map(|()| stage)
            });
            watched.inspect_err(|_| reserved_fds::close(fd))
        });
        match (done, self.attempt(at)) {
            (Ok(stage), Some(attempt)) => attempt.stage = stage,
            (Ok(Stage::Connecting(fd) | Stage::Introduced(fd)), None) => reserved_fds::close(fd),
            (Ok(Stage::Asking), None) => {}
            (Err(e), _) => self.port_failed(at, Why::Error(e)),
        }
    }

    /// The kernel has something to tell of a companion that is being made.
    pub(super) fn attempt_has_news(&mut self, at: usize) {
        match self.attempt(at).map(|a| a.stage) {
            Some(Stage::Connecting(fd)) => self.say_hello(at, fd),
            Some(Stage::Introduced(fd)) => self.hear_welcome(at, fd),
            Some(Stage::Asking) | None => {}
        }
    }

    /// It is connected, or is not.
    fn say_hello(&mut self, at: usize, fd: i32) {
        let name = u64::from(tag(&self.qps, at));
        let Some(attempt) = self.attempt(at) else { return };
        let failed = raw::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or(libc::EIO);
        if failed != 0 {
            return self.port_failed(at, Why::Error(Errno(failed)));
        }
        if attempt.port == Port::Own && was_too_slow(fd) {
            attempt.tries += 1;
            // Relaxed: nothing else depends on it.
            let again = EMPTY.fetch_add(1, Ordering::Relaxed) < MOST_EMPTY && attempt.tries < TRIES;
            attempt.stage = Stage::Asking;
            reset(fd);
            return if again { self.ask_for_own_port(at) } else { self.port_failed(at, Why::Error(Errno::TIMEDOUT)) };
        }
        let said = wire::hello(&attempt.token);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        attempt.stage = Stage::Introduced(fd);
        if raw::send(fd, said.as_ptr(), HELLO, flags) != Ok(HELLO)
            || self.companions.epoll_ctl(EPOLL_CTL_MOD, fd, EPOLLIN, name).is_err()
        {
            self.port_failed(at, Why::Error(Errno::IO));
        }
    }

    /// The server has answered, or the program that accepts connections there does not know the companion.
    fn hear_welcome(&mut self, at: usize, fd: i32) {
        let mut said = [0u8; WELCOME];
        let peek = libc::MSG_DONTWAIT | libc::MSG_PEEK;
        let got = raw::recv(fd, said.as_mut_ptr(), WELCOME, peek);
        let welcome = wire::welcome();
        match got {
            Err(Errno::AGAIN | Errno::INTR) => return,
            // The rest is on its way.
            Ok(n @ 1..WELCOME) if said.get(..n) == welcome.get(..n) => return,
            Ok(WELCOME) if said == welcome => {}
            Ok(0) => return self.port_failed(at, Why::Error(Errno::CONNRESET)),
            Err(e) => return self.port_failed(at, Why::Error(e)),
            Ok(_) => return self.port_failed(at, Why::Error(Errno::PROTO)),
        }
        let _ = raw::recv(fd, said.as_mut_ptr(), WELCOME, libc::MSG_DONTWAIT);
        self.note_way(at);
        self.companion_ready(at, fd);
    }

    /// A companion is there: the next one to this server goes the same way.
    fn note_way(&mut self, at: usize) {
        let Some((_, there)) = self.destination(at) else { return };
        let Some((port, last)) = self.attempt(at).map(|a| (a.port, a.last)) else { return };
        let known = self.companions.filtered.iter().position(|ip| *ip == there.ip());
        netacc_log::log!(Debug, "{there}: the companion TCP connection is there");
        match (port, known) {
            (Port::Own, None) if last && self.companions.filtered.len() < KNOWN => {
                self.companions.filtered.push(there.ip())
            }
            (Port::Chosen, Some(n)) if last => {
                self.companions.filtered.swap_remove(n);
            }
            _ => {}
        }
    }

    /// This port will not do: the other one is tried, unless it was before.
    fn port_failed(&mut self, at: usize, why: Why) {
        let Some((_, there)) = self.destination(at) else { return };
        let Some(attempt) = self.attempt(at) else { return };
        if let Some(fd) = attempt.fd() {
            reserved_fds::close(fd);
        }
        (attempt.stage, attempt.tries) = (Stage::Asking, 0);
        if core::mem::replace(&mut attempt.last, true) {
            warn_of_none(there, why);
            return self.drop_companion(at);
        }
        netacc_log::log!(Debug, "{there}: no companion TCP connection at this port ({why})");
        attempt.port = attempt.port.other();
        self.try_port(at);
    }

    /// A companion should be there by now, and is not.
    pub(super) fn companion_timed_out(&mut self, at: usize) {
        match self.qps.get(at) {
            Some(QpRecord { companion: Companion::Connecting(_), .. }) => {
                self.port_failed(at, Why::Error(Errno::TIMEDOUT))
            }
            _ => self.drop_companion(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let attempt =
            |port, last| Attempt { token: [0; TOKEN], chosen: 1, port, last, stage: Stage::Asking, since: 1, tries: 0 };
        for (port, last, timeout) in [
            (Port::Chosen, false, FILTERED),
            (Port::Chosen, true, COMPANION_CONNECT),
            (Port::Own, false, COMPANION_CONNECT),
        ] {
            assert!(!attempt(port, last).is_late(timeout + 1) && attempt(port, last).is_late(timeout + 2));
        }
    }
}
