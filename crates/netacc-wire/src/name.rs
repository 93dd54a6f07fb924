//! Names of rendezvous sockets in the abstract UNIX namespace (unix(7)), one per network namespace.

use core::net::{IpAddr, SocketAddr};

/// Which destinations a listener's rendezvous serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Exactly this address.
    Addr(IpAddr),
    /// Every IPv4 address (bound to 0.0.0.0).
    Any4,
    /// Every IPv6 address and no IPv4 one (bound to :: with IPV6_V6ONLY).
    Any6,
    /// Every address of both families (bound to ::).
    Dual,
    /// The addresses of the kernel's listener with this cookie (`SO_COOKIE`), which is one of several that share a
    /// port by `SO_REUSEPORT`.
    One(u64),
}

/// Length of the longest name, which is that of two IPv6 addresses with their ports. A name may have 107 bytes (unix(7)).
const LONGEST: usize = 100;

/// An abstract socket name, without the leading NUL byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    buf: [u8; LONGEST],
    len: usize,
}

impl Name {
    /// The name for a scope and port in our protocol version.
    pub fn new(scope: Scope, port: u16) -> Name {
        Name::at(scope, port, 0)
    }

    /// The name of one of several processes that have inherited one listener. `place` tells them apart; 0 is the first.
    pub fn at(scope: Scope, port: u16, place: u16) -> Name {
        Name::of_version(crate::VERSION, scope, port, place)
    }

    /// The name in a given version of the protocol. The names of all versions begin with "netacc", the version, the
    /// scope and the port.
    pub fn of_version(version: u16, scope: Scope, port: u16, place: u16) -> Name {
        let mut n = Name { buf: [0; LONGEST], len: 0 };
        n.put(b"netacc/");
        n.decimal(version);
        n.put(b"/");
        match scope {
            Scope::Addr(IpAddr::V4(a)) => n.hex(&a.octets()),
            Scope::Addr(IpAddr::V6(a)) => n.hex(&a.octets()),
            Scope::Any4 => n.put(b"any4"),
            Scope::Any6 => n.put(b"any6"),
            Scope::Dual => n.put(b"any"),
            Scope::One(cookie) => n.hex(&cookie.to_be_bytes()),
        }
        n.put(b"/");
        n.decimal(port);
        if place > 0 {
            n.put(b"+");
            n.decimal(place);
        }
        n
    }

    /// The name that the client of a connection with this pair of addresses holds, so that no second one has the pair.
    pub fn pair(local: SocketAddr, peer: SocketAddr) -> Name {
        let mut n = Name { buf: [0; LONGEST], len: 0 };
        n.put(b"netacc/");
        n.decimal(crate::VERSION);
        n.put(b"/pair");
        for end in [local, peer] {
            n.put(b"/");
            match end.ip() {
                IpAddr::V4(a) => n.hex(&a.octets()),
                IpAddr::V6(a) => n.hex(&a.octets()),
            }
            n.put(b":");
            n.hex(&end.port().to_be_bytes());
        }
        n
    }

    /// The name of a liveness socket that listens ([`crate::Message::Liveness`]).
    pub fn liveness(token: u64) -> Name {
        Name::of_token(b"/alive/", token)
    }

    /// The name of a waker that is a socket ([`crate::Message::Waker`]).
    pub fn waker(token: u64) -> Name {
        Name::of_token(b"/waker/", token)
    }

    /// The name of a socket that one peer is told of by a token. Every process can see the name, so the lower half of the
    /// token, which proves the peer ([`proof`]), is not part of it.
    fn of_token(purpose: &[u8], token: u64) -> Name {
        let mut n = Name { buf: [0; LONGEST], len: 0 };
        n.put(b"netacc/");
        n.decimal(crate::VERSION);
        n.put(purpose);
        n.hex(&token.to_be_bytes().first_chunk::<4>().copied().unwrap_or_default());
        n
    }

    /// Whether the name has a place above the first one, so that several processes may serve the listener.
    pub fn is_of_several(&self) -> bool {
        self.as_bytes().contains(&b'+')
    }

    /// The bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        self.buf.get(..self.len).unwrap_or(&[])
    }

    fn put(&mut self, bytes: &[u8]) {
        for b in bytes {
            if let Some(slot) = self.buf.get_mut(self.len) {
                *slot = *b;
                self.len += 1;
            }
        }
    }

    fn hex(&mut self, bytes: &[u8]) {
        for b in bytes {
            for nibble in [b >> 4, b & 15] {
                self.put(&[if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 }]);
            }
        }
    }

    fn decimal(&mut self, n: u16) {
        if n >= 10 {
            self.decimal(n / 10);
        }
        self.put(&[b'0' + (n % 10) as u8]);
    }
}

/// The half of a token that is not part of a name. A datagram to a waker consists of it.
pub fn proof(token: u64) -> [u8; 4] {
    token.to_be_bytes().last_chunk::<4>().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn names() {
        let n = |s, p| {
            let name = String::from_utf8(Name::new(s, p).as_bytes().to_vec()).unwrap();
            name.strip_prefix(&format!("netacc/{}/", crate::VERSION)).unwrap().to_owned()
        };
        assert_eq!(n(Scope::Addr(Ipv4Addr::LOCALHOST.into()), 6379), "7f000001/6379");
        assert_eq!(n(Scope::Any4, 80), "any4/80");
        assert_eq!(n(Scope::Dual, 65535), "any/65535");
        assert!(Name::at(Scope::Dual, 80, 7).as_bytes().ends_with(b"any/80+7"));
        assert_eq!(Name::at(Scope::Dual, 80, 0), Name::new(Scope::Dual, 80));
        assert_eq!(Name::of_version(12, Scope::Any4, 80, 0).as_bytes(), b"netacc/12/any4/80");
        assert_eq!(
            Name::waker(0x0102_0304_0506_0708).as_bytes(),
            format!("netacc/{}/waker/01020304", crate::VERSION).as_bytes()
        );
        let (a, b) = (SocketAddr::from(([127, 0, 0, 1], 80)), SocketAddr::from((Ipv6Addr::LOCALHOST, 443)));
        let pair = format!("netacc/{}/pair/7f000001:0050/00000000000000000000000000000001:01bb", crate::VERSION);
        assert_eq!(Name::pair(a, b).as_bytes(), pair.as_bytes());
        assert!(Name::pair(b, b).as_bytes().ends_with(b":01bb"));
        assert_eq!(proof(0x0102_0304_0506_0708), [5, 6, 7, 8]);
        assert_eq!(n(Scope::One(0x4_0b0c), 443), "0000000000040b0c/443");
        assert_eq!(n(Scope::Addr(Ipv6Addr::LOCALHOST.into()), 1), "00000000000000000000000000000001/1");
    }
}
