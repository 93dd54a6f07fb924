//! Calls by which a process becomes another user (setuid(2), setreuid(2), setresuid(2)).
//!
//! Only the real user id counts, since the kernel passes it to peers with each message. seteuid(2) and setfsuid(2) do
//! not change it.

use crate::conn::neighbours;
use crate::fd::table;
use crate::switch::demote;
use crate::timeouts;
use libc::uid_t;
use netacc_stats::{Reason, page};
use netacc_sys::time::Deadline;
use netacc_sys::{lock, raw};
use netacc_transport::shm::identity;
use rustix::process::{geteuid, getuid};

/// The argument by which setreuid(2) and setresuid(2) leave the real user as it is.
const UNCHANGED: uid_t = uid_t::MAX;

/// Runs `call`, which may make `real` the real user id, and lets peers know if it has.
pub fn may_change<T>(real: uid_t, call: impl FnOnce() -> T) -> T {
    let before = getuid();
    if real != UNCHANGED && real != before.as_raw() && is_permitted(real) {
        leave_neighbours();
    }
    let done = call();
    if getuid() != before {
        identity::tell_peers();
    }
    done
}

/// Whether the kernel may let this process make `real` its real user id: root may, and setreuid(2) exchanges the real
/// and the effective user. Programs that have given up root call setuid(0) to see it fail, which must not cost anything.
fn is_permitted(real: uid_t) -> bool {
    let effective = geteuid();
    effective.is_root() || effective.as_raw() == real
}

/// Moves connections to other network namespaces to kernel sockets. Peers that do not trust each other could not share
/// them with children: descriptors are not passed any more, and neither side finds a socket of the other by its name.
/// The socket is passed while the peer still trusts this process.
///
/// Nothing is moved in a signal handler that has interrupted a call of ours which holds a lock, and in a process that has
/// the memory of its parent and descriptors of its own (clone(2)), since the connections are the parent's.
fn leave_neighbours() {
    let process = page().pid();
    if lock::interrupted() || (process != 0 && process != raw::getpid()) {
        return;
    }
    let until = Deadline::within(timeouts::LEAVE_NEIGHBOURS);
    table::each_socket(|fd, r| {
        if (r.obj.is_shm() || r.obj.is_candidate())
            && neighbours::is_one(r.obj)
            && !until.passed()
            && let Err(e) = demote::demote_now(fd, r, Reason::PeerUid)
        {
            netacc_log::log!(Warn, "fd {fd}: cannot become a kernel socket ({}): {e}", Reason::PeerUid.name());
        }
    });
}
