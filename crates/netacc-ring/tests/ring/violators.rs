//! Tests with a peer that writes invalid values.

use crate::oracle::size;
use crate::pipe::*;
use netacc_ring::*;
use proptest::prelude::*;
use std::sync::atomic::Ordering;

/// Values that a violator writes: arbitrary ones, often close to a valid one.
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
    /// Stores the value into word 0 (position), 1 (layout) or 2 (end mark).
    Set(u8, u64),
    /// Adds to the position.
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

    /// Whatever the producer claims, chunks stay within the windows, and reads end and return no more than was claimed.
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
                        // At most a head that was accepted before, and as many bytes as fit after it.
                        prop_assert!(got.len() <= n && got.len() as u64 <= 2 * CAPACITY);
                        prop_assert_eq!(p.room.tail.load(Ordering::SeqCst), before + got.len() as u64);
                    } else {
                        // The library would reset the connection here; the test continues.
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
                    p.rx.room_to_announce(&p.room, &p.data);
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

    /// Whatever the consumer claims, chunks stay within the windows, writes end, and no more bytes are unread than fit.
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
                        // The violation was found during the write, and the copied bytes are not published.
                        Err(Violation) => {
                            p.tx.publish(&p.data);
                            written = p.data.head.load(Ordering::SeqCst);
                        }
                    }
                }
                Lie::Look => {
                    let _ = p.writable();
                    p.tx.close_large(&p.data, &p.room);
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

    /// Forged ready set numbers, slots and waiters affect only the named waker.
    #[test]
    fn forged_watchers_mark_nothing(subscriber: u32, waiter: u32, want: u32, slot in 0usize..2 * SLOTS) {
        let c = ReadySet::default();
        let l = SideLine::default();
        l.subscriber.store(subscriber, Ordering::SeqCst);
        l.rx_waiter.store(waiter, Ordering::SeqCst);
        l.tx_waiter.store(waiter, Ordering::SeqCst);
        l.want_room.store(want, Ordering::SeqCst);
        prop_assert!(c.arm());
        // Only ready set 1 exists.
        let known = |n: u32| (n == 1).then_some(&c);
        let real = subscriber == 1 && slot < SLOTS;
        let r = notify_data(&l, slot, known);
        prop_assert_eq!((r.ready_set, r.thread), (u32::from(real), waiter));
        let r = notify_room(&l, slot, known, || true);
        // The arming and the waiters were used up.
        prop_assert_eq!((r.ready_set, r.thread), (0, waiter));
        let r = notify_room(&l, slot, known, || true);
        prop_assert_eq!((r.ready_set, r.thread), (0, 0));
        prop_assert_eq!(c.take().collect::<Vec<_>>(), if real { vec![slot] } else { vec![] });
    }
}

/// Reading ends even if forged claims keep growing, since the unread bytes are limited by the windows.
#[test]
fn an_endless_claim_ends() {
    let p = Pipe::new();
    for step in 1..50u64 {
        p.data.head.store(step * CAPACITY, Ordering::SeqCst);
        assert_eq!(p.read(usize::MAX, false).map(|v| v.len() as u64), Ok(CAPACITY));
    }
    p.data.head.store(u64::MAX, Ordering::SeqCst);
    assert_eq!(p.read(1, false), Err(Violation));
    // A head that falls is a violation.
    let p = Pipe::new();
    p.data.head.store(10, Ordering::SeqCst);
    assert_eq!(p.read(1, false).map(|v| v.len()), Ok(1));
    p.data.head.store(9, Ordering::SeqCst);
    assert_eq!(p.rx.available(&p.data), Err(Violation));
    // A window that begins before the read position or before the window in force is a violation.
    let p = Pipe::new();
    assert_eq!(p.write(&[&[1; 10]]), Ok(10));
    assert_eq!(p.read(5, false).map(|v| v.len()), Ok(5));
    p.data.layout.store(Layout { large: false, origin: 3 }.pack(), Ordering::SeqCst);
    assert_eq!(p.read(5, false), Err(Violation));
    let p = Pipe::new();
    assert_eq!(p.write(&[&[1; 10]]), Ok(10));
    p.data.layout.store(Layout { large: true, origin: 5 }.pack(), Ordering::SeqCst);
    assert_eq!(p.read(6, false).map(|v| v.len()), Ok(6), "the violator's own bytes are garbled");
    p.data.layout.store(Layout { large: true, origin: 4 }.pack(), Ordering::SeqCst);
    assert_eq!(p.read(1, false), Err(Violation));
    // A tail that falls, or passes the head, is a violation.
    let p = Pipe::new();
    assert_eq!(p.write(&[&[1; 10]]), Ok(10));
    p.room.tail.store(5, Ordering::SeqCst);
    assert_eq!(p.tx.unread(&p.room), Ok(5));
    for tail in [4, 11] {
        p.room.tail.store(tail, Ordering::SeqCst);
        assert_eq!(p.tx.unread(&p.room), Err(Violation));
    }
}
