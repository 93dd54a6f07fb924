//! The connection manager of an engine. Its libraries are loaded when it is first needed, which takes many times what a
//! connect does: with no engine's lock held, and for a connect by the engine thread.

use crate::rdma::engine::cell::{self, EngineCell};
use crate::rdma::engine::qp::Stage;
use crate::rdma::engine::routes::why;
use crate::rdma::engine::worker::Engine;
use crate::timeouts;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use netacc_sys::{Guard, Lock, lock_rank, time};
use netacc_verbs::{Error, EventChannel, Result, fork};

/// Held while libraries may be loaded: the program in a child that was forked meanwhile could load none of its own,
/// since a thread that the child does not have may hold a lock of the dynamic linker's.
static LOADING: Lock<{ lock_rank::STARTUP }> = Lock::new();

const LIBRARY_LOAD: u64 = time::ns(timeouts::LIBRARY_LOAD);

/// Since when ([`time::now`]) there is a connection manager; 0: there is none.
static THERE: AtomicU64 = AtomicU64::new(0);

/// Since when ([`time::now`]) there is a connection manager; 0: libraries are still to be loaded, or cannot be.
pub(super) fn there_since() -> u64 {
    THERE.load(Ordering::Relaxed)
}

/// Before a fork: none is being loaded until the guard is dropped. `in_handler`: the thread has locks of ours, as it
/// has in a handler, or in the constructor of a library that is being loaded, which may have interrupted what it would
/// wait for.
pub(super) fn at_rest(in_handler: bool) -> Option<Guard<'static>> {
    LOADING.lock_within(if in_handler { 0 } else { LIBRARY_LOAD })
}

fn make() -> Result<EventChannel> {
    let _g = LOADING.lock();
    let events = EventChannel::create()?;
    if !fork::is_safe() {
        // A fork by anybody, libc's own system(3) too, would separate a device from the pages that the program sees.
        return Err(Error::Misuse { verb: "fork", why: "a kernel that copies registered memory is needed: Linux 5.9" });
    }
    events.set_nonblocking(true)?;
    Ok(events)
}

/// Makes the engine's event channel; after this the engine has it, or was told that there is none.
pub(super) fn load(cell: &EngineCell) {
    let made = make();
    let _ = cell.with(|e| e.managed(made));
}

/// Makes the connection manager's event channel for each engine that has none. False: it could not be made for some
/// engine.
pub(super) fn load_all() -> bool {
    cell::all().iter().all(|cell| {
        let there = || cell.with(|e| e.mux.qps.events.is_some()) == Some(true);
        // A second attempt would fail as well.
        let not_to_be_had = || cell.with(|e| e.mux.qps.is_unmanaged(time::now())) == Some(true);
        there()
            || !not_to_be_had() && {
                load(cell);
                there()
            }
    })
}

impl Engine {
    /// The event channel was made, or could not be: the queue pairs that wait for it go on.
    fn managed(&mut self, made: Result<EventChannel>) {
        let failure = match made {
            // Another thread may have been first.
            Ok(events) => {
                let _ = THERE.compare_exchange(0, time::now(), Ordering::Relaxed, Ordering::Relaxed);
                self.mux.qps.events.get_or_insert(events);
                None
            }
            Err(e) => {
                if self.mux.qps.unmanaged == 0 {
                    netacc_log::log!(
                        Warn,
                        "RDMA thread {}: no connection manager ({e}); its connections use TCP",
                        self.index
                    );
                }
                self.mux.qps.unmanaged = time::now();
                Some(e)
            }
        };
        let wanted = |stage: &Stage| matches!(stage, Stage::Wanted);
        let waiting: Vec<usize> =
            self.mux.qps.table.each().filter(|(_, e)| wanted(e.stage())).map(|(at, _)| at).collect();
        for at in waiting {
            let begun = match failure {
                None => self.dest_of(at).ok_or(Error::NoDevice).and_then(|dest| self.mux.qps.resolve(at, dest)),
                Some(_) => Err(Error::NoDevice),
            };
            if let Err(e) = begun {
                self.failed(at, why(&e), &e);
            }
        }
    }
}
