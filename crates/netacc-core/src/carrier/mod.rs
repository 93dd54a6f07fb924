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
//! - `engine`: one round of the work, and what to sleep on when there is none; `drive`: who does it.
//! - `meet`: routes to other hosts, queue pairs that come and go (`entry`: one of them); `listeners`: those that clients there find.
//! - `base`: the TCP connection beside each queue pair; `moved`: what goes on over it when the queue pair has failed.
//! - `inherited`: what a fork leaves to the child. `tidy`: what grows old; `report`: what the stats page says.
//! - `local`: the links, and the connections that begin.
//! - `conn`: one connection's bytes, and their end; `rejoin`: one that a process of the server's does not take.
//!
//! Whoever writes or waits does the work on the way; for what is left there is one thread of ours, with all signals blocked,
//! which starts with the first listener or destination that an RDMA device leads to. Everything is under one lock, which is
//! never held during a sleep.
//!
//! **fork**: the thread and the queue pairs stay the parent's, and go on carrying for the child, which shares the rings.
//! The child opens no queue pairs of its own: librdmacm would use what it inherited.

mod base;
mod conn;
pub mod drive;
mod engine;
mod entry;
mod inherited;
mod listeners;
mod local;
mod meet;
mod moved;
mod rejoin;
mod report;
mod table;
mod tidy;

use crate::runtime;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use engine::Engine;
use meet::Route;
use netacc_stats::Reason;
use netacc_sys::signals::Blocked;
use netacc_sys::{Guard, Lock, cpu, lock, raw, time};
use netacc_transport::shm::Link;

/// The engine, under its lock.
struct Shared {
    lock: Lock,
    engine: UnsafeCell<Option<Box<Engine>>>,
}

#[allow(unsafe_code)]
// SAFETY: the engine is only reached under the lock.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared { lock: Lock::new(), engine: UnsafeCell::new(None) };
/// There is an engine: what others look at without the lock.
static ACTIVE: AtomicBool = AtomicBool::new(false);
/// Whose it is: a vfork(2) child has its parent's memory.
static PID: AtomicU32 = AtomicU32::new(0);
/// This process has inherited an engine by fork, and makes none.
static INHERITED: AtomicBool = AtomicBool::new(false);
/// When the host was last found to have no RDMA device ([`time::coarse`]).
static NO_DEVICE: AtomicU64 = AtomicU64::new(0);
/// That is believed for so long (ns).
const BELIEVED: u64 = 1_000_000_000;

/// Does something with the engine; `None` if there is none.
#[allow(unsafe_code)]
fn with<T>(f: impl FnOnce(&mut Engine) -> T) -> Option<T> {
    let done = {
        let _g = SHARED.lock.lock();
        // SAFETY: under the lock, and `f` cannot keep the reference.
        unsafe { (*SHARED.engine.get()).as_mut() }.map(|e| f(e))
    };
    if drive::was_asked() {
        drive::turn();
    }
    done
}

/// Whether this host has an RDMA device, and this process may use it.
fn available() -> bool {
    if ACTIVE.load(Ordering::Acquire) {
        return true;
    }
    let now = time::coarse();
    let asked = NO_DEVICE.load(Ordering::Relaxed);
    if INHERITED.load(Ordering::Relaxed) || (asked != 0 && now.wrapping_sub(asked) < BELIEVED) {
        return false;
    }
    let there = meet::host_has_device();
    if !there {
        NO_DEVICE.store(now.max(1), Ordering::Relaxed);
    }
    there
}

/// The engine is there, and so is its thread.
#[allow(unsafe_code)]
fn start() -> Result<(), Reason> {
    let _b = Blocked::all();
    let _g = SHARED.lock.lock();
    // SAFETY: under the lock.
    let place = unsafe { &mut *SHARED.engine.get() };
    if place.is_some() {
        return Ok(());
    }
    let conf = &runtime::get().ok_or(Reason::Disabled)?.conf;
    let engine = Engine::new(conf).map_err(|e| {
        crate::log!(Warn, "no connection goes over RDMA: {e}");
        NO_DEVICE.store(time::coarse().max(1), Ordering::Relaxed);
        Reason::OtherHost
    })?;
    *place = Some(Box::new(engine));
    // It inherits our signal mask, in which everything is blocked.
    let started = std::thread::Builder::new().name("netacc-io".into()).stack_size(256 * 1024).spawn(run);
    if started.is_err() {
        *place = None;
        return Err(Reason::NoMemory);
    }
    PID.store(raw::getpid(), Ordering::Relaxed);
    ACTIVE.store(true, Ordering::Release);
    Ok(())
}

