//! Connections that are still on kernel TCP and are to go on by a queue pair: what both hosts do for them.

use crate::Endpoint;
use crate::host::{UpgradeAnswer, host};
use crate::rdma::engine::mux::Mux;
use crate::rdma::engine::mux::upgrade_pending::{PendingUpgrade, Step};
use crate::rdma::engine::qp::Payload;
use crate::shm::segment::{CONNECT_QUEUED, CONNECT_TAKEN};
use crate::shm::slots::Claimed;
use crate::shm::{Link, ShmEndpoint};
use crate::timeouts;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicUsize, Ordering};
use netacc_sys::time;
use netacc_wire::companion::TOKEN;
use netacc_wire::frame::{Frame, Kind, UPGRADE, Upgrade};

/// Number of accepted connections that clients may ask for; each engine looks again when this has grown.
pub(in crate::rdma::engine) static ACCEPTED: AtomicUsize = AtomicUsize::new(0);
/// Most connections that may be asked for at a time; a connection that is asked for beyond that stays on TCP. Each of
/// them is looked for among all descriptors.
const MAX_PENDING_UPGRADES: usize = 1024;
const UPGRADE_ACCEPT: u64 = time::ns(timeouts::UPGRADE_ACCEPT);

impl Mux {
    /// Makes both sides of a slot on a link of ours: the program's and our own. `local` is the place of the latter.
    pub fn seat(
        &mut self,
        link: &'static Link,
        local: usize,
        claimed: Claimed,
        (client, server): (SocketAddr, SocketAddr),
    ) -> Option<(&'static ShmEndpoint, &'static ShmEndpoint)> {
        let Some(program) = link.endpoint(claimed.slot).filter(|ep| ep.begin(claimed.generation)) else {
            link.slots.burned();
            return None;
        };
        if let Some(slot) = link.segment().and_then(|s| s.slot(claimed.slot)) {
            slot.open.write(client, server);
        }
        let ours = self.links.table.get(local).and_then(|l| l.link.endpoint(claimed.slot));
        let Some(ours) = ours.filter(|ep| ep.begin(claimed.generation)) else {
            program.side.withdraw();
            program.side.never_mind(claimed.generation);
            program.close(true);
            return None;
        };
        Some((program, ours))
    }

    /// Makes a place for a connection of a server's, on a link of our own.
    pub fn seat_for_server(
        &mut self,
        addresses: (SocketAddr, SocketAddr),
    ) -> Option<(&'static ShmEndpoint, &'static ShmEndpoint, usize)> {
        /// Most links for this, with some 500 places each.
        const SEATS: usize = 128;
        for n in 0..SEATS {
            let (link, local) = match self.links.seats.get(n) {
                Some(seat) => *seat,
                None => {
                    let (link, ours) = Link::pair(self.qps.index).ok()?;
                    let Some(local) = self.links.add(ours, None) else {
                        link.put();
                        return None;
                    };
                    self.links.seats.push((link, local));
                    (link, local)
                }
            };
            if let Some(left) = link.slots.parked_slots()
                && host().is_some_and(|host| host.is_alone())
            {
                link.slots.unpark(left);
            }
            if let Some(claimed) = link.claim() {
                let (program, ours) = self.seat(link, local, claimed, addresses)?;
                return Some((program, ours, local));
            }
        }
        None
    }

    /// Looks at a connection that is still on TCP. True: it is not on TCP any more, and carried like any other.
    pub fn pump_pending(&mut self, at: usize) -> bool {
        let Some(conn) = self.conns.table.get_mut(at) else { return false };
        let Some(pending) = &mut conn.upgrade else { return true };
        match pending.program.side.outcome() {
            CONNECT_QUEUED => {}
            CONNECT_TAKEN => {
                conn.upgrade = None;
                return true;
            }
            // The program's side has stayed. So has the client's, which is told if it was told otherwise before.
            _ => {
                self.reset(at);
                return false;
            }
        }
        let (kind, next) = match pending.step() {
            Step::SendRequest => (Kind::Upgrade, Step::AwaitAnswer),
            Step::Prepared(_) => (Kind::Ready, Step::Answered),
            Step::Cancel => (Kind::Cancel, Step::Cancelled),
            _ => return false,
        };
        let qp_index = conn.qp;
        let Some(qp) = self.qps.table.get_mut(qp_index) else { return false };
        let Some(mut path) = qp.path(&mut self.qps.devices) else { return false };
        if !path.can_add() {
            if !conn.sched().is_stalled() {
                conn.set_sched(conn.sched().stalled());
                qp.stalled.push_back(at);
            }
            return false;
        }
        let (before, ask) = (pending.step(), pending.request.encode());
        pending.set_step(next);
        let payload: &[u8] = match &before {
            Step::SendRequest => &ask,
            Step::Prepared(token) => token,
            _ => &[],
        };
        let frame = conn.frame(kind);
        let added = path.add(frame, payload).is_ok();
        if path.is_waiting() {
            self.qps.post_later(qp_index);
        }
        if !added {
            self.qps.broken.push(qp_index);
        }
        false
    }

    /// To be called in each round: looks at the early connections that something is awaited of.
    pub fn check_pending(&mut self) {
        let count = ACCEPTED.load(Ordering::Relaxed);
        let accepted = core::mem::replace(&mut self.conns.accepted, count) != count;
        let mut all = core::mem::take(&mut self.conns.pending_upgrades);
        all.retain(|at| {
            self.prepare(*at, accepted);
            self.conns.table.get(*at).is_some_and(|c| c.upgrade.is_some())
        });
        all.append(&mut self.conns.pending_upgrades);
        self.conns.pending_upgrades = all;
    }

