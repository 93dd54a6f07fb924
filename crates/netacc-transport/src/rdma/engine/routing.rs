//! Routes to servers on other hosts: how they are found, opened and closed.
//!
//! A server that answers a [`probe`](super::probe) is *promised*: the connect returns at once, and waits on the route's
//! link like one that needs a further queue pair, while the thread loads libraries and connects the first one. If that
//! fails the connect is made again by TCP. So a program has its connection in a few times the time that TCP takes, and
//! what it writes first waits instead.

use crate::host::{Reachability, host};
use crate::rdma::engine::order;
use crate::rdma::engine::probe::Answer;
use crate::rdma::engine::qp::QpRecord;
use crate::rdma::engine::qps::MAX_QPS;
use crate::rdma::engine::routes::{REFUSED, Route, RouteEntry, RouteHandle, State, UNREACHED, learn, why};
use crate::rdma::engine::upgrade_reminder;
use crate::rdma::engine::worker::Engine;
use crate::shm::Link;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::Ordering;
use netacc_stats::Reason;
use netacc_sys::errno::Errno;
use netacc_sys::time;
use netacc_verbs::{CmEventType, Error, EventChannel, Result};

impl Engine {
    /// The route to a server on another host.
    pub fn route(&mut self, dest: SocketAddr) -> Route {
        self.serve_cm_events();
        let now = time::now();
        let known = self.routes.to(dest);
        let at = match known {
            Some(at) => at,
            None if self.is_unmanaged(now) || self.routes.is_silent(dest.ip(), now) => {
                return Route::Closed(Reason::OtherHost);
            }
            None => return Route::Unknown,
        };
        let fd = self.events.as_ref().map_or(-1, EventChannel::fd);
        let Some(r) = self.routes.table.get(at) else { return Route::Closed(Reason::OtherHost) };
        match (r.state, r.link) {
            (State::Open, Some(link)) if link.accepting() => Route::Open(self.handle(link, r)),
            (State::Closed(reason, until), _) if now < until => Route::Closed(reason),
            (State::Opening, None) if r.qps.iter().any(|p| self.mux.qps.table.get(*p).is_some_and(|p| !p.is_up())) => {
                Route::Opening(fd)
            }
            // Its link or its queue pairs have gone, or the answer is old: it is looked for once more.
            _ => {
                let Some(up) =
                    r.qps.iter().copied().find(|p| self.mux.qps.table.get(*p).is_some_and(QpRecord::takes_more))
                else {
                    return Route::Unknown;
                };
                self.reset_route(dest);
                self.open_route(at, up);
                Route::Opening(fd)
            }
        }
    }

    /// An open route as it is told to a connect.
    pub(super) fn handle(&self, link: &'static Link, r: &RouteEntry) -> RouteHandle {
        link.hold();
        RouteHandle { link, source: r.source, optimistic: !self.routes.has_qp_up(r, &self.mux.qps) }
    }

    /// Makes the route to a server one of which nothing is known.
    pub(super) fn reset_route(&mut self, dest: SocketAddr) -> Option<usize> {
        let known = self.routes.to(dest);
        let at = match known {
            Some(at) => at,
            None => self.routes.table.add(MAX_QPS, RouteEntry::new(dest))?,
        };
        self.detach_route(at);
        if let Some(r) = self.routes.table.get_mut(at) {
            (r.state, r.backoff_until, r.ports_taken) = (State::Opening, 0, 0);
        }
        Some(at)
    }

    /// Ends the link of a route: connects that wait are made another way, and the next one asks anew.
    pub(super) fn detach_route(&mut self, route: usize) {
        let Some(r) = self.routes.table.get_mut(route) else { return };
        r.state = if r.state == State::Open { State::Opening } else { r.state };
        if let Some(link) = r.link.take() {
            link.put();
        }
        (r.local, r.holds_ticket) = (None, false);
        let dest = r.dest;
        for local in self.mux.links.of_route(route) {
            if let Some(l) = self.mux.links.table.get_mut(local) {
                l.route = None;
                l.link.refuse_connects();
            }
            self.mux.links.count_waiting(local);
            order::drop_tickets(self.index, dest);
        }
    }

    /// To be called when the first queue pair of a route is up, or a further one.
    pub(super) fn open_route(&mut self, route: usize, qp_index: usize) {
        let source = self.mux.qps.table.get(qp_index).and_then(|e| e.ips).map(|(ours, _)| ours);
        if let Some(dest) = self.routes.table.get(route).map(|r| r.dest) {
            learn(dest, Reachability::Reached);
        }
        self.lead(route, source);
    }

    /// Connects that wait on the route's link have told the program their source address: fails if this queue pair has
    /// another one, with which they cannot use it.
    pub(super) fn check_source(&self, qp_index: usize) -> Result<()> {
        let Some(qp) = self.mux.qps.table.get(qp_index) else { return Ok(()) };
        let handle = qp.route.and_then(|route| self.routes.table.get(route)).filter(|r| r.link.is_some());
        match handle.zip(qp.ips) {
            Some((r, (ours, _))) if r.source != ours => Err(Error::Misuse {
                verb: "rdma_resolve_addr",
                why: "the device's address is not the source address of the route",
            }),
            _ => Ok(()),
        }
    }

