//! Allocation of a link's slots. Only the client side allocates; a slot is free again when both sides have closed it.

use crate::num;
use crate::shm::segment::{Segment, WIPED};
use core::sync::atomic::{AtomicI32, AtomicU16, AtomicU32, AtomicUsize, Ordering};
pub use netacc_ring::SLOTS;
use netacc_ring::to_usize;
use netacc_sys::{Locked, SharedCell, lock_rank, reserved_fds};

/// The slot that stands for the connect queue; never used for a connection.
pub const CONTROL_SLOT: usize = 0;

/// Number of the slots closed last that are not claimed again while there is another one. A slot keeps its local port,
/// and two connections in a row from one port would be taken for one, as the kernel lets no port be used again so soon.
const RESTING: u64 = 3;

/// The sum of [`Slots::ports_kept`] over all links. Relaxed: the number only says how many descriptors are in use.
static ALL_PORTS_KEPT: AtomicUsize = AtomicUsize::new(0);

/// State of a link's slots. What the first connection needs comes first: each page that is touched costs a first connect more
/// than most of its system calls.
#[derive(Debug)]
#[repr(C)]
pub struct Slots {
    /// Whether a slot is parked. Written under the lock of the allocation; a claim reads it without.
    any_parked: SharedCell<bool>,
    /// Number of `ports` that are held.
    ports_kept: AtomicU32,
    allocation: Locked<{ lock_rank::LEAF }, Allocation>,
    /// The reserved ports, which the thread that has claimed the slot stores.
    ports: [Port; SLOTS],
}

