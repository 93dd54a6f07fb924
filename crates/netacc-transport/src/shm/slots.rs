//! Allocation of a link's slots. Only the client side allocates; a slot is free again when both sides have closed it.

use crate::num;
use crate::shm::segment::{Segment, WIPED};
use core::sync::atomic::{AtomicI32, AtomicU16, AtomicU32, AtomicU64, Ordering};
pub use netacc_ring::SLOTS;
use netacc_ring::to_usize;
use netacc_sys::{Lock, lock_rank, reserved_fds};

/// The slot that stands for the connect queue; never used for a connection.
pub const CONTROL_SLOT: usize = 0;

/// Number of the slots closed last that are not claimed again while there is another one. A slot keeps its local port,
/// and two connections in a row from one port would be taken for one, as the kernel lets no port be used again so soon.
const RESTING: u64 = 3;

/// State of the allocation. It is changed under `lock`, except the reserved ports, which the thread that has claimed
/// the slot stores. The fields that the first connection needs come first: each page that is touched costs a first
/// connect more than most of its system calls.
#[derive(Debug)]
#[repr(C)]
pub struct Slots {
    lock: Lock<{ lock_rank::LEAF }>,
    generation: AtomicU32,
    open: AtomicU32,
    used: [AtomicU64; SLOTS / 64],
    /// Slots that were closed here while other sharers could access their words.
    parked: [AtomicU64; SLOTS / 64],
    closing_from: AtomicU64,
    closing_to: AtomicU64,
    /// Number of `ports` that are held.
    ports_kept: AtomicU32,
    ports: [Port; SLOTS],
    /// Ring of the slots that this side has closed, the oldest first, which wait for the server's side. `closing_from`
    /// and `closing_to` are the positions of its ends.
    closing: [AtomicU32; SLOTS],
}

/// A socket (descriptor + 1) that holds a slot's local port reserved, and that port.
#[derive(Debug)]
struct Port {
    fd: AtomicI32,
    number: AtomicU16,
}

/// A slot to connect with.
#[derive(Clone, Copy, Debug)]
pub struct Claimed {
    /// The slot's number on its link.
    pub slot: usize,
    /// The generation of the connection for which the slot was claimed.
    pub generation: u32,
    /// A local port that is reserved for it already, or 0.
    pub port: u16,
}

/// Slots that were closed while other sharers could access their words.
#[derive(Debug)]
pub struct Parked([u64; SLOTS / 64]);

impl Slots {
    pub(crate) fn reset(&self) {
        for w in self.used.iter().chain(&self.parked) {
            w.store(0, Ordering::Relaxed);
        }
        if let Some(w) = self.used.first() {
            w.store(1 << CONTROL_SLOT, Ordering::Relaxed);
        }
        self.closing_from.store(0, Ordering::Relaxed);
        self.closing_to.store(0, Ordering::Relaxed);
        self.open.store(0, Ordering::Relaxed);
    }

