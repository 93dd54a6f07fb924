//! The page's entries for links and queue pairs, which carry the connections to other processes.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use crate::addr::SockAddr;
use crate::sock::{AddrCell, bump};
use crate::table::numbered;

numbered! {
    /// What a link is made of.
    pub enum LinkKind {
        /// A segment of shared memory.
        Shm = 1, "SHM";
        /// A reliable connected queue pair.
        Rdma = 2, "RDMA";
        /// A TCP connection whose queue pair has failed.
        Tcp = 3, "TCP";
    }
}

/// Added to `LinkEntry::conns`, it counts one more connection in both halves.
const ONE_MORE: u64 = 1 << 32 | 1;
/// The first bit of the thread's number in `LinkEntry::server`.
pub const THREAD: u32 = 16;
/// Room in bytes for the name of a device, which ends with a zero if it is shorter.
pub const DEVICE_LEN: usize = 16;

/// What the page says about one link; found by [`Page::link`](crate::Page::link).
///
/// An entry belongs to the link from [`Page::open_link`](crate::Page::open_link) to [`close`](Self::close).
#[derive(Debug)]
#[repr(C, align(64))]
pub struct LinkEntry {
    /// The link's number in its process; 0: the entry is free. It is stored last, with Release.
    pub(crate) id: AtomicU32,
    pub(crate) kind: AtomicU32,
    /// 1 if this process listened. The bits from [`THREAD`] on name the thread that carries a queue pair.
    pub(crate) server: AtomicU32,
    pub(crate) peer_pid: AtomicU32,
    /// When the link was opened: CLOCK_REALTIME in nanoseconds.
    pub(crate) opened_ns: AtomicU64,
    /// When the last connection left; it has no meaning while there are connections.
    pub(crate) idle_ns: AtomicU64,
    /// When the link ends if it stays idle; 0: never.
    pub(crate) expires_ns: AtomicU64,
    /// Connections now (low half) and ever (high half), so that each costs one instruction.
    pub(crate) conns: AtomicU64,
    /// The number of connections for which there is room.
    pub(crate) capacity: AtomicU32,
    /// Receives of a queue pair's other side: the free ones in the low half, all of them in the high half.
    pub(crate) credits: AtomicU32,
    /// The address in this process at which a link's segment is mapped, as `/proc/PID/maps` shows it; for a queue pair,
    /// its number on the device.
    pub(crate) address: AtomicU64,
    /// The address of a queue pair's other host, with the RDMA port of the listener.
    pub(crate) peer: AddrCell,
    pub(crate) device: [AtomicU8; DEVICE_LEN],
    /// Sends of a queue pair that were posted. Like the two counters below, it has one writer at a time.
    pub(crate) posted: AtomicU64,
    /// Sends that have completed.
    pub(crate) completed: AtomicU64,
    /// Messages that were received.
    pub(crate) received: AtomicU64,
}

/// Byte offsets of the fields, for the reader.
#[allow(missing_docs, reason = "named like the fields")]
pub mod at {
    use super::LinkEntry;
    use core::mem::offset_of;

    pub const ID: usize = offset_of!(LinkEntry, id);
    pub const KIND: usize = offset_of!(LinkEntry, kind);
    pub const SERVER: usize = offset_of!(LinkEntry, server);
    pub const PEER_PID: usize = offset_of!(LinkEntry, peer_pid);
    pub const OPENED: usize = offset_of!(LinkEntry, opened_ns);
    pub const IDLE: usize = offset_of!(LinkEntry, idle_ns);
    pub const EXPIRES: usize = offset_of!(LinkEntry, expires_ns);
    pub const CONNS: usize = offset_of!(LinkEntry, conns);
    pub const CAPACITY: usize = offset_of!(LinkEntry, capacity);
    pub const ADDRESS: usize = offset_of!(LinkEntry, address);
    pub const CREDITS: usize = offset_of!(LinkEntry, credits);
    pub const PEER: usize = offset_of!(LinkEntry, peer);
    pub const DEVICE: usize = offset_of!(LinkEntry, device);
    pub const POSTED: usize = offset_of!(LinkEntry, posted);
    pub const COMPLETED: usize = offset_of!(LinkEntry, completed);
    pub const RECEIVED: usize = offset_of!(LinkEntry, received);
}

/// The facts about a link that are known when it begins.
#[derive(Clone, Copy, Debug)]
pub struct NewLink {
    /// The link's number in this process, not 0.
    pub id: u32,
    /// What the link is made of.
    pub kind: LinkKind,
    /// Whether this process listened.
    pub server: bool,
    /// The process at the other end; 0 if it is not known.
    pub peer_pid: u32,
    /// The time: CLOCK_REALTIME in nanoseconds.
    pub now_ns: u64,
    /// The number of connections for which there is room.
    pub capacity: u32,
    /// The address at which the segment is mapped; for a queue pair, its number on the device.
    pub address: u64,
}

impl LinkEntry {
    /// The number in an entry that is being filled: no link has this number, and readers skip the entry.
    pub const TAKEN: u32 = u32::MAX;

