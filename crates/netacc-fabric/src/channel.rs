//! Event channels, and the descriptors of this library.

use core::ffi::c_int;
use rustix::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::collections::VecDeque;

/// The lowest number of a descriptor of this library, out of the way of programs that rely on small numbers.
pub const LOWEST_FD: i32 = 600;

/// Gives a descriptor a number that is out of the way.
pub fn raised(fd: OwnedFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(&fd, LOWEST_FD).unwrap_or(fd)
}

/// A queue of waiting events of one kind, with a descriptor that is readable while an event waits.
pub struct Channel<T> {
    /// The address of the descriptor's number in the C structure; the program may change the number.
    fd: *const c_int,
    events: VecDeque<T>,
}

/// A new descriptor for a channel.
pub fn descriptor() -> Option<c_int> {
    use rustix::event::{EventfdFlags, eventfd};
    Some(eventfd(0, EventfdFlags::CLOEXEC).ok()?.into_raw_fd())
}

impl<T> Channel<T> {
    /// A channel whose descriptor is at `fd`.
    pub fn new(fd: *const c_int) -> Channel<T> {
        Channel { fd, events: VecDeque::new() }
    }

    fn borrowed(&self) -> BorrowedFd<'_> {
        // SAFETY: the structure lives as long as the channel, and its descriptor is closed only with the channel.
        unsafe { BorrowedFd::borrow_raw((*self.fd).max(0)) }
    }

    /// Adds an event.
    pub fn push(&mut self, event: T) {
        self.events.push_back(event);
        let _ = rustix::io::write(self.borrowed(), &1u64.to_ne_bytes());
    }

    /// Takes the first event.
    pub fn pop(&mut self) -> Option<T> {
        let event = self.events.pop_front();
        self.settle();
        event
    }

    /// Removes the events for which `gone` is true, and returns them.
    pub fn retain(&mut self, gone: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut gone = gone;
        let (out, kept): (Vec<T>, Vec<T>) = self.events.drain(..).partition(|e| gone(e));
        self.events = kept.into();
        self.settle();
        out
    }

    /// Makes the descriptor unreadable if no event waits.
    fn settle(&mut self) {
        if self.events.is_empty() && ready(self.borrowed(), 0) {
            let _ = rustix::io::read(self.borrowed(), &mut [0u8; 8]);
        }
    }

    /// Whether a caller that finds no event has to wait: so it is unless the descriptor is non-blocking.
    pub fn blocks(&self) -> bool {
        rustix::fs::fcntl_getfl(self.borrowed()).is_ok_and(|f| !f.contains(rustix::fs::OFlags::NONBLOCK))
    }

    /// The descriptor's number at this moment.
    pub fn number(&self) -> c_int {
        // SAFETY: the C structure lives as long as the channel.
        unsafe { *self.fd }
    }
}

/// Waits until the descriptor is readable, at most `ms` milliseconds (-1: for ever), and returns whether it is.
pub fn ready(fd: BorrowedFd<'_>, ms: i64) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let timeout = Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
    poll(&mut fds, (ms >= 0).then_some(&timeout)).is_ok_and(|n| n > 0)
}
