//! When the kernel's queue of a listener has its turn.
//!
//! accept(2) takes the connects of links first, since these need no system call. Where some always wait, as at a server
//! with fewer processes than clients, a connection in the kernel's queue would never be accepted. So the kernel is asked
//! now and then how many connections wait there, and these are accepted before any connect over a link that is younger
//! than the answer. Between the queues, connections so come in the order in which they were made, up to the time between
//! two such questions.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use netacc_sys::{cpu, raw, time};

/// Time (ticks, about a millisecond) between two questions. The answer takes the kernel half a microsecond.
const ASKED_AGAIN: u64 = 3_000_000;

/// Offset of `tcpi_unacked` in `struct tcp_info` (linux/tcp.h): of a listener it is the number of connections that wait
/// to be accepted.
const WAITING_AT: usize = 24;

/// What the kernel last said of its queue. The words are hints: two threads that accept at once may both change them,
/// and then the turn comes a little earlier or later.
#[derive(Debug)]
pub struct KernelTurn {
    /// Number of the counted connections that have not been accepted yet.
    left: AtomicU32,
    /// Time ([`time::now`]) at which they were counted.
    counted_at: AtomicU64,
    /// Time ([`cpu::ticks`]) of the last question.
    asked: AtomicU64,
}

impl KernelTurn {
    /// For a listener that begins.
    pub(super) fn start(&self) {
        self.end();
        self.asked.store(cpu::ticks(), Ordering::Relaxed);
    }

    /// If connections wait at the kernel's listener `fd`: when they were counted.
    #[inline]
    pub(super) fn counted(&self, fd: i32) -> Option<u64> {
        if self.left.load(Ordering::Relaxed) == 0 {
            let now = cpu::ticks();
            if now.wrapping_sub(self.asked.load(Ordering::Relaxed)) < ASKED_AGAIN {
                return None;
            }
            self.asked.store(now, Ordering::Relaxed);
            self.count(fd)?;
        }
        Some(self.counted_at.load(Ordering::Relaxed))
    }

    #[cold]
    fn count(&self, fd: i32) -> Option<()> {
        let waiting = waiting_at(fd).filter(|n| *n != 0)?;
        self.counted_at.store(time::now(), Ordering::Relaxed);
        self.left.store(waiting, Ordering::Relaxed);
        Some(())
    }

    /// Notes that a connection of the kernel's was accepted.
    pub fn accepted(&self) {
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    }

    /// Notes that none waits there: other processes may have accepted what was counted.
    pub fn end(&self) {
        self.left.store(0, Ordering::Relaxed);
    }
}

/// Number of connections that wait at the kernel's listener `fd`, if it tells.
fn waiting_at(fd: i32) -> Option<u32> {
    let (mut info, mut len) = ([0u8; WAITING_AT + 4], WAITING_AT as u32 + 4);
    raw::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len).ok()?;
    Some(u32::from_ne_bytes(info.get(WAITING_AT..)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn the_turn_lasts_until_what_was_counted_is_accepted() {
        let l = TcpListener::bind("127.0.0.1:0").unwrap();
        let turn = KernelTurn { left: AtomicU32::new(0), counted_at: AtomicU64::new(0), asked: AtomicU64::new(0) };
        assert_eq!(turn.counted(l.as_raw_fd()), None);
        let clients = [(); 2].map(|()| TcpStream::connect(l.local_addr().unwrap()).unwrap());
        assert_eq!(waiting_at(l.as_raw_fd()), Some(2));
        turn.asked.store(0, Ordering::Relaxed);
        let at = turn.counted(l.as_raw_fd());
        assert!(at.is_some_and(|at| at <= time::now()));
        turn.accepted();
        assert_eq!(turn.counted(l.as_raw_fd()), at);
        turn.accepted();
        turn.asked.store(cpu::ticks(), Ordering::Relaxed);
        assert_eq!(turn.counted(l.as_raw_fd()), None, "asked a moment ago");
        drop(clients);
    }
}
