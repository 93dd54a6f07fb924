//! What only links have: slots, wakers, a control socket.
#![allow(unsafe_code)]

use netacc_conformance::ends::{self, READ, get, pattern, read, ready, wait, woken, write};
use netacc_conformance::links::Links;
use netacc_ring::SLOTS;
use netacc_sys::Errno;
use netacc_transport::shm::control::{Received, receive_message, send_message};
use netacc_transport::shm::segment::Leave;
use netacc_transport::wait::WakerSource;
use netacc_transport::{Endpoint, Interest, WaitOn, WaitSet};
use netacc_wire::Message;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

#[test]
fn ten_thousand_connections_one_after_the_other() {
    let l = Links::new(true);
    let mut slots = std::collections::HashSet::new();
    for i in 0..10_000usize {
        let (c, s) = l.connect().unwrap();
        slots.insert(c.side.slot_index());
        assert_eq!((ready(c), ready(s)), (ends::OUT, ends::OUT), "connection {i} remembers its predecessor");
        let n = if i % 500 == 0 { 100_000 } else { 1 + i % 3000 };
        assert_eq!(write(c, &pattern(i, n)), Ok(n));
        assert!(get(s, 200_000, false).unwrap() == pattern(i, n));
        assert_eq!(write(s, b"answer"), Ok(6));
        // Each way of ending, and either side first.
        match i % 4 {
            0 => (c.close(false), s.close(false)),
            1 => (s.close(false), c.close(false)),
            2 => (c.close(true), s.close(true)),
            _ => {
                assert_eq!(read(c, 9), Ok(6));
                (s.close(false), c.close(false))
            }
        };
        assert_eq!(l.client.slots.open(), 0);
    }
    assert!(slots.len() <= 8, "{} slots for one connection at a time", slots.len());
    assert!(!slots.contains(&0), "slot 0 is the queue's");
}

#[test]
fn a_link_full_of_connections() {
    let l = Links::new(true);
    for round in 0..3u8 {
        let all: Vec<_> = (1..SLOTS).map(|_| l.connect().unwrap()).collect();
        assert!(l.connect().is_none(), "more connections than slots");
        assert_eq!(l.client.slots.open() as usize, SLOTS - 1);
        for (i, (c, s)) in all.iter().enumerate() {
            assert_eq!(write(*c, &pattern(i, 300)), Ok(300));
            assert_eq!(write(*s, &[round, i as u8]), Ok(2));
        }
        for (i, (c, s)) in all.iter().enumerate() {
            assert!(get(*s, 999, false).unwrap() == pattern(i, 300), "connection {i} got another one's bytes");
            assert_eq!(get(*c, 999, false).unwrap(), [round, i as u8]);
        }
        // A slot is free only when both sides have closed it.
        let (c, s) = all[7];
        c.close(false);
        assert!(l.connect().is_none(), "the server has not closed it");
        s.close(false);
        let (c7, s7) = l.connect().unwrap();
        assert_eq!(c7.side.slot_index(), c.side.slot_index());
        assert!(l.connect().is_none());
        for (i, (c, s)) in all.iter().enumerate().filter(|(i, _)| *i != 7) {
            if i % 2 == 0 {
                s.close(false);
                c.close(false);
            } else {
                c.close(false);
                s.close(false);
            }
        }
        c7.close(false);
        s7.close(false);
        assert_eq!(l.client.slots.open(), 0);
    }
}

#[test]
fn an_error_that_met_a_part_of_a_write_is_the_next_calls() {
    let l = Links::new(true);
    for e in [Errno::CONNRESET, Errno::TIMEDOUT, Errno::HOSTUNREACH, Errno::NETUNREACH] {
        let (c, s) = l.connect().unwrap();
        c.fail(e);
        assert_eq!(write(c, b"abc"), Err(e));
        c.side.put_back(e);
        assert_eq!((read(c, 9), read(c, 9), write(c, b"abc")), (Err(e), Ok(0), Err(Errno::PIPE)), "once");
        c.side.put_back(Errno::PIPE);
        assert_eq!(read(c, 9), Ok(0));
        c.close(false);
        s.close(false);
    }
}

