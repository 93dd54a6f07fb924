//! Spinning: how long a thread checks before it sleeps, depending on how well that has paid lately.

use crate::wait::call_signals::CallSignals;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use netacc_stats::{Counter, page};
use netacc_sys::time::Deadline;
use netacc_sys::{cpu, raw, time};

/// Number of checks before the first yield with the peer on another CPU (about 2 microseconds).
const PAUSES: u32 = 60;

/// Number of checks before the first yield with a peer on another host, if another thread ran during the last yield.
const FEW_PAUSES: u32 = 1;

/// If sched_yield() returns within this many ticks (about a microsecond), no other thread was runnable.
const ALONE: u64 = 3_000;

/// Smallest number of yields before a wait for another host goes to sleep, however long they took.
const ROUNDS: u32 = 4;

/// Time (ns) for which a wait keeps checking between yields.
const YIELD_FOR: u64 = 50_000;

/// Length of a yield (ticks, about a millisecond) above which another thread is assumed to keep the CPU busy.
const LONG: u64 = 3_000_000;

/// After such a yield no thread yields for this many times its length (in ns), within the bounds of [`AVOID_FOR`].
const AVOID: u64 = 20;

const AVOID_FOR: core::ops::Range<u64> = 50_000_000..1_000_000_000;

/// Full confidence that spinning pays; it halves with each spin that found nothing.
const CONFIDENT: u32 = 16;

/// Without confidence one wait in this many tries again.
const RETRY: u32 = 16;

/// Time ([`time::now`]) from which threads yield again; 0: now.
static YIELD_AGAIN: AtomicU64 = AtomicU64::new(0);

/// Calls sched_yield(2) unless [`is_avoided`]. False: the thread has not yielded, and should sleep.
pub fn yield_cpu() -> bool {
    !is_avoided() && {
        timed_yield();
        true
    }
}

/// Whether yielding is avoided because the CPUs are busy: a yielding thread then waits until each of the others has used
/// its time slice, while a sleeping one runs soon after it is woken.
fn is_avoided() -> bool {
    let until = YIELD_AGAIN.load(Ordering::Relaxed);
    if until != 0 {
        if time::now() < until {
            return true;
        }
        YIELD_AGAIN.store(0, Ordering::Relaxed);
    }
    false
}

/// Yields, and returns how many ticks that took.
fn timed_yield() -> u64 {
    let began = cpu::ticks();
    raw::sched_yield();
    let took = cpu::ticks().wrapping_sub(began);
    if took > LONG {
        // About three ticks are a nanosecond.
        let avoid = (took / 3).saturating_mul(AVOID).clamp(AVOID_FOR.start, AVOID_FOR.end);
        YIELD_AGAIN.store(time::now().saturating_add(avoid), Ordering::Relaxed);
    }
    took
}

/// Record of how well spinning has paid for one socket or epoll instance.
#[derive(Debug, Default)]
pub struct Spin {
    confidence: AtomicU32,
    skipped: AtomicU32,
    /// Set if no other thread ran during the last yield, so that spinning takes the CPU from no one.
    alone: AtomicBool,
}

impl Spin {
    /// Resets the record to full confidence.
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

    /// Spins until `ready` returns true or spinning no longer pays. `peer` is the CPU of the thread that will make it
    /// ready: on our own CPU that thread cannot run meanwhile, so this one yields once and then sleeps.
    ///
    /// A yield may last as long as other threads want to run. So the call's `signals` are blocked from the first yield
    /// on, and one that comes meanwhile ends the sleep that follows.
    pub fn run(
        &self,
        peer: u32,
        deadline: Deadline,
        signals: &mut CallSignals,
        mut ready: impl FnMut() -> bool,
    ) -> bool {
        if deadline == Deadline::Now {
            return false;
        }
        if peer != cpu::NO_CPU && peer == cpu::current() {
            if is_avoided() {
                return false;
            }
            signals.block();
            timed_yield();
            return ready();
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
            if is_avoided() {
                return false;
            }
            signals.block();
            let alone = timed_yield() < ALONE;
            self.alone.store(alone, Ordering::Relaxed);
            // Spinning saves a system call for each message while both ends are busy.
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
