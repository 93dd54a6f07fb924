//! Reads options back from the kernel, so that they can be set again on another socket.

use crate::object::socket::{INQ, Socket};
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
    // The option concerns the listener alone.
    if !known || (level, name) == (SOL_SOCKET, libc::SO_REUSEPORT) && !s.is_shm() {
        return;
    }
    // The buffer is longer than an int, so that a longer value is recognised; and it has room for as many filter
    // instructions, the largest unit in which the kernel counts.
    let mut word = [[0i32; 2]; LONGER];
    let mut len = LONGER as u32;
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
