//! The layout of a link's shared segment, and the accessors to it.
//!
//! # Safety
//! The shared words and the small windows are mapped as long as the link lives, and the large windows of a slot before
//! a connection begins in it; `super::mapping` explains why no access to them can fault. Every accessor checks its
//! index against a constant, and returns references to atomics or an [`Area`], whose bytes are copied as raw memory.
#![allow(unsafe_code)]

use crate::shm::blocks::Blocks;
use crate::shm::side::Side;
use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use netacc_ring::{Area, ConsumerLine, LARGE, OwnLine, ReadySet, SLOTS, SMALL, to_usize};
use netacc_sys::cpu;
use netacc_sys::mem::LARGEST_PAGE;

/// Number of ready sets per side; number 0 means "none".
pub const READY_SETS: usize = 64;

/// The waker number of a process without a link of its own, which is woken by a byte on the connection's peer liveness
/// socket. It is a value of the words of [`OwnLine`] that name the thread to be woken.
pub const LIVENESS_WAKER: u32 = u32::MAX;

/// The waker number of such a process that is alone with the connection and has a waker for it ([`super::heir_waker`]).
pub const HEIR_WAKER: u32 = u32::MAX - 1;

/// Number of connects that the server reads at once.
pub const BATCH: usize = 32;

/// Words about the link as a whole.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Header {
    /// State of the link at the server ([`ServerState`](crate::shm::ServerState)). Written by the server.
    pub server: AtomicU32,
    /// Largest number of connects that may wait at the listener, one more than its backlog; 0: not known. Written by
    /// the server, and before that by the client, which asks the kernel.
    pub backlog: AtomicU32,
    /// The server's process id, for display; 0: not known, as if it is in another PID namespace. Written by the server.
    pub server_pid: AtomicU32,
    /// Not 0: several processes serve the listener. Written by the server, and by the client when it makes the link if
    /// the name of the rendezvous tells it.
    pub many: AtomicU32,
    /// Not 0: the client has made another link to the same listener after this one. Set by the client, cleared by the
    /// server.
    pub more: AtomicU32,
    /// Per side: not 0 if a wake-up message found the control socket full, so that all wakers have to be written. Set
    /// by the other side, cleared by the side itself.
    pub kick_all: [AtomicU32; 2],
    /// Per side: whether it accepts descriptors from the other side, as [`LENDING_UNKNOWN`], [`TAKES_LENT`] or
    /// [`REFUSES_LENT`]. Written by the side itself when it makes its end of the link, and when it trusts the other
    /// side no longer.
    pub lending: [AtomicU32; 2],
    /// Position of the next push in the connect queue, written by the client. It and `popped` are on cache lines of
    /// their own, since both sides write all the time.
    pub pushed: Position,
    /// Position of the next pop in the connect queue, written by the server.
    pub popped: Position,
}

/// A position in the connect queue.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Position(AtomicU64);

impl core::ops::Deref for Position {
    type Target = AtomicU64;

    fn deref(&self) -> &AtomicU64 {
        &self.0
    }
}

/// Value of [`Header::lending`]: the side has not made its end of the link yet.
pub const LENDING_UNKNOWN: u32 = 0;
/// Value of [`Header::lending`]: the side trusts the other one.
pub const TAKES_LENT: u32 = 1;
/// Value of [`Header::lending`]: the side does not trust the other one.
pub const REFUSES_LENT: u32 = 2;

/// How many processes serve the listener of a link, as its server says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ServedBy {
    /// The server alone; or it has not said anything yet.
    One = 0,
    /// Several processes, which come back to the listener soon, since they wait for other events beside connects.
    Several = 1,
    /// Several processes that wait in accept(2), and that may serve a connection for any time after each.
    Acceptors = 2,
    /// Several processes have the listener, and the server is the only one that has served it so far.
    Forked = 3,
}

/// Value of [`Open::outcome`]: the connect waits in the queue.
pub const CONNECT_QUEUED: u32 = 0;
/// Value of [`Open::outcome`]: the server has accepted the connect.
pub const CONNECT_TAKEN: u32 = 1;
/// Value of [`Open::outcome`]: the client has withdrawn the connect and made it in another way.
pub const CONNECT_WITHDRAWN: u32 = 2;

