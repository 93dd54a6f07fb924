//! The state of one side of a connection: three machines and a few facts, packed into one word that threads share.

use crate::shm::machine::{Machine, Place, happen};
use core::sync::atomic::{AtomicU32, Ordering};

netacc_sys::flags! { Bit:
    // These four come first: an edge of a connection counts by them, see `SideState::ends_seen`.
    /// Bit of [`Ends`]: our side has ended its stream.
    const TX_SHUT;
    /// A fact: shutdown(SHUT_RD) was called here.
    pub(super) const RX_SHUT;
    /// Bit of [`Ends`]: the peer's end of stream has been seen.
    const PEER_FIN;
    /// Bit of [`Life`]: the connection was reset.
    const DEAD;
    /// Bit of [`Life`]: the endpoint has a connection.
    const LIVE;
    /// Bit of [`Life`]: the connect finds no room in the listener's queue.
    const PENDING;
    /// Bit of [`Switch`]: a process has left the rings.
    const LEFT;
    /// Bit of [`Switch`]: that was one of our sharers.
    const BY_SHARER;
    /// Bit of [`Switch`]: what we write goes to the kernel socket.
    const ON_KERNEL;
    /// A fact: our process forked while the connection was open, and others of our sharers may use it.
    pub(super) const SHARED;
    /// A fact: this process writes without waiting for a relay, see `let_relays_end`.
    pub(super) const AHEAD;
    /// A fact: a child that is forked, or was, cannot know what becomes of the connection, see `reset_in_child`.
    pub(super) const UNTOLD;
    /// Bit of [`LivenessSocket`]: our liveness socket listens.
    const LISTENS;
    /// Bit of [`LivenessSocket`]: nobody holds the other end of our liveness socket.
    const LIVENESS_GONE;
    /// A fact: every one of the peer's sharers that held the connection is gone.
    pub(super) const PEER_GONE;
    /// A fact: the peer liveness socket is another file than before, see `take_peer_liveness_change`.
    pub(super) const PEER_LIVENESS_CHANGED;
    /// A fact: what came to our liveness socket is another file than before, see `take_arrived`.
    pub(super) const ARRIVED;
    /// A fact: one of the peer's sharers is to be rung by the peer liveness socket as soon as that has come, see
    /// `wake_sharers`.
    pub(super) const RING_OWED;
    /// A fact: our large window holds pages.
    pub(super) const LARGE_USED;
    /// A fact: a write that does not wait was cut short, and there has been no room since.
    pub(super) const CUT;
    /// A fact: TCP_CORK is set.
    pub(super) const CORKED;
    /// A fact: the call that writes just now has MSG_MORE.
    pub(super) const MORE;
    /// A fact: bytes are held back.
    pub(super) const HOLDS;
}

/// The life of a connection on this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// The endpoint has no connection.
    Free,
    /// The connect finds no room in the listener's queue, as of the last look; see [`super::pending`].
    Pending,
    /// The connection is open.
    Open,
    /// The connection was reset. The endpoint's `error` was set with this.
    Reset,
}

/// What happens to [`Life`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LifeEvent {
    /// A connection begins in the slot.
    Begin,
    /// The connect is about to be queued behind as many as the listener allows.
    FindNoRoom,
    /// The connect has come so far that the kernel would have established it.
    Establish,
    /// The connection is reset, by whichever side.
    Reset,
    /// This process gives the connection up.
    End,
}

impl Machine for Life {
    type Event = LifeEvent;

