//! Connections that are still on kernel TCP and are to go on by a queue pair: what both hosts do for them.

use crate::Endpoint;
use crate::host::host;
use crate::rdma::engine::upgrade_pending::Step;
use crate::rdma::engine::upgrade_server;
use crate::rdma::engine::worker::Engine;
use crate::shm::segment::{CONNECT_QUEUED, CONNECT_TAKEN};
use crate::shm::slots::Claimed;
use crate::shm::{Link, ShmEndpoint};
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use netacc_wire::frame::Kind;

impl Engine {
    /// Makes both sides of a slot on a link of ours: the program's and our own. `local` is the place of the latter.
    pub(super) fn seat(
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
            program.withdraw();
            program.never_mind(claimed.generation);
            program.close(true);
            return None;
        };
        Some((program, ours))
    }

    /// Makes a place for a connection of a server's, on a link of our own.
    pub(super) fn seat_for_server(
        &mut self,
        addresses: (SocketAddr, SocketAddr),
    ) -> Option<(&'static ShmEndpoint, &'static ShmEndpoint, usize)> {
        /// Most links for this, with some 500 places each.
        const SEATS: usize = 128;
        for n in 0..SEATS {
            let (link, local) = match self.links.seats.get(n) {
                Some(seat) => *seat,
                None => {
                    let (link, ours) = Link::pair(self.index).ok()?;
                    let Some(local) = self.add_local(ours, None) else {
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
    pub(super) fn pump_pending(&mut self, at: usize) -> bool {
        let Some(conn) = self.conns.table.get_mut(at) else { return false };
        let Some(pending) = &mut conn.upgrade else { return true };
        match pending.program.outcome() {
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
        let (kind, next) = match pending.step {
            Step::SendRequest => (Kind::Upgrade, Step::AwaitAnswer),
            Step::Prepared(_) => (Kind::Ready, Step::Answered),
            Step::Cancel => (Kind::Cancel, Step::Cancelled),
            _ => return false,
        };
        let (before, ask) = (core::mem::replace(&mut pending.step, next), pending.request.encode());
        let payload: &[u8] = match &before {
            Step::SendRequest => &ask,
            Step::Prepared(token) => token,
            _ => &[],
        };
        let frame = conn.frame(kind);
        let qp_index = conn.qp;
        let Some(qp) = self.qps.table.get_mut(qp_index) else { return false };
        let Some(mut path) = qp.path(&mut self.qps.devices) else { return false };
        if path.can_add() {
            let added = path.add(frame, payload).is_ok();
            if path.is_waiting() {
                self.qps.post_later(qp_index);
            }
            if !added {
                self.qps.broken.push(qp_index);
            }
            return false;
        }
        if let Some(pending) = &mut conn.upgrade {
            pending.step = before;
        }
        if !conn.stalled {
            conn.stalled = true;
            qp.stalled.push_back(at);
        }
        false
    }

    /// To be called in each round: looks at the early connections that something is awaited of.
    pub(super) fn check_pending(&mut self) {
        let count = upgrade_server::ACCEPTED.load(Ordering::Relaxed);
        let accepted = core::mem::replace(&mut self.conns.accepted, count) != count;
        let mut all = core::mem::take(&mut self.conns.pending_upgrades);
        all.retain(|at| {
            self.prepare(*at, accepted);
            self.conns.table.get(*at).is_some_and(|c| c.upgrade.is_some())
        });
        all.append(&mut self.conns.pending_upgrades);
        self.conns.pending_upgrades = all;
    }
}
