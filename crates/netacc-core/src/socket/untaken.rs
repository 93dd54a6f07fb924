//! Connects that no process has taken yet, to a listener that several processes serve.
//!
//! In the kernel any of these processes takes the next connect. Here each link has one process at its other end, and
//! if that one is stopped, or busy for long, a connect would wait for it though others are idle. So a thread that
//! goes to sleep wakes in time for such a connect and makes it once more: at a process that waits for connects
//! ([`reroute::elsewhere`]), or by TCP ([`reroute::bypass`]).

use crate::fdtable::Ref;
use crate::socket::{Path, Socket, reroute};
use core::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering};
use netacc_sys::time::{self, Deadline};
use netacc_sys::{Lock, lock};

/// A connect is made again when its process has taken none for so long (ns): much longer than a busy server needs, and
/// no longer than a user would notice.
const PATIENCE: u64 = 200_000_000;

/// And sooner at another process that waits for connects, if there is one: it is looked for at this interval (ns).
const STEP: u64 = 10_000_000;

/// So many are remembered. What is one too many waits for its own process.
const KEPT: usize = 64;

/// One of them.
struct Entry {
    socket: AtomicPtr<Socket>,
    generation: AtomicU16,
    /// How many connects its process had taken when it was last seen to take one, or when we looked first.
    taken: AtomicU64,
    /// When that was ([`time::now`]); 0: nobody has looked yet.
    since: AtomicU64,
}

static ENTRIES: [Entry; KEPT] = [const {
    Entry {
        socket: AtomicPtr::new(core::ptr::null_mut()),
        generation: AtomicU16::new(0),
        taken: AtomicU64::new(0),
        since: AtomicU64::new(0),
    }
}; KEPT];
/// Guards them.
static LOCK: Lock = Lock::new();
/// Whether there may be one; a hint, so that a thread that goes to sleep pays one load.
static ANY: AtomicU32 = AtomicU32::new(0);

impl Entry {
    /// The socket, if its connect still waits.
    #[allow(unsafe_code)]
    fn waiting(&self) -> Option<Ref<Socket>> {
        // SAFETY: null or a socket object, which is never freed; the generation says whether it is the same one still.
        let obj = unsafe { self.socket.load(Ordering::Relaxed).as_ref() }?;
        let r = Ref { obj, generation: self.generation.load(Ordering::Relaxed) };
        (r.valid() && r.obj.path() == Path::Shm && r.obj.endpoint()?.is_untaken()).then_some(r)
    }

    /// How long (ns) its process has not taken anything while we looked.
    fn idle(&self, r: Ref<Socket>, now: u64) -> u64 {
        let taken = r.obj.endpoint().map_or(0, |ep| ep.link().connects_taken());
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

/// A connect was queued: it is watched until it is taken.
pub fn note(r: Ref<Socket>) {
    let _g = LOCK.lock();
    ANY.store(1, Ordering::Relaxed);
    if let Some(e) = ENTRIES.iter().find(|e| e.waiting().is_none()) {
        e.socket.store(core::ptr::from_ref(r.obj).cast_mut(), Ordering::Relaxed);
        e.generation.store(r.generation, Ordering::Relaxed);
        e.since.store(0, Ordering::Relaxed);
    }
}

/// A connect was made again, and waits there: who looked in between has forgotten it.
pub fn note_again(r: Ref<Socket>) {
    let known = {
        let _g = LOCK.lock();
        ENTRIES.iter().any(|e| e.waiting() == Some(r))
    };
    if !known {
        note(r);
    }
}

/// Before a sleep, without any lock: no connect waits longer than it should, and the caller sleeps until `deadline`
/// or the next one's time. After an earlier end the caller looks around and comes again.
#[inline]
pub fn within(deadline: Deadline) -> Deadline {
    // A handler that has interrupted its thread in the middle of a call of ours takes no lock: that call may hold it.
    if ANY.load(Ordering::Relaxed) == 0 || lock::interrupted() { deadline } else { attend(deadline) }
}

#[cold]
fn attend(deadline: Deadline) -> Deadline {
    let mut due = [None; KEPT];
    let now = time::now();
    {
        let _g = LOCK.lock();
        ANY.store(0, Ordering::Relaxed);
        for (e, due) in ENTRIES.iter().zip(&mut due) {
            let Some(r) = e.waiting() else {
                e.forget();
                continue;
            };
            ANY.store(1, Ordering::Relaxed);
            let idle = e.idle(r, now);
            if idle >= STEP {
                *due = Some((r, idle >= PATIENCE));
            }
            if idle >= PATIENCE {
                // Where TCP does not take it at once either, it is tried again.
                e.since.store(now, Ordering::Relaxed);
            }
        }
    }
    for (e, due) in ENTRIES.iter().zip(due) {
        let Some((r, long)) = due else { continue };
        if reroute::elsewhere(r) {
            // What is remembered is about the process that it has left. If the entry is another's by now, that one is
            // looked at anew.
            e.since.store(0, Ordering::Relaxed);
        } else if long {
            reroute::bypass(r);
        }
    }
    let left = deadline.left();
    if ANY.load(Ordering::Relaxed) == 0 || (0..=STEP as i64).contains(&left) {
        return deadline;
    }
    Deadline::At(now + STEP)
}

/// For the child of a fork: connects that wait are the parent's to look after.
pub fn after_fork() {
    LOCK.reset();
    ENTRIES.iter().for_each(Entry::forget);
}
