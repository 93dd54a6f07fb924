//! The ring in the form that the models use.

use core::ptr::NonNull;
use loom::cell::UnsafeCell;
use loom::thread;
use netacc_ring::*;

/// One direction of a connection. loom does not see raw memory, so each byte of both windows has a
/// cell that is accessed beside it: loom objects to a byte that is read and overwritten at once.
pub(crate) struct Pipe {
    pub(crate) small: Box<[u8; SMALL]>,
    pub(crate) large: Box<[u8; LARGE]>,
    pub(crate) cells: Vec<UnsafeCell<u8>>,
    pub(crate) tx: Producer,
    pub(crate) rx: Consumer,
    /// Number of bytes of the large window that may be open.
    pub(crate) allowed: usize,
    pub(crate) data: ProducerLine,
    pub(crate) room: ConsumerLine,
    /// The line of the side that reads.
    pub(crate) reader: SideLine,
    /// The line of the side that writes.
    pub(crate) writer: SideLine,
}

// SAFETY: threads share only the cells, whose accesses loom checks, and atomics.
unsafe impl Sync for Pipe {}
// SAFETY: threads share only the cells, whose accesses loom checks, and atomics.
unsafe impl Send for Pipe {}

impl Pipe {
    pub(crate) fn new() -> Pipe {
        Pipe {
            small: Box::new([0; SMALL]),
            large: Box::new([0; LARGE]),
            cells: (0..SMALL + LARGE).map(|_| UnsafeCell::new(0xff)).collect(),
            tx: Producer::default(),
            rx: Consumer::default(),
            allowed: LARGE,
            data: ProducerLine::default(),
            room: ConsumerLine::default(),
            reader: SideLine::default(),
            writer: SideLine::default(),
        }
    }

    pub(crate) fn area(&self) -> Area {
        let p = |b: *const u8| NonNull::new(b.cast_mut()).unwrap();
        // SAFETY: the boxes have the windows' sizes and live as long as the pipe. No byte is accessed through the
        // addresses.
        unsafe { Area::new(p(self.small.as_ptr()), p(self.large.as_ptr())) }
    }

    /// The cells of a chunk, which must lie within one window.
    pub(crate) fn cells(&self, (ptr, len): (NonNull<u8>, usize)) -> &[UnsafeCell<u8>] {
        let at = |base: *const u8, size| (ptr.as_ptr() as usize).checked_sub(base as usize).filter(|o| *o < size);
        let (from, end) = match (at(self.small.as_ptr(), SMALL), at(self.large.as_ptr(), LARGE)) {
            (Some(o), _) => (o, SMALL),
            (None, Some(o)) => (SMALL + o, SMALL + LARGE),
            (None, None) => panic!("a chunk outside of both windows"),
        };
        assert!(from + len <= end, "a chunk leaves its window");
        &self.cells[from..from + len]
    }

    pub(crate) fn writable(&self) -> Result<bool, Violation> {
        self.tx.writable(&self.room, || self.tx.extent() < self.allowed)
    }

    /// Closes the large window if that is possible. Its bytes are gone then.
    pub(crate) fn close_large(&self) -> bool {
        let closes = self.tx.close_large(&self.data, &self.room);
        if closes {
            self.cells[SMALL..].iter().for_each(|c| c.with_mut(|p| unsafe { *p = 0xff }));
        }
        closes
    }

    /// Writes one message as the endpoint does; byte `i` of the stream has the value `i`.
    pub(crate) fn write(&self, at: &mut u8, want: usize) -> usize {
        self.tx.prepare(&self.data, &self.room, want, |extent| extent.min(self.allowed)).unwrap();
        let mut n = 0;
        while n < want {
            let Some(chunk) = self.tx.chunk(&self.area(), &self.room, want - n).unwrap() else {
                break;
            };
            for c in self.cells(chunk) {
                c.with_mut(|p| unsafe { *p = *at });
                *at += 1;
            }
            self.tx.advance(chunk.1);
            n += chunk.1;
        }
        if n > 0 {
            self.tx.publish(&self.data);
        }
        n
    }

    pub(crate) fn read(&self, at: &mut u8, want: usize) -> usize {
        let mut n = 0;
        while n < want {
            let Some((p, len)) = self.rx.chunk(&self.area(), &self.room, &self.data, 0).unwrap() else {
                break;
            };
            let len = len.min(want - n);
            for c in self.cells((p, len)) {
                c.with(|p| assert_eq!(unsafe { *p }, *at, "the stream is garbled"));
                *at += 1;
            }
            self.rx.advance(len);
            n += len;
        }
        if n > 0 {
            self.rx.publish(&self.room);
        }
        n
    }

    /// Writes messages of these sizes one after the other, and retries while the ring is full.
    pub(crate) fn write_all(&self, at: &mut u8, sizes: &[usize]) {
        for &size in sizes {
            let mut done = 0;
            while done < size {
                match self.write(at, size - done) {
                    0 => thread::yield_now(),
                    n => done += n,
                }
            }
        }
    }

    pub(crate) fn read_all(&self, at: &mut u8, end: u8, piece: usize) {
        while *at < end {
            if self.read(at, piece) == 0 {
                thread::yield_now();
            }
        }
    }
}
