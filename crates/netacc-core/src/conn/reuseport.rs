//! A client's view of several listeners on one port (`SO_REUSEPORT`).
//!
//! The kernel assigns each connection to one of them by a hash of both addresses and ports. It can be asked which one
//! it would choose (`owner::listener_cookie`), which takes some microseconds. So a client asks with arbitrary ports
//! until it knows the listeners, and then rotates over them. If some of them are not accelerated, it asks for each
//! connection, with that connection's port, so that each listener gets the same share as by TCP.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use netacc_sys::cpu;

/// Number of the first connects to a port that ask the kernel. With eight listeners, the probability that one stays
/// unknown is 10 %.
const FIRST: usize = 32;
/// Number of the first connects that ask if only one listener was seen. With two listeners, the probability that both
/// were seen is 99 %.
const FIRST_OF_ONE: usize = 8;
/// Time (ticks, some 10 milliseconds) after which later connects ask the kernel again.
const RECHECK: u64 = 30_000_000;
/// Number of members that are distinguished. Further members get connects, too, but not as evenly.
const MEMBERS: usize = 64;

/// A client's knowledge of the listeners on a port.
#[derive(Debug)]
pub struct ReuseportGroup {
    /// When the kernel was last asked, in ticks.
    asked_at: AtomicU64,
    /// The last 32 answers as bits, the newest lowest: 1 means a listener that is not accelerated.
    plain: AtomicU32,
}

/// Whether any group ever had a member that is not accelerated; if not, no look-up is needed.
static MIXED: AtomicU32 = AtomicU32::new(0);

impl ReuseportGroup {
    /// Resets the group to one of which nothing is known.
    pub fn reset(&self) {
        self.asked_at.store(0, Ordering::Relaxed);
        self.plain.store(0, Ordering::Relaxed);
    }

    /// Whether the kernel has to be asked for this connect, the `turn`th, if `members` members are known.
    pub fn due(&self, turn: usize, members: usize) -> bool {
        let now = cpu::ticks();
        let early = turn < if members > 1 { FIRST } else { FIRST_OF_ONE };
        let due = early || now.wrapping_sub(self.asked_at.load(Ordering::Relaxed)) >= RECHECK;
        if due {
            self.asked_at.store(now, Ordering::Relaxed);
        }
        due
    }

    /// Notes whether the kernel's choice was a listener that is not accelerated.
    pub fn on_kernel_choice(&self, plain: bool) {
        let all = self.plain.load(Ordering::Relaxed) << 1 | u32::from(plain);
        self.plain.store(all, Ordering::Relaxed);
        if plain {
            MIXED.store(1, Ordering::Relaxed);
        }
    }

    /// Whether some members are not accelerated.
    pub fn is_mixed(&self) -> bool {
        self.plain.load(Ordering::Relaxed) != 0
    }
}

/// The set of members to which there are links.
#[derive(Debug)]
pub struct Members {
    cookies: [u64; MEMBERS],
    count: usize,
}

impl Default for Members {
    fn default() -> Members {
        Members { cookies: [0; MEMBERS], count: 0 }
    }
}

impl Members {
    /// Adds a member unless it is there.
    pub fn add(&mut self, cookie: u64) {
        let known = self.cookies.iter().take(self.count).any(|c| *c == cookie);
        if !known && let Some(place) = self.cookies.get_mut(self.count) {
            *place = cookie;
            self.count += 1;
        }
    }

    /// Number of members.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The member that serves the `turn`th connect.
    pub fn at(&self, turn: usize) -> Option<u64> {
        self.cookies.get(turn.checked_rem(self.count)?).copied()
    }
}

/// Whether any group is known to be mixed.
pub(super) fn any_mixed() -> bool {
    MIXED.load(Ordering::Relaxed) != 0
}

/// A source port for a question to the kernel that works with any port.
pub fn any_port() -> u16 {
    // The low bits of a clock that ticks faster than questions can follow each other.
    (cpu::ticks() as u16).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> ReuseportGroup {
        ReuseportGroup { asked_at: AtomicU64::new(0), plain: AtomicU32::new(0) }
    }

    #[test]
    fn many_are_looked_for_longer_than_one() {
        let g = fresh();
        assert!((0..FIRST_OF_ONE).all(|turn| g.due(turn, 1)));
        assert!(!g.due(FIRST_OF_ONE, 1), "asked a moment ago");
        assert!(g.due(FIRST_OF_ONE, 2));
        g.asked_at.store(cpu::ticks().wrapping_sub(RECHECK), Ordering::Relaxed);
        assert!(g.due(1000, 1));
        assert!(!g.due(1001, 1));
    }

    #[test]
    fn a_group_is_mixed_until_32_answers_say_otherwise() {
        let g = fresh();
        assert!(!g.is_mixed());
        g.on_kernel_choice(true);
        for _ in 0..31 {
            g.on_kernel_choice(false);
            assert!(g.is_mixed());
        }
        g.on_kernel_choice(false);
        assert!(!g.is_mixed());
    }

    #[test]
    fn members_have_their_turns() {
        let mut m = Members::default();
        assert_eq!((m.count(), m.at(7)), (0, None));
        for cookie in [5, 9, 5, 7] {
            m.add(cookie);
        }
        assert_eq!(m.count(), 3);
        assert_eq!([0, 1, 2, 3].map(|turn| m.at(turn)), [Some(5), Some(9), Some(7), Some(5)]);
        (0..200).for_each(|cookie| m.add(cookie));
        assert_eq!(m.count(), MEMBERS);
    }
}
