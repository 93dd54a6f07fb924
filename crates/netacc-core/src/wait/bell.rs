//! What wakes the threads that sleep on a listener outside of epoll when another thread has changed what they would have
//! to sleep on.
//!
//! - One thread takes up a client's link. The others slept on the rendezvous, at which nobody waits any more: the kernel
//!   lets them sleep on, and they are not registered with the link's queue. Without a bell they would not hear of the
//!   client's further connects while the first thread serves its connection.
//! - One thread carries out an operator's request ([`crate::operator::requests`]) that brings a listener back. The others
//!   sleep on the kernel's listener and would hear of no client in shared memory.
//! - One thread closes the number on which another one sleeps, and the file goes on under a number of ours.
//!
//! So a thread takes a bell before it looks at the links and paths of its sockets, sleeps on the bell as well, and looks
//! again when it rings.

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering, fence};
use netacc_sys::{reserved_fds, time};
use netacc_transport::{WaitSet, wakers};

/// Number of threads that can have a bell at once. A further one looks again every [`BETWEEN_LOOKS`].
const BELLS: usize = 256;

/// Time (ns) after which a thread without a bell looks again.
const BETWEEN_LOOKS: u64 = 100_000_000;

struct Cell {
    /// The waker (+ 1), which stays for the next thread; 0: none was made yet.
    waker: AtomicI32,
    /// Not 0 while a thread has the bell.
    taken: AtomicU32,
}

netacc_sys::tables! {
    static CELLS: [Cell; BELLS] = [const { Cell { waker: AtomicI32::new(0), taken: AtomicU32::new(0) } }; BELLS];
}

/// A thread's bell. `None` in it: no waker is left for this thread.
pub(crate) struct Bell(Option<&'static Cell>);

impl Bell {
    /// To be called before the thread looks at the links and paths of its sockets.
    pub(crate) fn take() -> Bell {
        // Looked at first: many threads may have bells, and hardly any word is free when it was not so a moment ago.
        let free = |c: &&Cell| {
            c.taken.load(Ordering::Relaxed) == 0
                && c.taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let Some(cell) = CELLS.iter().find(free) else { return Bell(None) };
        if cell.waker.load(Ordering::Relaxed) == 0 {
            match wakers::create() {
                // Release: `ring_all` sees the waker whole. A ring in between is not lost, since this thread has not
                // looked yet.
                Ok(fd) => cell.waker.store(fd + 1, Ordering::Release),
                Err(_) => {
                    cell.taken.store(0, Ordering::Release);
                    return Bell(None);
                }
            }
        }
        let bell = Bell(Some(cell));
        bell.silence();
        // A thread that rings changes the links or paths first and then looks for bells; this one takes a bell first and
        // then looks at them. With a fence between the two, in both threads, one sees the other.
        fence(Ordering::SeqCst);
        bell
    }

    fn waker(&self) -> i32 {
        self.0.map_or(-1, |cell| cell.waker.load(Ordering::Relaxed) - 1)
    }

    /// Adds the bell to the set on which the thread is about to sleep.
    pub(crate) fn watch(&self, set: &mut WaitSet) {
        match self.waker() {
            fd if fd >= 0 => drop(set.add(fd, libc::POLLIN)),
            _ => set.wake_at(time::now().saturating_add(BETWEEN_LOOKS)),
        }
    }

    /// To be called after a sleep, before the thread looks again.
    pub(crate) fn silence(&self) {
        if self.waker() >= 0 {
            wakers::silence(self.waker());
        }
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        if let Some(cell) = self.0 {
            cell.taken.store(0, Ordering::Release);
        }
    }
}

/// Wakes all threads that have a bell. To be called after links or paths have changed.
pub(crate) fn ring_all() {
    fence(Ordering::SeqCst);
    for cell in CELLS.iter().filter(|c| c.taken.load(Ordering::Relaxed) != 0) {
        let fd = cell.waker.load(Ordering::Acquire) - 1;
        if fd >= 0 {
            wakers::ring(fd);
        }
    }
}

/// Called in the child of a fork: the bells are those of the parent's threads.
pub fn after_fork() {
    for cell in &CELLS {
        // What is 0 already is not written, since every page that the child writes to is copied.
        if cell.waker.load(Ordering::Relaxed) != 0 {
            reserved_fds::close(cell.waker.swap(0, Ordering::Relaxed) - 1);
        }
        if cell.taken.load(Ordering::Relaxed) != 0 {
            cell.taken.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_sys::time::Deadline;

    fn rings(bell: &Bell) -> bool {
        let mut set = WaitSet::new();
        bell.watch(&mut set);
        set.sleep(Deadline::Now, core::ptr::null()).unwrap() == 1
    }

    #[test]
    fn a_ring_wakes_every_thread_that_has_a_bell_and_no_later_one() {
        let bells = [Bell::take(), Bell::take()];
        assert!(!bells.iter().any(rings));
        ring_all();
        assert!(bells.iter().all(rings));
        bells.iter().for_each(Bell::silence);
        assert!(!bells.iter().any(rings));
        ring_all();
        drop(bells);
        assert!(!rings(&Bell::take()), "the ring was for the thread that had the bell before");
    }
}
