//! A queued connect that is made again by the kernel, with every byte that was written so far.

use crate::conn::beliefs::Beliefs;
use crate::epoll::paths;
use crate::fd::placeholder::{replace_everywhere, status_flags};
use crate::fd::table;
use crate::object::address::addr_of;
use crate::object::reference::Ref;
use crate::object::socket::{ConnState, PLACEHOLDER, Socket};
use crate::{process_mode, timeouts};
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicU64, Ordering};
use netacc_stats::{Reason, Transport, page};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::time::Deadline;
use netacc_sys::{raw, time};
use netacc_transport::shm::ShmEndpoint;

const REDISPATCH_LOCAL: i64 = time::ns(timeouts::REDISPATCH_LOCAL) as i64;

const REDISPATCH_REMOTE: i64 = time::ns(timeouts::REDISPATCH_REMOTE) as i64;

const REDISPATCH_SILENT_HOST: i64 = time::ns(timeouts::REDISPATCH_SILENT_HOST) as i64;

/// Time (ns) for which a host that did not answer is remembered.
const SPENT: u64 = 10_000_000_000;

netacc_sys::tables! {
    /// Hosts that did not answer.
    pub(super) static SILENT: Beliefs<8> = Beliefs::new();
}

/// Time (ns) for which a connect waits for the host.
fn patience_for(s: &Socket, host: IpAddr) -> i64 {
    if !s.endpoint().is_some_and(|ep| ep.side.is_remote()) {
        return REDISPATCH_LOCAL;
    }
    let silent = SILENT.holds(SocketAddr::new(host, 0), time::coarse(), SPENT);
    if silent { REDISPATCH_SILENT_HOST } else { REDISPATCH_REMOTE }
}

pub(super) fn note_silent(host: IpAddr) {
    SILENT.note(SocketAddr::new(host, 0), time::coarse());
}

const BYPASS_CONNECT: i64 = timeouts::BYPASS_CONNECT.as_nanos() as i64;

const KERNEL_QUEUE_FULL: u64 = time::ns(timeouts::KERNEL_QUEUE_FULL);

/// Time ([`time::now`]) at which a connect that bypasses a process last took too long in the kernel; 0: never.
static FULL_SINCE: AtomicU64 = AtomicU64::new(0);

/// Whether the kernel's queue of some listener was full just now.
pub(super) fn is_kernel_full() -> bool {
    let since = FULL_SINCE.load(Ordering::Relaxed);
    since != 0 && time::now().saturating_sub(since) < KERNEL_QUEUE_FULL
}

/// Connects the kernel socket `fd` if that completes at once. If not, the server will not accept it later, and the
/// connect may be made elsewhere.
pub(super) fn dial_or_not(s: &Socket, fd: i32, target: SocketAddr) -> Result<()> {
    let done = at_once_or_not(fd, |until| dial(s, fd, target, until));
    if done == Err(Errno::TIMEDOUT) {
        FULL_SINCE.store(time::now(), Ordering::Relaxed);
    }
    done
}

/// Connects the kernel socket `fd` by `dial`, which may take [`timeouts::BYPASS_CONNECT`]. After `ETIMEDOUT` the
/// connection does not come about later.
pub(crate) fn at_once_or_not(fd: i32, dial: impl FnOnce(Deadline) -> Result<()>) -> Result<()> {
    match dial(Deadline::after(BYPASS_CONNECT)) {
        Err(Errno::TIMEDOUT) => {}
        done => return done,
    }
    // The handshake must not complete between the look at the state and the caller's close, or the server would accept
    // a connection that nobody uses. Segments that are dropped before are sent again.
    ignore_segments(fd)?;
    if tcp_state(fd) == Some(TCP_ESTABLISHED) {
        return raw::setsockopt_int(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0);
    }
    // The caller closes the socket, which ends the pending connect: the kernel answers a late reply with a reset.
    Err(Errno::TIMEDOUT)
}

/// Has the kernel drop each segment that comes to the socket, by a filter of one instruction (`SO_ATTACH_FILTER` of
/// socket(7)): return the length 0.
fn ignore_segments(fd: i32) -> Result<()> {
    let mut drop_all = libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut drop_all };
    let len = size_of::<libc::sock_fprog>() as u32;
    raw::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, (&raw const program).cast(), len)
}

/// State of an established connection in TCP_INFO (linux/tcp.h).
const TCP_ESTABLISHED: u8 = 1;

fn tcp_state(fd: i32) -> Option<u8> {
    let (mut state, mut len) = (0u8, 1u32);
    raw::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut state).cast(), &raw mut len).ok().map(|()| state)
}

