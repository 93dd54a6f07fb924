//! How a thread waits for a connection: it spins a little when that has paid lately, then sleeps in the
//! kernel.

use crate::fdtable::{self, Ref};
use crate::poll::Held;
use crate::socket::Path;
use crate::socket::{Socket, queued_connects};
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use netacc_stats::{Counter, page};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::time::Deadline;
use netacc_sys::{cpu, raw, time};
use netacc_transport::rdma::engine::progress::{self, ArmOutcome, ProgressScope};
use netacc_transport::shm::ShmEndpoint;
use netacc_transport::{Endpoint, Interest, Readiness, WaitSet};

/// Looks in a row before the first yield with the peer on another CPU (about 2 microseconds).
const PAUSES: u32 = 60;
/// Looks in a row before the first yield with a peer on another host, where the last yield went to somebody.
const FEW_PAUSES: u32 = 1;
/// If sched_yield() returns within this many ticks (about a microsecond), no other thread was runnable.
const ALONE: u64 = 3_000;
/// Least number of yields before a wait for another host is given up, however long they took.
const ROUNDS: u32 = 4;
/// Time (ns) that a wait goes on looking between yields.
const YIELD_FOR: u64 = 50_000;
/// Time (ticks, about a millisecond) above which a yield went to a thread that wanted the CPU for itself.
const LONG: u64 = 3_000_000;
/// After such a yield no thread yields for this many times its length (in ns), within the bounds of [`AVOID_FOR`].
const AVOID: u64 = 20;
const AVOID_FOR: core::ops::Range<u64> = 50_000_000..1_000_000_000;
/// Full confidence that spinning pays; halves with each spin that found nothing.
const CONFIDENT: u32 = 16;
/// Without confidence one wait in this many tries again.
const RETRY: u32 = 16;

/// Sleeps on `set`, which is armed; `disarm` undoes that. `scope` says which engines carry what is waited for.
pub fn sleep(
    set: &mut WaitSet,
    scope: ProgressScope,
    deadline: Deadline,
    sigmask: *const c_void,
    disarm: impl FnOnce(&WaitSet),
) -> Result<usize> {
    sleep_before(set, scope, deadline, sigmask, disarm, true)
}

/// Sleeps as [`sleep`] does; unless `makes_progress` is set, the caller makes the engine's progress afterwards, so that
/// what comes by that is the caller's.
fn sleep_before(
    set: &mut WaitSet,
    scope: ProgressScope,
    deadline: Deadline,
    sigmask: *const c_void,
    disarm: impl FnOnce(&WaitSet),
    makes_progress: bool,
) -> Result<usize> {
    let token = progress::arm(set, scope);
    let slept = if matches!(token, ArmOutcome::Ready) {
        set.sleep(Deadline::Now, sigmask)
    } else {
        before_sleep();
        set.sleep(deadline, sigmask)
    };
    // Before the progress: what that brings needs to wake no thread here.
    disarm(set);
    if let ArmOutcome::Yes(token) = token {
        progress::disarm(token, set, makes_progress);
    }
    slept
}

/// To be called when a thread is about to sleep in a call of ours.
pub fn before_sleep() {
    page().count(Counter::Sleeps);
    crate::fork::idle_check();
    crate::socket::closing::close_later();
    crate::socket::fd_cache::close_all();
}

/// When ([`time::now`]) yielding is worthwhile again; 0: now.
static YIELD_AGAIN: AtomicU64 = AtomicU64::new(0);

/// Calls sched_yield(2), unless the CPUs are busy. There a thread that yields waits until each of the others has had
/// its time slice, while one that sleeps has its turn soon after it is woken. False: the thread has not yielded, and
/// had better sleep.
pub fn yield_cpu() -> bool {
    timed_yield().is_some()
}

/// Yields as [`yield_cpu`] does; returns for how many ticks.
fn timed_yield() -> Option<u64> {
    let until = YIELD_AGAIN.load(Ordering::Relaxed);
    if until != 0 {
        if time::now() < until {
            return None;
        }
        YIELD_AGAIN.store(0, Ordering::Relaxed);
    }
    let began = cpu::ticks();
    raw::sched_yield();
    let took = cpu::ticks().wrapping_sub(began);
    if took > LONG {
        // Some three ticks are a nanosecond.
        let avoid = (took / 3).saturating_mul(AVOID).clamp(AVOID_FOR.start, AVOID_FOR.end);
        YIELD_AGAIN.store(time::now().saturating_add(avoid), Ordering::Relaxed);
    }
    Some(took)
}

