//! Threads that move to another network namespace (setns(2), unshare(2)).
//!
//! A network namespace belongs to a thread, but the library's knowledge of addresses and servers belongs to the
//! process. So a process that has begun to use TCP and then changes its namespace is accelerated no further:
//! connections stay on their path, listeners are left to the kernel, and new sockets are kernel sockets.

use crate::fd::{placeholder, table};
use crate::fork::namespace::identity;
use crate::fork::vfork;
use crate::object::socket::Path;
use crate::{fallback, runtime};
use netacc_stats::Reason;

fn network() -> Option<(u64, u64)> {
    identity(c"/proc/thread-self/ns/net")
}

/// Runs `call`, a setns(2) or unshare(2) that may change the calling thread's network namespace and returns whether it
/// succeeded.
pub fn may_change<T>(call: impl FnOnce() -> T, succeeded: impl FnOnce(&T) -> bool) -> T {
    let before = network();
    if !only_beginning() {
        // A socket belongs to the namespace in which it was made, and these were made in the previous one.
        table::each_socket(|fd, r| {
            if r.obj.path() == Path::New {
                let _ = placeholder::materialize(fd, r.obj);
            }
        });
    }
    let done = call();
    if succeeded(&done) && (before.is_none() || network() != before) && !only_beginning() {
        fallback::from_here(Reason::Namespace);
    }
    done
}

/// Whether this is a process with one thread that has not opened a TCP socket: it has no knowledge yet that could be
/// wrong.
fn only_beginning() -> bool {
    runtime::get().is_none() && vfork::has_one_thread()
}
