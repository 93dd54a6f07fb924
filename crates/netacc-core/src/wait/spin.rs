//! Spinning: how long a thread checks before it sleeps, depending on how well that has paid lately.

use crate::object::family::Word;
use crate::wait::call_signals::CallSignals;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use netacc_stats::{Counter, page};
use netacc_sys::time::Deadline;
use netacc_sys::{SharedCell, cpu, raw, time};

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
static YIELD_AGAIN: SharedCell<u64> = SharedCell::<u64>::new(0);

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
    let until = YIELD_AGAIN.get();
    if until != 0 {
        if time::now() < until {
            return true;
        }
        YIELD_AGAIN.set(0);
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
        YIELD_AGAIN.set(time::now().saturating_add(avoid));
    }
    took
}

/// How well spinning has paid in the first waits of sockets and epoll instances, which each new one begins with: one whose
/// answers take milliseconds would else spin in vain a few times, and a connection for each request does little more. A process
/// shares it with those that it forks, since a server may fork for each connection. The lower half is the confidence, the upper
/// half counts those that have begun.
struct Experience {
    own: AtomicU32,
    /// The word that counts after the first fork, instead of `own`.
    shared: Word,
}

static EXPERIENCE: Experience = Experience { own: AtomicU32::new(CONFIDENT), shared: Word::none() };

const COUNT_SHIFT: u32 = 16;

impl Experience {
    fn word(&self) -> &AtomicU32 {
        self.shared.get().unwrap_or(&self.own)
    }

    /// The confidence of a new record, and how many waits it has skipped already.
    fn begin(&self) -> (u32, u32) {
        // Relaxed, here and below: the word orders nothing.
        let word = self.word().fetch_add(1 << COUNT_SHIFT, Ordering::Relaxed);
        // Without confidence the first wait of one in so many tries again.
        ((word & ((1 << COUNT_SHIFT) - 1)).min(CONFIDENT), (word >> COUNT_SHIFT) % RETRY)
    }

    fn learn(&self, won: bool) {
        let change = |word: u32| {
            let confidence = word & ((1 << COUNT_SHIFT) - 1);
            Some(word - confidence + learned(confidence, won))
        };
        let _ = self.word().fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }
}

/// The confidence after a spin that was `won`, or found nothing.
fn learned(confidence: u32, won: bool) -> u32 {
    if won { (confidence + 4).min(CONFIDENT) } else { confidence / 2 }
}

/// To be called before a fork: from here on the child and its parent learn together.
pub fn before_fork() {
    // What another thread learns meanwhile is lost, which makes no difference.
    EXPERIENCE.shared.take(EXPERIENCE.own.load(Ordering::Relaxed));
}

/// Record of how well spinning has paid for one socket or epoll instance.
#[derive(Debug, Default)]
pub struct Spin {
    confidence: SharedCell<u32>,
    skipped: SharedCell<u32>,
    /// Set if no other thread ran during the last yield, so that spinning takes the CPU from no one.
    alone: AtomicBool,
    /// Set until the first spin has won or lost.
    new: SharedCell<bool>,
}

impl Spin {
    /// Resets the record to what others have begun with lately.
    pub fn reset(&self) {
        let (confidence, skipped) = EXPERIENCE.begin();
        self.confidence.set(confidence);
        self.skipped.set(skipped);
        self.alone.store(false, Ordering::Relaxed);
        self.new.set(true);
    }

    fn worth_it(&self) -> bool {
        if self.confidence.get() > 0 {
            return true;
        }
        let n = self.skipped.get() + 1;
        self.skipped.set(n % RETRY);
        n >= RETRY
    }

    fn learn(&self, won: bool) {
        self.confidence.set(learned(self.confidence.get(), won));
        if self.new.get() {
            self.new.set(false);
            EXPERIENCE.learn(won);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_records_begin_with_what_first_waits_have_shown() {
        let of = Experience { own: AtomicU32::new(CONFIDENT), shared: Word::none() };
        assert_eq!(of.begin().0, CONFIDENT);
        (0..5).for_each(|_| of.learn(false));
        let tries = (0..RETRY).filter(|_| of.begin() == (0, RETRY - 1)).count();
        assert_eq!(tries, 1, "one in {RETRY} tries its first wait");
        of.shared.take(0);
        of.learn(true);
        assert_eq!(of.begin().0, 4);
        (0..9).for_each(|_| of.learn(true));
        assert_eq!(of.begin().0, CONFIDENT);
    }

    #[test]
    fn the_count_does_not_touch_the_confidence() {
        let of = Experience { own: AtomicU32::new(CONFIDENT), shared: Word::none() };
        of.word().store(u32::MAX << COUNT_SHIFT | 3, Ordering::Relaxed);
        assert_eq!((of.begin().0, of.begin().0), (3, 3));
    }
}
