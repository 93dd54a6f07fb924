//! Receives in the order in which messages take them.

use crate::rdma::bounds::MOST;

/// Receives in their order, each large or not; at most [`MOST`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Line {
    /// One bit for each, from the lowest on, set if it is large. Bits beyond are 0.
    large: u32,
    len: u16,
}

const _: () = assert!((MOST as u32) < u32::BITS);

impl Line {
    pub fn len(self) -> u16 {
        self.len
    }

    /// Adds `count` more, as far as there is room for them.
    pub fn push(&mut self, count: u16, large: bool) {
        let end = self.len.saturating_add(count).min(MOST);
        if large {
            self.large |= below(end) & !below(self.len);
        }
        self.len = end;
    }

    /// Removes the first `count`.
    pub fn pop(&mut self, count: u16) {
        let count = count.min(self.len);
        self.large >>= count;
        self.len -= count;
    }

    /// Whether the first is large.
    pub fn first(self) -> bool {
        self.large & 1 != 0
    }

    /// Number of receives at the beginning that are like the first.
    pub fn run(self) -> u16 {
        let run = if self.first() { self.large.trailing_ones() } else { self.large.trailing_zeros() };
        // A run has at most 32 bits, so the compiler removes the check of the conversion.
        u16::try_from(run).map_or(self.len, |run| self.len.min(run))
    }
}

fn below(bit: u16) -> u32 {
    (1 << bit) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn it_is_a_queue(steps in proptest::collection::vec((any::<bool>(), 0..MOST + 4, any::<bool>()), 0..60)) {
            let (mut line, mut queue) = (Line::default(), VecDeque::new());
            for (push, count, large) in steps {
                if push {
                    line.push(count, large);
                    queue.extend(vec![large; usize::from(count.min(MOST - u16::try_from(queue.len()).unwrap()))]);
                } else {
                    line.pop(count);
                    queue.drain(..queue.len().min(count.into()));
                }
                let first = queue.front().copied().unwrap_or(false);
                let run = queue.iter().take_while(|large| **large == first).count();
                let found = (line.len().into(), line.first(), line.run().into());
                prop_assert_eq!(found, (queue.len(), first, run));
            }
        }
    }
}
