//! Moves the bytes of connections: from their rings to queue pairs, and back.

use crate::rdma::engine::conn::{Conn, Source};
use crate::rdma::engine::sleep::SleepOn;
use crate::rdma::engine::worker::Engine;

impl Engine {
    /// Moves what can be moved of a connection, in both directions.
    pub(super) fn pump(&mut self, at: usize) {
        self.pump_now(at);
        // A thread of the program may have moved bytes while ours sleeps on something else.
        if self.sleep.on != SleepOn::Awake && self.conns.table.get(at).is_some_and(Conn::is_unheard) {
            self.ring();
        }
    }

    fn pump_now(&mut self, at: usize) {
        let Some(conn) = self.conns.table.get_mut(at) else { return };
        conn.queued = false;
        if conn.upgrade.is_some() && !self.pump_pending(at) {
            return;
        }
        let Some(conn) = self.conns.table.get_mut(at) else { return };
        let there = conn.accept_switch();
        if !conn.listed && conn.waits_on().is_some() {
            conn.listed = true;
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
        if conn.cut {
            return self.pump_cut(at);
        }
        self.send_from(at, &mut Source::Ring);
        if self.conns.table.get(at).is_some_and(|c| c.fin_sent && c.fin_given) {
            self.drop_conn(at, false);
        }
    }

    /// Sends what a connection may send now.
    pub(super) fn send_from(&mut self, at: usize, from: &mut Source<'_, '_>) {
        let sent = self.conns.send_from(&mut self.qps, at, from);
        if sent.short {
            self.is_short();
        }
        if sent.reset {
            self.drop_conn(at, true);
        }
    }
}
