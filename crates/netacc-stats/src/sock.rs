//! The page's entries for socket descriptors.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, fence};

use crate::addr::SockAddr;
use crate::reason::Reason;
use crate::rules;
use crate::table::numbered;

numbered! {
    /// What a socket is doing.
    pub enum State {
        /// The descriptor is no socket of ours; the entry is free.
        Closed = 0, "CLOSED";
        /// The socket is neither connected nor listening.
        New = 1, "NEW";
        /// A connect is under way.
        Connecting = 2, "CONNECTING";
        /// The socket listens.
        Listening = 3, "LISTEN";
        /// The socket is connected.
        Established = 4, "ESTAB";
        /// The connection is shut down in at least one direction.
        Closing = 5, "CLOSING";
    }
}

numbered! {
    /// The path that carries a connection's bytes.
    pub enum Transport {
        /// Not decided yet.
        None = 0, "-";
        /// The kernel socket.
        Tcp = 1, "TCP";
        /// Shared memory.
        Shm = 2, "SHM";
        /// An RDMA queue pair.
        Rdma = 3, "RDMA";
    }
}

impl Transport {
    /// Whether the transport is faster than TCP.
    #[must_use]
    pub const fn is_fast(self) -> bool {
        matches!(self, Self::Shm | Self::Rdma)
    }
}

/// An address in the page. That of a socket is consistent only under the entry's `addr_seq`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct AddrCell {
    pub(crate) family: AtomicU16,
    pub(crate) port: AtomicU16,
    spare: AtomicU32,
    pub(crate) ip: [AtomicU64; 2],
}

impl AddrCell {
    pub(crate) const fn new() -> Self {
        Self {
            family: AtomicU16::new(0),
            port: AtomicU16::new(0),
            spare: AtomicU32::new(0),
            ip: [AtomicU64::new(0), AtomicU64::new(0)],
        }
    }

    pub(crate) fn store(&self, addr: &SockAddr) {
        self.family.store(addr.family, Relaxed);
        self.port.store(addr.port, Relaxed);
        // The bytes keep their order in memory; only their grouping into words differs.
        let [a, b, c, d, e, f, g, h, rest @ ..] = addr.ip;
        let [first, second] = &self.ip;
        first.store(u64::from_ne_bytes([a, b, c, d, e, f, g, h]), Relaxed);
        second.store(u64::from_ne_bytes(rest), Relaxed);
    }

    fn copy_from(&self, other: &Self) {
        self.family.store(other.family.load(Relaxed), Relaxed);
        self.port.store(other.port.load(Relaxed), Relaxed);
        for (to, from) in self.ip.iter().zip(&other.ip) {
            to.store(from.load(Relaxed), Relaxed);
        }
    }
}

/// What the page says about one descriptor; found by [`Page::sock`](crate::Page::sock).
///
/// The caller serialises the writers of one entry: one thread at a time calls
/// [`received`](Self::received), one [`sent`](Self::sent), and one all the rest;
/// these three may run at once. So a plain load and store suffice to increment
/// a counter.
///
/// The counters of the two directions lie on two cache lines, so that a thread
/// that sends and one that receives do not contend for one; the other lines are
/// accessed when the addresses or the transport change.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct SockEntry {
    state: AtomicU32,
    transport: AtomicU32,
    reason: AtomicU32,
    peer_pid: AtomicU32,
    since_ns: AtomicU64,
    link: AtomicU64,
    msgs_in: AtomicU64,
    bytes_in: AtomicU64,
    /// A sequence count, which is odd while addresses, transport and past volumes are being written and grows by 2 per
    /// change.
    addr_seq: AtomicU32,
    /// The rule that decided about the socket, as [`rules`](crate::rules) names it; 0: none did.
    rule: AtomicU32,
    spare: [AtomicU32; 2],
    msgs_out: AtomicU64,
    bytes_out: AtomicU64,
    local: AddrCell,
    peer: AddrCell,
    /// The volumes that earlier sockets of this descriptor moved, by transport. With the four counters above they make
    /// up the totals of the process, and cost time only when a descriptor is used again or its transport changes.
    past_tcp: Volume,
    past_shm: Volume,
    past_rdma: Volume,
    /// Unused words that make the size a power of two, so that an entry is found by a shift.
    spare2: [AtomicU64; 4],
}

