//! Where the other end of a connection is, if that is on this host in another network namespace: which process, in which
//! container.
//!
//! The process numbers on a page are those of the PID namespace of the process, and 0 for a peer that it cannot see. So
//! the other end is looked for among the pages of all processes, by the addresses of the connection, and where it has no
//! NetACC among the sockets of each network namespace. Only root sees all of them.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::hash::Hash;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;

use netacc_stats::{SockAddr, State, Transport};
use netacc_stats_reader::{self as reader, Known, Snapshot, Sock};
use netacc_tools::holders::{Holder, holders_of};
use netacc_tools::kernel_tcp::{self, KernelSocket, sockets};
use netacc_tools::place::{Container, namespace_of, network_of};
use netacc_tools::standing::{self, Standing};

/// Number of connections whose other end is asked in one run: a question for each connection of a busy server would take
/// minutes.
const ASKED: usize = 64;

/// The process at the other end of a connection.
#[derive(Debug)]
pub(crate) struct OtherEnd {
    pub(crate) pid: u32,
    pub(crate) program: String,
    pub(crate) container: Option<Container>,
    /// Whether it has NetACC.
    pub(crate) accelerated: bool,
    /// What it makes of the connection, if that was asked of the kernel's socket.
    pub(crate) standing: Option<Standing>,
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
    /// The connections of all pages.
    ends: OnceCell<Ends>,
    /// The namespaces that processes are in, and their segments: what was asked once is not asked for each connection.
    namespaces: RefCell<HashMap<(u32, &'static str), Option<u64>>>,
    segments: RefCell<HashMap<u32, BTreeSet<u64>>>,
    kernel: OnceCell<Vec<KernelEnd>>,
    /// The holders of every socket in `kernel`.
    holders: OnceCell<HashMap<u64, Vec<Holder>>>,
    /// Number of connections whose other end was asked.
    asked: Cell<usize>,
}

impl Processes {
    fn pages(&self) -> &[Snapshot] {
        self.pages.get_or_init(|| reader::list_processes().map(|listing| listing.processes).unwrap_or_default())
    }

    /// The page of a process.
    pub(crate) fn page(&self, pid: u32) -> Option<&Snapshot> {
        self.pages().iter().find(|page| page.pid == pid)
    }

    fn namespace_of(&self, pid: u32, kind: &'static str) -> Option<u64> {
        *self.namespaces.borrow_mut().entry((pid, kind)).or_insert_with(|| namespace_of(pid, kind))
    }

    fn network_of(&self, pid: u32) -> Option<u64> {
        self.namespace_of(pid, "net")
    }

    /// Whether two processes have a segment in common.
    fn share_memory(&self, one: u32, other: u32) -> bool {
        let mut known = self.segments.borrow_mut();
        for pid in [one, other] {
            known.entry(pid).or_insert_with(|| segments(pid));
        }
        known.get(&one).zip(known.get(&other)).is_some_and(|(one, other)| !one.is_disjoint(other))
    }

    /// The process at the other end of a connection of `page` that runs over shared memory, if it is in another network
    /// namespace.
    pub(crate) fn across(&self, page: &Snapshot, sock: &Sock) -> Option<OtherEnd> {
        if sock.transport.get() != Some(Transport::Shm) || sock.state.get() == Some(State::Listening) {
            return None;
        }
        let own = self.network_of(page.pid)?;
        // The number means something only where our PID namespace is that of the process.
        let pids = self.namespace_of(page.pid, "pid");
        let same = pids.is_some() && self.namespace_of(std::process::id(), "pid") == pids;
        if same && sock.peer_pid != 0 && self.network_of(sock.peer_pid) == Some(own) {
            return None;
        }
        self.accelerated(page, sock, own)
    }

    /// The process at the other end of any connection of `page`, if it is in another network namespace.
    pub(crate) fn elsewhere(&self, page: &Snapshot, sock: &Sock) -> Option<OtherEnd> {
        let own = self.network_of(page.pid)?;
        self.accelerated(page, sock, own).or_else(|| self.by_the_kernel(sock, own))
    }

    /// The process at the other end by the sockets of the kernel in the other network namespaces.
    fn by_the_kernel(&self, sock: &Sock, own: u64) -> Option<OtherEnd> {
        let (local, peer) = (address(&sock.local)?, address(&sock.peer)?);
        let all = self.kernel.get_or_init(kernel_ends);
        let elsewhere = all.iter().filter(|end| end.network != own && end.socket.is_established());
        let found: Vec<&KernelSocket> = elsewhere.map(|end| &end.socket).filter(|end| end.peer == local).collect();
        // The one whose both addresses fit, else the only one, whose destination was translated.
        let exact: Vec<&&KernelSocket> = found.iter().filter(|end| end.local == peer).collect();
        let inode = match (exact.as_slice(), found.as_slice()) {
            ([end], _) => end.inode,
            ([], [end]) => end.inode,
            _ => return None,
        };
        let holder = self.holders_of(inode).into_iter().next().filter(|_| self.may_ask())?;
        Some(OtherEnd {
            pid: holder.pid,
            program: holder.name.clone(),
            container: Container::of(holder.pid),
            accelerated: reader::open(holder.pid).is_ok(),
            standing: standing::of_connection(&[holder]),
        })
    }

    /// Whether one more connection may be asked about, which is then counted.
    fn may_ask(&self) -> bool {
        self.asked.replace(self.asked.get().saturating_add(1)) < ASKED
    }

    /// The holders of a socket; one walk through `/proc` finds those of all sockets.
    fn holders_of(&self, inode: u64) -> Vec<Holder> {
        let all = || {
            let ends = self.kernel.get_or_init(kernel_ends);
            holders_of(&ends.iter().map(|end| end.socket.inode).collect::<Vec<_>>())
        };
        self.holders.get_or_init(all).get(&inode).cloned().unwrap_or_default()
    }

