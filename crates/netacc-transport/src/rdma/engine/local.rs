//! Links, and the connections that begin on them.

use crate::host::host;
use crate::rdma::engine::conn::Conn;
use crate::rdma::engine::exit_handoff;
use crate::rdma::engine::order;
use crate::rdma::engine::progress::SleepOn;
use crate::rdma::engine::qp::{Payload, QpRecord};
use crate::rdma::engine::routes::RouteEntry;
use crate::rdma::engine::table::Table;
use crate::rdma::engine::worker::Engine;
use crate::shm::claim::take_slot;
use crate::shm::slots::{CONTROL_SLOT, SLOTS};
use crate::shm::{Link, ShmEndpoint};
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use netacc_stats::Reason;
use netacc_sys::time;
use netacc_wire::frame::{ADDRESSES, Frame, WINDOW, decode_addresses, encode_addresses};

/// Most connections: as many as their numbers can name.
const CONNS: usize = 1 << 16;
/// Most connections of a queue pair that are refused or over, and of which it has not been told: with more of them it
/// gives us no room to tell.
pub(super) const RESETS: usize = 4096;
/// Most queue pairs that are being connected to one destination at a time.
const AT_A_TIME: usize = 16;

/// A link, of which we are one side.
#[derive(Debug)]
pub(super) struct Local {
    pub link: &'static Link,
    pub ready_set: u32,
    /// Per slot the connection's number + 1; 0: none.
    pub slots: Vec<u32>,
    /// The destination whose connects come by it (client's host).
    pub route: Option<usize>,
    /// Number of connects that wait there for a queue pair.
    waiting: usize,
    /// Set once this engine has heard that the other side is gone. Another engine may have the same link, and hear of
    /// it first.
    pub ended: bool,
}

impl Local {
    /// The descriptor of our waker on the link.
    pub fn waker(&self) -> i32 {
        self.link.waker_fd(self.ready_set)
    }

    /// The connection in a slot.
    pub fn conn(&self, slot: usize) -> Option<usize> {
        (*self.slots.get(slot)? as usize).checked_sub(1)
    }

    /// Has the other side ring; false if it has left bits already.
    pub fn arm(&self) -> bool {
        self.link.my_ready_set(self.ready_set).is_none_or(netacc_ring::ReadySet::arm)
    }

    /// Whether connects to `dest` wait there.
    pub fn waits_for(&self, dest: SocketAddr, routes: &Table<RouteEntry>) -> bool {
        let there = self.route.and_then(|r| routes.get(r)).is_some_and(|r| r.dest == dest);
        there && self.link.segment().is_some_and(|s| s.queued() > 0)
    }

    /// Whether the other side is in this process, and perhaps its children.
    pub fn is_in_process(&self) -> bool {
        self.route.is_some() || self.link.peer_pid() == super::PID.load(Ordering::Relaxed)
    }

    /// Whether only this process writes on the other side: each of its threads makes progress after it has written.
    pub fn is_ours(&self) -> bool {
        self.is_in_process() && host().is_none_or(|host| host.has_no_children())
    }
}

impl Engine {
    /// Watches a link; the caller gives us its reference.
    pub(super) fn add_local(&mut self, link: &'static Link, route: Option<usize>) -> Option<usize> {
        let Ok(ready_set) = link.open_ready_set() else {
            link.put();
            return None;
        };
        let local = Local { link, ready_set, slots: vec![0; SLOTS], route, waiting: 0, ended: false };
        let Some(at) = self.locals.add(CONNS, local) else {
            link.close_ready_set(ready_set);
            link.put();
            return None;
        };
        // The thread is to listen to this link too. For a link to another host the thread is told by the code that
        // makes it, if it has to know.
        if route.is_none() && self.sleep_on != SleepOn::Awake {
            self.ring();
        }
        if route.is_some()
            && let Some(q) = link.endpoint(CONTROL_SLOT)
        {
            q.subscribe(ready_set);
        }
        Some(at)
    }

    /// The local for a link of the pool's.
    fn local_of(&mut self, link: &'static Link) -> Option<usize> {
        if let Some((at, _)) = self.locals.each().find(|(_, l)| core::ptr::eq(l.link, link)) {
            return Some(at);
        }
        link.hold();
        self.add_local(link, None)
    }

    /// Looks for connections that have news.
    pub(super) fn check_locals(&mut self) -> bool {
        let mut busy = false;
        let mut at = 0;
        while at < self.locals.len() {
            if let Some(local) = self.locals.get(at)
                && let Some(ready_set) = local.link.my_ready_set(local.ready_set)
            {
                for slot in ready_set.take() {
                    busy = true;
                    if slot == CONTROL_SLOT {
                        self.take_connects(at);
                    } else if let Some(c) = self.conn_at(at, slot) {
                        self.queue(c);
                    }
                }
            }
            at += 1;
        }
        busy
    }

    fn conn_at(&self, local: usize, slot: usize) -> Option<usize> {
        self.locals.get(local)?.conn(slot)
    }

