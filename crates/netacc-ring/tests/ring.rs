//! The ring over real memory: random operations against an oracle, a peer that lies, two threads.
#![cfg(not(loom))]
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use core::ptr::NonNull;
use netacc_ring::{
    Area, Channel, Consumer, ConsumerLine, FIN, LARGE, Layout, Producer, ProducerLine, SLOTS, SMALL, SideLine,
    Violation, notify_data, notify_room,
};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// No one gets more bytes underway than both windows hold.
const CAPACITY: u64 = (SMALL + LARGE) as u64;
/// Bytes before and after each window that nobody may touch.
const GUARD: usize = 4096;
const GUARD_BYTE: u8 = 0xa5;

/// One direction: the shared words, both windows between guards, and both ends.
struct Pipe {
    memory: Box<[u8]>,
    base: NonNull<u8>,
    data: ProducerLine,
    room: ConsumerLine,
    tx: Producer,
    rx: Consumer,
}

// SAFETY: the ends access disjoint bytes of the memory, which is what these tests are about.
unsafe impl Sync for Pipe {}

impl Pipe {
    const SMALL_AT: usize = GUARD;
    const LARGE_AT: usize = Self::SMALL_AT + SMALL + GUARD;
    const SIZE: usize = Self::LARGE_AT + LARGE + GUARD;

    fn new() -> Pipe {
        let mut memory = vec![GUARD_BYTE; Self::SIZE].into_boxed_slice();
        let base = NonNull::new(memory.as_mut_ptr()).unwrap();
        Pipe {
            memory,
            base,
            data: ProducerLine::default(),
            room: ConsumerLine::default(),
            tx: Producer::default(),
            rx: Consumer::default(),
        }
    }

    fn area(&self) -> Area {
        // SAFETY: both windows lie within `memory`, which lives as long as the pipe.
        unsafe { Area::new(self.base.add(Self::SMALL_AT), self.base.add(Self::LARGE_AT)) }
    }

    /// A chunk, once it is seen to lie within one window and to hold something.
    fn checked(&self, (ptr, len): (NonNull<u8>, usize)) -> (*mut u8, usize) {
        let at = ptr.as_ptr() as usize - self.base.as_ptr() as usize;
        let inside = |from: usize, size: usize| at >= from && at + len <= from + size;
        assert!(len > 0, "an empty chunk");
        assert!(inside(Self::SMALL_AT, SMALL) || inside(Self::LARGE_AT, LARGE), "{at} + {len} leaves the windows");
        (ptr.as_ptr(), len)
    }

    fn guards_are_whole(&self) -> bool {
        let whole = |from: usize| {
            // SAFETY: within `memory`; no thread writes while this is asked.
            let s = unsafe { core::slice::from_raw_parts(self.base.as_ptr().add(from), GUARD) };
            s.iter().all(|b| *b == GUARD_BYTE)
        };
        assert_eq!(self.memory.len(), Self::SIZE);
        whole(0) && whole(Self::SMALL_AT + SMALL) && whole(Self::LARGE_AT + LARGE)
    }

