//! getsockopt(2) and setsockopt(2): options are applied to the ring, or remembered and returned as the kernel would.

use crate::fd::placeholder::{materialize, template};
use crate::fd::table;
use crate::listen::opening;
use crate::object::address::addr_of;
use crate::object::reference::Ref;
use crate::object::socket::{LINGER_RESET, PLACEHOLDER, Path, Socket};
use crate::options::connected::Connection;
use crate::options::remember::remember;
use crate::options::values::{give, give_int, value};
use crate::options::{connected, cork, kernel_options, own_answers};
use crate::outcome::Outcome;
use crate::switch::{demote, promote};
use crate::wait::end_look::look_for_end;
use core::ffi::c_void;
use core::sync::atomic::Ordering;
use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET};
use netacc_stats::Reason;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{SharedCell, raw, user};
use netacc_transport::Endpoint;

/// TCP_ZEROCOPY_RECEIVE of linux/tcp.h; the libc crate does not define it.
const TCP_ZEROCOPY_RECEIVE: i32 = 35;

/// The accepted range of an option whose value is stored unchanged (tcp(7), socket(7)).
fn plain_range(level: i32, name: i32) -> Option<core::ops::RangeInclusive<i32>> {
    const ANY: core::ops::RangeInclusive<i32> = i32::MIN..=i32::MAX;
    Some(match (level, name) {
        (IPPROTO_TCP, libc::TCP_NODELAY | libc::TCP_CORK | libc::TCP_QUICKACK) => ANY,
        (IPPROTO_TCP, libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL) => 1..=32767,
        (IPPROTO_TCP, libc::TCP_KEEPCNT) => 1..=127,
        (IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => 0..=i32::MAX,
        (SOL_SOCKET, libc::SO_KEEPALIVE | libc::SO_REUSEADDR) => ANY,
        _ => return None,
    })
}

/// Whether the option reads back as 0 or 1.
fn boolean(level: i32, name: i32) -> bool {
    matches!(
        (level, name),
        (IPPROTO_TCP, libc::TCP_NODELAY | libc::TCP_CORK | libc::TCP_QUICKACK)
            | (SOL_SOCKET, libc::SO_KEEPALIVE | libc::SO_REUSEADDR)
    )
}

/// setsockopt(2).
///
/// # Safety
/// `p` is valid for `len` bytes.
#[allow(unsafe_code)]
pub unsafe fn set(fd: i32, level: i32, name: i32, p: *const c_void, len: u32) -> Outcome {
    let Some(r) = table::socket(fd) else { return Outcome::Pass };
    let s = r.obj;
    if s.is_candidate() && not_followed(level, name) {
        promote::given_up(fd);
    }
    // Read before the path, since a promotion may be in progress.
    let candidate = s.is_candidate();
    let path = s.path();
    let ours = path == Path::Shm || (path == Path::New && s.has(PLACEHOLDER));
    if !(ours || candidate || path == Path::New || path == Path::Listener) {
        return Outcome::Pass;
    }
    if (level, name) == (IPPROTO_IPV6, libc::IPV6_ADDRFORM) && path == Path::Shm && s.domain() == libc::AF_INET6 {
        // SAFETY: the caller guarantees pointers that are valid for the given lengths.
        return unsafe { to_ipv4(fd, r, p, len) }.into();
    }
    if path == Path::Shm && (level, name) == (IPPROTO_TCP, libc::TCP_ULP) {
        return connected::upper_layer(fd, r, p, len);
    }
    // SAFETY: the caller guarantees pointers that are valid for the given lengths.
    if let Some(done) = unsafe { set_own(s, level, name, p, len) } {
        if path == Path::Shm
            && level == IPPROTO_TCP
            && matches!(name, libc::TCP_CORK | libc::TCP_NODELAY)
            && done.is_ok()
        {
            cork::set(r, name);
        }
        // A real socket gets the value as well, and a placeholder when it is materialized.
        return if ours || done.is_err() { done.into() } else { Outcome::Pass };
    }
    if by_kernel(level, name) && path != Path::Listener {
        return Outcome::pass_after(demote::demote(fd, r, Reason::Unsupported));
    }
    if path != Path::Shm {
        let done = set_by_kernel(fd, s, (level, name), p, len);
        if done.is_ok() && path == Path::Listener && kernel_options::matter(s, fd) {
            opening::abandon(fd, s);
        }
        return done.into();
    }
    // SAFETY: the caller guarantees pointers that are valid for the given lengths.
    match unsafe { set_accelerated(s, level, name, p, len) } {
        Ok(()) if kernel_options::concerns(level, name, true) => {
            Outcome::pass_after(demote::demote(fd, r, Reason::Packets))
        }
        done => done.into(),
    }
}

/// Sets an option of a socket that is not in a ring, and remembers it.
fn set_by_kernel(fd: i32, s: &'static Socket, (level, name): (i32, i32), p: *const c_void, len: u32) -> Result<()> {
    materialize(fd, s)?;
    raw::setsockopt(fd, level, name, p, len)?;
    if !kernel_options::is_write_only(level, name) {
        remember(s, fd, level, name);
    }
    if kernel_options::concerns(level, name, false) {
        kernel_options::noted(s, level, name);
    }
    Ok(())
}

/// Whether an option changes the kernel's stream, its packets or its errors, so that a connection with it must not
/// switch to a ring.
fn not_followed(level: i32, name: i32) -> bool {
    kernel_options::concerns(level, name, true)
        || by_kernel(level, name)
        || matches!((level, name), (IPPROTO_TCP, libc::TCP_ULP) | (IPPROTO_IPV6, libc::IPV6_ADDRFORM))
}

/// Whether only the kernel supports the option: zero-copy completions, and the peek offset.
fn by_kernel(level: i32, name: i32) -> bool {
    level == SOL_SOCKET && matches!(name, libc::SO_ZEROCOPY | libc::SO_PEEK_OFF)
}

/// Sets an option that the socket layer implements. `None`: the option is none of these.
///
/// # Safety
/// `p` is valid for `len` bytes.
#[allow(unsafe_code)]
unsafe fn set_own(s: &Socket, level: i32, name: i32, p: *const c_void, len: u32) -> Option<Result<()>> {
    match (level, name) {
        (SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) => {
            // SAFETY: the caller guarantees pointers that are valid for the given lengths.
            let tv = match unsafe { value::<libc::timeval>(p, len) } {
                Ok(tv) => tv,
                Err(e) => return Some(Err(e)),
            };
            if !(0..1_000_000).contains(&tv.tv_usec) {
                return Some(Err(Errno(libc::EDOM)));
            }
            let cell = if name == libc::SO_RCVTIMEO { &s.rcvtimeo } else { &s.sndtimeo };
            // For the kernel a negative time means no wait; 1 ns is the nearest value here.
            let ns = if tv.tv_sec < 0 {
                1
            } else {
                let whole = tv.tv_sec.checked_mul(1_000_000_000);
                // More than the clock can count is no limit.
                whole.and_then(|ns| ns.checked_add(in_ticks(tv.tv_usec) * 1000)).unwrap_or(0)
            };
            cell.store(ns as u64, Ordering::Relaxed);
            Some(Ok(()))
        }
        (SOL_SOCKET, libc::SO_LINGER) => {
            // SAFETY: the caller guarantees pointers that are valid for the given lengths.
            let [on, secs] = match unsafe { value::<[i32; 2]>(p, len) } {
                Ok(v) => v,
                Err(e) => return Some(Err(e)),
            };
            linger(s, on != 0, secs);
            Some(Ok(()))
        }
        _ => {
            let range = plain_range(level, name)?;
            // SAFETY: the caller guarantees pointers that are valid for the given lengths.
            let v = match unsafe { value::<i32>(p, len) } {
                Ok(v) => v,
                Err(e) => return Some(Err(e)),
            };
            if !range.contains(&v) {
                return Some(Err(Errno::INVAL));
            }
            let v = if boolean(level, name) { i32::from(v != 0) } else { v };
            let late = (level, name) == (IPPROTO_TCP, libc::TCP_QUICKACK) && after_end(s);
            let v = if late { v | QUICK_LATE } else { v };
            let _g = s.meta.lock();
            Some(if s.opts.set(level, name, v) { Ok(()) } else { Err(Errno::NOMEM) })
        }
    }
}

/// Sets SO_LINGER. For the kernel a negative time is its longest one, which does not fit into the answer, so that
/// getsockopt(2) shows the lower half of that number. The kernel keeps the time when lingering is switched off, which
/// socket(7) does not mention.
fn linger(s: &Socket, on: bool, secs: i32) {
    let kept = s.linger.load(Ordering::Relaxed) & u64::from(u32::MAX);
    let secs = if secs < 0 { (i64::MAX / (1_000_000 / in_ticks(1))) as i32 } else { secs };
    let word = if on { 1 << 32 | u64::from(secs as u32) } else { kept };
    s.linger.store(word, Ordering::Relaxed);
    s.set(LINGER_RESET, on && secs == 0);
}

/// Rounds microseconds up to whole ticks of the kernel's clock, as the kernel does.
fn in_ticks(usec: i64) -> i64 {
    static TICK: SharedCell<u32> = SharedCell::<u32>::new(0);
    let mut tick = TICK.get();
    if tick == 0 {
        tick = kernel_tick().unwrap_or(1).max(1);
        TICK.set(tick);
    }
    let tick = i64::from(tick);
    (usec + tick - 1) / tick * tick
}

/// The length of a tick of the kernel's clock (microseconds), to which the kernel rounds a time-out of 1 microsecond.
fn kernel_tick() -> Result<u32> {
    let fd = raw::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)?;
    let mut tv = libc::timeval { tv_sec: 0, tv_usec: 1 };
    let mut len = size_of::<libc::timeval>() as u32;
    let (name, p) = (libc::SO_RCVTIMEO, &raw mut tv);
    let asked = raw::setsockopt(fd, SOL_SOCKET, name, p.cast_const().cast(), len)
        .and_then(|()| raw::getsockopt(fd, SOL_SOCKET, name, p.cast(), &raw mut len));
    let _ = raw::close(fd);
    asked.map(|()| tv.tv_usec as u32)
}