/// How spinning has paid for one socket or epoll instance.
#[derive(Debug, Default)]
pub struct Spin {
    confidence: AtomicU32,
    skipped: AtomicU32,
    /// The last yield went to no other thread, so that looking takes the CPU from nobody.
    alone: AtomicBool,
}

impl Spin {
    /// Back to the optimistic start.
    pub fn reset(&self) {
        self.confidence.store(CONFIDENT, Ordering::Relaxed);
        self.skipped.store(0, Ordering::Relaxed);
        self.alone.store(false, Ordering::Relaxed);
    }

    fn worth_it(&self) -> bool {
        if self.confidence.load(Ordering::Relaxed) > 0 {
            return true;
        }
        let n = self.skipped.load(Ordering::Relaxed) + 1;
        self.skipped.store(n % RETRY, Ordering::Relaxed);
        n >= RETRY
    }

    fn learn(&self, won: bool) {
        let c = self.confidence.load(Ordering::Relaxed);
        self.confidence.store(if won { (c + 4).min(CONFIDENT) } else { c / 2 }, Ordering::Relaxed);
        page().count(if won { Counter::SpinsWon } else { Counter::SpinsLost });
    }

    /// Looks until `ready` or until looking no longer pays. `peer` is the CPU of the thread that will make it ready: on
    /// our own CPU that thread cannot run while we spin, so we let it run once and go to sleep.
    pub fn run(&self, peer: u32, deadline: Deadline, mut ready: impl FnMut() -> bool) -> bool {
        if deadline == Deadline::Now {
            return false;
        }
        if peer != cpu::NO_CPU && peer == cpu::current() {
            return yield_cpu() && ready();
        }
        if !self.worth_it() {
            return false;
        }
        // Bytes from another host come by a device, whose driver may need this CPU; so may the peer, if it runs on this
        // host after all.
        let remote = peer == cpu::ELSEWHERE;
        let pauses = if remote && !self.alone.load(Ordering::Relaxed) { FEW_PAUSES } else { PAUSES };
        for _ in 0..pauses {
            if ready() {
                self.learn(true);
                return true;
            }
            cpu::pause();
        }
        let end = time::now() + YIELD_FOR;
        for round in 1.. {
            let Some(took) = timed_yield() else { return false };
            let alone = took < ALONE;
            self.alone.store(alone, Ordering::Relaxed);
            // Looking on saves a system call for each message while both ends are busy.
            let looks = if remote && alone { PAUSES } else { 1 };
            for _ in 0..looks {
                if ready() {
                    self.learn(true);
                    return true;
                }
                cpu::pause();
            }
            let enough = !remote || round >= ROUNDS;
            if (enough && time::now() >= end) || deadline.passed() {
                break;
            }
        }
        self.learn(false);
        false
    }
}

/// Waits until `sock` is ready for `interest`. `EAGAIN` when the deadline passes, `EINTR` as the kernel
/// would. The caller holds a pin and no lock.
///
/// A sleep that a signal ends may not look like one: ppoll(2) looks its numbers up again, and reports a file that
/// another thread has put under a number meanwhile (dup2). So where nothing but such a number has something to tell, it
/// was a signal.
pub fn ready(sock: Ref<Socket>, interest: Interest, deadline: Deadline) -> Result<()> {
    until(sock, interest, 0, deadline)
}

/// Waits as [`ready`] does; a reader is ready only with `enough` bytes, or when no more can come.
pub fn until(sock: Ref<Socket>, interest: Interest, enough: usize, deadline: Deadline) -> Result<()> {
    until_done(sock, interest, enough, deadline, |ep| {
        progress::progress_for(ep);
        false
    })
}

