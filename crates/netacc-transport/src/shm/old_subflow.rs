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
use crate::shm::endpoint::View;
use crate::shm::side::Side;
use core::sync::atomic::Ordering;
use netacc_ring::to_usize;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{raw, reserved_fds};

/// Notes that the old subflow with the descriptor `fd` was read to its end. A descriptor of ours stays open, since
/// another thread may be passing it to the peer. False: another thread has noted the end or changed the number, so
/// what was found under `fd` may belong to another file.
fn end(ep: &ShmEndpoint, fd: i32) -> bool {
    let ended = if reserved_fds::is(fd) { -fd - 1 } else { 0 };
    // AcqRel: a thread that sees no old subflow reads the ring, after all reads of the old subflow.
    ep.old_subflow.compare_exchange(fd + 1, ended, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Number of bytes in the old subflow, and whether it has ended after them.
fn left(ep: &ShmEndpoint) -> (usize, bool) {
    let _using = ep.using();
    let fd = ep.old_subflow_fd();
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

impl ShmEndpoint {
    /// Makes kernel socket `fd` the old subflow, over which `sent` bytes were sent and `read` bytes were read so far.
    pub fn set_old_subflow(&self, fd: i32, sent: u64, read: u64) {
        self.sent_before.store(sent, Ordering::Relaxed);
        self.old_subflow.store(fd + 1, Ordering::Release);
        if let Some(v) = self.view() {
            line!(v, consumer, v.me).before.store(read + 1, Ordering::Release);
        }
    }

    /// Counts `n` bytes that were sent by a call that had begun in the kernel before the switch.
    pub fn count_sent(&self, n: usize) {
        self.sent_before.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// Counts `n` bytes of the kernel's stream that were read.
    fn count_read(&self, n: usize) {
        if let Some(v) = self.view() {
            line!(v, consumer, v.me).before.fetch_add(n as u64, Ordering::Release);
        }
    }

    /// Number of bytes of the kernel's stream that a dead peer left unread; 0 if the kernel itself shows that.
    pub(super) fn unread_before(&self, v: &View) -> u64 {
        match line!(v, consumer, v.me.other()).before.load(Ordering::Acquire) {
            0 => 0,
            read => self.sent_before.load(Ordering::Relaxed).saturating_sub(read - 1),
        }
    }

    /// Whether there are bytes of an old subflow to read before the ring's, or its end was not noticed yet.
    #[inline]
    pub(super) fn has_old_subflow(&self) -> bool {
        self.old_subflow.load(Ordering::Relaxed) > 0
    }

    /// The old subflow's descriptor, or -1.
    pub fn old_subflow_fd(&self) -> i32 {
        self.old_subflow.load(Ordering::Acquire).max(0) - 1
    }

    /// Gives the old subflow up when the connection leaves the ring. The caller holds both direction locks.
    pub(super) fn drop_old_subflow(&self) {
        let fd = self.old_subflow.swap(0, Ordering::AcqRel).abs() - 1;
        if fd >= 0 && reserved_fds::is(fd) {
            reserved_fds::close(fd);
        }
    }

    /// Reads from the old subflow; `None`: it has ended.
    #[cold]
    pub(super) fn read_old_subflow(&self, dst: &mut Iov<'_>, peek: bool) -> Option<Result<usize>> {
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
            let using = self.using();
            // A thread that only looks has no lock, so another one may have ended the old subflow in between.
            let fd = self.old_subflow_fd();
            if fd < 0 {
                return None;
            }
            let res = raw::recv(fd, p, len, flags);
            drop(using);
            return match res {
                Ok(0) => {
                    if !end(self, fd) {
                        continue;
                    }
                    None
                }
                Ok(_) if !skip => Some(Ok(0)),
                Ok(n) => {
                    dst.skip(n);
                    if !peek {
                        self.count_read(n);
                    }
                    Some(Ok(n))
                }
                Err(Errno::INTR) => continue,
                Err(e @ (Errno::AGAIN | Errno::FAULT)) => Some(Err(e)),
                Err(e) => {
                    // An error of the old subflow is an error of the connection, which a peek leaves for the next call.
                    if !end(self, fd) {
                        continue;
                    }
                    self.die(e);
                    match self.error.swap(0, Ordering::AcqRel) {
                        0 => None,
                        e if peek || !skip => {
                            self.error.store(e, Ordering::Release);
                            None
                        }
                        e => Some(Err(Errno(e))),
                    }
                }
            };
        }
    }

    /// Number of bytes that can be read, including those of the old subflow.
    pub(super) fn waiting_in_all(&self, v: &View) -> u64 {
        if !self.has_old_subflow() {
            return self.waiting_in(v) + self.overdue(v);
        }
        let (n, ended) = left(self);
        n as u64 + if ended { self.waiting_in(v) } else { 0 }
    }

    /// Reads from the old subflow, so that one call gets its bytes and the ring's after them, as from one stream.
    /// `Err`: this is the call's result. `Ok`: the number of bytes that were read, and the ring is next.
    #[cold]
    pub(super) fn read_before(&self, dst: &mut Iov<'_>, peek: bool) -> core::result::Result<usize, Result<usize>> {
        let mut got = 0;
        while self.has_old_subflow() {
            match self.read_old_subflow(dst, peek) {
                None => break,
                Some(Ok(n)) => {
                    got += n;
                    if n == 0 || dst.left() == 0 {
                        return Err(Ok(got));
                    }
                    if peek {
                        return if left(self) == (n, true) { Ok(n) } else { Err(Ok(n)) };
                    }
                }
                Some(Err(e)) => {
                    if got > 0 && e != Errno::AGAIN {
                        self.error.store(e.0, Ordering::Release);
                    }
                    return Err(if got > 0 { Ok(got) } else { Err(e) });
                }
            }
        }
        Ok(got)
    }

    /// Discards up to `n` bytes of the old subflow.
    #[cold]
    pub(super) fn discard_before(&self, n: usize) -> usize {
        let _using = self.using();
        // tcp(7): with MSG_TRUNC the kernel discards without a buffer.
        let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
        match raw::recv(self.old_subflow_fd(), core::ptr::null_mut(), n, flags) {
            Ok(k) if k > 0 => {
                self.count_read(k);
                k
            }
            _ => 0,
        }
    }

    /// Whether the old subflow is readable; `None`: it has ended.
    #[cold]
    pub(super) fn old_subflow_ready(&self) -> Option<bool> {
        let v = libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
        match self.read_old_subflow(&mut Iov::one(&v), true)? {
            Err(Errno::AGAIN) => Some(false),
            _ => Some(true),
        }
    }
}
