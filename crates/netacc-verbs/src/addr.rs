//! Socket addresses as the connection manager takes and gives them.
//!
//! # Safety
//! Plain C structures are copied from and into a buffer that is large and aligned enough for any of them.
#![allow(unsafe_code)]

use crate::sys::sockaddr_storage;
use core::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

impl sockaddr_storage {
    /// All bytes zero: the family is `AF_UNSPEC`, so there is no address in it.
    pub(crate) const EMPTY: sockaddr_storage = sockaddr_storage { bytes: [0; 128] };

    fn put<T>(value: T) -> sockaddr_storage {
        const { assert!(size_of::<T>() <= 128 && align_of::<T>() <= 8) };
        let mut storage = sockaddr_storage::EMPTY;
        // SAFETY: the assertion above says that `T` fits into the storage in size and alignment.
        unsafe { (&raw mut storage).cast::<T>().write(value) };
        storage
    }

    /// The address as the C structure of its family.
    pub(crate) fn new(address: SocketAddr) -> sockaddr_storage {
        match address {
            SocketAddr::V4(a) => Self::put(libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: a.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*a.ip()).to_be() },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(a) => Self::put(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: a.port().to_be(),
                sin6_flowinfo: a.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                sin6_scope_id: a.scope_id(),
            }),
        }
    }

    /// The address in it; `None` if it is neither IPv4 nor IPv6.
    pub(crate) fn get(&self) -> Option<SocketAddr> {
        // SAFETY: the storage has 128 bytes and is aligned for each of these structures, for which any bytes are a
        // value.
        unsafe {
            let p = &raw const *self;
            match i32::from((*p.cast::<libc::sockaddr>()).sa_family) {
                libc::AF_INET => {
                    let a = &*p.cast::<libc::sockaddr_in>();
                    let ip = u32::from_be(a.sin_addr.s_addr).into();
                    Some(SocketAddrV4::new(ip, u16::from_be(a.sin_port)).into())
                }
                libc::AF_INET6 => {
                    let a = &*p.cast::<libc::sockaddr_in6>();
                    let (ip, port) = (a.sin6_addr.s6_addr.into(), u16::from_be(a.sin6_port));
                    Some(SocketAddrV6::new(ip, port, a.sin6_flowinfo, a.sin6_scope_id).into())
                }
                _ => None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for text in ["10.8.0.1:27379", "0.0.0.0:0", "[::1]:65535", "[fe80::1%3]:80"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(sockaddr_storage::new(address).get(), Some(address), "{text}");
        }
        assert_eq!(sockaddr_storage::EMPTY.get(), None);
    }
}