/// Value of [`Open::outcome`]: the server has refused the connect (its listener has ended, or it is a promotion of a connection
/// that the server does not know).
pub const CONNECT_REFUSED: u32 = 3;

/// Bit of [`Open::server_done`]: the server has also wiped its own words. No generation has this bit.
pub const WIPED: u32 = 1 << 31;

/// For how long a connection leaves the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Leave {
    /// Its kernel socket may have other users, known to nobody.
    ForGood = 1,
    /// Until an operator permits it again: only the library reads and writes the kernel socket meanwhile.
    ForNow = 2,
}

/// Description of a connect, which the client writes before it queues the slot number. The words that are written later
/// as well name their writers.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Open {
    /// Client's and server's address: 16 bytes each as four words, IPv4 in the first.
    pub ip: [[AtomicU32; 4]; 2],
    /// Per side: the port in the lower half, the family (`AF_INET`, `AF_INET6`) above it, and above that what
    /// [`Open::write_remote`] and [`Open::write_qp`] store.
    pub family_port: [AtomicU32; 2],
    /// Generation of the slot: the number of its connection.
    pub generation: AtomicU32,
    /// [`CONNECT_QUEUED`] until the server takes or refuses the connect or the client withdraws it, whichever comes
    /// first. Both sides write it by a compare-and-exchange.
    pub outcome: AtomicU32,
    /// Time (ns, [`netacc_sys::time::now`]) at which the connect was made: a listener with several links serves them in
    /// this order. A client that stores a wrong time only changes its own position among the clients.
    pub when: AtomicU64,
    /// Generation of the slot that the server has released, perhaps with [`WIPED`]. Written by the server, or by the
    /// client if all processes of the server that had the connection have ended.
    pub server_done: AtomicU32,
    /// A [`Leave`] once a process of either side has decided to leave the rings, before 0. Both sides write it by an
    /// exchange: the process that finds 0 leaves.
    pub leaving: AtomicU32,
}

/// The shared words of one connection. Index 0 is the client's, 1 the server's. The client resets both when a
/// connection begins.
#[derive(Debug)]
#[repr(C)]
pub struct Slot {
    /// `own[s]` is written by side `s`: its words about the direction that it produces, and about its threads that want
    /// to be woken. The other side clears the words of the threads that it wakes, and advances `head` when a hold ends
    /// (`super::cork`).
    pub own: [OwnLine; 2],
    /// `consumer[s]` is written by side `s`, which consumes the *other* side's direction. After side `s` has left the
    /// rings, the other side advances `tail` (`super::follow`).
    pub consumer: [ConsumerLine; 2],
    /// The addresses and the outcome of the connect.
    pub open: Open,
}

/// Number of ready sets whose words lie with the header: most links have few, and each further page costs a first
/// connect more than most of its system calls.
const HEADER_READY_SETS: usize = 4;

#[repr(C, align(4096))]
pub(super) struct Control {
    header: Header,
    header_ready_sets: [[ReadySet; 2]; HEADER_READY_SETS],
    queue: [AtomicU32; SLOTS],
    slots: [Slot; SLOTS],
    ready_sets: [[ReadySet; 2]; READY_SETS - HEADER_READY_SETS],
}

/// Offset (bytes) of the small windows: two for each slot.
pub(super) const SMALL_AT: usize = size_of::<Control>();
/// Size (bytes) of the small windows of a slot.
pub(super) const SMALL_PAGE: usize = 2 * SMALL;
/// Offset (bytes) of the large windows: two for each slot, the client's first. They are mapped in blocks
/// ([`super::blocks`]) and given back by themselves, so each begins with a page of its own.
pub(super) const LARGE_AT: usize = large_at(LARGEST_PAGE);

/// Offset (bytes) of the large windows where pages have up to `page` bytes.
const fn large_at(page: usize) -> usize {
    (SMALL_AT + SLOTS * SMALL_PAGE).next_multiple_of(page)
}

/// Size (bytes) of a segment. Only touched pages take memory.
pub const SEGMENT: usize = LARGE_AT + SLOTS * 2 * LARGE;

