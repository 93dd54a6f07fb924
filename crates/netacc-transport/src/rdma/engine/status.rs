//! What other threads look at of an engine without its lock.

use crate::wakers;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use netacc_sys::SharedCell;
use netacc_sys::set_once::SetOnce;

/// Most engines that there can be: what the configuration allows.
pub(super) const MOST: usize = 64;

/// What other threads look at of an engine without its lock.
#[derive(Debug)]
pub(super) struct EngineStatus {
    /// Set when a thread wanted progress while another one had the lock.
    pub progress_wanted: AtomicBool,
    /// Set when its connects have become the oldest to their destination: see [`order`](super::order).
    pub ticket_due: AtomicBool,
    /// The engine's waker (descriptor + 1), while the engine is there, or else 0: a process without engines has none of
    /// their memory if all of it is 0.
    pub waker: SharedCell<i32>,
    /// Number of connections that it carries: without any a process that has only local ones has no cost. Written under
    /// the lock, as are the next two.
    pub carried: SharedCell<usize>,
    /// Number of connections that wait for a queue pair.
    pub waiting: SharedCell<usize>,
    /// Number of devices that it has open.
    pub devices: SharedCell<usize>,
    /// Number of queue pairs of clients on other hosts that it has or is to have.
    pub served: AtomicUsize,
    /// Number of passes over the work that threads of the program have made. Written under the lock.
    pub progress_count: SharedCell<u32>,
}

/// Number of engines.
static COUNT: AtomicUsize = AtomicUsize::new(0);
netacc_sys::tables! {
    /// Their statuses.
    static STATUSES: [SetOnce<&'static EngineStatus>; MOST] = [const { SetOnce::new() }; MOST];
}

/// Number of engines of the process.
#[inline]
pub(super) fn count() -> usize {
    // Acquire: a thread that sees the number sees what was written before it.
    COUNT.load(Ordering::Acquire)
}

/// The first `made` engines are there.
pub(super) fn publish(made: usize) {
    COUNT.store(made, Ordering::Release);
}

/// No engine is there any more, as in the child of a fork. Returns how many there were.
pub(super) fn forget() -> usize {
    COUNT.swap(0, Ordering::AcqRel)
}

/// The status of the engine with this index.
pub(super) fn at(n: usize) -> Option<&'static EngineStatus> {
    if n < count() { STATUSES.get(n)?.get() } else { None }
}

/// The statuses of all engines.
pub(super) fn all() -> impl Iterator<Item = &'static EngineStatus> {
    STATUSES.iter().take(count()).filter_map(|status| status.get())
}

impl EngineStatus {
    pub const fn new() -> EngineStatus {
        EngineStatus {
            progress_wanted: AtomicBool::new(false),
            ticket_due: AtomicBool::new(false),
            waker: SharedCell::<i32>::new(0),
            carried: SharedCell::<usize>::new(0),
            waiting: SharedCell::<usize>::new(0),
            devices: SharedCell::<usize>::new(0),
            served: AtomicUsize::new(0),
            progress_count: SharedCell::<u32>::new(0),
        }
    }

    /// Makes it that of engine `n`.
    pub fn enter(&'static self, n: usize) {
        if let Some(status) = STATUSES.get(n) {
            status.set(self);
        }
    }

    /// The engine carries no connections any more, as in the child of a fork.
    pub fn clear(&self) {
        for mark in [&self.progress_wanted, &self.ticket_due] {
            mark.store(false, Ordering::Relaxed);
        }
        self.served.store(0, Ordering::Relaxed);
        for number in [&self.carried, &self.waiting, &self.devices] {
            number.set(0);
        }
    }

    /// Has its thread look.
    pub fn ring(&self) {
        let waker = self.waker.get() - 1;
        if waker >= 0 {
            wakers::ring(waker);
        }
    }
}
