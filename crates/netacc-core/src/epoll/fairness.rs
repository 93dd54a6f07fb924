//! Fairness between the event loops of one process when there are more busy loops than CPUs.
//!
//! While its peers answer fast enough, a loop finds an event at each look and never sleeps; with kernel sockets every
//! loop sleeps after each round. Other loops that share its CPU would wait for the end of its time slice, which takes
//! milliseconds. So such a loop yields periodically. It does not if each loop has a CPU: on recent kernels (6.18) a
//! thread that yields loses the rest of its slice to any other thread of its scheduling group.

use crate::object::instance::Epoll;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use netacc_sys::{SharedCell, cpu};

/// Length (ticks, some 70 microseconds) of a loop's slice. With half of it the switches cost 10 % of the throughput;
/// with three times as much the 99th percentile of the latency is two and a half times as long.
const SLICE: u64 = 200_000;
/// Time (ticks, some 10 milliseconds) after its last slice during which a loop counts as busy.
const LATELY: u64 = 30_000_000;
/// Number of loops that are distinguished.
const LOOPS: usize = 16;

/// Time (ticks) at which each loop last ended a slice.
static LAST: [AtomicU64; LOOPS] = [const { AtomicU64::new(0) }; LOOPS];
static NEXT: AtomicU32 = AtomicU32::new(0);
/// Number of CPUs that this process may use; 0: not determined yet.
static CPUS: SharedCell<u32> = SharedCell::<u32>::new(0);

/// Index of a new instance among the process's event loops.
pub(super) fn assign_index() -> u32 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn cpus() -> u32 {
    let known = CPUS.get();
    if known != 0 {
        return known;
    }
    // If there are more CPUs than the mask holds, each loop has one.
    let n = match cpu::allowed() {
        0 => u32::MAX,
        n => n,
    };
    CPUS.set(n);
    n
}

/// To be called when an instance has something to report, at `now` ([`netacc_sys::cpu::ticks`]): yields to the other
/// loops if its slice is over.
#[inline]
pub(super) fn pass(e: &Epoll, now: u64) {
    if now.wrapping_sub(e.slice_start.get()) > SLICE {
        end_slice(e, now);
    }
}

#[cold]
fn end_slice(e: &Epoll, now: u64) {
    e.slice_start.set(now);
    if let Some(mine) = LAST.get(e.loop_index.get() as usize % LOOPS) {
        mine.store(now, Ordering::Relaxed);
    }
    // Relaxed: the number of busy loops is an estimate.
    let busy = LAST.iter().filter(|l| now.wrapping_sub(l.load(Ordering::Relaxed)) < LATELY).count() as u32;
    if busy > 1 && busy >= cpus() {
        crate::wait::spin::yield_cpu();
    }
}
