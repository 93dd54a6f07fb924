//! What is known of servers on other hosts.
//!
//! - `routing`: how routes are found, opened and closed; `links`: their links.
//! - `connects`: the connects that wait on those links, and the queue pairs that they go by; `connect_order`: which is
//!   next.

mod connect_order;
mod connects;
mod links;
mod routing;

use crate::host::{Reachability, host};
use crate::rdma::engine::qp::QpRecord;
use crate::rdma::engine::qps::Qps;
use crate::rdma::engine::state::{State as _, machine};
use crate::rdma::engine::table::Table;
use crate::shm::Link;
use crate::timeouts;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use netacc_stats::Reason;
use netacc_sys::time;
use netacc_verbs::{CmEventType, Error};

/// Time (ns) for which a destination is believed to have no listener.
pub(super) const REFUSED: u64 = 1_000_000_000;
const QP_BACKOFF: u64 = time::ns(timeouts::QP_BACKOFF);

/// How a server on another host is reached.
#[derive(Clone, Copy, Debug)]
pub struct RouteHandle {
    /// Connects are queued here; the receiver gets a reference.
    pub link: &'static Link,
    /// Our address on the route.
    pub source: IpAddr,
    /// Set while no queue pair is up yet, so that connects may have to go by TCP after all.
    pub optimistic: bool,
}

/// What is known of a destination.
#[derive(Clone, Copy, Debug)]
pub(super) enum Route {
    /// The destination is reached by this route.
    Open(RouteHandle),
    /// The route is being looked for; an event will come by this descriptor, or, if it is -1, no event will.
    Opening(i32),
    /// The destination is not reached, for this reason.
    Closed(Reason),
    /// The route has not been looked for.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The route is being resolved, or will be at the next connect.
    Opening,
    /// Connects wait on its link, for a queue pair that is up or is expected.
    Open,
    /// The destination is not reached, for this reason; believed until this time (ns).
    Closed(Reason, u64),
}

machine! {
    State { Opening, Open, Closed }
    * -> Opening: "a connect to the server is the first",
    Opening -> Open: "a queue pair is up, or the server has answered a probe",
    Opening -> Closed: "the server cannot be reached by RDMA, or answers that it has no NetACC",
    Open -> Opening: "its link or its last queue pair has ended",
    Open -> Closed: "no queue pair could be connected",
    Closed -> Opening: "that is no longer believed, and a connect comes",
    Closed -> Open: "a queue pair that was begun before is up",
}

/// A destination.
#[derive(Debug)]
pub(super) struct RouteEntry {
    pub dest: SocketAddr,
    state: State,
    pub source: IpAddr,
    /// The socket layer's side of the link for new connects, and our own side.
    pub link: Option<&'static Link>,
    pub local: Option<usize>,
    pub qps: Vec<usize>,
    /// The queue pair by which the last connect went, while the server may not have heard of it.
    pub last: Option<usize>,
    /// Set while its ticket is still ours: see [`order`].
    pub holds_ticket: bool,
    /// Until then (ns) no further queue pair can be had: the existing ones take all connections.
    pub backoff_until: u64,
    /// Number of queue pairs in a row that could not be connected because their local port was taken.
    pub ports_taken: u32,
}

/// Tells the socket layer what has become known of a destination.
pub(super) fn learn(dest: SocketAddr, what: Reachability) {
    if let Some(host) = host() {
        host.learn(dest, what);
    }
}

impl RouteEntry {
    pub(super) fn new(dest: SocketAddr) -> RouteEntry {
        RouteEntry {
            dest,
            state: State::Opening,
            source: dest.ip(),
            link: None,
            local: None,
            qps: Vec::new(),
            last: None,
            holds_ticket: false,
            backoff_until: 0,
            ports_taken: 0,
        }
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    pub(super) fn set_state(&mut self, to: State) {
        let dest = self.dest;
        self.state.change(to, format_args!("route to {dest}"));
    }

    /// Notes that no further queue pair could be had.
    pub(super) fn note_backoff(&mut self) {
        self.backoff_until = time::now().saturating_add(QP_BACKOFF);
    }
}

/// The destinations of an engine.
#[derive(Debug, Default)]
pub(super) struct Routes {
    pub table: Table<RouteEntry>,
}

impl Routes {
    /// The place of a server.
    pub fn to(&self, dest: SocketAddr) -> Option<usize> {
        self.table.each().find(|(_, r)| r.dest == dest).map(|(at, _)| at)
    }

    /// Whether the host has lately not answered at all, at whatever port.
    pub fn is_silent(&self, host: IpAddr, now: u64) -> bool {
        let silent = |r: &RouteEntry| matches!(r.state, State::Closed(_, until) if until > now.saturating_add(REFUSED));
        self.table.each().any(|(_, r)| r.dest.ip() == host && silent(r))
    }

    /// Whether a queue pair of a route is up.
    pub fn has_qp_up(&self, r: &RouteEntry, qps: &Qps) -> bool {
        r.qps.iter().any(|p| qps.table.get(*p).is_some_and(QpRecord::is_up))
    }

    /// Why there is no route to a server at present.
    pub fn closed_for(&self, server: SocketAddr) -> Option<Reason> {
        match self.table.get(self.to(server)?)?.state {
            State::Closed(why, _) => Some(why),
            _ => None,
        }
    }
}

/// The reason that a failure means for the connection that was to be accelerated.
pub(super) fn why(e: &Error) -> Reason {
    match e {
        Error::Cm { event: CmEventType::REJECTED | CmEventType::UNREACHABLE | CmEventType::CONNECT_ERROR, .. } => {
            Reason::PeerPlain
        }
        Error::Verb { verb: "rdma_connect", .. } => Reason::PeerPlain,
        Error::Misuse { verb: "rdma_connect", .. } => Reason::PeerVersion,
        Error::Memlock { .. } => Reason::NoMemory,
        _ => Reason::OtherHost,
    }
}
