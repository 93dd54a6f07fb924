//! Two connected ends, and what the suite does with them.

use core::cell::Cell;
use core::ops::Deref;
use netacc_sys::Errno;
use netacc_sys::errno::Fail;
use netacc_sys::time::Deadline;
use netacc_transport::{Endpoint, Interest, Iov, Readiness, WaitSet};
use std::any::Any;
use std::sync::mpsc;
use std::thread;

/// A transport as the suite sees it.
pub(crate) trait Rig {
    /// What was written and not read lies at the reader's end, and nowhere else.
    const DIRECT: bool = true;
    /// More bytes than a connection takes from a writer without a reader.
    const HELD: usize = 600_000;
    /// Of what is done very often, this part is enough.
    const PART: usize = 1;

    /// Two ends of one new connection.
    fn pair() -> Pair;
}

/// Two connected ends.
pub(crate) struct Pair {
    pub(crate) a: End,
    pub(crate) b: End,
    /// The process of `b` dies without a word.
    pub(crate) kill_b: Box<dyn Fn()>,
    /// What is to be dropped after both ends.
    pub(crate) _keep: Box<dyn Any>,
}

/// An endpoint that is closed at the latest when it goes out of scope.
pub(crate) struct End {
    pub(crate) ep: &'static dyn Endpoint,
    pub(crate) open: Cell<bool>,
}

impl End {
    pub(crate) fn new(ep: &'static dyn Endpoint) -> End {
        End { ep, open: Cell::new(true) }
    }

    pub(crate) fn close(&self, abort: bool) {
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

pub(crate) type Io = Result<usize, Errno>;
pub(crate) const AGAIN: Io = Err(Errno::AGAIN);
pub(crate) const RESET: Io = Err(Errno::CONNRESET);
pub(crate) const PIPE: Io = Err(Errno::PIPE);

pub(crate) fn iovec(b: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: b.as_ptr().cast_mut().cast(), iov_len: b.len() }
}

pub(crate) fn write(e: &dyn Endpoint, b: &[u8]) -> Io {
    e.try_write(&mut Iov::one(&iovec(b)))
}

pub(crate) fn read_into(e: &dyn Endpoint, b: &mut [u8], peek: bool) -> Io {
    let v = libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() };
    e.try_read(&mut Iov::one(&v), peek)
}

/// Up to `n` bytes.
pub(crate) fn get(e: &dyn Endpoint, n: usize, peek: bool) -> Result<Vec<u8>, Errno> {
    let mut b = vec![0; n];
    let n = read_into(e, &mut b, peek)?;
    b.truncate(n);
    Ok(b)
}

pub(crate) fn read(e: &dyn Endpoint, n: usize) -> Io {
    get(e, n, false).map(|b| b.len())
}

pub(crate) fn pattern(at: usize, n: usize) -> Vec<u8> {
    (at..at + n).map(|i| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Writes until nothing more goes in; the number of bytes.
pub(crate) fn fill(e: &dyn Endpoint) -> usize {
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

/// Reads what [`fill`] has written, up to the end or an error: how much it was.
pub(crate) fn drain(e: &dyn Endpoint) -> (usize, Io) {
    let mut got = 0;
    loop {
        match get(e, 10_000, false) {
            Ok(m) if !m.is_empty() => {
                assert!(m == pattern(got, m.len()), "garbled after {got} bytes");
                got += m.len();
            }
            end => return (got, end.map(|m| m.len())),
        }
    }
}

pub(crate) const IN: u32 = libc::EPOLLIN as u32;
pub(crate) const OUT: u32 = libc::EPOLLOUT as u32;
pub(crate) const RDHUP: u32 = libc::EPOLLRDHUP as u32;
pub(crate) const HUP: u32 = libc::EPOLLHUP as u32;
pub(crate) const ERR: u32 = libc::EPOLLERR as u32;
pub(crate) const DEAD: u32 = IN | OUT | ERR | HUP | RDHUP;

/// The readiness in the bits that poll(2) has always had; the newer names must agree.
pub(crate) fn ready(e: &dyn Endpoint) -> u32 {
    let r = e.readiness();
    let has = |bit: i32| r.0 & bit as u32 != 0;
    assert_eq!(has(libc::EPOLLIN), has(libc::EPOLLRDNORM));
    assert_eq!(has(libc::EPOLLOUT), has(libc::EPOLLWRNORM));
    assert_eq!((r.readable(), r.writable()), (has(libc::EPOLLIN), has(libc::EPOLLOUT)));
    r.0 & !((Readiness::IN | Readiness::OUT) & !(IN | OUT))
}

pub(crate) const READ: Interest = Interest { read: true, write: false };
pub(crate) const WRITE: Interest = Interest { read: false, write: true };
pub(crate) const BOTH: Interest = Interest { read: true, write: true };
pub(crate) const NS: i64 = 1_000_000_000;

/// Sleeps until `e` is ready for `i`, as a blocking call does. `armed` hears of each going to sleep.
pub(crate) fn wait(e: &'static dyn Endpoint, i: Interest, armed: impl FnMut()) {
    wait_with(e, i, armed, false);
}

/// As [`wait`], if the peer may be dead already, so that it cannot be told which waker to write.
pub(crate) fn wait_beside_the_dead(e: &'static dyn Endpoint, i: Interest) {
    wait_with(e, i, || {}, true);
}

pub(crate) fn wait_with(e: &'static dyn Endpoint, i: Interest, mut armed: impl FnMut(), bounded: bool) {
    let guard = Deadline::after(60 * NS);
    loop {
        let mut set = WaitSet::new();
        let now = e.arm(i, &mut set);
        if !now {
            assert!(bounded || !set.bounded, "sleeps in short steps only, which would hide a lost wake-up");
            armed();
            match set.sleep(guard, core::ptr::null()) {
                Ok(0) => panic!("nobody woke the sleeper"),
                Ok(_) | Err(Fail::INTR) => {}
                Err(e) => panic!("{e:?}"),
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
pub(crate) fn woken(e: &'static dyn Endpoint, interests: &[Interest], act: impl FnOnce()) {
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
