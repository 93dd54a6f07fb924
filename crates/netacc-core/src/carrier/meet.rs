//! Routes to servers on other hosts, and queue pairs that come and go.

use crate::carrier::ask;
use crate::carrier::engine::Engine;
use crate::carrier::entry::{Entry, Stage, tag};
use crate::carrier::order;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::Ordering;
use netacc_stats::Reason;
use netacc_sys::errno::Errno;
use netacc_sys::time;
use netacc_transport::Endpoint;
use netacc_transport::rdma::{Device, Pipe, port_of};
use netacc_transport::shm::Link;
use netacc_verbs::{CmEvent, CmEventType, CmId, Error, EventChannel, Result};
use netacc_wire::base as wire;
use netacc_wire::frame::{Greeting, Stranger};

/// Queue pairs of this process.
pub(super) const PIPES: usize = 4096;
/// How long (ms) the network is asked for a neighbour. The kernel misses an answer that comes while it asks, and looks
/// again when the time is over: so first a short time.
const RESOLVE: [u32; 3] = [100, 300, 1_000];
/// A message that nobody confirms is sent again after 4.096 microseconds times two to the power of this, half a second,
/// and at the seventh time in vain the queue pair fails.
const ACK_TIMEOUT: u8 = 17;
/// A queue pair that is not connected after so long (ns) is given up.
pub(super) const PATIENCE: u64 = 2_000_000_000;
/// "Nobody listens there" is believed for so long (ns).
pub(super) const REFUSED: u64 = 1_000_000_000;
/// "No device leads there" and silence, which cost more to find out.
pub(super) const UNREACHED: u64 = 30_000_000_000;
/// So many ports in a row that turn out to be somebody else's are no accident.
const PORTS_TAKEN: u32 = 8;

/// "No further queue pair is to be had" is believed for so long (ns).
const CROWDED: u64 = 1_000_000_000;

/// Set in what events call a listener.
pub(super) const LISTENER: u64 = 1 << 63;

/// What becomes of a destination.
#[derive(Clone, Copy, Debug)]
pub(super) enum Route {
    /// It is reached by this link, from this address of ours.
    Open(&'static Link, IpAddr),
    /// That is being found out; an event will come by this descriptor, or, if it is -1, nobody says so.
    Opening(i32),
    /// It is not.
    Closed(Reason),
    /// That is to be found out.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Opening,
    Open,
    Closed(Reason, u64),
}

/// A destination.
#[derive(Debug)]
pub(super) struct RouteEntry {
    pub dest: SocketAddr,
    pub state: State,
    pub source: IpAddr,
    /// The socket layer's side of the link for new connects, and our own side.
    pub link: Option<&'static Link>,
    pub local: Option<usize>,
    pub pipes: Vec<usize>,
    /// Until then (ns) no more queue pairs are to be had: those that are there take all connections.
    pub crowded: u64,
    /// So many queue pairs in a row could not be connected because of the port that they had at this host.
    pub ports_taken: u32,
}

impl RouteEntry {
    pub(super) fn new(dest: SocketAddr) -> RouteEntry {
        RouteEntry {
            dest,
            state: State::Opening,
            source: dest.ip(),
            link: None,
            local: None,
            pipes: Vec::new(),
            crowded: 0,
            ports_taken: 0,
        }
    }

    /// A queue pair was not to be had.
    pub(super) fn note_crowded(&mut self) {
        self.crowded = time::now().saturating_add(CROWDED);
    }
}

impl Engine {
    /// The way to a server on another host.
    pub fn route(&mut self, dest: SocketAddr) -> Route {
        self.meet_events();
        let now = time::now();
        let known = self.routes.each().find(|(_, r)| r.dest == dest).map(|(at, _)| at);
        let at = match known {
            Some(at) => at,
            None if self.is_unmanaged(now) || self.is_silent(dest.ip(), now) => {
                return Route::Closed(Reason::OtherHost);
            }
            None => return Route::Unknown,
        };
        let fd = self.events.as_ref().map_or(-1, EventChannel::fd);
        let Some(r) = self.routes.get(at) else { return Route::Closed(Reason::OtherHost) };
        match (r.state, r.link) {
            (State::Open, Some(link)) if link.accepting() => {
                link.hold();
                Route::Open(link, r.source)
            }
            (State::Closed(reason, until), _) if now < until => Route::Closed(reason),
            (State::Opening, None) if r.pipes.iter().any(|p| self.pipes.get(*p).is_some_and(|p| !p.is_up())) => {
                Route::Opening(fd)
            }
            // Its link or its queue pairs have gone, or the answer is old: once more.
            _ => {
                let Some(up) = r.pipes.iter().copied().find(|p| self.pipes.get(*p).is_some_and(Entry::takes_more))
                else {
                    return Route::Unknown;
                };
                self.route_anew(dest);
                self.open_route(at, up);
                Route::Opening(fd)
            }
        }
    }

