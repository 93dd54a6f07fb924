//! Server's host: a client asks to go on by a queue pair with a connection that it has by kernel TCP (see [`upgrade`]).
//! Only the process that has the queue pair is asked: a connection that another one has accepted stays on TCP.

use crate::Endpoint;
use crate::host::{UpgradeAnswer, host};
use crate::rdma::engine::cell;
use crate::rdma::engine::listeners;
use crate::rdma::engine::progress;
use crate::rdma::engine::qp::Payload;
use crate::rdma::engine::status;
use crate::rdma::engine::upgrade_pending::{PendingUpgrade, Step};
use crate::rdma::engine::worker::Engine;
use crate::shm::ShmEndpoint;
use crate::timeouts;
use core::sync::atomic::{AtomicUsize, Ordering};
use netacc_sys::time;
use netacc_wire::frame::{Frame, UPGRADE, Upgrade};

/// Number of accepted connections that clients may ask for; each engine looks again when this has grown.
pub(super) static ACCEPTED: AtomicUsize = AtomicUsize::new(0);
/// Most connections that may be asked for at a time; a connection that is asked for beyond that stays on TCP. Each of
/// them is looked for among all descriptors.
pub(super) const MAX_PENDING_UPGRADES: usize = 1024;
const UPGRADE_ACCEPT: u64 = time::ns(timeouts::UPGRADE_ACCEPT);

/// Whether a connection from another host that was accepted at this port may be asked for.
pub fn may_be_upgraded(port: u16) -> bool {
    status::count() > 0 && listeners::listens(port)
}

/// A connection was accepted, and can be found.
pub fn accepted() {
    // Relaxed: a connection that is asked for after this is found anyway; for one asked for before, the engine looks
    // once a second at the latest.
    ACCEPTED.fetch_add(1, Ordering::Relaxed);
    progress::progress();
}

/// Leaves a prepared connection where it is, as the program wants.
pub fn cancel(program: &'static ShmEndpoint) {
    if let Some(cell) = program.engine().and_then(cell::at) {
        cell.with_from_app(|e| e.cancel(program));
    }
}

impl Engine {
    /// Handles a client's request for a connection. False: the client broke the rules.
    pub(super) fn on_upgrade_request(&mut self, at: usize, frame: Frame, payload: Payload<'_>) -> bool {
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
            program.withdraw();
            program.close(false);
            self.qps.refuse(at, frame);
            return true;
        };
        self.qps.publish_qp(at, ep);
        if let Some(conn) = self.conns.table.get_mut(c) {
            conn.upgrade =
                Some(PendingUpgrade { step: Step::AwaitProgram, request, socket: None, program, since: time::now() });
        }
        self.conns.pending_upgrades.push(c);
        self.prepare(c, true);
        true
    }

    /// Prepares the program's side, if its time has come; `accepted`: the program may have accepted it just now.
    pub(super) fn prepare(&mut self, c: usize, accepted: bool) {
        let Some(pending) = self.conns.table.get_mut(c).and_then(|conn| conn.upgrade.as_mut()) else { return };
        if pending.step != Step::AwaitProgram {
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
                pending.step = Step::Prepared(token);
                self.conns.queue(c);
            }
            UpgradeAnswer::No => self.reset(c),
        }
    }

    fn cancel(&mut self, program: &'static ShmEndpoint) {
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
            match pending.step {
                Step::Answered => pending.step = Step::Cancel,
                Step::Prepared(_) => return self.reset(c),
                _ => {}
            }
        }
        self.conns.queue(c);
    }

    /// Done once in a while: gives up connections that the program has not accepted, or read from, in time.
    pub(super) fn maintain_pending(&mut self, now: u64) {
        for c in self.conns.pending_upgrades.clone() {
            self.prepare(c, true);
            let Some(pending) = self.conns.table.get_mut(c).and_then(|conn| conn.upgrade.as_mut()) else { continue };
            if now.saturating_sub(pending.since) < UPGRADE_ACCEPT {
                continue;
            }
            match pending.step {
                Step::AwaitProgram => self.reset(c),
                // The program may not look for long; nothing must stay undecided.
                Step::Answered => {
                    pending.step = Step::Cancel;
                    self.conns.queue(c);
                }
                _ => {}
            }
        }
    }
}