#[test]
fn a_socket_that_is_lost_on_its_way_ends_the_connection() {
    let l = Links::new(true);
    for old_subflow in [false, true] {
        let (c, s) = l.connect().unwrap();
        let (local_end, peer_end) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        s.offer_switch(&local_end, &peer_end, Leave::ForGood).unwrap();
        drop(peer_end);
        s.let_go();
        // Before the other side takes it from the control socket, as if it had no descriptor left for it.
        let Received::Message(Message::SwitchToKernel { slot, generation }, Some(fd)) =
            receive_message(Links::control(l.client))
        else {
            panic!("the socket is not passed")
        };
        ready(c);
        assert_eq!((c.must_switch(), c.accept_switch()), (false, Ok(None)), "it may still come");
        if old_subflow {
            send_message(Links::control(l.server), Message::OldSubflow { slot, generation }, None).unwrap();
            send_message(Links::control(l.server), Message::SwitchToKernel { slot, generation }, Some(fd.as_fd()))
                .unwrap();
        } else {
            send_message(Links::control(l.server), Message::SwitchToKernel { slot, generation }, None).unwrap();
        }
        l.client.service();
        assert_eq!((c.must_switch(), c.accept_switch(), c.passed.kernel_fd()), (true, Err(Errno::CONNRESET), -1));
        c.close(true);
    }
    let (c, s) = l.connect().unwrap();
    assert_eq!((write(c, b"abc"), read(s, 9)), (Ok(3), Ok(3)), "the next one knows nothing of it");
    // What another thread works with is not closed, whatever else the peer says.
    let (local_end, peer_end) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    s.offer_switch(&local_end, &peer_end, Leave::ForGood).unwrap();
    drop(peer_end);
    let Received::Message(moved @ Message::SwitchToKernel { slot, generation }, Some(fd)) =
        receive_message(Links::control(l.client))
    else {
        panic!("the socket is not passed")
    };
    send_message(Links::control(l.server), moved, Some(fd.as_fd())).unwrap();
    l.client.service();
    let socket = c.passed.kernel_fd();
    assert!(socket >= 0);
    for (message, passed) in
        [(Message::OldSubflow { slot, generation }, None), (moved, None), (moved, Some(local_end.as_fd()))]
    {
        send_message(Links::control(l.server), message, passed).unwrap();
    }
    l.client.service();
    assert_eq!(c.passed.kernel_fd(), socket);
    s.let_go();
    c.close(false);
    s.close(false);
}

#[test]
fn a_slot_in_use_is_not_begun_again() {
    let l = Links::new(true);
    let (c, s) = l.connect().unwrap();
    assert_eq!(write(c, b"abc"), Ok(3));
    assert!(!s.begin(99), "the client queued a slot twice");
    assert!(!c.begin(99));
    assert!(!s.side.take());
    assert_eq!(get(s, 9, false).unwrap(), b"abc");
    c.close(false);
    s.close(false);
    assert!(!c.side.is_live() && !s.side.is_live());
}

#[test]
fn losing_a_link_ends_all_its_connections() {
    let l = Links::new(true);
    let all: Vec<_> = (0..40).map(|_| l.connect().unwrap()).collect();
    let n = l.client.open_ready_set().unwrap();
    all[5].0.subscribe(n);
    woken(all[3].0, &[READ], || l.client.lose());
    let marked: Vec<_> = l.client.my_ready_set(n).unwrap().take().collect();
    assert_eq!(marked, [all[5].0.side.slot_index()], "an event loop does not hear of it");
    for (c, s) in &all {
        assert_eq!((ready(*c), read(*c, 1)), (ends::IN | ends::OUT | ends::RDHUP, Ok(0)));
        c.close(false);
        s.close(false);
    }
}

/// The next connection in a slot finds nothing of the last one, whichever side closed first and whatever was left.
#[test]
fn a_used_slot_is_as_new() {
    let l = Links::new(true);
    // One slot is open and three rest, so each of four is used 15 times, and has been left in each of the ways below.
    for round in 0..60 {
        let (c, s) = l.connect().unwrap();
        assert!((1..=4).contains(&c.side.slot_index()), "round {round}: the slots that were closed are not free");
        assert_eq!((ready(c), ready(s)), (ends::OUT, ends::OUT), "round {round}");
        assert_eq!((get(c, 9, false), get(s, 9, false)), (Err(Errno::AGAIN), Err(Errno::AGAIN)));
        // Small and large windows, read and unread, a half close, both halves.
        let n = if round % 2 == 0 { 300 } else { 100_000 };
        assert_eq!((write(c, &pattern(round, n)), write(s, &pattern(round + 1, n))), (Ok(n), Ok(n)));
        assert!(get(s, n, false).unwrap() == pattern(round, n));
        if round % 3 != 0 {
            assert!(get(c, n, false).unwrap() == pattern(round + 1, n));
        }
        s.subscribe(1);
        if round % 4 == 1 {
            c.shutdown(netacc_transport::Shut::Both);
            assert_eq!(get(s, 9, false).unwrap(), []);
            assert_eq!(ready(s) & ends::IN, ends::IN);
        }
        let (first, last) = if round % 5 < 3 { (c, s) } else { (s, c) };
        first.close(false);
        last.subscribe(0);
        last.close(false);
    }
}

