//! Connections that share a word of a ready set, and connections that use a slot one after the other.

use crate::model;
use loom::sync::Arc;
use loom::thread;
use netacc_ring::sync::*;
use netacc_ring::*;

/// (f) Two connections whose bits share a word: neither bit is lost, and there is one wake-up per arming.
///
/// Mutations: `set` storing the word instead of `fetch_or`; `take` by a load and a store; `armed` not taken by an
/// exchange (two rings for one arming); `any` with `Acquire`.
#[test]
fn two_connections_share_a_word() {
    model(3, || {
        let c = Arc::new((ReadySet::default(), [ProducerLine::default(), ProducerLine::default()]));
        let producers: Vec<_> = (0..2usize)
            .map(|i| {
                let c = c.clone();
                thread::spawn(move || {
                    c.1[i].head.swap(1, Ordering::SeqCst);
                    u32::from(c.0.set(i))
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

/// (g) Both sides close and the client uses the slot again. A server that closes last wipes its own words after the
/// client's last access to them, and the next connection finds no value of this one.
///
/// Mutations: `GONE` set together with `CLOSED`; `GONE` set or looked at with `Relaxed`; the wiping after `done`.
#[test]
fn a_slot_is_used_again() {
    model(3, || {
        // The tuple has the two sides' lines, the generation that the server has released, and the one that it has
        // wiped.
        let s = Arc::new(([OwnLine::default(), OwnLine::default()], AtomicU32::default(), AtomicU32::default()));
        let [_, served] = &s.0;
        served.producer.head.store(5, Ordering::Relaxed);
        served.side.subscriber.store(9, Ordering::Relaxed);
        let q = s.clone();
        let server = thread::spawn(move || {
            let ([client, own], done, wiped) = &*q;
            if client.producer.fin.load(Ordering::Acquire) & GONE != 0 {
                own.wipe();
                wiped.store(7, Ordering::Relaxed);
            } else {
                own.side.subscriber.store(0, Ordering::Relaxed);
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
                assert_eq!(line.side.subscriber.load(Ordering::Relaxed), 0);
            }
        }
        server.join().unwrap();
    });
}
