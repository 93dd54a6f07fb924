//! Reads options back from the kernel, so that they can be set again on another socket.

use crate::object::socket::{INQ, LINGER_RESET, Socket};
use core::sync::atomic::Ordering;
use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET};
use netacc_sys::raw;

/// The option name by which getsockopt(2) reads an option back.
pub(crate) fn read_as(level: i32, name: i32) -> i32 {
    match (level, name) {
        (SOL_SOCKET, libc::SO_RCVBUFFORCE) => libc::SO_RCVBUF,
        (SOL_SOCKET, libc::SO_SNDBUFFORCE) => libc::SO_SNDBUF,
        _ => name,
    }
}

/// Number of bytes that are requested where an int is expected.
pub(crate) const LONGER: usize = 32;

/// Remembers the resulting value of an int option that was set on `fd`, since the connection may later be without that
/// socket.
pub(crate) fn remember(s: &Socket, fd: i32, level: i32, name: i32) {
    let known = matches!(level, SOL_SOCKET | IPPROTO_TCP | IPPROTO_IP | IPPROTO_IPV6);
    let name = read_as(level, name);
    if !known {
        return;
    }
    // The buffer is longer than an int, so that a longer value is recognised; and it has room for as many filter
    // instructions, the largest unit in which the kernel counts.
    let mut word = [[0i32; 2]; LONGER];
    // A rate is a shorter number where there is no room for a long one.
    let mut len = if (level, name) == (SOL_SOCKET, libc::SO_MAX_PACING_RATE) { 4 } else { LONGER as u32 };
    let got = raw::getsockopt(fd, level, name, word.as_mut_ptr().cast(), &raw mut len);
    let [[v, _], ..] = word;
    if got.is_err() || len != 4 {
        return;
    }
    let _g = s.meta.lock();
    let v = match s.opts.get(SOL_SOCKET, libc::SO_RCVBUF) {
        // The kernel limits SO_RCVLOWAT to half of the buffer.
        Some(size) if (level, name) == (SOL_SOCKET, libc::SO_RCVLOWAT) => v.min(size / 2),
        _ => v,
    };
    s.opts.set(level, name, v);
    if (level, name) == (IPPROTO_TCP, libc::TCP_INQ) {
        s.set(INQ, v != 0);
    }
    if let Some(ep) = s.endpoint() {
        if (level, name) == (SOL_SOCKET, libc::SO_RCVLOWAT) {
            ep.set_lowat(v as u32);
        }
        s.opts.bound(ep);
    }
}

/// Reads back the options of the kernel's listener `fd` that concern calls on it or connections that it accepts: they may
/// have been set by another program, or while the kernel alone served the listener.
pub(crate) fn read_back(s: &Socket, fd: i32) {
    for (level, name) in
        [(IPPROTO_TCP, libc::TCP_NODELAY), (IPPROTO_TCP, libc::TCP_USER_TIMEOUT), (SOL_SOCKET, libc::SO_KEEPALIVE)]
    {
        let known = {
            let _g = s.meta.lock();
            s.opts.get(level, name).is_some()
        };
        if raw::getsockopt_int(fd, level, name).is_ok_and(|v| v != 0 || known) {
            remember(s, fd, level, name);
        }
    }
    for (name, cell) in [(libc::SO_RCVTIMEO, &s.rcvtimeo), (libc::SO_SNDTIMEO, &s.sndtimeo)] {
        // A `struct timeval`: seconds and microseconds.
        if let Some([seconds, micros]) = pair::<i64>(fd, name) {
            let ns = seconds.saturating_mul(1_000_000_000).saturating_add(micros * 1000).max(0).cast_unsigned();
            // The kernel tells of no time-out where a negative one was set, which is 1 ns here (see `opts`).
            if ns != 0 || cell.load(Ordering::Relaxed) != 1 {
                cell.store(ns, Ordering::Relaxed);
            }
        }
    }
    if let Some([on, seconds]) = pair::<i32>(fd, libc::SO_LINGER) {
        s.linger.store(u64::from(on != 0) << 32 | u64::from(seconds.cast_unsigned()), Ordering::Relaxed);
        s.set(LINGER_RESET, on != 0 && seconds == 0);
    }
}

/// The value of an option of socket(7) that consists of two numbers.
fn pair<T: Default + Copy>(fd: i32, name: i32) -> Option<[T; 2]> {
    let mut value = [T::default(); 2];
    let mut len = size_of_val(&value) as u32;
    raw::getsockopt(fd, SOL_SOCKET, name, value.as_mut_ptr().cast(), &raw mut len).ok()?;
    (len as usize == size_of_val(&value)).then_some(value)
}
