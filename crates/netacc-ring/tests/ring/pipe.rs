//! One direction over real memory, with guard bytes around the windows.

use core::ptr::NonNull;
use netacc_ring::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Largest number of unread bytes: both windows.
pub(crate) const CAPACITY: u64 = (SMALL + LARGE) as u64;
/// Number of guard bytes before and after each window, which must stay unchanged.
pub(crate) const GUARD: usize = 4096;
pub(crate) const GUARD_BYTE: u8 = 0xa5;

/// One direction: the shared words, both windows between guards, and both ends.
pub(crate) struct Pipe {
    pub(crate) memory: Box<[u8]>,
    pub(crate) base: NonNull<u8>,
    pub(crate) data: ProducerLine,
    pub(crate) room: ConsumerLine,
    pub(crate) tx: Producer,
    pub(crate) rx: Consumer,
    /// Number of bytes of the large window that may be open.
    pub(crate) allowed: AtomicUsize,
}

// SAFETY: the two ends access disjoint bytes of the memory at any time, as these tests check; all else is atomic.
unsafe impl Sync for Pipe {}

impl Pipe {
    const SMALL_AT: usize = GUARD;
    const LARGE_AT: usize = Self::SMALL_AT + SMALL + GUARD;
    const SIZE: usize = Self::LARGE_AT + LARGE + GUARD;

    pub(crate) fn new() -> Pipe {
        let mut memory = vec![GUARD_BYTE; Self::SIZE].into_boxed_slice();
        let base = NonNull::new(memory.as_mut_ptr()).unwrap();
        Pipe {
            memory,
            base,
            data: ProducerLine::default(),
            room: ConsumerLine::default(),
            tx: Producer::default(),
            rx: Consumer::default(),
            allowed: AtomicUsize::new(LARGE),
        }
    }

    pub(crate) fn area(&self) -> Area {
        // SAFETY: both windows lie within `memory`, which lives as long as the pipe.
        unsafe { Area::new(self.base.add(Self::SMALL_AT), self.base.add(Self::LARGE_AT)) }
    }

    /// Checks that a chunk lies within one window and is not empty, and returns it.
    pub(crate) fn checked(&self, (ptr, len): (NonNull<u8>, usize)) -> (*mut u8, usize) {
        let at = ptr.as_ptr() as usize - self.base.as_ptr() as usize;
        let inside = |from: usize, size: usize| at >= from && at + len <= from + size;
        assert!(len > 0, "an empty chunk");
        assert!(inside(Self::SMALL_AT, SMALL) || inside(Self::LARGE_AT, LARGE), "{at} + {len} leaves the windows");
        (ptr.as_ptr(), len)
    }

    pub(crate) fn guards_are_whole(&self) -> bool {
        let whole = |from: usize| {
            // SAFETY: the range is within `memory`, and no thread writes there meanwhile.
            let s = unsafe { core::slice::from_raw_parts(self.base.as_ptr().add(from), GUARD) };
            s.iter().all(|b| *b == GUARD_BYTE)
        };
        assert_eq!(self.memory.len(), Self::SIZE);
        whole(0) && whole(Self::SMALL_AT + SMALL) && whole(Self::LARGE_AT + LARGE)
    }

    pub(crate) fn prepare(&self, want: usize) -> Result<(), Violation> {
        self.tx.prepare(&self.data, &self.room, want, |extent| {
            assert!(extent > self.tx.extent() && extent <= LARGE && extent.is_multiple_of(STEP), "asked for {extent}");
            extent.min(self.allowed.load(Ordering::Relaxed))
        })
    }

    pub(crate) fn writable(&self) -> Result<bool, Violation> {
        self.tx.writable(&self.room, || self.tx.extent() < self.allowed.load(Ordering::Relaxed))
    }

