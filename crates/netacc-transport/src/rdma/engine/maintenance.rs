//! Periodic work about what grows old: idle queue pairs, attempts that come to nothing, answers that are no longer
//! believed.

use crate::rdma::engine::qp::{QP_CONNECT, Stage};
use crate::rdma::engine::qps::Qps;
use crate::rdma::engine::routes::{RouteEntry, Routes, State};
use crate::rdma::engine::worker::Engine;
use crate::rdma::engine::{listeners, order};
use crate::shm::Link;
use alloc::vec::Vec;
use netacc_stats::Reason;
use netacc_sys::errno::Errno;
use netacc_verbs::Error;

/// The queue pairs to be ended since they do nothing, and those that were not connected in time, with an error.
fn old_qps(qps: &Qps, routes: &Routes, now: u64) -> Vec<(usize, Option<Error>)> {
    let mut idle = 0;
    let mut old = Vec::new();
    for (at, e) in qps.table.each() {
        let age = now.saturating_sub(e.idle_since);
        match e.stage() {
            // The last messages of its connections have reached the other host.
            Stage::Up(qp_conn)
                if e.conns.is_empty() && e.route.is_some() && (qp_conn.is_flushed() || age > QP_CONNECT) =>
            {
                let same = |p: &&usize| qps.table.get(**p).is_some_and(|p| p.is_up() && p.conns.is_empty());
                let here = e.route.and_then(|r| routes.table.get(r)).map_or(0, |r| r.qps.iter().filter(same).count());
                idle += 1;
                if qps.limits.idle_ns.is_some_and(|ns| age > ns)
                    || idle > qps.limits.idle_all
                    || here > qps.limits.idle_per + old.len()
                {
                    old.push((at, None));
                }
            }
            // A client connects because it has something to say: a queue pair that is only held costs us memory.
            Stage::Up(_) if e.route.is_none() && !e.used && age > QP_CONNECT * 5 => old.push((at, None)),
            // Its client is to ask the process that listens there now, rather than one that may be about to end.
            // The last connection's end has to arrive first.
            Stage::Up(_)
                if e.route.is_none() && e.conns.is_empty() && age > QP_CONNECT && !listeners::listens(e.port) =>
            {
                old.push((at, None));
            }
            Stage::Up(_) | Stage::FailedOver(_) => {}
            _ if age > QP_CONNECT => old.push((at, Some(Error::Verb { verb: "rdma_connect", errno: Errno::TIMEDOUT }))),
            _ => {}
        }
    }
    old
}

impl Engine {
    /// Whether something may grow old.
    pub(super) fn needs_maintenance(&self) -> bool {
        self.mux.qps.table.each().next().is_some()
            || self.routes.table.each().next().is_some()
            || self.removals.are_suspected()
            || self.companions.awaits_any()
            || self.listeners.has_to_try()
            || self.mux.qps.devices.iter().any(|d| d.pool.holds_any())
    }

    /// Done once in a while: ends queue pairs that do nothing, or are not connected in time; opens listeners whose port
    /// was taken.
    pub(super) fn maintain(&mut self, now: u64) {
        self.probe_silent(now);
        self.maintain_failovers(now);
        self.mux.send_final_acks();
        self.mux.qps.shrink();
        self.companions.close_unawaited(&self.mux.qps);
        self.companions.arrivals.retry_listen(&self.companions.watch);
        self.mux.redispatch_queued();
        self.mux.maintain_pending(now);
        for (at, error) in old_qps(&self.mux.qps, &self.routes, now) {
            match error {
                None => self.end_qp(at, "it has been idle"),
                Some(e) => self.failed(at, Reason::PeerPlain, &e),
            }
        }
        let is_over = |link: &Link, route: Option<usize>| link.is_lost() || (route.is_none() && link.is_withdrawn());
        let links = self.mux.links.table.each();
        let lost = links.filter(|(_, l)| is_over(l.link, l.route) && l.slots.iter().all(|s| *s == 0));
        for at in lost.map(|(at, _)| at).collect::<Vec<_>>() {
            self.mux.links.drop(at);
        }
        let past = |r: &RouteEntry| matches!(r.state(), State::Closed(_, until) if until <= now);
        let gone = |r: &RouteEntry| r.qps.is_empty() && r.local.is_none() && (past(r) || r.state() == State::Opening);
        let forgotten: Vec<usize> = self.routes.table.each().filter(|(_, r)| gone(r)).map(|(at, _)| at).collect();
        for at in forgotten {
            self.routes.table.remove(at);
        }
        self.open_listeners();
        // Whatever became of the connects that had a ticket: no engine waits for a turn that does not come.
        let holds = |dest| self.routes.table.each().any(|(_, r)| r.dest == dest && r.holds_ticket);
        let waits = |dest| {
            holds(dest)
                || self.mux.links.table.each().any(|(_, l)| {
                    let there = l.route.and_then(|r| self.routes.table.get(r)).is_some_and(|r| r.dest == dest);
                    there && l.has_queued()
                })
        };
        order::forget_others(self.index, waits);
        self.routes.take_all_connects(&mut self.mux);
    }
}
