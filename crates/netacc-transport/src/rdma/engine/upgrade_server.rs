//! Server's host: requests of clients to continue connections on kernel TCP by a queue pair (see [`upgrade`]). Only the
//! process that has the queue pair gets the request: a connection that another one has accepted stays on TCP.

use crate::rdma::engine::mux::upgrade::ACCEPTED;
use crate::rdma::engine::{cell, listeners, progress, status};
use crate::shm::ShmEndpoint;
use core::sync::atomic::Ordering;

/// Whether an upgrade request may come for a connection from another host that was accepted at this port.
pub fn may_be_upgraded(port: u16) -> bool {
    status::count() > 0 && listeners::listens(port)
}

/// A connection was accepted, and can be found.
pub fn accepted() {
    // Relaxed: a connection that is asked for after this is found anyway; for one asked for before, the engine looks
    // once a second at the latest.
    ACCEPTED.fetch_add(1, Ordering::Relaxed);
    progress::progress();
}

/// Leaves a prepared connection where it is, as the program wants.
pub fn cancel(program: &'static ShmEndpoint) {
    if let Some(cell) = program.side.engine().and_then(cell::at) {
        cell.with_from_app(|e| e.mux.cancel(program));
    }
}
