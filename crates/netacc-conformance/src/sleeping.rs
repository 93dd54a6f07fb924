//! A side that sleeps is woken by bytes, by room and by the end.

use crate::ends::*;
use netacc_sys::Errno;
use netacc_sys::time::Deadline;
use netacc_transport::{Shut, WaitSet};
use std::thread;

/// A thread that sleeps until there is something to read is woken by bytes and by every kind of end.
pub fn a_sleeping_reader_wakes<R: Rig>() {
    let p = R::pair();
    for _ in 0..20 {
        woken(p.a.ep, &[READ], || assert_eq!(write(&*p.b, b"x"), Ok(1)));
        assert_eq!(read(&*p.a, 9), Ok(1));
    }
    woken(p.a.ep, &[READ], || p.b.shutdown(Shut::Write));
    assert_eq!(read(&*p.a, 9), Ok(0));
    let p = R::pair();
    woken(p.a.ep, &[READ], || p.b.close(false));
    assert_eq!(read(&*p.a, 9), Ok(0));
    let p = R::pair();
    woken(p.a.ep, &[READ], || p.b.close(true));
    assert_eq!(read(&*p.a, 9), RESET);
    // By a call on its own side.
    for how in [Shut::Read, Shut::Both] {
        let p = R::pair();
        woken(p.a.ep, &[READ], || p.a.shutdown(how));
        assert_eq!(read(&*p.a, 9), Ok(0));
    }
}

/// A thread that sleeps until there is room is woken by room and by every kind of end.
pub fn a_sleeping_writer_wakes<R: Rig>() {
    let p = R::pair();
    for _ in 0..5 {
        let n = fill(&*p.a);
        woken(p.a.ep, &[WRITE], || {
            // In small bites: the last one of a quarter must ring.
            let mut got = 0;
            while got < n.min(n / R::ROOM_AFTER + 4096) {
                got += read(&*p.b, 777).unwrap();
            }
        });
        assert!(write(&*p.a, b"x").is_ok());
        while read(&*p.b, 1 << 20).is_ok() {}
    }
    fill(&*p.a);
    woken(p.a.ep, &[WRITE], || p.b.close(false));
    assert_eq!(write(&*p.a, b"x"), RESET);
    let p = R::pair();
    fill(&*p.a);
    woken(p.a.ep, &[WRITE], || p.a.shutdown(Shut::Write));
    assert_eq!(write(&*p.a, b"x"), PIPE);
    let p = R::pair();
    fill(&*p.a);
    woken(p.a.ep, &[BOTH], || assert_eq!(write(&*p.b, b"x"), Ok(1)));
    // The kernel also finds room when it packs the bytes that wait.
    let full = if R::ROOM_AFTER > 1 { IN | OUT } else { IN };
    assert_eq!(ready(&*p.a) & full, IN);
}

/// All threads that sleep on one end are woken.
pub fn several_sleepers_wake<R: Rig>() {
    let p = R::pair();
    woken(p.a.ep, &[READ, READ], || assert_eq!(write(&*p.b, b"x"), Ok(1)));
    assert_eq!(read(&*p.a, 1), Ok(1));
    woken(p.a.ep, &[READ, READ, READ, READ], || assert_eq!(write(&*p.b, b"x"), Ok(1)));
    assert_eq!(read(&*p.a, 1), Ok(1));
    woken(p.a.ep, &[READ, READ], || p.b.shutdown(Shut::Write));
    let n = fill(&*p.a);
    woken(p.a.ep, &[WRITE, WRITE], || {
        let mut got = 0;
        while got < n {
            got += read(&*p.b, 1 << 20).unwrap();
        }
    });
    fill(&*p.a);
    woken(p.a.ep, &[WRITE, WRITE], || (p.kill_b)());
    // Both ends of one connection, each asleep.
    let p = R::pair();
    woken(p.a.ep, &[READ], || {
        woken(p.b.ep, &[READ], || {
            assert_eq!((write(&*p.a, b"x"), write(&*p.b, b"x")), (Ok(1), Ok(1)));
        })
    });
}

/// A thread that no longer waits is not woken.
pub fn disarmed_is_forgotten<R: Rig>() {
    let p = R::pair();
    let mut set = WaitSet::new();
    assert!(!p.a.ep.arm(READ, &mut set));
    p.a.disarm(READ, &set);
    assert_eq!(write(&*p.b, b"x"), Ok(1));
    assert_eq!(set.sleep(Deadline::Now, core::ptr::null()), Ok(0), "rung though not armed");
    let mut set = WaitSet::new();
    assert!(p.a.ep.arm(READ, &mut set), "there is data already");
    p.a.disarm(READ, &set);
    let mut set = WaitSet::new();
    assert!(p.a.ep.arm(BOTH, &mut set) && p.a.ep.arm(WRITE, &mut set));
    p.a.disarm(BOTH, &set);
}

