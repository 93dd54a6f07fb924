//! The engines, each under its own lock: as many as `NACC_SOR_IO_THREADS` says, each with a thread.
//!
//! An engine has queue pairs, completion queues, memory and links of its own, and a connection stays with one for its
//! life, so what one does waits for no other. The first one also has the listeners, hands what arrives there to an
//! engine that it chooses, and finds out which hosts are reached, so that each of them is asked once.
//!
//! A thread holds at most one of these locks, except a thread that forks, which takes all of them in their order.

use crate::rdma::engine::exit_handoff;
use crate::rdma::engine::failover::Said;
use crate::rdma::engine::listeners::Request;
use crate::rdma::engine::progress;
use crate::rdma::engine::worker::Engine;
use crate::timeouts;
use crate::wakers;
use alloc::boxed::Box;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use netacc_sys::signals::Blocked;
use netacc_sys::{Lock, time};

/// Most engines that there can be: what the configuration allows.
pub(super) const MOST: usize = 64;

/// An engine, its lock, and what other threads look at without the lock. It has lines of its own, so that a thread that
/// works with one engine does not slow down the others.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct EngineCell {
    lock: Lock,
    engine: UnsafeCell<Option<Box<Engine>>>,
    /// Where the engine is while [`exit_handoff`](super::exit_handoff) has it.
    aside: UnsafeCell<Option<Box<Engine>>>,
    /// Set when a thread wanted progress while another one had the lock.
    pub progress_wanted: AtomicBool,
    /// Set when its connects have become the oldest to their destination: see [`order`](super::order).
    pub ticket_due: AtomicBool,
    /// The engine's waker, while the engine is there.
    waker: AtomicI32,
    /// Number of connections that it carries: without any a process that has only local ones has no cost. Written under
    /// the lock, as are the next two.
    pub carried: AtomicUsize,
    /// Number of connections that wait for a queue pair.
    pub waiting: AtomicUsize,
    /// Number of devices that it has open.
    pub devices: AtomicUsize,
    /// Number of queue pairs of clients on other hosts that it has or is to have.
    pub served: AtomicUsize,
    /// Number of passes over the work that threads of the program have made.
    pub progress_count: AtomicU32,
}

#[allow(unsafe_code)]
// SAFETY: the engine is only reached under the lock, in either cell.
unsafe impl Sync for EngineCell {}

static PLACES: [EngineCell; MOST] = [const {
    EngineCell {
        lock: Lock::new(),
        engine: UnsafeCell::new(None),
        aside: UnsafeCell::new(None),
        progress_wanted: AtomicBool::new(false),
        ticket_due: AtomicBool::new(false),
        waker: AtomicI32::new(-1),
        carried: AtomicUsize::new(0),
        waiting: AtomicUsize::new(0),
        devices: AtomicUsize::new(0),
        served: AtomicUsize::new(0),
        progress_count: AtomicU32::new(0),
    }
}; MOST];
/// Number of engines.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Held while the engines are made.
static STARTING: Lock = Lock::new();

/// All engines of the process.
#[inline]
pub(super) fn all() -> &'static [EngineCell] {
    // Acquire: a thread that sees the number sees the places that were written before it.
    PLACES.get(..COUNT.load(Ordering::Acquire)).unwrap_or_default()
}

/// The engine with this index.
#[inline]
pub(super) fn at(n: usize) -> Option<&'static EngineCell> {
    all().get(n)
}

/// The engine with the listeners, which is always there if any is.
#[inline]
pub(super) fn first() -> Option<&'static EngineCell> {
    all().first()
}

/// The engine that has the least of what `load` counts; of several, the first.
pub(super) fn least(load: impl Fn(&EngineCell) -> usize) -> Option<(usize, &'static EngineCell)> {
    all().iter().enumerate().min_by_key(|(_, place)| load(place))
}

