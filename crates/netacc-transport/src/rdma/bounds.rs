//! Bounds of what is under way on a queue pair: what makes queue pairs, counts credits and puts messages together has to
//! agree on them.

/// Most receives that a side may have.
pub(super) const MOST: u16 = 16;
/// Most messages that may be under way. It is one less than a power of two: a driver's ring has one place more than it
/// takes requests, and is rounded up to such a power.
pub(super) const SENDS: usize = 15;
/// Most completions of a queue pair that may wait to be taken.
pub(super) const COMPLETIONS: usize = SENDS + MOST as usize;
/// Length (bytes) of the longest message that goes inline.
pub(super) const LONGEST_INLINE: usize = 96;