    const NAME: &'static str = "life";
    const TABLE: &'static [(Life, LifeEvent, Life)] = &[
        (Life::Free, LifeEvent::Begin, Life::Open),
        (Life::Open, LifeEvent::FindNoRoom, Life::Pending),
        (Life::Pending, LifeEvent::Establish, Life::Open),
        (Life::Open, LifeEvent::Reset, Life::Reset),
        (Life::Pending, LifeEvent::Reset, Life::Reset),
        (Life::Open, LifeEvent::End, Life::Free),
        (Life::Pending, LifeEvent::End, Life::Free),
        (Life::Reset, LifeEvent::End, Life::Free),
        // Another thread was faster with the reset, or with the end.
        (Life::Reset, LifeEvent::Establish, Life::Reset),
        (Life::Free, LifeEvent::Establish, Life::Free),
        (Life::Free, LifeEvent::Reset, Life::Free),
    ];
    const BITS: u32 = LIVE | PENDING | DEAD;

    #[inline]
    fn decode(word: u32) -> Life {
        match word & Life::BITS {
            w if w & LIVE == 0 => Life::Free,
            w if w & DEAD != 0 => Life::Reset,
            w if w & PENDING != 0 => Life::Pending,
            _ => Life::Open,
        }
    }

    fn encode(self) -> u32 {
        match self {
            Life::Free => 0,
            Life::Pending => LIVE | PENDING,
            Life::Open => LIVE,
            Life::Reset => LIVE | DEAD,
        }
    }
}

/// How far both streams are, as TCP names it (RFC 9293).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// Neither stream has ended.
    Established,
    /// Our side has ended its stream.
    FinWait,
    /// The peer has ended its stream.
    CloseWait,
    /// Both streams have ended.
    Closed,
}

/// What happens to [`Ends`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndsEvent {
    /// This process, or another one of our sharers, has ended our stream.
    Shut,
    /// The peer's end of stream, or the end of its last process, is seen.
    PeerEnd,
}

impl Machine for Ends {
    type Event = EndsEvent;

    const NAME: &'static str = "streams";
    const TABLE: &'static [(Ends, EndsEvent, Ends)] = &[
        (Ends::Established, EndsEvent::Shut, Ends::FinWait),
        (Ends::Established, EndsEvent::PeerEnd, Ends::CloseWait),
        (Ends::FinWait, EndsEvent::PeerEnd, Ends::Closed),
        (Ends::CloseWait, EndsEvent::Shut, Ends::Closed),
    ];
    const BITS: u32 = TX_SHUT | PEER_FIN;

    #[inline]
    fn decode(word: u32) -> Ends {
        match (word & TX_SHUT != 0, word & PEER_FIN != 0) {
            (false, false) => Ends::Established,
            (true, false) => Ends::FinWait,
            (false, true) => Ends::CloseWait,
            (true, true) => Ends::Closed,
        }
    }

    fn encode(self) -> u32 {
        match self {
            Ends::Established => 0,
            Ends::FinWait => TX_SHUT,
            Ends::CloseWait => PEER_FIN,
            Ends::Closed => TX_SHUT | PEER_FIN,
        }
    }
}

/// How far a switch from the rings to a kernel socket is on the side that accepts it; see [`super::switch`]. The side that
/// offers it is done with the connection at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Switch {
    /// No process is known to have left the rings.
    Idle,
    /// The peer has left, and we have not followed.
    PeerLeft,
    /// One of our sharers has left, and we have not followed.
    SharerLeft,
    /// We have followed the peer: what we write goes to the kernel socket, and the ring is read to its end.
    OnKernel,
    /// We have followed one of our sharers: the connection is the kernel socket.
    OnSharersKernel,
}

/// What happens to [`Switch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SwitchEvent {
    /// The peer's mark is seen.
    PeerLeaves,
    /// The mark of one of our sharers is seen.
    SharerLeaves,
    /// The socket is here, and what nobody has read of our stream is in it.
    Accept,
}

impl Machine for Switch {
    type Event = SwitchEvent;

