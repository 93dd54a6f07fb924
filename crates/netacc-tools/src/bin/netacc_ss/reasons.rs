//! Why connections are not on a faster transport, in words.

use std::collections::BTreeSet;
use std::fmt::Write;

use netacc_stats::reader::{Known, Sock};
use netacc_stats::{Reason, Transport};

/// The reason to show for a socket: none while it is on a fast transport.
pub(crate) fn of(sock: &Sock) -> Option<Known<Reason>> {
    let fast = matches!(sock.transport.get(), Some(Transport::Shm | Transport::Rdma));
    (!fast && sock.reason != Known::Is(Reason::None)).then_some(sock.reason)
}

/// Appends a sentence for each reason that occurs.
pub(crate) fn explain(reasons: impl IntoIterator<Item = Reason>, out: &mut String) {
    let reasons: BTreeSet<Reason> = reasons.into_iter().collect();
    let mut gap = "\n";
    for reason in reasons {
        let _ = writeln!(out, "{gap}{reason}: {}", reason.sentence());
        gap = "";
    }
}
