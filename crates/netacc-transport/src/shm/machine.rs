//! State machines whose states are bits of a word that threads share. Each has one table of its transitions.

use core::fmt::{self, Debug, Display};
use core::sync::atomic::{AtomicU32, Ordering};

/// A machine: the enum of its states, the bits that stand for each of them, and the table of its transitions.
pub(super) trait Machine: Copy + Eq + Debug + 'static {
    /// The events that change the state.
    type Event: Copy + Eq + Debug + 'static;

    /// Name of the machine in log lines.
    const NAME: &'static str;

    /// Every transition as state, event and next state. An event that leads from a state to the same one may occur in
    /// it and changes nothing.
    const TABLE: &'static [(Self, Self::Event, Self)];

    /// Mask of the machine's bits in the word.
    const BITS: u32;

    /// The state that the word stands for.
    fn decode(word: u32) -> Self;

    /// The bits that stand for the state.
    fn encode(self) -> u32;

    /// The state after the event; `None`: the event does not occur in this state. An event that has led to the state
    /// may occur again, if another thread has seen the same cause, and changes nothing.
    fn after(self, event: Self::Event) -> Option<Self> {
        let row = Self::TABLE.iter().find(|(from, e, _)| (*from, *e) == (self, event));
        let has_happened = || Self::TABLE.iter().any(|(_, e, to)| (*e, *to) == (event, self));
        row.map(|(.., to)| *to).or_else(|| has_happened().then_some(self))
    }
}

/// The side of a connection that a log line is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) link: u32,
    pub(super) slot: u32,
}

impl Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "link {}, slot {}", self.link, self.slot)
    }
}

/// Applies the event to the machine whose bits are in `word`, and sets the bits `also` at the same time. Returns the
/// previous word. Apart from the beginning and the end of a connection, all changes of a state are made here.
pub(super) fn happen<M: Machine>(word: &AtomicU32, place: Place, event: M::Event, also: u32) -> u32 {
    let next = |old: u32| {
        let from = M::decode(old);
        let to = from.after(event);
        debug_assert!(to.is_some(), "{place}: {}: {event:?} while {from:?}", M::NAME);
        let new = to.map_or(old, |to| old & !M::BITS | to.encode()) | also;
        (new != old).then_some(new)
    };
    // AcqRel: a thread that sees the new state sees the writes that led to it.
    match word.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) {
        Ok(old) => {
            let (from, to) = (M::decode(old), M::decode(old).after(event));
            if let Some(to) = to.filter(|to| *to != from) {
                netacc_log::log!(Trace, "{place}: {}: {from:?} to {to:?} ({event:?})", M::NAME);
            }
            old
        }
        Err(old) => old,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
pub(super) mod tests {
    use super::*;

    /// The table as a Mermaid diagram, for the documents.
    fn diagram<M: Machine>() -> String {
        let rows = M::TABLE.iter().map(|(from, event, to)| format!("    {from:?} --> {to:?}: {event:?}\n"));
        format!("```mermaid\nstateDiagram-v2\n{}```\n", rows.collect::<String>())
    }

    /// Checks that the document shows the machine's table, that the states differ in their bits, and that no pair of
    /// state and event has two rows.
    pub(crate) fn check<M: Machine>(document: &str) {
        let path = format!("{}/../../docs/internals/{document}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap();
        let expected = diagram::<M>();
        assert!(text.contains(&expected), "{document} has to show {}:\n{expected}", M::NAME);
        for (n, (from, event, to)) in M::TABLE.iter().enumerate() {
            for state in [from, to] {
                assert_eq!(M::decode(state.encode()), *state);
                assert_eq!(state.encode() & !M::BITS, 0, "{state:?}");
            }
            assert_eq!(from.after(*event), Some(*to));
            let twice = M::TABLE.iter().skip(n + 1).any(|(f, e, _)| (f, e) == (from, event));
            assert!(!twice, "{from:?} {event:?}");
        }
    }
}
