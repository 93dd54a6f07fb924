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

/// A transport, or one way to use it, as the suite sees it.
pub trait Rig {
    /// What was written and not read lies at the reader's end, and nowhere else.
    const DIRECT: bool = true;
    /// More bytes than a connection takes from a writer without a reader.
    const HELD: usize = 600_000;
    /// Of what is done very often, this part is enough.
    const PART: usize = 1;
    /// A writer that waits for room is woken once one part in this many of the bytes is read, and 4096 bytes.
    const ROOM_AFTER: usize = 4;

    /// Two ends of one new connection.
    fn pair() -> Pair;
}

/// Two connected ends.
pub struct Pair {
    /// The end that most cases look at.
    pub a: End,
    /// The other end.
    pub b: End,
    /// The process of `b` dies without a word.
    pub kill_b: Box<dyn Fn()>,
    /// What is to be dropped after both ends.
    pub _keep: Box<dyn Any>,
}

/// An endpoint that is closed at the latest when it goes out of scope.
pub struct End {
    /// The endpoint, for threads that outlive the borrow of the end.
    pub ep: &'static dyn Endpoint,
    open: Cell<bool>,
}

impl End {
    /// An open end.
    pub fn new(ep: &'static dyn Endpoint) -> End {
        End { ep, open: Cell::new(true) }
    }

    /// Closes the endpoint; `abort` resets the connection.
    pub fn close(&self, abort: bool) {
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

/// The result of a read or a write: the number of bytes.
pub type Io = Result<usize, Errno>;
/// Nothing can be moved now.
pub const AGAIN: Io = Err(Errno::AGAIN);
/// The connection was reset.
pub const RESET: Io = Err(Errno::CONNRESET);
/// The stream has ended.
pub const PIPE: Io = Err(Errno::PIPE);

/// A buffer as the system calls name it.
pub fn iovec(b: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: b.as_ptr().cast_mut().cast(), iov_len: b.len() }
}

/// Writes as much of `b` as the connection takes.
pub fn write(e: &dyn Endpoint, b: &[u8]) -> Io {
    e.try_write(&mut Iov::one(&iovec(b)))
}

/// Reads into `b`, or only looks.
pub fn read_into(e: &dyn Endpoint, b: &mut [u8], peek: bool) -> Io {
    let v = libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() };
    e.try_read(&mut Iov::one(&v), peek)
}

/// Up to `n` bytes.
pub fn get(e: &dyn Endpoint, n: usize, peek: bool) -> Result<Vec<u8>, Errno> {
    let mut b = vec![0; n];
    let n = read_into(e, &mut b, peek)?;
    b.truncate(n);
    Ok(b)
}

/// Reads up to `n` bytes and returns how many there were.
pub fn read(e: &dyn Endpoint, n: usize) -> Io {
    get(e, n, false).map(|b| b.len())
}

/// `n` bytes of an endless sequence, from byte `at` on.
pub fn pattern(at: usize, n: usize) -> Vec<u8> {
    (at..at + n).map(|i| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Writes until nothing more goes in; the number of bytes.
pub fn fill(e: &dyn Endpoint) -> usize {
    fill_from(e, 0)
}

/// Goes on as [`fill`] after `at` bytes; the number of bytes that it adds.
pub fn fill_from(e: &dyn Endpoint, at: usize) -> usize {
    let mut n = 0;
    loop {
        match write(e, &pattern(at + n, 10_000)) {
            Ok(k) => n += k,
            Err(Errno::AGAIN) => return n,
            Err(other) => panic!("{other}"),
        }
        assert!(n < 1 << 26, "never full");
    }
}

/// Reads what [`fill`] has written, up to the end or an error: how much it was.
pub fn drain(e: &dyn Endpoint) -> (usize, Io) {
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

/// There is something to read.
pub const IN: u32 = libc::EPOLLIN as u32;
/// There is room to write.
pub const OUT: u32 = libc::EPOLLOUT as u32;
/// The peer has ended its direction.
pub const RDHUP: u32 = libc::EPOLLRDHUP as u32;
/// Both directions have ended.
pub const HUP: u32 = libc::EPOLLHUP as u32;
/// An error is pending.
pub const ERR: u32 = libc::EPOLLERR as u32;
/// The connection was reset, and the error is pending.
pub const DEAD: u32 = IN | OUT | ERR | HUP | RDHUP;

/// The readiness in the bits that poll(2) has always had; the newer names must agree.
pub fn ready(e: &dyn Endpoint) -> u32 {
    let r = e.readiness();
    let has = |bit: i32| r.0 & bit as u32 != 0;
    assert_eq!(has(libc::EPOLLIN), has(libc::EPOLLRDNORM));
    assert_eq!(has(libc::EPOLLOUT), has(libc::EPOLLWRNORM));
    assert_eq!((r.readable(), r.writable()), (has(libc::EPOLLIN), has(libc::EPOLLOUT)));
    r.0 & !((Readiness::IN | Readiness::OUT) & !(IN | OUT))
}

/// Waits for something to read.
pub const READ: Interest = Interest { read: true, write: false };
/// Waits for room.
pub const WRITE: Interest = Interest { read: false, write: true };
/// Waits for either.
pub const BOTH: Interest = Interest { read: true, write: true };
/// Nanoseconds of a second.
pub const NS: i64 = 1_000_000_000;

/// Sleeps until `e` is ready for `i`, as a blocking call does. `armed` hears of each going to sleep.
pub fn wait(e: &'static dyn Endpoint, i: Interest, armed: impl FnMut()) {
    wait_with(e, i, armed, false);
}

/// As [`wait`], if the peer may be dead already, so that it cannot be told which waker to write.
pub fn wait_beside_the_dead(e: &'static dyn Endpoint, i: Interest) {
    wait_with(e, i, || {}, true);
}

/// As [`wait`]; `bounded`: a sleep in short steps is no failure.
pub fn wait_with(e: &'static dyn Endpoint, i: Interest, mut armed: impl FnMut(), bounded: bool) {
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

/// Lets threads sleep on `e`, waits until all of them do, acts, and waits until all have woken. A writer by the kernel's TCP may
/// find room late, and then does not sleep.
pub fn woken(e: &'static dyn Endpoint, interests: &[Interest], act: impl FnOnce()) {
    let (awake, none_awake) = mpsc::channel::<()>();
    let sleepers: Vec<_> = interests
        .iter()
        .map(|&i| {
            let mut awake = Some(awake.clone());
            thread::spawn(move || {
                wait(e, i, || awake = None);
                assert!(awake.is_none() || i.write, "a reader has not slept");
            })
        })
        .collect();
    drop(awake);
    // There is no sender left once each thread sleeps or has ended.
    assert!(none_awake.recv().is_err(), "nothing is sent");
    act();
    for s in sleepers {
        s.join().unwrap();
    }
}
