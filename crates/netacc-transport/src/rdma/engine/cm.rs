//! Queue pairs that come and go.

use crate::host::Reachability;
use crate::limits::CM_EVENTS_PER_PASS;
use crate::num;
use crate::rdma::engine::listeners::LISTENER;
use crate::rdma::engine::probe::Answer;
use crate::rdma::engine::qp::{QP_CONNECT, QpRecord, Stage, tag};
use crate::rdma::engine::qps::{RESOLVE, retry_resolve};
use crate::rdma::engine::routes::{Route, learn, why};
use crate::rdma::engine::worker::Engine;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use netacc_stats::Reason;
use netacc_sys::errno::Errno;
use netacc_sys::time;
use netacc_verbs::{CmEvent, CmEventType, CmId, Error, EventChannel};
use netacc_wire::companion as wire;
use netacc_wire::qp_hello::{QpHello, Stranger};

/// Makes the queue pair on a route that was resolved, and begins to connect it.
fn connect(engine: &mut Engine, at: usize, id: CmId) -> core::result::Result<(), Error> {
    let wants_companion = engine.mux.qps.limits.tcp_companion;
    let companion = if wants_companion { wire::CompanionOffer::Wanted } else { wire::CompanionOffer::None };
    engine.mux.qps.make(id, at)?;
    engine.routes.check_source(&engine.mux, at)?;
    match engine.mux.qps.table.get_mut(at).map(QpRecord::stage_mut) {
        Some(Stage::Connecting(qp_index)) => qp_index.connect(companion),
        _ => Err(Error::NoDevice),
    }
}

impl Engine {
    /// The route to a server on another host.
    pub fn route(&mut self, dest: SocketAddr) -> Route {
        self.serve_cm_events();
        self.routes.route(&mut self.mux, dest)
    }

    /// Takes in what a server has answered to a [`probe`](super::probe).
    pub fn on_probe_answer(&mut self, server: SocketAddr, answer: Answer) {
        self.serve_cm_events();
        self.routes.on_probe_answer(&mut self.mux, server, answer);
    }

    /// Asks the connection manager for the route to a server, if it is not known. False: no more servers can be known.
    pub fn begin_route(&mut self, dest: SocketAddr) -> bool {
        self.serve_cm_events();
        self.routes.begin_route(&mut self.mux, dest)
    }

    /// Handles the events of the connection manager, a few at a time. Its descriptor stays readable while there are
    /// more.
    pub fn serve_cm_events(&mut self) {
        for _ in 0..CM_EVENTS_PER_PASS {
            let Some(Ok(Some(event))) = self.mux.qps.events.as_ref().map(EventChannel::get_event) else { return };
            if event.event_type == CmEventType::CONNECT_REQUEST {
                self.requested(event);
                continue;
            }
            if event.cookie & LISTENER != 0 {
                if event.event_type == CmEventType::DEVICE_REMOVAL {
                    let gone = self.listeners.forget(&self.companions.watch, event.cookie, &self.mux.qps.devices);
                    // What else is on the device would hold up the device's removal.
                    if let Some(device) = gone {
                        self.device_goes(device);
                    }
                }
                continue;
            }
            let at = (event.cookie & 0xff_ffff) as usize;
            if tag(&self.mux.qps.table, at) == num::low_half(event.cookie)
                && let Some(qp) = self.mux.qps.table.get(at)
            {
                let device = qp.device_if_known();
                self.on_cm_event(at, &event);
                if event.event_type == CmEventType::DEVICE_REMOVAL
                    && let Some(device) = device
                {
                    self.device_goes(device);
                }
            }
        }
    }

    /// Takes a step of a queue pair's life.
    fn on_cm_event(&mut self, at: usize, event: &CmEvent) {
        let Some(qp) = self.mux.qps.table.get_mut(at) else { return };
        let stage = qp.take_stage();
        let mut offered = wire::CompanionOffer::None;
        let next = match (stage, event.event_type) {
            // The queue pair is gone already.
            (stage @ Stage::FailedOver(_), _) => return self.mux.qps.set_stage(at, stage),
            (Stage::Resolving(id, tries), CmEventType::ADDR_ERROR) if tries < RESOLVE.len() => {
                self.dest_of(at).ok_or(Error::NoDevice).and_then(|dest| retry_resolve(id, tries, dest))
            }
            (Stage::Resolving(id, _), CmEventType::ADDR_RESOLVED) => {
                id.resolve_route(2_000).map(|()| Stage::Routing(id))
            }
            (Stage::Routing(id), CmEventType::ROUTE_RESOLVED) => {
                return connect(self, at, id).unwrap_or_else(|e| self.failed(at, why(&e), &e));
            }
            (Stage::Connecting(mut qp_index), CmEventType::ESTABLISHED) => {
                if let Ok(hello) = QpHello::decode(event.private_data.as_slice()) {
                    qp_index.start(hello);
                    offered = hello.companion;
                    Ok(Stage::Up(qp_index))
                } else {
                    self.mux.qps.set_stage(at, Stage::Connecting(qp_index));
                    Err(Error::Misuse { verb: "rdma_connect", why: "the other side is no NetACC of this version" })
                }
            }
            (stage, CmEventType::DEVICE_REMOVAL) => {
                self.mux.qps.set_stage(at, stage);
                return self.qp_failed(at, "the device is removed");
            }
            (stage, CmEventType::DISCONNECTED | CmEventType::TIMEWAIT_EXIT) => {
                self.mux.qps.set_stage(at, stage);
                return self.qp_ended(at, "the other side has ended it");
            }
            (stage, _) if event.event_type.is_failure() => {
                let error = event.check().err().unwrap_or(Error::NoDevice);
                let refused = QpHello::decode(event.private_data.as_slice()) == Err(Stranger::Version);
                self.mux.qps.set_stage(at, stage);
                return self.failed(at, if refused { Reason::PeerVersion } else { why(&error) }, &error);
            }
            (stage, _) => Ok(stage),
        };
        match next {
            Ok(stage) => {
                let up = matches!(stage, Stage::Up(_)) && event.event_type == CmEventType::ESTABLISHED;
                self.mux.qps.set_stage(at, stage);
                if let Some(route) = self.mux.qps.table.get(at).and_then(|e| e.route).filter(|_| up) {
                    self.mux.qps.count_up(at);
                    self.companions.connect(&mut self.mux.qps, at, offered);
                    self.end_lost();
                    self.routes.open_route(&mut self.mux, route, at);
                }
            }
            Err(e) => self.failed(at, why(&e), &e),
        }
    }

