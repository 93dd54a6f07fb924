//! How long a thread waits for what peers have promised by a word in shared memory and not sent yet.

use core::cell::Cell;
use netacc_sys::time;

/// Time (ns) of one fork for waits in vain, for all peers of our own user. What a peer promises it sends within
/// microseconds, unless it loses its processor just then: that takes some time slices of a loaded machine. One
/// connection and thousands of them get equal time, since a program's fork is not to take seconds; for a wait that was
/// not in vain nothing is taken off, since a peer that keeps its word is slow because it is one of many, and no byte is
/// to be lost then.
const OWN: u64 = 150_000_000;
/// Time (ns) of one fork for all peers of other users, which may promise what they like: each wait counts.
const OTHERS: u64 = 10_000_000;
/// Time (ns) of one departure, which waits for one peer of our own user: at stake is a connection that both ends use.
const OWN_ALONE: u64 = 500_000_000;

/// What is left of the time, in ns.
#[derive(Debug)]
pub struct Patience {
    own: Cell<u64>,
    others: Cell<u64>,
}

impl Patience {
    /// The patience of one fork, with all its connections.
    pub fn of_a_fork() -> Patience {
        Patience { own: Cell::new(OWN), others: Cell::new(OTHERS) }
    }

    /// The patience of an operation on one connection.
    pub(super) fn of_one() -> Patience {
        Patience { own: Cell::new(OWN_ALONE), others: Cell::new(OTHERS) }
    }

    /// Calls `wait` with the time until which it may wait. `wait` returns whether it was not in vain.
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
    fn many_that_are_silent_take_no_longer_than_one() {
        for (trusted, limit) in [(true, OWN), (false, OTHERS)] {
            let patience = Patience::of_a_fork();
            let first = time::now();
            let mut waits = 0;
            for _ in 0..1_000 {
                patience.wait(trusted, |until| {
                    while time::now() < until {
                        waits += 1;
                    }
                    false
                });
            }
            let took = time::now() - first;
            assert!(waits > 0 && took >= limit, "{took}");
            // Nothing is left then, however long the thread had no processor meanwhile.
            assert!(patience.wait(trusted, |until| until <= time::now()));
        }
    }

    #[test]
    fn only_peers_of_our_own_user_are_waited_for_again() {
        for (trusted, expected) in [(true, OWN), (false, 0)] {
            let patience = Patience::of_a_fork();
            patience.wait(trusted, |until| {
                while time::now() < until {}
                true
            });
            let left = if trusted { patience.own.get() } else { patience.others.get() };
            assert_eq!(left, expected);
        }
    }
}
