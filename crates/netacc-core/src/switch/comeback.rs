//! Connections that an operator's request has taken from shared memory to the kernel, and that may come back.
//!
//! A connection that leaves its ring for such a reason stays a candidate for promotion ([`crate::switch::promote`]): the
//! socket layer makes its reads and writes under its locks, so that no call of the program can meet a switch halfway,
//! and a fork or a descriptor that is passed on ends the candidacy as it does for any other. While the process is off a
//! candidate *rests*. When both ends are accelerated again the client offers it to the server, as if it had begun by TCP.
//!
//! The kernel's addresses of such a connection are those of the pair of sockets that it got ([`crate::switch::pair`]). By
//! them the two ends find each other; what the program sees are the addresses of the connection.

use crate::conn::neighbours;
use crate::fork::descendants;
use crate::object::socket::{
    HANDED, HOLDS_PORT, INQ, KERNEL_OPTIONS, LINGER_RESET, REBOUND, SHARED, SIGNED, Socket, Upgrade,
};
use crate::process_mode;
use crate::timeouts;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use netacc_stats::Reason;
use netacc_sys::{addr, raw, time};
use netacc_transport::shm::segment::Leave;
use netacc_transport::shm::{ShmEndpoint, Side};

/// Number of offers that may come to nothing until the connection stays with the kernel.
const REFUSALS: u32 = 30;

const FIRST_PAUSE: u64 = time::ns(timeouts::COMEBACK_FIRST);
const LONGEST_PAUSE: u64 = time::ns(timeouts::COMEBACK_LONGEST);

/// What is to be known of a connection that rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// Whether this end has connected.
    pub client: bool,
    /// Number of bytes that this end has sent over the kernel socket.
    pub sent: u64,
    /// Number of bytes that it has read there.
    pub read: u64,
}

impl Rest {
    /// The state of the candidacy.
    pub fn upgrade(self) -> Upgrade {
        if self.client { Upgrade::ToOffer } else { Upgrade::AwaitOffer }
    }
}

/// For how long a connection is to leave its ring for this reason. Called under both direction locks.
pub(super) fn how_long(s: &Socket, ep: &ShmEndpoint, why: Reason) -> Leave {
    // The locks are held, and a thread that forks takes them after it has announced the fork.
    let may = why == Reason::Operator
        && !descendants::under_way()
        && !s.has(SHARED | HANDED | LINGER_RESET)
        && !s.upgrade.held_by.is_counted()
        && !neighbours::is_one(s)
        && !ep.side.is_remote()
        && ep.side.link().trust_is_mutual()
        && ep.side.is_whole();
    if may { Leave::ForNow } else { Leave::ForGood }
}

/// Begins the candidacy of a connection that leaves its ring for now, for the kernel socket `kernel`. `None`: it has to
/// leave for good. Called under both direction locks, before the state shows the kernel socket.
pub(super) fn begin(s: &Socket, ep: &ShmEndpoint, kernel: i32) -> Option<Upgrade> {
    // The peer has put bytes into this socket that it had not read: they count as sent by us.
    let rest = Rest { client: ep.side.link().side() == Side::Client, sent: sent_over(kernel), read: 0 };
    rest_on(s, kernel, rest).then(|| rest.upgrade())
}

/// Has a connection rest on the kernel socket `kernel`, before the state shows that. False: it cannot come back from
/// there.
pub fn rest_on(s: &Socket, kernel: i32, rest: Rest) -> bool {
    let port = |a: Option<SocketAddr>| a.map_or(0, |a| u32::from(a.port()));
    let (own, peer) = (port(addr::local_of(kernel)), port(addr::peer_of(kernel)));
    // A pair of UNIX sockets has no addresses by which the ends would find each other.
    if own == 0 || peer == 0 {
        return false;
    }
    let u = &s.upgrade;
    u.ports.store(own | peer << 16, Ordering::Relaxed);
    s.calls.store(0, Ordering::Relaxed);
    s.kernel_sent.store(rest.sent, Ordering::Relaxed);
    s.kernel_read.store(rest.read, Ordering::Relaxed);
    u.pause.store(FIRST_PAUSE, Ordering::Relaxed);
    u.refused.store(0, Ordering::Relaxed);
    // A server's word has another meaning.
    u.when.store(if rest.client { time::now().saturating_add(FIRST_PAUSE) } else { 0 }, Ordering::Relaxed);
    true
}

