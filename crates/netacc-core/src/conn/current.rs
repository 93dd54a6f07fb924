//! Whether links lead to the listener that has their address now.
//!
//! A link outlives the listener that it was made for if the server says nothing of its end: a hostile one gives the port
//! back and goes on taking the connects of its clients, which are for the process that has the port then. So the kernel
//! is asked whose the port is (`owner::listener`), and the link is used only for the listener of the answer, told by
//! its cookie.
//!
//! The question costs more than all else in a connect. A server of our own user or of root could do as much to its client in
//! other ways, so an answer about such a server holds for a moment. The moment is short: a program that gives a port
//! from one server to the next has to tell the client, and in that time the answer has become too old. An answer about
//! a server of another user never holds for a second connect.

use core::sync::atomic::Ordering;
use netacc_sys::cpu;
use netacc_transport::shm::Link;
use netacc_transport::shm::owner::Word;

/// Time (ticks, some 100 microseconds) for which an answer holds.
const HOLDS: u64 = 300_000;

/// Whether a link may be used without a question.
pub(super) fn is_confirmed(link: &Link) -> bool {
    let age = cpu::ticks().wrapping_sub(link.confirmed.load(Ordering::Relaxed));
    link.trusts_peer() && age < HOLDS
}

/// The kernel has just answered with `word`, for this link among others: whether the link leads to a listener that may
/// still have the address. Members of a group (`SO_REUSEPORT`) have it together, and the kernel names one of them each
/// time.
pub(super) fn heed(link: &Link, word: Word) -> bool {
    let (member, listener) = (link.member.load(Ordering::Relaxed), link.listener.load(Ordering::Relaxed));
    match word {
        Word::Listener(found) if found.cookie == listener => {
            confirm(link);
            true
        }
        Word::Listener(_) => member != 0,
        Word::Nobody => false,
        Word::Untold => {
            if link.trusts_peer() {
                confirm(link);
            }
            true
        }
    }
}

/// Notes that the kernel has just confirmed this link.
pub(super) fn confirm(link: &Link) {
    link.confirmed.store(cpu::ticks(), Ordering::Relaxed);
}
