//! A connection that is still on kernel TCP, and that the client's side has asked to carry. Both hosts have a place for
//! it on a queue pair; [`upgrade`] decides about the program's socket, and stores the decision in the outcome of the
//! slot.

use crate::Endpoint;
use crate::host::{ConnToken, host};
use crate::rdma::engine::state::{State, machine};
use crate::shm::ShmEndpoint;
use netacc_sys::time;
use netacc_wire::companion::TOKEN;
use netacc_wire::frame::Upgrade;

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rdma::engine) enum Step {
    /// Client: the question is to be sent.
    SendRequest,
    /// Client: the question has been sent.
    AwaitAnswer,
    /// Server: the program has not accepted the connection yet, or not read all of what the client has sent.
    AwaitProgram,
    /// Server: its side is prepared, and the client is to be told.
    Prepared([u8; TOKEN]),
    /// Server: the client has been told.
    Answered,
    /// Server: the program would rather stay on TCP, and the client is to be told.
    Cancel,
    /// Server: the client has been told that.
    Cancelled,
}

machine! {
    Step { SendRequest, AwaitAnswer, AwaitProgram, Prepared, Answered, Cancel, Cancelled }
    * -> SendRequest: "a socket of the client asks",
    * -> AwaitProgram: "a server is asked by a client",
    SendRequest -> AwaitAnswer: "the question is sent",
    AwaitProgram -> Prepared: "the program has accepted it and read all that came before",
    Prepared -> Answered: "the client is told",
    Answered -> Cancel: "the program would rather stay, or takes too long",
    Cancel -> Cancelled: "the client is told",
}

/// State of an early connection beside that of each connection.
#[derive(Debug)]
pub(in crate::rdma::engine) struct PendingUpgrade {
    step: Step,
    pub request: Upgrade,
    /// The program's socket, if it is known, and its side of the ring.
    pub socket: Option<ConnToken>,
    pub program: &'static ShmEndpoint,
    /// When it was asked for (ns).
    pub since: u64,
}

impl PendingUpgrade {
    /// A connection that is asked for now.
    pub fn new(
        step: Step,
        request: Upgrade,
        socket: Option<ConnToken>,
        program: &'static ShmEndpoint,
    ) -> PendingUpgrade {
        PendingUpgrade { step, request, socket, program, since: time::now() }
    }

    pub fn step(&self) -> Step {
        self.step
    }

    pub fn set_step(&mut self, to: Step) {
        let client = self.request.client;
        self.step.change(to, format_args!("upgrade of {client}"));
    }

    /// Whether it is the client's side, or the server's and the program knows nothing yet.
    pub fn is_unanswered(&self) -> bool {
        matches!(self.step, Step::SendRequest | Step::AwaitAnswer | Step::AwaitProgram)
    }

    /// To be called when the other side refuses the connection.
    pub fn refused(&mut self) {
        if let Some((socket, host)) = self.socket.filter(|_| !self.is_unanswered()).zip(host()) {
            host.withdraw_upgrade(socket, self.program);
        }
    }

    /// To be called when it is carried no longer. If the connection is prepared, the program finds out by itself
    /// whether the client has gone over: then it has lost the connection.
    pub fn dropped(self) {
        let client = matches!(self.step, Step::SendRequest | Step::AwaitAnswer);
        match (self.step, self.socket) {
            // The client has not been told anything.
            (Step::Prepared(_), Some(socket)) => {
                if let Some(host) = host() {
                    host.withdraw_upgrade(socket, self.program);
                }
            }
            (Step::Answered | Step::Cancel | Step::Cancelled, _) => {}
            (_, socket) => {
                self.program.side.withdraw();
                self.program.close(false);
                if let Some((socket, host)) = socket.filter(|_| client).zip(host()) {
                    host.retry_upgrade_later(socket);
                }
            }
        }
    }
}
