//! PID namespaces: in another one, a process number refers to another process.

use core::ffi::CStr;
use rustix::fs::{lstat, stat};

/// Device and inode that identify a namespace, if /proc is mounted.
pub(crate) fn identity(path: &CStr) -> Option<(u64, u64)> {
    stat(path).ok().map(|s| (s.st_dev, s.st_ino))
}

/// Whether a child that is forked now begins in another PID namespace: sharers identify each other by their process
/// numbers, which refer to other processes there.
pub fn splits_sharers() -> bool {
    let next = c"/proc/self/ns/pid_for_children";
    match (identity(c"/proc/self/ns/pid"), identity(next)) {
        (Some(ours), Some(theirs)) => ours != theirs,
        // The link of a new namespace is dangling before its first child; kernels before 4.12 do not have the link.
        (Some(_), None) => lstat(next).is_ok(),
        (None, _) => false,
    }
}