    /// Client's host: the server to which a queue pair leads.
    pub(super) fn dest_of(&self, at: usize) -> Option<SocketAddr> {
        let route = self.mux.qps.table.get(at)?.route?;
        Some(self.routes.table.get(route)?.dest)
    }

    /// To be called when a queue pair could not be connected.
    pub(super) fn failed(&mut self, at: usize, reason: Reason, error: &Error) {
        let route = self.mux.qps.table.get(at).and_then(|e| e.route);
        if let Some(route) = route.filter(|route| self.routes.is_optimistic(&self.mux, *route))
            && let Some(r) = self.routes.table.get(route)
        {
            learn(r.dest, Reachability::Broken);
        }
        // Before the end of the queue pair, so that the route has one all the time.
        let again = route
            .is_some_and(|route| error.is_port_taken() && self.routes.try_another_port(&mut self.mux, route, error));
        self.end_qp(at, "it could not be connected");
        let Some(route) = route.filter(|_| !again) else { return };
        let Some(r) = self.routes.table.get_mut(route) else { return };
        let doubted = |p: &usize| self.mux.qps.table.get(*p).is_some_and(|e| e.is_up() && !e.takes_more());
        if r.qps.iter().all(doubted) {
            self.routes.close_route(&mut self.mux, route, reason, error);
        } else {
            r.note_backoff();
            self.mux
                .links
                .of_route(route)
                .into_iter()
                .for_each(|local| self.routes.take_connects(&mut self.mux, local));
        }
    }

    /// Ends a queue pair, and with it its connections.
    pub(super) fn end_qp(&mut self, at: usize, how: &str) {
        self.end_qp_with(at, how, None);
    }

    /// Ends a queue pair as [`Engine::end_qp`] does; `error` is what its connections get, if the other side has not
    /// ended them.
    pub(super) fn end_qp_with(&mut self, at: usize, how: &str, error: Option<Errno>) {
        let Some(mut qp) = self.mux.qps.table.remove(at) else { return };
        if qp.route.is_none() {
            self.status.served.fetch_sub(1, Ordering::Relaxed);
        }
        // Without a companion connection a failure looks like the end of the other side's process, which lives, and may
        // have said more. The companion connection may have ended just before, with that process.
        let ended = qp.doubted != 0 && time::now() < qp.doubted.saturating_add(QP_CONNECT);
        let has_companion = ended || qp.companion.is_hoped_for() || qp.is_failed_over();
        let known = has_companion && error.is_none();
        // Done first, so that the other side does not fail over to the companion.
        qp.companion.close();
        match qp.take_stage() {
            Stage::Up(qp_conn) | Stage::Connecting(qp_conn) => {
                netacc_log::log!(Debug, "QP {}: closed with {} connections: {how}", qp_conn.qp_num(), qp.conns.len());
                qp_conn.disconnect();
                if let Some(device) = self.mux.qps.devices.get_mut(qp.device) {
                    qp_conn.end(device);
                }
                self.mux.conns.feed();
            }
            Stage::FailedOver(failed) => {
                netacc_log::log!(Debug, "failed QP: closed with {} connections: {how}", qp.conns.len());
                failed.end();
                self.companions.failed_over.retain(|m| *m != at);
            }
            Stage::Wanted | Stage::Requested | Stage::Resolving(..) | Stage::Routing(_) | Stage::Taken(_) => {}
        }
        let conns: Vec<usize> = qp.conns.into_values().collect();
        if let Some(error) = error {
            let cut: Vec<usize> = conns
                .iter()
                .copied()
                .filter(|c| self.mux.conns.table.get(*c).is_some_and(|conn| !conn.rx().is_over()))
                .collect();
            self.mux.for_each_conn_of_program(&cut, |conn| conn.ep.fail(error));
        }
        for c in conns {
            self.mux.cut(c, known);
        }
        self.routes.drop_route_qp(&mut self.mux, at, qp.route);
    }
}
