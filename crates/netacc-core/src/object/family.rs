//! Words in memory that a process shares with those that it forks, for what all of them have to know.

use core::sync::atomic::{AtomicU32, Ordering};
use netacc_sys::{AtomicRef, mem};

/// Number of words in the shared memory: the first one says how many of the others are in use.
const WORDS: usize = 1024;

/// The words. A process that goes astray in its memory can only harm processes of its own program there.
static SHARED: AtomicRef<[AtomicU32; WORDS]> = AtomicRef::none();

/// A word of the family, once it has been taken. It is never given back.
#[derive(Debug)]
pub(crate) struct Word(AtomicRef<AtomicU32>);

impl Word {
    /// None yet.
    pub(crate) const fn none() -> Word {
        Word(AtomicRef::none())
    }

    pub(crate) fn get(&self) -> Option<&'static AtomicU32> {
        self.0.load()
    }

    /// Takes a word unless there is one, and stores `first` in it. There is none afterwards if no memory or no word is left.
    pub(crate) fn take(&self, first: u32) {
        if self.get().is_some() {
            return;
        }
        let Some((used, cells)) = SHARED.or_make(|| mem::shared().ok()).and_then(|words| words.split_first()) else {
            return;
        };
        // Relaxed: each process gets another number, whichever order they come in.
        let next =
            used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < cells.len() as u32).then_some(n + 1));
        if let Some(cell) = next.ok().and_then(|n| cells.get(n as usize)) {
            cell.store(first, Ordering::Relaxed);
            self.0.store(Some(cell));
        }
    }

    /// Forgets the word, which others may go on using.
    pub(crate) fn forget(&self) {
        self.0.set(None);
    }

    /// Shares the word of another one, as a fork does.
    #[cfg(test)]
    pub(crate) fn copy(&self, of: &Word) {
        self.0.store(of.get());
    }
}
