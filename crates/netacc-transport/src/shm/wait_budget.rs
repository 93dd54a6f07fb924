//! Time budget of waits for messages that peers have announced by a word in shared memory, but not sent yet.

use crate::timeouts;
use core::cell::Cell;
use netacc_sys::time;

const FORK_PROMISES_OWN_USER: u64 = time::ns(timeouts::FORK_PROMISES_OWN_USER);
const PROMISES_OTHER_USERS: u64 = time::ns(timeouts::PROMISES_OTHER_USERS);
const SWITCH_PROMISE: u64 = time::ns(timeouts::SWITCH_PROMISE);

/// The remaining time (ns) for peers of our own user or root, and for others.
#[derive(Debug)]
pub struct WaitBudget {
    own: Cell<u64>,
    others: Cell<u64>,
}

impl WaitBudget {
    /// The budget of one fork, for all its connections.
    pub fn of_a_fork() -> WaitBudget {
        WaitBudget { own: Cell::new(FORK_PROMISES_OWN_USER), others: Cell::new(PROMISES_OTHER_USERS) }
    }

    /// The budget of an operation on one connection.
    pub(super) fn of_one() -> WaitBudget {
        WaitBudget { own: Cell::new(SWITCH_PROMISE), others: Cell::new(PROMISES_OTHER_USERS) }
    }

    /// Calls `wait` with the time ([`time::now`]) until which it may wait. `wait` returns whether it was successful.
    /// The time that it took is deducted, except for a successful wait for a trusted peer.
    pub(super) fn wait(&self, trusted: bool, wait: impl FnOnce(u64) -> bool) -> bool {
        let left = if trusted { &self.own } else { &self.others };
        let began = time::now();
        let came = wait(began.saturating_add(left.get()));
        if !(came && trusted) {
            left.set(left.get().saturating_sub(time::now().saturating_sub(began)));
        }
        came
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_silent_peers_take_no_longer_than_one() {
        for (trusted, limit) in [(true, FORK_PROMISES_OWN_USER), (false, PROMISES_OTHER_USERS)] {
            let budget = WaitBudget::of_a_fork();
            let first = time::now();
            let mut waits = 0;
            for _ in 0..1_000 {
                budget.wait(trusted, |until| {
                    while time::now() < until {
                        waits += 1;
                    }
                    false
                });
            }
            let took = time::now() - first;
            assert!(waits > 0 && took >= limit, "{took}");
            // Nothing is left of the budget then, however long the thread had to wait for a processor.
            assert!(budget.wait(trusted, |until| until <= time::now()));
        }
    }

    #[test]
    fn only_peers_of_our_own_user_are_waited_for_again() {
        for (trusted, expected) in [(true, FORK_PROMISES_OWN_USER), (false, 0)] {
            let budget = WaitBudget::of_a_fork();
            budget.wait(trusted, |until| {
                while time::now() < until {}
                true
            });
            let left = if trusted { budget.own.get() } else { budget.others.get() };
            assert_eq!(left, expected);
        }
    }
}