    /// A free entry.
    pub(crate) const fn new() -> Self {
        Self {
            id: AtomicU32::new(0),
            kind: AtomicU32::new(0),
            server: AtomicU32::new(0),
            peer_pid: AtomicU32::new(0),
            opened_ns: AtomicU64::new(0),
            idle_ns: AtomicU64::new(0),
            expires_ns: AtomicU64::new(0),
            conns: AtomicU64::new(0),
            capacity: AtomicU32::new(0),
            credits: AtomicU32::new(0),
            address: AtomicU64::new(0),
            peer: AddrCell::new(),
            device: [const { AtomicU8::new(0) }; DEVICE_LEN],
            posted: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            received: AtomicU64::new(0),
        }
    }

    /// Takes the entry for a link if the entry is free, and returns whether it was.
    pub(crate) fn open(&self, link: &NewLink) -> bool {
        // Acquire: the stores below come after those of the link before.
        if self.id.compare_exchange(0, Self::TAKEN, Acquire, Relaxed).is_err() {
            return false;
        }
        self.kind.store(link.kind as u32, Relaxed);
        self.server.store(link.server.into(), Relaxed);
        self.peer_pid.store(link.peer_pid, Relaxed);
        self.opened_ns.store(link.now_ns, Relaxed);
        self.idle_ns.store(link.now_ns, Relaxed);
        self.expires_ns.store(0, Relaxed);
        self.conns.store(0, Relaxed);
        self.capacity.store(link.capacity, Relaxed);
        self.address.store(link.address, Relaxed);
        self.set_credits(0, 0);
        self.lead_to("", &SockAddr::default());
        for counter in [&self.posted, &self.completed, &self.received] {
            counter.store(0, Relaxed);
        }
        // Release: a reader that sees the number sees what belongs to it.
        self.id.store(link.id, Release);
        true
    }

    /// Changes what the link is made of: a queue pair that has failed becomes [`LinkKind::Tcp`].
    pub fn set_kind(&self, kind: LinkKind) {
        self.kind.store(kind as u32, Relaxed);
    }

    /// Counts a connection that begins on the link.
    #[inline]
    pub fn taken(&self) {
        self.conns.fetch_add(ONE_MORE, Relaxed);
    }

    /// Counts a connection that ends, and returns whether it was the last one.
    #[inline]
    #[must_use]
    pub fn left(&self) -> bool {
        // The low half never borrows from the high one: each connection that leaves was counted when it came.
        self.conns.fetch_sub(1, Relaxed) as u32 == 1
    }

    /// Stores since when the link has no connection (CLOCK_REALTIME in nanoseconds).
    pub fn idle_since(&self, now_ns: u64) {
        self.idle_ns.store(now_ns, Relaxed);
    }

    /// Stores when the link ends if it stays idle (CLOCK_REALTIME in nanoseconds); 0: never.
    pub fn expires_at(&self, ns: u64) {
        self.expires_ns.store(ns, Relaxed);
    }

    /// Stores the device of a queue pair and the address to which it leads.
    pub fn lead_to(&self, device: &str, peer: &SockAddr) {
        let name = device.bytes().chain(core::iter::repeat(0));
        for (cell, byte) in self.device.iter().zip(name) {
            cell.store(byte, Relaxed);
        }
        self.peer.store(peer);
    }

    /// Stores which of the process's I/O threads carries a queue pair.
    pub fn carried_by(&self, thread: u16) {
        self.server.fetch_or(u32::from(thread) << THREAD, Relaxed);
    }

    /// Stores how many receives of the other side are free, and how many it has.
    #[inline]
    pub fn set_credits(&self, free: u16, all: u16) {
        self.credits.store(u32::from(all) << 16 | u32::from(free), Relaxed);
    }

    /// Counts sends that were posted. One thread at a time may call this, [`completed`](Self::completed) or
    /// [`received`](Self::received).
    #[inline]
    pub fn posted(&self, sends: u64) {
        bump(&self.posted, sends);
    }

    /// Counts sends that have completed.
    #[inline]
    pub fn completed(&self, sends: u64) {
        bump(&self.completed, sends);
    }

    /// Counts a message that was received.
    #[inline]
    pub fn received(&self) {
        bump(&self.received, 1);
    }

    /// The counters of a queue pair: posted sends, completed sends, and received messages.
    #[must_use]
    pub fn messages(&self) -> [u64; 3] {
        [&self.posted, &self.completed, &self.received].map(|counter| counter.load(Relaxed))
    }

    /// The number of the link that has the entry; 0: none has.
    #[must_use]
    pub fn id(&self) -> u32 {
        match self.id.load(Acquire) {
            Self::TAKEN => 0,
            id => id,
        }
    }

    /// Whether the entry is that of a queue pair that has failed and whose connections use its companion.
    #[must_use]
    pub fn is_failed_over(&self) -> bool {
        self.kind.load(Relaxed) == LinkKind::Tcp as u32
    }

    /// Whether the entry is that of a queue pair that has not failed.
    #[must_use]
    pub fn is_rdma(&self) -> bool {
        self.kind.load(Relaxed) == LinkKind::Rdma as u32
    }

    pub(crate) fn is_open(&self) -> bool {
        self.id.load(Relaxed) != 0
    }

    /// The number of connections that the link has now.
    #[must_use]
    pub fn in_use(&self) -> u32 {
        self.conns.load(Relaxed) as u32
    }

    /// Frees the entry if link `id` still has it, which is not so in the child of a fork.
    pub fn close(&self, id: u32) {
        // AcqRel: all stores for this link come before the stores for the next one.
        let _ = self.id.compare_exchange(id, 0, AcqRel, Relaxed);
    }
}
