//! Models of the ring and of the sleep/wake protocol, checked over all interleavings and over what the
//! memory model allows (up to a number of preemptions). The windows are a few bytes here, see `SMALL`.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p netacc-ring --release --test loom
//! ```
//!
//! "Mutation" in the comments names changes of the code that make a model fail; each was tried.
#![cfg(loom)]
#![allow(unsafe_code)]
// Every unsafe block below is an access to a cell, which loom checks.
#![allow(clippy::undocumented_unsafe_blocks)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use core::ptr::NonNull;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use netacc_ring::sync::{AtomicU32, FENCE_AFTER, Ordering};
use netacc_ring::{
    Area, CLOSED, Channel, Consumer, ConsumerLine, FIN, GONE, LARGE, OPEN, OwnLine, Producer, ProducerLine, Ring,
    SMALL, SideLine, notify_data, notify_room,
};

/// One mapping of `SeqCst` at a time, since all tests share the switch.
static MAPPING: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Checks `f` under both mappings of `SeqCst`.
fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let f = std::sync::Arc::new(f);
    let _one = MAPPING.lock().unwrap_or_else(|e| e.into_inner());
    for after in [false, true] {
        FENCE_AFTER.store(after, std::sync::atomic::Ordering::Relaxed);
        let mut b = loom::model::Builder::new();
        b.preemption_bound = Some(preemptions);
        b.max_branches = 10_000;
        let f = f.clone();
        b.check(move || f());
    }
}

/// One direction of a connection. loom does not see raw memory, so each byte of both windows has a
/// cell that is accessed beside it: loom objects to a byte that is read and overwritten at once.
struct Pipe {
    small: Box<[u8; SMALL]>,
    large: Box<[u8; LARGE]>,
    cells: Vec<UnsafeCell<u8>>,
    tx: Producer,
    rx: Consumer,
    data: ProducerLine,
    room: ConsumerLine,
    /// The line of the side that reads.
    reader: SideLine,
    /// The line of the side that writes.
    writer: SideLine,
}

// SAFETY: loom checks the cells.
unsafe impl Sync for Pipe {}
// SAFETY: as above.
unsafe impl Send for Pipe {}

impl Pipe {
    fn new() -> Pipe {
        Pipe {
            small: Box::new([0; SMALL]),
            large: Box::new([0; LARGE]),
            cells: (0..SMALL + LARGE).map(|_| UnsafeCell::new(0xff)).collect(),
            tx: Producer::default(),
            rx: Consumer::default(),
            data: ProducerLine::default(),
            room: ConsumerLine::default(),
            reader: SideLine::default(),
            writer: SideLine::default(),
        }
    }

    fn area(&self) -> Area {
        let p = |b: *const u8| NonNull::new(b.cast_mut()).unwrap();
        // SAFETY: the boxes live as long as the pipe; the addresses are only computed with.
        unsafe { Area::new(p(self.small.as_ptr()), p(self.large.as_ptr())) }
    }

    /// The cells of a chunk, which must lie within one window.
    fn cells(&self, (ptr, len): (NonNull<u8>, usize)) -> &[UnsafeCell<u8>] {
        let at = |base: *const u8, size| (ptr.as_ptr() as usize).checked_sub(base as usize).filter(|o| *o < size);
        let (from, end) = match (at(self.small.as_ptr(), SMALL), at(self.large.as_ptr(), LARGE)) {
            (Some(o), _) => (o, SMALL),
            (None, Some(o)) => (SMALL + o, SMALL + LARGE),
            (None, None) => panic!("a chunk outside of both windows"),
        };
        assert!(from + len <= end, "a chunk leaves its window");
        &self.cells[from..from + len]
    }

