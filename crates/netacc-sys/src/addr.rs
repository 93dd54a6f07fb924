//! Socket addresses between the application's memory and our types.
//!
//! # Safety
//! The application passed these pointers to connect(2), accept(2) and the like with lengths beside them;
//! we read and write at most that many bytes, unaligned.
#![allow(unsafe_code)]
#![allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "see the safety note: null is checked, the rest is the application's promise"
)]

use crate::errno::{Errno, Result};
use crate::{raw, sleeping, user};
use core::ffi::c_void;
use core::mem::size_of;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use core::ptr;

/// The family of the address at `p`; `None` if it is too short to have one.
pub fn family(p: *const c_void, len: u32) -> Option<i32> {
    if (len as usize) < size_of::<libc::sa_family_t>() || !user::readable(p, size_of::<libc::sa_family_t>()) {
        return None;
    }
    // SAFETY: at least two bytes are there.
    Some(unsafe { ptr::read_unaligned(p.cast::<libc::sa_family_t>()) }.into())
}

/// The address at `p`, if it is a whole IPv4 or IPv6 one in memory that can be read.
pub fn read(p: *const c_void, len: u32) -> Option<SocketAddr> {
    let whole = (len as usize).min(size_of::<libc::sockaddr_in6>());
    if whole < size_of::<libc::sa_family_t>() || !user::readable(p, whole) {
        return None;
    }
    // SAFETY: at least two bytes are there.
    let family = unsafe { ptr::read_unaligned(p.cast::<libc::sa_family_t>()) };
    match i32::from(family) {
        libc::AF_INET if len as usize >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: the whole structure is there.
            let a = unsafe { ptr::read_unaligned(p.cast::<libc::sockaddr_in>()) };
            let ip = Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr));
            Some(SocketAddr::new(ip.into(), u16::from_be(a.sin_port)))
        }
        // RFC 2553 ended the structure before sin6_scope_id; the kernel still takes 24 bytes.
        libc::AF_INET6 if len >= 24 => {
            let mut a: libc::sockaddr_in6 = unsafe_zeroed();
            let n = (len as usize).min(size_of::<libc::sockaddr_in6>());
            // SAFETY: n bytes are there and fit.
            unsafe { ptr::copy_nonoverlapping(p.cast::<u8>(), (&raw mut a).cast::<u8>(), n) };
            let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, u16::from_be(a.sin6_port), a.sin6_flowinfo, a.sin6_scope_id).into())
        }
        _ => None,
    }
}

fn unsafe_zeroed() -> libc::sockaddr_in6 {
    // SAFETY: a plain C structure; all zero is valid.
    unsafe { core::mem::zeroed() }
}

/// The bytes of a `struct sockaddr` for `a` as a socket of `domain` shows it: an IPv6 socket shows an
/// IPv4 peer as a mapped address.
fn encode(a: SocketAddr, domain: i32) -> ([u8; 28], usize) {
    let mut out = [0u8; 28];
    let n;
    match (a.ip(), domain) {
        (IpAddr::V4(ip), libc::AF_INET) => {
            let sa = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: a.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(ip).to_be() },
                sin_zero: [0; 8],
            };
            n = size_of::<libc::sockaddr_in>();
            // SAFETY: a plain structure of n <= 28 bytes.
            unsafe { ptr::copy_nonoverlapping((&raw const sa).cast::<u8>(), out.as_mut_ptr(), n) };
        }
        (ip, _) => {
            let v6 = match ip {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            let mut sa = unsafe_zeroed();
            sa.sin6_family = libc::AF_INET6 as u16;
            sa.sin6_port = a.port().to_be();
            sa.sin6_addr.s6_addr = v6.octets();
            n = size_of::<libc::sockaddr_in6>();
            // SAFETY: a plain structure of n = 28 bytes.
            unsafe { ptr::copy_nonoverlapping((&raw const sa).cast::<u8>(), out.as_mut_ptr(), n) };
        }
    }
    (out, n)
}

/// The error with which the kernel refuses an address before it looks at what the address is for.
pub fn taken(p: *const c_void, len: u32) -> Result<()> {
    if len as usize > size_of::<libc::sockaddr_storage>() {
        return Err(Errno::INVAL);
    }
    if user::readable(p, len as usize) { Ok(()) } else { Err(Errno::FAULT) }
}