#[test]
fn a_watched_connection_marks_its_ready_set() {
    let l = Links::new(true);
    let (c, s) = l.connect().unwrap();
    let n = l.server.open_ready_set().unwrap();
    let ready_set = l.server.my_ready_set(n).unwrap();
    let slots = || ready_set.take().collect::<Vec<_>>();
    s.subscribe(n);
    // Takes the announcement of the waker.
    l.client.service();
    assert!(ready_set.arm());
    assert_eq!(write(c, b"x"), Ok(1));
    let waker = rustix::event::PollFlags::IN;
    // SAFETY: the link's waker stays open as long as the link.
    let fd = unsafe { BorrowedFd::borrow_raw(l.server.wakers().fd(n)) };
    let rung = || {
        let mut p = [rustix::event::PollFd::from_borrowed_fd(fd, waker)];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let n = rustix::event::poll(&mut p, Some(&now)).unwrap() == 1;
        netacc_transport::wakers::silence(l.server.wakers().fd(1));
        n
    };
    assert_eq!(n, 1);
    assert!(rung());
    assert_eq!(slots(), [s.side.slot_index()]);
    // Not armed: the bit alone. The end of the stream is marked as data is.
    c.shutdown(netacc_transport::Shut::Write);
    assert!(!rung());
    assert_eq!(slots(), [s.side.slot_index()]);
    // Room is marked only when asked for, and once.
    let full = ends::fill(s);
    assert!(!s.want_room());
    let mut got = 0;
    while got < full {
        got += read(c, 1000).unwrap();
    }
    assert_eq!(slots(), [s.side.slot_index()]);
    assert!(s.want_room(), "there is room now");
    s.subscribe(0);
    l.server.close_ready_set(n);
    c.close(false);
    assert_eq!(slots(), [0usize; 0]);
    s.close(false);
}

#[test]
fn every_waker_in_use() {
    let l = Links::new(true);
    let (c, s) = l.connect().unwrap();
    let mut wakers = Vec::new();
    while let Ok(b) = l.server.borrow_waker() {
        assert!(!wakers.contains(&b));
        wakers.push(b);
        l.client.service();
        assert!(wakers.len() <= 1024);
    }
    // Without a waker a sleep is bounded, but not endless and not refused.
    let mut set = WaitSet::new();
    assert!(!s.arm(READ, &mut set));
    assert!(set.bounded);
    s.disarm(READ, &set);
    drop(set);
    for b in wakers {
        l.server.return_waker(b);
    }
    woken(s, &[READ], || assert_eq!(write(c, b"x"), Ok(1)));
    wait(s, Interest { read: true, write: true }, || panic!("ready"));
    c.close(false);
    s.close(false);
}

/// splice(2)'s reader, which looks just when the last bytes and the end come, gets both.
#[test]
fn an_end_while_a_ring_is_emptied() {
    let l = Links::new(true);
    // The threads meet at each connection of a batch.
    for _ in 0..1000 {
        let batch: Vec<_> = (0..100).map(|_| l.connect().unwrap()).collect();
        std::thread::scope(|t| {
            t.spawn(|| {
                for (_, s) in &batch {
                    assert_eq!(write(*s, b"all"), Ok(3));
                    s.close(false);
                }
            });
            for (i, (c, _)) in batch.iter().enumerate() {
                let (mut got, mut looks) = (0, 0);
                loop {
                    match c.read_with(100, |_, n| Ok(n)) {
                        Ok(0) => break,
                        Ok(n) => got += n,
                        Err(e) => assert_eq!(e, Errno::AGAIN, "connection {i}, after {got} bytes"),
                    }
                    looks += 1;
                    // Long enough for a writer that runs; one that does not, on a busy machine, gets the processor.
                    if looks % 4096 == 0 {
                        std::thread::yield_now();
                    }
                }
                assert_eq!(got, 3, "connection {i}");
            }
        });
        for (c, _) in batch {
            c.close(false);
        }
    }
}

#[test]
fn a_wait_keeps_a_link_that_another_thread_removes() {
    let links = Links::new(true);
    let (client, server) = (links.client, links.server);
    std::mem::forget(links);
    let mut wait = WaitSet::new();
    assert!(wait.hold(server, WaitOn::Listener));
    // It counts once, however often it is held.
    assert!(wait.hold(server, WaitOn::Listener));
    assert!(server.is_idle(), "a thread that sleeps opens no connection");
    // The listener's reference goes, as when the link is removed from its list.
    server.put();
    assert!(server.segment().is_some());
    drop(wait);
    assert!(server.segment().is_none(), "the last user is gone");
    client.put();
}

#[test]
fn a_wait_keeps_the_link_of_a_connection_that_another_thread_takes_away() {
    let links = Links::new(true);
    let (c, s) = links.connect().unwrap();
    let (client, server) = (links.client, links.server);
    std::mem::forget(links);
    let mut wait = WaitSet::new();
    assert!(!s.arm(READ, &mut wait));
    // The connection's reference goes, as when it is switched to the kernel, and the listener's.
    s.close(false);
    assert!(!server.is_idle(), "a thread waits, and not at the listener");
    server.put();
    assert!(server.segment().is_some(), "a thread waits");
    s.disarm(READ, &wait);
    drop(wait);
    assert!(server.segment().is_none(), "the last user is gone");
    // A thread that comes too late has nothing to wait for, and touches nothing.
    let mut late = WaitSet::new();
    assert!(s.arm(READ, &mut late));
    s.disarm(READ, &late);
    assert!(late.is_empty());
    c.close(false);
    client.put();
}