// Where all pages have 4 KiB the large windows follow the small ones without a gap.
const _: () = assert!(SMALL_AT.is_multiple_of(4096) && large_at(4096) == SMALL_AT + SLOTS * SMALL_PAGE);
const _: () = assert!(LARGE_AT.is_multiple_of(LARGEST_PAGE) && LARGE.is_multiple_of(LARGEST_PAGE));
const _: () = assert!(size_of::<Slot>() == 5 * 64);
// The connect queue's slot and the first connection's lie on the header's page, too.
const _: () = assert!(offset_of!(Control, slots) + 2 * size_of::<Slot>() <= 4096);

impl Slot {
    /// Resets the words that side `s` writes to those of a fresh slot. Hints stay: the CPU, and the time of the last
    /// event.
    pub fn wipe(&self, s: Side) {
        if let (Some(own), Some(consumer)) = (self.own.get(s.index()), self.consumer.get(s.index())) {
            own.wipe();
            consumer.wipe();
        }
    }
}

/// A mapped segment.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub(super) base: NonNull<Control>,
    /// The addresses of the large windows in this process.
    pub(super) blocks: &'static Blocks,
}

// SAFETY: a segment is an address that is valid in every thread. It leads to atomics, and to windows whose bytes are
// copied as raw memory.
unsafe impl Send for Segment {}
// SAFETY: all accesses through a shared segment are to atomics, or copy a window's bytes as raw memory.
unsafe impl Sync for Segment {}

impl Segment {
    /// The mapping's address, to be kept in an atomic.
    pub fn as_ptr(self) -> *mut u8 {
        self.base.as_ptr().cast()
    }

    /// The segment whose [`Segment::as_ptr`] and blocks were kept.
    ///
    /// # Safety
    /// `p` is null, or `as_ptr` of a segment that is still mapped; `blocks` is null, or was that segment's.
    #[inline]
    pub(super) unsafe fn from_ptrs(p: *mut u8, blocks: *const Blocks) -> Option<Segment> {
        // SAFETY: the caller guarantees null or a segment's blocks, which are never freed.
        let blocks = unsafe { blocks.as_ref() }?;
        NonNull::new(p.cast()).map(|base| Segment { base, blocks })
    }