    /// Number of connections that are open on this side.
    pub fn open(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// Takes a free slot. The slot that was closed first is preferred, since it has its pages and its port already. Those
    /// that were closed last rest.
    /// `ended` tells whether all of the server's processes that had a closed slot have ended, so that none is left to
    /// release it.
    pub fn claim(&self, seg: Segment, ended: impl Fn(usize) -> bool) -> Option<Claimed> {
        let _g = self.lock.lock();
        let rested = self.reclaim(seg, RESTING, &ended).or_else(|| self.fresh());
        let slot = rested.or_else(|| self.reclaim(seg, 0, &ended))?;
        self.open.fetch_add(1, Ordering::Relaxed);
        let generation = self.generation.load(Ordering::Relaxed).wrapping_add(1) & !WIPED;
        self.generation.store(generation, Ordering::Relaxed);
        let port = self.ports.get(slot).map_or(0, |p| p.number.load(Ordering::Relaxed));
        Some(Claimed { slot, generation, port })
    }

    /// Takes a slot that both sides have closed, but none of the last ones, which are `resting`.
    fn reclaim(&self, seg: Segment, resting: u64, ended: impl Fn(usize) -> bool) -> Option<usize> {
        let from = self.closing_from.load(Ordering::Relaxed);
        let to = self.closing_to.load(Ordering::Relaxed);
        // A slot behind the oldest one is only taken if the server is slow to close those before it.
        for at in from..to.saturating_sub(resting).min(from + 8) {
            let cell = self.closing.get(to_usize(at) % SLOTS)?;
            let slot = cell.load(Ordering::Relaxed) as usize;
            let open = &seg.slot(slot)?.open;
            // Acquire: the server's last accesses to the slot come before its mark.
            if open.server_done.load(Ordering::Acquire) & !WIPED == open.generation.load(Ordering::Relaxed)
                || ended(slot)
            {
                let oldest = self.closing.get(to_usize(from) % SLOTS)?.load(Ordering::Relaxed);
                cell.store(oldest, Ordering::Relaxed);
                self.closing_from.store(from + 1, Ordering::Relaxed);
                return Some(slot);
            }
        }
        if to - from > 8 {
            // The server may keep these slots for the life of a process. So the oldest one moves to the end, and later
            // searches reach the slots behind these.
            let first = self.closing.get(to_usize(from) % SLOTS)?.load(Ordering::Relaxed);
            self.closing_from.store(from + 1, Ordering::Relaxed);
            self.append(first);
        }
        None
    }

    fn append(&self, slot: u32) {
        let to = self.closing_to.load(Ordering::Relaxed);
        if let Some(cell) = self.closing.get(to_usize(to) % SLOTS) {
            cell.store(slot, Ordering::Relaxed);
            self.closing_to.store(to + 1, Ordering::Relaxed);
        }
    }

    fn fresh(&self) -> Option<usize> {
        for (i, w) in self.used.iter().enumerate() {
            let word = w.load(Ordering::Relaxed);
            if word != u64::MAX {
                let bit = (!word).trailing_zeros();
                w.store(word | 1 << bit, Ordering::Relaxed);
                return Some(i * 64 + bit as usize);
            }
        }
        None
    }

    /// Notes that our side of the slot is closed.
    pub fn closed(&self, slot: usize) {
        let _g = self.lock.lock();
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.append(num::small(slot));
    }

    /// Notes that our side of the slot is closed, and that other processes of ours may look at its words until
    /// [`Slots::unpark`].
    pub fn parked(&self, slot: usize) {
        let _g = self.lock.lock();
        self.open.fetch_sub(1, Ordering::Relaxed);
        if let Some(w) = self.parked.get(slot / 64) {
            w.fetch_or(1 << (slot % 64), Ordering::Relaxed);
        }
    }

    /// Whether the slot is closed here by all sharers, and not used again yet.
    pub fn is_closing(&self, slot: usize) -> bool {
        let _g = self.lock.lock();
        let (from, to) = (self.closing_from.load(Ordering::Relaxed), self.closing_to.load(Ordering::Relaxed));
        (from..to).any(|at| {
            self.closing.get(to_usize(at) % SLOTS).is_some_and(|c| c.load(Ordering::Relaxed) as usize == slot)
        })
    }

    /// The parked slots, if there are any. To be called before the check for other sharers: a process that is forked in
    /// between cannot have these slots.
    pub fn parked_slots(&self) -> Option<Parked> {
        if self.parked.iter().all(|w| w.load(Ordering::Relaxed) == 0) {
            return None;
        }
        // Under the lock: every slot that is found was closed before the caller's check.
        let _g = self.lock.lock();
        Some(Parked(self.parked.each_ref().map(|w| w.load(Ordering::Relaxed))))
    }

    /// Makes the slots usable again, after all other sharers have ended.
    pub fn unpark(&self, left: Parked) {
        let _g = self.lock.lock();
        for (i, (w, found)) in self.parked.iter().zip(left.0).enumerate() {
            let mut bits = found & w.fetch_and(!found, Ordering::Relaxed);
            while bits != 0 {
                self.append(num::small(i) * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    /// Notes that a claimed slot turned out to be in use, which is inconsistent. The slot is never claimed again.
    pub fn burned(&self) {
        let _g = self.lock.lock();
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Keeps a bound socket (a reserved descriptor), which holds the slot's local port.
    pub fn keep_port(&self, slot: usize, fd: i32, port: u16) {
        if let Some(p) = self.ports.get(slot) {
            self.ports_kept.fetch_add(1, Ordering::Relaxed);
            p.fd.store(fd + 1, Ordering::Relaxed);
            p.number.store(port, Ordering::Relaxed);
        }
    }

    pub(crate) fn close_ports(&self) {
        if self.ports_kept.swap(0, Ordering::Relaxed) == 0 {
            return;
        }
        for p in &self.ports {
            let fd = p.fd.load(Ordering::Relaxed);
            if fd != 0 {
                p.fd.store(0, Ordering::Relaxed);
                reserved_fds::close(fd - 1);
            }
            // Written only if it was set, so that untouched pages stay untouched.
            if p.number.load(Ordering::Relaxed) != 0 {
                p.number.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Number of ports that are reserved by sockets of our own.
    pub fn ports_kept(&self) -> usize {
        self.ports_kept.load(Ordering::Relaxed) as usize
    }
}
