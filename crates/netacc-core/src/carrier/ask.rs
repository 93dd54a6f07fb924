//! Client's host: a connection that began on kernel TCP asks to go on by a queue pair (see [`far`](crate::socket::far)).

use crate::carrier::early::{Early, Step};
use crate::carrier::engine::Engine;
use crate::carrier::engines::{self, Place};
use crate::carrier::entry::Payload;
use crate::carrier::{Led, Way, drive, find_way};
use crate::fdtable::{self, Entry, Ref};
use crate::socket::{CANDIDATE, OFFERS, REMOTE, Socket, asking, pool};
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use netacc_stats::Reason;
use netacc_sys::time;
use netacc_transport::Endpoint;
use netacc_transport::shm::Link;
use netacc_wire::base::TOKEN;
use netacc_wire::frame::{Ask, Frame};

/// When ([`time::now`]) the thread looks which connections are to ask; 0: there is none.
static NEXT: AtomicU64 = AtomicU64::new(0);
/// Time (ns) between its looks while there are some.
const EVERY: u64 = 50_000_000;

/// To be called when a connection wants to ask.
pub fn ask_soon() {
    // Relaxed: a connection that is noted too late for one look is found by the next one.
    if NEXT.load(Ordering::Relaxed) == 0 {
        NEXT.store(time::now(), Ordering::Relaxed);
        if let Some(first) = engines::first() {
            first.ring();
        }
    }
}

/// To be called when a route is open: the connections that wait ask at once.
pub(super) fn hurry() {
    if NEXT.load(Ordering::Relaxed) != 0 {
        NEXT.store(1, Ordering::Relaxed);
    }
}

/// By the first engine's thread, without its lock: has the connections ask that want to. Returns in how many ms to look
/// again, if ever.
pub(super) fn remind() -> Option<i64> {
    let due = NEXT.load(Ordering::Relaxed);
    if due == 0 {
        return None;
    }
    let now = time::now();
    if now >= due {
        NEXT.store(0, Ordering::Relaxed);
        let mut left = false;
        fdtable::each(0, usize::MAX, |fd, e| {
            if let Entry::Socket(r) = e
                && r.obj.has(REMOTE)
                && r.obj.has(OFFERS)
                && r.obj.has(CANDIDATE)
            {
                left |= asking::ask(fd, r);
            }
        });
        if !left {
            return None;
        }
        NEXT.store(now.saturating_add(EVERY), Ordering::Relaxed);
    }
    Some(1 + NEXT.load(Ordering::Relaxed).saturating_sub(now).min(EVERY) as i64 / 1_000_000)
}

/// Begins to look for the route to a server.
pub fn look_for(server: SocketAddr) {
    if let Ok(Way::Open(Led { link, .. })) = find_way(server) {
        link.put();
    }
}

/// Asks `server` to go on by a queue pair with the connection that `client`, a socket of ours, has by TCP. False: that is
/// not possible yet.
pub fn ask(r: Ref<Socket>, client: SocketAddr, server: SocketAddr) -> Result<bool, Reason> {
    let Way::Open(Led { link, source, .. }) = find_way(server)? else { return Ok(false) };
    // A route from another address of ours may lead elsewhere.
    let done = if client.ip() == source && client.port() >= 1024 {
        let place = link.engine().and_then(engines::at);
        Ok(place.and_then(|place: &Place| place.ask(|e| e.ask(link, r, client, server))).unwrap_or(false))
    } else {
        Err(Reason::OtherHost)
    };
    let engine = link.engine();
    link.put();
    drive::begin(engine);
    done
}

impl Engine {
    fn ask(&mut self, link: &'static Link, r: Ref<Socket>, client: SocketAddr, server: SocketAddr) -> bool {
        let route = self.routes.each().find(|(_, e)| e.link.is_some_and(|l| core::ptr::eq(l, link)));
        let Some((route, Some(local))) = route.map(|(at, e)| (at, e.local)) else { return false };
        let Some(pipe) = self.choose_pipe(route, 1) else { return false };
        let claim = match pool::claim_far(server, link, true) {
            Ok(claim) => claim,
            Err(why) => {
                if why == Reason::NoMemory
                    && let Some(wider) = self.widen_route(server, link)
                {
                    // The wider link serves when the connection asks again.
                    wider.put();
                }
                return false;
            }
        };
        let Some((program, ours)) = self.seat(link, local, claim.claimed, (client, server)) else { return false };
        drop(claim);
        let Some(at) = self.begin(ours, local, pipe, None, None) else {
            program.withdraw();
            program.close(false);
            return false;
        };
        let ask = Ask { client, server, sent: asking::sent(r.obj) };
        let early = Early { step: Step::Ask, ask, socket: Some(r), program, since: time::now() };
        if let Some(conn) = self.conns.get_mut(at) {
            conn.early = Some(early);
        }
        true
    }

    /// The server's side of a connection is prepared. False: the other side broke the rules.
    pub(super) fn ready(&mut self, at: usize, frame: Frame, payload: Payload<'_>) -> bool {
        let mut token = [0u8; TOKEN];
        let Some(entry) = self.pipes.get_mut(at) else { return true };
        if entry.route.is_none() || payload.len() != TOKEN || !entry.copy(&mut self.devices, payload, 0, &mut token) {
            return false;
        }
        let known = entry.conns.get(&frame.conn).copied();
        let Some((c, conn)) =
            known.and_then(|c| Some((c, self.conns.get_mut(c).filter(|conn| conn.epoch == frame.epoch)?)))
        else {
            // The connection is over here.
            self.refuse(at, frame);
            return true;
        };
        // Its next messages need not carry its epoch.
        conn.met = true;
        let Some(early) = conn.early.take_if(|early| early.step == Step::Asking) else { return false };
        let gone_over = early.socket.is_some_and(|r| asking::commit(r, early.ask.sent, token, early.program));
        if gone_over {
            self.queue(c);
        } else {
            conn.early = Some(early);
            self.reset(c);
        }
        true
    }

    /// The server would rather not go on with a connection. A connection that has not gone over says so.
    pub(super) fn cancelled(&mut self, c: usize) -> bool {
        if self.conns.get(c).is_some_and(|conn| conn.early.is_some()) {
            self.reset(c);
        } else {
            // The message may have brought credit, as any message may.
            self.queue(c);
        }
        true
    }
}
