//! Ready sets: one bit per connection of a link whose consumer should check it.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Number of slots per link: one cache line of bits.
pub const SLOTS: usize = if cfg!(loom) { 64 } else { 512 };
const WORDS: usize = SLOTS / 64;

/// The ready set of one consumer (an epoll instance) on one link. Bits are set by the producer's side and taken by the
/// consumer's; `armed` is set by the consumer and taken by the producer's side.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct ReadySet {
    words: [AtomicU64; WORDS],
    /// 1: the consumer sleeps or does not check the bits, and its waker must be written at the next bit.
    armed: AtomicU32,
}

impl ReadySet {
    /// A hint whether the consumer sleeps.
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) != 0
    }

    /// Sets the bit of `slot` and returns whether the waker must be written.
    ///
    /// The caller has published what the bit announces with a full fence. If the bit is already set, the consumer takes
    /// it (SeqCst) later in the total order, so it will see what was published; otherwise the fetch_or is the fence
    /// between our bit and the load of `armed`.
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

    /// A hint whether the bit of `slot` is set; the bit may be taken at any moment.
    #[inline]
    pub fn has(&self, slot: usize) -> bool {
        self.words.get(slot / 64).is_some_and(|w| w.load(Ordering::Relaxed) & 1 << (slot % 64) != 0)
    }

    /// Takes all bits set so far. The caller checks the connections *afterwards*.
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

    /// Requests that the waker be written from now on. True: it is safe to sleep. False: there are bits already, and
    /// the caller should take them (the set stays armed, which costs at most one needless wake-up).
    pub fn arm(&self) -> bool {
        // A SeqCst exchange, then the load of the bits: the producer sets a bit and then loads `armed`. One of the two
        // sees the other.
        self.armed.swap(1, Ordering::SeqCst);
        !self.any()
    }

    /// Withdraws the request to write the waker.
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
