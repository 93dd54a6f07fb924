//! PID namespaces: in another one, a process number refers to another process.

use core::ffi::CStr;
use netacc_sys::SharedCell;
use rustix::fs::{lstat, stat};

/// Inode of this process's PID namespace, in which it stays for its life; 0: not asked for yet. No two namespaces have the
/// same one. It takes the kernel some microseconds to find the link, and a server may fork for each connection.
static OWN: SharedCell<u64> = SharedCell::<u64>::new(0);

/// Device and inode that identify a namespace, if /proc is mounted.
pub(crate) fn identity(path: &CStr) -> Option<(u64, u64)> {
    stat(path).ok().map(|s| (s.st_dev, s.st_ino))
}

/// Whether a child that is forked now begins in another PID namespace: sharers identify each other by their process
/// numbers, which refer to other processes there.
pub fn splits_sharers() -> bool {
    let next = c"/proc/self/ns/pid_for_children";
    match (own(), identity(next)) {
        (Some(ours), Some((_, theirs))) => ours != theirs,
        // The link of a new namespace is dangling before its first child; kernels before 4.12 do not have the link.
        (Some(_), None) => lstat(next).is_ok(),
        (None, _) => false,
    }
}

fn own() -> Option<u64> {
    let known = OWN.get();
    if known != 0 {
        return Some(known);
    }
    let (_, inode) = identity(c"/proc/self/ns/pid")?;
    OWN.set(inode);
    Some(inode)
}

/// To be called in the child of a fork, which may be in another PID namespace than its parent.
pub(crate) fn after_fork() {
    OWN.set(0);
}