/// Numbers of messages and bytes, received and sent. A number may wrap below zero, as long as the sum over all
/// transports is right (see [`SockEntry::set_transport`]).
#[derive(Debug)]
#[repr(C)]
struct Volume([AtomicU64; 4]);

impl Volume {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 4])
    }

    fn add(&self, moved: [u64; 4]) {
        for (cell, by) in self.0.iter().zip(moved) {
            bump(cell, by);
        }
    }
}

/// Byte offsets of the fields, for the reader.
#[allow(missing_docs, reason = "named like the fields")]
pub mod at {
    use super::{AddrCell, SockEntry};
    use core::mem::offset_of;

    pub const STATE: usize = offset_of!(SockEntry, state);
    pub const TRANSPORT: usize = offset_of!(SockEntry, transport);
    pub const REASON: usize = offset_of!(SockEntry, reason);
    pub const PEER_PID: usize = offset_of!(SockEntry, peer_pid);
    pub const SINCE: usize = offset_of!(SockEntry, since_ns);
    pub const LINK: usize = offset_of!(SockEntry, link);
    pub const MSGS_IN: usize = offset_of!(SockEntry, msgs_in);
    pub const BYTES_IN: usize = offset_of!(SockEntry, bytes_in);
    pub const ADDR_SEQ: usize = offset_of!(SockEntry, addr_seq);
    pub const RULE: usize = offset_of!(SockEntry, rule);
    pub const MSGS_OUT: usize = offset_of!(SockEntry, msgs_out);
    pub const BYTES_OUT: usize = offset_of!(SockEntry, bytes_out);
    pub const PAST_TCP: usize = offset_of!(SockEntry, past_tcp);
    pub const PAST_SHM: usize = offset_of!(SockEntry, past_shm);
    pub const PAST_RDMA: usize = offset_of!(SockEntry, past_rdma);
    pub const LOCAL: usize = offset_of!(SockEntry, local);
    pub const PEER: usize = offset_of!(SockEntry, peer);
    pub const ADDR_PORT: usize = offset_of!(AddrCell, port);
    pub const ADDR_IP: usize = offset_of!(AddrCell, ip);
}

/// Adds to a counter that has one writer at a time.
pub(crate) fn bump(cell: &AtomicU64, by: u64) -> u64 {
    let sum = cell.load(Relaxed).wrapping_add(by);
    cell.store(sum, Relaxed);
    sum
}