/// Waits for a connection to another host as [`until`] does, with `progress` to make the engine's progress: it says whether
/// the wait is over by that.
pub fn until_done(
    sock: Ref<Socket>,
    interest: Interest,
    enough: usize,
    deadline: Deadline,
    mut progress: impl FnMut(&'static ShmEndpoint) -> bool,
) -> Result<()> {
    const ENDED: u32 = Readiness::RDHUP | Readiness::HUP | Readiness::ERR;
    let s = sock.obj;
    let Some(ep) = s.endpoint() else {
        return Ok(());
    };
    let remote = ep.is_remote();
    let mut is_ready = || {
        if remote && progress(ep) {
            return true;
        }
        let r = ep.readiness();
        (interest.read
            && r.readable()
            && (enough <= 1 || r.0 & ENDED != 0 || ep.unread() >= enough || ep.has_accepted()))
            || (interest.write && r.writable())
    };
    // A connect that nobody has taken waits for a queue pair, which takes far longer than looking pays.
    let found = if remote && ep.is_queued() { is_ready() } else { s.spin.run(ep.peer_cpu(), deadline, &mut is_ready) };
    if found {
        return Ok(());
    }
    let replaced = || fdtable::is_replaced(sock, s.first_fd()) && fdtable::number_of(sock, -1).is_none();
    if deadline != Deadline::Now && replaced() {
        // Another thread has put another file there while this one looked, and may have sent it a signal since. The program
        // makes the call anew, with what is there.
        return Err(Errno::INTR);
    }
    let mut steps = 0u32;
    loop {
        let until = queued_connects::within(deadline);
        let numbers = [ep.liveness_fd(), ep.old_subflow_fd()];
        let mut set = WaitSet::new();
        set.steps = steps;
        let here = || s.path() == Path::Shm && s.endpoint().is_some_and(|e| core::ptr::eq(e, ep));
        let mut enough_now = || enough <= 1 || is_ready() || ep.must_switch() || !ep.is_live();
        // After the registration: a thread that moves the connection changes the path and then wakes the registered
        // waiters.
        let there = (ep.arm(interest, &mut set) && enough_now()) || !here();
        let slept = if there {
            ep.disarm(interest, &set);
            Ok(1)
        } else {
            sleep_before(
                &mut set,
                ProgressScope::of(ep),
                until,
                core::ptr::null(),
                |set| ep.disarm(interest, set),
                !remote,
            )
        };
        steps = if slept == Ok(0) { steps.saturating_add(1) } else { 0 };
        // Whatever ended the sleep, what this look brings must not be lost.
        if is_ready() {
            page().count(Counter::Wakeups);
            return Ok(());
        }
        match slept {
            Ok(0) if deadline.passed() => return Err(Errno::AGAIN),
            // The caller looks the connection up again and finds it elsewhere.
            Ok(_) if !here() => return Ok(()),
            Ok(_) if ep.must_switch() => {
                crate::socket::redispatch::complete_switch(sock);
                return Ok(());
            }
            Ok(_) if deadline.passed() => return Err(Errno::AGAIN),
            // A thread that took the number away wakes this thread first, and the signal may come while it is awake.
            Ok(_) if replaced() => return Err(Errno::INTR),
            Ok(_) if numbers.iter().any(|fd| set.only_reported(*fd) && fdtable::is_replaced(sock, *fd)) => {
                return Err(Errno::INTR);
            }
            Ok(_) => {}
            Err(Errno::INTR) if restarts(deadline) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Waits for bytes of a kernel's socket: a thread that is cancelled wakes here, and not in a call that the kernel
/// begins anew. It waits by a number of ours, since the program's may become another socket's, and ppoll(2) would look
/// there.
pub(crate) fn for_kernel(ours: &Held, deadline: Deadline) -> Result<()> {
    loop {
        if ours.fd() < 0 {
            return Ok(());
        }
        let mut set = WaitSet::new();
        set.add(ours.fd(), libc::POLLIN);
        match set.sleep(deadline, core::ptr::null()) {
            Ok(0) => return Err(Errno::AGAIN),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) if restarts(deadline) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Whether an interrupted blocking call goes on (signal(7)): with a time-out set it never does; else the
/// kernel restarts it if the handler was installed with SA_RESTART. We cannot know which handler ran, so we go on only
/// when every handler of the process says so.
pub fn restarts(deadline: Deadline) -> bool {
    deadline == Deadline::Never && netacc_sys::signals::all_restart()
}
