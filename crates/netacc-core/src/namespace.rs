//! Threads that go to another network namespace (setns(2), unshare(2)), and children that begin in another PID
//! namespace.
//!
//! Network namespaces belong to threads, what we know of addresses and servers belongs to the process. So a process
//! that has begun to use TCP and then changes its namespace is accelerated no further: connections go on where they
//! are, listeners are left to the kernel, new sockets are the kernel's.

use crate::object::socket::Path;
use crate::{process_fallback, runtime, socket};
use core::ffi::CStr;
use netacc_stats::Reason;
use rustix::fs::{lstat, stat};

/// What tells one namespace from another, if /proc is there.
fn identity(path: &CStr) -> Option<(u64, u64)> {
    stat(path).ok().map(|s| (s.st_dev, s.st_ino))
}

fn network() -> Option<(u64, u64)> {
    identity(c"/proc/thread-self/ns/net")
}

/// Runs `call`, a setns(2) or unshare(2) that may change the calling thread's network namespace and returns whether it
/// succeeded.
pub fn may_change<T>(call: impl FnOnce() -> T, succeeded: impl FnOnce(&T) -> bool) -> T {
    let before = network();
    if !only_beginning() {
        // A socket belongs to the namespace where it was made, which is here.
        process_fallback::each(|fd, r| {
            if r.obj.path() == Path::New {
                let _ = socket::create::materialize(fd, r.obj);
            }
        });
    }
    let done = call();
    if succeeded(&done) && (before.is_none() || network() != before) && !only_beginning() {
        process_fallback::from_here(Reason::Namespace);
    }
    done
}

/// Whether this is a process with one thread that has not opened a TCP socket: such a process knows nothing yet that
/// could be wrong.
fn only_beginning() -> bool {
    // A folder has a link for itself, one in its parent and one for each folder in it, here one per thread (proc(5)).
    runtime::get().is_none() && stat(c"/proc/self/task").is_ok_and(|s| s.st_nlink == 3)
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
