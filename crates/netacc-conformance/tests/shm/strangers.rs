//! Peers that are not trusted say what only a trusted one may say.

use netacc_conformance::ends::{IN, get, read, ready, write};
use netacc_conformance::links::{Links, pipe};
use netacc_ring::{CLOSED, FIN, GONE, HOLDING, RESET, SWITCHED};
use netacc_sys::Errno;
use netacc_transport::Endpoint;
use netacc_transport::shm::WaitBudget;
use netacc_transport::shm::control::send_message;
use netacc_transport::shm::segment::{LENDING_UNKNOWN, REFUSES_LENT};
use netacc_transport::shm::strangers::{Offence, on_offence};
use netacc_wire::Message;
use rustix::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};

static REPORTS: AtomicUsize = AtomicUsize::new(0);

fn count(_: &Offence) {
    REPORTS.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn a_socket_to_go_on_by_ends_the_connection_and_the_link() {
    on_offence(count);
    let make = [
        |slot, generation| Message::SwitchToKernel { slot, generation },
        |slot, generation| Message::OldSubflow { slot, generation },
    ];
    for message in make {
        for passed in [true, false] {
            let l = Links::new(false);
            let (c, s) = l.connect().unwrap();
            assert_eq!(write(c, b"abc"), Ok(3));
            let (end, _) = pipe();
            let slot = c.slot_index() as u32;
            let seg = l.client.segment().unwrap();
            let generation = seg.slot(c.slot_index()).unwrap().open.generation.load(Ordering::Relaxed);
            let before = REPORTS.load(Ordering::SeqCst);
            let pass = Some(end.as_fd()).filter(|_| passed);
            send_message(Links::control(l.client), message(slot, generation), pass).unwrap();
            drop(end);
            l.server.service();
            assert!(l.server.is_lost());
            assert!(REPORTS.load(Ordering::SeqCst) > before);
            assert_eq!((s.kernel_fd(), s.must_switch(), s.has_accepted()), (-1, false, false));
            assert_eq!(get(s, 3, false).unwrap(), b"abc", "what came before is delivered");
            assert_eq!(read(s, 1), Err(Errno::CONNRESET));
            s.close(false);
            c.close(false);
        }
    }
}

#[test]
fn it_ends_the_link_whatever_connection_it_names() {
    for (slot, generation) in [(1, 7), (77, 1), (511, 1), (512, 1), (u32::MAX, 0)] {
        let l = Links::new(false);
        let (c, s) = l.connect().unwrap();
        send_message(Links::control(l.client), Message::SwitchToKernel { slot, generation }, None).unwrap();
        l.server.service();
        assert!(l.server.is_lost());
        assert_eq!(s.kernel_fd(), -1);
        s.close(false);
        c.close(false);
    }
}

#[test]
fn the_mark_alone_ends_the_connection() {
    let l = Links::new(false);
    for of_its_own in [true, false] {
        let (c, s) = l.connect().unwrap();
        assert_eq!((write(c, b"abc"), write(s, b"def")), (Ok(3), Ok(3)));
        if !of_its_own {
            // The word is the server's own, and only one of its sharers would set it.
            let _liveness = s.share(&WaitBudget::of_a_fork()).unwrap();
        }
        let seg = l.client.segment().unwrap();
        let [client, server] = &seg.slot(c.slot_index()).unwrap().own;
        let line = if of_its_own { client } else { server };
        line.producer.fin.fetch_or(SWITCHED, Ordering::SeqCst);
        s.readiness();
        assert!(s.is_dead() && !s.is_moving() && !s.must_switch());
        assert!(!s.accept_switch().is_ok_and(|fd| fd.is_some()));
        assert_eq!(write(s, b"x"), Err(Errno::CONNRESET));
        s.close(false);
        c.close(false);
    }
    assert!(!l.server.is_lost(), "other connections go on");
}

#[test]
fn trust_is_mutual_where_both_say_so() {
    let mutual = |l: &Links| (l.client.trust_is_mutual(), l.server.trust_is_mutual());
    assert_eq!(mutual(&Links::new(false)), (false, false));
    let l = Links::new(true);
    assert_eq!(mutual(&l), (true, true));
    let [client, _] = &l.client.segment().unwrap().header().lending;
    client.store(REFUSES_LENT, Ordering::Relaxed);
    assert_eq!(mutual(&l), (true, false), "a server is not to pass what its client refuses");
    client.store(LENDING_UNKNOWN, Ordering::Relaxed);
    l.server.set_peer_uid(rustix::process::geteuid().as_raw());
    assert_eq!(mutual(&l), (true, true), "a side of the own user will trust");
    l.server.set_peer_uid(rustix::process::geteuid().as_raw().wrapping_add(1));
    l.server.inherit();
    let expected = rustix::process::geteuid().is_root();
    assert_eq!(mutual(&l), (true, expected), "nor is a child, unless the link was root's or of one user");
}

#[test]
fn a_sharer_waits_for_a_relay_that_ends() {
    let l = Links::new(false);
    let (c, s) = l.connect().unwrap();
    let _liveness = s.share(&WaitBudget::of_a_fork()).unwrap();
    s.relay_begins();
    let began = std::time::Instant::now();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(s, b"after"));
        let found = read(c, 9);
        // A thread that was kept from running for longer than the writer waits may find it.
        assert!(found == Err(Errno::AGAIN) || began.elapsed().as_millis() >= 50, "what the relay has comes first");
        s.relay_ends();
        assert_eq!(writer.join().unwrap(), Ok(5));
    });
    // One that goes on is waited for once, and a word that the peer has played with no longer than that.
    s.relay_begins();
    assert_eq!((write(s, b"x"), write(s, b"y")), (Ok(1), Ok(1)));
    s.close(false);
    c.close(false);
}

#[test]
fn its_death_is_noticed_whatever_its_mark_says() {
    for mark in
        (0..=5).map(|bit| 1 << bit).chain([CLOSED | GONE, CLOSED | HOLDING, 64, 1 << 31, !(FIN | RESET | SWITCHED)])
    {
        let l = Links::new(false);
        let (c, s) = l.connect().unwrap();
        let slot = l.client.segment().unwrap().slot(c.slot_index()).unwrap();
        slot.own[0].producer.fin.store(mark, Ordering::SeqCst);
        l.client.close_descriptors();
        l.server.service();
        assert!(l.server.is_lost());
        assert_ne!(ready(s) & IN, 0, "{mark:x}");
        assert!(matches!(read(s, 1), Ok(0) | Err(Errno::CONNRESET)), "{mark:x}");
        s.close(false);
        c.close(false);
    }
}
