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

/// A number that a limit of ours keeps small, as a `u32`: an index of one of our own tables, or a number of bytes,
/// buffers, requests or connections. A number that a peer wrote has been looked up or compared before.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "every table has at most 2^16 entries, and the sizes of the configuration and of buffers are u32"
)]
pub(crate) const fn small(n: usize) -> u32 {
    debug_assert!(n <= u32::MAX as usize);
    n as u32
}

/// The lower half of a word.
#[inline]
pub(crate) const fn low_half(word: u64) -> u32 {
    (word & 0xffff_ffff) as u32
}