/// Makes `count` engines, unless they are there: each by `engine`, after which `thread` starts its thread. The first
/// failure ends this; the engines made before it do.
pub(super) fn start<E>(
    count: usize,
    engine: impl Fn(usize, &'static EngineCell) -> Result<Engine, E>,
    thread: impl Fn(usize, &'static EngineCell) -> Result<(), E>,
) -> Result<(), E> {
    let _b = Blocked::all();
    let _g = STARTING.lock();
    if !all().is_empty() {
        return Ok(());
    }
    let mut made = 0;
    for (n, place) in PLACES.iter().enumerate().take(count) {
        let done = engine(n, place).and_then(|e| {
            place.put(Some(e));
            thread(n, place).inspect_err(|_| drop(place.put(None)))
        });
        match done {
            Ok(()) => made += 1,
            Err(e) if n == 0 => return Err(e),
            Err(_) => break,
        }
    }
    COUNT.store(made, Ordering::Release);
    Ok(())
}

/// The locks of the engines that are at rest, which this thread holds until the value is dropped. It allocates nothing: the
/// thread that forks may be in a signal handler that has interrupted malloc(3).
#[derive(Debug, Default)]
#[must_use]
pub(super) struct AtRest {
    /// One bit for each engine, by its number.
    held: u64,
}

const _: () = assert!(MOST <= u64::BITS as usize, "AtRest has a bit for each engine");

const HANDLER_LOCK_WAIT: u64 = time::ns(timeouts::HANDLER_LOCK_WAIT);

/// Before a fork: all engines are at rest until the result is dropped, in parent and child. `in_handler`: a signal handler
/// forks that has interrupted a holder of locks; an engine in the middle of whose work it does so is not at rest.
pub(super) fn stop(in_handler: bool) -> AtRest {
    let mut stopped = AtRest::default();
    for (n, place) in all().iter().enumerate() {
        let guard = if in_handler { place.lock.lock_within(HANDLER_LOCK_WAIT) } else { Some(place.lock.lock()) };
        if let Some(guard) = guard {
            stopped.held |= 1 << n;
            core::mem::forget(guard);
        }
    }
    stopped
}

impl AtRest {
    /// Whether engine `n` is at rest.
    pub(super) fn has(&self, n: usize) -> bool {
        self.held >> n & 1 != 0
    }
}

/// Nobody gets at these engines until [`Place::bring_back`].
pub(super) fn set_aside(stopped: &AtRest) {
    all().iter().enumerate().filter(|(n, _)| stopped.has(*n)).for_each(|(_, place)| place.set_aside());
}

impl Drop for AtRest {
    fn drop(&mut self) {
        for (n, place) in PLACES.iter().enumerate() {
            if self.has(n) {
                drop(place.lock.regain());
            }
        }
    }
}

/// In the child of a fork, which has one thread: the engines that were the parent's. Whether there were any. One that was not
/// at rest may be in any state: nothing of it is looked at, and its descriptors stay open until the child executes or ends.
pub(super) fn abandon(stopped: &AtRest) -> bool {
    STARTING.reset();
    let count = COUNT.swap(0, Ordering::AcqRel);
    for (n, place) in PLACES.iter().enumerate().take(count) {
        place.lock.reset();
        for mark in [&place.progress_wanted, &place.ticket_due] {
            mark.store(false, Ordering::Relaxed);
        }
        for number in [&place.carried, &place.waiting, &place.devices, &place.served] {
            number.store(0, Ordering::Relaxed);
        }
        if let Some(engine) = place.put(None) {
            if stopped.has(n) {
                engine.close_inherited();
            }
            core::mem::forget(engine);
        }
    }
    count > 0
}

impl EngineCell {
    #[allow(unsafe_code)]
    fn put(&self, engine: Option<Engine>) -> Option<Box<Engine>> {
        let _g = self.lock.lock();
        self.waker.store(engine.as_ref().map_or(-1, |e| e.waker), Ordering::Relaxed);
        // SAFETY: under the lock.
        core::mem::replace(unsafe { &mut *self.engine.get() }, engine.map(Box::new))
    }

    /// Nobody gets at the engine until [`Place::bring_back`]. The caller holds the lock.
    #[allow(unsafe_code)]
    fn set_aside(&self) {
        // SAFETY: the caller holds the lock.
        let (engine, aside) = unsafe { (&mut *self.engine.get(), &mut *self.aside.get()) };
        if let Some(e) = engine.take() {
            *aside = Some(e);
        }
    }

    /// Brings the engine back.
    #[allow(unsafe_code)]
    pub fn bring_back(&self) {
        let _g = self.lock.lock();
        // SAFETY: under the lock.
        let (engine, aside) = unsafe { (&mut *self.engine.get(), &mut *self.aside.get()) };
        if let Some(e) = aside.take() {
            *engine = Some(e);
        }
    }

    /// Whether there is no engine, set aside or not.
    #[allow(unsafe_code)]
    pub fn is_empty(&self) -> bool {
        let _g = self.lock.lock();
        // SAFETY: under the lock.
        unsafe { (*self.engine.get()).is_none() && (*self.aside.get()).is_none() }
    }

    /// Calls `f` with the engine, under its lock; `None` if there is none.
    #[allow(unsafe_code)]
    pub fn with<T>(&self, f: impl FnOnce(&mut Engine) -> T) -> Option<T> {
        let (done, requests, said) = {
            let _g = self.lock.lock();
            // SAFETY: under the lock, and `f` cannot keep the reference.
            let engine = unsafe { (*self.engine.get()).as_mut() }?;
            let done = f(engine);
            engine.stay_armed();
            (done, core::mem::take(&mut engine.requests), core::mem::take(&mut engine.said))
        };
        if progress::take_progress_wanted(self) {
            progress::progress_engine(self);
        }
        // Done only here, where the lock is free, since another one is taken.
        for request in requests {
            assign_request(request);
        }
        for what in said {
            self.pass_on(what);
        }
        Some(done)
    }

    /// Passes what a device has reported on to the other engines.
    fn pass_on(&self, what: Said) {
        for cell in all().iter().filter(|cell| !core::ptr::eq(*cell, self)) {
            let _ = cell.with(|e| e.device_said(what));
        }
    }

    /// Calls `f` with the engine, under its lock, for a thread of the program's, which no signal handler may interrupt
    /// there.
    pub fn with_from_app<T>(&self, f: impl FnOnce(&mut Engine) -> T) -> Option<T> {
        let _b = Blocked::all();
        let done = self.with(f);
        if done.is_none() {
            exit_handoff::note_wanted();
        }
        done
    }

    /// Calls `f` with the engine, unless another thread has the lock: then false.
    #[allow(unsafe_code)]
    pub fn try_with(&self, f: impl FnOnce(&mut Engine)) -> bool {
        let Some(_g) = self.lock.try_lock() else { return false };
        self.progress_wanted.store(false, Ordering::SeqCst);
        // SAFETY: under the lock, and `f` cannot keep the reference.
        if let Some(engine) = unsafe { (*self.engine.get()).as_mut() } {
            f(engine);
            engine.stay_armed();
        } else {
            exit_handoff::note_wanted();
        }
        true
    }

    /// Has its thread look.
    pub fn ring(&self) {
        let waker = self.waker.load(Ordering::Relaxed);
        if waker >= 0 {
            wakers::ring(waker);
        }
    }
}

/// Hands what arrived at a listener to the engine that was chosen for it.
fn assign_request(request: Request) {
    let Some(cell) = at(request.engine) else { return };
    let _ = cell.with(|e| e.adopt_request(request));
    // The request may have a device that the thread does not listen to yet.
    cell.ring();
}
