//! The engines, each under its own lock: as many as `NACC_SOR_IO_THREADS` says, each with a thread.
//!
//! An engine has queue pairs, completion queues, memory and links of its own, and a connection stays with one for its
//! life, so what one does waits for no other. The first one also has the listeners, hands what arrives there to an
//! engine that it chooses, and finds out which hosts are reached, so that each of them is asked once.
//!
//! A thread holds at most one of these locks, except a thread that forks, which takes all of them in their order.

use crate::rdma::engine::listeners::Request;
use crate::rdma::engine::removal::Said;
use crate::rdma::engine::status::{self, EngineStatus, MOST};
use crate::rdma::engine::worker::Engine;
use crate::timeouts;
use alloc::boxed::Box;
use core::cell::UnsafeCell;
use core::sync::atomic::{Ordering, fence};
use netacc_sys::signals::Blocked;
use netacc_sys::{Lock, SharedCell, lock, lock_rank, raw, time};

/// An engine, its lock, and what other threads look at without the lock. It has lines of its own, so that a thread that
/// works with one engine does not slow down the others.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct EngineCell {
    lock: Lock<{ lock_rank::ENGINE }>,
    engine: UnsafeCell<Option<Box<Engine>>>,
    pub status: EngineStatus,
    /// Where the engine is while [`exit_handoff`](super::exit_handoff) has it.
    aside: UnsafeCell<Option<Box<Engine>>>,
}

// What each progress needs is on one line.
const _: () = assert!(core::mem::offset_of!(EngineCell, aside) <= 64);

#[allow(unsafe_code)]
// SAFETY: the engine is only reached under the lock, in either cell.
unsafe impl Sync for EngineCell {}

impl EngineCell {
    const fn empty() -> EngineCell {
        EngineCell {
            lock: Lock::new(),
            engine: UnsafeCell::new(None),
            aside: UnsafeCell::new(None),
            status: EngineStatus::new(),
        }
    }
}

netacc_sys::tables! {
    static PLACES: [EngineCell; MOST] = [const { EngineCell::empty() }; MOST];
}
/// Held while the engines are made.
static STARTING: Lock<{ lock_rank::STARTUP }> = Lock::new();
/// Set when a thread wanted an engine that was handed over: what a program does while it exits may wait for a
/// connection.
static WANTED: SharedCell<bool> = SharedCell::<bool>::new(false);

