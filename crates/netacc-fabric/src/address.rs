//! Socket addresses as programs pass them, and the sockets and addresses by which this host reaches them.

use crate::channel::raised;
use core::ffi::c_int;
use core::net::{IpAddr, SocketAddr};
use netacc_verbs::sys::*;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// The address as the kernel's structure of its family.
pub fn storage(a: SocketAddr) -> sockaddr_storage {
    let mut bytes = [0u8; 128];
    let kind = if a.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u16;
    bytes[..2].copy_from_slice(&kind.to_ne_bytes());
    bytes[2..4].copy_from_slice(&a.port().to_be_bytes());
    match a.ip() {
        IpAddr::V4(ip) => bytes[4..8].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => bytes[8..24].copy_from_slice(&ip.octets()),
    }
    sockaddr_storage { bytes }
}

/// The address in the program's structure; `None` if the pointer is null or the address is of another family.
///
/// # Safety
/// `at` is null or points to a socket address.
pub unsafe fn address(at: *mut sockaddr) -> Option<SocketAddr> {
    // SAFETY: the caller guarantees that the pointer is null or leads to a socket address.
    unsafe { at.cast::<libc::sockaddr>().as_ref() }?;
    // SAFETY: the pointer is not null, and the caller's structure is as large as its family requires.
    unsafe {
        let family = c_int::from((*at.cast::<libc::sockaddr>()).sa_family);
        match family {
            libc::AF_INET => {
                let a = &*at.cast::<libc::sockaddr_in>();
                Some(SocketAddr::new(IpAddr::from(a.sin_addr.s_addr.to_ne_bytes()), u16::from_be(a.sin_port)))
            }
            libc::AF_INET6 => {
                let a = &*at.cast::<libc::sockaddr_in6>();
                Some(SocketAddr::new(IpAddr::from(a.sin6_addr.s6_addr), u16::from_be(a.sin6_port)))
            }
            _ => None,
        }
    }
}

/// The address's family.
pub fn family(a: SocketAddr) -> AddressFamily {
    if a.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// A non-blocking TCP socket for an address of this family.
pub fn tcp(a: SocketAddr) -> Result<OwnedFd, Errno> {
    let socket =
        rustix::net::socket_with(family(a), SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    let _ = sockopt::set_tcp_nodelay(&socket, true);
    Ok(raised(socket))
}

/// The local address from which this host reaches `to`.
pub fn route(to: SocketAddr) -> Result<IpAddr, Errno> {
    let socket = rustix::net::socket_with(family(to), SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &to)?;
    let own: SocketAddr = rustix::net::getsockname(&socket)?.try_into()?;
    Ok(own.ip())
}