/// Sets any other option of an accelerated connection: the kernel validates the value on another socket, and the
/// resulting value is remembered.
///
/// # Safety
/// `p` is valid for `len` bytes.
#[allow(unsafe_code)]
unsafe fn set_accelerated(s: &Socket, level: i32, name: i32, p: *const c_void, len: u32) -> Result<()> {
    let connection = if connected::judges(level, name) { Connection::open(s.domain()).ok() } else { None };
    if let Some(judge) = connection {
        return judged(s, judge.fd(), level, name, p, len);
    }
    let judge = raw::socket(s.domain(), libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)?;
    let done = judged(s, judge, level, name, p, len);
    let _ = raw::close(judge);
    done
}

/// Sets the value on the kernel socket `judge`, and remembers the value that this socket then has.
fn judged(s: &Socket, judge: i32, level: i32, name: i32, p: *const c_void, len: u32) -> Result<()> {
    raw::setsockopt(judge, level, name, p, len)?;
    // A value on which a connection has agreed with its peer does not change.
    if (level, name) != (IPPROTO_TCP, libc::TCP_MAXSEG) && !kernel_options::is_write_only(level, name) {
        remember(s, judge, level, name);
    }
    Ok(())
}

/// Sets IPV6_ADDRFORM, which turns an IPv6 socket whose peer has an IPv4 address into an IPv4 one. The kernel does so
/// with the socket to which the connection is demoted.
///
/// # Safety
/// `p` is valid for `len` bytes.
#[cold]
#[allow(unsafe_code)]
unsafe fn to_ipv4(fd: i32, r: Ref<Socket>, p: *const c_void, len: u32) -> Result<()> {
    let s = r.obj;
    // SAFETY: the caller guarantees pointers that are valid for the given lengths.
    if unsafe { value::<i32>(p, len) }? != libc::AF_INET {
        return Err(Errno::INVAL);
    }
    if !s.peer.get().is_some_and(|a| a.ip().to_canonical().is_ipv4()) {
        return Err(Errno(libc::EADDRNOTAVAIL));
    }
    demote::demote(fd, r, Reason::Unsupported)?;
    raw::setsockopt(fd, IPPROTO_IPV6, libc::IPV6_ADDRFORM, p, len)?;
    s.became_ipv4();
    Ok(())
}