/// Makes the queued connect of `old` by the kernel and sends the bytes that were written to it.
pub(super) fn by_tcp(r: Ref<Socket>, old: &'static ShmEndpoint, bytes: &[u8], ended: bool, why: Reason) -> Result<()> {
    let s = r.obj;
    if process_mode::reason().is_some_and(|why| why != Reason::Operator) {
        // In this network namespace the address may belong to another host.
        return Err(Errno::ADDRNOTAVAIL);
    }
    let target = s.peer.get().ok_or(Errno::NOTCONN)?;
    let number = table::reach(r).ok_or(Errno::BADF)?;
    let until = Deadline::after(patience_for(s, target.ip()));
    // If the numbers refer to no real TCP socket, a new one replaces the file under all of them once it is connected.
    // Otherwise they refer to one socket, which holds the port that the application bound.
    if s.has(PLACEHOLDER) || old.liveness.fd() >= 0 {
        let real = raw::socket(s.domain(), libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)?;
        s.apply_options(real);
        let done = connect_and_send(s, real, target, bytes, ended, until).and_then(|()| replace_everywhere(s, real));
        if done.is_ok() {
            s.set(PLACEHOLDER, false);
        }
        let _ = raw::close(real);
        done?;
    } else {
        connect_and_send(s, number, target, bytes, ended, until)?;
    }
    now_tcp(s, old, why);
    Ok(())
}

/// Changes the state after the numbers of `s` have become a connected kernel socket.
pub(super) fn now_tcp(s: &'static Socket, old: &'static ShmEndpoint, why: Reason) {
    page().demoted(why);
    page().fallback(why);
    if let Some(e) = s.stats() {
        e.set_transport(Transport::Tcp);
        e.set_reason(why);
    }
    // The order matters: a thread that registers the socket with epoll meanwhile registers it with the kernel, where it
    // already is, and not with the ring that it leaves.
    s.set_state(ConnState::Tcp);
    paths::to_kernel(s, old);
    // Threads that sleep on the connection wake, check it again, and find the kernel socket.
    old.poke_self();
    s.detach();
}

/// Connects the kernel socket `fd` and sends the bytes that were written so far. The time is limited, since the caller
/// may be an epoll_wait.
fn connect_and_send(s: &Socket, fd: i32, target: SocketAddr, bytes: &[u8], ended: bool, until: Deadline) -> Result<()> {
    dial(s, fd, target, until)?;
    send_drained(s, fd, bytes, ended, until)
}

/// Connects the kernel socket `fd`, and leaves it non-blocking.
fn dial(s: &Socket, fd: i32, target: SocketAddr, until: Deadline) -> Result<()> {
    raw::fcntl(fd, libc::F_SETFL, (libc::O_RDWR | libc::O_NONBLOCK) as usize)?;
    let (mut buf, mut len) = ([0u64; 4], 32u32);
    addr_of(target, s.domain(), &mut buf, &mut len);
    await_connected(fd, raw::connect(fd, buf.as_ptr().cast(), len), until)
}

/// Waits until the non-blocking socket `fd` is connected, whose connect(2) has returned `begun`.
pub(crate) fn await_connected(fd: i32, begun: Result<()>, until: Deadline) -> Result<()> {
    match begun {
        Ok(()) => {}
        Err(Errno::INPROGRESS) => writable(fd, until)?,
        Err(e) => return Err(e),
    }
    match raw::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_ERROR)? {
        0 => Ok(()),
        e => Err(Errno(e)),
    }
}

/// Sends the bytes that were written so far by a connected socket, and sets the application's flags on it.
pub(super) fn send_drained(s: &Socket, fd: i32, bytes: &[u8], ended: bool, until: Deadline) -> Result<()> {
    send_all(s, fd, bytes, until)?;
    if ended {
        raw::shutdown(fd, libc::SHUT_WR)?;
    }
    raw::fcntl(fd, libc::F_SETFL, status_flags(s) as usize).map(drop)
}

fn send_all(s: &Socket, fd: i32, mut bytes: &[u8], until: Deadline) -> Result<()> {
    let buffer = |size: i32| raw::setsockopt_int(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, size);
    let mut widened = false;
    while !bytes.is_empty() {
        match raw::send(fd, bytes.as_ptr(), bytes.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
            Ok(n) => bytes = bytes.get(n..).unwrap_or(&[]),
            Err(Errno::INTR) => {}
            // The server may not have accepted yet, so that no process reads: the kernel's buffer must hold all bytes.
            // The kernel doubles the requested size, which covers its own bookkeeping.
            Err(Errno::AGAIN) if !widened => {
                widened = true;
                buffer(bytes.len().min(1 << 20) as i32 * 2)?;
            }
            Err(Errno::AGAIN) => writable(fd, until)?,
            Err(e) => return Err(e),
        }
    }
    // For later bytes the size that the application requested applies again; the kernel doubles it (socket(7)).
    match s.opts.get(libc::SOL_SOCKET, libc::SO_SNDBUF) {
        Some(n) if widened => buffer(n / 2),
        _ => Ok(()),
    }
}

/// Waits until the kernel socket accepts bytes, or has an error.
fn writable(fd: i32, until: Deadline) -> Result<()> {
    loop {
        match raw::poll_one(fd, libc::POLLOUT, until.left()) {
            Ok(0) => return Err(Errno::TIMEDOUT),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
}