    #[inline]
    fn control(&self) -> &'static Control {
        // SAFETY: the mapping is aligned to a page and as large as `Control`, all of whose fields are atomics, for
        // which any bytes are valid. 'static stands for "while the link is held": a link unmaps only when its last user
        // is gone.
        unsafe { &*self.base.as_ptr() }
    }

    /// The link's words.
    #[inline]
    pub fn header(&self) -> &'static Header {
        &self.control().header
    }

    /// A connection's words.
    #[inline]
    pub fn slot(&self, slot: usize) -> Option<&'static Slot> {
        self.control().slots.get(slot)
    }

    /// A ready set of a side.
    #[inline]
    pub fn ready_set(&self, side: Side, n: u32) -> Option<&'static ReadySet> {
        let (c, n) = (self.control(), n as usize);
        let ready_set = c.header_ready_sets.get(n).or_else(|| c.ready_sets.get(n.wrapping_sub(HEADER_READY_SETS)));
        ready_set?.get(side.index())
    }

    /// The bytes of the direction that `producer` writes in `slot`; `None` if the slot's windows are not mapped.
    #[inline]
    pub fn area(&self, slot: usize, producer: Side) -> Option<Area> {
        if slot >= SLOTS {
            return None;
        }
        let windows = self.blocks.windows(slot)?;
        // SAFETY: slot < SLOTS, so the small window lies within the first mapping, and the large one in the slot's
        // windows; both are disjoint from all others.
        unsafe {
            let small = self.base.cast::<u8>().add(SMALL_AT + slot * SMALL_PAGE + producer.index() * SMALL);
            Some(Area::new(small, windows.add(producer.index() * LARGE)))
        }
    }

    /// An upper bound of the number of connects that wait: exact when that would be more than `limit`. `seen` is what
    /// the client last saw of the server's position.
    pub(super) fn waiting(&self, limit: u64, seen: &AtomicU64) -> u64 {
        let h = self.header();
        let at = h.pushed.load(Ordering::Relaxed);
        let guess = at.wrapping_sub(seen.load(Ordering::Relaxed));
        if guess <= limit {
            return guess;
        }
        // Acquire: the server has read the entries before this position, so they may be overwritten.
        let popped = h.popped.load(Ordering::Acquire);
        seen.store(popped, Ordering::Relaxed);
        at.wrapping_sub(popped)
    }

    /// Whether the listener's backlog is used up (client, under a lock).
    pub fn backlog_full(&self, seen: &AtomicU64) -> bool {
        let limit = u64::from(self.header().backlog.load(Ordering::Relaxed));
        limit != 0 && self.waiting(limit - 1, seen).min(SLOTS as u64) >= limit
    }

    /// Queues a connect (client). The order of entries is the order of the calls, made under a lock. `seen`
    /// is what the caller last saw of the server's position.
    pub fn push(&self, slot: u32, seen: &AtomicU64) -> bool {
        let c = self.control();
        let at = c.header.pushed.load(Ordering::Relaxed);
        if self.waiting(SLOTS as u64 - 1, seen) >= SLOTS as u64 {
            return false;
        }
        let Some(cell) = c.queue.get(to_usize(at) % SLOTS) else { return false };
        cell.store(slot, Ordering::Relaxed);
        // SeqCst: publishes the entry and the description in the slot, and is the fence before the load of the server's
        // waiter.
        c.header.pushed.swap(at + 1, Ordering::SeqCst);
        true
    }

    /// Number of connects that were ever queued, according to the client.
    pub fn pushed(&self) -> u64 {
        // SeqCst: a server registers and then loads the position; a client stores it and then loads the registration.
        // One of the two sees the other.
        self.header().pushed.load(Ordering::SeqCst)
    }

    /// Number of connects that are queued and not yet taken. A client that claims more than fits has queued none.
    pub fn queued(&self) -> u64 {
        let h = self.header();
        // SeqCst: see `pushed`.
        let n = h.pushed.load(Ordering::SeqCst).wrapping_sub(h.popped.load(Ordering::SeqCst));
        if n <= SLOTS as u64 { n } else { 0 }
    }

    /// Time (ns, [`netacc_sys::time::now`]) at which the next connect was made, according to the client; 0 if its entry
    /// names an impossible slot. `None`: no connect is queued.
    pub fn front_time(&self) -> Option<u64> {
        let front = self.front()?;
        Some(front.map_or(0, |open| open.when.load(Ordering::Relaxed)))
    }

    /// The description of the next connect, if one is queued; `Some(None)` if its entry names an impossible slot.
    pub(super) fn front(&self) -> Option<Option<&'static Open>> {
        if self.queued() == 0 {
            return None;
        }
        let c = self.control();
        let at = c.header.popped.load(Ordering::Relaxed);
        let slot = c.queue.get(to_usize(at) % SLOTS)?.load(Ordering::Relaxed);
        Some(c.slots.get(slot as usize).map(|s| &s.open))
    }

    /// Number of connects from position `from` to `to` that their client has withdrawn.
    pub fn withdrawn_between(&self, from: u64, to: u64) -> u64 {
        let c = self.control();
        let given_up = |at: &u64| {
            let slot = c.queue.get(to_usize(*at) % SLOTS).map(|cell| cell.load(Ordering::Relaxed) as usize);
            let open = slot.and_then(|slot| c.slots.get(slot)).map(|s| &s.open);
            open.is_some_and(|open| open.outcome.load(Ordering::Acquire) == CONNECT_WITHDRAWN)
        };
        (from..to).take(SLOTS).filter(given_up).count() as u64
    }

    /// Whether the client has withdrawn the next connect.
    pub fn front_is_withdrawn(&self) -> bool {
        self.front().flatten().is_some_and(|open| open.outcome.load(Ordering::Acquire) == CONNECT_WITHDRAWN)
    }

    /// Whether a connect that was already read into a batch waits (server). `seen` is the position up to which the
    /// entries were read.
    pub fn known(&self, seen: &AtomicU64) -> bool {
        let ahead = seen.load(Ordering::Relaxed).wrapping_sub(self.header().popped.load(Ordering::Relaxed));
        (1..=BATCH as u64).contains(&ahead)
    }

    /// Takes the next connect (server, under a lock), and returns the one after it as well if that is known. `seen` is
    /// the position up to which the entries were read into `batch`.
    pub fn pop(&self, seen: &AtomicU64, batch: &[AtomicU32; BATCH]) -> Option<(u32, Option<u32>)> {
        let c = self.control();
        let at = c.header.popped.load(Ordering::Relaxed);
        let read = |at: u64| Some(batch.get(to_usize(at) % BATCH)?.load(Ordering::Relaxed));
        if !self.known(seen) {
            let n = self.queued().min(BATCH as u64);
            for i in 0..n {
                let i = to_usize(at.wrapping_add(i));
                batch.get(i % BATCH)?.store(c.queue.get(i % SLOTS)?.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            seen.store(at.wrapping_add(n), Ordering::Relaxed);
            if n == 0 {
                return None;
            }
        }
        let slot = read(at)?;
        let next = if seen.load(Ordering::Relaxed).wrapping_sub(at) > 1 { read(at.wrapping_add(1)) } else { None };
        if let Some(s) = next.and_then(|n| c.slots.get(n as usize)) {
            cpu::prefetch(&s.open);
        }
        // Release: the entry is read before the client may overwrite it.
        c.header.popped.store(at.wrapping_add(1), Ordering::Release);
        Some((slot, next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    /// What is mapped, mapped a second time, and given back begins and ends with a page of the kernel.
    #[test]
    fn large_windows_are_whole_pages_of_each_size() {
        let sizes = [4096, 16384, 65536];
        for largest in sizes {
            for page in sizes.into_iter().filter(|page| *page <= largest) {
                let window = |n: usize| large_at(largest) + n * LARGE;
                assert!((0..=2 * SLOTS).all(|n| window(n).is_multiple_of(page)), "{largest} {page}");
                assert!(window(1) - largest >= SMALL_AT, "there is something to map a second time");
            }
        }
        let page = rustix::param::page_size();
        assert!(LARGEST_PAGE.is_multiple_of(page) && LARGE_AT.is_multiple_of(page) && SEGMENT.is_multiple_of(page));
    }

    #[test]
    fn windows_are_disjoint_and_inside() {
        let fd = Segment::create().unwrap();
        let s = Segment::map(fd.as_fd()).unwrap().seg;
        let mut ranges = Vec::new();
        for slot in 0..SLOTS {
            assert!(slot < 4 || !slot.is_power_of_two() || s.area(slot, Side::Client).is_none(), "mapped too early");
            s.reach(slot).unwrap();
            for side in [Side::Client, Side::Server] {
                let a = s.area(slot, side).unwrap();
                let l = |large| netacc_ring::Layout { large, origin: 0 };
                ranges.push((a.at(l(false), 0).0.as_ptr() as usize, SMALL));
                ranges.push((a.at(l(true), 0).0.as_ptr() as usize, LARGE));
            }
        }
        ranges.push((s.as_ptr() as usize, size_of::<Control>()));
        ranges.sort();
        assert!(ranges.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
        assert!(s.slot(SLOTS).is_none() && s.area(SLOTS, Side::Client).is_none());
        assert!(s.ready_set(Side::Client, crate::num::constant(READY_SETS)).is_none());
    }

    #[test]
    fn connect_queue_is_bounded_and_in_order() {
        let fd = Segment::create().unwrap();
        let s = Segment::map(fd.as_fd()).unwrap().seg;
        let (client, server) = (AtomicU64::new(0), AtomicU64::new(0));
        let batch = [const { AtomicU32::new(0) }; BATCH];
        let pop = || s.pop(&server, &batch).map(|(slot, _)| slot);
        for round in 0..3 {
            for i in 0..crate::num::constant(SLOTS) {
                assert!(s.push(i + round, &client));
            }
            assert!(!s.push(9, &client));
            for i in 0..crate::num::constant(SLOTS) {
                assert_eq!(pop(), Some(i + round));
            }
            assert_eq!(pop(), None);
        }
        assert!(s.push(5, &client));
        assert_eq!(pop(), Some(5));
        s.set_backlog(4);
        for i in 0..4 {
            assert!(!s.backlog_full(&client), "{i} wait");
            assert!(s.push(i, &client));
        }
        assert!(s.backlog_full(&client));
        assert_eq!(pop(), Some(0));
        assert!(!s.backlog_full(&client));
        // A forged counter yields at most what was read before, never an endless loop.
        s.header().pushed.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(s.queued(), 0);
        assert!(core::iter::from_fn(pop).count() <= BATCH);
    }
}
