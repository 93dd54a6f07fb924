//! Tests of the ring over real memory: random operations against an oracle, a hostile peer, two threads.
#![cfg(not(loom))]
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod oracle;
mod pipe;
mod violators;
mod windows;

use netacc_ring::*;
use pipe::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The bits of a set are taken once and completely, and one wake-up uses up an arming.
#[test]
fn ready_set() {
    let c = ReadySet::default();
    for s in [0, 1, 63, 64, 300, SLOTS - 1] {
        assert!(!c.set(s), "nobody is armed");
    }
    assert!(!c.arm(), "bits are there");
    assert_eq!(c.take().collect::<Vec<_>>(), [0, 1, 63, 64, 300, SLOTS - 1]);
    assert_eq!(c.take().count(), 0);
    assert!(c.arm());
    assert!(c.set(7) && !c.set(8) && c.any());
    assert!(!c.set(SLOTS) && !c.set(usize::MAX));
    c.arm();
    c.disarm();
    assert!(!c.set(9));
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
                // Mostly small messages, sometimes a large one, with phases of many small ones.
                let r = xorshift(&mut seed);
                if r % 64 == 5 {
                    // The memory that there is changes, and what the reader has done with is given back.
                    p.allowed.store((r >> 8) as usize % (LARGE / STEP + 1) * STEP, Ordering::Relaxed);
                    p.close_large();
                }
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

/// With a limited buffer no more bytes than the limit are unread, whatever the windows hold, and room is announced
/// below it.
#[test]
fn a_limit_bounds_what_is_under_way() {
    let p = Pipe::new();
    let all = vec![0; LARGE];
    p.tx.set_limit(&p.data, 10_000);
    p.room.window.store(6_000, Ordering::SeqCst);
    assert_eq!(p.write(&[&all]), Ok(16_000));
    assert_eq!(p.writable(), Ok(false));
    assert!(!p.tx.writable_by(&p.data, &p.room));
    assert_eq!(p.write(&[&all[..1]]), Ok(0));
    // A writer that waits for room is woken when there is room for it, and not before.
    for _ in 0..4 {
        assert_eq!(p.rx.room_to_announce(&p.room, &p.data), p.tx.writable_by(&p.data, &p.room));
        p.read(1_000, false).unwrap();
    }
    assert!(p.rx.room_to_announce(&p.room, &p.data));
    assert_eq!(p.writable(), Ok(true));
    assert!(p.tx.writable_by(&p.data, &p.room));
    assert_eq!(p.write(&[&all]), Ok(4_000));
    p.read(LARGE, false).unwrap();
    // The buffer is unlimited again.
    p.tx.set_limit(&p.data, 0);
    p.read(LARGE, false).unwrap();
    assert!(p.write(&[&all]).unwrap() > 200_000);
}
