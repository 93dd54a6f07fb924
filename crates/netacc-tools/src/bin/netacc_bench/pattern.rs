//! The bytes of a stream that is compared.

/// The number of bytes after which the stream repeats itself. It is a prime, so a byte that is lost, doubled or moved
/// by the size of any buffer is noticed.
const PERIOD: usize = 1_048_573;

/// A period and the beginning of the next one: no piece of the stream has to be put together.
pub(crate) struct Pattern(Vec<u8>);

impl Pattern {
    /// For pieces of at most `longest` bytes.
    pub(crate) fn new(longest: usize) -> Self {
        // Marsaglia's xorshift64: cheap, and the same at both ends.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let period: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_be_bytes()[3]
        })
        .take(PERIOD)
        .collect();
        Self(period.iter().copied().cycle().take(PERIOD + longest).collect())
    }

    /// The bytes from `position` of the stream on; fewer than `length` if that is more than was said to be the longest.
    pub(crate) fn at(&self, position: u64, length: usize) -> &[u8] {
        // Less than the period, which fits.
        let start = (position % PERIOD as u64) as usize;
        self.0.get(start..self.0.len().min(start + length)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_those_of_one_stream() {
        let pattern = Pattern::new(300);
        let end = PERIOD as u64 - 100;
        assert_eq!([pattern.at(end, 100), pattern.at(PERIOD as u64, 200)].concat(), pattern.at(end, 300));
        assert_ne!(pattern.at(0, 300), pattern.at(1, 300));
        assert_eq!(pattern.at(end + 100 - 1, 9999).len(), 301, "no more than there is");
    }
}
