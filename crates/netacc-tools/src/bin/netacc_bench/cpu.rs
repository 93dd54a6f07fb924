//! CPU time.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// What this process has used by now, all threads, in user mode and in the kernel: the sum that getrusage(2) gives, in
/// nanoseconds.
pub(crate) fn used() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// A duration in nanoseconds; 584 years are enough.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