impl SockEntry {
    /// A free entry.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: AtomicU32::new(0),
            transport: AtomicU32::new(0),
            reason: AtomicU32::new(0),
            peer_pid: AtomicU32::new(0),
            since_ns: AtomicU64::new(0),
            link: AtomicU64::new(0),
            msgs_in: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            addr_seq: AtomicU32::new(0),
            rule: AtomicU32::new(0),
            spare: [const { AtomicU32::new(0) }; 2],
            msgs_out: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            local: AddrCell::new(),
            peer: AddrCell::new(),
            past_tcp: Volume::new(),
            past_shm: Volume::new(),
            past_rdma: Volume::new(),
            spare2: [const { AtomicU64::new(0) }; 4],
        }
    }

    /// Takes the entry for a new socket and forgets everything about the last one.
    ///
    /// `now_ns` is CLOCK_REALTIME in nanoseconds.
    pub fn open(&self, state: State, transport: Transport, reason: Reason, now_ns: u64) {
        // A reader must see the last socket's volumes exactly once, since totals never fall.
        self.change(|| {
            self.past(self.transport()).add(self.moved());
            for cell in [&self.msgs_in, &self.bytes_in, &self.msgs_out, &self.bytes_out, &self.link] {
                cell.store(0, Relaxed);
            }
            self.transport.store(transport as u32, Relaxed);
            self.local.store(&SockAddr::default());
            self.peer.store(&SockAddr::default());
        });
        self.peer_pid.store(0, Relaxed);
        self.rule.store(0, Relaxed);
        self.since_ns.store(now_ns, Relaxed);
        self.set_reason(reason);
        // Release: a reader that sees the entry in use sees none of the last socket's values.
        self.state.store(state as u32, Release);
    }

    /// Stores what the socket is doing now.
    pub fn set_state(&self, state: State) {
        self.state.store(state as u32, Release);
    }

    /// Stores which transport carries the bytes now. The volume so far stays with the transport that moved it.
    pub fn set_transport(&self, transport: Transport) {
        self.change(|| {
            // The socket keeps its counts, with which a reader credits the new transport, so they are
            // subtracted there.
            let moved = self.moved();
            self.past(self.transport()).add(moved);
            self.past(transport).add(moved.map(u64::wrapping_neg));
            self.transport.store(transport as u32, Relaxed);
        });
    }

    fn moved(&self) -> [u64; 4] {
        [&self.msgs_in, &self.bytes_in, &self.msgs_out, &self.bytes_out].map(|cell| cell.load(Relaxed))
    }

    fn past(&self, transport: Transport) -> &Volume {
        match transport {
            Transport::None | Transport::Tcp => &self.past_tcp,
            Transport::Shm => &self.past_shm,
            Transport::Rdma => &self.past_rdma,
        }
    }

    /// Stores why the transport is not a faster one.
    pub fn set_reason(&self, reason: Reason) {
        self.reason.store(reason as u32, Relaxed);
    }

    /// Stores the rule that decided about the socket: the number of its rule set, and its own within that, counted from
    /// 0.
    pub fn set_rule(&self, rule: Option<(u32, usize)>) {
        self.rule.store(rule.map_or(0, |(set, rule)| rules::name_of(set, rule)), Relaxed);
    }

    /// Stores the process at the other end; 0 if it is not known.
    pub fn set_peer_pid(&self, pid: u32) {
        self.peer_pid.store(pid, Relaxed);
    }

    /// Stores the number of the link that carries the connection; 0 for none.
    pub fn set_link(&self, link: u64) {
        self.link.store(link, Relaxed);
    }

    /// The number of the link that carries the connection, as last stored.
    #[must_use]
    pub fn link(&self) -> u64 {
        self.link.load(Relaxed)
    }

    /// Stores both addresses.
    ///
    /// By the sequence count a reader notices that it saw half of a change.
    pub fn set_addrs(&self, local: &SockAddr, peer: &SockAddr) {
        self.change(|| {
            self.local.store(local);
            self.peer.store(peer);
        });
    }

    /// Runs `write`, which changes fields that a reader must see as a whole, under the sequence count.
    fn change(&self, write: impl FnOnce()) {
        let odd = self.addr_seq.load(Relaxed) | 1;
        self.addr_seq.store(odd, Relaxed);
        // The fence keeps the stores of the change after the odd count. The reader
        // reads the count again after the fields.
        fence(Release);
        write();
        // Release: the even count is seen only with the change complete.
        self.addr_seq.store(odd.wrapping_add(1), Release);
    }

    /// Counts one message of `bytes` bytes that the program received. Returns the number of messages so far.
    #[inline]
    pub fn received(&self, bytes: u64) -> u64 {
        bump(&self.bytes_in, bytes);
        bump(&self.msgs_in, 1)
    }

    /// Counts one message of `bytes` bytes that the program sent.
    #[inline]
    pub fn sent(&self, bytes: u64) {
        bump(&self.msgs_out, 1);
        bump(&self.bytes_out, bytes);
    }

    /// Frees the entry.
    pub fn close(&self) {
        self.state.store(State::Closed as u32, Release);
    }

    /// What the socket is doing, as last stored.
    #[must_use]
    pub fn state(&self) -> State {
        State::from_u32(self.state.load(Acquire)).unwrap_or(State::Closed)
    }

    /// The transport that carries the bytes, as last stored.
    #[must_use]
    pub fn transport(&self) -> Transport {
        Transport::from_u32(self.transport.load(Relaxed)).unwrap_or(Transport::None)
    }

    /// Why the transport is not a faster one, as last stored.
    #[must_use]
    pub fn reason(&self) -> Reason {
        Reason::from_u32(self.reason.load(Relaxed)).unwrap_or(Reason::None)
    }

    /// Takes over the connection's addresses, state and link from `from`, with the
    /// counters at zero: a forked child counts only what it moves itself.
    pub(crate) fn inherit(&self, from: &Self) {
        self.change(|| {
            self.local.copy_from(&from.local);
            self.peer.copy_from(&from.peer);
        });
        for (to, from) in
            [(&self.transport, &from.transport), (&self.reason, &from.reason), (&self.peer_pid, &from.peer_pid)]
        {
            to.store(from.load(Relaxed), Relaxed);
        }
        self.since_ns.store(from.since_ns.load(Relaxed), Relaxed);
        self.link.store(from.link.load(Relaxed), Relaxed);
        self.state.store(from.state.load(Relaxed), Release);
    }
}

impl Default for SockEntry {
    fn default() -> Self {
        Self::new()
    }
}
