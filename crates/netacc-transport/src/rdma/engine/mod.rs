//! Connections to other hosts: their bytes are carried between rings and queue pairs.
//!
//! For the socket layer such a connection is one over shared memory ([`crate::shm`]), whose other side is in
//! the same process: the *engine*. On the client's host the engine is the server of a link ([`Link::pair`]); on the
//! server's host it is a client of the listener's rendezvous, like any other client, so that several processes can serve
//! the listener. What comes by a ring it sends over a queue pair, and the other way round:
//!
//! ```text
//! program | ring | engine | queue pair ... queue pair | engine | ring | program
//! ```
//!
//! - `worker`: one round of the work, and what to sleep on when there is none; `cell`: all of them; `progress`: which
//!   thread does it.
//! - `probe`: whether a server is reached at all, before `manager` loads the libraries for that.
//! - `routes`: the routes to servers on other hosts; `route_links`: routes that another engine has found; `cm`: queue
//!   pairs that come and go (`qp`: one of them); `listeners`: listeners that clients on other hosts find.
//! - `companion`: the TCP connection beside each queue pair, `arrivals`: how it comes to the server's host, `admission`: how
//!   many peers there may be that have said nothing; `failover`: what goes on over it when the queue pair has failed;
//!   `keepalive`: whether the other side is still there.
//! - `after_fork`: what a fork leaves to the child; `drain`: what is done before the
//!   process ends; `exit_handoff`: what goes on afterwards. `maintenance`: what grows old; `stats`: what the stats page says; `sysfs`: the
//!   host's devices.
//! - `local`: the links, and the connections that begin; `order`: which is next.
//! - `upgrade_pending`: a connection that is still on kernel TCP; `upgrade_client`: how a client's goes over to a queue pair; `upgrade_server`: a server's.
//! - `conn`: one connection's bytes; `ring_bypass`: bytes that go past the ring; `ending`: how it ends; `message`: what has
//!   come for it; `redispatch`: one that a process of the server's does not take.
//!
//! A thread that writes or waits does the work on the way; for what is left, each engine has a thread of ours, with all
//! signals blocked, which starts with the first listener or destination that an RDMA device leads to. Each engine is
//! under a lock of its own, which is never held during a sleep.
//!
//! **fork**: the threads and the queue pairs stay the parent's, and go on carrying for the child, which shares the rings.
//! The child opens no queue pairs of its own: librdmacm would use what it inherited.

mod admission;
mod after_fork;
mod arrivals;
mod cell;
mod cm;
mod companion;
mod companion_client;
mod conn;
mod drain;
mod ending;
mod exit_handoff;
mod failover;
mod handover;
mod keepalive;
mod limits;
mod listeners;
mod local;
mod maintenance;
mod manager;
mod message;
pub mod order;
mod own_port;
mod probe;
pub mod progress;
mod qp;
mod redispatch;
pub mod ring_bypass;
mod route_links;
mod routes;
mod stats;
mod sysfs;
mod table;
mod upgrade_client;
mod upgrade_pending;
mod upgrade_server;
mod worker;

use crate::host::{Reachability, host};
use crate::shm::Link;
use crate::shm::rendezvous::SourceProbe;
use crate::timeouts;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use cell::EngineCell;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use netacc_stats::Reason;
use netacc_sys::time;
use netacc_sys::{Guard, cpu, lock, raw};
use routes::Route;
use worker::Engine;

/// The process that the engines belong to: a vfork(2) child has its parent's memory.
static PID: AtomicU32 = AtomicU32::new(0);
/// Set if this process has inherited engines by fork; then it makes none.
static INHERITED: AtomicBool = AtomicBool::new(false);
/// When the host was last found to have no RDMA device ([`time::coarse`]).
static NO_DEVICE: AtomicU64 = AtomicU64::new(0);
const NO_DEVICE_BELIEVED: u64 = time::ns(timeouts::NO_DEVICE_BELIEVED);
/// A server is probed for this part of what a connect waits at most.
const PROBE_SHARE: u64 = 3;
const QUEUED_CONNECT_CHECK: i64 = timeouts::QUEUED_CONNECT_CHECK.as_millis() as i64;
/// Loading the libraries may take this many times as long as a connect waits.
const LOADING: u64 = 4;

