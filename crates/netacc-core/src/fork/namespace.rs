//! Namespaces of processes: in another one the numbers of processes mean others.

use core::ffi::CStr;
use rustix::fs::{lstat, stat};

/// What tells one namespace from another, if /proc is there.
pub(crate) fn identity(path: &CStr) -> Option<(u64, u64)> {
    stat(path).ok().map(|s| (s.st_dev, s.st_ino))
}

/// Whether a child that is forked now begins in another PID namespace: sharers tell each other apart by
/// their numbers, and there the same numbers stand for other processes.
pub fn splits_sharers() -> bool {
    let next = c"/proc/self/ns/pid_for_children";
    match (identity(c"/proc/self/ns/pid"), identity(next)) {
        (Some(ours), Some(theirs)) => ours != theirs,
        // A new namespace leads nowhere before its first child; kernels before 4.12 have no such link at all.
        (Some(_), None) => lstat(next).is_ok(),
        (None, _) => false,
    }
}
