//! What a rule covers and permits, without its text: what a process compares at each connect.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The faster transports that a listener or a connection may use. Kernel TCP is always permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transports {
    /// Shared memory, within one host.
    pub shm: bool,
    /// RDMA, between hosts.
    pub rdma: bool,
}

impl Transports {
    /// Both faster transports.
    pub const ALL: Transports = Transports { shm: true, rdma: true };
    /// Kernel TCP only.
    pub const TCP: Transports = Transports { shm: false, rdma: false };

    /// Whether any transport but kernel TCP is permitted.
    #[must_use]
    pub fn any(self) -> bool {
        self.shm || self.rdma
    }

    /// The transports as a number below 4.
    #[must_use]
    pub fn bits(self) -> u32 {
        u32::from(self.shm) | u32::from(self.rdma) << 1
    }

    /// The transports of a number of [`Transports::bits`].
    #[must_use]
    pub fn from_bits(bits: u32) -> Self {
        Transports { shm: bits & 1 != 0, rdma: bits & 2 != 0 }
    }
}

impl fmt::Display for Transports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.shm, self.rdma) {
            (true, true) => "shm,rdma",
            (true, false) => "shm",
            (false, true) => "rdma",
            (false, false) => "tcp",
        })
    }
}

/// What a program is about to do, and which rules are searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// listen(2) on a socket with this local address.
    Listen(SocketAddr),
    /// connect(2) to this address.
    Connect(SocketAddr),
}

/// Addresses and ports of one side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// An address and how many of its leading bits count; `None` for every address.
    pub(crate) prefix: Option<(IpAddr, u8)>,
    /// The first and the last port.
    pub(crate) ports: (u16, u16),
}

/// What a rule applies to, besides the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Listeners and connects.
    Everything,
    Listen(Endpoint),
    Connect(Endpoint),
}

/// What a rule covers and permits.
///
/// It has the form of a few words as well ([`Matcher::to_words`]), so that a process can keep it in atomics, where one
/// thread replaces it while others read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matcher {
    pub(crate) subject: Subject,
    /// What the rule permits.
    pub transports: Transports,
}

impl Endpoint {
    pub(crate) fn contains(self, addr: SocketAddr) -> bool {
        let (first, last) = self.ports;
        let inside = match self.prefix {
            None => true,
            Some((net, bits)) => match (net, addr.ip().to_canonical()) {
                (IpAddr::V4(net), IpAddr::V4(ip)) => shares(u128::from(net.to_bits() ^ ip.to_bits()), 32, bits),
                (IpAddr::V6(net), IpAddr::V6(ip)) => shares(net.to_bits() ^ ip.to_bits(), 128, bits),
                _ => false,
            },
        };
        inside && (first..=last).contains(&addr.port())
    }
}

/// Whether the first `bits` of `width` bits are zero in `difference`.
fn shares(difference: u128, width: u32, bits: u8) -> bool {
    difference.checked_shr(width.saturating_sub(u32::from(bits))).unwrap_or(0) == 0
}

/// A number in some bits of a word.
#[derive(Clone, Copy)]
struct Bits {
    shift: u32,
    width: u32,
}

impl Bits {
    const fn store(self, value: u64) -> u64 {
        (value & self.mask()) << self.shift
    }

    const fn load(self, word: u64) -> u64 {
        word >> self.shift & self.mask()
    }

    const fn mask(self) -> u64 {
        (1 << self.width) - 1
    }
}

/// The parts of the first word; the other two are the address.
const LAST_PORT: Bits = Bits { shift: 0, width: 16 };
const FIRST_PORT: Bits = Bits { shift: 16, width: 16 };
const PREFIX: Bits = Bits { shift: 32, width: 8 };
const FAMILY: Bits = Bits { shift: 40, width: 2 };
const SUBJECT: Bits = Bits { shift: 42, width: 2 };
const PERMITTED: Bits = Bits { shift: 44, width: 2 };

/// Values of [`FAMILY`]; any other one stands for every address.
const V4: u64 = 1;
const V6: u64 = 2;

/// Values of [`SUBJECT`]; any other one stands for everything.
const LISTEN: u64 = 1;
const CONNECT: u64 = 2;

