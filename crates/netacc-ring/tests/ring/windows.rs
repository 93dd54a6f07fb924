//! Tests of window changes, and of wake-ups for room.

use crate::oracle::*;
use crate::pipe::*;
use netacc_ring::*;
use std::sync::atomic::Ordering;

/// A connection's windows go through their whole life: small, large with small bytes pending, rewound,
/// small again, and large once more.
#[test]
fn windows_change_as_described() {
    let p = Pipe::new();
    let mut o = Oracle::default();
    let newest = |p: &Pipe| Layout::unpack(p.data.layout.load(Ordering::SeqCst));
    o.apply(&p, &Op::Write(vec![SMALL]));
    assert_eq!(newest(&p), Layout { large: false, origin: 0 });
    o.apply(&p, &Op::Write(vec![1]));
    assert_eq!(newest(&p), Layout { large: true, origin: SMALL as u64 });
    assert!(!p.tx.close_large(&p.data, &p.room));
    o.apply(&p, &Op::Write(vec![LARGE]));
    assert_eq!(o.pending.len(), SMALL + LARGE, "both windows are used");
    assert_eq!(p.writable(), Ok(false));
    o.apply(&p, &Op::Drain);
    // The window is drained and its offset is large, so the next message begins at its start.
    let end = o.written;
    o.apply(&p, &Op::Write(vec![100]));
    assert_eq!(newest(&p), Layout { large: true, origin: end });
    o.apply(&p, &Op::Drain);
    // After enough small writes the small window is used again, and the large one may be closed.
    let mut n = 0;
    while newest(&p).large {
        o.apply(&p, &Op::Write(vec![1]));
        if newest(&p).large {
            o.apply(&p, &Op::Drain);
        }
        n += 1;
        assert!(n < 5000, "never small again");
    }
    assert!(p.tx.close_large(&p.data, &p.room), "no unread byte is in it");
    // The reader has not adopted the small window, so it cannot be left yet.
    o.apply(&p, &Op::Write(vec![LARGE]));
    assert!(!newest(&p).large);
    assert_eq!(o.pending.len(), SMALL);
    assert_eq!(p.writable(), Ok(false));
    o.apply(&p, &Op::Read(1));
    assert_eq!(p.writable(), Ok(true), "the large window can be opened");
    o.apply(&p, &Op::Write(vec![LARGE]));
    assert!(newest(&p).large && !p.tx.close_large(&p.data, &p.room));
    assert_eq!(o.pending.len(), SMALL - 1 + LARGE);
    o.apply(&p, &Op::Drain);
}

/// A writer is woken when a quarter is free, however the reader reads.
#[test]
fn room_is_told_from_a_quarter_on() {
    let p = Pipe::new();
    let mut o = Oracle::default();
    o.apply(&p, &Op::Write(vec![LARGE]));
    for _ in 0..LARGE / 4 / 1024 {
        assert!(!p.rx.room_to_announce(&p.room, &p.data));
        assert_eq!(p.writable(), Ok(false));
        o.apply(&p, &Op::Read(1024));
    }
    assert!(p.rx.room_to_announce(&p.room, &p.data));
    assert_eq!(p.writable(), Ok(true));
}

/// `resync` refuses impossible words.
#[test]
fn resync_refuses_impossible_positions() {
    let p = Pipe::new();
    p.room.tail.store(1, Ordering::SeqCst);
    assert_eq!(p.tx.resync(&p.data, &p.room), Err(Violation), "read ahead of what was written");
    assert_eq!(p.rx.resync(&p.room, &p.data), Err(Violation));
    p.room.tail.store(0, Ordering::SeqCst);
    p.data.head.store(CAPACITY + 1, Ordering::SeqCst);
    assert_eq!(p.tx.resync(&p.data, &p.room), Err(Violation), "more under way than fits");
    assert_eq!(p.rx.resync(&p.room, &p.data), Err(Violation));
    p.data.head.store(5, Ordering::SeqCst);
    p.data.layout.store(Layout { large: true, origin: 6 }.pack(), Ordering::SeqCst);
    assert_eq!(p.tx.resync(&p.data, &p.room), Err(Violation), "a window ahead of the bytes");
    p.data.layout.store(0, Ordering::SeqCst);
    for word in [&p.data.head, &p.room.tail] {
        word.store(u64::MAX - 1, Ordering::SeqCst);
    }
    assert_eq!(p.tx.resync(&p.data, &p.room), Err(Violation), "no stream is that long");
    assert_eq!(p.rx.resync(&p.room, &p.data), Err(Violation));
}

/// After the large window was closed, a small message and a large one in a row fit as before.
#[test]
fn a_closed_window_opens_for_what_comes() {
    let p = Pipe::new();
    let mut o = Oracle::default();
    o.apply(&p, &Op::Write(vec![LARGE / 2]));
    o.apply(&p, &Op::Drain);
    o.apply(&p, &Op::CloseLarge);
    assert_eq!(p.tx.extent(), 0);
    o.apply(&p, &Op::Write(vec![1]));
    assert_eq!(p.tx.extent(), STEP, "a page");
    o.apply(&p, &Op::Write(vec![LARGE / 2]));
    assert_eq!(o.pending.len(), 1 + LARGE / 2);
    o.apply(&p, &Op::Drain);
    // Without memory for it the small window is used.
    o.apply(&p, &Op::CloseLarge);
    o.apply(&p, &Op::Allow(0));
    assert_eq!(p.writable(), Ok(true));
    o.apply(&p, &Op::Write(vec![LARGE]));
    assert_eq!(o.pending.len(), SMALL);
    o.apply(&p, &Op::Drain);
}

/// A window of which only a part may be opened takes that part, and begins anew when it is drained.
#[test]
fn a_part_of_the_window_is_used_again_and_again() {
    let p = Pipe::new();
    let mut o = Oracle::default();
    o.apply(&p, &Op::Allow(0));
    o.apply(&p, &Op::Write(vec![LARGE]));
    assert_eq!(o.pending.len(), SMALL, "without memory there is the small window");
    assert_eq!(p.writable(), Ok(false));
    o.apply(&p, &Op::Read(SMALL / 2));
    assert_eq!(p.writable(), Ok(true));
    o.apply(&p, &Op::Drain);
    o.apply(&p, &Op::Allow(STEP));
    for _ in 0..3 {
        o.apply(&p, &Op::Write(vec![LARGE]));
        assert_eq!(o.pending.len(), STEP);
        o.apply(&p, &Op::Read(STEP - 1));
        assert_eq!(p.writable(), Ok(false), "it does not go round");
        o.apply(&p, &Op::Drain);
        assert_eq!(p.writable(), Ok(true));
    }
    assert_eq!(p.tx.extent(), STEP);
    // A drained window may be closed, and the next message opens it again.
    o.apply(&p, &Op::CloseLarge);
    assert_eq!(p.tx.extent(), 0);
    o.apply(&p, &Op::Write(vec![STEP]));
    o.apply(&p, &Op::Allow(LARGE));
    o.apply(&p, &Op::Write(vec![LARGE]));
    assert_eq!(p.tx.extent(), LARGE, "a writer that is ahead opens all of it");
    o.apply(&p, &Op::Drain);
}
