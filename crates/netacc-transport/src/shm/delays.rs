//! How long a connection may keep our threads waiting by a word that a peer of another user can write.

use crate::shm::procfs;
use crate::timeouts;
use core::sync::atomic::{AtomicU64, Ordering};
use netacc_ring::Violation;
use netacc_sys::{raw, time};

const STRANGER_DELAY_AT_ONCE: u64 = time::ns(timeouts::STRANGER_DELAY_AT_ONCE);
/// And over time one part in so many.
const PART: u64 = 100;
const STRANGER_DELAY_UNCHECKED: u64 = time::ns(timeouts::STRANGER_DELAY_UNCHECKED);

/// The time that was lost, kept as the time at which all of it will have been made up for.
#[derive(Debug)]
pub(super) struct Delays(AtomicU64);

/// A wait for another of our sharers, which is named by a word that the peer can write.
#[derive(Default)]
pub(super) struct Wait {
    begun: u64,
    counted: u64,
    checked: bool,
}

/// What to do with such a word.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Look again.
    Check,
    /// The process has ended: clear it.
    Clear,
}

impl Delays {
    /// Counts `ns` that were lost just now; false: it is too much.
    fn count(&self, now: u64, ns: u64) -> bool {
        // Relaxed: of two directions that count at once one may be forgotten.
        let from = self.0.load(Ordering::Relaxed).max(now.saturating_sub(STRANGER_DELAY_AT_ONCE * PART));
        let until = from.saturating_add(ns.saturating_mul(PART));
        self.0.store(until, Ordering::Relaxed);
        until <= now
    }

    /// What to do about the word, which named `pid` when it was looked at, of a connection whose peer is another user.
    /// `is_sharer` tells whether the process belongs to our sharers.
    pub(super) fn wait_for(&self, pid: u32, wait: &mut Wait, is_sharer: impl Fn() -> bool) -> Result<Next, Violation> {
        let now = time::now();
        if wait.begun == 0 {
            (wait.begun, wait.counted) = (now, now);
        }
        let within = self.count(now, now - wait.counted);
        wait.counted = now;
        let long = now - wait.begun > STRANGER_DELAY_UNCHECKED;
        if long && !wait.checked {
            wait.checked = true;
            if procfs::is_zombie(pid) {
                return Ok(Next::Clear);
            }
            if !is_sharer() {
                return Err(Violation);
            }
        }
        // A process that is stopped (SIGSTOP, a debugger, a frozen group) will go on some day.
        let stopped = || procfs::is_stopped(pid) && is_sharer();
        if !(within || stopped()) {
            return Err(Violation);
        }
        if long {
            time::pause()
        } else {
            raw::sched_yield()
        }
        Ok(Next::Check)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_connection_may_cost_a_little_at_once_and_less_over_time() {
        let delays = Delays(AtomicU64::new(0));
        assert!(delays.count(1000 * S, STRANGER_DELAY_AT_ONCE / 2));
        assert!(delays.count(1000 * S, STRANGER_DELAY_AT_ONCE / 2));
        assert!(!delays.count(1000 * S, 1));
        // A second later a hundredth of it may be lost.
        assert!(delays.count(1001 * S, S / PART - 1));
        assert!(!delays.count(1001 * S, S / PART));
        // However long nothing was lost, no more than at once.
        assert!(!delays.count(9000 * S, STRANGER_DELAY_AT_ONCE + 1));
    }
}
