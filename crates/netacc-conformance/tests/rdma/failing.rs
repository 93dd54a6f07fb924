//! Queue pairs that fail under their connections, as they do when their device is removed: `T_BREAK` is a command for that.

use crate::remote::{RemoteKind, connect_two};
use crate::rest::{self, settle};
use netacc_conformance::ends::*;
use netacc_sys::{Errno, raw, time};
use netacc_transport::Shut;
use std::process::Command;
use std::sync::{Mutex, mpsc};
use std::thread;

/// Connections that the cases with [`crate::remote::FailoverCase`] have among them, and more.
const STOCK: usize = 60;

/// All queue pairs fail; returns when both ends of each have noticed.
fn fail_all() {
    let command = std::env::var("T_BREAK").expect("T_BREAK is a command by which all queue pairs fail");
    assert_ne!(rest::queue_pairs(), 0);
    assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success(), "{command}");
    let limit = time::now() + rest::LIMIT;
    while rest::queue_pairs() > 0 {
        assert!(time::now() < limit, "{} ends of queue pairs have not failed", rest::queue_pairs());
        raw::sched_yield();
    }
}

/// A connection whose queue pair has failed. They are made beforehand, and theirs fail at once.
pub fn failed_over() -> Pair {
    static MADE: Mutex<Option<Vec<RemoteKind>>> = Mutex::new(None);
    let mut made = MADE.lock().unwrap();
    let stock = made.get_or_insert_with(|| {
        let stock: Vec<_> = (0..STOCK).map(|_| connect_two()).collect();
        settle();
        rest::await_companions();
        fail_all();
        stock.iter().for_each(RemoteKind::exchange);
        stock
    });
    stock.pop().expect("more connections made beforehand").pair(0, true)
}

fn pair() -> Pair {
    connect_two().pair(0, true)
}

/// Bytes, ends and sleepers of all kinds are under way when the queue pairs fail; by their companion connections all goes on.
pub fn a_failure_loses_nothing() {
    let [full, ended, closed, aborted, half, waits, room] = [(); 7].map(|()| pair());
    let sent = [&full, &ended, &closed, &aborted, &room].map(|p| fill(&*p.a));
    ended.a.shutdown(Shut::Write);
    closed.a.close(false);
    half.b.shutdown(Shut::Write);
    assert_eq!(write(&*half.a, b"abc"), Ok(3));
    let (tx, rx) = mpsc::channel();
    let (reader, writer) = (waits.a.ep, room.a.ep);
    let sleep = |e, i| {
        let tx = tx.clone();
        thread::spawn(move || wait(e, i, || tx.send(()).unwrap()))
    };
    let sleepers = [sleep(reader, READ), sleep(writer, WRITE)];
    for _ in &sleepers {
        rx.recv().unwrap();
    }
    let transfer = Transfer::start();
    rest::await_companions();
    fail_all();
    transfer.finish();
    // A side that slept goes on sleeping until there is something for it.
    assert_eq!(write(&*waits.b, b"x"), Ok(1));
    assert_eq!(drain(&*room.b), (sent[4], AGAIN));
    for s in sleepers {
        s.join().unwrap();
    }
    assert_eq!(read(&*waits.a, 9), Ok(1));
    aborted.a.close(true);
    assert_eq!(ready(&*aborted.b), DEAD);
    let (got, end) = drain(&*aborted.b);
    assert!(got <= sent[3] && end == RESET, "{got} of {} bytes, then {end:?}", sent[3]);
    assert_eq!(drain(&*full.b), (sent[0], AGAIN));
    assert_eq!((drain(&*ended.b), ready(&*ended.b)), ((sent[1], Ok(0)), IN | OUT | RDHUP));
    assert_eq!((drain(&*closed.b), write(&*closed.b, b"x"), ready(&*closed.b)), ((sent[2], Ok(0)), Ok(1), DEAD));
    assert_eq!((read(&*half.a, 9), read(&*half.b, 9)), (Ok(0), Ok(3)));
    for p in [&full, &waits, &room] {
        for (from, to) in [(&p.a, &p.b), (&p.b, &p.a)] {
            assert_eq!(write(&**from, &pattern(7, 100_000)), Ok(100_000));
            assert!(get(&**to, 200_000, false).unwrap() == pattern(7, 100_000));
        }
    }
}

