//! The number of processes that have one side of a connection after forks, in a word that only they share.
//!
//! Each fork counts a further holder before the process exists, and each process counts itself out after its last access to
//! the connection. So the number is never too low, and a process that finds itself alone may use the ring without turns. It
//! may be too high, since a process that is killed, or that executes another program, does not count itself out.

use crate::sync::{AtomicU64, Ordering};

/// The part of the lower half that is the number of holders.
const NUMBER: u64 = MARK - 1;
/// The bit of the lower half that [`HoldersWord::mark`] sets.
const MARK: u64 = 1 << 31;
/// The lower half.
const LOWER: u64 = (1 << 32) - 1;

/// The word: the generation of its use in the upper half, a mark and the number of holders in the lower. The number is 0
/// while no connection uses the word.
#[derive(Debug, Default)]
pub struct HoldersWord(AtomicU64);

/// A word as it was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldersCount(u64);

impl HoldersCount {
    /// Number of processes that hold the connection.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0 & NUMBER
    }

    /// Whether any of them has set the mark.
    #[must_use]
    pub const fn is_marked(self) -> bool {
        self.0 & MARK != 0
    }

    /// The generation of this use of the word.
    #[must_use]
    pub const fn generation(self) -> u64 {
        self.0 >> 32
    }

    /// The word that no connection uses, with the next generation.
    #[must_use]
    pub const fn free(self) -> HoldersCount {
        HoldersCount((self.generation().wrapping_add(1) & LOWER) << 32)
    }

    /// A new use of the word by a process and the one that it is about to fork.
    #[must_use]
    pub const fn taken(self) -> HoldersCount {
        HoldersCount(self.free().0 | 2)
    }

    const fn more(self) -> HoldersCount {
        HoldersCount(if self.number() == NUMBER { self.0 | MARK } else { self.0 + 1 })
    }

    const fn less(self) -> HoldersCount {
        if self.number() <= 1 { self.free() } else { HoldersCount(self.0 - 1) }
    }

    const fn marked(self) -> HoldersCount {
        HoldersCount(self.0 | MARK)
    }
}

impl HoldersWord {
    /// Loads the word. Acquire: what a process did before it counted itself out is seen with the lower number.
    #[inline]
    #[must_use]
    pub fn look(&self) -> HoldersCount {
        HoldersCount(self.0.load(Ordering::Acquire))
    }

    /// Replaces the word unless it has changed since it was loaded. Release: what this process did with the connection is
    /// seen with the new number. Acquire: what others did before is seen here.
    pub fn replace(&self, from: HoldersCount, to: HoldersCount) -> bool {
        self.0.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Changes the count of this generation. False: the word is used for another connection, or for none.
    fn change(&self, generation: u64, to: impl Fn(HoldersCount) -> HoldersCount) -> bool {
        loop {
            let count = self.look();
            if count.generation() != generation || count.number() == 0 {
                return false;
            }
            if self.replace(count, to(count)) {
                return true;
            }
        }
    }

    /// Counts a further holder, before it exists.
    pub fn more(&self, generation: u64) -> bool {
        self.change(generation, HoldersCount::more)
    }

    /// Counts a holder out, after its last access to the connection.
    pub fn less(&self, generation: u64) -> bool {
        self.change(generation, HoldersCount::less)
    }

    /// Sets the mark.
    pub fn mark(&self, generation: u64) -> bool {
        self.change(generation, HoldersCount::marked)
    }

    /// Ends this use of the word, however many processes are counted.
    pub fn end(&self, generation: u64) -> bool {
        self.change(generation, HoldersCount::free)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn holders_come_and_go() {
        let word = HoldersWord::default();
        assert_eq!(word.look().number(), 0);
        assert!(word.replace(word.look(), word.look().taken()));
        let generation = word.look().generation();
        assert_eq!((word.look().number(), generation), (2, 1));
        assert!(word.more(generation) && word.less(generation) && word.mark(generation));
        assert_eq!((word.look().number(), word.look().is_marked()), (2, true));
        assert!(word.less(generation) && word.less(generation));
        assert_eq!(word.look(), HoldersCount(2 << 32));
        assert!(!word.less(generation) && !word.more(generation) && !word.more(2));
    }

    #[test]
    fn a_full_count_never_comes_down_to_one() {
        let word = HoldersWord::default();
        assert!(word.replace(word.look(), HoldersCount(1 << 32 | NUMBER)));
        assert!(word.more(1));
        assert_eq!((word.look().number(), word.look().is_marked()), (NUMBER, true));
    }
}
