//! Facts about destinations that are believed for a while.

use crate::conn::beliefs::Beliefs;
use crate::timeouts;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicBool, Ordering};
use netacc_stats::Reason;
use netacc_sys::time;
use netacc_transport::shm::rendezvous::SourceProbe;

/// Time (ns) for which a destination is believed to have no rendezvous. A server that starts is found at most this much
/// later.
const BELIEVED: u64 = 50_000_000;
const REFUSING_BELIEVED: u64 = time::ns(timeouts::REFUSING_BELIEVED);
const UNREACHABLE_BELIEVED: u64 = time::ns(timeouts::UNREACHABLE_BELIEVED);
/// Time (ns) for which an address is believed to belong to this host, or to another one.
const ADDRESS_BELIEVED: u64 = 1_000_000_000;
/// Time (ns) for which that is believed of an address to which connects go by TCP: long enough for a program that makes a
/// connection per request, and no longer than it takes to give the address to this host.
const ELSEWHERE_BELIEVED: u64 = 2_000_000;
const CELLS: usize = 64;

type Table = Beliefs<CELLS>;

netacc_sys::tables! {
    /// Destinations without a rendezvous.
    static ABSENT: Table = Table::new();
    /// Destinations with a rendezvous of another version of the protocol.
    static OTHER_VERSION: Table = Table::new();
    /// Destinations whose listener refuses links.
    static REFUSING: Table = Table::new();
    /// Destinations on other hosts that have refused RDMA.
    static REFUSED: Table = Table::new();
    /// Addresses that belong to this host.
    static LOCAL: Table = Table::new();
    /// Hosts that have answered a probe and could not be reached by RDMA.
    static DOUBTED: Table = Table::new();
    /// Addresses that lately were no address of this host.
    static ELSEWHERE: Table = Table::new();
    /// Addresses that belong to another host.
    static REMOTE_HOSTS: Table = Table::new();
}

/// An address with port 0, as the tables of hosts hold it.
fn host(ip: IpAddr) -> SocketAddr {
    SocketAddr::new(ip, 0)
}

/// The reason why `dest` was lately found to have no rendezvous for us; `None` if it was not.
pub fn known_absent(dest: SocketAddr, now: u64) -> Option<Reason> {
    let known = |table: &Table, believed, reason| table.holds(dest, now, believed).then_some(reason);
    known(&ABSENT, BELIEVED, Reason::PeerPlain)
        .or_else(|| known(&OTHER_VERSION, BELIEVED, Reason::PeerVersion))
        .or_else(|| known(&REFUSING, REFUSING_BELIEVED, Reason::Refused))
        .or_else(|| known(&REFUSED, UNREACHABLE_BELIEVED, Reason::PeerPlain))
}

/// Notes that `dest`, on another host, has refused to be reached by RDMA.
pub fn note_refused(dest: SocketAddr, why: Reason, now: u64) {
    if why == Reason::PeerPlain {
        REFUSED.note(dest, now);
    }
}

/// Notes that `dest` has no rendezvous for us, if that is the reason.
pub fn note_absent(dest: SocketAddr, why: Reason, now: u64) {
    let table = match why {
        Reason::PeerPlain => &ABSENT,
        Reason::PeerVersion => &OTHER_VERSION,
        Reason::Refused => &REFUSING,
        _ => return,
    };
    table.note(dest, now);
}

/// Forgets all absent listeners, since our own process has opened one.
pub fn forget_absent() {
    [&ABSENT, &OTHER_VERSION, &REFUSING, &REFUSED, &REMOTE_HOSTS, &ELSEWHERE].into_iter().for_each(Table::clear);
}

/// Called in the child of a fork: drops the entries that another thread of the parent was just changing.
pub fn after_fork() {
    [&ABSENT, &OTHER_VERSION, &REFUSING, &REFUSED, &LOCAL, &DOUBTED, &REMOTE_HOSTS, &ELSEWHERE]
        .into_iter()
        .for_each(Table::after_fork);
}

/// The source address of a connection to `ip` when `ip` is an address of this host.
pub fn local_source(ip: IpAddr, now: u64) -> Option<IpAddr> {
    believed_source(ip, now).or_else(|| believe(ip, SourceProbe::new(ip)?.own_source(ip), now))
}

/// Whether a connect to a loopback address was made already.
static LOOPBACK_USED: AtomicBool = AtomicBool::new(false);

/// The source address of the process's first connect to a loopback address, which the kernel is not asked for: either no
/// server is accelerated there and the kernel connects, or the address is bound to a port, which fails where the
/// interface is down. Later connects may use a link again without binding anything, so that the kernel is asked.
pub fn first_source(ip: IpAddr) -> Option<IpAddr> {
    // Relaxed: of two first connects at once, one asks the kernel.
    (ip.is_loopback() && !LOOPBACK_USED.swap(true, Ordering::Relaxed)).then(|| expected(ip))
}

