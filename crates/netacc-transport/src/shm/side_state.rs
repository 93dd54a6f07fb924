//! The state of one side of a connection: four state machines and a few facts, packed into one word that threads share.

use crate::shm::machine::{Machine, Place, happen};
use crate::shm::side_machines::*;
use core::sync::atomic::{AtomicU32, Ordering};

/// The state of a side, as loaded once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SideState(u32);

impl SideState {
    /// The state of a side without a link: both streams have ended.
    pub(super) const CLOSED: SideState = SideState(TX_SHUT | PEER_FIN);

    /// Whether both directions have ended, so that a TCP socket would not be connected.
    pub fn has_ended(self) -> bool {
        self.is_dead() || self.ends() == Ends::Closed
    }

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
    pub fn is_dead(self) -> bool {
        self.0 & DEAD != 0
    }

    /// Whether the connect waits for room in the listener's queue, as of the last check.
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
    pub fn has_peer_ended(self) -> bool {
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

    /// Whether a reader that has found the ring empty can only wait for more: there is no end, no reset, and no switch
    /// by a sharer.
    #[inline]
    pub(super) fn may_bring_more(self) -> bool {
        self.0 & (BY_SHARER | RX_SHUT | PEER_FIN | DEAD) == 0
    }

    /// Whether a process has left the rings.
    #[inline]
    pub(super) fn is_left(self) -> bool {
        self.0 & LEFT != 0
    }

    /// Whether one of our sharers has left the rings.
    #[inline]
    pub(super) fn is_left_by_sharer(self) -> bool {
        self.0 & BY_SHARER != 0
    }

    /// Whether we have followed a process that has left the rings.
    #[inline]
    pub(super) fn is_on_kernel(self) -> bool {
        self.0 & ON_KERNEL != 0
    }

    /// Whether a write needs further checks before it may use the ring.
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

    /// Whether the state stays the same as long as the peer's words say that its stream goes on, and the peer lives.
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

    /// A number below 256 whose bits say which ends, shutdowns and resets have occurred.
    pub(super) fn ends_seen(self) -> u32 {
        self.0 & (TX_SHUT | RX_SHUT | PEER_FIN | DEAD)
    }
}

/// The word with the state of a side.
#[derive(Debug)]
pub(super) struct StateWord(AtomicU32);

impl StateWord {
    /// Loads the state. Acquire: a thread that finds a state sees the writes that led to it.
    #[inline]
    pub(super) fn look(&self) -> SideState {
        SideState(self.0.load(Ordering::Acquire))
    }

    /// Loads the state for a decision that depends on no other data.
    #[inline]
    pub(super) fn glance(&self) -> SideState {
        SideState(self.0.load(Ordering::Relaxed))
    }

    /// Applies an event to one of the machines. Returns the previous state.
    #[cold]
    pub(super) fn on<M: Machine>(&self, place: Place, event: M::Event) -> SideState {
        SideState(happen::<M>(&self.0, place, event, 0))
    }

    /// Notes a shutdown(2) of these directions. Returns the previous state.
    #[cold]
    pub(super) fn shut(&self, place: Place, read: bool, write: bool) -> SideState {
        let facts = if read { RX_SHUT } else { 0 };
        SideState(match write {
            true => happen::<Ends>(&self.0, place, EndsEvent::Shut, facts),
            false => self.0.fetch_or(facts, Ordering::AcqRel),
        })
    }

    /// Begins a connection: each machine is in its first state, and no fact is set.
    pub(super) fn begin(&self, place: Place) {
        self.whole(place, LifeEvent::Begin, Life::Open);
    }

    /// Ends the connection here and clears the word. Returns the previous state.
    pub(super) fn end(&self, place: Place) -> SideState {
        self.whole(place, LifeEvent::End, Life::Free)
    }

    /// Sets the whole word.
    fn whole(&self, place: Place, event: LifeEvent, to: Life) -> SideState {
        // AcqRel: a thread that finds the new state sees the writes that led to it.
        let old = SideState(self.0.swap(to.encode(), Ordering::AcqRel));
        let from = old.life();
        debug_assert!(from.after(event) == Some(to), "{place}: {event:?} while {from:?}");
        if from != to {
            netacc_log::log!(Trace, "{place}: {}: {from:?} to {to:?} ({event:?})", Life::NAME);
        }
        old
    }

    /// To be called before the link is used again.
    pub(super) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Sets a fact. AcqRel: a thread that finds it sees the writes that led to it.
    pub(super) fn set(&self, fact: u32) {
        self.0.fetch_or(fact, Ordering::AcqRel);
    }

    /// Clears a fact. Returns whether it was set, in which case the caller sees the writes that led to it.
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
    fn an_event_may_occur_again() {
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
    fn an_event_out_of_order_is_recognised() {
        assert_eq!(Switch::Idle.after(SwitchEvent::Accept), None);
        assert_eq!(Life::Free.after(LifeEvent::FindNoRoom), None);
    }
}