    /// Writes one message as the endpoint does; byte `i` of the stream has the value `i`.
    fn write(&self, at: &mut u8, want: usize) -> usize {
        self.tx.prepare(&self.data, &self.room, want).unwrap();
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

    fn read(&self, at: &mut u8, want: usize) -> usize {
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

    /// Writes messages of these sizes one after the other, going on while the ring is full.
    fn write_all(&self, at: &mut u8, sizes: &[usize]) {
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

    fn read_all(&self, at: &mut u8, end: u8, piece: usize) {
        while *at < end {
            if self.read(at, piece) == 0 {
                thread::yield_now();
            }
        }
    }
}

fn flag(b: &AtomicU32) -> bool {
    b.load(Ordering::SeqCst) != 0
}

/// The models rest on `SeqCst` accesses being ordered in total: of two threads that each write their
/// word and then read the other's, one sees the other. Without that, they do not.
#[test]
fn the_model_of_seqcst_holds() {
    let both_blind = |o: fn() -> (Ordering, Ordering)| {
        let seen = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let out = seen.clone();
        model(3, move || {
            let (write, read) = o();
            let w = Arc::new([AtomicU32::default(), AtomicU32::default()]);
            let w2 = w.clone();
            let t = thread::spawn(move || {
                w2[0].swap(1, write);
                w2[1].load(read)
            });
            w[1].swap(1, write);
            let mine = w[0].load(read);
            if t.join().unwrap() == 0 && mine == 0 {
                out.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        });
        seen.load(std::sync::atomic::Ordering::Relaxed)
    };
    assert!(!both_blind(|| (Ordering::SeqCst, Ordering::SeqCst)));
    assert!(both_blind(|| (Ordering::SeqCst, Ordering::Acquire)));
    assert!(both_blind(|| (Ordering::AcqRel, Ordering::Acquire)));
}

/// (a) Bytes cross whole and in order, and none is overwritten before it was read, around the window.
///
/// Mutations: `Relaxed` in either `publish`; `Relaxed` in either `refresh`; `free_in` one byte too generous.
#[test]
fn bytes_cross_in_order() {
    model(2, || {
        let p = Arc::new(Pipe::new());
        let q = p.clone();
        // Sizes that never exceed the small window: it wraps, but is not left.
        let t = thread::spawn(move || {
            let mut at = 0;
            for size in [3, 3, 2] {
                let mut done = 0;
                while done < size {
                    // Without `prepare`: the large window stays shut.
                    let Some((ptr, len)) = q.tx.chunk(&q.area(), &q.room, size - done).unwrap() else {
                        thread::yield_now();
                        continue;
                    };
                    for c in q.cells((ptr, len)) {
                        c.with_mut(|b| unsafe { *b = at });
                        at += 1;
                    }
                    q.tx.advance(len);
                    done += len;
                    q.tx.publish(&q.data);
                }
            }
        });
        p.read_all(&mut 0, 8, 3);
        t.join().unwrap();
        assert_eq!(p.tx.unread(&p.room), Ok(0));
    });
}

/// (e) From the small to the large window with bytes pending in the small one.
///
/// Mutations: the layout not stored by `switch`, or not adopted; `Relaxed` in `publish`; the consumer ignoring
/// a claim whose origin lies ahead (`end` not cut at it).
#[test]
fn grows_with_bytes_pending() {
    model(3, || {
        let p = Arc::new(Pipe::new());
        let q = p.clone();
        let t = thread::spawn(move || q.write_all(&mut 0, &[3, 6, 2]));
        p.read_all(&mut 0, 11, 5);
        t.join().unwrap();
    });
}

/// (e) The large window starts over when drained, and only then.
///
/// Mutations: `prepare` rewinding without `tail == pos`; `refresh` with `Relaxed`.
#[test]
fn rewinds_when_drained() {
    model(3, || {
        let p = Arc::new(Pipe::new());
        let (mut w, mut r) = (0, 0);
        assert_eq!(p.write(&mut w, 9), 9);
        assert_eq!(p.read(&mut r, 9), 9);
        let q = p.clone();
        let t = thread::spawn(move || q.write_all(&mut w, &[5, 5, 3]));
        p.read_all(&mut r, 22, 4);
        t.join().unwrap();
    });
}

/// (e) A connection that went small again grows again only after the reader has adopted the small
/// window: the shared word holds one layout.
///
/// Mutations: `may_switch` returning true; `may_switch` with `tail >= layout.origin`.
#[test]
fn grows_again_after_the_small_window_was_seen() {
    model(2, || {
        let p = Arc::new(Pipe::new());
        let (mut w, mut r) = (0, 0);
        // Large, drained, then calm until the next message is written small.
        assert_eq!(p.write(&mut w, 6), 6);
        assert_eq!(p.read(&mut r, 6), 6);
        assert_eq!(p.write(&mut w, 1), 1);
        assert_eq!(p.read(&mut r, 1), 1);
        let q = p.clone();
        let t = thread::spawn(move || {
            assert_eq!(q.write(&mut w, 1), 1);
            q.write_all(&mut w, &[6]);
        });
        p.read_all(&mut r, 14, 8);
        t.join().unwrap();
    });
}

/// (b) A consumer that armed and found nothing is rung by whoever marks afterwards, and the mark
/// announces data that is there when the bit is taken.
///
/// Mutations: `arm` looking before the exchange, or storing with `Relaxed`; `mark` looking at `armed`
/// before setting the bit; `mark` with a `Relaxed` look at the bit; `take` with `AcqRel`, or
/// `Consumer::refresh` with `Acquire` (a bit that is found set is not a fence); `publish` with `AcqRel`.
#[test]
fn an_armed_consumer_is_rung() {
    model(4, || {
        let p = Arc::new((Pipe::new(), Channel::default()));
        let q = p.clone();
        let t = thread::spawn(move || {
            let mut w = 0;
            let mut rings = 0;
            for _ in 0..2 {
                assert_eq!(q.0.write(&mut w, 1), 1);
                rings += u32::from(q.1.mark(5));
            }
            rings
        });
        // Two rounds of an event loop that sleeps when it finds nothing; one look per bit.
        let mut seen = 0;
        let mut asleep = false;
        for _ in 0..2 {
            for slot in p.1.take() {
                assert_eq!(slot, 5);
                seen = p.0.rx.available(&p.0.data).unwrap();
            }
            if p.1.arm() {
                asleep = true;
                break;
            }
        }
        let rings = t.join().unwrap();
        if asleep && seen < 2 {
            assert!(rings > 0, "asleep with {seen} of 2 bytes seen, and not rung");
        }
        // Whatever was not seen is announced.
        assert!(seen == 2 || p.1.take().any(|s| s == 5));
    });
}

/// (c) A thread that registered as waiter for data and found none is rung.
///
/// Mutations: `notify_data` before `publish`; the waiter looking before it registers; `notify_data` leaving
/// the registration; `Consumer::readable` or `refresh` with `Acquire`.
#[test]
fn a_waiting_reader_is_rung() {
    let readable: fn(&Pipe) -> bool = |p| p.rx.readable(&p.data);
    let counted: fn(&Pipe) -> bool = |p| p.rx.available(&p.data) != Ok(0);
    let shared: fn(&Pipe) -> bool = |p| Consumer::available_by(&p.room, &p.data) > 0;
    for look in [readable, counted, shared] {
        a_waiting_reader(look);
    }
}

fn a_waiting_reader(look: fn(&Pipe) -> bool) {
    model(6, move || {
        let p = Arc::new(Pipe::new());
        let q = p.clone();
        let t = thread::spawn(move || {
            assert_eq!(q.write(&mut 0, 1), 1);
            notify_data(&q.reader, 1, |_| None)
        });
        let registered = p.reader.rx_waiter.compare_exchange(0, 7, Ordering::SeqCst, Ordering::SeqCst);
        assert_eq!(registered, Ok(0));
        let sleeps = !look(&p);
        if !sleeps {
            // Awake: takes its registration back, if the peer has not taken it.
            let _ = p.reader.rx_waiter.compare_exchange(7, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
        let ring = t.join().unwrap();
        assert!(!sleeps || ring == Ring { channel: 0, thread: 7 }, "a reader sleeps for ever");
        // Looked at after the ring, the byte is there.
        assert_eq!(p.read(&mut 0, 4), 1);
        assert!(!flag(&p.reader.rx_waiter), "a registration is left behind");
    });
}

/// (c) The end of the stream wakes as data does.
///
/// Mutations: `fin` stored after the look at the waiter; the waiter without its fence.
#[test]
fn the_end_wakes_a_waiting_reader() {
    model(6, || {
        let p = Arc::new(Pipe::new());
        let q = p.clone();
        let t = thread::spawn(move || {
            q.data.fin.fetch_or(netacc_ring::FIN, Ordering::SeqCst);
            notify_data(&q.reader, 1, |_| None)
        });
        p.reader.rx_waiter.swap(7, Ordering::SeqCst);
        // As the endpoint arms: a fence, then the look with Acquire.
        netacc_ring::sync::fence(Ordering::SeqCst);
        let sleeps = p.data.fin.load(Ordering::Acquire) == 0;
        assert!(t.join().unwrap().thread == 7 || !sleeps, "a reader sleeps for ever");
    });
}

fn full() -> (Pipe, u8) {
    let p = Pipe::new();
    let mut w = 0;
    assert_eq!(p.write(&mut w, LARGE + 2), LARGE, "the large window and no more");
    assert_eq!(p.tx.writable(&p.room), Ok(false));
    (p, w)
}

/// (d) A thread that waits for room is rung once a quarter is free, though the reader may look at
/// the waiter while there is less.
///
/// Mutations: `Producer::refresh` with `Acquire`; `Consumer::publish` with `AcqRel`; `notify_room` taking the
/// waiter before it knows that there is enough; `room_to_tell` asking for more than `writable` does.
#[test]
fn a_waiting_writer_is_rung() {
    let own: fn(&Pipe) -> bool = |p| p.tx.writable(&p.room) == Ok(true);
    let shared: fn(&Pipe) -> bool = |p| p.tx.writable_by(&p.data, &p.room);
    for look in [own, shared] {
        a_waiting_writer(look);
    }
}

fn a_waiting_writer(look: fn(&Pipe) -> bool) {
    model(6, move || {
        let (p, _) = full();
        let p = Arc::new(p);
        let q = p.clone();
        let t = thread::spawn(move || {
            let mut r = 0;
            let mut rung = 0;
            for piece in [LARGE / 8, LARGE / 8] {
                assert_eq!(q.read(&mut r, piece), piece);
                rung += notify_room(&q.writer, 1, |_| None, || q.rx.room_to_tell(&q.data)).thread;
            }
            rung
        });
        p.writer.tx_waiter.swap(9, Ordering::SeqCst);
        let sleeps = !look(&p);
        assert!(t.join().unwrap() == 9 || !sleeps, "a writer sleeps for ever");
        assert_eq!(p.tx.writable(&p.room), Ok(true));
    });
}

/// (d) An event loop that wants to hear of room gets a bit and is rung.
///
/// Mutations: `want_room` set after the look; `notify_room` clearing it without `enough`, or looking at it
/// with `Acquire`.
#[test]
fn a_watching_writer_is_rung() {
    model(6, || {
        let (p, _) = full();
        let p = Arc::new((p, Channel::default()));
        p.0.writer.watch.store(1, Ordering::SeqCst);
        let q = p.clone();
        let t = thread::spawn(move || {
            let mut r = 0;
            let mut rung = 0;
            for piece in [LARGE / 8, LARGE / 8] {
                assert_eq!(q.0.read(&mut r, piece), piece);
                let enough = || q.0.rx.room_to_tell(&q.0.data);
                rung += notify_room(&q.0.writer, 3, |n| (n == 1).then_some(&q.1), enough).channel;
            }
            rung
        });
        p.0.writer.want_room.swap(1, Ordering::SeqCst);
        let sleeps = !p.0.tx.writable(&p.0.room).unwrap() && p.1.arm();
        let rung = t.join().unwrap();
        assert!(rung <= 1);
        assert!(!sleeps || (rung == 1 && p.1.any()), "an event loop sleeps for ever");
    });
}

/// (f) Two connections whose bits share a word: neither bit is lost, one ring per arming.
///
/// Mutations: `mark` storing the word instead of `fetch_or`; `take` by a load and a store; `armed` not taken by an exchange (two rings for
/// one arming); `any` with `Acquire`.
#[test]
fn two_connections_share_a_word() {
    model(3, || {
        let c = Arc::new((Channel::default(), [ProducerLine::default(), ProducerLine::default()]));
        let producers: Vec<_> = (0..2usize)
            .map(|i| {
                let c = c.clone();
                thread::spawn(move || {
                    c.1[i].head.swap(1, Ordering::SeqCst);
                    u32::from(c.0.mark(i))
                })
            })
            .collect();
        let rx = [Consumer::default(), Consumer::default()];
        let mut seen = [false; 2];
        for slot in c.0.take() {
            seen[slot] |= rx[slot].readable(&c.1[slot]);
        }
        let asleep = c.0.arm();
        let rings: u32 = producers.into_iter().map(|t| t.join().unwrap()).sum();
        assert!(rings <= 1, "one arming, {rings} rings");
        let left: Vec<_> = c.0.take().collect();
        for (slot, seen) in seen.iter().enumerate() {
            assert!(*seen || left.contains(&slot), "the bit of {slot} is lost");
        }
        assert!(!asleep || left.is_empty() || rings == 1, "asleep and not rung");
    });
}

/// (g) Both sides close and the client uses the slot again. A server that closes last wipes its own words: not
/// before the client has looked at them for the last time, and the next connection finds nothing of this one.
///
/// Mutations: `GONE` set together with `CLOSED`; `GONE` set or looked at with `Relaxed`; the wiping after `done`.
#[test]
fn a_slot_is_used_again() {
    model(3, || {
        // The two sides' lines, and the epoch that the server is done with and that it has wiped.
        let s = Arc::new(([OwnLine::default(), OwnLine::default()], AtomicU32::default(), AtomicU32::default()));
        let [_, served] = &s.0;
        served.producer.head.store(5, Ordering::Relaxed);
        served.side.watch.store(9, Ordering::Relaxed);
        let q = s.clone();
        let server = thread::spawn(move || {
            let ([client, own], done, wiped) = &*q;
            if client.producer.fin.load(Ordering::Acquire) & GONE != 0 {
                own.wipe();
                wiped.store(7, Ordering::Relaxed);
            } else {
                own.side.watch.store(0, Ordering::Relaxed);
                own.producer.fin.fetch_or(FIN | CLOSED, Ordering::SeqCst);
                own.producer.fin.fetch_or(GONE, Ordering::Release);
            }
            done.store(7, Ordering::Release);
        });
        let ([own, served], done, wiped) = &*s;
        own.producer.fin.fetch_or(FIN | CLOSED, Ordering::SeqCst);
        assert_eq!(served.producer.head.load(Ordering::SeqCst), 5, "wiped under our eyes");
        own.producer.fin.fetch_or(GONE, Ordering::Release);
        if done.load(Ordering::Acquire) == 7 {
            own.wipe();
            if wiped.load(Ordering::Relaxed) != 7 {
                served.wipe();
            }
            for line in [own, served] {
                assert_eq!(line.producer.head.load(Ordering::Relaxed), 0);
                assert_eq!(line.producer.fin.load(Ordering::Relaxed), OPEN);
                assert_eq!(line.side.watch.load(Ordering::Relaxed), 0);
            }
        }
        server.join().unwrap();
    });
}
