//! The state machines of one side of a connection, and the bits of the word that holds them and a few facts
//! ([`super::side_state`]).

use crate::shm::machine::Machine;

netacc_sys::flags! { Bit:
    // These four come first, since the event counters of a connection contain them, see `SideState::ends_seen`.
    /// Bit of [`Ends`]: our side has ended its stream.
    pub(super) const TX_SHUT;
    /// A fact: shutdown(SHUT_RD) was called here.
    pub(super) const RX_SHUT;
    /// Bit of [`Ends`]: the peer's end of stream has been seen.
    pub(super) const PEER_FIN;
    /// Bit of [`Life`]: the connection was reset.
    pub(super) const DEAD;
    /// Bit of [`Life`]: the endpoint has a connection.
    pub(super) const LIVE;
    /// Bit of [`Life`]: the connect finds no room in the listener's queue.
    pub(super) const PENDING;
    /// Bit of [`Switch`]: a process has left the rings.
    pub(super) const LEFT;
    /// Bit of [`Switch`]: that was one of our sharers.
    pub(super) const BY_SHARER;
    /// Bit of [`Switch`]: what we write goes to the kernel socket.
    pub(super) const ON_KERNEL;
    /// A fact: our process forked while the connection was open, and others of our sharers may use it.
    pub(super) const SHARED;
    /// A fact: this process writes without waiting for a relay, see `let_relays_end`.
    pub(super) const AHEAD;
    /// A fact: the child of a fork cannot follow the connection, and resets its copy, see `reset_in_child`.
    pub(super) const UNTOLD;
    /// Bit of [`LivenessSocket`]: our liveness socket listens.
    pub(super) const LISTENS;
    /// Bit of [`LivenessSocket`]: nobody holds the other end of our liveness socket.
    pub(super) const LIVENESS_GONE;
    /// A fact: every one of the peer's sharers that held the connection is gone.
    pub(super) const PEER_GONE;
    /// A fact: the peer liveness socket is another file than before, see `take_peer_liveness_change`.
    pub(super) const PEER_LIVENESS_CHANGED;
    /// A fact: the socket that was accepted from our liveness socket is another file than before, see `take_arrived`.
    pub(super) const ARRIVED;
    /// A fact: one of the peer's sharers has to be rung over the peer liveness socket as soon as that is received, see
    /// `wake_sharers`.
    pub(super) const RING_OWED;
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
    /// The connect finds no room in the listener's queue, as of the last check; see [`super::pending`].
    Pending,
    /// The connection is open.
    Open,
    /// The connection was reset. The endpoint's `error` is set right after this.
    Reset,
}

/// The events of [`Life`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LifeEvent {
    /// A connection begins in the slot.
    Begin,
    /// The connect is about to be queued behind as many connects as the listener allows.
    FindNoRoom,
    /// The connect has come so far that the kernel would have established it.
    Establish,
    /// The connection is reset, by either side.
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
        // Another thread has reset or ended the connection first.
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

/// Which of the two streams have ended, with TCP's names (RFC 9293).
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

/// The events of [`Ends`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndsEvent {
    /// This process, or another one of our sharers, has ended our stream.
    Shut,
    /// The peer's end of stream, or the end of its last process, has been seen.
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

/// The progress of a switch from the rings to a kernel socket on the side that accepts it; see [`super::switch`]. The
/// side that offers it gives the endpoint up at once.
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

/// The events of [`Switch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SwitchEvent {
    /// The peer's mark has been seen.
    PeerLeaves,
    /// The mark of one of our sharers has been seen.
    SharerLeaves,
    /// The socket has been received. If the peer has left, the bytes of our stream that it has not read are in the
    /// socket.
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
        // A process whose connection was reset leaves the rings even if another process has left them already.
        (Switch::PeerLeft, SwitchEvent::SharerLeaves, Switch::SharerLeft),
        (Switch::SharerLeft, SwitchEvent::PeerLeaves, Switch::SharerLeft),
        (Switch::OnKernel, SwitchEvent::SharerLeaves, Switch::OnSharersKernel),
        // The peer's mark stays, so it is seen again.
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

/// The kind of our own liveness socket, if there is one; see [`super::sharers`] and [`super::liveness`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LivenessSocket {
    /// It is connected with the peer's end.
    Joined,
    /// It is a socket that listens, and this process has not accepted the peer's connection to it.
    Listens,
    /// No process holds its other end, although the peer lives: see `poll_liveness`.
    Ended,
}

/// The events of [`LivenessSocket`].
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
        // The program has closed the number of the previous socket, and the process forks again.
        (LivenessSocket::Ended, LivenessSocketEvent::Listen, LivenessSocket::Listens),
        (LivenessSocket::Ended, LivenessSocketEvent::Withdraw, LivenessSocket::Ended),
        // Another thread has still polled the previous socket.
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