    /// Writes what fits of one message given in pieces, as the endpoint does.
    fn write(&self, pieces: &[&[u8]]) -> Result<usize, Violation> {
        let want = pieces.iter().map(|p| p.len()).sum::<usize>();
        self.tx.prepare(&self.data, &self.room, want)?;
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
                // SAFETY: `checked`.
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

    fn read(&self, want: usize, peek: bool) -> Result<Vec<u8>, Violation> {
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
            // SAFETY: `checked`.
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

    fn discard(&self, want: usize) -> Result<usize, Violation> {
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

    /// What holds between any two operations of two honest ends.
    fn invariants(&self, pending: u64) {
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
        // Bytes under the newest layout fit into its window, those before into the one in force.
        assert!(head - tail.max(newest.origin) <= newest.size() as u64);
        assert!(newest.origin.saturating_sub(tail) <= in_force.size() as u64);
    }
}

/// Bytes that differ at any distance.
fn pattern(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn bytes(at: u64, n: usize) -> Vec<u8> {
    (0..n as u64).map(|i| pattern(at + i)).collect()
}

#[derive(Clone, Debug)]
enum Op {
    Write(Vec<usize>),
    Read(usize),
    Peek(usize),
    Discard(usize),
    /// So many small messages, each read at once or after a few more.
    Chatter(usize, usize, usize),
    Drain,
    ResyncProducer,
    ResyncConsumer,
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        3 => 0usize..64,
        3 => 0usize..2 * SMALL,
        1 => prop_oneof![Just(SMALL - 1), Just(SMALL), Just(SMALL + 1)],
        2 => 0usize..40_000,
        1 => 0usize..300 * 1024,
        1 => prop_oneof![Just(LARGE - 1), Just(LARGE), Just(LARGE + 1), Just(LARGE + SMALL + 1)],
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => proptest::collection::vec(size(), 1..4).prop_map(Op::Write),
        4 => size().prop_map(Op::Read),
        2 => size().prop_map(Op::Peek),
        1 => size().prop_map(Op::Discard),
        1 => (1usize..1500, 1usize..SMALL / 2, 1usize..4).prop_map(|(n, len, lag)| Op::Chatter(n, len, lag)),
        2 => Just(Op::Drain),
        1 => Just(Op::ResyncProducer),
        1 => Just(Op::ResyncConsumer),
    ]
}

#[derive(Default)]
struct Oracle {
    pending: VecDeque<u8>,
    written: u64,
}

impl Oracle {
    fn write(&mut self, p: &Pipe, sizes: &[usize]) {
        let want = sizes.iter().sum::<usize>();
        let all = bytes(self.written, want);
        let mut rest = &all[..];
        let mut pieces = Vec::new();
        for &s in sizes {
            let (piece, r) = rest.split_at(s);
            pieces.push(piece);
            rest = r;
        }
        let before = self.pending.len();
        let writable = p.tx.writable(&p.room).unwrap();
        let n = p.write(&pieces).unwrap();
        assert!(n <= want);
        if n < want {
            // A message that is cut fills its window to the last byte.
            let newest = Layout::unpack(p.data.layout.load(Ordering::SeqCst));
            let tail = p.room.tail.load(Ordering::SeqCst);
            assert_eq!(p.data.head.load(Ordering::SeqCst) - tail.max(newest.origin), newest.size() as u64);
        }
        if want > 0 && (writable || before == 0) {
            assert!(n > 0, "{before} bytes pending, writable, and nothing was taken");
        }
        if before == 0 {
            assert!(n >= want.min(LARGE), "an empty ring took {n} of {want}");
        }
        self.pending.extend(&all[..n]);
        self.written += n as u64;
    }

    fn read(&mut self, p: &Pipe, want: usize) {
        let got = p.read(want, false).unwrap();
        let expect: Vec<u8> = self.pending.drain(..want.min(self.pending.len())).collect();
        assert!(got == expect, "read {} of {want}, expected {}", got.len(), expect.len());
    }

    fn apply(&mut self, p: &Pipe, op: &Op) {
        match op {
            Op::Write(sizes) => self.write(p, sizes),
            Op::Read(n) => self.read(p, *n),
            Op::Peek(n) => {
                let got = p.read(*n, true).unwrap();
                let expect: Vec<u8> = self.pending.iter().copied().take(*n).collect();
                assert!(got == expect, "peeked {} of {n}, expected {}", got.len(), expect.len());
            }
            Op::Discard(n) => {
                let n = p.discard(*n).unwrap();
                self.pending.drain(..n);
            }
            Op::Chatter(n, len, lag) => {
                for i in 0..*n {
                    self.write(p, &[*len]);
                    if i % lag == 0 {
                        self.read(p, usize::MAX);
                    }
                }
            }
            Op::Drain => self.read(p, usize::MAX),
            // Another process of the family takes over with cursors of its own.
            Op::ResyncProducer => {
                p.tx.reset();
                p.tx.resync(&p.data, &p.room).unwrap();
            }
            Op::ResyncConsumer => {
                p.rx.reset();
                p.rx.resync(&p.room, &p.data).unwrap();
            }
        }
        p.invariants(self.pending.len() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_agree_with_a_queue(ops in proptest::collection::vec(op(), 1..60)) {
        let p = Pipe::new();
        let mut o = Oracle::default();
        for op in &ops {
            o.apply(&p, op);
        }
        o.apply(&p, &Op::Drain);
        prop_assert!(p.guards_are_whole());
    }
}

/// The whole life of a connection's windows: small, large with small bytes pending, rewound, small
/// again, and large once more.
#[test]
fn windows_change_as_described() {
    let p = Pipe::new();
    let mut o = Oracle::default();
    let newest = |p: &Pipe| Layout::unpack(p.data.layout.load(Ordering::SeqCst));
    o.apply(&p, &Op::Write(vec![SMALL]));
    assert_eq!(newest(&p), Layout { large: false, origin: 0 });
    o.apply(&p, &Op::Write(vec![1]));
    assert_eq!(newest(&p), Layout { large: true, origin: SMALL as u64 });
    assert!(!p.tx.large_idle(&p.room));
    o.apply(&p, &Op::Write(vec![LARGE]));
    assert_eq!(o.pending.len(), SMALL + LARGE, "both windows are used");
    assert_eq!(p.tx.writable(&p.room), Ok(false));
    o.apply(&p, &Op::Drain);
    // Drained and far in: the next message begins the window anew.
    let end = o.written;
    o.apply(&p, &Op::Write(vec![100]));
    assert_eq!(newest(&p), Layout { large: true, origin: end });
    o.apply(&p, &Op::Drain);
    // Quiet for long enough: small again, and the large window may be given back once that was seen.
    let mut n = 0;
    while newest(&p).large {
        o.apply(&p, &Op::Write(vec![1]));
        if newest(&p).large {
            o.apply(&p, &Op::Drain);
        }
        n += 1;
        assert!(n < 5000, "never small again");
    }
    assert!(!p.tx.large_idle(&p.room), "the reader has not seen it");
    // The reader has not adopted the small window: it cannot be left yet.
    o.apply(&p, &Op::Write(vec![LARGE]));
    assert!(!newest(&p).large);
    assert_eq!(o.pending.len(), SMALL);
    assert_eq!(p.tx.writable(&p.room), Ok(false));
    o.apply(&p, &Op::Read(1));
    assert!(p.tx.large_idle(&p.room));
    assert_eq!(p.tx.writable(&p.room), Ok(true), "the large window can be opened");
    o.apply(&p, &Op::Write(vec![LARGE]));
    assert!(newest(&p).large && !p.tx.large_idle(&p.room));
    assert_eq!(o.pending.len(), SMALL - 1 + LARGE);
    o.apply(&p, &Op::Drain);
}

/// A writer is told of room when a quarter is free, whichever way the reader reads.
#[test]
fn room_is_told_from_a_quarter_on() {
    let p = Pipe::new();
    let mut o = Oracle::default();
    o.apply(&p, &Op::Write(vec![LARGE]));
    for _ in 0..LARGE / 4 / 1024 {
        assert!(!p.rx.room_to_tell(&p.data));
        assert_eq!(p.tx.writable(&p.room), Ok(false));
        o.apply(&p, &Op::Read(1024));
    }
    assert!(p.rx.room_to_tell(&p.data));
    assert_eq!(p.tx.writable(&p.room), Ok(true));
}

/// `resync` refuses words that cannot be.
#[test]
fn resync_refuses_impossible_positions() {
    let p = Pipe::new();
    p.room.tail.store(1, Ordering::SeqCst);
    assert_eq!(p.tx.resync(&p.data, &p.room), Err(Violation), "read ahead of what was written");
    assert_eq!(p.rx.resync(&p.room, &p.data), Err(Violation));
    p.room.tail.store(0, Ordering::SeqCst);
    p.data.head.store(CAPACITY + 1, Ordering::SeqCst);
    assert_eq!(p.tx.resync(&p.data, &p.room), Err(Violation), "more underway than fits");
    assert_eq!(p.rx.resync(&p.room, &p.data), Err(Violation));
    p.data.head.store(5, Ordering::SeqCst);
    p.data.layout.store(Layout { large: true, origin: 6 }.pack(), Ordering::SeqCst);
    assert_eq!(p.tx.resync(&p.data, &p.room), Err(Violation), "a window ahead of the bytes");
}

/// What a liar writes: anything, often something near the truth.
fn lie() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0u64..8,
        (0u64..2 * CAPACITY),
        (0u64..CAPACITY).prop_map(|n| n | 1 << 63),
        (0u64..4096).prop_map(|n| u64::MAX - n),
        Just(CAPACITY),
        Just(CAPACITY + 1),
        Just(1 << 63),
        Just((1 << 63) - 1),
    ]
}

#[derive(Clone, Debug)]
enum Lie {
    /// Store the value into word 0 (position), 1 (layout) or 2 (end mark).
    Set(u8, u64),
    /// Add to the position.
    Move(i64),
    Honest(usize),
    Act(usize),
    Peek(usize),
    Discard(usize),
    Look,
}

fn lies() -> impl Strategy<Value = Vec<Lie>> {
    let one = prop_oneof![
        4 => (0u8..3, lie()).prop_map(|(w, v)| Lie::Set(w, v)),
        2 => prop_oneof![0i64..4096, -10i64..LARGE as i64, any::<i64>()].prop_map(Lie::Move),
        3 => size().prop_map(Lie::Honest),
        4 => size().prop_map(Lie::Act),
        1 => size().prop_map(Lie::Peek),
        1 => size().prop_map(Lie::Discard),
        1 => Just(Lie::Look),
    ];
    proptest::collection::vec(one, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the producer claims: chunks stay inside, reads end, and take no more than was claimed.
    #[test]
    fn a_lying_producer_hurts_only_itself(script in lies()) {
        let p = Pipe::new();
        for l in &script {
            match *l {
                Lie::Set(0, v) => p.data.head.store(v, Ordering::SeqCst),
                Lie::Set(1, v) => p.data.layout.store(v, Ordering::SeqCst),
                Lie::Set(_, v) => p.data.fin.store(v as u32 | FIN, Ordering::SeqCst),
                Lie::Move(d) => {
                    let head = p.data.head.load(Ordering::SeqCst);
                    p.data.head.store(head.wrapping_add_signed(d), Ordering::SeqCst);
                }
                Lie::Honest(n) => {
                    let _ = p.write(&[&bytes(0, n)]);
                }
                Lie::Act(n) => {
                    let before = p.room.tail.load(Ordering::SeqCst);
                    if let Ok(got) = p.read(n, false) {
                        // A head that was believed before, and once more what fits behind it.
                        prop_assert!(got.len() <= n && got.len() as u64 <= 2 * CAPACITY);
                        prop_assert_eq!(p.room.tail.load(Ordering::SeqCst), before + got.len() as u64);
                    } else {
                        // The connection would be reset; the liar goes on, and so do we.
                        p.rx.publish(&p.room);
                    }
                }
                Lie::Peek(n) => {
                    let before = p.room.tail.load(Ordering::SeqCst);
                    let _ = p.read(n, true);
                    prop_assert_eq!(p.room.tail.load(Ordering::SeqCst), before);
                }
                Lie::Discard(n) => {
                    if p.discard(n).is_err() {
                        p.rx.publish(&p.room);
                    }
                }
                Lie::Look => {
                    prop_assert!(p.rx.available(&p.data).unwrap_or(0) <= CAPACITY);
                    p.rx.readable(&p.data);
                    p.rx.room_to_tell(&p.data);
                    let c = Consumer::default();
                    let _ = c.resync(&p.room, &p.data);
                    if let Ok(Some(chunk)) = c.chunk(&p.area(), &ConsumerLine::default(), &p.data, 0) {
                        p.checked(chunk);
                    }
                }
            }
        }
        prop_assert!(p.guards_are_whole());
    }

    /// Whatever the consumer claims: chunks stay inside, writes end, and never more is underway than fits.
    #[test]
    fn a_lying_consumer_hurts_only_itself(script in lies()) {
        let p = Pipe::new();
        let mut written = 0u64;
        for l in &script {
            match *l {
                Lie::Set(0, v) => p.room.tail.store(v, Ordering::SeqCst),
                Lie::Set(_, v) => p.room.layout.store(v, Ordering::SeqCst),
                Lie::Move(d) => {
                    let tail = p.room.tail.load(Ordering::SeqCst);
                    p.room.tail.store(tail.wrapping_add_signed(d), Ordering::SeqCst);
                }
                Lie::Honest(n) | Lie::Discard(n) => {
                    let _ = p.read(n, false);
                }
                Lie::Act(n) | Lie::Peek(n) => {
                    match p.write(&[&bytes(written, n)]) {
                        Ok(k) => {
                            written += k as u64;
                            prop_assert!(k <= n && k as u64 <= CAPACITY);
                            prop_assert_eq!(p.data.head.load(Ordering::SeqCst), written);
                        }
                        // Found out in the middle: what was copied is not published.
                        Err(Violation) => {
                            p.tx.publish(&p.data);
                            written = p.data.head.load(Ordering::SeqCst);
                        }
                    }
                }
                Lie::Look => {
                    let _ = p.tx.writable(&p.room);
                    p.tx.large_idle(&p.room);
                    prop_assert!(p.tx.unread(&p.room).unwrap_or(0) <= CAPACITY);
                    let t = Producer::default();
                    if t.resync(&p.data, &p.room).is_ok()
                        && let Ok(Some(chunk)) = t.chunk(&p.area(), &p.room, 1 << 20)
                    {
                        p.checked(chunk);
                    }
                }
            }
        }
        prop_assert!(p.guards_are_whole());
    }

    /// Forged channel numbers, slots and waiters reach nothing but the named doorbell.
    #[test]
    fn forged_watchers_mark_nothing(watch: u32, waiter: u32, want: u32, slot in 0usize..2 * SLOTS) {
        let c = Channel::default();
        let l = SideLine::default();
        l.watch.store(watch, Ordering::SeqCst);
        l.rx_waiter.store(waiter, Ordering::SeqCst);
        l.tx_waiter.store(waiter, Ordering::SeqCst);
        l.want_room.store(want, Ordering::SeqCst);
        prop_assert!(c.arm());
        // Only number 1 exists.
        let known = |n: u32| (n == 1).then_some(&c);
        let real = watch == 1 && slot < SLOTS;
        let r = notify_data(&l, slot, known);
        prop_assert_eq!((r.channel, r.thread), (u32::from(real), waiter));
        let r = notify_room(&l, slot, known, || true);
        // The arming was used up, and so were the waiters.
        prop_assert_eq!((r.channel, r.thread), (0, waiter));
        let r = notify_room(&l, slot, known, || true);
        prop_assert_eq!((r.channel, r.thread), (0, 0));
        prop_assert_eq!(c.take().collect::<Vec<_>>(), if real { vec![slot] } else { vec![] });
    }
}

/// A claim that only grows by lies is still bounded by what fits: reading never runs for ever.
#[test]
fn an_endless_claim_ends() {
    let p = Pipe::new();
    for step in 1..50u64 {
        p.data.head.store(step * CAPACITY, Ordering::SeqCst);
        assert_eq!(p.read(usize::MAX, false).map(|v| v.len() as u64), Ok(CAPACITY));
    }
    p.data.head.store(u64::MAX, Ordering::SeqCst);
    assert_eq!(p.read(1, false), Err(Violation));
    // A head that falls is a lie too.
    let p = Pipe::new();
    p.data.head.store(10, Ordering::SeqCst);
    assert_eq!(p.read(1, false).map(|v| v.len()), Ok(1));
    p.data.head.store(9, Ordering::SeqCst);
    assert_eq!(p.rx.available(&p.data), Err(Violation));
    // A window that begins before what was read, or before the one in force.
    let p = Pipe::new();
    assert_eq!(p.write(&[&[1; 10]]), Ok(10));
    assert_eq!(p.read(5, false).map(|v| v.len()), Ok(5));
    p.data.layout.store(Layout { large: false, origin: 3 }.pack(), Ordering::SeqCst);
    assert_eq!(p.read(5, false), Err(Violation));
    let p = Pipe::new();
    assert_eq!(p.write(&[&[1; 10]]), Ok(10));
    p.data.layout.store(Layout { large: true, origin: 5 }.pack(), Ordering::SeqCst);
    assert_eq!(p.read(6, false).map(|v| v.len()), Ok(6), "the liar's own bytes are garbled");
    p.data.layout.store(Layout { large: true, origin: 4 }.pack(), Ordering::SeqCst);
    assert_eq!(p.read(1, false), Err(Violation));
    // A tail that falls, or runs ahead.
    let p = Pipe::new();
    assert_eq!(p.write(&[&[1; 10]]), Ok(10));
    p.room.tail.store(5, Ordering::SeqCst);
    assert_eq!(p.tx.unread(&p.room), Ok(5));
    for tail in [4, 11] {
        p.room.tail.store(tail, Ordering::SeqCst);
        assert_eq!(p.tx.unread(&p.room), Err(Violation));
    }
}

/// A set of bits is taken once and completely; an arming is used up by one ring.
#[test]
fn ready_set() {
    let c = Channel::default();
    for s in [0, 1, 63, 64, 300, SLOTS - 1] {
        assert!(!c.mark(s), "nobody is armed");
    }
    assert!(!c.arm(), "bits are there");
    assert_eq!(c.take().collect::<Vec<_>>(), [0, 1, 63, 64, 300, SLOTS - 1]);
    assert_eq!(c.take().count(), 0);
    assert!(c.arm());
    assert!(c.mark(7) && !c.mark(8) && c.any());
    assert!(!c.mark(SLOTS) && !c.mark(usize::MAX));
    c.arm();
    c.disarm();
    assert!(!c.mark(9));
    assert_eq!(c.take().collect::<Vec<_>>(), [7, 8, 9]);
}

fn xorshift(s: &mut u64) -> u64 {
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    *s
}

/// Two threads over real memory: every byte arrives, in order, through all window changes.
#[test]
fn two_threads_move_a_stream() {
    let p = Pipe::new();
    let until = Instant::now() + Duration::from_millis(1200);
    let guard = until + Duration::from_secs(5);
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let (mut seed, mut at) = (0x1234_5678_9abc_def1u64, 0u64);
            let mut buf = vec![0u8; 300 * 1024];
            while Instant::now() < until {
                // Mostly small messages, now and then a large one, with phases of chatter.
                let r = xorshift(&mut seed);
                let (messages, len) = match r % 64 {
                    0 => (1, (r >> 8) as usize % buf.len()),
                    1..4 => (1, (r >> 8) as usize % 40_000),
                    4 => (1500, 1 + (r >> 8) as usize % 32),
                    _ => (4, (r >> 8) as usize % 3000),
                };
                for _ in 0..messages {
                    for (i, b) in buf[..len].iter_mut().enumerate() {
                        *b = pattern(at + i as u64);
                    }
                    let mut rest = &buf[..len];
                    while !rest.is_empty() {
                        let n = p.write(&[rest]).unwrap();
                        rest = &rest[n..];
                        if n == 0 {
                            assert!(Instant::now() < guard, "nobody reads");
                            std::thread::yield_now();
                        }
                    }
                    at += len as u64;
                }
            }
            done.store(true, Ordering::Release);
        });
        let (mut seed, mut at) = (0xfeed_5678_9abc_def1u64, 0u64);
        loop {
            let r = xorshift(&mut seed);
            let was_done = done.load(Ordering::Acquire);
            let want = if r.is_multiple_of(8) { usize::MAX } else { 1 + (r >> 8) as usize % 5000 };
            if r % 16 == 1 {
                let peeked = p.read(want.min(4000), true).unwrap();
                assert!(peeked.iter().enumerate().all(|(i, b)| *b == pattern(at + i as u64)), "peek at {at}");
            }
            let got = p.read(want, false).unwrap();
            for (i, b) in got.iter().enumerate() {
                assert!(*b == pattern(at + i as u64), "garbled at {}", at + i as u64);
            }
            at += got.len() as u64;
            if got.is_empty() {
                if was_done {
                    break;
                }
                assert!(Instant::now() < guard, "nobody writes");
                std::thread::yield_now();
            }
        }
        assert_eq!(at, p.data.head.load(Ordering::SeqCst));
        assert!(at > 1 << 20, "only {at} bytes were moved");
    });
    assert!(p.guards_are_whole());
}

/// With a bounded buffer only so much is under way, whatever the windows hold, and room is told again below it.
#[test]
fn a_limit_bounds_what_is_under_way() {
    let p = Pipe::new();
    let all = vec![0; LARGE];
    p.tx.set_limit(10_000);
    p.room.window.store(6_000, Ordering::SeqCst);
    assert_eq!(p.write(&[&all]), Ok(16_000));
    assert_eq!(p.tx.writable(&p.room), Ok(false));
    assert!(!p.tx.writable_by(&p.data, &p.room));
    assert_eq!(p.write(&[&all[..1]]), Ok(0));
    p.read(4_000, false).unwrap();
    assert_eq!(p.tx.writable(&p.room), Ok(true));
    assert!(p.tx.writable_by(&p.data, &p.room));
    assert_eq!(p.write(&[&all]), Ok(4_000));
    p.read(LARGE, false).unwrap();
    // Unbounded again.
    p.tx.set_limit(0);
    p.read(LARGE, false).unwrap();
    assert!(p.write(&[&all]).unwrap() > 200_000);
}
