//! Clocks, read through the vDSO without a system call, and waiting by them.

use core::time::Duration;
use rustix::time::{ClockId, clock_gettime};

fn read(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn now() -> u64 {
    read(ClockId::Monotonic)
}

/// CLOCK_REALTIME in nanoseconds since 1970.
pub fn realtime() -> u64 {
    read(ClockId::Realtime)
}

/// [`now`] as of the last tick of the kernel's clock, at most some milliseconds ago, for a third of the price.
pub fn coarse() -> u64 {
    read(ClockId::MonotonicCoarse)
}

/// [`realtime`] as of the last tick.
pub fn realtime_coarse() -> u64 {
    read(ClockId::RealtimeCoarse)
}

/// A duration as the number of nanoseconds that [`now`] and [`coarse`] count in.
pub const fn ns(d: Duration) -> u64 {
    d.as_nanos() as u64
}

/// Sleeps for a millisecond, or until a signal: between two looks at what another process or thread does soon.
pub fn pause() {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    let _ = crate::raw::ppoll(core::ptr::null_mut(), 0, &raw mut ts, core::ptr::null());
}

/// When to give up waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// Never.
    Never,
    /// At once: the caller only looks.
    Now,
    /// At this [`now`] value.
    At(u64),
}

impl Deadline {
    /// A deadline `ns` nanoseconds from now; negative means never.
    pub fn after(ns: i64) -> Deadline {
        match ns {
            n if n < 0 => Deadline::Never,
            0 => Deadline::Now,
            n => Deadline::At(now().saturating_add(n as u64)),
        }
    }

    /// A deadline that is `d` from now.
    pub fn within(d: Duration) -> Deadline {
        Deadline::after(ns(d) as i64)
    }

    /// Nanoseconds left: negative for never, 0 when it has passed.
    pub fn left(self) -> i64 {
        match self {
            Deadline::Never => -1,
            Deadline::Now => 0,
            Deadline::At(t) => t.saturating_sub(now()) as i64,
        }
    }

    /// Whether the deadline has passed.
    pub fn passed(self) -> bool {
        self.left() == 0
    }
}

/// When the time-out of a call ends that is made anew, in one word: a [`now`] value, or 0 for a call that has none or has not
/// waited yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Until(u64);

impl Until {
    /// The call has its whole time-out.
    pub const NONE: Until = Until(0);

    /// Nanoseconds left, 0 when they are over. `None`: the call has its whole time-out.
    pub fn left(self) -> Option<u64> {
        (self.0 != 0).then(|| self.0.saturating_sub(now()))
    }
}

impl From<Deadline> for Until {
    fn from(end: Deadline) -> Until {
        match end {
            Deadline::At(t) => Until(t),
            Deadline::Never | Deadline::Now => Until::NONE,
        }
    }
}