    const NAME: &'static str = "switch";
    const TABLE: &'static [(Switch, SwitchEvent, Switch)] = &[
        (Switch::Idle, SwitchEvent::PeerLeaves, Switch::PeerLeft),
        (Switch::Idle, SwitchEvent::SharerLeaves, Switch::SharerLeft),
        (Switch::PeerLeft, SwitchEvent::Accept, Switch::OnKernel),
        (Switch::SharerLeft, SwitchEvent::Accept, Switch::OnSharersKernel),
        // A process whose connection was reset leaves the rings even if another process has left them before.
        (Switch::PeerLeft, SwitchEvent::SharerLeaves, Switch::SharerLeft),
        (Switch::SharerLeft, SwitchEvent::PeerLeaves, Switch::SharerLeft),
        (Switch::OnKernel, SwitchEvent::SharerLeaves, Switch::OnSharersKernel),
        // The peer's mark stays, and is seen again.
        (Switch::OnKernel, SwitchEvent::PeerLeaves, Switch::OnKernel),
        (Switch::OnSharersKernel, SwitchEvent::PeerLeaves, Switch::OnSharersKernel),
    ];
    const BITS: u32 = LEFT | BY_SHARER | ON_KERNEL;

    #[inline]
    fn decode(word: u32) -> Switch {
        match (word & LEFT != 0, word & BY_SHARER != 0, word & ON_KERNEL != 0) {
            (false, ..) => Switch::Idle,
            (true, false, false) => Switch::PeerLeft,
            (true, true, false) => Switch::SharerLeft,
            (true, false, true) => Switch::OnKernel,
            (true, true, true) => Switch::OnSharersKernel,
        }
    }

    fn encode(self) -> u32 {
        match self {
            Switch::Idle => 0,
            Switch::PeerLeft => LEFT,
            Switch::SharerLeft => LEFT | BY_SHARER,
            Switch::OnKernel => LEFT | ON_KERNEL,
            Switch::OnSharersKernel => LEFT | BY_SHARER | ON_KERNEL,
        }
    }
}

/// What our own liveness socket is, if there is one; see [`super::sharers`] and [`super::liveness`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LivenessSocket {
    /// It is joined with the peer's end.
    Joined,
    /// It is a socket that listens, and the peer's connection to it has not come to this process.
    Listens,
    /// Nobody holds its other end, though the peer lives: see `poll_liveness`.
    Ended,
}

/// What happens to [`LivenessSocket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LivenessSocketEvent {
    /// A socket that listens is made.
    Listen,
    /// The peer's connection is accepted.
    Accept,
    /// The peer could not be told of the socket, which is closed again.
    Withdraw,
    /// The socket has come to its end.
    End,
}

impl Machine for LivenessSocket {
    type Event = LivenessSocketEvent;

    const NAME: &'static str = "liveness socket";
    const TABLE: &'static [(LivenessSocket, LivenessSocketEvent, LivenessSocket)] = &[
        (LivenessSocket::Joined, LivenessSocketEvent::Listen, LivenessSocket::Listens),
        (LivenessSocket::Listens, LivenessSocketEvent::Accept, LivenessSocket::Joined),
        (LivenessSocket::Listens, LivenessSocketEvent::Withdraw, LivenessSocket::Joined),
        (LivenessSocket::Joined, LivenessSocketEvent::End, LivenessSocket::Ended),
        // The program has closed the number of the one before, and the process forks again.
        (LivenessSocket::Ended, LivenessSocketEvent::Listen, LivenessSocket::Listens),
        (LivenessSocket::Ended, LivenessSocketEvent::Withdraw, LivenessSocket::Ended),
        // Another thread has still looked at the one before.
        (LivenessSocket::Listens, LivenessSocketEvent::End, LivenessSocket::Listens),
    ];
    const BITS: u32 = LISTENS | LIVENESS_GONE;

    #[inline]
    fn decode(word: u32) -> LivenessSocket {
        match (word & LISTENS != 0, word & LIVENESS_GONE != 0) {
            (true, _) => LivenessSocket::Listens,
            (false, true) => LivenessSocket::Ended,
            (false, false) => LivenessSocket::Joined,
        }
    }

    fn encode(self) -> u32 {
        match self {
            LivenessSocket::Joined => 0,
            LivenessSocket::Listens => LISTENS,
            LivenessSocket::Ended => LIVENESS_GONE,
        }
    }
}

/// The state of a side, as loaded once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SideState(u32);

impl SideState {
    pub(super) fn life(self) -> Life {
        Life::decode(self.0)
    }

    pub(super) fn ends(self) -> Ends {
        Ends::decode(self.0)
    }

    #[inline]
    pub(super) fn switch(self) -> Switch {
        Switch::decode(self.0)
    }

    #[inline]
    pub(super) fn liveness_socket(self) -> LivenessSocket {
        LivenessSocket::decode(self.0)
    }

    /// Whether the endpoint has a connection.
    #[inline]
    pub(super) fn is_live(self) -> bool {
        self.0 & LIVE != 0
    }

