//! A ready set: which connections of a link want their consumer's attention.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Connections per link: one cache line of bits.
pub const SLOTS: usize = if cfg!(loom) { 64 } else { 512 };
const WORDS: usize = SLOTS / 64;

/// One consumer's (an epoll's) view of a link. Bits are set by the producer's side and taken by the
/// consumer's; `armed` is set by the consumer and taken by the producer's side.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct ReadySet {
    words: [AtomicU64; WORDS],
    /// 1: the consumer sleeps (or does not look here) and must be rung on the next bit.
    armed: AtomicU32,
}

impl ReadySet {
    /// Whether the consumer sleeps, as far as one can see from here: a hint.
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) != 0
    }

    /// Sets the bit of `slot` and says whether the waker must be rung.
    ///
    /// The caller has published what the bit announces with a full fence. If the bit is found set,
    /// the consumer's taking of it (SeqCst) comes later in the total order, so it will see what was
    /// published; else the fetch_or is the fence between our bit and the look at `armed`.
    #[inline]
    pub fn set(&self, slot: usize) -> bool {
        let Some(word) = self.words.get(slot / 64) else {
            return false;
        };
        let bit = 1u64 << (slot % 64);
        if word.load(Ordering::SeqCst) & bit == 0 {
            word.fetch_or(bit, Ordering::SeqCst);
        }
        self.armed.load(Ordering::SeqCst) != 0 && self.armed.swap(0, Ordering::SeqCst) != 0
    }

    /// Whether the bit of `slot` is set: a hint, it may be taken at any moment.
    #[inline]
    pub fn has(&self, slot: usize) -> bool {
        self.words.get(slot / 64).is_some_and(|w| w.load(Ordering::Relaxed) & 1 << (slot % 64) != 0)
    }

    /// Takes all bits set so far. The caller looks at the connections *afterwards*.
    #[inline]
    pub fn take(&self) -> Taken {
        let mut bits = [0u64; WORDS];
        for (word, out) in self.words.iter().zip(bits.iter_mut()) {
            if word.load(Ordering::Relaxed) != 0 {
                *out = word.swap(0, Ordering::SeqCst);
            }
        }
        Taken { bits, word: 0 }
    }

    /// Whether any bit is set.
    #[inline]
    pub fn any(&self) -> bool {
        self.words.iter().any(|w| w.load(Ordering::SeqCst) != 0)
    }

    /// Asks to be rung from now on. True: it is safe to sleep; false: bits are there already and
    /// the caller should take them (it stays armed, which costs one needless ring at most).
    pub fn arm(&self) -> bool {
        // SeqCst exchange, then the look at the bits: the producer sets a bit, then looks at
        // `armed`. One of the two sees the other.
        self.armed.swap(1, Ordering::SeqCst);
        !self.any()
    }

    /// Stops being rung.
    pub fn disarm(&self) {
        self.armed.store(0, Ordering::SeqCst);
    }
}

/// The bits taken from a [`ReadySet`]: an iterator over slot numbers.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    bits: [u64; WORDS],
    word: usize,
}

impl Iterator for Taken {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        loop {
            let w = self.bits.get_mut(self.word)?;
            if *w == 0 {
                self.word += 1;
                continue;
            }
            let bit = w.trailing_zeros() as usize;
            *w &= *w - 1;
            return Some(self.word * 64 + bit);
        }
    }
}
