//! Options whose answer is that of a kernel socket of the connection's own, which it does not have: `SO_COOKIE`, the
//! control messages of `IP_PKTOPTIONS`, and `TCP_INFO`.

use crate::fd::placeholder::materialize;
use crate::object::listener::Listener;
use crate::object::reference::Ref;
use crate::object::socket::{PLACEHOLDER, Socket};
use crate::outcome::Outcome;
use crate::switch::{pair, promote};
use core::ffi::c_void;
use core::sync::atomic::Ordering;
use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOCK_CLOEXEC, SOCK_STREAM, SOL_SOCKET};
use netacc_sys::errno::Result;
use netacc_sys::raw;
use netacc_transport::shm::Side;
use rustix::fd::AsRawFd;

/// Whether the option is SO_COOKIE of a socket whose kernel socket may change, or has changed since the program has read
/// it.
pub(super) fn has_cookie(s: &Socket, level: i32, name: i32) -> bool {
    (level, name) == (SOL_SOCKET, libc::SO_COOKIE) && (!s.is_kernels() || s.cookie.load(Ordering::Relaxed) != 0)
}

/// Whether there is less room than the option needs: the kernel refuses that before it looks at anything else.
pub(super) fn is_too_short(level: i32, name: i32, room: u32) -> bool {
    (level, name) == (SOL_SOCKET, libc::SO_COOKIE) && (room as usize) < size_of::<u64>()
}

/// Whether the option gives control messages about packets.
pub(super) fn is_about_packets(level: i32, name: i32) -> bool {
    matches!((level, name), (IPPROTO_IP, libc::IP_PKTOPTIONS) | (IPPROTO_IPV6, libc::IPV6_2292PKTOPTIONS))
}

/// Returns the control messages that a TCP connection over loopback with the options of `s` has. They are those of its
/// handshake: TOS and TTL, the address, the interface.
#[cold]
pub(super) fn packet_options(s: &Socket, level: i32, name: i32, val: *mut c_void, len: *mut u32) -> Result<()> {
    let (connecting, accepted) = pair::connected(s)?;
    let is_server = s.endpoint().is_some_and(|ep| ep.side.link().side() == Side::Server);
    let like = if is_server { &accepted } else { &connecting };
    s.apply_options(like.as_raw_fd());
    let done = raw::getsockopt(like.as_raw_fd(), level, name, val, len);
    pair::discard(connecting);
    pair::discard(accepted);
    done
}

/// The number by which the kernel tells the socket from all others (socket(7)). It stays the same when the connection
/// changes its path. Of a connection that several processes have, the liveness socket under its numbers gives it, which is one
/// file for all of them. A socket whose numbers refer to a file that other sockets refer to as well gets the number of a
/// kernel socket that is made and closed: the kernel gives it to no other one.
pub(super) fn cookie(fd: i32, s: &Socket) -> Result<u64> {
    let known = s.cookie.load(Ordering::Relaxed);
    if known != 0 {
        return Ok(known);
    }
    if s.has(PLACEHOLDER) && !s.is_shm() {
        materialize(fd, s)?;
    }
    let own = !s.has(PLACEHOLDER) || s.endpoint().is_some_and(|ep| ep.liveness.fd() >= 0);
    let fresh = if own { cookie_of(fd)? } else { fresh_cookie(s.domain())? };
    // Relaxed: the word stands for itself. Of two threads that ask at once the first one decides.
    Ok(s.cookie.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed).map_or_else(|first| first, |_| fresh))
}

fn fresh_cookie(domain: i32) -> Result<u64> {
    let fd = raw::socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0)?;
    let cookie = cookie_of(fd);
    let _ = raw::close(fd);
    cookie
}

fn cookie_of(fd: i32) -> Result<u64> {
    let (mut cookie, mut len) = (0u64, size_of::<u64>() as u32);
    raw::getsockopt(fd, SOL_SOCKET, libc::SO_COOKIE, (&raw mut cookie).cast(), &raw mut len)?;
    Ok(cookie)
}

/// Returns TCP_INFO of a listener or a candidate. An end that the kernel reports may be the peer's switch: with `None`, the caller
/// answers for the ring, or for a socket that is no candidate.
///
/// # Safety
/// `val` and `len` are the application's result buffer.
#[cold]
#[allow(unsafe_code)]
pub(super) unsafe fn info_by_kernel(fd: i32, r: Ref<Socket>, val: *mut c_void, len: *mut u32) -> Option<Outcome> {
    const ESTABLISHED: u8 = 1;
    if let Some(l) = r.obj.listener() {
        return Some(info_of_listener(fd, l, val, len));
    }
    if !r.obj.is_candidate() {
        return None;
    }
    if let Err(e) = raw::getsockopt(fd, IPPROTO_TCP, libc::TCP_INFO, val, len) {
        return Some(Outcome::Failed(e));
    }
    // SAFETY: the kernel wrote `*len` bytes; tcpi_state is the first.
    let ended = unsafe { core::ptr::read_unaligned(len) > 0 && *val.cast::<u8>() != ESTABLISHED };
    (!ended || !promote::advance(fd, r)).then_some(Outcome::Done(0))
}

/// Returns TCP_INFO of a listener, whose `tcpi_unacked` is the number of connects that wait there: the kernel counts those in
/// its own queue.
#[cold]
#[allow(unsafe_code)]
fn info_of_listener(fd: i32, l: &'static Listener, val: *mut c_void, len: *mut u32) -> Outcome {
    const WAITING: usize = core::mem::offset_of!(libc::tcp_info, tcpi_unacked);
    let done = raw::getsockopt(l.kernel_fd(fd), IPPROTO_TCP, libc::TCP_INFO, val, len);
    // SAFETY: the kernel wrote `*len`.
    if done.is_ok() && unsafe { core::ptr::read_unaligned(len) } as usize >= WAITING + size_of::<u32>() {
        // A process that does not accept takes up no client, which would go on to send its connects here.
        if l.servers.include_this() {
            l.take_links();
        }
        let waiting = {
            let _g = l.lock.lock();
            l.links().filter(|link| link.has_queued()).filter_map(|link| Some(link.segment()?.queued() as u32)).sum()
        };
        // SAFETY: the kernel wrote `*len` bytes, of which these are four.
        unsafe {
            let p = val.byte_add(WAITING).cast::<u32>();
            p.write_unaligned(p.read_unaligned().saturating_add(waiting));
        }
    }
    done.into()
}

/// Fills in the kernel's TCP_INFO of the socket `fd`, with the state of the connection that it represents.
#[allow(unsafe_code)]
pub(super) fn tcp_info(fd: i32, s: &Socket, val: *mut c_void, len: *mut u32) -> Outcome {
    let done = raw::getsockopt(fd, IPPROTO_TCP, libc::TCP_INFO, val, len);
    if done.is_ok()
        // SAFETY: the kernel wrote `*len`.
        && unsafe { core::ptr::read_unaligned(len) } > 0
        && let Some(ep) = s.endpoint()
    {
        // SAFETY: the kernel wrote `*len` bytes; tcpi_state is the first.
        unsafe { *val.cast::<u8>() = ep.tcp_state() };
    }
    done.into()
}
