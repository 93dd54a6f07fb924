//! Words in memory that a process shares with those that it forks, for what all of them have to know.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use netacc_sys::mem;

/// Number of words in the shared memory: the first one says how many of the others are in use.
const WORDS: usize = 1024;

/// The words. A process that goes astray in its memory can only harm processes of its own program there.
static SHARED: AtomicPtr<[AtomicU32; WORDS]> = AtomicPtr::new(core::ptr::null_mut());

#[allow(unsafe_code)]
fn words() -> Option<&'static [AtomicU32; WORDS]> {
    let known = SHARED.load(Ordering::Acquire);
    if known.is_null() {
        let made = mem::map_shared(size_of::<[AtomicU32; WORDS]>()).ok()?.cast().as_ptr();
        // A mapping that comes second is left unused; it happens once, if at all.
        let _ = SHARED.compare_exchange(core::ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
    }
    // SAFETY: the mapping consists of atomics, for which zero is valid, and is never removed.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }
}

/// A word of the family, once it has been taken. It is never given back.
#[derive(Debug)]
pub(crate) struct Word(AtomicPtr<AtomicU32>);

impl Word {
    /// None yet.
    pub(crate) const fn none() -> Word {
        Word(AtomicPtr::new(core::ptr::null_mut()))
    }

    #[allow(unsafe_code)]
    pub(crate) fn get(&self) -> Option<&'static AtomicU32> {
        // SAFETY: null or a word of the mapping, which is never removed. Acquire: see `take`.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Takes a word unless there is one, and stores `first` in it. There is none afterwards if no memory or no word is left.
    pub(crate) fn take(&self, first: u32) {
        if self.get().is_some() {
            return;
        }
        let Some((used, cells)) = words().and_then(|words| words.split_first()) else { return };
        // Relaxed: each process gets another number, whichever order they come in.
        let next =
            used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < cells.len() as u32).then_some(n + 1));
        if let Some(cell) = next.ok().and_then(|n| cells.get(n as usize)) {
            cell.store(first, Ordering::Relaxed);
            // Release: a thread that finds the word finds its first value.
            self.0.store(core::ptr::from_ref(cell).cast_mut(), Ordering::Release);
        }
    }

    /// Forgets the word, which others may go on using.
    pub(crate) fn forget(&self) {
        self.0.store(core::ptr::null_mut(), Ordering::Relaxed);
    }

    /// Shares the word of another one, as a fork does.
    #[cfg(test)]
    pub(crate) fn copy(&self, of: &Word) {
        self.0.store(of.0.load(Ordering::Acquire), Ordering::Release);
    }
}