/// The thread.
fn run() {
    let mut fds = Vec::new();
    let mut last = time::now();
    loop {
        let Some(step) = with(|e| e.step(&mut fds, &mut last)) else { return };
        match step {
            engine::Step::Again => {}
            engine::Step::Poll => cpu::pause(),
            engine::Step::Sleep(ms) => {
                let mut ts = libc::timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
                let _ = raw::ppoll(fds.as_mut_ptr(), fds.len(), &raw mut ts, core::ptr::null());
                if with(|e| e.wake(&fds)).is_none() {
                    return;
                }
            }
        }
    }
}

/// The same for a thread of the program's, which no signal handler may interrupt there.
fn ask<T>(f: impl FnOnce(&mut Engine) -> T) -> Option<T> {
    let _b = Blocked::all();
    with(f)
}

/// A program waits on a listener: clients on other hosts are to find it.
pub fn listen(local: SocketAddr) {
    // None comes that way from another host.
    if local.ip().is_loopback() || !available() || start().is_err() {
        return;
    }
    ask(|e| e.listen(local));
    wake_thread();
}

/// The program listens there no longer.
pub fn unlisten(local: SocketAddr) {
    if ACTIVE.load(Ordering::Acquire) {
        ask(|e| e.unlisten(local));
    }
}

/// The link to a server on another host, of which the caller gets a reference, and our address there. Where nothing is
/// known of the destination it is found out, for which at most `patience` ns are waited.
pub fn reach(dest: SocketAddr, patience: u64) -> Result<(&'static Link, IpAddr), Reason> {
    // The same in a handler that has interrupted such a thread: it has no lock to wait for.
    if !available() || lock::interrupted() {
        return Err(Reason::OtherHost);
    }
    start()?;
    let end = time::now().saturating_add(patience);
    loop {
        match ask(|e| e.route(dest)).ok_or(Reason::OtherHost)? {
            Route::Open(link, source) => return Ok((link, source)),
            Route::Closed(why) => return Err(why),
            Route::Opening(fd) => {
                if time::now() >= end {
                    return Err(Reason::OtherHost);
                }
                wake_thread();
                // The thread may take the event itself: then we look again soon.
                let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 500_000 };
                let _ = raw::ppoll(&raw mut p, 1, &raw mut ts, core::ptr::null());
            }
        }
    }
}

/// The thread looks again at what it sleeps on.
fn wake_thread() {
    ask(|e| e.ring());
}

/// The process ends: what it has written goes out before, for at most two seconds.
pub fn flush() {
    const PATIENCE: u64 = 2_000_000_000;
    if !ACTIVE.load(Ordering::Acquire) || PID.load(Ordering::Relaxed) != raw::getpid() {
        return;
    }
    // A handler that has interrupted its thread in the middle of the work, which cannot go on.
    if lock::interrupted() {
        return;
    }
    let end = time::now().saturating_add(PATIENCE);
    while time::now() < end && ask(|e| e.flush()) == Some(false) {
        raw::sched_yield();
    }
}

/// Before a fork: the engine is at rest until the guard is dropped, in parent and child.
pub fn before_fork() -> Option<Guard<'static>> {
    ACTIVE.load(Ordering::Acquire).then(|| SHARED.lock.lock())
}

/// For the child of a fork: the engine is the parent's. Its memory is left alone, its descriptors are closed, so that
/// the parent's end is the end of its queue pairs.
#[allow(unsafe_code)]
pub fn after_fork() {
    SHARED.lock.reset();
    if !ACTIVE.swap(false, Ordering::AcqRel) {
        return;
    }
    INHERITED.store(true, Ordering::Relaxed);
    drive::CARRIED.store(0, Ordering::Relaxed);
    // SAFETY: the child of a fork has one thread.
    if let Some(engine) = unsafe { (*SHARED.engine.get()).take() } {
        engine.leave_to_parent();
        core::mem::forget(engine);
    }
}
