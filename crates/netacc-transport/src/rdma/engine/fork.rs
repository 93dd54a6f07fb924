//! A fork: the engines are at rest meanwhile, and stay the parent's.

use crate::rdma::engine::companions::own_port;
use crate::rdma::engine::worker::Engine;
use crate::rdma::engine::{cell, exit_handoff, manager, order, process, status};
use netacc_sys::Guard;

/// What is at rest as long as this lives, in the parent and the child of a fork. It is dropped in the parent alone.
#[derive(Debug, Default)]
pub struct AtRest {
    // In this order: an engine's lock is free before libraries are loaded again.
    engines: cell::AtRest,
    /// No library is being loaded.
    #[expect(dead_code, reason = "held as long as it lives")]
    loading: Option<Guard<'static>>,
}

/// Before a fork: the engines are at rest until the result is dropped. `in_handler`: a signal handler forks that has
/// interrupted a holder of locks.
pub fn before_fork(in_handler: bool) -> AtRest {
    exit_handoff::take_back();
    if status::count() == 0 {
        // Nothing is loaded without one.
        return AtRest::default();
    }
    if !in_handler && let Some(first) = cell::first() {
        first.with_from_app(Engine::note_open_devices);
    }
    let loading = manager::at_rest(in_handler);
    AtRest { engines: cell::stop(in_handler), loading }
}

/// For the child of a fork: the engines are the parent's. Their memory is left alone, their descriptors are closed, so
/// that the parent's end is the end of its queue pairs.
pub fn after_fork(stopped: &AtRest) {
    order::after_fork();
    own_port::after_fork();
    if cell::abandon(&stopped.engines) {
        process::inherit();
    }
}
