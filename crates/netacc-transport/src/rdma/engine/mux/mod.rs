//! The connections of an engine between their rings and the queue pairs that carry them.
//!
//! - `conn`: one connection's bytes; `state`: its states; `conns`: all of them; `links`: the links that their rings are
//!   on; `reader`: a thread of the program to which bytes go past the ring.
//! - `begin`: how a connection begins; `pump`: how its bytes move; `message`: what has come for it; `ending`: how it
//!   ends; `redispatch`: one that a process of the server's does not take.
//! - `upgrade_pending`: a connection that is still on kernel TCP; `upgrade`: what both hosts do for it.
//! - `programs`: what the programs want of their connections.

pub(super) mod begin;
pub(super) mod conn;
pub(super) mod conns;
mod ending;
pub(super) mod links;
pub(super) mod message;
mod programs;
mod pump;
pub(super) mod reader;
mod redispatch;
pub(super) mod state;
pub(super) mod upgrade;
pub(super) mod upgrade_pending;

use crate::rdma::engine::limits::Limits;
use crate::rdma::engine::qps::Qps;
use crate::rdma::engine::status::EngineStatus;
use conns::Conns;
use links::Links;

/// The connections of an engine, with their links and the queue pairs that carry them.
#[derive(Debug)]
pub(super) struct Mux {
    pub qps: Qps,
    pub conns: Conns,
    pub links: Links,
    pub status: &'static EngineStatus,
}

impl Mux {
    /// Nothing is carried yet, by engine `index`.
    pub fn new(index: usize, limits: Limits, status: &'static EngineStatus) -> Mux {
        Mux { qps: Qps::new(index, limits, status), conns: Conns::default(), links: Links::new(status), status }
    }
}