/// The address family of the packets that the kernel would use: an IPv6 socket may have an IPv4 peer.
fn family(s: &Socket, level: i32) -> i32 {
    let mapped = level != IPPROTO_IPV6 && s.peer.get().is_some_and(|a| a.ip().to_canonical().is_ipv4());
    if mapped { libc::AF_INET } else { s.domain() }
}

/// The value of an option that a connection over loopback between the same addresses has. The path of a connection to a
/// mapped IPv4 address is one of IPv4, whichever of the two options asks for its MTU.
fn as_on_loopback(s: &Socket, level: i32, name: i32) -> Option<i32> {
    let asks_mtu = (level, name) == (IPPROTO_IPV6, libc::IPV6_MTU);
    let (level, name) =
        if asks_mtu && family(s, IPPROTO_IP) == libc::AF_INET { (IPPROTO_IP, libc::IP_MTU) } else { (level, name) };
    connected::tells(family(s, level), level, name)
}

/// Returns SO_PEERNAME, the peer's address. It is an error to request more bytes than the address has.
///
/// # Safety
/// `val` and `len` are the application's, `len` in memory that can be written.
#[cold]
#[allow(unsafe_code)]
unsafe fn peer_name(s: &Socket, val: *mut c_void, len: *mut u32) -> Result<()> {
    let peer =
        s.peer.get().filter(|_| !s.endpoint().is_some_and(|e| e.observed().has_ended())).ok_or(Errno::NOTCONN)?;
    let (mut name, mut there) = ([0u64; 4], 32);
    addr_of(peer, s.domain(), &mut name, &mut there);
    // SAFETY: the caller guarantees pointers that are valid for the given lengths.
    unsafe {
        if len.read_unaligned() > there {
            return Err(Errno::INVAL);
        }
        give(name.as_ptr().cast(), there as usize, val, len)
    }
}

