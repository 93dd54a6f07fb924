//! Server's host: a client asks to go on by a queue pair with a connection that it has by kernel TCP (see [`far`]). Only the
//! process that has the queue pair is asked: a connection that another one has accepted stays on TCP.

use crate::carrier::drive;
use crate::carrier::early::{Early, Step};
use crate::carrier::engine::Engine;
use crate::carrier::engines;
use crate::carrier::entry::Payload;
use crate::carrier::listeners;
use crate::socket::far::{self, Answer};
use crate::timeouts;
use core::sync::atomic::{AtomicUsize, Ordering};
use netacc_sys::time;
use netacc_transport::Endpoint;
use netacc_transport::shm::ShmEndpoint;
use netacc_wire::frame::{ASK, Ask, Frame};

/// Number of accepted connections that clients may ask for; each engine looks again when this has grown.
pub(super) static ACCEPTED: AtomicUsize = AtomicUsize::new(0);
/// Most connections that may be asked for at a time; a connection that is asked for beyond that stays on TCP. Each of
/// them is looked for among all descriptors.
pub(super) const ASKING: usize = 1024;
const UPGRADE_ACCEPT: u64 = time::ns(timeouts::UPGRADE_ACCEPT);

/// Whether a connection from another host that was accepted at this port may be asked for.
pub fn may_be_asked(port: u16) -> bool {
    !engines::all().is_empty() && listeners::listens(port)
}

/// A connection was accepted, and can be found.
pub fn accepted() {
    // Relaxed: a connection that is asked for after this is found anyway; for one asked for before, the engine looks
    // once a second at the latest.
    ACCEPTED.fetch_add(1, Ordering::Relaxed);
    drive::drive();
}

/// Leaves a prepared connection where it is, as the program wants.
pub fn cancel(program: &'static ShmEndpoint) {
    if let Some(place) = program.engine().and_then(engines::at) {
        place.ask(|e| e.cancel(program));
    }
}

impl Engine {
    /// Handles a client's request for a connection. False: the client broke the rules.
    pub(super) fn asked(&mut self, at: usize, frame: Frame, payload: Payload<'_>) -> bool {
        let Some(entry) = self.pipes.get_mut(at) else { return true };
        let mut bytes = [0u8; ASK];
        if entry.route.is_some() || payload.len() != ASK || !entry.copy(&mut self.devices, payload, 0, &mut bytes) {
            return false;
        }
        let Some(ask) = Ask::decode(&bytes) else { return false };
        // Where addresses are translated on the way, the connection has other addresses here.
        let ours = entry.ips == Some((ask.server.ip(), ask.client.ip())) && entry.port == ask.server.port();
        if let Some(&old) = entry.conns.get(&frame.conn) {
            self.end_of_name(old);
        }
        let seat =
            if ours && self.early.len() < ASKING { self.seat_for_server((ask.client, ask.server)) } else { None };
        let Some((program, ep, local)) = seat else {
            self.refuse(at, frame);
            return true;
        };
        let Some(c) = self.begin(ep, local, at, Some((frame.conn, frame.epoch)), None) else {
            program.withdraw();
            program.close(false);
            self.refuse(at, frame);
            return true;
        };
        self.report_carrier(at, ep);
        if let Some(conn) = self.conns.get_mut(c) {
            conn.early = Some(Early { step: Step::Asked, ask, socket: None, program, since: time::now() });
        }
        self.early.push(c);
        self.prepare(c, true);
        true
    }

    /// Prepares the program's side, if its time has come; `accepted`: the program may have accepted it just now.
    pub(super) fn prepare(&mut self, c: usize, accepted: bool) {
        let Some(early) = self.conns.get_mut(c).and_then(|conn| conn.early.as_mut()) else { return };
        if early.step != Step::Asked {
            return;
        }
        if early.socket.is_none() && accepted {
            early.socket = far::find(early.ask.client, early.ask.server);
        }
        let Some(r) = early.socket else { return };
        match far::prepare(r, early.ask.sent, early.program) {
            Answer::NotYet => {}
            Answer::Ready(token) => {
                early.step = Step::Prepared(token);
                self.queue(c);
            }
            Answer::No => self.reset(c),
        }
    }

    fn cancel(&mut self, program: &'static ShmEndpoint) {
        let is_meant = |early: &Early| core::ptr::eq(early.program, program);
        let Some(c) = self
            .early
            .iter()
            .copied()
            .find(|c| self.conns.get(*c).and_then(|conn| conn.early.as_ref()).is_some_and(is_meant))
        else {
            return;
        };
        if let Some(early) = self.conns.get_mut(c).and_then(|conn| conn.early.as_mut()) {
            // A client that has not been told yet is told nothing else.
            match early.step {
                Step::Told => early.step = Step::Cancel,
                Step::Prepared(_) => return self.reset(c),
                _ => {}
            }
        }
        self.queue(c);
    }

    /// Done once in a while: gives up connections that the program has not accepted, or read from, in time.
    pub(super) fn tidy_early(&mut self, now: u64) {
        for c in self.early.clone() {
            self.prepare(c, true);
            let Some(early) = self.conns.get_mut(c).and_then(|conn| conn.early.as_mut()) else { continue };
            if now.saturating_sub(early.since) < UPGRADE_ACCEPT {
                continue;
            }
            match early.step {
                Step::Asked => self.reset(c),
                // The program may not look for long; nothing must stay undecided.
                Step::Told => {
                    early.step = Step::Cancel;
                    self.queue(c);
                }
                _ => {}
            }
        }
    }
}
