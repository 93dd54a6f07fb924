//! Client's host: connects that wait on the links of routes, and the queue pairs that they go by.

use crate::rdma::engine::mux::Mux;
use crate::rdma::engine::order;
use crate::rdma::engine::qp::{QpRecord, Stage};
use crate::rdma::engine::qps::MAX_QPS;
use crate::rdma::engine::routes::{RouteEntry, Routes};
use crate::shm::ShmEndpoint;
use crate::shm::claim::take_slot;
use netacc_ring::to_usize;
use netacc_sys::time;
use netacc_verbs::{Error, Result};
use netacc_wire::frame::encode_addresses;

/// Most queue pairs that are being connected to one destination at a time.
const AT_A_TIME: usize = 16;

/// Number of local ports in a row that may turn out to be taken; more than that are no accident.
const PORTS_TAKEN: u32 = 8;

impl Routes {
    /// Takes connects that wait on the link of a route, as many as there are queue pairs for.
    pub fn take_connects(&mut self, mux: &mut Mux, local: usize) {
        self.take_queued(mux, local);
        mux.links.count_waiting(local);
    }

    /// Takes the connects that wait on all links.
    pub fn take_all_connects(&mut self, mux: &mut Mux) {
        for local in 0..mux.links.table.len() {
            self.take_connects(mux, local);
        }
    }

    fn take_queued(&mut self, mux: &mut Mux, local: usize) {
        let Some((link, route)) = mux.links.table.get(local).and_then(|l| Some((l.link, l.route?))) else { return };
        let Some(dest) = self.table.get(route).map(|r| r.dest) else { return };
        self.pass_ticket(mux, route);
        while let Some(queued) = link.segment().map(|s| s.queued()).filter(|n| *n > 0) {
            let Some(qp_index) = self.choose_qp(mux, route, to_usize(queued)) else {
                // If there is no queue pair to wait for, the connects that wait go by TCP, and the next one asks which
                // process listens there now.
                if self.table.get(route).is_some_and(|r| r.qps.is_empty() || self.all_doubted(mux, r)) {
                    self.detach_route(mux, route);
                }
                return;
            };
            if !self.holds_oldest_ticket(mux, route) || !self.may_send_connect(mux, route, Some(qp_index)) {
                return;
            }
            let Some(slot) = link.pop() else { return };
            let Some(ep) = take_slot(link, slot) else {
                order::discard_oldest(mux.qps.index, dest);
                continue;
            };
            let told = link
                .segment()
                .and_then(|s| s.slot(slot as usize).map(|s| (s.open.address(0), s.open.address(1))))
                .and_then(|(client, server)| Some(encode_addresses(client?, server?)));
            let begun = match told {
                Some(addresses) => mux.begin(ep, local, qp_index, None, Some(addresses)),
                None => {
                    crate::Endpoint::close(ep, true);
                    None
                }
            };
            match begun {
                Some(conn) => {
                    self.show_taken(mux, qp_index, ep, local);
                    self.note_open(mux, route, qp_index, conn);
                }
                None => order::discard_oldest(mux.qps.index, dest),
            }
        }
    }

    /// Whether the queue pairs of a route may all have lost their other side.
    fn all_doubted(&self, mux: &Mux, r: &RouteEntry) -> bool {
        let mut up = r.qps.iter().filter_map(|at| mux.qps.table.get(*at)).filter(|e| e.is_up()).peekable();
        up.peek().is_some() && !up.any(QpRecord::takes_more)
    }

    /// Chooses a queue pair of a route that can have one more connection; begins more if they are wanted.
    pub fn choose_qp(&mut self, mux: &mut Mux, route: usize, queued: usize) -> Option<usize> {
        let least = loop {
            let up = |at: &usize| mux.qps.table.get(*at).filter(|e| e.takes_more());
            let r = self.table.get(route)?;
            let least = r.qps.iter().filter_map(|at| Some((up(at)?.conns.len(), *at))).min();
            match least {
                Some((_, qp_index)) if mux.qps.seems_gone(qp_index) => {}
                least => break least,
            }
        };
        let r = self.table.get(route)?;
        if least.is_none() && self.all_doubted(mux, r) {
            return None;
        }
        // Where there is no queue pair, those that are being connected decide: a new one for each that fails would go
        // on for ever.
        let backoff = r.backoff_until != 0 && (least.is_none() || time::now() < r.backoff_until);
        if let Some((load, qp_index)) = least
            && (load < mux.qps.limits.conn_per_qp || backoff)
        {
            return Some(qp_index);
        }
        if backoff {
            return None;
        }
        let connecting = r.qps.iter().filter(|at| mux.qps.table.get(**at).is_some_and(|e| !e.is_up())).count();
        for _ in connecting..queued.div_ceil(mux.qps.limits.conn_per_qp).min(AT_A_TIME) {
            if self.begin_qp(mux, route).is_err() {
                if let Some(r) = self.table.get_mut(route) {
                    r.note_backoff();
                }
                return least.map(|(_, qp_index)| qp_index);
            }
        }
        None
    }

    /// Shows the queue pair of a connection on the stats page. On the server's host that was told before the connect
    /// was queued.
    pub fn show_taken(&self, mux: &Mux, qp_index: usize, ep: &'static ShmEndpoint, local: usize) {
        let link = mux.links.table.get(local).and_then(|l| Some((l.link, self.table.get(l.route?)?)));
        if let Some((local, route)) = link {
            mux.qps.show_taken(qp_index, ep, local, route.link);
        }
    }

    /// Begins to connect a further queue pair for a route.
    pub fn begin_qp(&mut self, mux: &mut Mux, route: usize) -> Result<()> {
        if mux.qps.is_unmanaged(time::now()) {
            return Err(Error::NoDevice);
        }
        let r = self.table.get_mut(route).ok_or(Error::NoDevice)?;
        let full = Error::Misuse { verb: "rdma_create_id", why: "too many queue pairs" };
        let at = mux.qps.table.add(MAX_QPS, QpRecord::new(Stage::Wanted, 0, Some(route), r.dest.port())).ok_or(full)?;
        r.qps.push(at);
        if mux.qps.events.is_none() {
            // The thread will get the connection manager first.
            mux.status.ring();
            return Ok(());
        }
        let dest = r.dest;
        mux.qps.resolve(at, dest).inspect_err(|_| {
            mux.qps.table.remove(at);
            if let Some(r) = self.table.get_mut(route) {
                r.qps.retain(|p| *p != at);
            }
        })
    }

    /// Begins a queue pair like the one that could not be connected, from another port.
    pub fn try_another_port(&mut self, mux: &mut Mux, route: usize, error: &Error) -> bool {
        let Some(r) = self.table.get_mut(route).filter(|r| r.ports_taken < PORTS_TAKEN) else { return false };
        r.ports_taken += 1;
        netacc_log::log!(Debug, "{}: local port is taken ({error}); connecting from another port", r.dest);
        self.begin_qp(mux, route).is_ok()
    }
}
