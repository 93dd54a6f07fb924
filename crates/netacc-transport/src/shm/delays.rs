//! Limits of the time for which a word that a peer of another user can write may delay the threads of this process.

use crate::shm::procfs;
use crate::timeouts;
use core::sync::atomic::{AtomicU64, Ordering};
use netacc_ring::Violation;
use netacc_sys::{raw, time};

const STRANGER_DELAY_AT_ONCE: u64 = time::ns(timeouts::STRANGER_DELAY_AT_ONCE);
/// Divisor of the elapsed time: the part of it for which a connection may delay our threads in the long run.
const PART: u64 = 100;
const STRANGER_DELAY_UNCHECKED: u64 = time::ns(timeouts::STRANGER_DELAY_UNCHECKED);

/// The time that a connection has lost, stored as the time ([`time::now`]) at which it will be compensated.
#[derive(Debug)]
pub(super) struct Delays(AtomicU64);

/// A wait for another sharer, which is named by a word that the peer can write.
#[derive(Default)]
pub(super) struct Wait {
    begun: u64,
    counted: u64,
    checked: bool,
}

/// The action for a word that names another sharer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Check the word again.
    Check,
    /// The process has ended: clear the word.
    Clear,
}

impl Delays {
    /// Adds `ns` that were just lost. False: the limit is exceeded.
    fn count(&self, now: u64, ns: u64) -> bool {
        // Relaxed: if the two directions count at once, one count may be lost, which does no harm.
        let from = self.0.load(Ordering::Relaxed).max(now.saturating_sub(STRANGER_DELAY_AT_ONCE * PART));
        let until = from.saturating_add(ns.saturating_mul(PART));
        self.0.store(until, Ordering::Relaxed);
        until <= now
    }

    /// Determines the action for a word that named `pid`, of a connection whose peer is another user. `is_sharer` tells
    /// whether the process is one of our sharers.
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
        // A stopped process (SIGSTOP, a debugger, a frozen control group) may continue at any time.
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
        // After a long time without delays no more is allowed at once than before.
        assert!(!delays.count(9000 * S, STRANGER_DELAY_AT_ONCE + 1));
    }
}
