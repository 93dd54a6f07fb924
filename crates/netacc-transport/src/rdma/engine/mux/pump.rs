//! Moves the bytes of connections: from their rings to queue pairs, and back.

use crate::rdma::engine::mux::Mux;
use crate::rdma::engine::mux::conn::{Conn, Source};
use crate::rdma::engine::mux::state::{RxState, TxState};

impl Mux {
    /// Moves what can be moved of a connection, in both directions.
    pub fn pump(&mut self, at: usize) {
        self.pump_now(at);
        // A thread of the program may have moved bytes while ours sleeps on something else.
        if self.links.asleep && self.conns.table.get(at).is_some_and(Conn::is_unheard) {
            self.status.ring();
        }
    }

    fn pump_now(&mut self, at: usize) {
        let Some(conn) = self.conns.table.get_mut(at) else { return };
        conn.set_sched(conn.sched().taken());
        if conn.upgrade.is_some() && !self.pump_pending(at) {
            return;
        }
        let Some(conn) = self.conns.table.get_mut(at) else { return };
        let there = conn.accept_switch();
        if conn.slept_on.is_none() && conn.waits_on().is_some() {
            // The thread does not sleep on it yet.
            conn.slept_on = Some((-1, 0));
            self.conns.listed.push(at);
        }
        if !there {
            if !self.redispatch_orphan(at) {
                self.reset(at);
            }
            return;
        }
        if !conn.give_pending() {
            return self.reset(at);
        }
        if conn.tx() == TxState::Cut {
            return self.pump_cut(at);
        }
        self.send_from(at, &mut Source::Ring);
        if self.conns.table.get(at).is_some_and(|c| c.tx() == TxState::Ended && c.rx() == RxState::Given) {
            self.drop_conn(at, false);
        }
    }

    /// Sends what a connection may send now.
    pub fn send_from(&mut self, at: usize, from: &mut Source<'_, '_>) {
        let sent = self.conns.send_from(&mut self.qps, at, from);
        if sent.short {
            self.qps.is_short();
        }
        if sent.reset {
            self.drop_conn(at, true);
        }
    }

    /// The last connection that was opened on a queue pair, if the other side has not been told of it.
    pub fn unsent(&self, qp_index: usize) -> Option<usize> {
        let opened = self.qps.table.get(qp_index)?.opened?;
        self.conns
            .table
            .get(opened.conn)
            .filter(|c| c.qp == qp_index && c.tx() == TxState::Opening)
            .map(|_| opened.conn)
    }
}
