//! Whether a server can be reached by RDMA at all, before anything is loaded or made for that: a datagram to the port
//! where it listens for RDMA, and one back (`netacc-wire/src/probe.rs`).
//!
//! To learn it from the connection manager takes libraries, memory and time, many times what a connect by TCP costs,
//! and a program that starts, asks a plain server one question and ends would have paid for nothing. So a client that
//! is refused goes by TCP at once. The connection manager is asked if an answer comes, and also if none does, since a
//! packet filter may know nothing of such datagrams.
//!
//! An answer proves only that the datagram has arrived at a listener. Everything else is proved by the queue pair.

use crate::limits::PROBES_PER_PASS;
use crate::num;
use crate::rdma::port_of;
use crate::shm::rendezvous::SourceProbe;
use core::ffi::c_void;
use core::net::{IpAddr, SocketAddr};
use core::ptr;
use libc::{MSG_DONTWAIT, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_NONBLOCK};
use netacc_stats::Reason;
use netacc_sys::addr;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{raw, reserved_fds, time};
use netacc_wire::probe::{NONCE, RDMA_PROBE, RdmaProbe};
use netacc_wire::qp_hello::Stranger;
use rustix::rand::{GetRandomFlags, getrandom};

/// What a server's host says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// A listener is there; our own address on the way.
    There(IpAddr),
    /// No listener is there, or none that understands us.
    Nobody(Reason),
    /// No answer came.
    Silence,
}

/// Asks `server`, and waits for at most `timeout` ns; uses the socket of a probe, if there was one.
pub(super) fn probe(server: SocketAddr, probe: Option<SourceProbe>, timeout: u64) -> Answer {
    let Some(port) = port_of(server.port()) else { return Answer::Nobody(Reason::PeerPlain) };
    let fresh = || raw::socket(addr::domain(server.ip()), SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    let Ok(fd) = probe.map_or_else(fresh, |probe| Ok(probe.into_socket())) else { return Answer::Silence };
    let fd = reserved_fds::raise(fd);
    let answer = exchange(fd, SocketAddr::new(server.ip(), port), time::now().saturating_add(timeout));
    reserved_fds::close(fd);
    match answer {
        Ok(answer) => answer,
        // icmp(7): no such port, in the answer to a datagram before.
        Err(Errno::CONNREFUSED) => Answer::Nobody(Reason::PeerPlain),
        Err(_) => Answer::Silence,
    }
}

fn exchange(fd: i32, there: SocketAddr, end: u64) -> Result<Answer> {
    let mut nonce = [0u8; NONCE];
    if getrandom(&mut nonce, GetRandomFlags::empty()) != Ok(NONCE) {
        return Ok(Answer::Silence);
    }
    addr::with(there, |p, n| raw::connect(fd, p, n))?;
    let question = RdmaProbe::Question(nonce).encode();
    raw::send(fd, question.as_ptr(), question.len(), MSG_DONTWAIT)?;
    loop {
        // One byte more than an answer has, so that a longer datagram is noticed.
        let mut said = [0u8; RDMA_PROBE + 1];
        let got = match raw::recv(fd, said.as_mut_ptr(), said.len(), MSG_DONTWAIT) {
            Ok(n) => said.get(..n).map(RdmaProbe::decode),
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(e) => return Err(e),
        };
        match got {
            Some(Ok(RdmaProbe::Answer(theirs))) if theirs == nonce => {
                return Ok(addr::local_of(fd).map_or(Answer::Silence, |ours| Answer::There(ours.ip())));
            }
            Some(Err((Stranger::Version, Some(RdmaProbe::Answer(theirs))))) if theirs == nonce => {
                return Ok(Answer::Nobody(Reason::PeerVersion));
            }
            // This is not an answer to this question.
            Some(_) => continue,
            None => {}
        }
        let left = end.saturating_sub(time::now());
        if left == 0 {
            return Ok(Answer::Silence);
        }
        let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut ts = libc::timespec {
            tv_sec: (left / 1_000_000_000).cast_signed(),
            tv_nsec: (left % 1_000_000_000).cast_signed(),
        };
        match raw::ppoll(&raw mut p, 1, &raw mut ts, ptr::null()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
}

/// A socket at which questions for a listener arrive.
pub(super) fn open_door(at: SocketAddr) -> Result<i32> {
    let (domain, v6) = (addr::domain(at.ip()), at.is_ipv6());
    let fd = reserved_fds::raise(raw::socket(domain, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)?);
    // The kernel tells which of our addresses was asked, since the answer has to come from there.
    let (level, name) =
        if v6 { (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO) } else { (libc::IPPROTO_IP, libc::IP_PKTINFO) };
    let opened = if v6 { raw::setsockopt_int(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1) } else { Ok(()) }
        .and_then(|()| raw::setsockopt_int(fd, level, name, 1))
        .and_then(|()| addr::with(at, |p, n| raw::bind(fd, p, n)));
    opened.map(|()| fd).inspect_err(|_| reserved_fds::close(fd))
}

/// Room for one control message with our address (ip(7), ipv6(7)): the header, and the larger of the two structures.
#[repr(C)]
#[derive(Default)]
struct Control {
    len: usize,
    level: i32,
    kind: i32,
    info: [u32; 6],
}

/// Answers the probes that wait at a door.
pub(super) fn answer(fd: i32) {
    for _ in 0..PROBES_PER_PASS {
        let mut said = [0u8; RDMA_PROBE + 1];
        let mut from = [0u64; 4];
        let mut control = Control::default();
        let mut iov = libc::iovec { iov_base: said.as_mut_ptr().cast(), iov_len: said.len() };
        let mut message = header(&mut from, &mut control, &mut iov);
        let n = match raw::recvmsg(fd, &raw mut message, MSG_DONTWAIT) {
            Ok(n) => n,
            Err(Errno::AGAIN) => return,
            // The error concerns an earlier answer.
            Err(_) => continue,
        };
        let question = match said.get(..n).map(RdmaProbe::decode) {
            Some(Ok(RdmaProbe::Question(nonce)) | Err((Stranger::Version, Some(RdmaProbe::Question(nonce))))) => nonce,
            _ => continue,
        };
        // The answer goes from the address that was asked, by whatever interface leads back. The number of the
        // interface where the question arrived is the first word of IPv4's structure, and the last of IPv6's.
        match (control.level, control.kind) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => control.info[0] = 0,
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => control.info[4] = 0,
            _ => continue,
        }
        let mut said = RdmaProbe::Answer(question).encode();
        iov = libc::iovec { iov_base: said.as_mut_ptr().cast(), iov_len: said.len() };
        message.msg_iov = &raw mut iov;
        let _ = raw::sendmsg(fd, &raw const message, MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    }
}

fn header(from: &mut [u64; 4], control: &mut Control, iov: &mut libc::iovec) -> libc::msghdr {
    libc::msghdr {
        msg_name: ptr::from_mut(from).cast::<c_void>(),
        msg_namelen: const { num::constant(size_of::<[u64; 4]>()) },
        msg_iov: iov,
        msg_iovlen: 1,
        msg_control: ptr::from_mut(control).cast::<c_void>(),
        msg_controllen: size_of::<Control>(),
        msg_flags: 0,
    }
}
