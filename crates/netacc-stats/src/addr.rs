//! A socket address as the page stores and shows it.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// An IPv4 or IPv6 address with its port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SockAddr {
    /// [`SockAddr::INET`], [`SockAddr::INET6`], or 0 if the address is not known.
    pub family: u16,
    /// Port in host byte order.
    pub port: u16,
    /// The address in network byte order; IPv4 uses the first four bytes.
    pub ip: [u8; 16],
}

impl SockAddr {
    /// `AF_INET` of Linux.
    pub const INET: u16 = 2;
    /// `AF_INET6` of Linux.
    pub const INET6: u16 = 10;

    /// An IPv4 address.
    #[must_use]
    pub const fn v4(ip: [u8; 4], port: u16) -> Self {
        let [a, b, c, d] = ip;
        Self { family: Self::INET, port, ip: [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] }
    }

    /// An IPv6 address.
    #[must_use]
    pub const fn v6(ip: [u8; 16], port: u16) -> Self {
        Self { family: Self::INET6, port, ip }
    }

    /// The IP address, or `None` if the family is not known.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        let [a, b, c, d, ..] = self.ip;
        match self.family {
            Self::INET => Some(IpAddr::V4(Ipv4Addr::new(a, b, c, d))),
            Self::INET6 => Some(IpAddr::V6(Ipv6Addr::from(self.ip))),
            _ => None,
        }
    }
}

impl From<SocketAddr> for SockAddr {
    fn from(a: SocketAddr) -> SockAddr {
        match a.ip() {
            IpAddr::V4(ip) => SockAddr::v4(ip.octets(), a.port()),
            IpAddr::V6(ip) => SockAddr::v6(ip.octets(), a.port()),
        }
    }
}

/// Displays as `ip:port`, `[ip6]:port`, or `-` if the address is not known.
impl fmt::Display for SockAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip() {
            Some(IpAddr::V4(ip)) => write!(f, "{ip}:{}", self.port),
            Some(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}", self.port),
            None => f.write_str("-"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn shows_like_a_url_authority() {
        assert_eq!(SockAddr::v4([127, 0, 0, 1], 80).to_string(), "127.0.0.1:80");
        let mut ip = [0; 16];
        ip[15] = 1;
        assert_eq!(SockAddr::v6(ip, 6379).to_string(), "[::1]:6379");
        assert_eq!(SockAddr::default().to_string(), "-");
        let odd = SockAddr { family: 77, port: 1, ip };
        assert_eq!(odd.to_string(), "-");
    }
}
