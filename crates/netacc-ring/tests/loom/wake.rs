//! Models of wake-ups: no sleeping thread or event loop misses an event.

use crate::pipe::*;
use crate::{flag, model};
use loom::sync::Arc;
use loom::thread;
use netacc_ring::sync::*;
use netacc_ring::*;

/// (b) A consumer that armed and found nothing is woken by the thread that sets a bit afterwards, and the data that the
/// bit announces is there when it is taken.
///
/// Mutations: `arm` looking before the exchange, or storing with `Relaxed`; `set` looking at `armed`
/// before setting the bit; `set` with a `Relaxed` look at the bit; `take` with `AcqRel`, or
/// `Consumer::refresh` with `Acquire` (a bit that is found set is not a fence); `publish` with `AcqRel`.
#[test]
fn an_armed_consumer_is_rung() {
    model(4, || {
        let p = Arc::new((Pipe::new(), ReadySet::default()));
        let q = p.clone();
        let t = thread::spawn(move || {
            let mut w = 0;
            let mut rings = 0;
            for _ in 0..2 {
                assert_eq!(q.0.write(&mut w, 1), 1);
                rings += u32::from(q.1.set(5));
            }
            rings
        });
        // Two rounds of an event loop that sleeps when it finds nothing, with one check per bit.
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
        // Data that was not seen is announced by a bit.
        assert!(seen == 2 || p.1.take().any(|s| s == 5));
    });
}

/// (c) A thread that registered as a waiter for data and found none is woken.
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
            // The reader does not sleep, so it takes its registration back unless the peer has taken it.
            let _ = p.reader.rx_waiter.compare_exchange(7, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
        let ring = t.join().unwrap();
        assert!(!sleeps || ring == Ring { ready_set: 0, thread: 7 }, "a reader sleeps for ever");
        // After the wake-up the byte is there.
        assert_eq!(p.read(&mut 0, 4), 1);
        assert!(!flag(&p.reader.rx_waiter), "a registration is left behind");
    });
}

/// (c) The end of the stream wakes a waiter as data does.
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
        // The waiter arms as the endpoint does: a fence, then a load with Acquire.
        netacc_ring::sync::fence(Ordering::SeqCst);
        let sleeps = p.data.fin.load(Ordering::Acquire) == 0;
        assert!(t.join().unwrap().thread == 7 || !sleeps, "a reader sleeps for ever");
    });
}

fn full() -> (Pipe, u8) {
    let p = Pipe::new();
    let mut w = 0;
    assert_eq!(p.write(&mut w, LARGE + 2), LARGE, "the large window and no more");
    assert_eq!(p.writable(), Ok(false));
    (p, w)
}

/// (d) A thread that waits for room is woken once a quarter is free, though the reader may have checked for a waiter
/// while there was less.
///
/// Mutations: `Producer::refresh` with `Acquire`; `Consumer::publish` with `AcqRel`; `notify_room` taking the
/// waiter before it knows that there is enough; `room_to_announce` asking for more than `writable` does.
#[test]
fn a_waiting_writer_is_rung() {
    let own: fn(&Pipe) -> bool = |p| p.writable() == Ok(true);
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
                rung += notify_room(&q.writer, 1, |_| None, || q.rx.room_to_announce(&q.room, &q.data)).thread;
            }
            rung
        });
        p.writer.tx_waiter.swap(9, Ordering::SeqCst);
        let sleeps = !look(&p);
        assert!(t.join().unwrap() == 9 || !sleeps, "a writer sleeps for ever");
        assert_eq!(p.writable(), Ok(true));
    });
}

/// (d) An event loop that requested room gets a bit and is woken.
///
/// Mutations: `want_room` set after the look; `notify_room` clearing it without `enough`, or looking at it
/// with `Acquire`.
#[test]
fn a_watching_writer_is_rung() {
    model(6, || {
        let (p, _) = full();
        let p = Arc::new((p, ReadySet::default()));
        p.0.writer.subscriber.store(1, Ordering::SeqCst);
        let q = p.clone();
        let t = thread::spawn(move || {
            let mut r = 0;
            let mut rung = 0;
            for piece in [LARGE / 8, LARGE / 8] {
                assert_eq!(q.0.read(&mut r, piece), piece);
                let enough = || q.0.rx.room_to_announce(&q.0.room, &q.0.data);
                rung += notify_room(&q.0.writer, 3, |n| (n == 1).then_some(&q.1), enough).ready_set;
            }
            rung
        });
        p.0.writer.want_room.swap(1, Ordering::SeqCst);
        let sleeps = !p.0.writable().unwrap() && p.1.arm();
        let rung = t.join().unwrap();
        assert!(rung <= 1);
        assert!(!sleeps || (rung == 1 && p.1.any()), "an event loop sleeps for ever");
    });
}

/// (d) With a limit the writer is woken when it can continue, and not before: an edge-triggered event loop requests
/// room only once.
///
/// Mutations: `room_to_announce` without the limit or without the window; `set_limit` without the shared word.
#[test]
fn a_limited_writer_is_told_of_its_own_room() {
    model(6, || {
        let p = Pipe::new();
        p.tx.set_limit(&p.data, 4);
        p.room.window.store(4, Ordering::SeqCst);
        assert_eq!(p.write(&mut 0, LARGE), 8, "limit and window");
        let p = Arc::new(p);
        let q = p.clone();
        let t = thread::spawn(move || {
            let mut r = 0;
            let mut rung = 0;
            for _ in 0..2 {
                assert_eq!(q.read(&mut r, 1), 1);
                rung += notify_room(&q.writer, 1, |_| None, || q.rx.room_to_announce(&q.room, &q.data)).thread;
                assert!(rung == 0 || q.tx.writable_by(&q.data, &q.room), "told of room that is not there");
            }
            rung
        });
        p.writer.tx_waiter.swap(9, Ordering::SeqCst);
        let sleeps = p.writable() == Ok(false);
        assert!(t.join().unwrap() == 9 || !sleeps, "a writer sleeps for ever");
        assert_eq!(p.writable(), Ok(true));
    });
}