    /// The route to a server, of which nothing is known from now on.
    pub(super) fn route_anew(&mut self, dest: SocketAddr) -> Option<usize> {
        let known = self.routes.each().find(|(_, r)| r.dest == dest).map(|(at, _)| at);
        let at = match known {
            Some(at) => at,
            None => self.routes.add(PIPES, RouteEntry::new(dest))?,
        };
        self.detach_route(at);
        if let Some(r) = self.routes.get_mut(at) {
            (r.state, r.crowded, r.ports_taken) = (State::Opening, 0, 0);
        }
        Some(at)
    }

    /// Whether the host has lately not answered at all, at whatever port.
    fn is_silent(&self, host: IpAddr, now: u64) -> bool {
        let silent = |r: &RouteEntry| matches!(r.state, State::Closed(_, until) if until > now.saturating_add(REFUSED));
        self.routes.each().any(|(_, r)| r.dest.ip() == host && silent(r))
    }

    /// The link of a route takes no more connects: those that wait are made another way, and the next one asks anew.
    pub(super) fn detach_route(&mut self, route: usize) {
        let Some(r) = self.routes.get_mut(route) else { return };
        r.state = if r.state == State::Open { State::Opening } else { r.state };
        if let Some(link) = r.link.take() {
            link.put();
        }
        r.local = None;
        let dest = r.dest;
        for local in self.links_of(route) {
            if let Some(l) = self.locals.get_mut(local) {
                l.route = None;
                l.link.turn_away();
            }
            self.count_waiting(local);
            order::leave_all(self.index, dest);
        }
    }

    /// A further queue pair for a route begins to be connected.
    pub(super) fn begin_pipe(&mut self, route: usize) -> Result<()> {
        if self.is_unmanaged(time::now()) {
            return Err(Error::NoDevice);
        }
        let r = self.routes.get_mut(route).ok_or(Error::NoDevice)?;
        let full = Error::Misuse { verb: "rdma_create_id", why: "too many queue pairs" };
        let at = self.pipes.add(PIPES, Entry::new(Stage::Wanted, 0, Some(route), r.dest.port())).ok_or(full)?;
        r.pipes.push(at);
        if self.events.is_none() {
            // The thread will have the connection manager first.
            self.ring();
            return Ok(());
        }
        self.resolve(at).inspect_err(|_| {
            self.pipes.remove(at);
            if let Some(r) = self.routes.get_mut(route) {
                r.pipes.retain(|p| *p != at);
            }
        })
    }

    /// The connection manager is asked for the way of a queue pair.
    pub(super) fn resolve(&mut self, at: usize) -> Result<()> {
        let (Some(events), Some(entry)) = (&self.events, self.pipes.get(at)) else { return Err(Error::NoDevice) };
        let dest = entry.route.and_then(|r| self.routes.get(r)).ok_or(Error::NoDevice)?.dest;
        let port = port_of(dest.port()).ok_or(Error::NoDevice)?;
        let id = CmId::create(events, u64::from(tag(&self.pipes, at)))?;
        // Not every kernel can be told.
        let _ = id.set_ack_timeout(ACK_TIMEOUT);
        let [first, ..] = RESOLVE;
        id.resolve_addr(None, SocketAddr::new(dest.ip(), port), first)?;
        self.put_back(at, Stage::Resolving(id, 1));
        Ok(())
    }

