//! The list of connects that no process has accepted yet (see [`crate::switch::queued_connects`]).

use crate::object::reference::Ref;
use crate::object::socket::Socket;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use netacc_sys::{AtomicRef, Lock, lock_rank};
use netacc_transport::shm::ShmEndpoint;
use netacc_transport::shm::segment::Segment;

/// Number of connects in the list. A connect that finds no free entry waits for its own process.
const REMEMBERED: usize = 1024;

/// Number of entries that are checked at a time: the list of due connects lies on the program's stack.
pub(super) const PART: usize = 16;

/// A queued connect.
pub(super) struct QueuedConnect {
    pub(super) socket: AtomicRef<Socket>,
    generation: AtomicU16,
    /// Number of connects that its process had accepted when that number was last seen to change, or at the first
    /// check.
    taken: AtomicU64,
    /// Time of that change or first check ([`netacc_sys::time::now`]); 0: no thread has checked yet.
    pub(super) since: AtomicU64,
}

netacc_sys::tables! {
    static ENTRIES: [QueuedConnect; REMEMBERED] = [const {
        QueuedConnect {
            socket: AtomicRef::none(),
            generation: AtomicU16::new(0),
            taken: AtomicU64::new(0),
            since: AtomicU64::new(0),
        }
    }; REMEMBERED];
}

/// Guards the entries.
pub(super) static LOCK: Lock<{ lock_rank::LEAF }> = Lock::new();

/// Number of entries that were ever used; the memory behind them is not touched.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Hint whether any connect may wait, so that a thread that goes to sleep needs one load only.
pub(super) static ANY: AtomicU32 = AtomicU32::new(0);

impl QueuedConnect {
    /// The socket, if its connect still waits.
    pub(super) fn waiting(&self) -> Option<Ref<Socket>> {
        let obj = self.socket.get()?;
        let r = Ref { obj, generation: self.generation.load(Ordering::Relaxed) };
        (r.valid() && r.obj.is_shm() && with_endpoint(r, |ep| ep.side.is_queued())?).then_some(r)
    }

    /// The socket, if its connect still waits; otherwise frees the entry. Under the lock.
    pub(super) fn look(&self) -> Option<Ref<Socket>> {
        let waiting = self.waiting();
        if waiting.is_none() {
            self.forget();
        }
        waiting
    }

    /// Time (ns) for which its process is known not to have accepted anything.
    pub(super) fn idle(&self, r: Ref<Socket>, now: u64) -> u64 {
        let taken = with_endpoint(r, |ep| ep.side.link().segment().map_or(0, Segment::connects_taken)).unwrap_or(0);
        let since = self.since.load(Ordering::Relaxed);
        if since == 0 || taken != self.taken.load(Ordering::Relaxed) {
            self.taken.store(taken, Ordering::Relaxed);
            self.since.store(now, Ordering::Relaxed);
            return 0;
        }
        now.saturating_sub(since)
    }

    fn forget(&self) {
        self.socket.set(None);
    }
}

/// Calls `f` with the socket's endpoint, whose link stays mapped meanwhile: another thread may be redispatching the
/// connect.
pub(super) fn with_endpoint<T>(r: Ref<Socket>, f: impl FnOnce(&'static ShmEndpoint) -> T) -> Option<T> {
    let ep = r.obj.endpoint()?;
    let link = ep.side.link();
    link.hold_if_used().then(|| {
        let said = f(ep);
        link.put();
        said
    })
}

/// Time ([`netacc_sys::time::now`]) at which the program made the connect of this endpoint.
pub(super) fn made_at(ep: &ShmEndpoint) -> u64 {
    let slot = ep.side.link().segment().and_then(|segment| segment.slot(ep.side.slot_index()));
    slot.map_or(0, |slot| slot.open.when.load(Ordering::Relaxed))
}

/// Adds a queued connect to the list, where it is watched until it is accepted.
pub fn note(r: Ref<Socket>) {
    let _g = LOCK.lock();
    ANY.store(1, Ordering::Relaxed);
    let used = USED.load(Ordering::Relaxed);
    let free = ENTRIES.iter().take(used).position(|e| e.waiting().is_none()).unwrap_or(used);
    if let Some(e) = ENTRIES.get(free) {
        USED.store(used.max(free + 1), Ordering::Relaxed);
        e.socket.set(Some(r.obj));
        e.generation.store(r.generation, Ordering::Relaxed);
        e.since.store(0, Ordering::Relaxed);
    }
}

/// Adds a redispatched connect, which waits at another process now, to the list again: a thread that checked the list
/// meanwhile may have removed it.
pub fn note_redispatched(r: Ref<Socket>) {
    let known = {
        let _g = LOCK.lock();
        parts().flatten().any(|e| e.waiting() == Some(r))
    };
    if !known {
        note(r);
    }
}

/// Whether any connect may still wait. Other threads must not conclude that there is none before all entries are
/// checked.
pub(super) fn are_there_any() -> bool {
    let _g = LOCK.lock();
    let any = parts().flatten().any(|e| !e.socket.is_none());
    ANY.store(any.into(), Ordering::Relaxed);
    any
}

/// The entries that were ever used, in parts of [`PART`].
pub(super) fn parts() -> impl Iterator<Item = &'static [QueuedConnect]> {
    ENTRIES.get(..USED.load(Ordering::Relaxed)).unwrap_or(&ENTRIES).chunks(PART)
}

/// Called in the child of a fork: empties the list, since the parent watches the queued connects.
pub fn after_fork() {
    parts().flatten().for_each(QueuedConnect::forget);
}
