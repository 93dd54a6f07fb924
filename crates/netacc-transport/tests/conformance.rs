//! What every transport must do: one suite over [`Endpoint`], run for each [`Rig`] at the end of the file.
//!
//! What TCP does in each state, and so what is expected here, is listed in `tests/diff/facts.expected`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use core::cell::Cell;
use core::ops::Deref;
use netacc_sys::Errno;
use netacc_sys::time::Deadline;
use netacc_transport::{Endpoint, Interest, Iov, Readiness, Shut, WaitSet};
use std::any::Any;
use std::sync::mpsc;
use std::thread;

mod shm;

/// A transport as the suite sees it.
trait Rig {
    /// Two ends of one new connection.
    fn pair() -> Pair;
}

/// Two connected ends.
struct Pair {
    a: End,
    b: End,
    /// The process of `b` dies without a word.
    kill_b: Box<dyn Fn()>,
    /// What is to be dropped after both ends.
    _keep: Box<dyn Any>,
}

/// An endpoint that is closed at the latest when it goes out of scope.
struct End {
    ep: &'static dyn Endpoint,
    open: Cell<bool>,
}

impl End {
    fn new(ep: &'static dyn Endpoint) -> End {
        End { ep, open: Cell::new(true) }
    }

    fn close(&self, abort: bool) {
        assert!(self.open.replace(false), "closed twice");
        self.ep.close(abort);
    }
}

impl Deref for End {
    type Target = dyn Endpoint;

    fn deref(&self) -> &(dyn Endpoint + 'static) {
        self.ep
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if self.open.get() {
            self.ep.close(false);
        }
    }
}

type Io = Result<usize, Errno>;
const AGAIN: Io = Err(Errno::AGAIN);
const RESET: Io = Err(Errno::CONNRESET);
const PIPE: Io = Err(Errno::PIPE);

fn iovec(b: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: b.as_ptr().cast_mut().cast(), iov_len: b.len() }
}

fn write(e: &dyn Endpoint, b: &[u8]) -> Io {
    e.try_write(&mut Iov::one(&iovec(b)))
}

fn read_into(e: &dyn Endpoint, b: &mut [u8], peek: bool) -> Io {
    let v = libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() };
    e.try_read(&mut Iov::one(&v), peek)
}

/// Up to `n` bytes.
fn get(e: &dyn Endpoint, n: usize, peek: bool) -> Result<Vec<u8>, Errno> {
    let mut b = vec![0; n];
    let n = read_into(e, &mut b, peek)?;
    b.truncate(n);
    Ok(b)
}

fn read(e: &dyn Endpoint, n: usize) -> Io {
    get(e, n, false).map(|b| b.len())
}

