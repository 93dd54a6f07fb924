//! The connections of an engine, and which of them are to be looked at.

use crate::rdma::engine::mux::conn::{Conn, Sent, Source};
use crate::rdma::engine::qps::Qps;
use crate::rdma::engine::table::Table;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The connections of an engine.
#[derive(Debug, Default)]
pub(in crate::rdma::engine) struct Conns {
    pub table: Table<Conn>,
    /// Connections that are to be looked at.
    pub ready: VecDeque<usize>,
    /// Connections that wait for a buffer to send from.
    pub starved: VecDeque<usize>,
    /// Connections that a descriptor of their own can wake.
    pub listed: Vec<usize>,
    /// Connections that are still on kernel TCP.
    pub pending_upgrades: Vec<usize>,
    /// Value of [`ACCEPTED`](super::upgrade::ACCEPTED), the number of accepted connections that clients may ask for, at
    /// the last look.
    pub accepted: usize,
}

/// What sending leaves to the engine.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::rdma::engine) struct Sending {
    /// The program's side was reset, and the other side has been told: the connection is over.
    pub reset: bool,
    /// More registered memory is needed.
    pub short: bool,
}

impl Conns {
    /// Puts a connection into the queue of those to be looked at.
    pub fn queue(&mut self, at: usize) {
        if let Some(conn) = self.table.get_mut(at)
            && !conn.sched().is_ready()
        {
            conn.set_sched(conn.sched().queued());
            self.ready.push_back(at);
        }
    }

    /// Has the connections go on, in turn, that wait for buffers to send from, since some are free again.
    pub fn feed(&mut self) {
        for _ in 0..self.starved.len() {
            let Some(at) = self.starved.pop_front() else { return };
            if let Some(conn) = self.table.get_mut(at) {
                conn.set_sched(conn.sched().resumed());
                self.queue(at);
            }
        }
    }

    /// A queue pair may have room again: has the connections that wait for it go on, in turn.
    pub fn unstall(&mut self, qps: &mut Qps, at: usize) {
        if !qps.send_resets(at) || !qps.path(at).is_some_and(|path| path.can_send()) {
            return;
        }
        let Some(qp) = qps.table.get_mut(at) else { return };
        for _ in 0..qp.stalled.len() {
            let Some(c) = qp.stalled.pop_front() else { return };
            if let Some(conn) = self.table.get_mut(c).filter(|c| c.sched().is_stalled() && c.qp == at) {
                conn.set_sched(conn.sched().resumed());
                self.queue(c);
            }
        }
    }

    /// Sends what a connection may send now.
    pub fn send_from(&mut self, qps: &mut Qps, at: usize, from: &mut Source<'_, '_>) -> Sending {
        let mut left = Sending::default();
        let Some(conn) = self.table.get_mut(at) else { return left };
        let qp_index = conn.qp;
        let Some(qp) = qps.table.get_mut(qp_index) else { return left };
        let Some(mut path) = qp.path(&mut qps.devices) else { return left };
        let sent = conn.send(&mut path, from);
        // A connection that was given a buffer that is not large counts, too.
        left.short = path.is_short();
        let waiting = path.is_waiting();
        match sent {
            // Only the reading has found that the program's side has left, or has come to the end of what it left in
            // the ring: nothing else may ever tell us to follow it.
            Sent::All if conn.kernel < 0 && conn.ep.side.is_leaving() && conn.ep.must_switch() => self.queue(at),
            Sent::All => {}
            Sent::More => self.queue(at),
            Sent::Stalled => {
                if !conn.sched().is_stalled() {
                    conn.set_sched(conn.sched().stalled());
                    qp.stalled.push_back(at);
                }
            }
            // The connections that hold the buffers may be on other queue pairs.
            Sent::Starved => {
                if !conn.sched().is_stalled() {
                    conn.set_sched(conn.sched().stalled());
                    self.starved.push_back(at);
                }
            }
            Sent::Reset => left.reset = true,
            Sent::Broken => qps.broken.push(qp_index),
        }
        if waiting {
            qps.post_later(qp_index);
        }
        left
    }
}
