//! What is known about destinations, and the local ports that clients hold.

use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicU64, Ordering};
use netacc_stats::Reason;
use netacc_transport::shm::rendezvous::Probe;

/// "No NetACC listens there" is believed for so long (ns). A server that starts is found this late.
const BELIEVED: u64 = 50_000_000;
/// "Nobody on that other host is reached by RDMA there" is believed for so long (ns).
const FAR_BELIEVED: u64 = 1_000_000_000;
/// "This is an address of this host, with that source" is believed for so long (ns).
const ADDRESS_BELIEVED: u64 = 1_000_000_000;
const CELLS: usize = 64;

/// Destinations without a rendezvous: key hash and time of the answer, packed.
static ABSENT: [AtomicU64; CELLS] = [const { AtomicU64::new(0) }; CELLS];
/// Destinations with a rendezvous of another version of the protocol: the same.
static OTHER_VERSION: [AtomicU64; CELLS] = [const { AtomicU64::new(0) }; CELLS];
/// Destinations on other hosts that have refused: the same.
static REFUSED: [AtomicU64; CELLS] = [const { AtomicU64::new(0) }; CELLS];
/// Destinations that are this host: the same.
static LOCAL: [AtomicU64; CELLS] = [const { AtomicU64::new(0) }; CELLS];
/// Hosts (hashed) that have answered and could not be reached; 0: none.
static DOUBTED: [AtomicU64; CELLS] = [const { AtomicU64::new(0) }; CELLS];
/// Destinations that are another host: the same.
static FAR: [AtomicU64; CELLS] = [const { AtomicU64::new(0) }; CELLS];