/// The error with which the kernel refuses an address that is given to a call that has no use for it.
pub fn given(p: *const c_void, len: u32) -> Result<()> {
    if p.is_null() { Ok(()) } else { taken(p, len) }
}

/// The error with which the kernel refuses a result buffer for an address and its length before it writes.
pub fn check(p: *const c_void, len: *const u32) -> Result<()> {
    if !user::writable(len, size_of::<u32>()) {
        return Err(Errno::FAULT);
    }
    // SAFETY: the application's length, in memory that can be written.
    let room = unsafe { ptr::read_unaligned(len) } as i32;
    if room < 0 {
        return Err(Errno::INVAL);
    }
    if !user::writable(p, (room as usize).min(size_of::<libc::sockaddr_in6>())) {
        return Err(Errno::FAULT);
    }
    Ok(())
}

/// The family of an address.
pub fn domain(ip: IpAddr) -> i32 {
    if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

/// Calls `f` with `a` as the kernel takes it.
pub fn with<T>(a: SocketAddr, f: impl FnOnce(*const c_void, u32) -> T) -> T {
    let (bytes, n) = encode(a, domain(a.ip()));
    f(bytes.as_ptr().cast(), n as u32)
}

/// Writes `a` to the application as the kernel does: truncated to `*len`, the true length in `*len`.
pub fn write(a: SocketAddr, domain: i32, p: *mut c_void, len: *mut u32) {
    if p.is_null() || len.is_null() {
        return;
    }
    let (bytes, n) = encode(a, domain);
    // SAFETY: the application's buffer of `*len` bytes.
    unsafe {
        let room = ptr::read_unaligned(len) as usize;
        ptr::copy_nonoverlapping(bytes.as_ptr(), p.cast::<u8>(), room.min(n));
        ptr::write_unaligned(len, n as u32);
    }
}

/// What accept(2) wrote about the peer's address, for the application as well as for us.
#[derive(Default)]
pub struct Accepted {
    bytes: [u64; 4],
    len: u32,
}

impl Accepted {
    /// Calls the kernel's accept4(2).
    pub fn accept(&mut self, fd: i32, flags: i32) -> Result<i32> {
        self.len = size_of_val(&self.bytes) as u32;
        raw::accept4(fd, self.bytes.as_mut_ptr().cast(), &raw mut self.len, flags)
    }

    /// Calls it on a socket on which the call may sleep.
    pub fn accept_sleeping(&mut self, fd: i32, flags: i32) -> Result<i32> {
        self.len = size_of_val(&self.bytes) as u32;
        sleeping::accept4(fd, self.bytes.as_mut_ptr().cast(), &raw mut self.len, flags)
    }

    /// Passes the address on to the application as [`write`] does; the buffer was [`check`]ed.
    pub fn give(&self, p: *mut c_void, len: *mut u32) {
        if p.is_null() || len.is_null() {
            return;
        }
        // SAFETY: the application's buffer of `*len` bytes; the kernel wrote at most as many as there are.
        unsafe {
            let room = (ptr::read_unaligned(len) as usize).min(self.len as usize).min(size_of_val(&self.bytes));
            ptr::copy_nonoverlapping(self.bytes.as_ptr().cast::<u8>(), p.cast::<u8>(), room);
            ptr::write_unaligned(len, self.len);
        }
    }

    /// The peer's address.
    pub fn peer(&self) -> Option<SocketAddr> {
        read(self.bytes.as_ptr().cast(), self.len)
    }
}

/// The local address of a kernel socket.
pub fn local_of(fd: i32) -> Option<SocketAddr> {
    let mut buf = [0u64; 4];
    let mut len = size_of_val(&buf) as u32;
    raw::getsockname(fd, buf.as_mut_ptr().cast(), &raw mut len).ok()?;
    read(buf.as_ptr().cast(), len)
}

/// The remote address of a kernel socket.
pub fn peer_of(fd: i32) -> Option<SocketAddr> {
    let mut buf = [0u64; 4];
    let mut len = size_of_val(&buf) as u32;
    raw::getpeername(fd, buf.as_mut_ptr().cast(), &raw mut len).ok()?;
    read(buf.as_ptr().cast(), len)
}
