//! Conversions between integer types in which nothing is lost.

/// A constant as a `u32`. A constant that does not fit ends the compilation, so this is for constant expressions only.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the assertion ends the compilation of a constant that does not fit"
)]
pub(crate) const fn constant(n: usize) -> u32 {
    assert!(n <= u32::MAX as usize);
    n as u32
}

/// The index of an entry in one of our own tables as a `u32`: a slot, a waker, an engine, a queue pair, a connection on
/// one. A number that a peer wrote has been looked up in its table before.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "every table has a limit, and that of connections, 2^16, is the largest"
)]
pub(crate) const fn index(at: usize) -> u32 {
    debug_assert!(at <= u32::MAX as usize);
    at as u32
}

/// A number of bytes, buffers, requests or connections of one queue pair or device as a `u32`. The configuration limits
/// each of them, or the caller has compared it with the size of a buffer before.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the limits and sizes of the configuration are u32, and a buffer is not larger than they say"
)]
pub(crate) const fn count(n: usize) -> u32 {
    debug_assert!(n <= u32::MAX as usize);
    n as u32
}

/// The lower half of a word.
#[inline]
pub(crate) const fn low_half(word: u64) -> u32 {
    (word & 0xffff_ffff) as u32
}