fn pattern(at: usize, n: usize) -> Vec<u8> {
    (at..at + n).map(|i| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Writes until nothing more goes in; the number of bytes.
fn fill(e: &dyn Endpoint) -> usize {
    let mut n = 0;
    loop {
        match write(e, &pattern(n, 10_000)) {
            Ok(k) => n += k,
            Err(Errno::AGAIN) => return n,
            Err(other) => panic!("{other}"),
        }
        assert!(n < 1 << 26, "never full");
    }
}

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
const HUP: u32 = libc::EPOLLHUP as u32;
const ERR: u32 = libc::EPOLLERR as u32;
const DEAD: u32 = IN | OUT | ERR | HUP | RDHUP;

/// The readiness in the bits that poll(2) has always had; the newer names must agree.
fn ready(e: &dyn Endpoint) -> u32 {
    let r = e.readiness();
    let has = |bit: i32| r.0 & bit as u32 != 0;
    assert_eq!(has(libc::EPOLLIN), has(libc::EPOLLRDNORM));
    assert_eq!(has(libc::EPOLLOUT), has(libc::EPOLLWRNORM));
    assert_eq!((r.readable(), r.writable()), (has(libc::EPOLLIN), has(libc::EPOLLOUT)));
    r.0 & !((Readiness::IN | Readiness::OUT) & !(IN | OUT))
}

const READ: Interest = Interest { read: true, write: false };
const WRITE: Interest = Interest { read: false, write: true };
const BOTH: Interest = Interest { read: true, write: true };
const NS: i64 = 1_000_000_000;

/// Sleeps until `e` is ready for `i`, as a blocking call does. `armed` hears of each going to sleep.
fn wait(e: &'static dyn Endpoint, i: Interest, armed: impl FnMut()) {
    wait_with(e, i, armed, false);
}

/// As [`wait`], where the peer may be dead already and so cannot be told whom to wake.
fn wait_beside_the_dead(e: &'static dyn Endpoint, i: Interest) {
    wait_with(e, i, || {}, true);
}

fn wait_with(e: &'static dyn Endpoint, i: Interest, mut armed: impl FnMut(), bounded: bool) {
    let guard = Deadline::after(20 * NS);
    loop {
        let mut set = WaitSet::new();
        let now = e.arm(i, &mut set);
        if !now {
            assert!(bounded || !set.bounded, "sleeps in short steps only, which would hide a lost wake-up");
            armed();
            match set.sleep(guard, core::ptr::null()) {
                Ok(0) => panic!("nobody woke the sleeper"),
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => panic!("{e}"),
            }
        }
        e.disarm(i, &set);
        let r = e.readiness();
        if (i.read && r.readable()) || (i.write && r.writable()) {
            return;
        }
        assert!(!now, "ready at once, and then not");
    }
}

/// Lets threads sleep on `e`, waits until all of them do, acts, and waits until all have woken.
fn woken(e: &'static dyn Endpoint, interests: &[Interest], act: impl FnOnce()) {
    let (tx, rx) = mpsc::channel();
    let sleepers: Vec<_> = interests
        .iter()
        .map(|&i| {
            let tx = tx.clone();
            thread::spawn(move || wait(e, i, || tx.send(()).unwrap()))
        })
        .collect();
    for _ in interests {
        rx.recv().unwrap();
    }
    act();
    for s in sleepers {
        s.join().unwrap();
    }
}

fn bytes_arrive_in_order<R: Rig>() {
    for size in [1, 2, 100, 2047, 2048, 2049, 4096, 65_536, 262_143, 262_144, 262_145, 264_192, 264_193, 1 << 20] {
        let p = R::pair();
        // Twice each way: from fresh and from used windows.
        for (from, to) in [(&p.a, &p.b), (&p.b, &p.a), (&p.a, &p.b), (&p.b, &p.a)] {
            let data = pattern(size, size);
            let (mut sent, mut got) = (0, Vec::new());
            while got.len() < size {
                if sent < size {
                    match write(&**from, &data[sent..]) {
                        Ok(n) => sent += n,
                        Err(e) => assert_eq!(e, Errno::AGAIN),
                    }
                }
                let part = get(&**to, 1 << 20, false).unwrap();
                assert!(!part.is_empty());
                got.extend(part);
            }
            assert!(got == data, "{size} bytes were garbled");
            assert_eq!(read(&**to, 1), AGAIN);
        }
    }
}

fn many_small_messages<R: Rig>() {
    let p = R::pair();
    // Long enough to go through every change of windows, up and down again.
    let mut at = 0;
    for i in 0..6000 {
        let n = if i % 2500 == 10 { 150_000 } else { 1 + i % 900 };
        assert_eq!(write(&*p.a, &pattern(at, n)), Ok(n));
        assert!(get(&*p.b, n + 1, false).unwrap() == pattern(at, n), "message {i}");
        at += n;
    }
}

fn full_then_room_again<R: Rig>() {
    let p = R::pair();
    for round in 0..3 {
        let n = fill(&*p.a);
        assert!(n > 0);
        assert_eq!(write(&*p.a, &[0]), AGAIN, "full, and takes a byte");
        assert_eq!(ready(&*p.a), 0);
        assert_eq!(ready(&*p.b), IN | OUT, "the other direction is free");
        assert_eq!(p.b.unread(), n);
        assert!(p.a.unsent() <= n);
        let mut drained = 0;
        while ready(&*p.a) & OUT == 0 {
            assert!(drained <= n / 4 + 4096, "{drained} of {n} bytes are drained and there is no room");
            assert!(get(&*p.b, 1024, false).unwrap() == pattern(drained, 1024));
            drained += 1024;
        }
        assert!(drained >= n / 5, "room after {drained} of {n} bytes: a writer would be woken for little");
        let more = write(&*p.a, &pattern(0, 1 << 20)).unwrap();
        assert!(more > 0 && more < 1 << 20, "a part");
        let mut rest = 0;
        while let Ok(k) = read(&*p.b, 1 << 20) {
            rest += k;
        }
        assert_eq!(rest, n - drained + more, "round {round}");
        assert_eq!((p.b.unread(), p.a.unsent()), (0, 0));
        assert_eq!((ready(&*p.a), ready(&*p.b)), (OUT, OUT));
    }
}

fn vectored<R: Rig>() {
    let p = R::pair();
    let parts: Vec<Vec<u8>> = [3, 0, 2048, 1, 0, 70_000, 5].iter().map(|n| pattern(*n, *n)).collect();
    let all: Vec<u8> = parts.concat();
    let vecs: Vec<_> = parts.iter().map(|b| iovec(b)).collect();
    #[allow(unsafe_code)]
    // SAFETY: `vecs` and its buffers outlive the call.
    let mut src = unsafe { Iov::new(vecs.as_ptr(), vecs.len()) }.unwrap();
    assert_eq!(p.a.try_write(&mut src), Ok(all.len()));
    assert_eq!(src.left(), 0);
    let mut bufs = [vec![0u8; 1], vec![], vec![0u8; 5000], vec![0u8; 100_000]];
    let vecs: Vec<_> =
        bufs.iter_mut().map(|b| libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() }).collect();
    for peek in [true, false] {
        #[allow(unsafe_code)]
        // SAFETY: as above, and nothing else uses the buffers meanwhile.
        let mut dst = unsafe { Iov::new(vecs.as_ptr(), vecs.len()) }.unwrap();
        assert_eq!(p.b.try_read(&mut dst, peek), Ok(all.len()));
        assert!(bufs.concat()[..all.len()] == all[..]);
        for b in &mut bufs {
            b.fill(0);
        }
    }
    assert_eq!(p.b.unread(), 0);
    // A full ring takes a part of a vectored write, and the cursor says which.
    let big = vec![7u8; 200_000];
    let vecs = [iovec(&big), iovec(&big), iovec(&big)];
    #[allow(unsafe_code)]
    // SAFETY: as above.
    let mut src = unsafe { Iov::new(vecs.as_ptr(), vecs.len()) }.unwrap();
    let n = p.a.try_write(&mut src).unwrap();
    assert!(n < 600_000);
    assert_eq!(src.left(), 600_000 - n);
    assert_eq!(p.a.try_write(&mut src), AGAIN);
    assert_eq!(src.left(), 600_000 - n, "EAGAIN moves no cursor");
}

fn peek_leaves_the_bytes<R: Rig>() {
    let p = R::pair();
    assert_eq!(get(&*p.b, 1, true), Err(Errno::AGAIN));
    // Across the border of two windows.
    for n in [2000, 3000, 100_000] {
        assert_eq!(write(&*p.a, &pattern(n, n)), Ok(n));
    }
    let all = [pattern(2000, 2000), pattern(3000, 3000), pattern(100_000, 100_000)].concat();
    for n in [1, 2000, 2048, 2049, 5001, 105_000, 200_000] {
        assert!(get(&*p.b, n, true).unwrap() == all[..n.min(all.len())], "peek of {n}");
        assert_eq!(p.b.unread(), all.len());
    }
    assert!(get(&*p.b, 2100, false).unwrap() == all[..2100]);
    assert!(get(&*p.b, 200_000, true).unwrap() == all[2100..]);
    assert!(get(&*p.b, 200_000, false).unwrap() == all[2100..]);
    assert_eq!(get(&*p.b, 1, true), Err(Errno::AGAIN));
}

fn nothing_asked<R: Rig>() {
    let p = R::pair();
    assert_eq!(write(&*p.a, &[]), Ok(0));
    assert_eq!(ready(&*p.b), OUT, "an empty write is no data");
    assert_eq!(write(&*p.a, &[1]), Ok(1));
    assert_eq!(read(&*p.b, 0), Ok(0));
    assert_eq!(p.b.unread(), 1);
}

fn half_close<R: Rig>() {
    let p = R::pair();
    assert_eq!(write(&*p.a, b"abc"), Ok(3));
    p.a.shutdown(Shut::Write);
    assert_eq!(ready(&*p.a), OUT);
    assert_eq!((write(&*p.a, b"x"), write(&*p.a, b"")), (PIPE, PIPE));
    assert_eq!(p.a.take_error(), 0);
    assert_eq!(read(&*p.a, 9), AGAIN);
    // The other end reads the rest, then the end, again and again.
    assert_eq!(ready(&*p.b), IN | OUT | RDHUP);
    assert_eq!(p.b.unread(), 3);
    assert_eq!(get(&*p.b, 2, false).unwrap(), b"ab");
    assert_eq!(get(&*p.b, 9, true).unwrap(), b"c");
    assert_eq!((read(&*p.b, 9), read(&*p.b, 9), read(&*p.b, 9)), (Ok(1), Ok(0), Ok(0)));
    assert_eq!(ready(&*p.b), IN | OUT | RDHUP);
    // And its own direction goes on, however much.
    for _ in 0..50 {
        assert_eq!(write(&*p.b, &pattern(1, 20_000)), Ok(20_000));
        assert!(get(&*p.a, 30_000, false).unwrap() == pattern(1, 20_000));
    }
    assert_eq!(write(&*p.b, b"last"), Ok(4));
    p.b.shutdown(Shut::Write);
    assert_eq!((ready(&*p.a), ready(&*p.b)), (IN | OUT | HUP | RDHUP, IN | OUT | HUP | RDHUP));
    assert_eq!((read(&*p.a, 9), read(&*p.a, 9)), (Ok(4), Ok(0)));
    assert_eq!((write(&*p.a, b"x"), write(&*p.b, b"x")), (PIPE, PIPE));
    assert_eq!((p.a.take_error(), p.b.take_error()), (0, 0));
}

fn shutdown_of_reading<R: Rig>() {
    let p = R::pair();
    p.a.shutdown(Shut::Read);
    assert_eq!(ready(&*p.a), IN | OUT | RDHUP);
    assert_eq!(ready(&*p.b), OUT, "the peer is not told");
    assert_eq!((read(&*p.a, 9), read(&*p.a, 9)), (Ok(0), Ok(0)));
    // What comes nevertheless can be read.
    assert_eq!(write(&*p.b, b"abc"), Ok(3));
    assert_eq!((read(&*p.a, 9), read(&*p.a, 9)), (Ok(3), Ok(0)));
    assert_eq!(write(&*p.a, b"x"), Ok(1));
    assert_eq!(read(&*p.b, 9), Ok(1));
    p.a.shutdown(Shut::Write);
    assert_eq!(ready(&*p.a), IN | OUT | HUP | RDHUP);
    assert_eq!(write(&*p.a, b"x"), PIPE);
}

fn shutdown_of_both<R: Rig>() {
    let p = R::pair();
    p.a.shutdown(Shut::Both);
    assert_eq!(ready(&*p.a), IN | OUT | HUP | RDHUP);
    assert_eq!((read(&*p.a, 9), write(&*p.a, b"x")), (Ok(0), PIPE));
    assert_eq!(ready(&*p.b), IN | OUT | RDHUP);
    assert_eq!(read(&*p.b, 9), Ok(0));
    assert_eq!(write(&*p.b, b"x"), Ok(1), "it goes out, and is answered by a reset");
    assert_eq!(ready(&*p.b), DEAD);
    assert_eq!(read(&*p.b, 9), Ok(0));
    assert_eq!((write(&*p.b, b"x"), write(&*p.b, b"x")), (PIPE, PIPE));
}

fn clean_close<R: Rig>() {
    for sent in [0usize, 3, 200_000] {
        // Reading on.
        let p = R::pair();
        assert_eq!(write(&*p.b, &pattern(0, sent)), Ok(sent));
        p.b.close(false);
        assert_eq!(ready(&*p.a), IN | OUT | RDHUP);
        assert_eq!((p.a.unread(), p.a.take_error()), (sent, 0));
        assert!(get(&*p.a, 300_000, false).unwrap() == pattern(0, sent));
        assert_eq!((read(&*p.a, 9), read(&*p.a, 9)), (Ok(0), Ok(0)));
        assert_eq!(write(&*p.a, b""), Ok(0));
        assert_eq!(ready(&*p.a), IN | OUT | RDHUP);
        // Writing on: the first goes out and is answered by a reset.
        let p = R::pair();
        assert_eq!(write(&*p.b, &pattern(0, sent)), Ok(sent));
        p.b.close(false);
        assert_eq!(ready(&*p.a), IN | OUT | RDHUP);
        assert_eq!(write(&*p.a, b"hello"), Ok(5));
        assert_eq!(ready(&*p.a), DEAD);
        assert_eq!((write(&*p.a, b"x"), write(&*p.a, b"")), (PIPE, PIPE));
        assert!(get(&*p.a, 300_000, false).unwrap() == pattern(0, sent), "data that had come stays");
        assert_eq!((read(&*p.a, 9), read(&*p.a, 9)), (Ok(0), Ok(0)));
        // The error can be asked for once instead.
        let p = R::pair();
        p.b.close(false);
        assert_eq!(ready(&*p.a), IN | OUT | RDHUP);
        assert_eq!(write(&*p.a, b"hello"), Ok(5));
        assert_eq!((p.a.take_error(), p.a.take_error()), (Errno::PIPE.0, 0));
        assert_eq!(write(&*p.a, b"x"), PIPE);
    }
}

/// How a test makes the other end reset the connection.
fn resets<R: Rig>() -> Vec<(&'static str, Pair)> {
    let unread = R::pair();
    assert_eq!(write(&*unread.a, b"x"), Ok(1));
    unread.b.close(false);
    let abort = R::pair();
    abort.b.close(true);
    let half = R::pair();
    half.a.shutdown(Shut::Write);
    half.b.close(true);
    vec![("closed with unread data", unread), ("aborted", abort), ("aborted after our end", half)]
}

fn a_reset_is_told_once<R: Rig>() {
    for (how, p) in resets::<R>() {
        assert_eq!(ready(&*p.a), DEAD, "{how}");
        assert_eq!((read(&*p.a, 9), read(&*p.a, 9)), (RESET, Ok(0)), "{how}");
        assert_eq!(ready(&*p.a) & (IN | OUT | HUP | RDHUP), DEAD & !ERR, "{how}");
        assert_eq!((write(&*p.a, b"x"), write(&*p.a, b"")), (PIPE, PIPE), "{how}");
        assert_eq!(p.a.take_error(), 0);
    }
    for (how, p) in resets::<R>() {
        assert_eq!((write(&*p.a, b"x"), write(&*p.a, b"x")), (RESET, PIPE), "{how}");
        assert_eq!(read(&*p.a, 9), Ok(0), "{how}");
    }
    for (how, p) in resets::<R>() {
        assert_eq!(get(&*p.a, 9, true), Err(Errno::CONNRESET), "{how}");
        assert_eq!(read(&*p.a, 9), Ok(0), "{how}");
    }
    for (how, p) in resets::<R>() {
        assert_eq!((p.a.take_error(), p.a.take_error()), (Errno::CONNRESET.0, 0), "{how}");
        assert_eq!((read(&*p.a, 9), write(&*p.a, b"x")), (Ok(0), PIPE), "{how}");
    }
}

fn data_comes_before_a_reset<R: Rig>() {
    let p = R::pair();
    assert_eq!((write(&*p.a, b"x"), write(&*p.b, b"abc")), (Ok(1), Ok(3)));
    p.b.close(false);
    assert_eq!(ready(&*p.a), DEAD);
    assert_eq!(p.a.unread(), 3);
    assert_eq!(get(&*p.a, 9, true).unwrap(), b"abc");
    assert_eq!((read(&*p.a, 9), read(&*p.a, 9), read(&*p.a, 9)), (Ok(3), RESET, Ok(0)));
}

fn a_reset_after_the_end<R: Rig>() {
    for how in 0..2 {
        let p = R::pair();
        p.b.shutdown(Shut::Write);
        assert_eq!(ready(&*p.a), IN | OUT | RDHUP);
        p.b.close(true);
        assert_eq!(ready(&*p.a), DEAD);
        if how == 0 {
            assert_eq!((read(&*p.a, 9), read(&*p.a, 9)), (Ok(0), Ok(0)));
            assert_eq!(write(&*p.a, b"x"), PIPE);
        } else {
            assert_eq!((p.a.take_error(), p.a.take_error()), (Errno::PIPE.0, 0));
        }
    }
}

fn idle_readiness<R: Rig>() {
    let p = R::pair();
    for e in [&p.a, &p.b] {
        assert_eq!(ready(&**e), OUT);
        assert_eq!((e.unread(), e.unsent(), e.take_error()), (0, 0, 0));
        assert_eq!(read(&**e, 1), AGAIN);
    }
    assert_eq!(write(&*p.a, b"x"), Ok(1));
    assert_eq!((ready(&*p.a), ready(&*p.b)), (OUT, IN | OUT));
    assert_eq!(read(&*p.b, 1), Ok(1));
    assert_eq!((ready(&*p.a), ready(&*p.b)), (OUT, OUT));
}

fn a_sleeping_reader_wakes<R: Rig>() {
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

fn a_sleeping_writer_wakes<R: Rig>() {
    let p = R::pair();
    for _ in 0..5 {
        let n = fill(&*p.a);
        woken(p.a.ep, &[WRITE], || {
            // In small bites: the last one of a quarter must ring.
            let mut got = 0;
            while got < n / 4 + 4096 {
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
    assert_eq!(ready(&*p.a), IN);
}

fn several_sleepers_wake<R: Rig>() {
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

fn disarmed_is_forgotten<R: Rig>() {
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

fn death_ends_a_connection<R: Rig>() {
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
fn ping_pong_with_sleep<R: Rig>() {
    const ROUNDS: usize = 3000;
    let p = R::pair();
    let (a, b) = (p.a.ep, p.b.ep);
    let echo = thread::spawn(move || {
        for _ in 0..ROUNDS {
            wait(b, READ, || {});
            let m = get(b, 4096, false).unwrap();
            assert_eq!(write(b, &m), Ok(m.len()));
        }
    });
    for i in 0..ROUNDS {
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

fn bulk_with_sleep<R: Rig>() {
    const TOTAL: usize = 48 << 20;
    let p = R::pair();
    let (a, b) = (p.a.ep, p.b.ep);
    let sender = thread::spawn(move || {
        let block = pattern(0, 100_003);
        let (mut sent, mut slept) = (0, 0);
        while sent < TOTAL {
            let at = sent % block.len();
            match write(a, &block[at..block.len().min(at + TOTAL - sent)]) {
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
    assert_eq!(got, TOTAL);
    let _slept: usize = sender.join().unwrap();
}

/// The end comes at any moment of a transfer; whatever arrives is in order, and the end is told once.
fn close_in_the_middle<R: Rig>() {
    for i in 0..200 {
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

macro_rules! conformance {
    ($module:ident, $rig:ty) => {
        conformance!($module, $rig:
            bytes_arrive_in_order, many_small_messages, full_then_room_again, vectored, peek_leaves_the_bytes,
            nothing_asked, half_close, shutdown_of_reading, shutdown_of_both, clean_close, a_reset_is_told_once,
            data_comes_before_a_reset, a_reset_after_the_end, idle_readiness, a_sleeping_reader_wakes,
            a_sleeping_writer_wakes, several_sleepers_wake, disarmed_is_forgotten, death_ends_a_connection,
            ping_pong_with_sleep, bulk_with_sleep, close_in_the_middle);
    };
    ($module:ident, $rig:ty: $($case:ident),*) => {
        mod $module {
            $(#[test]
            fn $case() {
                super::$case::<$rig>();
            })*
        }
    };
}

conformance!(shm_client, crate::shm::Client);
conformance!(shm_server, crate::shm::Server);
// Peers of another user get no descriptors of ours and are woken by messages.
conformance!(shm_strangers, crate::shm::Strangers);