/// Bytes in one direction, written and read by threads.
struct Transfer {
    threads: [thread::JoinHandle<usize>; 2],
    stop: mpsc::Sender<()>,
    _pair: Pair,
}

impl Transfer {
    /// Returns when it is well under way.
    fn start() -> Transfer {
        const WELL: usize = 1 << 20;
        let pair = connect_two().pair(0, false);
        let (a, b) = (pair.a.ep, pair.b.ep);
        let ((stop, stopped), (begun, begins)) = (mpsc::channel(), mpsc::channel());
        let writer = thread::spawn(move || {
            let mut sent = 0;
            while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                match write(a, &pattern(sent, 5000)) {
                    Ok(n) => sent += n,
                    Err(Errno::AGAIN) => wait(a, WRITE, || {}),
                    Err(e) => panic!("after {sent} bytes: {e}"),
                }
            }
            a.shutdown(Shut::Write);
            sent
        });
        let reader = thread::spawn(move || {
            let mut got = 0;
            loop {
                // It may never find nothing: the writer is as fast.
                match get(b, 10_000, false).map(|m| (m.len(), m == pattern(got, m.len()))) {
                    Ok((0, _)) => return got,
                    Ok((n, same)) => {
                        assert!(same, "garbled after {got} bytes");
                        if got < WELL && got + n >= WELL {
                            begun.send(()).unwrap();
                        }
                        got += n;
                    }
                    Err(Errno::AGAIN) => wait(b, READ, || {}),
                    Err(e) => panic!("after {got} bytes: {e}"),
                }
            }
        });
        begins.recv().unwrap();
        Transfer { threads: [writer, reader], stop, _pair: pair }
    }

    fn finish(self) {
        self.stop.send(()).unwrap();
        let [sent, got] = self.threads.map(|t| t.join().unwrap());
        assert_eq!(sent, got);
    }
}

/// Without a companion connection each side reads what has arrived, and then a reset, since it cannot know what was
/// still under way; but a side that had got the end before reads the end.
pub fn a_failure_without_a_companion() {
    let [idle, read_on, unread, half, full] = [(); 5].map(|()| pair());
    assert_eq!(write(&*read_on.b, b"abc"), Ok(3));
    assert_eq!(write(&*unread.b, &pattern(0, 100_000)), Ok(100_000));
    half.b.shutdown(Shut::Write);
    let n = fill(&*full.a);
    settle();
    fail_all();
    for e in [&idle.a, &idle.b] {
        assert_eq!((ready(&**e), read(&**e, 9), read(&**e, 9)), (DEAD, RESET, Ok(0)));
        assert_eq!(write(&**e, b"x"), PIPE);
    }
    // What has come is read first. Its writer cannot know that it has.
    assert_eq!((read(&*read_on.a, 9), read(&*read_on.a, 9), read(&*read_on.a, 9)), (Ok(3), RESET, Ok(0)));
    assert_eq!((ready(&*read_on.b), read(&*read_on.b, 9), read(&*read_on.b, 9)), (DEAD, RESET, Ok(0)));
    assert!(get(&*unread.a, 200_000, false).unwrap() == pattern(0, 100_000));
    assert_eq!((ready(&*unread.a), read(&*unread.a, 9), read(&*unread.a, 9)), (DEAD, RESET, Ok(0)));
    assert_eq!((unread.b.take_error(), read(&*unread.b, 9)), (Errno::CONNRESET.0, Ok(0)));
    assert_eq!(write(&*unread.b, b"x"), PIPE);
    // Its end had come before.
    assert_eq!((read(&*half.a, 9), half.a.take_error()), (Ok(0), 0));
    assert_eq!((ready(&*half.b), read(&*half.b, 9), read(&*half.b, 9)), (DEAD, RESET, Ok(0)));
    assert_eq!((write(&*full.a, b"x"), write(&*full.a, b"x")), (RESET, PIPE));
    let (got, end) = drain(&*full.b);
    assert!(0 < got && got < n && end == RESET, "{got} of {n} bytes, then {end:?}");
}