    /// Makes the route open: gives it a link, by which connects come, and takes the connects that can be carried.
    pub(super) fn lead(&mut self, route: usize, source: Option<IpAddr>) {
        let Some(r) = self.routes.table.get(route) else { return };
        if r.local.is_none() {
            let (client, local) = match self.link_to(route) {
                Ok(made) => made,
                Err((reason, e)) => return self.close_route(route, reason, &e),
            };
            if let Some(r) = self.routes.table.get_mut(route) {
                (r.link, r.local) = (Some(client), Some(local));
            }
        }
        if let Some(r) = self.routes.table.get_mut(route) {
            r.state = State::Open;
            r.source = source.unwrap_or(r.source);
            r.ports_taken = 0;
        }
        self.mux.links.of_route(route).into_iter().for_each(|local| self.take_connects(local));
        upgrade_reminder::hurry();
    }

    pub(super) fn close_route(&mut self, route: usize, reason: Reason, error: &Error) {
        let Some(r) = self.routes.table.get_mut(route) else { return };
        netacc_log::log!(Info, "{}: cannot be reached by RDMA ({error}); using TCP", r.dest);
        let refused =
            matches!(error, Error::Cm { event: CmEventType::REJECTED, .. }) || error.errno() == Errno::CONNREFUSED;
        let believed = if refused { REFUSED } else { UNREACHED };
        r.state = State::Closed(reason, time::now().saturating_add(believed));
        self.detach_route(route);
    }

    /// Whether connects wait on the route's link, and no queue pair of it is up.
    pub(super) fn is_optimistic(&self, route: usize) -> bool {
        self.routes.table.get(route).is_some_and(|r| r.link.is_some() && !self.routes.has_qp_up(r, &self.mux.qps))
    }

    /// Makes the connects to a server go by TCP that have waited long enough for the first queue pair.
    pub(super) fn end_optimistic(&mut self, server: SocketAddr) {
        let at = self.routes.to(server);
        if let Some(at) = at.filter(|at| self.is_optimistic(*at)) {
            netacc_log::log!(Info, "{server}: probe answered but no QP was established; using TCP");
            learn(server, Reachability::Broken);
            self.detach_route(at);
        }
    }

    /// Takes a queue pair off its route.
    pub(super) fn drop_route_qp(&mut self, qp_index: usize, route: Option<usize>) {
        let Some(route) = route else { return };
        let Some(r) = self.routes.table.get_mut(route) else { return };
        r.qps.retain(|p| *p != qp_index);
        let was_last = r.last.take_if(|last| *last == qp_index).is_some();
        if r.qps.is_empty() && r.state == State::Open {
            self.detach_route(route);
        }
        if was_last {
            // Nobody will know whether the server has heard of it: the connects that wait for that go on. Ordering as
            // in `order::wake`.
            self.status.ticket_due.store(true, Ordering::SeqCst);
            self.ring();
        }
    }

    /// Takes in what a server has answered to a [`probe`](super::probe).
    pub(super) fn on_probe_answer(&mut self, server: SocketAddr, answer: Answer) {
        // Another thread may have been first.
        if !self.is_unknown(server) {
            return;
        }
        match answer {
            Answer::Nobody(why) => self.believe_refusal(server, why),
            // If one promise for a host came to nothing, connects to it wait. So do connects during a fork, which does
            // not wait itself.
            Answer::There(ours)
                if host().is_some_and(|host| !host.is_doubted(server.ip()) && !host.is_fork_under_way()) =>
            {
                self.begin_optimistic(server, ours)
            }
            Answer::There(_) | Answer::Silence => {}
        }
    }

    fn believe_refusal(&mut self, server: SocketAddr, why: Reason) {
        let Some(at) = self.reset_route(server) else { return };
        netacc_log::log!(Info, "{server}: no listener for RDMA; using TCP");
        if let Some(r) = self.routes.table.get_mut(at) {
            r.state = State::Closed(why, time::now().saturating_add(REFUSED));
        }
        // The thread may sleep for long, and has to forget that in time.
        if self.routes.table.each().nth(1).is_none() {
            self.ring();
        }
    }

    /// Has connects to the server return, from our address `ours`, before the first queue pair is up.
    fn begin_optimistic(&mut self, server: SocketAddr, ours: IpAddr) {
        if !self.begin_route(server) {
            return;
        }
        let begun = |r: &RouteEntry| r.dest == server && r.state == State::Opening;
        let at = self.routes.table.each().find(|(_, r)| begun(r)).map(|(at, _)| at);
        if let Some(at) = at {
            self.lead(at, Some(ours));
            // The thread listens to the link, and gives up what is not established.
            self.ring();
        }
    }

    /// Whether the route to a server has not been looked for.
    pub(super) fn is_unknown(&mut self, dest: SocketAddr) -> bool {
        match self.route(dest) {
            Route::Open(handle) => handle.link.put(),
            Route::Opening(_) | Route::Closed(_) => {}
            Route::Unknown => return true,
        }
        false
    }

    /// Asks the connection manager for the route to a server, if it is not known. False: no more servers can be known.
    pub(super) fn begin_route(&mut self, dest: SocketAddr) -> bool {
        if !self.is_unknown(dest) {
            return true;
        }
        let Some(at) = self.reset_route(dest) else { return false };
        if let Err(e) = self.begin_qp(at) {
            self.close_route(at, why(&e), &e);
        }
        true
    }
}