/// Which slots are free.
#[derive(Clone, Copy)]
#[repr(C)]
struct Allocation {
    generation: u32,
    open: u32,
    /// Positions of the ends of `closing`.
    closing_from: u64,
    closing_to: u64,
    used: [u64; SLOTS / 64],
    /// Slots that were closed here while other sharers could access their words.
    parked: [u64; SLOTS / 64],
    /// Ring of the slots that this side has closed, the oldest first, which wait for the server's side.
    closing: [u32; SLOTS],
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
        let mut a = self.allocation.lock();
        a.used = [0; SLOTS / 64];
        a.parked = [0; SLOTS / 64];
        if let Some(w) = a.used.first_mut() {
            *w = 1 << CONTROL_SLOT;
        }
        (a.closing_from, a.closing_to, a.open) = (0, 0, 0);
        self.any_parked.set(false);
    }

    /// Number of connections that are open on this side.
    pub fn open(&self) -> u32 {
        self.allocation.lock().open
    }

    /// Takes a free slot. The slot that was closed first is preferred, since it has its pages and its port already. Those
    /// that were closed last rest.
    /// `ended` tells whether all of the server's processes that had a closed slot have ended, so that none is left to
    /// release it.
    pub fn claim(&self, seg: Segment, ended: impl Fn(usize) -> bool) -> Option<Claimed> {
        let mut a = self.allocation.lock();
        let rested = a.reclaim(seg, RESTING, &ended).or_else(|| a.fresh());
        let slot = rested.or_else(|| a.reclaim(seg, 0, &ended))?;
        a.open += 1;
        a.generation = a.generation.wrapping_add(1) & !WIPED;
        let port = self.ports.get(slot).map_or(0, |p| p.number.load(Ordering::Relaxed));
        Some(Claimed { slot, generation: a.generation, port })
    }

    /// Notes that our side of the slot is closed.
    pub fn closed(&self, slot: usize) {
        let mut a = self.allocation.lock();
        a.open = a.open.wrapping_sub(1);
        a.append(slot);
    }

    /// Notes that our side of the slot is closed, and that other processes of ours may look at its words until
    /// [`Slots::unpark`].
    pub fn parked(&self, slot: usize) {
        let mut a = self.allocation.lock();
        a.open = a.open.wrapping_sub(1);
        if let Some(w) = a.parked.get_mut(slot / 64) {
            *w |= 1 << (slot % 64);
            self.any_parked.set(true);
        }
    }

    /// Whether the slot is closed here by all sharers, and not used again yet.
    pub fn is_closing(&self, slot: usize) -> bool {
        let a = self.allocation.lock();
        (a.closing_from..a.closing_to).any(|at| a.closing(at) == Some(slot))
    }

    /// The parked slots, if there are any. To be called before the check for other sharers: a process that is forked in
    /// between cannot have these slots.
    pub fn parked_slots(&self) -> Option<Parked> {
        // A slot that is parked at this moment may be found by the next call. Under the lock: every slot that is found
        // was closed before the caller's check.
        self.any_parked.get().then(|| Parked(self.allocation.lock().parked))
    }

    /// Makes the slots usable again, after all other sharers have ended.
    pub fn unpark(&self, left: Parked) {
        let mut a = self.allocation.lock();
        for (i, found) in left.0.into_iter().enumerate() {
            let Some(w) = a.parked.get_mut(i) else { break };
            let mut bits = found & *w;
            *w &= !found;
            while bits != 0 {
                a.append(i * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
        self.any_parked.set(a.parked.iter().any(|w| *w != 0));
    }

    /// Notes that a claimed slot turned out to be in use, which is inconsistent. The slot is never claimed again.
    pub fn burned(&self) {
        let mut a = self.allocation.lock();
        a.open = a.open.wrapping_sub(1);
    }

    /// Keeps a bound socket (a reserved descriptor), which holds the slot's local port.
    pub fn keep_port(&self, slot: usize, fd: i32, port: u16) {
        if let Some(p) = self.ports.get(slot) {
            self.ports_kept.fetch_add(1, Ordering::Relaxed);
            ALL_PORTS_KEPT.fetch_add(1, Ordering::Relaxed);
            p.fd.store(fd + 1, Ordering::Relaxed);
            p.number.store(port, Ordering::Relaxed);
        }
    }

    pub(crate) fn close_ports(&self) {
        let kept = self.ports_kept.swap(0, Ordering::Relaxed);
        if kept == 0 {
            return;
        }
        ALL_PORTS_KEPT.fetch_sub(kept as usize, Ordering::Relaxed);
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

    /// Number of ports that are reserved by sockets of our own on all links of this process.
    pub fn all_ports_kept() -> usize {
        ALL_PORTS_KEPT.load(Ordering::Relaxed)
    }

    /// Number of ports that are reserved by sockets of our own.
    pub fn ports_kept(&self) -> usize {
        self.ports_kept.load(Ordering::Relaxed) as usize
    }
}

impl Allocation {
    /// The slot at a position of the ring of closed ones.
    fn closing(&self, at: u64) -> Option<usize> {
        self.closing.get(to_usize(at) % SLOTS).map(|slot| *slot as usize)
    }

    /// Takes a slot that both sides have closed, but none of the last ones, which are `resting`.
    fn reclaim(&mut self, seg: Segment, resting: u64, ended: impl Fn(usize) -> bool) -> Option<usize> {
        let (from, to) = (self.closing_from, self.closing_to);
        // A slot behind the oldest one is only taken if the server is slow to close those before it.
        for at in from..to.saturating_sub(resting).min(from + 8) {
            let slot = self.closing(at)?;
            let open = &seg.slot(slot)?.open;
            // Acquire: the server's last accesses to the slot come before its mark.
            if open.server_done.load(Ordering::Acquire) & !WIPED == open.generation.load(Ordering::Relaxed)
                || ended(slot)
            {
                self.closing.swap(to_usize(at) % SLOTS, to_usize(from) % SLOTS);
                self.closing_from = from + 1;
                return Some(slot);
            }
        }
        if to - from > 8 {
            // The server may keep these slots for the life of a process. So the oldest one moves to the end, and later
            // searches reach the slots behind these.
            let first = self.closing(from)?;
            self.closing_from = from + 1;
            self.append(first);
        }
        None
    }

    fn append(&mut self, slot: usize) {
        if let Some(cell) = self.closing.get_mut(to_usize(self.closing_to) % SLOTS) {
            *cell = num::small(slot);
            self.closing_to += 1;
        }
    }

    fn fresh(&mut self) -> Option<usize> {
        let (i, w) = self.used.iter_mut().enumerate().find(|(_, w)| **w != u64::MAX)?;
        let bit = (!*w).trailing_zeros();
        *w |= 1 << bit;
        Some(i * 64 + bit as usize)
    }
}