    /// What the connection manager has to say.
    pub fn meet_events(&mut self) {
        while let Some(Ok(Some(event))) = self.events.as_ref().map(EventChannel::get_event) {
            if event.event_type == CmEventType::CONNECT_REQUEST {
                self.requested(event);
                continue;
            }
            if event.cookie & LISTENER != 0 {
                if event.event_type == CmEventType::DEVICE_REMOVAL {
                    self.forget_listener(event.cookie);
                }
                continue;
            }
            let at = event.cookie as usize & 0xff_ffff;
            if tag(&self.pipes, at) == event.cookie as u32
                && let Some(entry) = self.pipes.get(at)
            {
                let device = entry.device_if_known();
                self.happened(at, &event);
                if event.event_type == CmEventType::DEVICE_REMOVAL
                    && let Some(device) = device
                {
                    self.device_goes(device);
                }
            }
        }
    }

    /// A step of a queue pair's life.
    fn happened(&mut self, at: usize, event: &CmEvent) {
        let Some(entry) = self.pipes.get_mut(at) else { return };
        let stage = core::mem::replace(&mut entry.stage, Stage::Gone);
        let mut offered = wire::Base::None;
        let next = match (stage, event.event_type) {
            // Its queue pair is gone already.
            (stage @ Stage::Moved(_), _) => return self.put_back(at, stage),
            (Stage::Resolving(id, tries), CmEventType::ADDR_ERROR) if tries < RESOLVE.len() => {
                self.resolve_again(at, id, tries)
            }
            (Stage::Resolving(id, _), CmEventType::ADDR_RESOLVED) => {
                id.resolve_route(2_000).map(|()| Stage::Routing(id))
            }
            (Stage::Routing(id), CmEventType::ROUTE_RESOLVED) => {
                let base = if self.limits.tcp_base { wire::Base::Wanted } else { wire::Base::None };
                let connecting = self.make(id, at).and_then(|pipe| pipe.connect(base));
                return connecting.unwrap_or_else(|e| self.failed(at, why(&e), &e));
            }
            (Stage::Connecting(mut pipe), CmEventType::ESTABLISHED) => {
                if let Ok(greeting) = Greeting::decode(event.private_data.as_slice()) {
                    pipe.meet(greeting);
                    offered = greeting.base;
                    Ok(Stage::Up(pipe))
                } else {
                    self.put_back(at, Stage::Connecting(pipe));
                    Err(Error::Misuse { verb: "rdma_connect", why: "the other side is no NetACC of this version" })
                }
            }
            (stage, CmEventType::DISCONNECTED | CmEventType::DEVICE_REMOVAL | CmEventType::TIMEWAIT_EXIT) => {
                self.put_back(at, stage);
                return self.pipe_failed(at, "the other side has ended it");
            }
            (stage, _) if event.event_type.is_failure() => {
                let error = event.check().err().unwrap_or(Error::NoDevice);
                let refused = Greeting::decode(event.private_data.as_slice()) == Err(Stranger::Version);
                self.put_back(at, stage);
                return self.failed(at, if refused { Reason::PeerVersion } else { why(&error) }, &error);
            }
            (stage, _) => Ok(stage),
        };
        match next {
            Ok(stage) => {
                let up = matches!(stage, Stage::Up(_)) && event.event_type == CmEventType::ESTABLISHED;
                self.put_back(at, stage);
                if let Some(route) = self.pipes.get(at).and_then(|e| e.route).filter(|_| up) {
                    self.report_up(at);
                    self.connect_base(at, offered);
                    self.open_route(route, at);
                }
            }
            Err(e) => self.failed(at, why(&e), &e),
        }
    }

    fn resolve_again(&mut self, at: usize, id: CmId, tries: usize) -> Result<Stage> {
        let route = self.pipes.get(at).and_then(|e| e.route);
        let dest = route.and_then(|r| self.routes.get(r)).ok_or(Error::NoDevice)?.dest;
        let port = port_of(dest.port()).ok_or(Error::NoDevice)?;
        let time = RESOLVE.get(tries).copied().unwrap_or(1_000);
        id.resolve_addr(None, SocketAddr::new(dest.ip(), port), time)?;
        Ok(Stage::Resolving(id, tries + 1))
    }

    /// The connection of a queue pair was accepted by us.
    pub(super) fn is_connected(&mut self, at: usize) {
        let Some(entry) = self.pipes.get_mut(at) else { return };
        entry.stage = match core::mem::replace(&mut entry.stage, Stage::Gone) {
            Stage::Connecting(pipe) => Stage::Up(pipe),
            stage => stage,
        };
        self.report_up(at);
    }