    /// What the process at the other end makes of a connection of `page` within one network namespace that runs by TCP.
    /// For a connection that was made, `of_listener` asks about the listener, which a later connection would reach.
    pub(crate) fn beside(&self, page: &Snapshot, sock: &Sock, of_listener: bool) -> Option<Standing> {
        if !self.may_ask() {
            return None;
        }
        let own = self.network_of(page.pid)?;
        let (local, peer) = (address(&sock.local), address(&sock.peer)?);
        let all = self.kernel.get_or_init(kernel_ends);
        let here: Vec<KernelSocket> = all.iter().filter(|end| end.network == own).map(|end| end.socket).collect();
        if of_listener {
            let inodes = kernel_tcp::listeners(&here, peer);
            if let Some(standing) = inodes.into_iter().find_map(|inode| standing::of_listener(&self.holders_of(inode)))
            {
                return Some(standing);
            }
        }
        // The kernel's sockets have other addresses if the connection was in shared memory before.
        let ends = self.pages().iter().flat_map(|other| other.socks.iter().map(move |its| (other, its)));
        let is_other = |(_, its): &(&Snapshot, &Sock)| {
            let is_connection = its.state.get() != Some(State::Listening);
            is_connection && local.is_some() && address(&its.local) == Some(peer) && address(&its.peer) == local
        };
        if let Some((other, its)) = ends.filter(is_other).find(|(other, _)| self.network_of(other.pid) == Some(own)) {
            let uid = fs::metadata(format!("/proc/{}", other.pid)).map_or(0, |found| found.uid());
            let holder = Holder { pid: other.pid, name: other.program.clone(), uid, fds: vec![its.fd] };
            return standing::of_connection(&[holder]);
        }
        let other = here.iter().find(|end| end.is_established() && Some(end.peer) == local && end.local == peer)?;
        standing::of_connection(&self.holders_of(other.inode))
    }

    fn accelerated(&self, page: &Snapshot, sock: &Sock, own: u64) -> Option<OtherEnd> {
        let (local, peer) = (address(&sock.local)?, address(&sock.peer)?);
        let pages = self.pages();
        let ends = self.ends.get_or_init(|| Ends::of(pages));
        let others = |places: &[Option<&Vec<Place>>]| -> Vec<&Snapshot> {
            let places = places.iter().flatten().flat_map(|places| places.iter());
            let found: BTreeSet<usize> =
                places.filter(|(_, transport)| *transport == sock.transport).map(|(index, _)| *index).collect();
            found.into_iter().filter_map(|index| pages.get(index)).filter(|other| other.pid != page.pid).collect()
        };
        let mut found = others(&[ends.pairs.get(&(peer, local))]);
        if found.is_empty() {
            // The network may have translated the destination.
            found = others(&[ends.locals.get(&peer), ends.peers.get(&local)]);
        }
        found.retain(|other| self.network_of(other.pid).is_some_and(|its| its != own));
        if found.len() > 1 && sock.transport.get() == Some(Transport::Shm) {
            // Networks of their own may have the same addresses; only the two ends share memory.
            found.retain(|other| self.share_memory(page.pid, other.pid));
        }
        // Two processes may share an end after a fork; then the first of them is as good as the others.
        let networks: BTreeSet<Option<u64>> = found.iter().map(|page| self.network_of(page.pid)).collect();
        let first = found.first().filter(|_| networks.len() == 1)?;
        Some(OtherEnd {
            pid: first.pid,
            program: first.program.clone(),
            container: Container::of(first.pid),
            accelerated: true,
            standing: None,
        })
    }
}

/// The index of a page, and what carries a connection on it.
type Place = (usize, Known<Transport>);

/// Where the connections of all pages are, by their addresses: both, their own, and that of their other end. A host may
/// have tens of thousands of them.
#[derive(Debug, Default)]
struct Ends {
    pairs: HashMap<(SocketAddr, SocketAddr), Vec<Place>>,
    locals: HashMap<SocketAddr, Vec<Place>>,
    peers: HashMap<SocketAddr, Vec<Place>>,
}

impl Ends {
    fn of(pages: &[Snapshot]) -> Self {
        fn add<K: Eq + Hash>(map: &mut HashMap<K, Vec<Place>>, key: Option<K>, place: Place) {
            let Some(places) = key.map(|key| map.entry(key).or_default()) else { return };
            // A server has many connections at one address.
            if places.last() != Some(&place) {
                places.push(place);
            }
        }
        let mut ends = Self::default();
        for (index, page) in pages.iter().enumerate() {
            for sock in page.socks.iter().filter(|sock| sock.state.get() != Some(State::Listening)) {
                let (local, peer) = (address(&sock.local), address(&sock.peer));
                let place = (index, sock.transport);
                add(&mut ends.pairs, local.zip(peer), place);
                add(&mut ends.locals, local, place);
                add(&mut ends.peers, peer, place);
            }
        }
        ends
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

/// A TCP socket, and the network namespace that it is in.
#[derive(Debug)]
struct KernelEnd {
    network: u64,
    socket: KernelSocket,
}

/// The TCP sockets of every network namespace in which a process can be seen.
fn kernel_ends() -> Vec<KernelEnd> {
    let mut networks = BTreeMap::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        if let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok())
            && let Some(network) = network_of(pid)
        {
            networks.entry(network).or_insert(pid);
        }
    }
    let each = networks.into_iter();
    each.flat_map(|(network, pid)| sockets(pid).into_iter().map(move |socket| KernelEnd { network, socket })).collect()
}
