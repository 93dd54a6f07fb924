//! Options about a connection's packets: their device, their mark, filters and signatures. Shared memory has no
//! packets, so a socket with such an option is left to the kernel.

use crate::object::socket::{KERNEL_OPTIONS, SIGNED, Socket};
use core::ffi::c_void;
use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET};
use netacc_sys::raw;

/// TCP_AO_ADD_KEY, an option of tcp(7) that sets a key for TCP-AO (RFC 5925); the libc crate does not define it.
const TCP_AO_ADD_KEY: i32 = 38;

/// Whether the option can be read back from the kernel later.
fn plain(level: i32, name: i32) -> bool {
    matches!(
        (level, name),
        (SOL_SOCKET, libc::SO_BINDTODEVICE | libc::SO_BINDTOIFINDEX | libc::SO_MARK)
            | (IPPROTO_IP, libc::IP_TRANSPARENT | libc::IP_MINTTL)
            | (IPPROTO_IPV6, libc::IPV6_TRANSPARENT | libc::IPV6_MINHOPCOUNT)
    )
}

/// Whether the option sets a signature, which the kernel cannot be asked about afterwards.
fn signed(level: i32, name: i32) -> bool {
    matches!(
        (level, name),
        (
            SOL_SOCKET,
            libc::SO_ATTACH_FILTER
                | libc::SO_ATTACH_BPF
                | libc::SO_ATTACH_REUSEPORT_CBPF
                | libc::SO_ATTACH_REUSEPORT_EBPF
        ) | (IPPROTO_TCP, libc::TCP_MD5SIG | libc::TCP_MD5SIG_EXT | TCP_AO_ADD_KEY | libc::TCP_REPAIR)
    )
}

/// Whether the option cannot be read back: getsockopt(2) refuses the number or uses it for another option.
/// SO_ATTACH_FILTER is SO_GET_FILTER there, which returns the filter's instructions and counts in units of them.
pub fn is_write_only(level: i32, name: i32) -> bool {
    signed(level, name)
}

/// Whether the option is about packets. `connected`: the socket and its peer have already agreed on the segment size.
pub fn concerns(level: i32, name: i32, connected: bool) -> bool {
    plain(level, name) || signed(level, name) || (!connected && sizes(level, name))
}

/// Whether the option is TCP_MAXSEG, which limits the segments of both ends of a connection, and which both can read.
fn sizes(level: i32, name: i32) -> bool {
    (level, name) == (IPPROTO_TCP, libc::TCP_MAXSEG)
}

/// Notes that an option about packets was set on the kernel socket.
pub fn noted(s: &Socket, level: i32, name: i32) {
    if plain(level, name) {
        s.set(KERNEL_OPTIONS, true);
    }
    if signed(level, name) || sizes(level, name) {
        s.set(SIGNED, true);
    }
}

/// Whether options of the kernel socket `fd` have an effect that shared memory would not have.
pub fn matter(s: &Socket, fd: i32) -> bool {
    s.has(SIGNED) || (s.has(KERNEL_OPTIONS) && ask_kernel(fd, s.domain()))
}

#[cold]
fn ask_kernel(fd: i32, domain: i32) -> bool {
    let on = |level, name| raw::getsockopt_int(fd, level, name).is_ok_and(|v| v != 0);
    device(fd)
        || on(SOL_SOCKET, libc::SO_MARK)
        || on(IPPROTO_IP, libc::IP_TRANSPARENT)
        || on(IPPROTO_IP, libc::IP_MINTTL)
        || (domain == libc::AF_INET6 && on(IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT))
}

/// Whether the socket is bound to a device, loopback included: a connection to an address of another device counts as
/// received by that device, though it never leaves the host.
fn device(fd: i32) -> bool {
    let mut name = [0u8; libc::IFNAMSIZ];
    let mut len = name.len() as u32;
    match raw::getsockopt(fd, SOL_SOCKET, libc::SO_BINDTODEVICE, name.as_mut_ptr().cast::<c_void>(), &raw mut len) {
        Ok(()) => len != 0,
        Err(_) => true,
    }
}
