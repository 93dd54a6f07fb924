//! The old subflow of a promoted connection: bytes that are still in the kernel precede the ring's.
//!
//! Each side ends its half of the kernel's stream when it switches to the ring, so the end of the kernel's stream marks
//! the byte from which on the ring is read.
//!
//! While a dead peer's half is open, the kernel shows how it ended: by an end of stream, or by a reset if the peer had
//! not read all bytes. After both halves have ended the kernel shows nothing more, so each side publishes how many
//! bytes it has read of that stream ([`netacc_ring::ConsumerLine::before`]); these counts have no other use.

use crate::iov::Iov;
use crate::shm::ShmEndpoint;
use crate::shm::numbers::ProgramNumber;
use crate::shm::side::Side;
use crate::shm::slot_side::{SlotSide, View};
use core::sync::atomic::{AtomicU64, Ordering};
use netacc_ring::to_usize;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::raw;

impl SlotSide {
    /// Tells the peer how many bytes of the kernel's stream this side has read, while the connection may be the one that
    /// the client has offered.
    pub fn publish_read(&self, read: u64) {
        if let Some(v) = self.view() {
            // Release pairs with the load of `peer_has_read`. The word is meant for this count in any case: after the
            // switch it goes on from here.
            line!(v, consumer, v.me).before.store(read + 1, Ordering::Release);
        }
    }

    /// How many bytes of the kernel's stream the other side has read; `None`: it has not told.
    pub fn peer_has_read(&self) -> Option<u64> {
        let v = self.view()?;
        line!(v, consumer, v.me.other()).before.load(Ordering::Acquire).checked_sub(1)
    }
}

/// The old subflow of a connection, if it has one.
#[derive(Debug)]
pub struct OldSubflow {
    /// The socket whose bytes come before the ring's.
    number: ProgramNumber,
    /// Number of bytes that this side has sent over it.
    sent: AtomicU64,
}

impl OldSubflow {
    /// Makes kernel socket `fd` the old subflow of this side, over which `sent` bytes were sent and `read` bytes were
    /// read so far.
    pub fn set(&self, side: &SlotSide, fd: i32, sent: u64, read: u64) {
        self.sent.store(sent, Ordering::Relaxed);
        self.number.set(fd);
        if let Some(v) = side.view() {
            line!(v, consumer, v.me).before.store(read + 1, Ordering::Release);
        }
    }

