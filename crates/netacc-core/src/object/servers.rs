//! How many processes serve a listener, in memory that a process shares with those that it forks.
//!
//! A program that forks may be one server whose children never accept (PostgreSQL, a shell), or several servers of one
//! listener (Apache, nginx). Only the latter must leave to each other what one of them cannot take at once. So each process
//! counts itself when it accepts, or waits, at the listener for the first time. A process that ends stays counted: then
//! the others do without being alone what they would do beside it.

use crate::object::family;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use netacc_sys::SharedCell;

/// A process that accepts and has forked so often is taken for one that forks for each connection, and accepts the next one
/// itself.
const FORKS_WATCHED: u32 = 8;

/// A listener's view of the processes that serve it.
#[derive(Debug)]
pub struct Servers {
    /// The number of them; none before the first fork, or if no word was left.
    count: family::Word,
    /// Not 0 once this process is one of them.
    counted: AtomicU32,
    /// The number when this process last told its clients.
    announced: AtomicU32,
    /// Number of forks since the program began to accept, up to [`FORKS_WATCHED`].
    forks: SharedCell<u32>,
    /// The descriptor that this process accepted last, plus 1; 0: none since its last fork. Threads that accept at once
    /// store theirs in any order: each is as good.
    newest: AtomicI32,
    /// Not 0 if processes that do not descend from this one may serve the listener, too.
    unknown: SharedCell<u32>,
}

impl Servers {
    /// Begins with a listener that no process has served.
    pub(crate) fn begin(&self) {
        self.count.forget();
        self.counted.store(0, Ordering::Relaxed);
        self.announced.store(0, Ordering::Relaxed);
        self.forks.set(0);
        self.newest.store(0, Ordering::Relaxed);
        self.unknown.set(0);
    }

    /// Notes that the listener came from another program, so that any number of processes may serve it.
    pub(crate) fn are_unknown(&self) {
        self.unknown.set(1);
    }

    /// To be called before a fork, whose child may serve the listener as well. A thread that counts itself meanwhile may not
    /// be counted, which matters as little as a process that has ended.
    pub(crate) fn before_fork(&self) {
        self.count.take(self.counted.load(Ordering::Relaxed));
    }

    /// Whether the listener came from another program.
    pub(crate) fn is_unknown(&self) -> bool {
        self.unknown.get() != 0
    }

    /// Notes that this process has accepted a connection.
    #[inline]
    pub(crate) fn note_accepted(&self, fd: i32) {
        self.newest.store(fd + 1, Ordering::Relaxed);
    }

    /// To be called before a fork of a process that accepts. Returns whether the child may begin to serve the listener in its
    /// place. A process that still has the connection that it accepted last (`is_open`) makes the child for that one, and
    /// accepts the next one itself.
    pub(crate) fn may_begin_to_serve(&self, is_open: impl FnOnce(i32) -> bool) -> bool {
        if matches!(self.newest.swap(0, Ordering::Relaxed), fd if fd != 0 && is_open(fd - 1)) {
            return false;
        }
        // Two threads that fork at once may count one fork, which makes no difference.
        let forks = self.forks.get();
        self.forks.set((forks + 1).min(FORKS_WATCHED));
        forks < FORKS_WATCHED
    }

    /// In the child of a fork: it has not served the listener.
    pub(crate) fn after_fork(&self) {
        self.counted.store(0, Ordering::Relaxed);
        self.newest.store(0, Ordering::Relaxed);
    }

    /// Counts this process, which is about to accept or to wait at the listener.
    #[inline]
    pub(crate) fn serve(&self) {
        if self.counted.load(Ordering::Relaxed) == 0 {
            self.count_ourselves();
        }
    }

    #[cold]
    fn count_ourselves(&self) {
        if self.counted.swap(1, Ordering::Relaxed) == 0
            && let Some(count) = self.count.get()
        {
            // Relaxed: the number stands for itself, and a thread that sees an old one sees the new one in its next call.
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether this process is one of them.
    pub(crate) fn include_this(&self) -> bool {
        self.counted.load(Ordering::Relaxed) != 0
    }

    /// Whether the number has changed since the last call.
    #[inline]
    pub(crate) fn has_changed(&self) -> bool {
        let Some(number) = self.number() else { return false };
        self.announced.load(Ordering::Relaxed) != number && self.announced.swap(number, Ordering::Relaxed) != number
    }

    /// Number of processes that serve the listener or have served it; `None`: it is not known.
    pub(crate) fn number(&self) -> Option<u32> {
        if self.is_unknown() {
            return None;
        }
        self.count.get().map(|count| count.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new() -> Servers {
        Servers {
            count: family::Word::none(),
            counted: AtomicU32::new(0),
            announced: AtomicU32::new(0),
            forks: SharedCell::<u32>::new(0),
            newest: AtomicI32::new(0),
            unknown: SharedCell::<u32>::new(0),
        }
    }

    /// What a fork copies.
    fn child_of(s: &Servers) -> Servers {
        let child = new();
        child.count.copy(&s.count);
        child.counted.store(s.counted.load(Ordering::Relaxed), Ordering::Relaxed);
        child.after_fork();
        child
    }

    #[test]
    fn each_process_that_serves_is_counted_once() {
        let parent = new();
        assert_eq!(parent.number(), None);
        parent.before_fork();
        let (first, second) = (child_of(&parent), child_of(&parent));
        assert_eq!(parent.number(), Some(0));
        first.serve();
        first.serve();
        assert_eq!((parent.number(), second.number()), (Some(1), Some(1)));
        second.serve();
        assert_eq!(first.number(), Some(2));
    }

    #[test]
    fn a_process_that_forks_again_and_again_goes_on_serving() {
        let parent = new();
        let forks = || parent.may_begin_to_serve(|_| true);
        assert!((0..FORKS_WATCHED).all(|_| forks()));
        assert!(!forks() && !forks());
        parent.begin();
        assert!(forks(), "another listener");
    }

    #[test]
    fn a_process_that_forks_for_a_connection_accepts_the_next_one() {
        let parent = new();
        parent.note_accepted(5);
        assert!(!parent.may_begin_to_serve(|fd| fd == 5));
        assert!(parent.may_begin_to_serve(|_| true), "it has accepted none since its last fork");
        parent.note_accepted(5);
        assert!(parent.may_begin_to_serve(|fd| fd != 5), "it has closed the one that it accepted");
    }

    #[test]
    fn a_parent_that_served_before_the_fork_is_counted() {
        let parent = new();
        parent.serve();
        parent.before_fork();
        let child = child_of(&parent);
        assert_eq!(child.number(), Some(1));
        parent.before_fork();
        child.serve();
        assert_eq!(parent.number(), Some(2));
        assert_ne!(child_of(&new()).number(), parent.number(), "another listener has a word of its own");
    }
}
