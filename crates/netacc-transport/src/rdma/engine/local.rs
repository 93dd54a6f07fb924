//! Links, and the connections that begin on them.

use crate::host::host;
use crate::rdma::engine::conn::Conn;
use crate::rdma::engine::links::CONNS;
use crate::rdma::engine::order;
use crate::rdma::engine::process;
use crate::rdma::engine::qp::{Payload, QpRecord};
use crate::rdma::engine::routes::RouteEntry;
use crate::rdma::engine::sleep::SleepOn;
use crate::rdma::engine::worker::Engine;
use crate::shm::claim::take_slot;
use crate::shm::slots::CONTROL_SLOT;
use crate::shm::{Link, ShmEndpoint};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use netacc_stats::Reason;
use netacc_sys::time;
use netacc_wire::frame::{ADDRESSES, Frame, WINDOW, decode_addresses, encode_addresses};

/// Most queue pairs that are being connected to one destination at a time.
const AT_A_TIME: usize = 16;

impl Engine {
    /// Watches a link; the caller gives us its reference.
    pub(super) fn add_local(&mut self, link: &'static Link, route: Option<usize>) -> Option<usize> {
        let at = self.links.add(link, route)?;
        // The thread is to listen to this link too. For a link to another host the thread is told by the code that
        // makes it, if it has to know.
        if route.is_none() && self.sleep.on != SleepOn::Awake {
            self.ring();
        }
        Some(at)
    }

    /// The local for a link of the pool's.
    fn local_of(&mut self, link: &'static Link) -> Option<usize> {
        if let Some(at) = self.links.of(link) {
            return Some(at);
        }
        link.hold();
        self.add_local(link, None)
    }

    /// Looks for connections that have news.
    pub(super) fn check_locals(&mut self) -> bool {
        let mut busy = false;
        let mut at = 0;
        while at < self.links.table.len() {
            if let Some(local) = self.links.table.get(at)
                && let Some(ready_set) = local.link.my_ready_set(local.ready_set)
            {
                for slot in ready_set.take() {
                    busy = true;
                    if slot == CONTROL_SLOT {
                        self.take_connects(at);
                    } else if let Some(c) = self.links.conn_at(at, slot) {
                        self.conns.queue(c);
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
        self.links.count_waiting(self.status, local);
    }

    /// Client's host: takes the connects that wait on all links.
    pub(super) fn take_all_connects(&mut self) {
        for local in 0..self.links.table.len() {
            self.take_connects(local);
        }
    }

    fn take_queued(&mut self, local: usize) {
        let Some((link, route)) = self.links.table.get(local).and_then(|l| Some((l.link, l.route?))) else { return };
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
        let mut up = r.qps.iter().filter_map(|at| self.qps.table.get(*at)).filter(|e| e.is_up()).peekable();
        up.peek().is_some() && !up.any(QpRecord::takes_more)
    }

    /// Chooses a queue pair of a route that can have one more connection; begins more if they are wanted.
    pub(super) fn choose_qp(&mut self, route: usize, queued: usize) -> Option<usize> {
        let least = loop {
            let up = |at: &usize| self.qps.table.get(*at).filter(|e| e.takes_more());
            let r = self.routes.table.get(route)?;
            let least = r.qps.iter().filter_map(|at| Some((up(at)?.conns.len(), *at))).min();
            match least {
                Some((_, qp_index)) if self.qps.seems_gone(qp_index) => {}
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
            && (load < self.qps.limits.conn_per_qp || backoff)
        {
            return Some(qp_index);
        }
        if backoff {
            return None;
        }
        let connecting = r.qps.iter().filter(|at| self.qps.table.get(**at).is_some_and(|e| !e.is_up())).count();
        for _ in connecting..queued.div_ceil(self.qps.limits.conn_per_qp).min(AT_A_TIME) {
            if self.begin_qp(route).is_err() {
                if let Some(r) = self.routes.table.get_mut(route) {
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
        let Some(at) = self.conns.table.add(CONNS, conn) else {
            crate::Endpoint::close(ep, true);
            return None;
        };
        self.status.carried.fetch_add(1, Ordering::Relaxed);
        let (id, generation) = name.unwrap_or((at as u16, self.conns.table.generation(at)));
        if let Some(conn) = self.conns.table.get_mut(at) {
            (conn.id, conn.generation) = (id, generation);
        }
        if let Some(qp) = self.qps.table.get_mut(qp_index) {
            qp.conns.insert(id, at);
            qp.used = true;
            // Progress that only moves bytes does not allocate.
            qp.stalled.reserve(qp.conns.len());
        }
        let conns = self.conns.table.len();
        self.conns.ready.reserve(conns);
        self.conns.starved.reserve(conns);
        self.links.place(local, ep, at);
        // On the server's host that was told before the connect was queued.
        if self.qps.count_taken(qp_index)
            && let Some((local, route)) =
                self.links.table.get(local).and_then(|l| Some((l.link, self.routes.table.get(l.route?)?)))
        {
            self.qps.show_taken(qp_index, ep, local, route.link);
        }
        self.conns.queue(at);
        Some(at)
    }

    /// Server's host: handles a client on another host that opens a connection. False: the client broke the rules.
    pub(super) fn opened(&mut self, at: usize, frame: Frame, payload: Payload<'_>) -> bool {
        let Some(qp) = self.qps.table.get_mut(at) else { return true };
        if qp.route.is_some() || payload.len() != ADDRESSES {
            return false;
        }
        let mut bytes = [0u8; ADDRESSES];
        let Some((client, server)) = Some(())
            .filter(|()| qp.copy(&mut self.qps.devices, payload, 0, &mut bytes))
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
            self.qps.refuse(at, frame);
            return true;
        }
        if let Some(&old) = qp.conns.get(&frame.conn) {
            self.end_of_name(old);
        }
        match self.join(client, server, at) {
            Ok((ep, local)) => {
                if self.begin(ep, local, at, Some((frame.conn, frame.generation)), None).is_none() {
                    self.qps.refuse(at, frame);
                }
            }
            Err(why) => {
                netacc_log::log!(Info, "{client}: the RDMA connection to {server} is refused: {}", why.name());
                self.qps.refuse(at, frame);
            }
        }
        true
    }

    /// Connects to a listener of this host on behalf of `client`.
    pub(super) fn join(
        &mut self,
        client: SocketAddr,
        server: SocketAddr,
        qp_index: usize,
    ) -> Result<(&'static ShmEndpoint, usize), Reason> {
        if process::is_alone() {
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
            self.qps.publish_qp(qp_index, ep);
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
        let Some(local) = self.links.table.get_mut(at) else { return };
        local.link.service();
        local.ended = local.link.is_lost();
        let here: Vec<usize> = local.slots.iter().filter_map(|c| (*c as usize).checked_sub(1)).collect();
        let (ended, route) = (local.ended, local.route);
        if !ended {
            return;
        }
        for c in &here {
            self.conns.queue(*c);
        }
        if here.is_empty() {
            self.links.drop(self.status, at);
        }
        if let Some(route) = route {
            self.detach_route(route);
        }
    }
}