pub use drain::{before_exec, finish, go_on};
pub use exit_handoff::Fork;
pub use listeners::{listen, note_unheard, retry_due, unlisten};
pub use own_port::{
    before_fork as share_companions, note_blocking, note_unknown_sharer, shared_answer, take as take_companion,
};
pub use routes::RouteHandle;
pub use upgrade_client::{begin_lookup, request_upgrade, upgrade_soon};
pub use upgrade_server::{accepted, cancel, may_be_upgraded};

/// Whether this host has an RDMA device, and this process may use it.
pub fn available() -> bool {
    if !cell::all().is_empty() {
        return true;
    }
    let now = time::coarse();
    let asked = NO_DEVICE.load(Ordering::Relaxed);
    if INHERITED.load(Ordering::Relaxed) || (asked != 0 && now.wrapping_sub(asked) < NO_DEVICE_BELIEVED) {
        return false;
    }
    let there = sysfs::host_has_device();
    if !there {
        NO_DEVICE.store(now.max(1), Ordering::Relaxed);
    }
    there
}

/// Tells the socket layer what has become known of a destination.
fn learn(dest: SocketAddr, what: Reachability) {
    if let Some(host) = host() {
        host.learn(dest, what);
    }
}

/// Makes the engines and their threads, unless they are there.
fn start() -> Result<(), Reason> {
    if !cell::all().is_empty() {
        return Ok(());
    }
    let conf = host().and_then(|host| host.config()).ok_or(Reason::Disabled)?;
    PID.store(raw::getpid(), Ordering::Relaxed);
    let count = conf.io_threads as usize;
    let engine = |n, cell| {
        Engine::new(conf, n, cell).map_err(|e| {
            netacc_log::log!(Warn, "RDMA thread {n}: cannot be set up ({e}); connections use TCP");
            Reason::OtherHost
        })
    };
    let thread = |n, place| {
        let name = if count == 1 { String::from("netacc-io") } else { format!("netacc-io-{n}") };
        let cpus: Vec<u32> = conf.affinity_cpus().collect();
        // The thread inherits our signal mask, in which everything is blocked.
        let made = std::thread::Builder::new().name(name).stack_size(256 * 1024).spawn(move || run(place, &cpus));
        made.map(drop).map_err(|e| {
            netacc_log::log!(Warn, "RDMA thread {n} of {count}: cannot be started ({e}); connections use TCP");
            Reason::NoMemory
        })
    };
    cell::start(count, engine, thread).inspect_err(|why| {
        if *why == Reason::OtherHost {
            NO_DEVICE.store(time::coarse().max(1), Ordering::Relaxed);
        }
    })
}

/// The work of an engine's thread.
fn run(cell: &EngineCell, cpus: &[u32]) {
    if !cpus.is_empty()
        && let Err(e) = raw::run_on(cpus)
    {
        netacc_log::log!(Warn, "NACC_SOR_AFFINITY: cannot bind an RDMA thread to these CPUs ({e}); it runs on any");
    }
    let mut fds = Vec::new();
    let mut last = time::now();
    loop {
        let Some(step) = cell.with(|e| e.step(&mut fds, &mut last)) else {
            if cell.is_empty() {
                return;
            }
            exit_handoff::wait_aside();
            continue;
        };
        // One thread does this for all.
        let is_first = cell::first().is_some_and(|first| core::ptr::eq(first, cell));
        let soon = if is_first { upgrade_client::remind() } else { None };
        // This may wait for another host's TCP. The program's threads hear the channels unless this thread says that it
        // does.
        let tended = is_first
            && host().is_some_and(|host| {
                host.tend_queued(&|| {
                    let _ = cell.with(worker::Engine::stay_awake);
                })
            });
        let soon =
            if tended { Some(soon.map_or(QUEUED_CONNECT_CHECK, |ms: i64| ms.min(QUEUED_CONNECT_CHECK))) } else { soon };
        let soon = if drain::serve(cell) { Some(0) } else { soon };
        match step {
            worker::Step::Again => {}
            worker::Step::Load => manager::load(cell),
            worker::Step::Poll => cpu::pause(),
            worker::Step::Sleep { ms, naps } => {
                let (ms, naps) = soon.map_or((ms, naps), |soon| (soon.min(ms), 1));
                sleep(cell, &mut fds, ms, naps);
                let _ = cell.with(|e| e.wake(&fds));
            }
        }
    }
}

