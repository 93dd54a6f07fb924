//! Calls by which a process becomes another user (setuid(2), setreuid(2), setresuid(2)).
//!
//! Only the real user id counts, since the kernel passes it to peers with each message. seteuid(2) and setfsuid(2) do
//! not change it.

use netacc_transport::shm::identity;
use rustix::process::getuid;

/// Runs `call`, which may change the real user id, and lets peers know if it has.
pub fn may_change<T>(call: impl FnOnce() -> T) -> T {
    let before = getuid();
    let done = call();
    if getuid() != before {
        identity::tell_peers();
    }
    done
}
