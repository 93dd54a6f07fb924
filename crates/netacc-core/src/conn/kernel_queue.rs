//! Whether a connect of this process may still wait in the kernel's queue of a listener on this host.
//!
//! A listener that is accelerated has two kinds of queues: the kernel's, and one for each link. A server takes from the
//! links first, so a connect over a link would be accepted before an earlier one by TCP. A server that serves one
//! connection at a time would then wait for bytes on the later connection, and a client that uses the earlier one
//! first would wait for its answer: both for ever. So once a connect has gone by TCP, further ones to the same listener
//! do so as well, until the kernel's queue is empty. Where the kernel does not tell (it has no sock_diag(7)), the order
//! is not kept.

use crate::conn::beliefs::Beliefs;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, Ordering};
use netacc_stats::Reason;
use netacc_transport::shm::owner::{self, Owned, Word};
use netacc_transport::shm::rendezvous::destination;

const DESTINATIONS: usize = 64;

netacc_sys::tables! {
    /// Destinations to which a connect has gone by TCP. An entry that takes the place of another one costs the order of
    /// that one's connects, which matters to few programs.
    static USED: Beliefs<DESTINATIONS> = Beliefs::new();
}

/// Hint whether there is any entry, so that a connect of most programs needs one load only.
static ANY: AtomicBool = AtomicBool::new(false);

/// Notes that a connect to `dest` has just gone by TCP for this reason. It is not noted where further ones need not
/// follow: all connects of the process or to the destination go by TCP then, or the user asks for a share of them.
pub fn note_connect(dest: SocketAddr, reason: Reason) {
    use Reason::{Disabled, LinkLocal, OtherHost, PercentDraw, TcpFirst};
    if !matches!(reason, Disabled | LinkLocal | OtherHost | PercentDraw | TcpFirst) {
        note(SocketAddr::new(destination(dest.ip()), dest.port()));
    }
}

/// Notes that a connect to `dest` has just gone by TCP.
pub fn note(dest: SocketAddr) {
    USED.note(dest, 0);
    ANY.store(true, Ordering::Relaxed);
}

/// The destinations to which a connect has gone by TCP that may still wait.
pub fn noted() -> impl Iterator<Item = SocketAddr> {
    USED.all()
}

/// Whether a connect that was [noted](note) may still wait, so that another one to `dest`, an address of this host, has
/// to go by TCP.
pub fn holds_ours(dest: SocketAddr) -> bool {
    if !ANY.load(Ordering::Relaxed) || !USED.holds(dest, 0, u64::MAX) {
        return false;
    }
    let waits = listener(dest).is_some_and(|found| found.waiting > 0);
    if !waits {
        USED.forget(dest);
    }
    waits
}

/// The kernel's listener at `dest`, with the number of connections that wait there.
pub fn listener(dest: SocketAddr) -> Option<Owned> {
    match owner::listener(None, dest) {
        Word::Listener(found) => Some(found),
        Word::Nobody | Word::Untold => None,
    }
}

/// Called in the child of a fork: drops an entry that another thread of the parent was just changing.
pub fn after_fork() {
    USED.after_fork();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connect_by_tcp_is_waited_for_until_it_is_accepted() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = server.local_addr().unwrap();
        assert!(!holds_ours(at));
        let _client = TcpStream::connect(at).unwrap();
        assert!(!holds_ours(at), "it was not noted");
        note(at);
        assert!(holds_ours(at) && holds_ours(at));
        drop(server.accept().unwrap());
        assert!(!holds_ours(at));
        let _other = TcpStream::connect(at).unwrap();
        assert!(!holds_ours(at), "only the noted one counts");
    }
}
