//! Routes to servers on other hosts: how they are found, opened and closed.
//!
//! A server that answers a [`probe`](crate::rdma::engine::probe) is *promised*: the connect returns at once, and waits
//! on the route's link like one that needs a further queue pair, while the thread loads libraries and connects the
//! first one. If that fails the connect is made again by TCP. So a program has its connection in a few times the time
//! that TCP takes, and what it writes first waits instead.

use crate::host::{Reachability, host};
use crate::rdma::engine::mux::Mux;
use crate::rdma::engine::order;
use crate::rdma::engine::probe::Answer;
use crate::rdma::engine::qp::QpRecord;
use crate::rdma::engine::qps::{MAX_QPS, UNREACHED};
use crate::rdma::engine::routes::Routes;
use crate::rdma::engine::routes::{REFUSED, Route, RouteEntry, RouteHandle, State, learn, why};
use crate::rdma::engine::upgrade_reminder;
use crate::shm::Link;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::Ordering;
use netacc_stats::Reason;
use netacc_sys::errno::Errno;
use netacc_sys::time;
use netacc_verbs::{CmEventType, Error, EventChannel, Result};

impl Routes {
    /// The route to a server on another host.
    pub fn route(&mut self, mux: &mut Mux, dest: SocketAddr) -> Route {
        let now = time::now();
        let known = self.to(dest);
        let at = match known {
            Some(at) => at,
            None if mux.qps.is_unmanaged(now) || self.is_silent(dest.ip(), now) => {
                return Route::Closed(Reason::OtherHost);
            }
            None => return Route::Unknown,
        };
        let fd = mux.qps.events.as_ref().map_or(-1, EventChannel::fd);
        let Some(r) = self.table.get(at) else { return Route::Closed(Reason::OtherHost) };
        match (r.state(), r.link) {
            (State::Open, Some(link)) if link.accepting() => Route::Open(self.handle(mux, link, r)),
            (State::Closed(reason, until), _) if now < until => Route::Closed(reason),
            (State::Opening, None) if r.qps.iter().any(|p| mux.qps.table.get(*p).is_some_and(|p| !p.is_up())) => {
                Route::Opening(fd)
            }
            // The route's link or its queue pairs have ended, or the answer is old, so it is resolved once more.
            _ => {
                let Some(up) = r.qps.iter().copied().find(|p| mux.qps.table.get(*p).is_some_and(QpRecord::takes_more))
                else {
                    return Route::Unknown;
                };
                self.reset_route(mux, dest);
                self.open_route(mux, at, up);
                Route::Opening(fd)
            }
        }
    }

    /// An open route as it is told to a connect.
    pub fn handle(&self, mux: &Mux, link: &'static Link, r: &RouteEntry) -> RouteHandle {
        link.hold();
        RouteHandle { link, source: r.source, optimistic: !self.has_qp_up(r, &mux.qps) }
    }

    /// Makes the route to a server one of which nothing is known.
    pub fn reset_route(&mut self, mux: &mut Mux, dest: SocketAddr) -> Option<usize> {
        let known = self.to(dest);
        let at = match known {
            Some(at) => at,
            None => self.table.add(MAX_QPS, RouteEntry::new(dest))?,
        };
        self.detach_route(mux, at);
        if let Some(r) = self.table.get_mut(at) {
            r.set_state(State::Opening);
            (r.backoff_until, r.ports_taken) = (0, 0);
        }
        Some(at)
    }

    /// Ends the link of a route: connects that wait are made another way, and the next one asks anew.
    pub fn detach_route(&mut self, mux: &mut Mux, route: usize) {
        let Some(r) = self.table.get_mut(route) else { return };
        if r.state() == State::Open {
            r.set_state(State::Opening);
        }
        if let Some(link) = r.link.take() {
            link.put();
        }
        (r.local, r.holds_ticket) = (None, false);
        let dest = r.dest;
        for local in mux.links.of_route(route) {
            if let Some(l) = mux.links.table.get_mut(local) {
                l.route = None;
                l.link.refuse_connects();
            }
            mux.links.count_waiting(local);
            order::drop_tickets(mux.qps.index, dest);
        }
    }

    /// To be called when the first queue pair of a route is up, or a further one.
    pub fn open_route(&mut self, mux: &mut Mux, route: usize, qp_index: usize) {
        let source = mux.qps.table.get(qp_index).and_then(|e| e.ips).map(|(ours, _)| ours);
        if let Some(dest) = self.table.get(route).map(|r| r.dest) {
            learn(dest, Reachability::Reached);
        }
        self.lead(mux, route, source);
    }

    /// Connects that wait on the route's link have told the program their source address: fails if this queue pair has
    /// another one, with which they cannot use it.
    pub fn check_source(&self, mux: &Mux, qp_index: usize) -> Result<()> {
        let Some(qp) = mux.qps.table.get(qp_index) else { return Ok(()) };
        let handle = qp.route.and_then(|route| self.table.get(route)).filter(|r| r.link.is_some());
        match handle.zip(qp.ips) {
            Some((r, (ours, _))) if r.source != ours => Err(Error::Misuse {
                verb: "rdma_resolve_addr",
                why: "the device's address is not the source address of the route",
            }),
            _ => Ok(()),
        }
    }

