//! Event loops of one process that keep more CPUs busy than there are take turns.
//!
//! While the answers of the peer come fast enough a loop finds something at each look and never sleeps. Where
//! its siblings have to share its CPU they then wait for the end of its time slice, which is milliseconds: with
//! the kernel's sockets every loop sleeps after each round. So such a loop yields now and then. A process whose
//! loops have a CPU each does not: on recent kernels (6.18) a thread that yields loses the rest of its slice to any
//! other thread of its scheduling group.

use crate::object::instance::Epoll;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use netacc_sys::raw;

/// Length (ticks, some 70 microseconds) of a loop's turn. With half of that the switches cost a tenth of the requests;
/// with three times as much one request of a hundred takes two and a half times as long.
const SLICE: u64 = 200_000;
/// A loop that ran so lately (some 10 milliseconds) wants to run.
const LATELY: u64 = 30_000_000;
/// Number of loops that are told apart.
const LOOPS: usize = 16;

/// When each loop last ended a turn (ticks).
static LAST: [AtomicU64; LOOPS] = [const { AtomicU64::new(0) }; LOOPS];
static NEXT: AtomicU32 = AtomicU32::new(0);
/// Number of CPUs that this process may use; 0: not asked yet.
static CPUS: AtomicU32 = AtomicU32::new(0);

/// A place for a new instance.
pub(super) fn assign_index() -> u32 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn cpus() -> u32 {
    let known = CPUS.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    // More CPUs than can be counted are enough for every loop.
    let n = match raw::cpus() {
        0 => u32::MAX,
        n => n,
    };
    CPUS.store(n, Ordering::Relaxed);
    n
}

/// To be called when an instance has something to report, at `now` ([`netacc_sys::cpu::ticks`]): lets its siblings run
/// if its turn is over.
#[inline]
pub(super) fn pass(e: &Epoll, now: u64) {
    if now.wrapping_sub(e.slice_start.load(Ordering::Relaxed)) > SLICE {
        end_slice(e, now);
    }
}

#[cold]
fn end_slice(e: &Epoll, now: u64) {
    e.slice_start.store(now, Ordering::Relaxed);
    if let Some(mine) = LAST.get(e.loop_index.load(Ordering::Relaxed) as usize % LOOPS) {
        mine.store(now, Ordering::Relaxed);
    }
    // Relaxed: a guess at how many want to run.
    let busy = LAST.iter().filter(|l| now.wrapping_sub(l.load(Ordering::Relaxed)) < LATELY).count() as u32;
    if busy > 1 && busy >= cpus() {
        crate::wait::spin::yield_cpu();
    }
}
