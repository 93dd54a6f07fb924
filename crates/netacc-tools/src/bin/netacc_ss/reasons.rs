//! Why connections are not on a faster transport, in words.

use std::collections::BTreeSet;

use netacc_stats::{Reason, Transport};
use netacc_stats_reader::{Known, Sock};
use netacc_tools::terminal::{Style, paragraph};

/// The reason to show for a socket: none while it is on a fast transport.
pub(crate) fn of(sock: &Sock) -> Option<Known<Reason>> {
    let fast = sock.transport.get().is_some_and(Transport::is_fast);
    (!fast && sock.reason != Known::Is(Reason::None)).then_some(sock.reason)
}

/// The name of a reason by its number; `?` and the number for one that a newer library knows.
pub(crate) fn name(number: u32) -> String {
    Reason::from_u32(number).map_or_else(|| format!("?{number}"), |reason| reason.name().to_owned())
}

/// How often each reason occurred, by its number; those that did not are left out.
pub(crate) fn occurred(counts: &[u64]) -> impl Iterator<Item = (u32, u64)> {
    (0..).zip(counts.iter().copied()).filter(|(_, count)| *count != 0)
}

/// Appends a sentence for each reason that occurs.
pub(crate) fn explain(reasons: impl IntoIterator<Item = Reason>, style: Style, out: &mut String) {
    let reasons: BTreeSet<Reason> = reasons.into_iter().collect();
    let mut gap = "\n";
    for reason in reasons {
        let head = format!("{gap}{}: ", style.paint("33", reason.name()));
        paragraph(&head, reason.sentence(), reason.name().len() + 2, style.width, out);
        gap = "";
    }
}