    /// Counts `n` bytes that were sent by a call that had begun in the kernel before the switch.
    pub fn count_sent(&self, n: usize) {
        self.sent.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// Number of bytes of the kernel's stream that a dead peer left unread; 0 if the kernel itself shows that.
    pub(super) fn unread_before(&self, v: &View) -> u64 {
        match line!(v, consumer, v.me.other()).before.load(Ordering::Acquire) {
            0 => 0,
            read => self.sent.load(Ordering::Relaxed).saturating_sub(read - 1),
        }
    }

    /// The descriptor, or -1.
    pub fn fd(&self) -> i32 {
        self.number.fd()
    }

    /// The number under which it lies.
    pub(super) fn number(&self) -> &ProgramNumber {
        &self.number
    }

    /// Whether there is an old subflow, so that reads of the ring have to wait for its end.
    #[inline]
    pub(super) fn is_there(&self) -> bool {
        self.number.is_set()
    }

    /// The descriptor, also after the end was read, or -1.
    pub(super) fn open_fd(&self) -> i32 {
        self.number.open_fd()
    }

    /// Forgets the old subflow of the previous connection when a connection begins.
    pub(super) fn forget(&self) {
        self.number.forget();
    }

    /// Gives the old subflow up when the connection leaves the ring. The caller holds both direction locks.
    pub(super) fn close(&self) {
        self.number.close();
    }

    /// Reads from the old subflow; `None`: it has ended.
    #[cold]
    pub(super) fn read(&self, side: &SlotSide, dst: &mut Iov<'_>, peek: bool) -> Option<Result<usize>> {
        let (mut spare, mut len) = (0u8, 1);
        let (p, skip) = match dst.space() {
            Some((p, n)) => {
                len = n;
                (p, true)
            }
            // A read without room only checks whether there are bytes.
            None => (&raw mut spare, false),
        };
        let flags = libc::MSG_DONTWAIT | if peek || !skip { libc::MSG_PEEK } else { 0 };
        loop {
            let using = side.users.begin();
            // A thread that only looks has no lock, so another one may have ended the old subflow in between.
            let fd = self.fd();
            if fd < 0 {
                return None;
            }
            let res = raw::recv(fd, p, len, flags);
            drop(using);
            return match res {
                Ok(0) => {
                    // A thread that sees no old subflow reads the ring, after all reads of the old subflow.
                    if !self.number.retire(fd) {
                        continue;
                    }
                    None
                }
                Ok(_) if !skip => Some(Ok(0)),
                Ok(n) => {
                    dst.skip(n);
                    if !peek {
                        side.count_read(n);
                    }
                    Some(Ok(n))
                }
                Err(Errno::INTR) => continue,
                Err(e @ (Errno::AGAIN | Errno::FAULT)) => Some(Err(e)),
                Err(e) => {
                    // An error of the old subflow is an error of the connection, which a peek leaves for the next call.
                    if !self.number.retire(fd) {
                        continue;
                    }
                    side.die(e);
                    match side.error.swap(0, Ordering::AcqRel) {
                        0 => None,
                        e if peek || !skip => {
                            side.error.store(e, Ordering::Release);
                            None
                        }
                        e => Some(Err(Errno(e))),
                    }
                }
            };
        }
    }

    /// Number of bytes in the old subflow, and whether it has ended after them.
    pub(super) fn left(&self, side: &SlotSide) -> (usize, bool) {
        let _using = side.users.begin();
        let fd = self.fd();
        if fd < 0 {
            return (0, true);
        }
        let mut p = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
        let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // The end is checked first, so that all bytes before it are counted.
        let ended = raw::ppoll(&raw mut p, 1, &raw mut ts, core::ptr::null()) == Ok(1);
        let mut n = 0i32;
        let asked = raw::ioctl(fd, to_usize(libc::FIONREAD), &raw mut n as usize);
        (if asked.is_ok() { usize::try_from(n).unwrap_or(0) } else { 0 }, ended)
    }

    /// Whether more bytes may come over the old subflow, which is not known to have ended.
    pub(super) fn goes_on(&self, side: &SlotSide) -> bool {
        self.is_there() && !self.left(side).1
    }

    /// Reads from the old subflow, so that one call gets its bytes and the ring's after them, as from one stream.
    /// `Err`: this is the call's result. `Ok`: the number of bytes that were read, and the ring is next.
    #[cold]
    pub(super) fn read_before(
        &self,
        side: &SlotSide,
        dst: &mut Iov<'_>,
        peek: bool,
    ) -> core::result::Result<usize, Result<usize>> {
        let mut got = 0;
        while self.is_there() {
            match self.read(side, dst, peek) {
                None => break,
                Some(Ok(n)) => {
                    got += n;
                    if n == 0 || dst.left() == 0 {
                        return Err(Ok(got));
                    }
                    if peek {
                        return if self.left(side) == (n, true) { Ok(n) } else { Err(Ok(n)) };
                    }
                }
                Some(Err(e)) => {
                    if got > 0 && e != Errno::AGAIN {
                        side.error.store(e.0, Ordering::Release);
                    }
                    return Err(if got > 0 { Ok(got) } else { Err(e) });
                }
            }
        }
        Ok(got)
    }

    /// Discards up to `n` bytes of the old subflow.
    #[cold]
    pub(super) fn discard(&self, side: &SlotSide, n: usize) -> usize {
        let _using = side.users.begin();
        // tcp(7): with MSG_TRUNC the kernel discards without a buffer.
        let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
        match raw::recv(self.fd(), core::ptr::null_mut(), n, flags) {
            Ok(k) if k > 0 => {
                side.count_read(k);
                k
            }
            _ => 0,
        }
    }

    /// Whether the old subflow is readable; `None`: it has ended.
    #[cold]
    pub(super) fn is_ready(&self, side: &SlotSide) -> Option<bool> {
        let v = libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
        match self.read(side, &mut Iov::one(&v), true)? {
            Err(Errno::AGAIN) => Some(false),
            _ => Some(true),
        }
    }
}

impl SlotSide {
    /// Counts `n` bytes of the kernel's stream that were read.
    fn count_read(&self, n: usize) {
        if let Some(v) = self.view() {
            line!(v, consumer, v.me).before.fetch_add(n as u64, Ordering::Release);
        }
    }
}

impl ShmEndpoint {
    /// Number of bytes that can be read, including those of the old subflow.
    pub(super) fn waiting_in_all(&self, v: &View) -> u64 {
        if !self.old_subflow.is_there() {
            return self.rings.waiting_in(&self.side, v) + self.overdue(v);
        }
        let (n, ended) = self.old_subflow.left(&self.side);
        n as u64 + if ended { self.rings.waiting_in(&self.side, v) } else { 0 }
    }
}