    /// Closes the large window if that is possible. Its bytes are gone then.
    pub(crate) fn close_large(&self) {
        if self.tx.close_large(&self.data, &self.room) {
            // SAFETY: the window lies within `memory`, and no thread reads there, which is what the caller tests.
            unsafe { self.base.add(Self::LARGE_AT).write_bytes(!GUARD_BYTE, LARGE) };
        }
    }

    /// Writes as much as fits of one message in pieces, as the endpoint does.
    pub(crate) fn write(&self, pieces: &[&[u8]]) -> Result<usize, Violation> {
        let want = pieces.iter().map(|p| p.len()).sum::<usize>();
        self.prepare(want)?;
        let mut n = 0;
        'all: for piece in pieces {
            let mut piece = *piece;
            while !piece.is_empty() {
                let Some(chunk) = self.tx.chunk(&self.area(), &self.room, want - n)? else {
                    break 'all;
                };
                let (p, len) = self.checked(chunk);
                assert!(len <= want - n, "more than was asked for");
                let len = len.min(piece.len());
                // SAFETY: `checked` has found the chunk within one window.
                unsafe { core::ptr::copy_nonoverlapping(piece.as_ptr(), p, len) };
                self.tx.advance(len);
                piece = &piece[len..];
                n += len;
            }
        }
        if n > 0 {
            self.tx.publish(&self.data);
        }
        Ok(n)
    }

    pub(crate) fn read(&self, want: usize, peek: bool) -> Result<Vec<u8>, Violation> {
        let mut out = Vec::new();
        while out.len() < want {
            let skip = if peek { out.len() } else { 0 };
            let Some(chunk) = self.rx.chunk(&self.area(), &self.room, &self.data, skip)? else {
                break;
            };
            let (p, len) = self.checked(chunk);
            let len = len.min(want - out.len());
            let at = out.len();
            out.resize(at + len, 0);
            // SAFETY: `checked` has found the chunk within one window.
            unsafe { core::ptr::copy_nonoverlapping(p, out[at..].as_mut_ptr(), len) };
            if !peek {
                self.rx.advance(len);
            }
        }
        if !peek && !out.is_empty() {
            self.rx.publish(&self.room);
        }
        Ok(out)
    }

    pub(crate) fn discard(&self, want: usize) -> Result<usize, Violation> {
        let mut n = 0;
        while n < want {
            let Some(chunk) = self.rx.chunk(&self.area(), &self.room, &self.data, 0)? else {
                break;
            };
            let len = self.checked(chunk).1.min(want - n);
            self.rx.advance(len);
            n += len;
        }
        if n > 0 {
            self.rx.publish(&self.room);
        }
        Ok(n)
    }

    /// Asserts the invariants that hold between any two operations of two correct ends.
    pub(crate) fn invariants(&self, pending: u64) {
        let head = self.data.head.load(Ordering::SeqCst);
        let tail = self.room.tail.load(Ordering::SeqCst);
        assert!(tail <= head && head - tail <= CAPACITY, "{tail}..{head}");
        assert_eq!(head - tail, pending, "positions and bytes disagree");
        assert_eq!(self.tx.unread(&self.room), Ok(pending));
        assert_eq!(self.rx.available(&self.data), Ok(pending));
        assert_eq!(self.rx.readable(&self.data), pending > 0);
        let newest = Layout::unpack(self.data.layout.load(Ordering::SeqCst));
        let in_force = Layout::unpack(self.room.layout.load(Ordering::SeqCst));
        assert!(newest.origin <= head, "a window begins ahead of the bytes");
        assert!(in_force.origin <= tail && in_force.origin <= newest.origin);
        // Bytes under the newest layout fit into its window, and earlier ones into the window in force.
        assert!(head - tail.max(newest.origin) <= newest.size() as u64);
        assert!(newest.origin.saturating_sub(tail) <= in_force.size() as u64);
    }
}

/// Byte at a stream position, from a pattern in which neighbouring bytes differ.
pub(crate) fn pattern(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

pub(crate) fn bytes(at: u64, n: usize) -> Vec<u8> {
    (0..n as u64).map(|i| pattern(at + i)).collect()
}
