//! Random operations on the ring, compared with a queue.

use crate::pipe::*;
use netacc_ring::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Write(Vec<usize>),
    Read(usize),
    Peek(usize),
    Discard(usize),
    /// A number of small messages, each read at once or after a few more.
    Chatter(usize, usize, usize),
    Drain,
    ResyncProducer,
    ResyncConsumer,
    /// From now on so many bytes of the large window may be open.
    Allow(usize),
    CloseLarge,
}

pub(crate) fn size() -> impl Strategy<Value = usize> {
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
        2 => (0usize..=LARGE / STEP).prop_map(|steps| Op::Allow(steps * STEP)),
        1 => Just(Op::CloseLarge),
    ]
}

#[derive(Default)]
pub(crate) struct Oracle {
    pub(crate) pending: VecDeque<u8>,
    pub(crate) written: u64,
}

impl Oracle {
    pub(crate) fn write(&mut self, p: &Pipe, sizes: &[usize]) {
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
        let writable = p.writable().unwrap();
        let n = p.write(&pieces).unwrap();
        assert!(n <= want);
        let newest = Layout::unpack(p.data.layout.load(Ordering::SeqCst));
        let (head, tail) = (p.data.head.load(Ordering::SeqCst), p.room.tail.load(Ordering::SeqCst));
        let size = if newest.large { p.tx.extent() } else { SMALL };
        if newest.large && size < LARGE {
            assert!(head - newest.origin <= size as u64, "written beyond what is open");
        }
        if n < want {
            // A message that is cut fills its window to the last byte, or what is open of it.
            let from = if newest.large && size < LARGE { newest.origin } else { tail.max(newest.origin) };
            assert_eq!(head - from, size as u64);
        }
        if want > 0 && (writable || before == 0) {
            assert!(n > 0, "{before} bytes pending, writable, and nothing was taken");
        }
        if before == 0 {
            assert!(n >= want.min(size), "an empty ring took {n} of {want}");
        }
        self.pending.extend(&all[..n]);
        self.written += n as u64;
    }

    pub(crate) fn read(&mut self, p: &Pipe, want: usize) {
        let got = p.read(want, false).unwrap();
        let expect: Vec<u8> = self.pending.drain(..want.min(self.pending.len())).collect();
        assert!(got == expect, "read {} of {want}, expected {}", got.len(), expect.len());
    }

    pub(crate) fn apply(&mut self, p: &Pipe, op: &Op) {
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
            // Another sharer takes over with its own cursors.
            Op::ResyncProducer => {
                p.tx.reset();
                p.tx.resync(&p.data, &p.room).unwrap();
            }
            Op::ResyncConsumer => {
                p.rx.reset();
                p.rx.resync(&p.room, &p.data).unwrap();
            }
            Op::Allow(bytes) => p.allowed.store(*bytes, Ordering::Relaxed),
            Op::CloseLarge => p.close_large(),
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