/// The death of the process at the other end ends a connection as the kernel would.
pub fn death_ends_a_connection<R: Rig>() {
    // Nothing underway.
    let p = R::pair();
    woken(p.a.ep, &[READ], || (p.kill_b)());
    assert_eq!(ready(&*p.a), IN | OUT | RDHUP);
    assert_eq!((read(&*p.a, 9), read(&*p.a, 9)), (Ok(0), Ok(0)));
    // It had written: delivered first.
    let p = R::pair();
    assert_eq!(write(&*p.b, &pattern(0, 100_000)), Ok(100_000));
    (p.kill_b)();
    wait(p.a.ep, READ, || panic!("there is data"));
    assert!(get(&*p.a, 60_000, false).unwrap() == pattern(0, 60_000));
    assert!(get(&*p.a, 60_000, false).unwrap() == pattern(60_000, 40_000));
    wait_beside_the_dead(p.a.ep, READ);
    assert_eq!((read(&*p.a, 9), read(&*p.a, 9)), (Ok(0), Ok(0)));
    assert_eq!((write(&*p.a, b"hello"), write(&*p.a, b"x")), (Ok(5), PIPE));
    // It had not read: a reset, after what it wrote.
    let p = R::pair();
    assert_eq!((write(&*p.b, b"abc"), write(&*p.a, b"lost")), (Ok(3), Ok(4)));
    (p.kill_b)();
    assert_eq!(read(&*p.a, 9), Ok(3));
    wait_beside_the_dead(p.a.ep, READ);
    assert_eq!(ready(&*p.a), DEAD);
    assert_eq!((read(&*p.a, 9), read(&*p.a, 9)), (RESET, Ok(0)));
    assert_eq!(write(&*p.a, b"x"), PIPE);
    // A writer that waits for room.
    let p = R::pair();
    fill(&*p.a);
    woken(p.a.ep, &[WRITE], || (p.kill_b)());
    assert_eq!(write(&*p.a, b"x"), RESET);
    // It had ended its stream before: that stays.
    let p = R::pair();
    p.b.shutdown(Shut::Write);
    (p.kill_b)();
    assert_eq!(read(&*p.a, 9), Ok(0));
    // The closed side of a living link is not touched by its death.
    let p = R::pair();
    assert_eq!(write(&*p.b, b"abc"), Ok(3));
    p.b.close(false);
    (p.kill_b)();
    assert_eq!((read(&*p.a, 9), read(&*p.a, 9)), (Ok(3), Ok(0)));
}

/// Two threads that sleep whenever they can: no wake-up may be lost in any of the meetings.
pub fn ping_pong_with_sleep<R: Rig>() {
    let rounds = 3000 / R::PART;
    let p = R::pair();
    let (a, b) = (p.a.ep, p.b.ep);
    let echo = thread::spawn(move || {
        for _ in 0..rounds {
            wait(b, READ, || {});
            let m = get(b, 4096, false).unwrap();
            assert_eq!(write(b, &m), Ok(m.len()));
        }
    });
    for i in 0..rounds {
        let m = pattern(i, 1 + i % 4000);
        assert_eq!(write(a, &m), Ok(m.len()));
        let mut got = Vec::new();
        while got.len() < m.len() {
            wait(a, READ, || {});
            got.extend(get(a, 4096, false).unwrap());
        }
        assert!(got == m, "round {i}");
    }
    echo.join().unwrap();
}

/// A long stream arrives whole though both threads sleep whenever they can.
pub fn bulk_with_sleep<R: Rig>() {
    let total = (48 << 20) / R::PART;
    let p = R::pair();
    let (a, b) = (p.a.ep, p.b.ep);
    let sender = thread::spawn(move || {
        let block = pattern(0, 100_003);
        let (mut sent, mut slept) = (0, 0);
        while sent < total {
            let at = sent % block.len();
            match write(a, &block[at..block.len().min(at + total - sent)]) {
                Ok(n) => sent += n,
                Err(Errno::AGAIN) => wait(a, WRITE, || slept += 1),
                Err(e) => panic!("{e}"),
            }
        }
        a.shutdown(Shut::Write);
        slept
    });
    let block = [pattern(0, 100_003), pattern(0, 100_003)].concat();
    let mut buf = vec![0; 65_536];
    let mut got = 0;
    loop {
        match read_into(b, &mut buf, false) {
            Ok(0) => break,
            Ok(n) => {
                let at = got % 100_003;
                assert!(buf[..n] == block[at..at + n], "garbled after {got} bytes");
                got += n;
            }
            Err(Errno::AGAIN) => wait(b, READ, || {}),
            Err(e) => panic!("{e}"),
        }
    }
    assert_eq!(got, total);
    let _slept: usize = sender.join().unwrap();
}

/// The end comes at any moment of a transfer; whatever arrives is in order, and the end is told once.
pub fn close_in_the_middle<R: Rig>() {
    for i in 0..200 / R::PART {
        let p = R::pair();
        let (a, b) = (p.a.ep, p.b.ep);
        let sent = thread::spawn(move || {
            let mut sent = 0;
            while sent < 1000 + i * 997 {
                match write(a, &pattern(sent, 1 + i * 13)) {
                    Ok(n) => sent += n,
                    Err(Errno::AGAIN) => wait(a, WRITE, || {}),
                    Err(e) => panic!("{e}"),
                }
            }
            a.shutdown(Shut::Write);
            sent
        });
        let mut got = 0;
        loop {
            match get(b, 5000, false) {
                Ok(m) if m.is_empty() => break,
                Ok(m) => {
                    assert!(m == pattern(got, m.len()));
                    got += m.len();
                }
                Err(Errno::AGAIN) => wait(b, READ, || {}),
                Err(e) => panic!("{e}"),
            }
        }
        assert_eq!(sent.join().unwrap(), got);
    }
}