/// What another copy of the library is to know of a connection that rests; `None`: it does not, or this copy keeps
/// something about it that only a ring needs. No other thread reads or writes meanwhile.
pub fn rest_of(s: &Socket) -> Option<Rest> {
    const KEPT_HERE: u32 = INQ | KERNEL_OPTIONS | SIGNED | HOLDS_PORT | REBOUND;
    (rests(s) && !s.has(KEPT_HERE)).then(|| Rest {
        client: s.candidate().is_some_and(Upgrade::is_client),
        sent: s.kernel_sent.load(Ordering::Relaxed),
        read: s.kernel_read.load(Ordering::Relaxed),
    })
}

/// Number of bytes that were sent over a kernel socket; 0 before Linux 4.19, which does not tell. Bytes that wait for a
/// window do not count.
fn sent_over(kernel: i32) -> u64 {
    // tcpi_bytes_sent and tcpi_bytes_retrans in `struct tcp_info` (linux/tcp.h), in words of eight bytes.
    const SENT: usize = 25;
    const RETRANSMITTED: usize = 26;
    let mut info = [0u64; RETRANSMITTED + 1];
    let mut len = size_of_val(&info) as u32;
    let asked = raw::getsockopt(kernel, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len);
    let word = |at: usize| info.get(at).copied().unwrap_or(0);
    if asked.is_ok() { word(SENT).saturating_sub(word(RETRANSMITTED)) } else { 0 }
}

/// Whether the connection has been in a ring, and may come back.
#[inline]
pub fn was_in_ring(s: &Socket) -> bool {
    s.upgrade.ports.load(Ordering::Relaxed) != 0
}

/// Whether the kernel's socket `fd` of a connection that has been in a ring is the one between these addresses.
pub(super) fn is_between(fd: i32, s: &Socket, client: SocketAddr, server: SocketAddr) -> bool {
    let both = u32::from(server.port()) | u32::from(client.port()) << 16;
    let ip = netacc_transport::shm::rendezvous::destination;
    let plain = |a: SocketAddr| SocketAddr::new(ip(a.ip()), a.port());
    s.upgrade.ports.load(Ordering::Relaxed) == both
        && addr::local_of(fd).map(plain) == Some(server)
        && addr::peer_of(fd).map(plain) == Some(client)
}

/// Whether a candidate only waits, and makes no use of the library but for its locks: an operator's request leaves it as
/// it is.
pub fn rests(s: &Socket) -> bool {
    was_in_ring(s) && matches!(s.candidate(), Some(Upgrade::AwaitOffer | Upgrade::ToOffer))
}

/// Whether a candidate may be made to rest.
pub(super) fn may_rest(s: &Socket) -> bool {
    was_in_ring(s) && s.is_candidate()
}

/// Whether a client may make an offer: the process is accelerated, and it is time for the next attempt.
pub(super) fn is_due(s: &Socket) -> bool {
    !was_in_ring(s) || (!process_mode::is_off() && time::now() >= s.upgrade.when.load(Ordering::Relaxed))
}

/// Notes that the server cannot be reached: it is off, most likely.
pub(super) fn postpone(s: &Socket) {
    let pause = s.upgrade.pause.load(Ordering::Relaxed);
    s.upgrade.when.store(time::now().saturating_add(pause), Ordering::Relaxed);
    s.upgrade.pause.store((pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE), Ordering::Relaxed);
}

/// Whether a client makes another offer after one that was refused, or not answered in time. Called before it is withdrawn.
pub(super) fn tries_again(s: &Socket) -> bool {
    was_in_ring(s) && s.upgrade.refused.fetch_add(1, Ordering::Relaxed) < REFUSALS
}

/// Called when the process is accelerated again: the offers are due at once.
pub fn woken(s: &Socket) {
    if rests(s) && s.candidate() == Some(Upgrade::ToOffer) {
        s.upgrade.when.store(0, Ordering::Relaxed);
        s.upgrade.refused.store(0, Ordering::Relaxed);
        s.upgrade.pause.store(FIRST_PAUSE, Ordering::Relaxed);
    }
}