    /// Handles a client's request for a connection. False: the client broke the rules.
    pub fn on_upgrade_request(&mut self, at: usize, frame: Frame, payload: Payload<'_>) -> bool {
        let Some(qp) = self.qps.table.get_mut(at) else { return true };
        let mut bytes = [0u8; UPGRADE];
        if qp.route.is_some() || payload.len() != UPGRADE || !qp.copy(&mut self.qps.devices, payload, 0, &mut bytes) {
            return false;
        }
        let Some(request) = Upgrade::decode(&bytes) else { return false };
        // Where addresses are translated on the way, the connection has other addresses here.
        let ours = qp.ips == Some((request.server.ip(), request.client.ip())) && qp.port == request.server.port();
        if let Some(&old) = qp.conns.get(&frame.conn) {
            self.end_of_name(old);
        }
        let seat = if ours && self.conns.pending_upgrades.len() < MAX_PENDING_UPGRADES {
            self.seat_for_server((request.client, request.server))
        } else {
            None
        };
        let Some((program, ep, local)) = seat else {
            self.qps.refuse(at, frame);
            return true;
        };
        let Some(c) = self.begin(ep, local, at, Some((frame.conn, frame.generation)), None) else {
            program.side.withdraw();
            program.close(false);
            self.qps.refuse(at, frame);
            return true;
        };
        self.qps.publish_qp(at, ep);
        if let Some(conn) = self.conns.table.get_mut(c) {
            conn.upgrade = Some(PendingUpgrade::new(Step::AwaitProgram, request, None, program));
        }
        self.conns.pending_upgrades.push(c);
        self.prepare(c, true);
        true
    }

    /// Prepares the program's side, if its time has come; `accepted`: the program may have accepted it just now.
    pub fn prepare(&mut self, c: usize, accepted: bool) {
        let Some(pending) = self.conns.table.get_mut(c).and_then(|conn| conn.upgrade.as_mut()) else { return };
        if pending.step() != Step::AwaitProgram {
            return;
        }
        let Some(host) = host() else { return };
        if pending.socket.is_none() && accepted {
            pending.socket = host.upgrade_candidate(pending.request.client, pending.request.server);
        }
        let Some(socket) = pending.socket else { return };
        match host.prepare_upgrade(socket, pending.request.sent, pending.program) {
            UpgradeAnswer::NotYet => {}
            UpgradeAnswer::Ready(token) => {
                pending.set_step(Step::Prepared(token));
                self.conns.queue(c);
            }
            UpgradeAnswer::No => self.reset(c),
        }
    }

    pub fn cancel(&mut self, program: &'static ShmEndpoint) {
        let is_meant = |pending: &PendingUpgrade| core::ptr::eq(pending.program, program);
        let Some(c) = self
            .conns
            .pending_upgrades
            .iter()
            .copied()
            .find(|c| self.conns.table.get(*c).and_then(|conn| conn.upgrade.as_ref()).is_some_and(is_meant))
        else {
            return;
        };
        if let Some(pending) = self.conns.table.get_mut(c).and_then(|conn| conn.upgrade.as_mut()) {
            // A client that has not been told yet is told nothing else.
            match pending.step() {
                Step::Answered => pending.set_step(Step::Cancel),
                Step::Prepared(_) => return self.reset(c),
                _ => {}
            }
        }
        self.conns.queue(c);
    }

    /// Done once in a while: gives up connections that the program has not accepted, or read from, in time.
    pub fn maintain_pending(&mut self, now: u64) {
        for c in self.conns.pending_upgrades.clone() {
            self.prepare(c, true);
            let Some(pending) = self.conns.table.get_mut(c).and_then(|conn| conn.upgrade.as_mut()) else { continue };
            if now.saturating_sub(pending.since) < UPGRADE_ACCEPT {
                continue;
            }
            match pending.step() {
                Step::AwaitProgram => self.reset(c),
                // The program may not look for long; nothing must stay undecided.
                Step::Answered => {
                    pending.set_step(Step::Cancel);
                    self.conns.queue(c);
                }
                _ => {}
            }
        }
    }

    /// The server's side of a connection is prepared. False: the other side broke the rules.
    pub fn ready(&mut self, at: usize, frame: Frame, payload: Payload<'_>) -> bool {
        let mut token = [0u8; TOKEN];
        let Some(qp) = self.qps.table.get_mut(at) else { return true };
        if qp.route.is_none() || payload.len() != TOKEN || !qp.copy(&mut self.qps.devices, payload, 0, &mut token) {
            return false;
        }
        let known = qp.conns.get(&frame.conn).copied();
        let Some((c, conn)) = known
            .and_then(|c| Some((c, self.conns.table.get_mut(c).filter(|conn| conn.generation == frame.generation)?)))
        else {
            // The connection is over here.
            self.qps.refuse(at, frame);
            return true;
        };
        // Its next messages need not carry its generation.
        conn.note_heard();
        let Some(pending) = conn.upgrade.take_if(|pending| pending.step() == Step::AwaitAnswer) else { return false };
        let switched = pending
            .socket
            .zip(host())
            .is_some_and(|(socket, host)| host.commit_upgrade(socket, pending.request.sent, token, pending.program));
        if switched {
            self.conns.queue(c);
        } else {
            conn.upgrade = Some(pending);
            self.reset(c);
        }
        true
    }

    /// The server would rather not go on with a connection. A connection that has not gone over says so.
    pub fn cancelled(&mut self, c: usize) -> bool {
        if self.conns.table.get(c).is_some_and(|conn| conn.upgrade.is_some()) {
            self.reset(c);
        } else {
            // The message may have brought credit, as any message may.
            self.conns.queue(c);
        }
        true
    }
}