    /// Client's host: takes connects that wait on the link of a route, as many as there are queue pairs for.
    pub(super) fn take_connects(&mut self, local: usize) {
        self.take_queued(local);
        self.count_waiting(local);
    }

    /// Client's host: takes the connects that wait on all links.
    pub(super) fn take_all_connects(&mut self) {
        for local in 0..self.locals.len() {
            self.take_connects(local);
        }
    }

    /// Counts the connects that are left there, for the thread that chooses the engine of the next one.
    pub(super) fn count_waiting(&mut self, local: usize) {
        let Some(l) = self.locals.get_mut(local) else { return };
        let queued = l.link.segment().filter(|_| l.route.is_some()).map_or(0, |s| s.queued() as usize);
        let before = core::mem::replace(&mut l.waiting, queued.min(SLOTS));
        self.cell.waiting.fetch_add(l.waiting.wrapping_sub(before), Ordering::Relaxed);
    }

    fn take_queued(&mut self, local: usize) {
        let Some((link, route)) = self.locals.get(local).and_then(|l| Some((l.link, l.route?))) else { return };
        let Some(dest) = self.routes.get(route).map(|r| r.dest) else { return };
        self.pass_ticket(route);
        while let Some(queued) = link.segment().map(|s| s.queued()).filter(|n| *n > 0) {
            let Some(qp_index) = self.choose_qp(route, queued as usize) else {
                // If there is no queue pair to wait for, the connects that wait go by TCP, and the next one asks which
                // process listens there now.
                if self.routes.get(route).is_some_and(|r| r.qps.is_empty() || self.all_doubted(r)) {
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
                Some(addresses) => self.begin(ep, local, qp_index, None, Some(addresses)),
                None => {
                    crate::Endpoint::close(ep, true);
                    None
                }
            };
            match begun {
                Some(conn) => self.note_open(route, qp_index, conn),
                None => order::discard_oldest(self.index, dest),
            }
        }
    }

    /// Whether the queue pairs of a route may all have lost their other side.
    fn all_doubted(&self, r: &RouteEntry) -> bool {
        let mut up = r.qps.iter().filter_map(|at| self.qps.get(*at)).filter(|e| e.is_up()).peekable();
        up.peek().is_some() && !up.any(QpRecord::takes_more)
    }

    /// Chooses a queue pair of a route that can have one more connection; begins more if they are wanted.
    pub(super) fn choose_qp(&mut self, route: usize, queued: usize) -> Option<usize> {
        let least = loop {
            let up = |at: &usize| self.qps.get(*at).filter(|e| e.takes_more());
            let r = self.routes.get(route)?;
            let least = r.qps.iter().filter_map(|at| Some((up(at)?.conns.len(), *at))).min();
            match least {
                Some((_, qp_index)) if self.seems_gone(qp_index) => {}
                least => break least,
            }
        };
        let r = self.routes.get(route)?;
        if least.is_none() && self.all_doubted(r) {
            return None;
        }
        // Where there is no queue pair, those that are being connected decide: a new one for each that fails would go
        // on for ever.
        let backoff = r.backoff_until != 0 && (least.is_none() || time::now() < r.backoff_until);
        if let Some((load, qp_index)) = least
            && (load < self.limits.conn_per_qp || backoff)
        {
            return Some(qp_index);
        }
        if backoff {
            return None;
        }
        let connecting = r.qps.iter().filter(|at| self.qps.get(**at).is_some_and(|e| !e.is_up())).count();
        for _ in connecting..queued.div_ceil(self.limits.conn_per_qp).min(AT_A_TIME) {
            if self.begin_qp(route).is_err() {
                if let Some(r) = self.routes.get_mut(route) {
                    r.note_backoff();
                }
                return least.map(|(_, qp_index)| qp_index);
            }
        }
        None
    }

    /// Begins to carry a connection. `name` is what the other side calls it. Returns its place among the connections.
    pub(super) fn begin(
        &mut self,
        ep: &'static ShmEndpoint,
        local: usize,
        qp_index: usize,
        name: Option<(u16, u32)>,
        opening: Option<[u8; ADDRESSES]>,
    ) -> Option<usize> {
        let conn = Conn {
            ep,
            kernel: -1,
            listed: false,
            slept_on: (-1, 0),
            local,
            slot: ep.slot_index(),
            qp: qp_index,
            id: 0,
            generation: 0,
            generation_confirmed: name.is_some(),
            known: false,
            opening,
            upgrade: None,
            credit: WINDOW,
            delivered: 0,
            pending: VecDeque::new(),
            fin_sent: false,
            fin_seen: false,
            broken_off: false,
            said_part: false,
            fin_given: false,
            stalled: false,
            queued: false,
            cut: false,
        };
        let Some(at) = self.conns.add(CONNS, conn) else {
            crate::Endpoint::close(ep, true);
            return None;
        };
        self.cell.carried.fetch_add(1, Ordering::Relaxed);
        let (id, generation) = name.unwrap_or((at as u16, self.conns.generation(at)));
        if let Some(conn) = self.conns.get_mut(at) {
            (conn.id, conn.generation) = (id, generation);
        }
        if let Some(qp) = self.qps.get_mut(qp_index) {
            qp.conns.insert(id, at);
            qp.used = true;
            // Progress that only moves bytes does not allocate.
            qp.stalled.reserve(qp.conns.len());
        }
        let conns = self.conns.len();
        self.ready.reserve(conns);
        self.starved.reserve(conns);
        if let Some(local) = self.locals.get_mut(local) {
            if let Some(place) = local.slots.get_mut(ep.slot_index()) {
                *place = at as u32 + 1;
            }
            ep.subscribe(local.ready_set);
        }
        self.count_taken(qp_index, ep, local);
        self.queue(at);
        Some(at)
    }

    /// Server's host: handles a client on another host that opens a connection. False: the client broke the rules.
    pub(super) fn opened(&mut self, at: usize, frame: Frame, payload: Payload<'_>) -> bool {
        let Some(qp) = self.qps.get_mut(at) else { return true };
        if qp.route.is_some() || payload.len() != ADDRESSES {
            return false;
        }
        let mut bytes = [0u8; ADDRESSES];
        let Some((client, server)) = Some(())
            .filter(|()| qp.copy(&mut self.devices, payload, 0, &mut bytes))
            .and_then(|()| decode_addresses(&bytes))
        else {
            return false;
        };
        // The connection manager has confirmed the client's address; its port is the client's own claim, and proves
        // nothing.
        let honest = qp.ips == Some((server.ip(), client.ip()));
        if !honest || qp.port != server.port() || client.port() < 1024 {
            // Its host may have been given another address since the queue pair was connected: that concerns nobody else.
            netacc_log::log!(
                Info,
                "{client}: its host has another address; the RDMA connection to {server} is refused"
            );
            self.refuse(at, frame);
            return true;
        }
        if let Some(&old) = qp.conns.get(&frame.conn) {
            self.end_of_name(old);
        }
        match self.join(client, server, at) {
            Ok((ep, local)) => {
                if self.begin(ep, local, at, Some((frame.conn, frame.generation)), None).is_none() {
                    self.refuse(at, frame);
                }
            }
            Err(why) => {
                netacc_log::log!(Info, "{client}: the RDMA connection to {server} is refused: {}", why.name());
                self.refuse(at, frame);
            }
        }
        true
    }

    /// Refuses the connection that `frame` is about: there is none, or there is to be none.
    pub(super) fn refuse(&mut self, at: usize, frame: Frame) {
        if let Some(qp) = self.qps.get_mut(at) {
            if qp.resets.len() >= RESETS {
                // The other side goes on asking, and gives us no room to answer.
                return self.violators.push(at);
            }
            let kind = netacc_wire::frame::Kind::Reset;
            qp.resets.push_back(Frame { kind, window: 0, credits: 0, acked: 0, next: 0, ..frame });
        }
    }

    /// Connects to a listener of this host on behalf of `client`.
    pub(super) fn join(
        &mut self,
        client: SocketAddr,
        server: SocketAddr,
        qp_index: usize,
    ) -> Result<(&'static ShmEndpoint, usize), Reason> {
        if exit_handoff::is_alone() {
            return Err(Reason::Refused);
        }
        let claim = host().ok_or(Reason::Refused)?.claim(client, server)?;
        let (link, claimed) = (claim.link, claim.claimed);
        let Some(ep) = link.endpoint(claimed.slot).filter(|ep| ep.begin(claimed.generation)) else {
            link.slots.burned();
            return Err(Reason::NoMemory);
        };
        if let Some(slot) = link.segment().and_then(|s| s.slot(claimed.slot)) {
            slot.open.write_remote(client, server, self.index);
            self.publish_qp(qp_index, ep);
        }
        let Some(local) = self.local_of(link) else {
            drop(claim);
            ep.never_mind(claimed.generation);
            crate::Endpoint::close(ep, true);
            return Err(Reason::NoDescriptors);
        };
        if !claim.push() {
            ep.never_mind(claimed.generation);
            crate::Endpoint::close(ep, true);
            return Err(Reason::Refused);
        }
        Ok((ep, local))
    }

    /// Handles what a link's control socket has: messages, or the end.
    pub(super) fn serve_local(&mut self, at: usize) {
        let Some(local) = self.locals.get_mut(at) else { return };
        local.link.service();
        local.ended = local.link.is_lost();
        let here: Vec<usize> = local.slots.iter().filter_map(|c| (*c as usize).checked_sub(1)).collect();
        let (ended, route) = (local.ended, local.route);
        if !ended {
            return;
        }
        for c in &here {
            self.queue(*c);
        }
        if here.is_empty() {
            self.drop_local(at);
        }
        if let Some(route) = route {
            self.detach_route(route);
        }
    }

    /// Lets a link go.
    pub(super) fn drop_local(&mut self, at: usize) {
        if let Some(local) = self.locals.remove(at) {
            self.cell.waiting.fetch_sub(local.waiting, Ordering::Relaxed);
            local.link.close_ready_set(local.ready_set);
            local.link.put();
        }
    }
}