    fn put_back(&mut self, at: usize, stage: Stage) {
        if let Some(entry) = self.pipes.get_mut(at) {
            entry.stage = stage;
        }
    }

    /// The device that an identifier is on, which is opened if it is the first there.
    pub(super) fn device_of(&mut self, id: &CmId) -> Result<usize> {
        if let Some(n) = self.devices.iter().position(|d| d.has(id)) {
            return Ok(n);
        }
        let device = Device::open(id, self.limits.sizes(), self.limits.comp_vector, self.index)?;
        crate::log!(Info, "thread {} uses RDMA device {}", self.index, device.name());
        self.devices.push(device);
        self.place.devices.fetch_add(1, Ordering::Relaxed);
        Ok(self.devices.len() - 1)
    }

    /// Makes the queue pair of an identifier that is on a device, which is opened if it is the first there. It is to be
    /// connected next.
    pub(super) fn make(&mut self, id: CmId, at: usize) -> Result<&mut Pipe> {
        let device = self.device_of(&id)?;
        let tag = tag(&self.pipes, at);
        let pipe = Pipe::new(id, self.devices.get_mut(device).ok_or(Error::NoDevice)?, tag)?;
        let entry = self.pipes.get_mut(at).ok_or(Error::NoDevice)?;
        entry.ips = pipe.local_ip().zip(pipe.peer_ip());
        (entry.device, entry.stage) = (device, Stage::Connecting(pipe));
        match &mut entry.stage {
            Stage::Connecting(pipe) => Ok(pipe),
            _ => Err(Error::NoDevice),
        }
    }

    /// The first queue pair of a route is there, or a further one.
    fn open_route(&mut self, route: usize, pipe: usize) {
        let source = self.pipes.get(pipe).and_then(|e| e.ips).map(|(ours, _)| ours);
        self.lead(route, source);
    }

    /// The route is open: it has a link, by which connects come, and of which those that can be carried are taken.
    pub(super) fn lead(&mut self, route: usize, source: Option<IpAddr>) {
        let Some(r) = self.routes.get(route) else { return };
        if r.local.is_none() {
            let (client, local) = match self.link_to(route) {
                Ok(made) => made,
                Err((reason, e)) => return self.close_route(route, reason, &e),
            };
            if let Some(r) = self.routes.get_mut(route) {
                (r.link, r.local) = (Some(client), Some(local));
            }
        }
        if let Some(r) = self.routes.get_mut(route) {
            r.state = State::Open;
            r.source = source.unwrap_or(r.source);
            r.ports_taken = 0;
        }
        self.links_of(route).into_iter().for_each(|local| self.take_connects(local));
        ask::hurry();
    }

    /// A queue pair could not be connected.
    pub(super) fn failed(&mut self, at: usize, reason: Reason, error: &Error) {
        let route = self.pipes.get(at).and_then(|e| e.route);
        // Before its end, so that the route has one all the time.
        let again = route.is_some_and(|route| error.is_port_taken() && self.try_another_port(route, error));
        self.end_pipe(at, "it could not be connected");
        let Some(route) = route.filter(|_| !again) else { return };
        let Some(r) = self.routes.get_mut(route) else { return };
        let doubted = |p: &usize| self.pipes.get(*p).is_some_and(|e| e.is_up() && !e.takes_more());
        if r.pipes.iter().all(doubted) {
            self.close_route(route, reason, error);
        } else {
            r.note_crowded();
            self.links_of(route).into_iter().for_each(|local| self.take_connects(local));
        }
    }

    /// A queue pair like the one that could not be connected, from another port.
    fn try_another_port(&mut self, route: usize, error: &Error) -> bool {
        let Some(r) = self.routes.get_mut(route).filter(|r| r.ports_taken < PORTS_TAKEN) else { return false };
        r.ports_taken += 1;
        crate::log!(Debug, "{} is asked from another port: {error}", r.dest);
        self.begin_pipe(route).is_ok()
    }

