//! The look-up of a connect: whether a server on another host is reached by RDMA, and by which link.

use crate::host::{Reachability, host};
use crate::rdma::engine::cell::{self, EngineCell};
use crate::rdma::engine::routes::{Route, RouteHandle, learn};
use crate::rdma::engine::{manager, probe, process, status, thread};
use crate::shm::Link;
use crate::shm::rendezvous::SourceProbe;
use core::net::SocketAddr;
use netacc_stats::Reason;
use netacc_sys::{lock, raw, time};

/// A server is probed for this part of what a connect waits at most.
const PROBE_SHARE: u64 = 3;
/// Loading the libraries may take this many times as long as a connect waits.
const LOADING: u64 = 4;

/// What is known of a route to another host.
pub(super) enum RouteLookup {
    /// The route is open, by a link of which the caller gets a reference.
    Open(RouteHandle),
    /// The route is being looked for; an event will come by this descriptor, if it is not -1.
    Opening(i32),
    /// The route has not been looked for.
    Unknown,
}

/// Whether the calling thread may look for a route.
fn usable() -> Result<(), Reason> {
    // Not in a handler that has interrupted a thread that holds locks: the handler must not wait for any.
    if !process::available() {
        return Err(process::why_unavailable());
    }
    if lock::interrupted() { Err(Reason::OtherHost) } else { Ok(()) }
}

/// The route to a server on another host, as far as it is known.
fn lookup_route(dest: SocketAddr) -> Result<RouteLookup, Reason> {
    usable()?;
    thread::start()?;
    let first = cell::first().ok_or(Reason::OtherHost)?;
    // The engine with the least to do; of several the first, so that one connection after the other uses the same queue
    // pair.
    let load = |cell: &EngineCell| cell.status.carried.get() + cell.status.waiting.get();
    let (n, chosen) = cell::least(load).ok_or(Reason::OtherHost)?;
    let own = |source| {
        if n == 0 { None } else { chosen.with_from_app(|e| e.routes.share_route(&mut e.mux, dest, source)).flatten() }
    };
    if let Some(handle) = own(None) {
        return Ok(RouteLookup::Open(handle));
    }
    match first.with_from_app(|e| e.route(dest)).ok_or(Reason::OtherHost)? {
        Route::Open(handle) => {
            let Some(own) = own(Some(handle.source)) else { return Ok(RouteLookup::Open(handle)) };
            handle.link.put();
            chosen.ring();
            Ok(RouteLookup::Open(own))
        }
        Route::Closed(why) => Err(why),
        Route::Opening(fd) => {
            first.ring();
            Ok(RouteLookup::Opening(fd))
        }
        Route::Unknown => Ok(RouteLookup::Unknown),
    }
}

/// The route to a server on another host. If nothing is known of it, the connection manager is asked.
pub(super) fn find_route(dest: SocketAddr) -> Result<RouteLookup, Reason> {
    match lookup_route(dest)? {
        RouteLookup::Unknown => {
            let first = cell::first().ok_or(Reason::OtherHost)?;
            if first.with_from_app(|e| e.begin_route(dest)) != Some(true) {
                return Err(Reason::NoMemory);
            }
            first.ring();
            Ok(RouteLookup::Opening(-1))
        }
        known => Ok(known),
    }
}

/// Finds the route to a server on another host; the caller gets a reference to the link. If nothing is known of the
/// destination this asks for it, and waits for at most `timeout` ns; it uses `probe`'s socket, if there is one.
pub fn reach(dest: SocketAddr, mut probe: Option<SourceProbe>, timeout: u64) -> Result<RouteHandle, Reason> {
    usable()?;
    let mut answer = None;
    if status::count() == 0 {
        // A program that only talks to plain servers has no thread of ours either.
        answer = Some(probe::probe(dest, probe.take(), timeout / PROBE_SHARE));
        if let Some(probe::Answer::Nobody(why)) = answer {
            learn(dest, Reachability::Refused(why));
            return Err(why);
        }
        thread::start()?;
    }
    match lookup_route(dest)? {
        RouteLookup::Open(handle) => return Ok(handle),
        // The probe's socket has a number of the program's, and must not stay for long.
        RouteLookup::Opening(_) => drop(probe.take()),
        RouteLookup::Unknown => {
            let answer = answer.unwrap_or_else(|| probe::probe(dest, probe.take(), timeout / PROBE_SHARE));
            let first = cell::first().ok_or(Reason::OtherHost)?;
            first.with_from_app(|e| e.on_probe_answer(dest, answer));
        }
    }
    // Counted from the question to the connection manager: before that, libraries may have to be loaded.
    let mut end = time::now().saturating_add(timeout.saturating_mul(LOADING));
    let mut asked = false;
    loop {
        match find_route(dest)? {
            RouteLookup::Open(handle) => return Ok(handle),
            path => {
                let fd = if let RouteLookup::Opening(fd) = path { fd } else { -1 };
                let now = time::now();
                if fd >= 0 && !core::mem::replace(&mut asked, true) {
                    end = now.saturating_add(timeout);
                }
                if now >= end {
                    return Err(Reason::OtherHost);
                }
                // The thread may take the event itself: then we look again soon.
                let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 500_000 };
                let _ = raw::ppoll(&raw mut p, 1, &raw mut ts, core::ptr::null());
            }
        }
    }
}

/// Time (ns) that a connect may take to find out whether its destination is reached by RDMA, and then to be carried
/// there.
pub fn connect_timeout() -> u64 {
    host().and_then(|host| host.config()).map_or(0, |conf| u64::from(conf.connect_rdma_ms)) * 1_000_000
}

/// Whether a connect for which a promise was made ([`RouteHandle::optimistic`]) has waited long enough for its queue
/// pair at `now` (ns), if it has waited since `since`.
pub fn is_late(since: u64, now: u64) -> bool {
    // As in `reach`, counted from the question to the connection manager.
    let (since, whole) = match manager::there_since() {
        0 => (since, connect_timeout().saturating_mul(LOADING)),
        there => (since.max(there), connect_timeout()),
    };
    now.saturating_sub(since) > whole
}

/// Has no connect wait any longer for what [`RouteHandle::optimistic`] to it.
pub fn end_optimistic(server: SocketAddr, engine: Option<usize>) {
    if !lock::interrupted()
        && let Some(cell) = engine.and_then(cell::at)
    {
        cell.with_from_app(|e| e.routes.end_optimistic(&mut e.mux, server));
    }
}

/// Makes a further link to a server, of which the caller gets a reference, since `full` has no place for a connect.
pub fn widen(dest: SocketAddr, full: &'static Link) -> Option<&'static Link> {
    cell::at(full.engine()?)?.with_from_app(|e| e.routes.add_route_link(&mut e.mux, dest, full)).flatten()
}

/// The known reason why connections to a server do not go over RDMA.
pub fn why_not(server: SocketAddr, engine: Option<usize>) -> Option<Reason> {
    // A handler may have interrupted the thread that has the engine.
    if lock::interrupted() {
        return None;
    }
    cell::at(engine?)?.with_from_app(|e| e.routes.closed_for(server)).flatten()
}
