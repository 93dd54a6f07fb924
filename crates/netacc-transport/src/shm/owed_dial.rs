//! What a connection owes its peer's liveness socket: a dial ([`super::redial`]) that could not be made yet.

use crate::num::low_half;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use netacc_sys::time;

/// Number of endpoints that owe a dial, and of links whose control socket is stalled.
static OWED: AtomicU32 = AtomicU32::new(0);

/// Counts one debt more.
pub(super) fn begin() {
    OWED.fetch_add(1, Ordering::Relaxed);
}

/// Counts one debt less.
pub(super) fn end() {
    OWED.fetch_sub(1, Ordering::Relaxed);
}

/// The time in units of 17 ms.
pub(super) fn tick() -> u32 {
    low_half(time::now() >> 24)
}

/// Whether anything is owed.
#[inline]
pub fn is_owed() -> bool {
    OWED.load(Ordering::Relaxed) != 0
}

/// A dial that could not be made yet. A thread that sees an old value makes one attempt more than needed, so all
/// accesses are Relaxed.
#[derive(Debug, Default)]
pub(super) struct OwedDial {
    /// The generation of its connection in the upper half, and since when in the lower one, in units of [`tick`]; 0: none
    /// is owed.
    word: AtomicU64,
    /// Time of the last attempt to make it, in units of [`tick`].
    last: AtomicU32,
}

impl OwedDial {
    /// Notes that the connection of this generation owes a dial from now on.
    pub(super) fn owe(&self, generation: u32) {
        let word = u64::from(generation) << 32 | u64::from(tick());
        self.last.store(tick(), Ordering::Relaxed);
        if self.word.swap(word, Ordering::Relaxed) == 0 {
            begin();
        }
    }

    /// Ends the debt that has this word. False: another thread has done so.
    pub(super) fn settle(&self, word: u64) -> bool {
        let settled = self.word.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if settled {
            end();
        }
        settled
    }

    /// Ends the debt, if there is one: the link ends, and nothing of it is looked at any more.
    pub(super) fn forget(&self) {
        if self.word.load(Ordering::Relaxed) != 0 && self.word.swap(0, Ordering::Relaxed) != 0 {
            end();
        }
    }

    /// Whether the connection of this generation owes a dial.
    #[inline]
    pub(super) fn is_owed_by(&self, generation: u32) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        word != 0 && (word >> 32) as u32 == generation
    }

    /// The word of a dial that is owed, once per [`tick`].
    pub(super) fn take_turn(&self) -> Option<u64> {
        let word = self.word.load(Ordering::Relaxed);
        (word != 0 && self.last.swap(tick(), Ordering::Relaxed) != tick()).then_some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debt_ends_once() {
        let debt = OwedDial::default();
        debt.forget();
        assert!(!debt.is_owed_by(3) && debt.take_turn().is_none());
        debt.owe(3);
        debt.owe(3);
        assert!(is_owed() && debt.is_owed_by(3) && !debt.is_owed_by(4));
        let word = debt.word.load(Ordering::Relaxed);
        assert!(debt.settle(word) && !debt.settle(word) && !debt.is_owed_by(3));
        debt.owe(4);
        debt.forget();
        debt.forget();
        assert!(!debt.is_owed_by(4));
        assert!(OWED.load(Ordering::Relaxed) < u32::MAX / 2, "no debt is ended twice");
    }
}