/// Sleeps on `fds` until they have news; sleeps up to `naps` times, as long as the program's threads make progress
/// meanwhile.
fn sleep(cell: &EngineCell, fds: &mut [libc::pollfd], ms: i64, naps: u32) {
    let count = || cell.progress_count.load(Ordering::Relaxed);
    for _ in 0..naps {
        let before = count();
        let mut ts = libc::timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
        let news = raw::ppoll(fds.as_mut_ptr(), fds.len(), &raw mut ts, core::ptr::null());
        if news != Ok(0) || count() == before {
            return;
        }
    }
}

/// What is known of a route to another host.
enum RouteLookup {
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
    if available() && !lock::interrupted() { Ok(()) } else { Err(Reason::OtherHost) }
}

/// The route to a server on another host, as far as it is known.
fn lookup_route(dest: SocketAddr) -> Result<RouteLookup, Reason> {
    usable()?;
    start()?;
    let first = cell::first().ok_or(Reason::OtherHost)?;
    // The engine with the least to do; of several the first, so that one connection after the other uses the same queue
    // pair.
    let load = |cell: &EngineCell| cell.carried.load(Ordering::Relaxed) + cell.waiting.load(Ordering::Relaxed);
    let (n, chosen) = cell::least(load).ok_or(Reason::OtherHost)?;
    let own = |source| if n == 0 { None } else { chosen.with_from_app(|e| e.share_route(dest, source)).flatten() };
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
fn find_route(dest: SocketAddr) -> Result<RouteLookup, Reason> {
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
    if cell::all().is_empty() {
        // A program that only talks to plain servers has no thread of ours either.
        answer = Some(probe::probe(dest, probe.take(), timeout / PROBE_SHARE));
        if let Some(probe::Answer::Nobody(why)) = answer {
            learn(dest, Reachability::Refused(why));
            return Err(why);
        }
        start()?;
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

/// Whether a connect for which a promise was made ([`RouteHandle::optimistic`]) has waited long enough for its queue pair at
/// `now` (ns), if it has waited since `since`.
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
        cell.with_from_app(|e| e.end_optimistic(server));
    }
}

/// Makes a further link to a server, of which the caller gets a reference, since `full` has no place for a connect.
pub fn widen(dest: SocketAddr, full: &'static Link) -> Option<&'static Link> {
    cell::at(full.engine()?)?.with_from_app(|e| e.add_route_link(dest, full)).flatten()
}

/// Why no connection that an engine was to carry to a server goes over RDMA, as far as is known.
pub fn why_not(server: SocketAddr, engine: Option<usize>) -> Option<Reason> {
    // A handler may have interrupted the thread that has the engine.
    if lock::interrupted() {
        return None;
    }
    cell::at(engine?)?.with_from_app(|e| e.closed_for(server)).flatten()
}

/// Whether everything written has gone out; with `ends` the ends of the streams too. Each engine gets its turn, also
/// after one that is not done.
fn flushed(ends: bool) -> bool {
    cell::all().iter().fold(true, |done, cell| done & (cell.with_from_app(|e| e.flush(ends)) != Some(false)))
}

/// What is at rest as long as this lives, in the parent and the child of a fork. It is dropped in the parent alone.
#[derive(Debug, Default)]
pub struct AtRest {
    // In this order: an engine's lock is free before libraries are loaded again.
    engines: cell::AtRest,
    /// No library is being loaded.
    #[expect(dead_code, reason = "held as long as it lives")]
    loading: Option<Guard<'static>>,
}

/// Before a fork: the engines are at rest until the result is dropped. `in_handler`: a signal handler forks that has
/// interrupted a holder of locks.
pub fn before_fork(in_handler: bool) -> AtRest {
    exit_handoff::take_back();
    if cell::all().is_empty() {
        // Nothing is loaded without one.
        return AtRest::default();
    }
    if !in_handler && let Some(first) = cell::first() {
        first.with_from_app(Engine::note_open_devices);
    }
    let loading = manager::at_rest(in_handler);
    AtRest { engines: cell::stop(in_handler), loading }
}

/// For the child of a fork: the engines are the parent's. Their memory is left alone, their descriptors are closed, so that
/// the parent's end is the end of its queue pairs.
pub fn after_fork(stopped: &AtRest) {
    order::after_fork();
    own_port::after_fork();
    manager::after_fork();
    if cell::abandon(&stopped.engines) {
        INHERITED.store(true, Ordering::Relaxed);
    }
}
