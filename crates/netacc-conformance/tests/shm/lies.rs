//! A peer that lies, in messages or in shared memory, loses its own connections or its link, and reaches nothing else.

use netacc_conformance::ends::{HUP, IN, PIPE, READ, RESET, read, ready, woken, write};
use netacc_conformance::links::{Links, pipe};
use netacc_ring::SLOTS;
use netacc_transport::Endpoint;
use netacc_transport::shm::control::send_message;
use netacc_wire::Message;
use rustix::fd::AsFd;
use rustix::net::{SendFlags, send};
use std::sync::atomic::Ordering;

#[test]
fn garbage_on_the_control_socket_loses_the_link() {
    let messages: [&[u8]; 6] =
        [b"x", &[0; 32], &[0xff; 32], &[0; 33], &[0xff; 4096], &Message::Wake { id: 1 }.encode()[..31]];
    for m in messages {
        let l = Links::new(true);
        let (c, s) = l.connect().unwrap();
        assert_eq!(write(c, b"abc"), Ok(3));
        assert_eq!(send(Links::control(l.client), m, SendFlags::empty()), Ok(m.len()));
        l.server.service();
        assert!(l.server.is_lost(), "{} bytes of garbage went through", m.len());
        assert!(!l.server.accepting());
        assert!(!l.client.is_lost());
        // What had come is delivered.
        assert_eq!((read(s, 9), read(s, 9)), (Ok(3), Ok(0)));
        s.close(false);
        c.close(false);
    }
}

#[test]
fn garbage_wakes_a_sleeper() {
    let l = Links::new(true);
    let (c, s) = l.connect().unwrap();
    woken(s, &[READ], || {
        send(Links::control(l.client), b"what?", SendFlags::empty()).unwrap();
    });
    assert!(l.server.is_lost());
    s.close(false);
    c.close(false);
}

#[test]
fn forged_numbers_reach_nothing() {
    let l = Links::new(true);
    let (c, s) = l.connect().unwrap();
    let seg = l.server.segment().unwrap();
    let slot = seg.slot(c.side.slot_index()).unwrap();
    for forged in [1, 5, 63, 64, 511, 1023, 1024, 100_000, u32::MAX - 1, u32::MAX] {
        // Both sides' words: a peer can write all of them.
        for side in slot.own.iter().map(|o| &o.side) {
            for w in [&side.subscriber, &side.rx_waiter, &side.tx_waiter, &side.want_room, &side.cpu] {
                w.store(forged, Ordering::SeqCst);
            }
        }
        assert_eq!((write(c, b"abc"), write(s, b"abc")), (Ok(3), Ok(3)));
        assert_eq!((read(c, 9), read(s, 9)), (Ok(3), Ok(3)));
        for m in [Message::Wake { id: forged }, Message::Liveness { slot: forged, generation: 0, token: 0 }] {
            send_message(Links::control(l.client), m, None).unwrap();
        }
        // Descriptors beside messages that make no sense are closed again.
        let strangers = [
            Message::Wake { id: forged },
            Message::Liveness { slot: forged.max(SLOTS as u32 - 1), generation: 0, token: 0 },
            Message::OldSubflow { slot: forged.max(SLOTS as u32 - 1), generation: 0 },
            Message::HeirWaker { slot: forged.max(SLOTS as u32 - 1), generation: 0 },
            Message::OldSubflow { slot: c.side.slot_index() as u32, generation: forged.wrapping_add(77) },
            Message::HeirWaker { slot: c.side.slot_index() as u32, generation: forged.wrapping_add(77) },
            Message::Liveness { slot: c.side.slot_index() as u32, generation: forged.wrapping_add(77), token: 0 },
            Message::Hello { pid: 1, segment: 1 },
            Message::Waker { id: forged.max(1024), token: 0 },
            Message::Waker { id: forged, token: forged.into() },
        ];
        for m in strangers {
            let (w, is_closed) = pipe();
            send_message(Links::control(l.client), m, Some(w.as_fd())).unwrap();
            drop(w);
            l.server.service();
            assert!(is_closed(), "{m:?} left a descriptor behind");
        }
        l.client.service();
        assert!(!l.server.is_lost() && !l.client.is_lost());
    }
    // The connection still wakes the side that waits.
    for side in slot.own.iter().map(|o| &o.side) {
        for w in [&side.subscriber, &side.rx_waiter, &side.tx_waiter, &side.want_room] {
            w.store(0, Ordering::SeqCst);
        }
    }
    woken(s, &[READ], || assert_eq!(write(c, b"x"), Ok(1)));
    s.close(false);
    c.close(false);
}

#[test]
fn a_violation_resets_one_connection_only() {
    let l = Links::new(true);
    let (c, s) = l.connect().unwrap();
    let (other_c, other_s) = l.connect().unwrap();
    let slot = l.client.segment().unwrap().slot(c.side.slot_index()).unwrap();
    // The client claims more than fits.
    slot.own[0].producer.head.store(1 << 40, Ordering::SeqCst);
    assert_eq!(read(s, 9), RESET);
    assert_eq!(ready(c) & (HUP | IN), HUP | IN);
    assert_eq!((write(c, b"x"), write(s, b"x")), (RESET, PIPE));
    assert!(!l.server.is_lost());
    assert_eq!(write(other_c, b"abc"), Ok(3));
    assert_eq!(read(other_s, 9), Ok(3));
    for e in [c, s, other_c, other_s] {
        e.close(false);
    }
}
