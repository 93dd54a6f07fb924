//! Checks that a link leads to the listener that has the address now.
//!
//! A link stays usable after its listener has ended unless the server announces the end. A hostile server could release
//! the port and go on accepting connects that are meant for the port's next owner. So the kernel is asked which
//! listener has the port (`owner::listener`), and the link is used only if the cookie of that listener is its own.
//!
//! The question costs more than the rest of a connect. A server of our own user or of root could harm its client in
//! other ways as well, so an answer about such a server is reused for a short time. A program that passes a port from
//! one server to the next has to tell the client, which takes longer. An answer about a server of another user is never
//! reused.

use core::sync::atomic::Ordering;
use netacc_sys::cpu;
use netacc_transport::shm::Link;
use netacc_transport::shm::owner::Word;

/// Time (ticks, some 100 microseconds) for which an answer is reused.
const HOLDS: u64 = 300_000;

/// Whether a link may be used without asking the kernel.
pub(super) fn is_confirmed(link: &Link) -> bool {
    let age = cpu::ticks().wrapping_sub(link.listener.confirmed.load(Ordering::Relaxed));
    link.peer.is_trusted() && age < HOLDS
}

/// Evaluates the kernel's answer `word`: whether this link leads to a listener that may still have the address. The
/// members of a reuseport group share it, and the kernel names one of them each time.
pub(super) fn heed(link: &Link, word: Word) -> bool {
    let (member, listener) =
        (link.listener.member.load(Ordering::Relaxed), link.listener.cookie.load(Ordering::Relaxed));
    match word {
        Word::Listener(found) if found.cookie == listener => {
            confirm(link);
            true
        }
        Word::Listener(_) => member != 0,
        Word::Nobody => false,
        Word::Untold => {
            if link.peer.is_trusted() {
                confirm(link);
            }
            true
        }
    }
}

/// Notes that the kernel has just confirmed this link.
pub(super) fn confirm(link: &Link) {
    link.listener.confirmed.store(cpu::ticks(), Ordering::Relaxed);
}