/// All engines of the process.
#[inline]
pub(super) fn all() -> &'static [EngineCell] {
    PLACES.get(..status::count()).unwrap_or_default()
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
    engine: impl Fn(usize, &'static EngineStatus) -> Result<Engine, E>,
    thread: impl Fn(usize, &'static EngineCell) -> Result<(), E>,
) -> Result<(), E> {
    let _b = Blocked::all();
    let _g = STARTING.lock();
    if !all().is_empty() {
        return Ok(());
    }
    let mut made = 0;
    for (n, place) in PLACES.iter().enumerate().take(count) {
        let done = engine(n, &place.status).and_then(|e| {
            place.put(Some(e));
            place.status.enter(n);
            thread(n, place).inspect_err(|_| drop(place.put(None)))
        });
        match done {
            Ok(()) => made += 1,
            Err(e) if n == 0 => return Err(e),
            Err(_) => break,
        }
    }
    status::publish(made);
    Ok(())
}

/// The locks of the engines that are at rest, which this thread holds until the value is dropped. It allocates nothing:
/// the thread that forks may be in a signal handler that has interrupted malloc(3).
#[derive(Debug, Default)]
#[must_use]
pub(super) struct AtRest {
    /// One bit for each engine, by its number.
    held: u64,
}

const _: () = assert!(MOST <= u64::BITS as usize, "AtRest has a bit for each engine");

const HANDLER_LOCK_WAIT: u64 = time::ns(timeouts::HANDLER_LOCK_WAIT);

/// Before a fork: all engines are at rest until the result is dropped, in parent and child. `in_handler`: a signal
/// handler forks that has interrupted a holder of locks; an engine in the middle of whose work it does so is not at
/// rest.
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

/// Makes these engines inaccessible until [`EngineCell::bring_back`].
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

/// In the child of a fork, which has one thread: the engines that were the parent's. Whether there were any. One that
/// was not at rest may be in any state: nothing of it is looked at, and its descriptors stay open until the child
/// executes or ends.
pub(super) fn abandon(stopped: &AtRest) -> bool {
    let count = status::forget();
    for (n, place) in PLACES.iter().enumerate().take(count) {
        place.status.clear();
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
        self.status.waker.set(engine.as_ref().map_or(0, |e| e.waker + 1));
        // SAFETY: under the lock.
        core::mem::replace(unsafe { &mut *self.engine.get() }, engine.map(Box::new))
    }

    /// Makes the engine inaccessible until [`EngineCell::bring_back`]. The caller holds the lock.
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
            (done, core::mem::take(&mut engine.listeners.requests), core::mem::take(&mut engine.said))
        };
        if self.is_progress_wanted() {
            self.progress();
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
            WANTED.set(true);
        }
        done
    }

    /// Calls `f` with the engine, unless another thread has the lock: then false.
    #[allow(unsafe_code)]
    pub fn try_with(&self, f: impl FnOnce(&mut Engine)) -> bool {
        let Some(_g) = self.lock.try_lock() else { return false };
        self.status.progress_wanted.store(false, Ordering::SeqCst);
        // SAFETY: under the lock, and `f` cannot keep the reference.
        if let Some(engine) = unsafe { (*self.engine.get()).as_mut() } {
            f(engine);
            engine.stay_armed();
        } else {
            WANTED.set(true);
        }
        true
    }

    /// Makes progress by the calling thread.
    pub fn progress(&self) {
        self.progress_with(|e| e.progress_for(None));
    }

    /// Makes progress; `work` is what the engine does in each pass.
    pub fn progress_with(&self, mut work: impl FnMut(&mut Engine)) {
        let wanted = &self.status.progress_wanted;
        // A signal handler that has interrupted the thread in the middle of a call of ours leaves the work to that
        // call, which ends with a pass over all work.
        if lock::interrupted() {
            return wanted.store(true, Ordering::SeqCst);
        }
        loop {
            wanted.store(true, Ordering::SeqCst);
            // With the fence in `is_progress_wanted`: either we get the lock, or its holder sees the mark when it has
            // given it back.
            fence(Ordering::SeqCst);
            if !self.try_with(&mut work) || !self.is_progress_wanted() {
                return;
            }
        }
    }

    /// Whether another thread has requested progress, after the lock was released.
    fn is_progress_wanted(&self) -> bool {
        fence(Ordering::SeqCst);
        self.status.progress_wanted.load(Ordering::SeqCst)
    }

    /// Sleeps on `fds` until they have news; sleeps up to `naps` times, as long as the program's threads make progress
    /// meanwhile.
    pub fn sleep(&self, fds: &mut [libc::pollfd], ms: i64, naps: u32) {
        let count = || self.status.progress_count.get();
        for _ in 0..naps {
            let before = count();
            let mut ts = libc::timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
            let news = raw::ppoll(fds.as_mut_ptr(), fds.len(), &raw mut ts, core::ptr::null());
            if news != Ok(0) || count() == before {
                return;
            }
        }
    }

    /// Has its thread look.
    pub fn ring(&self) {
        self.status.ring();
    }
}

/// From now on it counts whether a thread wants an engine that was handed over.
pub(super) fn forget_wanted() {
    WANTED.set(false);
}

/// Whether a thread of the program's has not found its engine.
pub(super) fn was_wanted() -> bool {
    WANTED.get()
}

/// Hands what arrived at a listener to the engine that was chosen for it.
fn assign_request(request: Request) {
    let Some(cell) = at(request.engine) else { return };
    let _ = cell.with(|e| e.adopt_request(request));
    // The request may have a device that the thread does not listen to yet.
    cell.ring();
}
