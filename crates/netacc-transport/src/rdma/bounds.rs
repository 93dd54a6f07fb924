//! Limits of the messages in flight on a queue pair. The code that makes queue pairs, counts credits and assembles
//! messages has to agree on them.

/// Largest number of receives that a side may have.
pub(super) const MOST: u16 = 16;
/// Largest number of messages in flight. It is one less than a power of two: a driver's ring has one place more than it
/// takes requests, and is rounded up to such a power.
pub(super) const SENDS: usize = 15;
/// Largest number of completions of a queue pair that may wait in the completion queue.
pub(super) const COMPLETIONS: usize = SENDS + MOST as usize;
/// Length (bytes) of the longest message that goes inline.
pub(super) const LONGEST_INLINE: usize = 96;