    /// Whether the connection was reset.
    #[inline]
    pub(super) fn is_dead(self) -> bool {
        self.0 & DEAD != 0
    }

    /// Whether the connect waits for room in the listener's queue, as of the last look.
    #[inline]
    pub(super) fn is_pending(self) -> bool {
        self.0 & (PENDING | DEAD) == PENDING
    }

    /// Whether our stream has ended.
    #[inline]
    pub(super) fn has_shut(self) -> bool {
        self.0 & TX_SHUT != 0
    }

    /// Whether the peer's stream has ended.
    #[inline]
    pub(super) fn has_peer_ended(self) -> bool {
        self.0 & PEER_FIN != 0
    }

    /// Whether shutdown(2) was called for both directions here.
    pub(super) fn has_shut_both(self) -> bool {
        self.0 & (TX_SHUT | RX_SHUT) == TX_SHUT | RX_SHUT
    }

    /// Whether a reader finds the end, or an error, behind the bytes that are there.
    #[inline]
    pub(super) fn is_read_side_over(self) -> bool {
        self.0 & (RX_SHUT | PEER_FIN | DEAD) != 0
    }

    /// Whether a writer finds an error.
    #[inline]
    pub(super) fn is_write_side_over(self) -> bool {
        self.0 & (TX_SHUT | DEAD) != 0
    }

    /// Whether a reader that has found nothing in the ring finds nothing but that there may be more later.
    #[inline]
    pub(super) fn may_bring_more(self) -> bool {
        self.0 & (BY_SHARER | RX_SHUT | PEER_FIN | DEAD) == 0
    }

    /// Whether a process has left the rings.
    #[inline]
    pub(super) fn is_left(self) -> bool {
        self.0 & LEFT != 0
    }

    /// Whether it was one of our sharers that has left the rings.
    #[inline]
    pub(super) fn is_left_by_sharer(self) -> bool {
        self.0 & BY_SHARER != 0
    }

    /// Whether we have followed a process that has left the rings.
    #[inline]
    pub(super) fn is_on_kernel(self) -> bool {
        self.0 & ON_KERNEL != 0
    }

    /// Whether a write has to look further before it goes to the ring.
    #[inline]
    pub(super) fn is_write_diverted(self) -> bool {
        self.0 & (LEFT | PENDING) != 0
    }

    /// Whether a process has left the rings and we have not followed. A connection that was reset does not follow.
    #[inline]
    pub(super) fn has_to_follow(self) -> bool {
        self.0 & (LEFT | ON_KERNEL | DEAD) == LEFT
    }

    /// Whether others of our sharers may use the connection.
    #[inline]
    pub(super) fn is_shared(self) -> bool {
        self.0 & SHARED != 0
    }

    /// Whether the state stays as it is as long as the peer's words say that its stream goes on, and the peer lives.
    #[inline]
    pub(super) fn is_settled(self) -> bool {
        self.0 & (DEAD | SHARED | PEER_FIN) == 0
    }

    /// Whether the connection is open, only this process uses it on this side, and it stays where it is.
    pub(super) fn is_alone(self) -> bool {
        self.0 & (DEAD | SHARED | LEFT | LIVE) == LIVE
    }

    /// Whether one of the facts is set.
    #[inline]
    pub(super) fn has(self, facts: u32) -> bool {
        self.0 & facts != 0
    }

    /// A number below 256 that tells which ends, shutdowns and resets there were.
    pub(super) fn ends_seen(self) -> u32 {
        self.0 & (TX_SHUT | RX_SHUT | PEER_FIN | DEAD)
    }
}

/// The word with the state of a side.
#[derive(Debug)]
pub(super) struct StateWord(AtomicU32);

impl StateWord {
    /// A look. Acquire: a thread that finds a state finds what led to it.
    #[inline]
    pub(super) fn look(&self) -> SideState {
        SideState(self.0.load(Ordering::Acquire))
    }

    /// A look that nothing else depends on.
    #[inline]
    pub(super) fn glance(&self) -> SideState {
        SideState(self.0.load(Ordering::Relaxed))
    }