    pub(super) fn close_route(&mut self, route: usize, reason: Reason, error: &Error) {
        let Some(r) = self.routes.get_mut(route) else { return };
        crate::log!(Info, "{} is not reached by RDMA: {error}", r.dest);
        let refused =
            matches!(error, Error::Cm { event: CmEventType::REJECTED, .. }) || error.errno() == Errno::CONNREFUSED;
        let believed = if refused { REFUSED } else { UNREACHED };
        r.state = State::Closed(reason, time::now().saturating_add(believed));
        self.detach_route(route);
    }

    /// A queue pair is over, and so are its connections.
    pub(super) fn end_pipe(&mut self, at: usize, how: &str) {
        self.end_pipe_with(at, how, None);
    }

    /// The same; `error` is what its connections have come to, if it is not that the other side has ended them.
    pub(super) fn end_pipe_with(&mut self, at: usize, how: &str, error: Option<Errno>) {
        let Some(mut entry) = self.pipes.remove(at) else { return };
        if entry.route.is_none() {
            self.place.served.fetch_sub(1, Ordering::Relaxed);
        }
        // Without a base a failure looks like the end of the other side's process, which lives, and may have said more.
        // The base may have ended just before, with that process.
        let ended = entry.doubted != 0 && time::now() < entry.doubted.saturating_add(PATIENCE);
        let has_base = ended || entry.base.is_hoped_for() || matches!(entry.stage, Stage::Moved(_));
        let known = has_base && error.is_none();
        // First, so that the other side does not go over to it.
        entry.base.close();
        match core::mem::replace(&mut entry.stage, Stage::Gone) {
            Stage::Up(pipe) | Stage::Connecting(pipe) => {
                crate::log!(Debug, "QP {} ends with {} connections: {how}", pipe.qp_num(), entry.conns.len());
                pipe.disconnect();
                if let Some(device) = self.devices.get_mut(entry.device) {
                    pipe.end(device);
                }
                self.feed();
            }
            Stage::Moved(moved) => {
                crate::log!(Debug, "a failed QP ends with {} connections: {how}", entry.conns.len());
                moved.end();
                self.bases.moved.retain(|m| *m != at);
            }
            Stage::Wanted | Stage::Resolving(..) | Stage::Routing(_) | Stage::Gone => {}
        }
        let conns: Vec<usize> = entry.conns.into_values().collect();
        if let Some(error) = error {
            let cut: Vec<usize> =
                conns.iter().copied().filter(|c| self.conns.get(*c).is_some_and(|conn| !conn.fin_seen)).collect();
            self.tell_sockets(&cut, |s| s.endpoint().into_iter().for_each(|ep| ep.fail(error)));
        }
        for c in conns {
            self.cut(c, known);
        }
        self.leave_route(at, entry.route);
    }

    /// A route has a queue pair less.
    pub(super) fn leave_route(&mut self, pipe: usize, route: Option<usize>) {
        let Some(route) = route else { return };
        let Some(r) = self.routes.get_mut(route) else { return };
        r.pipes.retain(|p| *p != pipe);
        if r.pipes.is_empty() && r.state == State::Open {
            self.detach_route(route);
        }
    }

    /// The queue pair of a connection is gone. What has been received is given to the program; then its stream ends, or
    /// is reset if the other side has not had all of ours, or we all of theirs, as far as that is `known`.
    fn cut(&mut self, c: usize, known: bool) {
        let Some(conn) = self.conns.get_mut(c) else { return };
        conn.cut = true;
        if conn.early.is_some() {
            return self.drop_conn(c, true);
        }
        let whole = known
            && !conn.broken_off
            && conn.credit == netacc_wire::frame::WINDOW
            && conn.kernel < 0
            && conn.ep.unread() == 0
            && conn.opening.is_none();
        if !whole && !conn.fin_seen {
            return self.drop_conn(c, true);
        }
        conn.fin_seen = true;
        self.queue(c);
    }
}

/// What a failure means for the connection that was to be accelerated.
pub(super) fn why(e: &Error) -> Reason {
    match e {
        Error::Cm { event: CmEventType::REJECTED | CmEventType::UNREACHABLE | CmEventType::CONNECT_ERROR, .. } => {
            Reason::PeerPlain
        }
        Error::Verb { verb: "rdma_connect", .. } => Reason::PeerPlain,
        Error::Misuse { verb: "rdma_connect", .. } => Reason::PeerVersion,
        Error::Memlock { .. } => Reason::NoMemory,
        _ => Reason::OtherHost,
    }
}
