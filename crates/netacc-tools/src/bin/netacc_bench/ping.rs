//! The kernel's own round trip: ICMP echo, which the kernel at the other end answers without waking anybody.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, ipproto, recv, send, socket_with,
};

use crate::stats::Summary;
use crate::worker::{Latency, Times};

/// As ping(8) sends by default: 56 bytes after the header of 8.
const LENGTH: usize = 64;
const HEADER: usize = 8;
/// When an answer is taken to be lost.
const LOST: Duration = Duration::from_secs(1);

/// What there is to compare with.
#[derive(Clone, Debug)]
pub(crate) enum Baseline {
    /// One for each round that counts.
    Measured(Vec<Latency>),
    /// Why not.
    Not(String),
}

impl Baseline {
    /// A figure over all rounds, in microseconds.
    pub(crate) fn summary(&self, of: impl Fn(&Latency) -> f64) -> Option<Summary> {
        match self {
            Self::Measured(rounds) => Summary::of(rounds.iter().map(|round| of(round) / 1e3)),
            Self::Not(_) => None,
        }
    }
}

pub(crate) struct Pinger {
    socket: OwnedFd,
    kind: Kind,
    number: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    v6: bool,
    /// We see every ICMP packet of the host, with its IP header where that is of IPv4.
    raw: bool,
    ident: u16,
}

impl Pinger {
    /// A socket for echoes to `to`: an unprivileged one, or else a raw one.
    pub(crate) fn open(to: IpAddr) -> Result<Self, String> {
        let v6 = to.is_ipv6();
        let (family, protocol) =
            if v6 { (AddressFamily::INET6, ipproto::ICMPV6) } else { (AddressFamily::INET, ipproto::ICMP) };
        let open = |kind| socket_with(family, kind, SocketFlags::CLOEXEC, Some(protocol));
        let (socket, raw) = match open(SocketType::DGRAM) {
            Ok(socket) => (socket, false),
            Err(_) => (open(SocketType::RAW).map_err(|_| NOT_PERMITTED.to_owned())?, true),
        };
        let prepare = || {
            connect(&socket, &SocketAddr::new(to, 0))?;
            set_socket_timeout(&socket, Timeout::Recv, Some(LOST))
        };
        prepare().map_err(|error| format!("ICMP to {to}: {}", system(error)))?;
        // Any number that two runs at the same time do not share; the kernel puts its own where the socket is not raw.
        let [low, high, ..] = std::process::id().to_le_bytes();
        Ok(Self { socket, kind: Kind { v6, raw, ident: u16::from_le_bytes([low, high]) }, number: 0 })
    }

    /// Sends one echo request after the other for this time, and returns the latencies.
    pub(crate) fn round(&mut self, time: Duration) -> Result<Latency, String> {
        let mut times = Times::new()?;
        let mut lost = 0;
        let start = Instant::now();
        while start.elapsed() < time {
            let before = Instant::now();
            match self.echo(before) {
                Ok(true) => times.add(before.elapsed()),
                Ok(false) => lost += 1,
                Err(error) => return Err(format!("ICMP echo failed: {}", system(error))),
            }
            if lost > 2 && lost > times.count() {
                break;
            }
        }
        times.latency().ok_or_else(|| "the host does not answer ICMP echo (a firewall?)".into())
    }

    /// Whether the answer came.
    fn echo(&mut self, before: Instant) -> Result<bool, Errno> {
        self.number = self.number.wrapping_add(1);
        send(&self.socket, &request(self.kind, self.number), SendFlags::empty())?;
        let mut packet = [0; 2048];
        while before.elapsed() < LOST {
            match recv(&self.socket, &mut packet, RecvFlags::empty()) {
                Ok((count, _)) => {
                    if is_answer(packet.get(..count).unwrap_or_default(), self.kind, self.number) {
                        return Ok(true);
                    }
                }
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

/// In the system's words.
fn system(error: Errno) -> io::Error {
    io::Error::from_raw_os_error(error.raw_os_error())
}

const NOT_PERMITTED: &str = "not permitted: run netacc_bench as root, or let your group open ICMP sockets \
                             (sysctl net.ipv4.ping_group_range)";

fn request(kind: Kind, number: u16) -> [u8; LENGTH] {
    let mut packet = [0x33; LENGTH];
    let ([i0, i1], [n0, n1]) = (kind.ident.to_be_bytes(), number.to_be_bytes());
    let head = [if kind.v6 { 128 } else { 8 }, 0, 0, 0, i0, i1, n0, n1];
    for (place, byte) in packet.iter_mut().zip(head) {
        *place = byte;
    }
    if !kind.v6 {
        let sum = checksum(&packet).to_be_bytes();
        for (place, byte) in packet.iter_mut().skip(2).zip(sum) {
            *place = byte;
        }
    }
    packet
}

/// RFC 1071; what is in the place of the sum must be zero.
fn checksum(packet: &[u8; LENGTH]) -> u16 {
    let words = packet.as_chunks::<2>().0;
    let sum: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    !u16::try_from(folded).unwrap_or(u16::MAX)
}

/// Whether a packet is the answer to request `number`; anybody may have sent it.
fn is_answer(packet: &[u8], kind: Kind, number: u16) -> bool {
    let skip = match (kind.raw && !kind.v6, packet.first()) {
        (true, Some(first)) => usize::from(first & 0xf) * 4,
        _ => 0,
    };
    let Some(&[what, 0, _, _, i0, i1, n0, n1]) = packet.get(skip..).and_then(|rest| rest.first_chunk::<HEADER>())
    else {
        return false;
    };
    let ours = !kind.raw || u16::from_be_bytes([i0, i1]) == kind.ident;
    what == if kind.v6 { 129 } else { 0 } && ours && u16::from_be_bytes([n0, n1]) == number
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLAIN: Kind = Kind { v6: false, raw: false, ident: 7 };

    /// The answer that a host would give.
    fn answer(kind: Kind, number: u16) -> Vec<u8> {
        let mut packet = request(kind, number).to_vec();
        packet[0] = if kind.v6 { 129 } else { 0 };
        if kind.raw && !kind.v6 { [&[0x45; 20][..], &packet].concat() } else { packet }
    }

    #[test]
    fn answers_are_known() {
        for kind in
            [PLAIN, Kind { raw: true, ..PLAIN }, Kind { v6: true, ..PLAIN }, Kind { v6: true, raw: true, ident: 7 }]
        {
            let packet = answer(kind, 300);
            assert!(is_answer(&packet, kind, 300), "{kind:?}");
            assert!(!is_answer(&packet, kind, 301), "another number");
            assert!(!is_answer(&request(kind, 300), kind, 300), "the request itself");
            assert_eq!(is_answer(&packet, Kind { ident: 8, ..kind }, 300), !kind.raw, "another program's");
        }
    }

    #[test]
    fn sums_are_those_of_the_kernel() {
        let packet = request(PLAIN, 1);
        let words = packet.as_chunks::<2>().0;
        let sum: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "with its sum in place a packet sums up to ones");
    }

    proptest! {
        #[test]
        fn any_packet_is_judged(
            packet in prop::collection::vec(any::<u8>(), 0..100), v6: bool, raw: bool, number: u16,
        ) {
            is_answer(&packet, Kind { v6, raw, ident: 7 }, number);
        }
    }
}