/// Value of TCP_QUICKACK that was set after the peer's end of stream, which had switched the option off.
const QUICK_LATE: i32 = 2;

/// Whether the peer's end of stream was received.
fn after_end(s: &Socket) -> bool {
    s.ring().is_some_and(|e| e.observed().has_peer_ended())
}

/// Takes in what the peer has done, for an option that tells of it.
fn follow_peer(fd: i32, r: Ref<Socket>) {
    if r.obj.is_candidate() {
        // The peer may have switched, which ends the kernel's stream.
        promote::advance(fd, r);
    } else {
        look_for_end(r, &mut false);
    }
}

/// getsockopt(2).
///
/// # Safety
/// `val` and `len` are the application's result buffer.
#[allow(unsafe_code)]
pub unsafe fn get(fd: i32, level: i32, name: i32, val: *mut c_void, len: *mut u32) -> Outcome {
    let Some(r) = table::socket(fd) else { return Outcome::Pass };
    let s = r.obj;
    if (level, name) == (IPPROTO_TCP, libc::TCP_INFO)
        // SAFETY: the caller guarantees pointers that are valid for the given lengths.
        && let Some(done) = unsafe { own_answers::info_by_kernel(fd, r, val, len) }
    {
        return done;
    }
    if matches!((level, name), (SOL_SOCKET, libc::SO_ERROR) | (IPPROTO_TCP, libc::TCP_INFO)) {
        follow_peer(fd, r);
    }
    let shm = s.is_shm();
    // The kernel has no option of IPv6 on a socket of IPv4.
    if (level == IPPROTO_IPV6 && s.domain() == libc::AF_INET)
        || !(shm || s.has(PLACEHOLDER) || own_answers::has_cookie(s, level, name))
    {
        return Outcome::Pass;
    }
    // SAFETY: a number, which any bytes are.
    match unsafe { user::load(len) } {
        None => return Outcome::Failed(Errno::FAULT),
        Some(room) if room > i32::MAX as u32 || own_answers::is_too_short(level, name, room) => {
            return Outcome::Failed(Errno::INVAL);
        }
        Some(_) => {}
    }
    // The kernel writes the length last.
    if !user::writable(len, size_of::<u32>()) {
        return Outcome::Failed(Errno::FAULT);
    }
    match (level, name) {
        // The kernel can map only bytes that its own socket has received.
        (IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE) if shm => {
            return Outcome::pass_after(demote::demote(fd, r, Reason::Unsupported));
        }
        (IPPROTO_TCP, libc::TCP_INFO) if shm => {
            return template(s.domain()).map_or_else(Outcome::Failed, |t| own_answers::tcp_info(t, s, val, len));
        }
        _ => {}
    }
    // SAFETY: the caller guarantees pointers that are valid for the given lengths.
    if let Some(done) = unsafe { answer_beyond_int(fd, s, (level, name), val, len) } {
        return done.into();
    }
    let int = int_of(s, shm, level, name);
    match int {
        Some(v) => {
            // SAFETY: the caller guarantees that `val` and `len` are valid.
            unsafe { give_int((level, name), v, val, len) }.into()
        }
        // A liveness socket is no TCP socket: type, protocol and defaults are those of the template.
        None if shm && s.endpoint().is_some_and(|e| e.liveness.fd() >= 0) => {
            template(s.domain()).and_then(|t| raw::getsockopt(t, level, name, val, len)).into()
        }
        // The descriptor is a TCP socket of the right family, so the kernel answers.
        None => Outcome::Pass,
    }
}