    /// Makes the route open: gives it a link, by which connects come, and takes the connects that can be carried.
    pub fn lead(&mut self, mux: &mut Mux, route: usize, source: Option<IpAddr>) {
        let Some(r) = self.table.get(route) else { return };
        if r.local.is_none() {
            let (client, local) = match self.link_to(mux, route) {
                Ok(made) => made,
                Err((reason, e)) => return self.close_route(mux, route, reason, &e),
            };
            if let Some(r) = self.table.get_mut(route) {
                (r.link, r.local) = (Some(client), Some(local));
            }
        }
        if let Some(r) = self.table.get_mut(route) {
            r.set_state(State::Open);
            r.source = source.unwrap_or(r.source);
            r.ports_taken = 0;
        }
        mux.links.of_route(route).into_iter().for_each(|local| self.take_connects(mux, local));
        upgrade_reminder::hurry();
    }

    pub fn close_route(&mut self, mux: &mut Mux, route: usize, reason: Reason, error: &Error) {
        let Some(r) = self.table.get_mut(route) else { return };
        netacc_log::log!(Info, "{}: cannot be reached by RDMA ({error}); using TCP", r.dest);
        let refused =
            matches!(error, Error::Cm { event: CmEventType::REJECTED, .. }) || error.errno() == Errno::CONNREFUSED;
        let believed = if refused { REFUSED } else { UNREACHED };
        r.set_state(State::Closed(reason, time::now().saturating_add(believed)));
        self.detach_route(mux, route);
    }

    /// Whether connects wait on the route's link, and no queue pair of it is up.
    pub fn is_optimistic(&self, mux: &Mux, route: usize) -> bool {
        self.table.get(route).is_some_and(|r| r.link.is_some() && !self.has_qp_up(r, &mux.qps))
    }

    /// Makes the connects to a server go by TCP that have waited long enough for the first queue pair.
    pub fn end_optimistic(&mut self, mux: &mut Mux, server: SocketAddr) {
        let at = self.to(server);
        if let Some(at) = at.filter(|at| self.is_optimistic(mux, *at)) {
            netacc_log::log!(Info, "{server}: probe answered but no QP was established; using TCP");
            learn(server, Reachability::Broken);
            self.detach_route(mux, at);
        }
    }

    /// Takes a queue pair off its route.
    pub fn drop_route_qp(&mut self, mux: &mut Mux, qp_index: usize, route: Option<usize>) {
        let Some(route) = route else { return };
        let Some(r) = self.table.get_mut(route) else { return };
        r.qps.retain(|p| *p != qp_index);
        let was_last = r.last.take_if(|last| *last == qp_index).is_some();
        if r.qps.is_empty() && r.state() == State::Open {
            self.detach_route(mux, route);
        }
        if was_last {
            // Nobody will know whether the server has heard of it: the connects that wait for that go on. Ordering as
            // in `order::wake`.
            mux.status.ticket_due.store(true, Ordering::SeqCst);
            mux.status.ring();
        }
    }

    /// Takes in what a server has answered to a [`probe`](crate::rdma::engine::probe).
    pub fn on_probe_answer(&mut self, mux: &mut Mux, server: SocketAddr, answer: Answer) {
        // Another thread may have been first.
        if !self.is_unknown(mux, server) {
            return;
        }
        match answer {
            Answer::Nobody(why) => self.believe_refusal(mux, server, why),
            // If one promise for a host came to nothing, connects to it wait. So do connects during a fork, which does
            // not wait itself.
            Answer::There(ours)
                if host().is_some_and(|host| !host.is_doubted(server.ip()) && !host.is_fork_under_way()) =>
            {
                self.begin_optimistic(mux, server, ours)
            }
            Answer::There(_) | Answer::Silence => {}
        }
    }

    fn believe_refusal(&mut self, mux: &mut Mux, server: SocketAddr, why: Reason) {
        let Some(at) = self.reset_route(mux, server) else { return };
        netacc_log::log!(Info, "{server}: no listener for RDMA; using TCP");
        if let Some(r) = self.table.get_mut(at) {
            r.set_state(State::Closed(why, time::now().saturating_add(REFUSED)));
        }
        // The thread may sleep for long, and has to forget that in time.
        if self.table.each().nth(1).is_none() {
            mux.status.ring();
        }
    }

    /// Lets connects to the server return from our address `ours` before the first queue pair is established
    /// (optimistic connect).
    fn begin_optimistic(&mut self, mux: &mut Mux, server: SocketAddr, ours: IpAddr) {
        if !self.begin_route(mux, server) {
            return;
        }
        let begun = |r: &RouteEntry| r.dest == server && r.state() == State::Opening;
        let at = self.table.each().find(|(_, r)| begun(r)).map(|(at, _)| at);
        if let Some(at) = at {
            self.lead(mux, at, Some(ours));
            // The thread listens to the link, and gives up what is not established.
            mux.status.ring();
        }
    }

    /// Whether the route to a server has not been looked for.
    pub fn is_unknown(&mut self, mux: &mut Mux, dest: SocketAddr) -> bool {
        match self.route(mux, dest) {
            Route::Open(handle) => handle.link.put(),
            Route::Opening(_) | Route::Closed(_) => {}
            Route::Unknown => return true,
        }
        false
    }

    /// Asks the connection manager for the route to a server, if it is not known. False: no more servers can be known.
    pub fn begin_route(&mut self, mux: &mut Mux, dest: SocketAddr) -> bool {
        if !self.is_unknown(mux, dest) {
            return true;
        }
        let Some(at) = self.reset_route(mux, dest) else { return false };
        if let Err(e) = self.begin_qp(mux, at) {
            self.close_route(mux, at, why(&e), &e);
        }
        true
    }
}
