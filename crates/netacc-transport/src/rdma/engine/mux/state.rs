//! The states of a connection on a queue pair: of what it sends, of what it receives, and of its turn among the others.
//! A connection that is still on kernel TCP has a fourth one beside them ([`Step`](super::upgrade_pending::Step)).

use crate::rdma::engine::state::machine;

/// What the other side has been told by a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rdma::engine) enum TxState {
    /// Client: the addresses of both ends are to be sent before anything else.
    Opening,
    /// Nothing was sent, so the next frame has to carry the connection's generation.
    Unnamed,
    /// All that the last frame of bytes had to say is said.
    Open,
    /// More bytes follow the last ones ([`Kind::Part`](netacc_wire::frame::Kind::Part)).
    Part,
    /// Our direction has ended.
    Ended,
    /// The queue pair has ended, or the connection there: what has come is still given to the program, and nothing is
    /// sent.
    Cut,
}

impl TxState {
    /// Whether a frame has carried the connection's generation.
    pub fn is_named(self) -> bool {
        !matches!(self, TxState::Opening | TxState::Unnamed)
    }

    /// Whether what the program writes goes out.
    pub fn sends_bytes(self) -> bool {
        matches!(self, TxState::Unnamed | TxState::Open | TxState::Part)
    }

    /// Whether nothing of what the program writes goes out any more.
    pub fn is_over(self) -> bool {
        matches!(self, TxState::Ended | TxState::Cut)
    }
}

machine! {
    TxState { Opening, Unnamed, Open, Part, Ended, Cut }
    * -> Opening: "a program here connects",
    * -> Unnamed: "the other side opens it, or it comes from kernel TCP",
    Opening -> Open: "the addresses are sent",
    Unnamed -> Open: "a first frame is sent",
    Unnamed -> Part: "the first bytes are sent, and more follow",
    Open -> Part: "bytes are sent, and more follow",
    Part -> Open: "bytes are sent, and no more follow for now",
    Open -> Ended: "the end is sent",
    Part -> Ended: "the end is sent",
    Opening -> Cut: "the queue pair has ended",
    Unnamed -> Cut: "the queue pair has ended",
    Open -> Cut: "the queue pair has ended",
    Part -> Cut: "the queue pair has ended",
    Ended -> Cut: "the queue pair has ended, or the other side uses the number again",
}

/// What the other side has told of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rdma::engine) enum RxState {
    /// Client: no frame of this generation has come, so a frame without a generation is not the connection's.
    Unheard,
    /// All that the last frame of bytes had to say is said.
    Open,
    /// More bytes follow the last ones that have come ([`Kind::Part`](netacc_wire::frame::Kind::Part)).
    Part,
    /// The other side's direction has ended; the program has not been told yet.
    Ended,
    /// The program has been told, after all bytes.
    Given,
}

impl RxState {
    /// Whether the other side's direction has ended.
    pub fn is_over(self) -> bool {
        matches!(self, RxState::Ended | RxState::Given)
    }
}

machine! {
    RxState { Unheard, Open, Part, Ended, Given }
    * -> Unheard: "this side has chosen the number",
    * -> Open: "the other side has chosen it",
    Unheard -> Open: "a first frame has come",
    Open -> Part: "bytes have come, and more follow",
    Part -> Open: "bytes have come, and no more follow for now",
    Unheard -> Ended: "the queue pair has ended, and nothing is missing",
    Open -> Ended: "the end has come, or the queue pair has ended and nothing is missing",
    Part -> Ended: "the end has come",
    Ended -> Given: "the program has all bytes and is told",
}

/// The turn of a connection among the others of its engine. It changes with each message, so it is not traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::rdma::engine) enum Sched {
    /// There is nothing to do.
    Idle = 0,
    /// It is in the queue of connections that are to be looked at.
    Ready = 1,
    /// It waits in turn for room on the queue pair, or for a buffer.
    Stalled = 2,
    /// It waits, and is to be looked at all the same, since something has come for it.
    StalledReady = 3,
}

impl Sched {
    pub fn is_ready(self) -> bool {
        matches!(self, Sched::Ready | Sched::StalledReady)
    }

    pub fn is_stalled(self) -> bool {
        matches!(self, Sched::Stalled | Sched::StalledReady)
    }

    /// Afterwards, if it is put into the queue.
    pub fn queued(self) -> Sched {
        if self.is_stalled() { Sched::StalledReady } else { Sched::Ready }
    }

    /// Afterwards, if it has its turn.
    pub fn taken(self) -> Sched {
        if self.is_stalled() { Sched::Stalled } else { Sched::Idle }
    }

    /// Afterwards, if it has to wait.
    pub fn stalled(self) -> Sched {
        if self.is_ready() { Sched::StalledReady } else { Sched::Stalled }
    }

    /// Afterwards, if it need not wait any longer.
    pub fn resumed(self) -> Sched {
        if self.is_ready() { Sched::Ready } else { Sched::Idle }
    }
}

machine! {
    Sched { Idle, Ready, Stalled, StalledReady }
    * -> Idle: "it begins",
    Idle -> Ready: "something has come, or is to be sent",
    Ready -> Idle: "it has its turn",
    Idle -> Stalled: "there is no room",
    Ready -> StalledReady: "there is no room",
    Stalled -> StalledReady: "something has come",
    StalledReady -> Stalled: "it has its turn",
    Stalled -> Idle: "there is room",
    StalledReady -> Ready: "there is room",
}
