//! Connections to other hosts: their bytes are carried between rings and queue pairs.
//!
//! For the socket layer such a connection is one over shared memory ([`netacc_transport::shm`]), whose other side is in
//! the same process: the *carrier*. On the client's host the carrier is the server of a link ([`Link::pair`]); on the
//! server's host it is a client of the listener's rendezvous, like any other client, so that several processes can serve
//! the listener. What comes by a ring it sends over a queue pair, and the other way round:
//!
//! ```text
//! program | ring | carrier | queue pair ... queue pair | carrier | ring | program
//! ```
//!
//! - `engine`: one round of the work, and what to sleep on when there is none; `engines`: all of them; `drive`: which
//!   thread does it.
//! - `knock`: whether a server is reached at all, before `manager` loads the libraries for that.
//! - `routes`: the routes to servers on other hosts; `follow`: routes that another engine has found; `meet`: queue
//!   pairs that come and go (`entry`: one of them); `listeners`: listeners that clients on other hosts find.
//! - `base`: the TCP connection beside each queue pair, `arrivals`: how it comes to the server's host, `admission`: how
//!   many peers there may be that have said nothing; `moved`: what goes on over it when the queue pair has failed;
//!   `quiet`: whether the other side is still there.
//! - `inherited`: what a fork leaves to the child; `leave`: what is done before the
//!   process ends; `outlive`: what goes on afterwards. `tidy`: what grows old; `report`: what the stats page says; `sysfs`: the
//!   host's devices.
//! - `local`: the links, and the connections that begin; `order`: which is next.
//! - `early`: a connection that is still on kernel TCP; `ask`: how a client's goes over to a queue pair; `asked`: a server's.
//! - `conn`: one connection's bytes; `direct`: bytes that go past the ring; `ending`: how it ends; `message`: what has
//!   come for it; `rejoin`: one that a process of the server's does not take.
//!
//! A thread that writes or waits does the work on the way; for what is left, each engine has a thread of ours, with all
//! signals blocked, which starts with the first listener or destination that an RDMA device leads to. Each engine is
//! under a lock of its own, which is never held during a sleep.
//!
//! **fork**: the threads and the queue pairs stay the parent's, and go on carrying for the child, which shares the rings.
//! The child opens no queue pairs of its own: librdmacm would use what it inherited.

mod admission;
mod arrivals;
mod ask;
mod asked;
mod base;
mod companion_client;
mod conn;
pub mod direct;
pub mod drive;
mod early;
mod ending;
mod engine;
mod engines;
mod entry;
mod follow;
mod inherited;
mod knock;
mod leave;
mod limits;
mod listeners;
mod local;
mod manager;
mod meet;
mod message;
mod moved;
pub mod order;
mod outlive;
mod own_port;
mod quiet;
mod rejoin;
mod report;
mod routes;
mod sysfs;
mod table;
mod tidy;

use crate::runtime;
use crate::socket::{ports, untaken};
use crate::timeouts;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use engine::Engine;
use engines::Place;
use netacc_stats::Reason;
use netacc_sys::time;
use netacc_sys::{Guard, cpu, lock, raw};
use netacc_transport::shm::Link;
use netacc_transport::shm::rendezvous::Probe;
use routes::Route;

/// The process that the engines belong to: a vfork(2) child has its parent's memory.
static PID: AtomicU32 = AtomicU32::new(0);
/// Set if this process has inherited engines by fork; then it makes none.
static INHERITED: AtomicBool = AtomicBool::new(false);
/// When the host was last found to have no RDMA device ([`time::coarse`]).
static NO_DEVICE: AtomicU64 = AtomicU64::new(0);
const NO_DEVICE_BELIEVED: u64 = time::ns(timeouts::NO_DEVICE_BELIEVED);
/// A server is knocked at for this part of what a connect waits at most.
const KNOCK: u64 = 3;
const QUEUED_CONNECT_CHECK: i64 = timeouts::QUEUED_CONNECT_CHECK.as_millis() as i64;
/// Loading the libraries may take this many times as long as a connect waits.
const LOADING: u64 = 4;

pub use ask::{ask, ask_soon, look_for};
pub use asked::{accepted, cancel, may_be_asked};
pub use leave::{before_exec, finish, go_on};
pub use listeners::{listen, may_hear, note_unheard, unlisten};
pub use outlive::Fork;
pub use own_port::take as take_companion;
pub use routes::Led;