/// The source address of a connect to `ip` when `ip` is an address of this host. A destination that was reached by RDMA
/// is believed to be on another host for a while as well, since asking the kernel costs more than the rest of such a
/// connect; one that was not, for a moment. `Err`: another host; with the probe of the source address if the kernel was asked just now.
pub fn source_of_connect(ip: IpAddr, now: u64) -> Result<IpAddr, Option<SourceProbe>> {
    if let Some(source) = believed_source(ip, now) {
        return Ok(source);
    }
    if REMOTE_HOSTS.holds(host(ip), now, ADDRESS_BELIEVED) || ELSEWHERE.holds(host(ip), now, ELSEWHERE_BELIEVED) {
        return Err(None);
    }
    let probe = SourceProbe::new(ip);
    let source = believe(ip, probe.as_ref().and_then(|p| p.own_source(ip)), now);
    source.ok_or(probe)
}

/// Notes that a connect to `ip` goes to another host by RDMA.
pub fn note_remote(ip: IpAddr, now: u64) {
    REMOTE_HOSTS.note(host(ip), now);
}

/// Notes that `ip` was found to be no address of this host, and the connect goes by TCP.
pub fn note_elsewhere(ip: IpAddr, now: u64) {
    ELSEWHERE.note(host(ip), now);
}

/// Notes that a host that has answered a probe was not reached by RDMA: later connects to it wait for a queue pair
/// until one is established.
pub fn note_broken(ip: IpAddr) {
    DOUBTED.note(host(ip), 0);
}

/// Notes that a queue pair to the host was established.
pub fn note_reached(ip: IpAddr) {
    DOUBTED.forget(host(ip));
}

/// Whether no queue pair was established after the host's last answer to a probe.
pub fn is_doubted(ip: IpAddr) -> bool {
    DOUBTED.holds(host(ip), 0, u64::MAX)
}

/// The source address that is expected for a destination on this host: itself, or 127.0.0.1 for 127/8.
fn expected(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(a) if a.is_loopback() => core::net::Ipv4Addr::LOCALHOST.into(),
        ip => ip,
    }
}

fn believed_source(ip: IpAddr, now: u64) -> Option<IpAddr> {
    LOCAL.holds(host(ip), now, ADDRESS_BELIEVED).then(|| expected(ip))
}

/// Remembers `ip` if it is its own source; only such destinations are remembered.
fn believe(ip: IpAddr, source: Option<IpAddr>, now: u64) -> Option<IpAddr> {
    if source == Some(expected(ip)) {
        LOCAL.note(host(ip), now);
    }
    source
}

/// Notes that `ip` is no address of this host any more.
pub fn forget_local(ip: IpAddr) {
    LOCAL.forget(host(ip));
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
        note_absent(d, Reason::Refused, t);
        assert_eq!(known_absent(d, t + REFUSING_BELIEVED / 2), Some(Reason::Refused));
        assert_eq!(known_absent(d, t + REFUSING_BELIEVED + 1000), None);
        assert_eq!(known_absent("127.0.0.1:8".parse().unwrap(), t), None);
        note_refused(d, Reason::PeerPlain, t);
        assert_eq!(known_absent(d, t + UNREACHABLE_BELIEVED / 2), Some(Reason::PeerPlain));
        assert_eq!(known_absent(d, t + UNREACHABLE_BELIEVED + 1000), None);
    }

    #[test]
    fn an_address_that_has_left_is_asked_for_anew() {
        let ip = "192.0.2.10".parse().unwrap();
        let now = netacc_sys::time::coarse();
        assert_eq!(believe(ip, Some(ip), now), Some(ip));
        assert_eq!(local_source(ip, now), Some(ip));
        forget_local(ip);
        assert_eq!(local_source(ip, now), None);
    }

    #[test]
    fn another_hosts_address_is_believed_for_a_moment() {
        let ip = "192.0.2.9".parse().unwrap();
        let now = netacc_sys::time::coarse();
        assert!(matches!(source_of_connect(ip, now), Err(Some(_) | None)));
        note_elsewhere(ip, now);
        assert!(matches!(source_of_connect(ip, now + ELSEWHERE_BELIEVED / 2), Err(None)));
        note_elsewhere("127.0.0.1".parse().unwrap(), now);
        assert!(source_of_connect("127.0.0.1".parse().unwrap(), now + 2 * ELSEWHERE_BELIEVED).is_ok());
    }

    #[test]
    fn a_host_is_doubted_until_it_was_reached() {
        let (host, other) = ("192.0.2.7".parse().unwrap(), "192.0.2.8".parse().unwrap());
        note_broken(host);
        note_reached(other);
        assert!(is_doubted(host) && !is_doubted(other));
        note_reached(host);
        assert!(!is_doubted(host));
    }

    #[test]
    fn loopback_is_local_and_a_remote_address_is_not() {
        let now = netacc_sys::time::now();
        assert_eq!(local_source("127.0.0.1".parse().unwrap(), now), Some("127.0.0.1".parse().unwrap()));
        assert_eq!(local_source("192.0.2.1".parse().unwrap(), now), None);
    }
}
