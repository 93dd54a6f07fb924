//! Queue pairs that come and go.

use crate::host::Reachability;
use crate::limits::CM_EVENTS_PER_PASS;
use crate::rdma::engine::listeners::LISTENER;
use crate::rdma::engine::qp::{QP_CONNECT, QpRecord, Stage, tag};
use crate::rdma::engine::qps::MAX_QPS;
use crate::rdma::engine::routes::{learn, why};
use crate::rdma::engine::worker::Engine;
use crate::rdma::port_of;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use netacc_stats::Reason;
use netacc_sys::errno::Errno;
use netacc_sys::time;
use netacc_verbs::{CmEvent, CmEventType, CmId, Error, EventChannel, Result};
use netacc_wire::companion as wire;
use netacc_wire::frame::{QpHello, Stranger};

/// Time (ms) that the network is asked for a neighbour, at each try. The kernel misses an answer that comes while it
/// asks, and looks again when the time is over: so the first time is short.
const RESOLVE: [u32; 3] = [100, 300, 1_000];
/// A message that the other side does not confirm is sent again after 4.096 microseconds times two to the power of
/// this, which is half a second, and at the seventh time in vain the queue pair fails.
const ACK_TIMEOUT: u8 = 17;
/// Number of local ports in a row that may turn out to be taken; more than that are no accident.
const PORTS_TAKEN: u32 = 8;

impl Engine {
    /// Begins to connect a further queue pair for a route.
    pub(super) fn begin_qp(&mut self, route: usize) -> Result<()> {
        if self.is_unmanaged(time::now()) {
            return Err(Error::NoDevice);
        }
        let r = self.routes.table.get_mut(route).ok_or(Error::NoDevice)?;
        let full = Error::Misuse { verb: "rdma_create_id", why: "too many queue pairs" };
        let at =
            self.mux.qps.table.add(MAX_QPS, QpRecord::new(Stage::Wanted, 0, Some(route), r.dest.port())).ok_or(full)?;
        r.qps.push(at);
        if self.events.is_none() {
            // The thread will get the connection manager first.
            self.ring();
            return Ok(());
        }
        self.resolve(at).inspect_err(|_| {
            self.mux.qps.table.remove(at);
            if let Some(r) = self.routes.table.get_mut(route) {
                r.qps.retain(|p| *p != at);
            }
        })
    }

    /// Asks the connection manager for the route of a queue pair.
    pub(super) fn resolve(&mut self, at: usize) -> Result<()> {
        let (Some(events), Some(qp)) = (&self.events, self.mux.qps.table.get(at)) else { return Err(Error::NoDevice) };
        let dest = qp.route.and_then(|r| self.routes.table.get(r)).ok_or(Error::NoDevice)?.dest;
        let port = port_of(dest.port()).ok_or(Error::NoDevice)?;
        let id = CmId::create(events, u64::from(tag(&self.mux.qps.table, at)))?;
        // Not every kernel can set this.
        let _ = id.set_ack_timeout(ACK_TIMEOUT);
        let [first, ..] = RESOLVE;
        id.resolve_addr(None, SocketAddr::new(dest.ip(), port), first)?;
        self.mux.qps.put_back(at, Stage::Resolving(id, 1));
        Ok(())
    }

