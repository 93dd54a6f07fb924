//! The assumption of the models, and models of bytes and windows.

use crate::model;
use crate::pipe::*;
use loom::sync::Arc;
use loom::thread;
use netacc_ring::STEP;
use netacc_ring::sync::*;

/// The models assume a total order of `SeqCst` accesses: of two threads that each write their own word and then read
/// the other's, at least one sees the other. Without `SeqCst` that is not so.
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

/// (a) Bytes are transferred complete and in order, and none is overwritten before it was read, around the end of the
/// window.
///
/// Mutations: `Relaxed` in either `publish`; `Relaxed` in either `refresh`; `free_in` one byte too generous.
#[test]
fn bytes_cross_in_order() {
    model(2, || {
        let p = Arc::new(Pipe::new());
        let q = p.clone();
        // The sizes never exceed the small window, so it wraps but stays in use.
        let t = thread::spawn(move || {
            let mut at = 0;
            for size in [3, 3, 2] {
                let mut done = 0;
                while done < size {
                    // Without `prepare` the large window is not opened.
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

/// (e) The producer goes from the small to the large window with bytes pending in the small one.
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
        // The large window is used and drained, and small writes follow until the next message uses the small window.
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

/// (e) A large window that is drained may be closed, so that its bytes are gone, and opened again, beside a reader.
///
/// Mutations: `close_large` without `tail == pos`; `refresh` with `Relaxed`; `Relaxed` in the consumer's `publish`.
#[test]
fn closes_when_drained() {
    model(2, || {
        let p = Arc::new(Pipe { allowed: 2 * STEP, ..Pipe::new() });
        let q = p.clone();
        let t = thread::spawn(move || {
            let mut w = 0;
            q.write_all(&mut w, &[6]);
            while !q.close_large() {
                thread::yield_now();
            }
            q.write_all(&mut w, &[6]);
        });
        p.read_all(&mut 0, 12, 6);
        t.join().unwrap();
    });
}

/// (e) A window of which only a part is open begins anew when it is drained.
///
/// Mutations: `prepare` rewinding without `tail == pos`; `before_end` one byte too generous.
#[test]
fn a_part_of_the_window_begins_anew() {
    model(2, || {
        let p = Arc::new(Pipe { allowed: 2 * STEP, ..Pipe::new() });
        let q = p.clone();
        let t = thread::spawn(move || q.write_all(&mut 0, &[6, 3, 4]));
        p.read_all(&mut 0, 13, 4);
        t.join().unwrap();
    });
}
