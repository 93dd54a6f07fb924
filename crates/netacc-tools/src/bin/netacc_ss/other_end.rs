//! Where the other end of a connection is, if that is on this host in another network namespace: which process, in which
//! container.
//!
//! The process numbers on a page are those of the PID namespace of the process, and 0 for a peer that it cannot see. So
//! the other end is looked for among the pages of all processes, by the addresses of the connection, and where it has no
//! NetACC among the sockets of each network namespace. Only root sees all of them.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netacc_stats::{SockAddr, State, Transport};
use netacc_stats_reader::{self as reader, Snapshot, Sock};
use netacc_tools::holders::{Holder, holders};
use netacc_tools::place::{Container, namespace_of, network_of};

/// Number of sockets whose holders are looked for in one run.
const ASKED: usize = 64;

/// The process at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtherEnd {
    pub(crate) pid: u32,
    pub(crate) program: String,
    pub(crate) container: Option<Container>,
    /// Whether it has NetACC.
    pub(crate) accelerated: bool,
}

impl OtherEnd {
    /// The process and its container in words.
    pub(crate) fn described(&self) -> String {
        let program = netacc_tools::text::clean(&self.program);
        match &self.container {
            None => format!("process {} ({program})", self.pid),
            Some(container) => format!("process {} ({program}) in container {container}", self.pid),
        }
    }
}

/// The processes of this host, looked at when they are first asked for.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    pages: OnceCell<Vec<Snapshot>>,
    kernel: OnceCell<Vec<KernelEnd>>,
    /// The holder of each socket that the kernel was asked for.
    holders: RefCell<HashMap<u64, Option<Holder>>>,
}

impl Processes {
    fn pages(&self) -> &[Snapshot] {
        self.pages.get_or_init(|| reader::list_processes().map(|listing| listing.processes).unwrap_or_default())
    }

    /// The page of a process.
    pub(crate) fn page(&self, pid: u32) -> Option<&Snapshot> {
        self.pages().iter().find(|page| page.pid == pid)
    }

    /// The process at the other end of a connection of `page` that runs over shared memory, if it is in another network
    /// namespace.
    pub(crate) fn across(&self, page: &Snapshot, sock: &Sock) -> Option<OtherEnd> {
        if sock.transport.get() != Some(Transport::Shm) || sock.state.get() == Some(State::Listening) {
            return None;
        }
        let own = network_of(page.pid)?;
        // The number means something only where our PID namespace is that of the process.
        let same =
            namespace_of(page.pid, "pid").is_some_and(|own| namespace_of(std::process::id(), "pid") == Some(own));
        if same && sock.peer_pid != 0 && network_of(sock.peer_pid) == Some(own) {
            return None;
        }
        self.accelerated(page, sock, own)
    }

    /// The process at the other end of any connection of `page`, if it is in another network namespace.
    pub(crate) fn elsewhere(&self, page: &Snapshot, sock: &Sock) -> Option<OtherEnd> {
        let own = network_of(page.pid)?;
        self.accelerated(page, sock, own).or_else(|| self.by_the_kernel(sock, own))
    }

    /// The process at the other end by the sockets of the kernel in the other network namespaces.
    fn by_the_kernel(&self, sock: &Sock, own: u64) -> Option<OtherEnd> {
        let (local, peer) = (address(&sock.local)?, address(&sock.peer)?);
        let all = self.kernel.get_or_init(kernel_ends);
        let found: Vec<&KernelEnd> = all.iter().filter(|end| end.network != own && end.peer == local).collect();
        // The one whose both addresses fit, else the only one, whose destination was translated.
        let exact: Vec<&&KernelEnd> = found.iter().filter(|end| end.local == peer).collect();
        let inode = match (exact.as_slice(), found.as_slice()) {
            ([end], _) => end.inode,
            ([], [end]) => end.inode,
            _ => return None,
        };
        let mut known = self.holders.borrow_mut();
        // A question for each socket of a busy server would take minutes.
        if known.len() >= ASKED && !known.contains_key(&inode) {
            return None;
        }
        let holder = known.entry(inode).or_insert_with(|| holders(inode).into_iter().next()).clone()?;
        Some(OtherEnd {
            pid: holder.pid,
            program: holder.name,
            container: Container::of(holder.pid),
            accelerated: reader::open(holder.pid).is_ok(),
        })
    }

