//! Operations on kernel sockets for a side that leaves the rings.

use crate::timeouts;
use core::sync::atomic::{AtomicI32, Ordering};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{raw, reserved_fds};

/// Time (ms) for which [`send_all`] and [`empty`] wait for one socket; see [`timeouts::SWITCH_DRAIN`].
pub(super) const SWITCH_DRAIN: u32 = timeouts::ms(timeouts::SWITCH_DRAIN);

/// Stores a descriptor (+ 1) and closes the one that was there.
pub(super) fn replace(cell: &AtomicI32, new: i32) {
    let old = cell.swap(new, Ordering::AcqRel);
    if old > 0 {
        reserved_fds::close(old - 1);
    }
}

/// Makes the close of `fd` reset the connection (SO_LINGER with a time of 0, socket(7)).
pub fn reset_at_close(fd: i32) {
    linger(fd, [1, 0]);
}

/// Makes the reader of `local_end` find a reset when `peer_end`, which no process is going to read, is closed. UNIX
/// sockets have no such option; there the reader finds a reset if a byte that `local_end` has sent is left unread, so
/// one is sent.
pub(super) fn reset_pair(local_end: i32, peer_end: i32) {
    reset_at_close(peer_end);
    let _ = raw::send(local_end, [0u8].as_ptr(), 1, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
}

/// Takes [`reset_at_close`] back: the close of `fd` ends the stream.
pub fn end_at_close(fd: i32) {
    linger(fd, [0, 0]);
}

fn linger(fd: i32, how: [i32; 2]) {
    let _ = raw::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, how.as_ptr().cast(), 8);
}

/// Waits for events of `fd`. False: none occurred within `budget` milliseconds.
fn wait_for(fd: i32, events: i16, budget: u32) -> Result<bool> {
    let mut p = libc::pollfd { fd, events, revents: 0 };
    let mut ts = libc::timespec { tv_sec: i64::from(budget / 1000), tv_nsec: i64::from(budget % 1000) * 1_000_000 };
    match raw::ppoll(&raw mut p, 1, &raw mut ts, core::ptr::null()) {
        Ok(n) => Ok(n > 0),
        Err(Errno::INTR) => Ok(true),
        Err(e) => Err(e),
    }
}

/// Copies all bytes of the kernel socket `from` to `to`. False: the end of the stream did not arrive; `budget` (ms)
/// limits each wait.
pub(super) fn empty(from: i32, to: i32, budget: u32) -> Result<bool> {
    let mut buf = [0u8; 4096];
    loop {
        match raw::recv(from, buf.as_mut_ptr(), buf.len(), libc::MSG_DONTWAIT) {
            Ok(0) => return Ok(true),
            Ok(n) => send_all(to, buf.as_ptr(), n)?,
            Err(Errno::AGAIN) => {
                if budget == 0 || !wait_for(from, libc::POLLIN, budget)? {
                    return Ok(false);
                }
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Sends all `n` bytes. A side leaves its ring only once it has checked that the socket has room for the unread bytes while
/// nobody reads from it ([`crate::shm::switch::Left`]). So this waits only for bytes of an old subflow beyond that. If the
/// reader of the socket is gone, the bytes are discarded, as the kernel would do.
pub(super) fn send_all(fd: i32, mut p: *const u8, mut n: usize) -> Result<()> {
    while n > 0 {
        match raw::send(fd, p, n, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
            Ok(k) => {
                p = p.wrapping_add(k);
                n = n.saturating_sub(k);
            }
            Err(Errno::AGAIN) => {
                if !wait_for(fd, libc::POLLOUT, SWITCH_DRAIN)? {
                    return Err(Errno::CONNRESET);
                }
            }
            Err(Errno::INTR) => {}
            Err(Errno::PIPE | Errno::CONNRESET) => return Ok(()),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
