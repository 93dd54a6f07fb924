//! Links, and the connections that begin on them.

use crate::rdma::engine::order;
use crate::rdma::engine::qp::QpRecord;
use crate::rdma::engine::routes::RouteEntry;
use crate::rdma::engine::worker::Engine;
use crate::shm::ShmEndpoint;
use crate::shm::claim::take_slot;
use crate::shm::slots::CONTROL_SLOT;
use alloc::vec::Vec;
use netacc_sys::time;
use netacc_wire::frame::encode_addresses;

/// Most queue pairs that are being connected to one destination at a time.
const AT_A_TIME: usize = 16;

impl Engine {
    /// Looks for connections that have news.
    pub(super) fn check_locals(&mut self) -> bool {
        let mut busy = false;
        let mut at = 0;
        while at < self.mux.links.table.len() {
            if let Some(local) = self.mux.links.table.get(at)
                && let Some(ready_set) = local.link.my_ready_set(local.ready_set)
            {
                for slot in ready_set.take() {
                    busy = true;
                    if slot == CONTROL_SLOT {
                        self.take_connects(at);
                    } else if let Some(c) = self.mux.links.conn_at(at, slot) {
                        self.mux.conns.queue(c);
                    }
                }
            }
            at += 1;
        }
        busy
    }

    /// Client's host: takes connects that wait on the link of a route, as many as there are queue pairs for.
    pub(super) fn take_connects(&mut self, local: usize) {
        self.take_queued(local);
        self.mux.links.count_waiting(local);
    }

    /// Client's host: takes the connects that wait on all links.
    pub(super) fn take_all_connects(&mut self) {
        for local in 0..self.mux.links.table.len() {
            self.take_connects(local);
        }
    }

    fn take_queued(&mut self, local: usize) {
        let Some((link, route)) = self.mux.links.table.get(local).and_then(|l| Some((l.link, l.route?))) else {
            return;
        };
        let Some(dest) = self.routes.table.get(route).map(|r| r.dest) else { return };
        self.pass_ticket(route);
        while let Some(queued) = link.segment().map(|s| s.queued()).filter(|n| *n > 0) {
            let Some(qp_index) = self.choose_qp(route, queued as usize) else {
                // If there is no queue pair to wait for, the connects that wait go by TCP, and the next one asks which
                // process listens there now.
                if self.routes.table.get(route).is_some_and(|r| r.qps.is_empty() || self.all_doubted(r)) {
                    self.detach_route(route);
                }
                return;
            };
            if !self.holds_oldest_ticket(route) || !self.may_send_connect(route, Some(qp_index)) {
                return;
            }
            let Some(slot) = link.pop() else { return };
            let Some(ep) = take_slot(link, slot) else {
                order::discard_oldest(self.index, dest);
                continue;
            };
            let told = link
                .segment()
                .and_then(|s| s.slot(slot as usize).map(|s| (s.open.address(0), s.open.address(1))))
                .and_then(|(client, server)| Some(encode_addresses(client?, server?)));
            let begun = match told {
                Some(addresses) => self.mux.begin(ep, local, qp_index, None, Some(addresses)),
                None => {
                    crate::Endpoint::close(ep, true);
                    None
                }
            };
            match begun {
                Some(conn) => {
                    self.show_taken(qp_index, ep, local);
                    self.note_open(route, qp_index, conn);
                }
                None => order::discard_oldest(self.index, dest),
            }
        }
    }

    /// Whether the queue pairs of a route may all have lost their other side.
    fn all_doubted(&self, r: &RouteEntry) -> bool {
        let mut up = r.qps.iter().filter_map(|at| self.mux.qps.table.get(*at)).filter(|e| e.is_up()).peekable();
        up.peek().is_some() && !up.any(QpRecord::takes_more)
    }

    /// Chooses a queue pair of a route that can have one more connection; begins more if they are wanted.
    pub(super) fn choose_qp(&mut self, route: usize, queued: usize) -> Option<usize> {
        let least = loop {
            let up = |at: &usize| self.mux.qps.table.get(*at).filter(|e| e.takes_more());
            let r = self.routes.table.get(route)?;
            let least = r.qps.iter().filter_map(|at| Some((up(at)?.conns.len(), *at))).min();
            match least {
                Some((_, qp_index)) if self.mux.qps.seems_gone(qp_index) => {}
                least => break least,
            }
        };
        let r = self.routes.table.get(route)?;
        if least.is_none() && self.all_doubted(r) {
            return None;
        }
        // Where there is no queue pair, those that are being connected decide: a new one for each that fails would go
        // on for ever.
        let backoff = r.backoff_until != 0 && (least.is_none() || time::now() < r.backoff_until);
        if let Some((load, qp_index)) = least
            && (load < self.mux.qps.limits.conn_per_qp || backoff)
        {
            return Some(qp_index);
        }
        if backoff {
            return None;
        }
        let connecting = r.qps.iter().filter(|at| self.mux.qps.table.get(**at).is_some_and(|e| !e.is_up())).count();
        for _ in connecting..queued.div_ceil(self.mux.qps.limits.conn_per_qp).min(AT_A_TIME) {
            if self.begin_qp(route).is_err() {
                if let Some(r) = self.routes.table.get_mut(route) {
                    r.note_backoff();
                }
                return least.map(|(_, qp_index)| qp_index);
            }
        }
        None
    }

    /// Handles what a link's control socket has: messages, or the end.
    pub(super) fn serve_local(&mut self, at: usize) {
        let Some(local) = self.mux.links.table.get_mut(at) else { return };
        local.link.service();
        local.ended = local.link.is_lost();
        let here: Vec<usize> = local.slots.iter().filter_map(|c| (*c as usize).checked_sub(1)).collect();
        let (ended, route) = (local.ended, local.route);
        if !ended {
            return;
        }
        for c in &here {
            self.mux.conns.queue(*c);
        }
        if here.is_empty() {
            self.mux.links.drop(at);
        }
        if let Some(route) = route {
            self.detach_route(route);
        }
    }

    /// Client's host: shows by which queue pair a connection goes. On the server's host that was told before the connect was
    /// queued.
    pub(super) fn show_taken(&self, qp_index: usize, ep: &'static ShmEndpoint, local: usize) {
        let link = self.mux.links.table.get(local).and_then(|l| Some((l.link, self.routes.table.get(l.route?)?)));
        if let Some((local, route)) = link {
            self.mux.qps.show_taken(qp_index, ep, local, route.link);
        }
    }
}