    fn accelerated(&self, page: &Snapshot, sock: &Sock, own: u64) -> Option<OtherEnd> {
        let (local, peer) = (address(&sock.local)?, address(&sock.peer)?);
        let (mut exact, mut translated) = (Vec::new(), Vec::new());
        for other in self.pages().iter().filter(|other| other.pid != page.pid) {
            let connections = other.socks.iter().filter(|other| other.state.get() != Some(State::Listening));
            for its in connections.filter(|its| its.transport == sock.transport) {
                let (its_local, its_peer) = (address(&its.local), address(&its.peer));
                match (its_local == Some(peer), its_peer == Some(local)) {
                    (true, true) => exact.push(other),
                    // The network has translated the destination.
                    (true, false) | (false, true) => translated.push(other),
                    (false, false) => {}
                }
            }
        }
        let found = if exact.is_empty() { translated } else { exact };
        let mut found: Vec<&Snapshot> =
            found.into_iter().filter(|page| network_of(page.pid).is_some_and(|its| its != own)).collect();
        found.dedup_by_key(|page| page.pid);
        if found.len() > 1 && sock.transport.get() == Some(Transport::Shm) {
            // Networks of their own may have the same addresses; only the two ends share memory.
            let ours = segments(page.pid);
            found.retain(|other| !ours.is_disjoint(&segments(other.pid)));
        }
        // Two processes may share an end after a fork; then the first of them is as good as the others.
        let networks: BTreeSet<Option<u64>> = found.iter().map(|page| network_of(page.pid)).collect();
        let first = found.first().filter(|_| networks.len() == 1)?;
        Some(OtherEnd {
            pid: first.pid,
            program: first.program.clone(),
            container: Container::of(first.pid),
            accelerated: true,
        })
    }
}

/// The address as its family shows it best: IPv4 addresses within IPv6 are those of IPv4.
fn address(addr: &SockAddr) -> Option<SocketAddr> {
    Some(SocketAddr::new(addr.ip()?.to_canonical(), addr.port)).filter(|addr| addr.port() != 0)
}

/// The inodes of the segments that a process has mapped.
fn segments(pid: u32) -> BTreeSet<u64> {
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let maps = String::from_utf8_lossy(&maps);
    let segments = maps.lines().filter(|line| line.contains("/memfd:netacc-link"));
    segments.filter_map(|line| line.split_ascii_whitespace().nth(4)?.parse().ok()).collect()
}

/// An end of an established connection that the kernel has in a network namespace.
#[derive(Debug)]
struct KernelEnd {
    network: u64,
    local: SocketAddr,
    peer: SocketAddr,
    inode: u64,
}

/// The established connections of every network namespace in which a process can be seen.
fn kernel_ends() -> Vec<KernelEnd> {
    let mut networks = BTreeMap::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        if let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok())
            && let Some(network) = network_of(pid)
        {
            networks.entry(network).or_insert(pid);
        }
    }
    let mut found = Vec::new();
    for (network, pid) in networks {
        for family in ["tcp", "tcp6"] {
            let table = fs::read_to_string(format!("/proc/{pid}/net/{family}")).unwrap_or_default();
            let ends = table.lines().filter_map(entry);
            found.extend(ends.map(|(local, peer, inode)| KernelEnd { network, local, peer, inode }));
        }
    }
    found
}

/// `SL: LOCAL REMOTE STATE QUEUES TIMER RETRANSMITS UID TIMEOUT INODE` of `/proc/net/tcp`: both addresses and the inode of an
/// established connection.
fn entry(line: &str) -> Option<(SocketAddr, SocketAddr, u64)> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (local, peer) = (place(words.next()?)?, place(words.next()?)?);
    let established = words.next()? == "01";
    let inode = words.nth(5)?.parse().ok().filter(|inode| *inode != 0)?;
    established.then_some((local, peer, inode))
}

/// An address in hexadecimal digits, as the kernel keeps its words in memory.
fn place(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |n: usize| Some(u32::from_str_radix(ip.get(n * 8..n * 8 + 8)?, 16).ok()?.to_ne_bytes());
    let ip: IpAddr = match ip.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let (a, b, c, d) = (word(0)?, word(1)?, word(2)?, word(3)?);
            let mut all = [0; 16];
            all.iter_mut().zip([a, b, c, d].as_flattened()).for_each(|(to, from)| *to = *from);
            Ipv6Addr::from(all).into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip.to_canonical(), u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table() {
        let line = "   1: 0100007F:1F90 0200007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 77 1 0";
        assert_eq!(entry(line), Some(("127.0.0.1:8080".parse().unwrap(), "127.0.0.2:50000".parse().unwrap(), 77)));
        assert_eq!(entry(&line.replace(" 01 ", " 0A ")), None, "it listens");
        assert_eq!(entry(&line.replace(" 77 ", " 0 ")), None, "nobody holds it");
        let mapped = "0000000000000000FFFF00000100007F:0050";
        assert_eq!(place(mapped), Some("127.0.0.1:80".parse().unwrap()));
        assert_eq!(place("B80D0120000000000000000001000000:0001"), Some("[2001:db8::1]:1".parse().unwrap()));
        for odd in ["", ":", "0100007F", "0100007:1", "0100007G:1", "0100007F:x"] {
            assert_eq!(place(odd), None, "{odd}");
        }
        assert_eq!(entry("  sl  local_address rem_address   st"), None);
    }

    #[test]
    fn a_connection_within_one_network_is_not_elsewhere() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
        let (local, peer) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        let seen = table.lines().filter_map(entry).filter(|(l, p, _)| (*l, *p) == (local, peer)).count();
        assert_eq!(seen, 1);
    }
}