/// FNV-1a over address and port; 0 never occurs.
fn hash(ip: IpAddr, port: u16) -> u64 {
    let mut h: u64 = 0xcbf2_9ce4_8422_2325;
    let mut eat = |b: u8| h = (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
    match ip {
        IpAddr::V4(a) => a.octets().into_iter().for_each(&mut eat),
        IpAddr::V6(a) => a.octets().into_iter().for_each(&mut eat),
    }
    port.to_le_bytes().into_iter().for_each(&mut eat);
    h | 1
}

/// 24 bits of hash and 40 bits of time in microseconds (12 days; older reads as long ago).
fn pack(h: u64, now: u64) -> u64 {
    h >> 40 << 40 | (now / 1000) & ((1 << 40) - 1)
}

fn fresh(cells: &[AtomicU64; CELLS], h: u64, now: u64, believed: u64) -> bool {
    let Some(c) = cells.get(h as usize / 2 % CELLS) else {
        return false;
    };
    let v = c.load(Ordering::Relaxed);
    let age = ((now / 1000) & ((1 << 40) - 1)).wrapping_sub(v & ((1 << 40) - 1)) & ((1 << 40) - 1);
    v != 0 && v >> 40 == h >> 40 && age < believed / 1000
}

fn note(cells: &[AtomicU64; CELLS], h: u64, now: u64) {
    if let Some(c) = cells.get(h as usize / 2 % CELLS) {
        c.store(pack(h, now), Ordering::Relaxed);
    }
}

/// Why `dest` was lately found to have no rendezvous for us; `None` if it was not.
pub fn known_absent(dest: SocketAddr, now: u64) -> Option<Reason> {
    let h = hash(dest.ip(), dest.port());
    let known = |cells, believed, reason| fresh(cells, h, now, believed).then_some(reason);
    known(&ABSENT, BELIEVED, Reason::PeerPlain)
        .or_else(|| known(&OTHER_VERSION, BELIEVED, Reason::PeerVersion))
        .or_else(|| known(&REFUSED, FAR_BELIEVED, Reason::PeerPlain))
}

/// `dest`, on another host, has refused to be reached by RDMA.
pub fn note_refused(dest: SocketAddr, why: Reason, now: u64) {
    if why == Reason::PeerPlain {
        note(&REFUSED, hash(dest.ip(), dest.port()), now);
    }
}

/// `dest` has no rendezvous for us, if that is the reason.
pub fn note_absent(dest: SocketAddr, why: Reason, now: u64) {
    let cells = match why {
        Reason::PeerPlain => &ABSENT,
        Reason::PeerVersion => &OTHER_VERSION,
        _ => return,
    };
    note(cells, hash(dest.ip(), dest.port()), now);
}

/// Forgets what was believed (our own process opened a listener).
pub fn forget_absent() {
    for c in ABSENT.iter().chain(&OTHER_VERSION).chain(&REFUSED).chain(&FAR) {
        c.store(0, Ordering::Relaxed);
    }
}

/// The source address of a connection to `ip` when `ip` is an address of this host.
pub fn local_source(ip: IpAddr, now: u64) -> Option<IpAddr> {
    believed_source(ip, now).or_else(|| believe(ip, Probe::new(ip)?.own_source(ip), now))
}

/// The same for a connect. Of a destination that was reached by RDMA it is believed as well that it is another host's, since to
/// ask costs such a connect more than all else; if it was asked for just now, the probe comes with that answer.
pub fn source_of_connect(ip: IpAddr, now: u64) -> Result<IpAddr, Option<Probe>> {
    if let Some(source) = believed_source(ip, now) {
        return Ok(source);
    }
    if fresh(&FAR, hash(ip, 0), now, ADDRESS_BELIEVED) {
        return Err(None);
    }
    let probe = Probe::new(ip);
    let source = believe(ip, probe.as_ref().and_then(|p| p.own_source(ip)), now);
    source.ok_or(probe)
}

/// A connect to `ip` goes to another host by RDMA.
pub fn note_far(ip: IpAddr, now: u64) {
    note(&FAR, hash(ip, 0), now);
}

/// A host that has answered was not reached by RDMA: connects to it are to wait until one was.
pub fn note_broken(host: IpAddr) {
    let h = hash(host, 0);
    if let Some(c) = DOUBTED.get(h as usize / 2 % CELLS) {
        c.store(h, Ordering::Relaxed);
    }
}

/// It was reached.
pub fn note_kept(host: IpAddr) {
    let h = hash(host, 0);
    if let Some(c) = DOUBTED.get(h as usize / 2 % CELLS) {
        let _ = c.compare_exchange(h, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Whether its last answer led to nothing.
pub fn is_doubted(host: IpAddr) -> bool {
    let h = hash(host, 0);
    DOUBTED.get(h as usize / 2 % CELLS).is_some_and(|c| c.load(Ordering::Relaxed) == h)
}

/// Where a destination is its own source; 127/8 answers 127.0.0.1.
fn expected(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(a) if a.is_loopback() => core::net::Ipv4Addr::LOCALHOST.into(),
        ip => ip,
    }
}

fn believed_source(ip: IpAddr, now: u64) -> Option<IpAddr> {
    fresh(&LOCAL, hash(ip, 0), now, ADDRESS_BELIEVED).then(|| expected(ip))
}

/// Only destinations that are their own source are remembered.
fn believe(ip: IpAddr, source: Option<IpAddr>, now: u64) -> Option<IpAddr> {
    if source == Some(expected(ip)) {
        note(&LOCAL, hash(ip, 0), now);
    }
    source
}

/// Whether a peer may claim to come from `ip`.
pub fn is_local(ip: IpAddr, now: u64) -> bool {
    ip.is_loopback() || local_source(ip, now) == Some(ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absence_is_believed_for_a_while() {
        let d: SocketAddr = "127.0.0.1:7".parse().unwrap();
        let t = 1_000_000_000_000;
        assert_eq!(known_absent(d, t), None);
        note_absent(d, Reason::NoMemory, t);
        assert_eq!(known_absent(d, t), None);
        note_absent(d, Reason::PeerVersion, t);
        assert_eq!(known_absent(d, t), Some(Reason::PeerVersion));
        note_absent(d, Reason::PeerPlain, t);
        assert_eq!(known_absent(d, t + BELIEVED / 2), Some(Reason::PeerPlain));
        assert_eq!(known_absent(d, t + BELIEVED + 1000), None);
        assert_eq!(known_absent("127.0.0.1:8".parse().unwrap(), t), None);
        note_refused(d, Reason::PeerPlain, t);
        assert_eq!(known_absent(d, t + FAR_BELIEVED / 2), Some(Reason::PeerPlain));
        assert_eq!(known_absent(d, t + FAR_BELIEVED + 1000), None);
    }

    #[test]
    fn a_host_is_doubted_until_it_was_reached() {
        let (host, other) = ("192.0.2.7".parse().unwrap(), "192.0.2.8".parse().unwrap());
        note_broken(host);
        note_kept(other);
        assert!(is_doubted(host) && !is_doubted(other));
        note_kept(host);
        assert!(!is_doubted(host));
    }

    #[test]
    fn loopback_is_local_and_a_far_address_is_not() {
        let now = netacc_sys::time::now();
        assert_eq!(local_source("127.0.0.1".parse().unwrap(), now), Some("127.0.0.1".parse().unwrap()));
        assert_eq!(local_source("192.0.2.1".parse().unwrap(), now), None);
    }
}
