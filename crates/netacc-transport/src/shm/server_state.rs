//! What the server of a link has decided about new connects, as both sides see it.

use crate::shm::Link;
use crate::shm::segment::Segment;
use core::sync::atomic::Ordering;

/// State of a link at the server, which alone writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ServerState {
    /// The server has not taken the link up yet.
    Pending = 0,
    /// The listener accepts connections.
    Open = 1,
    /// No new connections are accepted; the existing ones go on.
    Closed = 2,
    /// The listener lives on in other processes, and connects that this one did not accept are made again.
    Withdrawn = 4,
    /// As [`ServerState::Withdrawn`], and what waited has been passed on to the kernel's queue, or is left to its client.
    HandedOn = 3,
    /// The process is about to leave the listener, if that keeps the order of its connections. What is queued stays queued,
    /// and a client makes no further connect until it knows.
    Leaving = 5,
}

impl ServerState {
    /// Decodes the header's word. A peer that writes another number accepts nothing.
    fn decode(word: u32) -> ServerState {
        match word {
            0 => ServerState::Pending,
            1 => ServerState::Open,
            3 => ServerState::HandedOn,
            4 => ServerState::Withdrawn,
            5 => ServerState::Leaving,
            _ => ServerState::Closed,
        }
    }
}

/// Client: whether the server is just passing the connects that wait on the link on to the kernel's queue, or is about to.
pub fn is_handing_on(link: &Link) -> bool {
    let begun = |s: Segment| matches!(s.server(), ServerState::Leaving | ServerState::Withdrawn);
    link.segment().is_some_and(begun) && !link.is_lost() && !link.is_remote()
}

impl Segment {
    /// The server's state.
    pub fn server(self) -> ServerState {
        // SeqCst: a client pushes a connect and then looks at this word; a server that leaves stores the word and then
        // empties the queue. One of the two sees the other.
        ServerState::decode(self.header().server.load(Ordering::SeqCst))
    }

    /// Server: sets its state. One that accepts no more connects takes what is queued after that.
    pub fn set_server(self, to: ServerState) {
        // SeqCst: see [`Segment::server`].
        self.header().server.store(to as u32, Ordering::SeqCst);
    }

    /// Largest number of connects that may wait at the listener; 0: not known.
    pub fn backlog(self) -> u32 {
        self.header().backlog.load(Ordering::Relaxed)
    }

    /// Sets the largest number of connects that may wait at the listener, one more than its backlog.
    pub fn set_backlog(self, most: u32) {
        // Relaxed: the number stands for itself.
        self.header().backlog.store(most, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_one_state() {
        use ServerState::{Closed, HandedOn, Leaving, Open, Pending, Withdrawn};
        for state in [Pending, Open, Closed, Withdrawn, HandedOn, Leaving] {
            assert_eq!(ServerState::decode(state as u32), state);
        }
        assert_eq!(ServerState::decode(u32::MAX), ServerState::Closed);
    }
}