/// Whether this host has an RDMA device, and this process may use it.
pub fn available() -> bool {
    if !engines::all().is_empty() {
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

/// Makes the engines and their threads, unless they are there.
fn start() -> Result<(), Reason> {
    if !engines::all().is_empty() {
        return Ok(());
    }
    let conf = &runtime::get().ok_or(Reason::Disabled)?.conf;
    PID.store(raw::getpid(), Ordering::Relaxed);
    let count = conf.io_threads as usize;
    let engine = |n, place| {
        Engine::new(conf, n, place).map_err(|e| {
            crate::log!(Warn, "RDMA thread {n}: cannot be set up ({e}); connections use TCP");
            Reason::OtherHost
        })
    };
    let thread = |n, place| {
        let name = if count == 1 { String::from("netacc-io") } else { format!("netacc-io-{n}") };
        let cpus: Vec<u32> = conf.affinity_cpus().collect();
        // The thread inherits our signal mask, in which everything is blocked.
        let made = std::thread::Builder::new().name(name).stack_size(256 * 1024).spawn(move || run(place, &cpus));
        made.map(drop).map_err(|e| {
            crate::log!(Warn, "RDMA thread {n} of {count}: cannot be started ({e}); connections use TCP");
            Reason::NoMemory
        })
    };
    engines::start(count, engine, thread).inspect_err(|why| {
        if *why == Reason::OtherHost {
            NO_DEVICE.store(time::coarse().max(1), Ordering::Relaxed);
        }
    })
}

/// The work of an engine's thread.
fn run(place: &Place, cpus: &[u32]) {
    if !cpus.is_empty()
        && let Err(e) = raw::run_on(cpus)
    {
        crate::log!(Warn, "NACC_SOR_AFFINITY: cannot bind an RDMA thread to these CPUs ({e}); it runs on any");
    }
    let mut fds = Vec::new();
    let mut last = time::now();
    loop {
        let Some(step) = place.with(|e| e.step(&mut fds, &mut last)) else {
            if place.is_empty() {
                return;
            }
            outlive::wait_aside();
            continue;
        };
        // One thread does this for all.
        let is_first = engines::first().is_some_and(|first| core::ptr::eq(first, place));
        let soon = if is_first { ask::remind() } else { None };
        // This may wait for another host's TCP. The program's threads hear the channels unless this thread says that it
        // does.
        let tended = is_first
            && untaken::tend(|| {
                let _ = place.with(engine::Engine::stay_awake);
            });
        let soon =
            if tended { Some(soon.map_or(QUEUED_CONNECT_CHECK, |ms: i64| ms.min(QUEUED_CONNECT_CHECK))) } else { soon };
        let soon = if leave::serve(place) { Some(0) } else { soon };
        match step {
            engine::Step::Again => {}
            engine::Step::Load => manager::load(place),
            engine::Step::Poll => cpu::pause(),
            engine::Step::Sleep { ms, naps } => {
                let (ms, naps) = soon.map_or((ms, naps), |soon| (soon.min(ms), 1));
                sleep(place, &mut fds, ms, naps);
                let _ = place.with(|e| e.wake(&fds));
            }
        }
    }
}

/// Sleeps on `fds` until they have news; sleeps up to `naps` times, as long as the program's threads do turns
/// meanwhile.
fn sleep(place: &Place, fds: &mut [libc::pollfd], ms: i64, naps: u32) {
    let turns = || place.turns.load(Ordering::Relaxed);
    for _ in 0..naps {
        let before = turns();
        let mut ts = libc::timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
        let news = raw::ppoll(fds.as_mut_ptr(), fds.len(), &raw mut ts, core::ptr::null());
        if news != Ok(0) || turns() == before {
            return;
        }
    }
}

/// What is known of a route to another host.
enum Way {
    /// The route is open, by a link of which the caller gets a reference.
    Open(Led),
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
fn way(dest: SocketAddr) -> Result<Way, Reason> {
    usable()?;
    start()?;
    let first = engines::first().ok_or(Reason::OtherHost)?;
    // The engine with the least to do; of several the first, so that one connection after the other uses the same queue
    // pair.
    let load = |place: &Place| place.carried.load(Ordering::Relaxed) + place.waiting.load(Ordering::Relaxed);
    let (n, chosen) = engines::least(load).ok_or(Reason::OtherHost)?;
    let own = |source| if n == 0 { None } else { chosen.ask(|e| e.follow_route(dest, source)).flatten() };
    if let Some(led) = own(None) {
        return Ok(Way::Open(led));
    }
    match first.ask(|e| e.route(dest)).ok_or(Reason::OtherHost)? {
        Route::Open(led) => {
            let Some(own) = own(Some(led.source)) else { return Ok(Way::Open(led)) };
            led.link.put();
            chosen.ring();
            Ok(Way::Open(own))
        }
        Route::Closed(why) => Err(why),
        Route::Opening(fd) => {
            first.ring();
            Ok(Way::Opening(fd))
        }
        Route::Unknown => Ok(Way::Unknown),
    }
}

/// The route to a server on another host. If nothing is known of it, the connection manager is asked.
fn find_way(dest: SocketAddr) -> Result<Way, Reason> {
    match way(dest)? {
        Way::Unknown => {
            let first = engines::first().ok_or(Reason::OtherHost)?;
            if first.ask(|e| e.begin_route(dest)) != Some(true) {
                return Err(Reason::NoMemory);
            }
            first.ring();
            Ok(Way::Opening(-1))
        }
        known => Ok(known),
    }
}

/// Finds the route to a server on another host; the caller gets a reference to the link. If nothing is known of the
/// destination this asks for it, and waits for at most `patience` ns; it uses `probe`'s socket, if there is one.
pub fn reach(dest: SocketAddr, mut probe: Option<Probe>, patience: u64) -> Result<Led, Reason> {
    usable()?;
    let mut answer = None;
    if engines::all().is_empty() {
        // A program that only talks to plain servers has no thread of ours either.
        answer = Some(knock::knock(dest, probe.take(), patience / KNOCK));
        if let Some(knock::Answer::Nobody(why)) = answer {
            ports::note_refused(dest, why, time::coarse());
            return Err(why);
        }
        start()?;
    }
    match way(dest)? {
        Way::Open(led) => return Ok(led),
        // The probe's socket has a number of the program's, and must not stay for long.
        Way::Opening(_) => drop(probe.take()),
        Way::Unknown => {
            let answer = answer.unwrap_or_else(|| knock::knock(dest, probe.take(), patience / KNOCK));
            let first = engines::first().ok_or(Reason::OtherHost)?;
            first.ask(|e| e.hear(dest, answer));
        }
    }
    // Counted from the question to the connection manager: before that, libraries may have to be loaded.
    let mut end = time::now().saturating_add(patience.saturating_mul(LOADING));
    let mut asked = false;
    loop {
        match find_way(dest)? {
            Way::Open(led) => return Ok(led),
            way => {
                let fd = if let Way::Opening(fd) = way { fd } else { -1 };
                let now = time::now();
                if fd >= 0 && !core::mem::replace(&mut asked, true) {
                    end = now.saturating_add(patience);
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
pub fn patience() -> u64 {
    runtime::get().map_or(0, |rt| u64::from(rt.conf.connect_rdma_ms)) * 1_000_000
}

/// Whether a connect for which a promise was made ([`Led::promised`]) has waited long enough for its queue pair at
/// `now` (ns), if it has waited since `since`.
pub fn is_late(since: u64, now: u64) -> bool {
    // As in `reach`, counted from the question to the connection manager.
    let (since, whole) = match manager::there_since() {
        0 => (since, patience().saturating_mul(LOADING)),
        there => (since.max(there), patience()),
    };
    now.saturating_sub(since) > whole
}

/// Has no connect wait any longer for what [`Led::promised`] to it.
pub fn break_promise(server: SocketAddr, engine: Option<usize>) {
    if !lock::interrupted()
        && let Some(place) = engine.and_then(engines::at)
    {
        place.ask(|e| e.break_promise(server));
    }
}

/// Makes a further link to a server, of which the caller gets a reference, since `full` has no place for a connect.
pub fn widen(dest: SocketAddr, full: &'static Link) -> Option<&'static Link> {
    engines::at(full.engine()?)?.ask(|e| e.widen_route(dest, full)).flatten()
}

/// Why no connection that an engine was to carry to a server goes over RDMA, as far as is known.
pub fn why_not(server: SocketAddr, engine: Option<usize>) -> Option<Reason> {
    // A handler may have interrupted the thread that has the engine.
    if lock::interrupted() {
        return None;
    }
    engines::at(engine?)?.ask(|e| e.closed_for(server)).flatten()
}

/// Whether everything written has gone out; with `ends` the ends of the streams too. Each engine gets its turn, also
/// after one that is not done.
fn flushed(ends: bool) -> bool {
    engines::all().iter().fold(true, |done, place| done & (place.ask(|e| e.flush(ends)) != Some(false)))
}

/// What is at rest as long as this lives, in the parent and the child of a fork. It is dropped in the parent alone.
#[derive(Debug, Default)]
pub struct AtRest {
    // In this order: an engine's lock is free before libraries are loaded again.
    engines: engines::AtRest,
    /// No library is being loaded.
    #[expect(dead_code, reason = "held as long as it lives")]
    loading: Option<Guard<'static>>,
}

/// Before a fork: the engines are at rest until the result is dropped. `in_handler`: a signal handler forks that has
/// interrupted a holder of locks.
pub fn before_fork(in_handler: bool) -> AtRest {
    outlive::take_back();
    if engines::all().is_empty() {
        // Nothing is loaded without one.
        return AtRest::default();
    }
    let loading = manager::at_rest(in_handler);
    AtRest { engines: engines::stop(in_handler), loading }
}

/// For the child of a fork: the engines are the parent's. Their memory is left alone, their descriptors are closed, so that
/// the parent's end is the end of its queue pairs.
pub fn after_fork(stopped: &AtRest) {
    order::after_fork();
    own_port::after_fork();
    manager::after_fork();
    if engines::abandon(&stopped.engines) {
        INHERITED.store(true, Ordering::Relaxed);
    }
}