    /// Has an event happen to one of the machines. Returns the state before.
    #[cold]
    pub(super) fn on<M: Machine>(&self, place: Place, event: M::Event) -> SideState {
        SideState(happen::<M>(&self.0, place, event, 0))
    }

    /// shutdown(2) for these directions. Returns the state before.
    #[cold]
    pub(super) fn shut(&self, place: Place, read: bool, write: bool) -> SideState {
        let facts = if read { RX_SHUT } else { 0 };
        SideState(match write {
            true => happen::<Ends>(&self.0, place, EndsEvent::Shut, facts),
            false => self.0.fetch_or(facts, Ordering::AcqRel),
        })
    }

    /// A connection begins: each machine is in its first state, and nothing is a fact.
    pub(super) fn begin(&self, place: Place) {
        self.whole(place, LifeEvent::Begin, Life::Open);
    }

    /// The connection ends here: the word says nothing any more. Returns the state before.
    pub(super) fn end(&self, place: Place) -> SideState {
        self.whole(place, LifeEvent::End, Life::Free)
    }

    /// Sets the whole word.
    fn whole(&self, place: Place, event: LifeEvent, to: Life) -> SideState {
        // AcqRel: a thread that finds the new state finds what led to it.
        let old = SideState(self.0.swap(to.encode(), Ordering::AcqRel));
        let from = old.life();
        debug_assert!(from.after(event) == Some(to), "{place}: {event:?} while {from:?}");
        if from != to {
            netacc_log::log!(Trace, "{place}: {}: {from:?} to {to:?} ({event:?})", Life::NAME);
        }
        old
    }

    /// To be called before the link is used anew.
    pub(super) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Notes a fact.
    pub(super) fn set(&self, fact: u32) {
        self.0.fetch_or(fact, Ordering::AcqRel);
    }

    /// Clears a fact. Returns whether it was set.
    pub(super) fn clear(&self, fact: u32) -> bool {
        self.0.fetch_and(!fact, Ordering::AcqRel) & fact != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::machine::tests::check;

    const HERE: Place = Place { link: 1, slot: 2 };

    #[test]
    fn the_documents_show_the_tables() {
        check::<Life>("shm.md");
        check::<Ends>("shm.md");
        check::<LivenessSocket>("shm.md");
        check::<Switch>("switch.md");
    }

    #[test]
    fn machines_of_one_word_do_not_touch_each_other() {
        let word = StateWord(AtomicU32::new(0));
        word.begin(HERE);
        word.shut(HERE, true, true);
        word.on::<Switch>(HERE, SwitchEvent::PeerLeaves);
        word.on::<Ends>(HERE, EndsEvent::PeerEnd);
        word.set(SHARED);
        let s = word.look();
        assert_eq!((s.life(), s.ends(), s.switch()), (Life::Open, Ends::Closed, Switch::PeerLeft));
        assert!(s.has_shut_both() && s.is_shared() && s.has_to_follow());
        let before = word.on::<Life>(HERE, LifeEvent::Reset);
        assert_eq!(before, s);
        let s = word.look();
        assert_eq!((s.life(), s.ends(), s.switch()), (Life::Reset, Ends::Closed, Switch::PeerLeft));
        assert!(s.has(RX_SHUT) && s.is_shared() && !s.has_to_follow() && s.ends_seen() < 256);
        assert_eq!(word.end(HERE), s);
        assert_eq!(word.look(), SideState(0));
    }

    #[test]
    fn what_has_happened_may_be_seen_again() {
        let word = StateWord(AtomicU32::new(0));
        word.begin(HERE);
        for _ in 0..2 {
            word.on::<Life>(HERE, LifeEvent::Reset);
            word.on::<Switch>(HERE, SwitchEvent::SharerLeaves);
            word.on::<Ends>(HERE, EndsEvent::PeerEnd);
        }
        let s = word.look();
        assert_eq!((s.life(), s.ends(), s.switch()), (Life::Reset, Ends::CloseWait, Switch::SharerLeft));
    }

    #[test]
    fn an_event_out_of_order_is_known_as_such() {
        assert_eq!(Switch::Idle.after(SwitchEvent::Accept), None);
        assert_eq!(Life::Free.after(LifeEvent::FindNoRoom), None);
    }
}
