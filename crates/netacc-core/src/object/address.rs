//! Addresses in the form that a socket object keeps, and in the form that the kernel takes.

use core::ffi::c_void;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicU64, Ordering};

/// An IP address and port in atomics.
#[derive(Debug, Default)]
pub struct Addr {
    ip: [AtomicU64; 2],
    /// Bit 32: set; bit 33: IPv6; low 16: port.
    port: AtomicU64,
}

impl Addr {
    /// No address.
    pub const fn new() -> Addr {
        Addr { ip: [const { AtomicU64::new(0) }; 2], port: AtomicU64::new(0) }
    }

    /// Stores an address.
    pub fn set(&self, a: SocketAddr) {
        let (n, v6) = match a.ip() {
            IpAddr::V4(ip) => (u128::from(u32::from(ip)), 0),
            IpAddr::V6(ip) => (u128::from(ip), 1 << 33),
        };
        let [hi, lo] = &self.ip;
        hi.store((n >> 64) as u64, Ordering::Relaxed);
        lo.store(n as u64, Ordering::Relaxed);
        self.port.store(1 << 32 | v6 | u64::from(a.port()), Ordering::Release);
    }

    /// The address, if one was stored.
    pub fn get(&self) -> Option<SocketAddr> {
        let p = self.port.load(Ordering::Acquire);
        if p & 1 << 32 == 0 {
            return None;
        }
        let [hi, lo] = &self.ip;
        let low = lo.load(Ordering::Relaxed);
        let ip = if p & 1 << 33 == 0 {
            Ipv4Addr::from(low as u32).into()
        } else {
            Ipv6Addr::from(u128::from(hi.load(Ordering::Relaxed)) << 64 | u128::from(low)).into()
        };
        Some(SocketAddr::new(ip, p as u16))
    }

    pub(crate) fn clear(&self) {
        self.port.store(0, Ordering::Relaxed);
    }
}

/// Writes an address in the kernel's form into a buffer of ours.
pub(crate) fn addr_of(a: SocketAddr, domain: i32, buf: &mut [u64; 4], len: &mut u32) {
    *len = 32;
    netacc_sys::addr::write(a, domain, buf.as_mut_ptr().cast(), len);
}

/// Calls `f` with an address in the kernel's form, for a socket of this family.
pub(crate) fn with_address<T>(a: SocketAddr, domain: i32, f: impl FnOnce(*const c_void, u32) -> T) -> T {
    let (mut buf, mut len) = ([0u64; 4], 0);
    addr_of(a, domain, &mut buf, &mut len);
    f(buf.as_ptr().cast(), len)
}