/// The value of an option that is an int. `None`: it was not set.
fn int_of(s: &Socket, shm: bool, level: i32, name: i32) -> Option<i32> {
    match (level, name) {
        (SOL_SOCKET, libc::SO_ERROR) if shm => s.endpoint().map(|e| e.take_error()),
        // The peer's end of stream switches the kernel to delayed acknowledgements.
        (IPPROTO_TCP, libc::TCP_QUICKACK) if after_end(s) => {
            let _g = s.meta.lock();
            let v = s.opts.get(level, name).unwrap_or(0);
            Some(if v & QUICK_LATE != 0 { v & 1 } else { 0 })
        }
        (IPPROTO_IPV6, libc::IPV6_ADDRFORM) if shm && s.domain() == libc::AF_INET6 => Some(libc::AF_INET6),
        _ => {
            let set = {
                let _g = s.meta.lock();
                s.opts.get(level, name)
            };
            let alike = shm && s.endpoint().is_some_and(|e| !e.side.is_remote());
            set.or_else(|| if alike { as_on_loopback(s, level, name) } else { None })
        }
    }
}

/// Answers for an option whose value is no int, or is about the kernel's socket of a connection. `None`: it is another one.
///
/// # Safety
/// `val` and `len` are the application's, `len` in memory that can be written.
#[allow(unsafe_code)]
unsafe fn answer_beyond_int(
    fd: i32,
    s: &Socket,
    (level, name): (i32, i32),
    val: *mut c_void,
    len: *mut u32,
) -> Option<Result<()>> {
    if s.is_shm() && own_answers::is_about_packets(level, name) {
        return Some(own_answers::packet_options(s, level, name, val, len));
    }
    if own_answers::has_cookie(s, level, name) {
        return Some(own_answers::cookie(fd, s).and_then(|cookie| {
            // SAFETY: the caller guarantees pointers that are valid for the given lengths.
            unsafe { give((&raw const cookie).cast(), size_of::<u64>(), val, len) }
        }));
    }
    match (level, name) {
        (SOL_SOCKET, libc::SO_LINGER) => {
            let l = s.linger.load(Ordering::Relaxed);
            let v = [(l >> 32) as i32, l as u32 as i32];
            // SAFETY: the caller guarantees pointers that are valid for the given lengths.
            Some(unsafe { give(v.as_ptr().cast(), 8, val, len) })
        }
        (SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) => {
            let cell = if name == libc::SO_RCVTIMEO { &s.rcvtimeo } else { &s.sndtimeo };
            let ns = cell.load(Ordering::Relaxed) as i64;
            let tv = libc::timeval { tv_sec: ns / 1_000_000_000, tv_usec: ns % 1_000_000_000 / 1000 };
            // SAFETY: the caller guarantees that `val` and `len` are valid; `tv` lives until the call returns.
            Some(unsafe { give((&raw const tv).cast(), size_of::<libc::timeval>(), val, len) })
        }
        // SAFETY: the caller guarantees pointers that are valid for the given lengths.
        (SOL_SOCKET, libc::SO_PEERNAME) if s.is_shm() => Some(unsafe { peer_name(s, val, len) }),
        _ => None,
    }
}
