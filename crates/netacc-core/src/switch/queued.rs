//! The list of connects that no process has taken yet (see [`crate::switch::queued_connects`]).

use crate::object::reference::Ref;
use crate::object::socket::Socket;
use core::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use netacc_sys::Lock;
use netacc_transport::shm::ShmEndpoint;

/// Number of connects that are remembered. One that finds no place waits for its own process.
const REMEMBERED: usize = 1024;

/// Number of entries that are looked at a time: the list of what is due lies on the program's stack.
pub(super) const PART: usize = 16;

/// A connect that waits.
pub(super) struct QueuedConnect {
    pub(super) socket: AtomicPtr<Socket>,
    generation: AtomicU16,
    /// Number of connects that its process had taken when it was last seen to take one, or when we looked first.
    taken: AtomicU64,
    /// When that was ([`netacc_sys::time::now`]); 0: no thread has looked yet.
    pub(super) since: AtomicU64,
}

static ENTRIES: [QueuedConnect; REMEMBERED] = [const {
    QueuedConnect {
        socket: AtomicPtr::new(core::ptr::null_mut()),
        generation: AtomicU16::new(0),
        taken: AtomicU64::new(0),
        since: AtomicU64::new(0),
    }
}; REMEMBERED];

/// Guards the entries.
pub(super) static LOCK: Lock = Lock::new();

/// Number of entries that have been used; the memory behind them is left alone.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Whether any connect may wait; a hint, so that a thread that goes to sleep pays one load.
pub(super) static ANY: AtomicU32 = AtomicU32::new(0);

impl QueuedConnect {
    /// The socket, if its connect still waits.
    #[allow(unsafe_code)]
    pub(super) fn waiting(&self) -> Option<Ref<Socket>> {
        // SAFETY: null or a socket object, which is never freed; the generation says whether it is the same one still.
        let obj = unsafe { self.socket.load(Ordering::Relaxed).as_ref() }?;
        let r = Ref { obj, generation: self.generation.load(Ordering::Relaxed) };
        (r.valid() && r.obj.is_shm() && with_endpoint(r, ShmEndpoint::is_queued)?).then_some(r)
    }

    /// The socket, if its connect still waits; otherwise frees the entry. Under the lock.
    pub(super) fn look(&self) -> Option<Ref<Socket>> {
        let waiting = self.waiting();
        if waiting.is_none() {
            self.forget();
        }
        waiting
    }

    /// Time (ns) for which its process has not taken anything while we looked.
    pub(super) fn idle(&self, r: Ref<Socket>, now: u64) -> u64 {
        let taken = with_endpoint(r, |ep| ep.link().connects_taken()).unwrap_or(0);
        let since = self.since.load(Ordering::Relaxed);
        if since == 0 || taken != self.taken.load(Ordering::Relaxed) {
            self.taken.store(taken, Ordering::Relaxed);
            self.since.store(now, Ordering::Relaxed);
            return 0;
        }
        now.saturating_sub(since)
    }

    fn forget(&self) {
        self.socket.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
}

/// What `f` says of its endpoint, whose link stays mapped meanwhile: another thread may be making the connect
/// elsewhere.
pub(super) fn with_endpoint<T>(r: Ref<Socket>, f: impl FnOnce(&'static ShmEndpoint) -> T) -> Option<T> {
    let ep = r.obj.endpoint()?;
    let link = ep.link();
    link.hold_if_used().then(|| {
        let said = f(ep);
        link.put();
        said
    })
}

/// A connect was queued: watches it until it is taken.
pub fn note(r: Ref<Socket>) {
    let _g = LOCK.lock();
    ANY.store(1, Ordering::Relaxed);
    let used = USED.load(Ordering::Relaxed);
    let free = ENTRIES.iter().take(used).position(|e| e.waiting().is_none()).unwrap_or(used);
    if let Some(e) = ENTRIES.get(free) {
        USED.store(used.max(free + 1), Ordering::Relaxed);
        e.socket.store(core::ptr::from_ref(r.obj).cast_mut(), Ordering::Relaxed);
        e.generation.store(r.generation, Ordering::Relaxed);
        e.since.store(0, Ordering::Relaxed);
    }
}

/// A connect was made again, and waits at another process: a thread that looked in between has forgotten it.
pub fn note_redispatched(r: Ref<Socket>) {
    let known = {
        let _g = LOCK.lock();
        parts().flatten().any(|e| e.waiting() == Some(r))
    };
    if !known {
        note(r);
    }
}

/// Whether any connect may still wait. Until all entries are looked at, other threads must not believe that there is
/// none.
pub(super) fn are_there_any() -> bool {
    let _g = LOCK.lock();
    let any = parts().flatten().any(|e| !e.socket.load(Ordering::Relaxed).is_null());
    ANY.store(any.into(), Ordering::Relaxed);
    any
}

/// The entries that have been used, in parts.
pub(super) fn parts() -> impl Iterator<Item = &'static [QueuedConnect]> {
    ENTRIES.get(..USED.load(Ordering::Relaxed)).unwrap_or(&ENTRIES).chunks(PART)
}

/// Called in the child of a fork: connects that wait are the parent's to look after.
pub fn after_fork() {
    LOCK.reset();
    parts().flatten().for_each(QueuedConnect::forget);
}
