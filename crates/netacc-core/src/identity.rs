//! Calls by which a process becomes another user (setuid(2), setreuid(2), setresuid(2)).
//!
//! Only the real user id counts, since the kernel passes it to peers with each message. seteuid(2) and setfsuid(2) do
//! not change it.

use crate::conn::neighbours;
use crate::fd::table;
use crate::switch::demote;
use libc::uid_t;
use netacc_stats::Reason;
use netacc_sys::lock;
use netacc_transport::shm::identity;
use rustix::process::getuid;

/// The argument by which setreuid(2) and setresuid(2) leave the real user as it is.
const UNCHANGED: uid_t = uid_t::MAX;

/// Runs `call`, which may make `real` the real user id, and lets peers know if it has.
pub fn may_change<T>(real: uid_t, call: impl FnOnce() -> T) -> T {
    let before = getuid();
    if real != UNCHANGED && real != before.as_raw() {
        leave_neighbours();
    }
    let done = call();
    if getuid() != before {
        identity::tell_peers();
    }
    done
}

/// Moves connections to other network namespaces to kernel sockets. Peers that do not trust each other could not share
/// them with children: descriptors are not passed any more, and neither side finds a socket of the other by its name.
///
/// The socket is passed while the peer still trusts this process. In a signal handler that has interrupted one of our
/// calls nothing is moved, since that call may have the connection.
fn leave_neighbours() {
    if lock::interrupted() {
        return;
    }
    table::each_socket(|fd, r| {
        if r.obj.is_shm() && neighbours::is_one(r.obj) {
            let _ = demote::demote(fd, r, Reason::PeerUid);
        }
    });
}