    /// Handles the events of the connection manager, a few at a time. Its descriptor stays readable while there are
    /// more.
    pub fn serve_cm_events(&mut self) {
        for _ in 0..CM_EVENTS_PER_PASS {
            let Some(Ok(Some(event))) = self.events.as_ref().map(EventChannel::get_event) else { return };
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
            let at = event.cookie as usize & 0xff_ffff;
            if tag(&self.mux.qps.table, at) == event.cookie as u32
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
        let stage = core::mem::replace(&mut qp.stage, Stage::Gone);
        let mut offered = wire::CompanionOffer::None;
        let next = match (stage, event.event_type) {
            // The queue pair is gone already.
            (stage @ Stage::FailedOver(_), _) => return self.mux.qps.put_back(at, stage),
            (Stage::Resolving(id, tries), CmEventType::ADDR_ERROR) if tries < RESOLVE.len() => {
                self.retry_resolve(at, id, tries)
            }
            (Stage::Resolving(id, _), CmEventType::ADDR_RESOLVED) => {
                id.resolve_route(2_000).map(|()| Stage::Routing(id))
            }
            (Stage::Routing(id), CmEventType::ROUTE_RESOLVED) => {
                let companion = if self.mux.qps.limits.tcp_companion {
                    wire::CompanionOffer::Wanted
                } else {
                    wire::CompanionOffer::None
                };
                let made = self.mux.qps.make(id, at).map(drop).and_then(|()| self.check_source(at));
                let connecting = made.and_then(|()| match self.mux.qps.table.get_mut(at).map(|e| &mut e.stage) {
                    Some(Stage::Connecting(qp_index)) => qp_index.connect(companion),
                    _ => Err(Error::NoDevice),
                });
                return connecting.unwrap_or_else(|e| self.failed(at, why(&e), &e));
            }
            (Stage::Connecting(mut qp_index), CmEventType::ESTABLISHED) => {
                if let Ok(hello) = QpHello::decode(event.private_data.as_slice()) {
                    qp_index.start(hello);
                    offered = hello.companion;
                    Ok(Stage::Up(qp_index))
                } else {
                    self.mux.qps.put_back(at, Stage::Connecting(qp_index));
                    Err(Error::Misuse { verb: "rdma_connect", why: "the other side is no NetACC of this version" })
                }
            }
            (stage, CmEventType::DEVICE_REMOVAL) => {
                self.mux.qps.put_back(at, stage);
                return self.qp_failed(at, "the device is removed");
            }
            (stage, CmEventType::DISCONNECTED | CmEventType::TIMEWAIT_EXIT) => {
                self.mux.qps.put_back(at, stage);
                return self.qp_ended(at, "the other side has ended it");
            }
            (stage, _) if event.event_type.is_failure() => {
                let error = event.check().err().unwrap_or(Error::NoDevice);
                let refused = QpHello::decode(event.private_data.as_slice()) == Err(Stranger::Version);
                self.mux.qps.put_back(at, stage);
                return self.failed(at, if refused { Reason::PeerVersion } else { why(&error) }, &error);
            }
            (stage, _) => Ok(stage),
        };
        match next {
            Ok(stage) => {
                let up = matches!(stage, Stage::Up(_)) && event.event_type == CmEventType::ESTABLISHED;
                self.mux.qps.put_back(at, stage);
                if let Some(route) = self.mux.qps.table.get(at).and_then(|e| e.route).filter(|_| up) {
                    self.mux.qps.count_up(at);
                    self.companions.connect(&mut self.mux.qps, at, offered);
                    self.end_lost();
                    self.open_route(route, at);
                }
            }
            Err(e) => self.failed(at, why(&e), &e),
        }
    }

    fn retry_resolve(&mut self, at: usize, id: CmId, tries: usize) -> Result<Stage> {
        let route = self.mux.qps.table.get(at).and_then(|e| e.route);
        let dest = route.and_then(|r| self.routes.table.get(r)).ok_or(Error::NoDevice)?.dest;
        let port = port_of(dest.port()).ok_or(Error::NoDevice)?;
        let time = RESOLVE.get(tries).copied().unwrap_or(1_000);
        id.resolve_addr(None, SocketAddr::new(dest.ip(), port), time)?;
        Ok(Stage::Resolving(id, tries + 1))
    }

    /// To be called when a queue pair could not be connected.
    pub(super) fn failed(&mut self, at: usize, reason: Reason, error: &Error) {
        let route = self.mux.qps.table.get(at).and_then(|e| e.route);
        if let Some(route) = route.filter(|route| self.is_optimistic(*route))
            && let Some(r) = self.routes.table.get(route)
        {
            learn(r.dest, Reachability::Broken);
        }
        // Before the end of the queue pair, so that the route has one all the time.
        let again = route.is_some_and(|route| error.is_port_taken() && self.try_another_port(route, error));
        self.end_qp(at, "it could not be connected");
        let Some(route) = route.filter(|_| !again) else { return };
        let Some(r) = self.routes.table.get_mut(route) else { return };
        let doubted = |p: &usize| self.mux.qps.table.get(*p).is_some_and(|e| e.is_up() && !e.takes_more());
        if r.qps.iter().all(doubted) {
            self.close_route(route, reason, error);
        } else {
            r.note_backoff();
            self.mux.links.of_route(route).into_iter().for_each(|local| self.take_connects(local));
        }
    }

    /// Begins a queue pair like the one that could not be connected, from another port.
    fn try_another_port(&mut self, route: usize, error: &Error) -> bool {
        let Some(r) = self.routes.table.get_mut(route).filter(|r| r.ports_taken < PORTS_TAKEN) else { return false };
        r.ports_taken += 1;
        netacc_log::log!(Debug, "{}: local port is taken ({error}); connecting from another port", r.dest);
        self.begin_qp(route).is_ok()
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
        let has_companion = ended || qp.companion.is_hoped_for() || matches!(qp.stage, Stage::FailedOver(_));
        let known = has_companion && error.is_none();
        // Done first, so that the other side does not go over to the companion connection.
        qp.companion.close();
        match core::mem::replace(&mut qp.stage, Stage::Gone) {
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
            Stage::Wanted | Stage::Resolving(..) | Stage::Routing(_) | Stage::Gone => {}
        }
        let conns: Vec<usize> = qp.conns.into_values().collect();
        if let Some(error) = error {
            let cut: Vec<usize> = conns
                .iter()
                .copied()
                .filter(|c| self.mux.conns.table.get(*c).is_some_and(|conn| !conn.fin_seen))
                .collect();
            self.mux.for_each_conn_of_program(&cut, |conn| conn.ep.fail(error));
        }
        for c in conns {
            self.mux.cut(c, known);
        }
        self.drop_route_qp(at, qp.route);
    }
}
