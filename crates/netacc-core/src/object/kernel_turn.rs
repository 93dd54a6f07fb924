//! When the kernel's queue of a listener has its turn.
//!
//! accept(2) takes the connects of links first, since these need no system call. Where some always wait, as at a server
//! with fewer processes than clients, a connection in the kernel's queue would never be accepted. So the kernel is
//! asked now and then how many connections wait there, and how far the queue of each link was filled at that moment is
//! noted ([`Listener::is_kernels_turn`](super::listener::Listener::is_kernels_turn)). What the kernel counted is
//! accepted after the connects up to there, and before later ones. No word of a client says which is which, since a
//! client that lies must not keep others waiting.

use core::sync::atomic::{AtomicU32, Ordering};
use netacc_sys::{SharedCell, cpu, raw};
use netacc_transport::shm::slots::SLOTS;

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
    /// Not 0 where they were counted before the listener had a rendezvous, so that they come before all connects of links.
    before_links: SharedCell<u32>,
    /// Time ([`cpu::ticks`]) of the last question.
    asked: SharedCell<u64>,
}

/// The kernel's queue, as [`KernelTurn::look`] finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KernelQueue {
    /// As far as is known, no connection waits.
    Empty,
    /// Connections wait that were counted by an earlier call.
    Counted,
    /// Connections wait, and this call has counted them.
    CountedNow,
}

impl KernelTurn {
    /// For a listener that begins. `waiting` connections were in the kernel's queue before clients could find its rendezvous.
    pub(super) fn start(&self, waiting: u32) {
        self.left.store(waiting, Ordering::Relaxed);
        self.before_links.set(waiting);
        self.asked.set(cpu::ticks());
    }

    /// Whether connections wait in the kernel's queue that come before the connects of a link which is taken up now.
    pub(crate) fn precedes_links(&self) -> bool {
        self.left.load(Ordering::Relaxed) != 0 && self.before_links.get() != 0
    }

    /// Whether connections wait at the kernel's listener `fd`.
    #[inline]
    pub(super) fn look(&self, fd: i32) -> KernelQueue {
        if self.left.load(Ordering::Relaxed) != 0 {
            return KernelQueue::Counted;
        }
        let now = cpu::ticks();
        if now.wrapping_sub(self.asked.get()) < ASKED_AGAIN {
            return KernelQueue::Empty;
        }
        self.asked.set(now);
        self.count(fd)
    }

    /// Counts the connections that wait at the kernel's listener `fd`, whenever that was done last.
    pub(crate) fn count_now(&self, fd: i32) {
        self.count(fd);
    }

    #[cold]
    fn count(&self, fd: i32) -> KernelQueue {
        let waiting = waiting_at(fd).unwrap_or(0);
        self.before_links.set(0);
        self.left.store(waiting, Ordering::Relaxed);
        if waiting == 0 { KernelQueue::Empty } else { KernelQueue::CountedNow }
    }

    /// Notes that a connection of the kernel's was accepted.
    pub fn accepted(&self) {
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    }

    /// Notes that none waits there: other processes may have accepted what was counted.
    pub fn end(&self) {
        // The word is read first: it is 0 nearly always, and other threads read the line.
        if self.left.load(Ordering::Relaxed) != 0 {
            self.left.store(0, Ordering::Relaxed);
        }
    }
}

/// Whether the connect at position `at` of a link's queue was there at a count that found the queue filled up to
/// position `filled`. A client that claims more than fits has queued none.
pub(crate) fn precedes_count(at: u64, filled: u64) -> bool {
    (1..=SLOTS as u64).contains(&filled.wrapping_sub(at))
}

/// Number of connections that wait at the kernel's listener `fd`, if it tells.
pub(crate) fn waiting_at(fd: i32) -> Option<u32> {
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
    fn a_connect_precedes_a_count_if_it_was_queued_then() {
        let slots = SLOTS as u64;
        assert!(
            precedes_count(0, 1) && precedes_count(0, slots) && precedes_count(7, 9) && precedes_count(u64::MAX, 3)
        );
        // Queued later, or all of the counted ones were taken, or the position is forged.
        assert!(!precedes_count(0, 0) && !precedes_count(9, 9) && !precedes_count(10, 9));
        assert!(!precedes_count(0, slots + 1) && !precedes_count(5, u64::MAX));
    }

    #[test]
    fn the_turn_lasts_until_what_was_counted_is_accepted() {
        let l = TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = l.as_raw_fd();
        let turn = KernelTurn {
            left: AtomicU32::new(0),
            before_links: SharedCell::<u32>::new(0),
            asked: SharedCell::<u64>::new(0),
        };
        assert_eq!(turn.look(fd), KernelQueue::Empty);
        let clients = [(); 2].map(|()| TcpStream::connect(l.local_addr().unwrap()).unwrap());
        assert_eq!(waiting_at(fd), Some(2));
        turn.asked.set(0);
        assert_eq!([turn.look(fd), turn.look(fd)], [KernelQueue::CountedNow, KernelQueue::Counted]);
        turn.accepted();
        assert_eq!(turn.look(fd), KernelQueue::Counted);
        turn.accepted();
        turn.asked.set(cpu::ticks());
        assert_eq!(turn.look(fd), KernelQueue::Empty, "asked a moment ago");
        turn.start(2);
        assert!(turn.precedes_links() && turn.look(fd) == KernelQueue::Counted);
        turn.count_now(fd);
        assert!(!turn.precedes_links(), "connects may have come before the later count");
        turn.start(1);
        turn.accepted();
        assert!(!turn.precedes_links());
        turn.start(0);
        turn.asked.set(0);
        assert_eq!(turn.look(fd), KernelQueue::CountedNow);
        turn.end();
        turn.asked.set(cpu::ticks());
        assert_eq!(turn.look(fd), KernelQueue::Empty);
        drop(clients);
    }
}