impl Matcher {
    /// Number of words in [`Matcher::to_words`].
    pub const WORDS: usize = 3;

    /// Whether the rule is about this call, of a program that it is for.
    #[must_use]
    pub fn covers(self, call: Call) -> bool {
        match (self.subject, call) {
            (Subject::Everything, _) => true,
            (Subject::Listen(endpoint), Call::Listen(addr)) | (Subject::Connect(endpoint), Call::Connect(addr)) => {
                endpoint.contains(addr)
            }
            (Subject::Listen(_), Call::Connect(_)) | (Subject::Connect(_), Call::Listen(_)) => false,
        }
    }

    /// Whether the rule is for every listener and every connect of its program.
    pub(crate) fn covers_everything(self) -> bool {
        self.subject == Subject::Everything
    }

    /// The matcher as words.
    #[must_use]
    pub fn to_words(self) -> [u64; Self::WORDS] {
        let (subject, endpoint) = match self.subject {
            Subject::Everything => (0, Endpoint { prefix: None, ports: (0, 0) }),
            Subject::Listen(endpoint) => (LISTEN, endpoint),
            Subject::Connect(endpoint) => (CONNECT, endpoint),
        };
        let (family, address, prefix) = match endpoint.prefix {
            None => (0, 0, 0),
            Some((IpAddr::V4(ip), bits)) => (V4, u128::from(ip.to_bits()), bits),
            Some((IpAddr::V6(ip), bits)) => (V6, ip.to_bits(), bits),
        };
        let (first, last) = endpoint.ports;
        let head = LAST_PORT.store(last.into())
            | FIRST_PORT.store(first.into())
            | PREFIX.store(prefix.into())
            | FAMILY.store(family)
            | SUBJECT.store(subject)
            | PERMITTED.store(self.transports.bits().into());
        [head, (address >> 64) as u64, address as u64]
    }

    /// The matcher that these words stand for. Any words stand for one.
    #[must_use]
    pub fn from_words([head, high, low]: [u64; Self::WORDS]) -> Self {
        let address = u128::from(high) << 64 | u128::from(low);
        let ip: Option<IpAddr> = match FAMILY.load(head) {
            V4 => Some(Ipv4Addr::from_bits(address as u32).into()),
            V6 => Some(Ipv6Addr::from_bits(address).into()),
            _ => None,
        };
        let endpoint = Endpoint {
            prefix: ip.map(|ip| (ip, PREFIX.load(head) as u8)),
            ports: (FIRST_PORT.load(head) as u16, LAST_PORT.load(head) as u16),
        };
        let subject = match SUBJECT.load(head) {
            LISTEN => Subject::Listen(endpoint),
            CONNECT => Subject::Connect(endpoint),
            _ => Subject::Everything,
        };
        Matcher { subject, transports: Transports::from_bits(PERMITTED.load(head) as u32) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Rules};
    use alloc::format;
    use alloc::vec::Vec;

    #[test]
    fn a_matcher_survives_as_words() {
        let lines = [
            "use=tcp",
            "use=shm,rdma connect=[2001:db8::1/33]:80-90",
            "use=shm listen=0.0.0.0/0:65535",
            "use=rdma connect=255.255.255.255",
            "use=tcp connect=::/0",
            "use=shm listen=*:0-65535",
        ];
        let file = format!("[rules]\n{}\n", lines.join("\n"));
        let rules: Rules = Config::of_file("f", file.as_bytes()).unwrap().rules;
        let words: Vec<_> = rules.matchers().map(Matcher::to_words).collect();
        assert_eq!(words.len(), lines.len());
        assert!(rules.matchers().eq(words.iter().copied().map(Matcher::from_words)));
    }

    #[test]
    fn any_words_stand_for_a_matcher() {
        let call = Call::Connect("[2001:db8::1]:80".parse().unwrap());
        for word in (0..64).map(|bit| 1 << bit).chain([0, u64::MAX]) {
            for words in [[word, 0, 0], [word, u64::MAX, word], [u64::MAX, word, 0]] {
                let matcher = Matcher::from_words(words);
                assert_eq!(Matcher::from_words(matcher.to_words()), matcher);
                let _ = matcher.covers(call);
            }
        }
    }
}
