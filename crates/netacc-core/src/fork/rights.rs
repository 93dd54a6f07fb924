//! Calls by which the child of a fork gives up rights: it becomes another user for good, or confines itself to a folder or to
//! some system calls.
//!
//! What it has inherited is its parent's memory, which has the bytes of other connections, too. With kernel TCP such a child
//! has nothing but the sockets that it kept open. So before it gives up the rights, what it has inherited leaves shared memory:
//! afterwards a peer that does not trust it any more would take no socket from it.

use crate::fd::table;
use crate::runtime;
use crate::switch::demote;
use libc::uid_t;
use netacc_stats::{Reason, page};
use netacc_sys::{lock, raw};
use netacc_transport::shm::inherited;

/// The argument by which setreuid(2) and setresuid(2) leave a user as it is.
const UNCHANGED: uid_t = uid_t::MAX;

/// Real, effective and saved user of a process.
type Users = [uid_t; 3];

/// A call that changes users, with its arguments.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// setuid(2).
    All(uid_t),
    /// setreuid(2): real and effective user.
    RealEffective(uid_t, uid_t),
    /// setresuid(2): real, effective and saved user.
    Each(Users),
}

impl Change {
    /// The users after the call, if the kernel permits it.
    fn applied(self, [real, effective, saved]: Users) -> Users {
        let or = |new: uid_t, old: uid_t| if new == UNCHANGED { old } else { new };
        match self {
            Change::All(user) if effective == 0 => [user; 3],
            Change::All(user) => [real, user, saved],
            Change::RealEffective(r, e) => {
                let follows = r != UNCHANGED || (e != UNCHANGED && e != real);
                [or(r, real), or(e, effective), if follows { or(e, effective) } else { saved }]
            }
            Change::Each([r, e, s]) => [or(r, real), or(e, effective), or(s, saved)],
        }
    }

    /// Whether a process with these users cannot become one of them again after the call, which the kernel permits.
    fn gives_up(self, before: Users) -> bool {
        let after = self.applied(before);
        let [_, effective, _] = before;
        let permitted = effective == 0 || after.iter().all(|user| before.contains(user));
        permitted && before.iter().any(|user| !after.contains(user))
    }
}

/// To be called before the process changes its users.
pub fn before_change(change: Change) {
    if change.gives_up(raw::getresuid()) {
        before_fewer_rights();
    }
}

/// To be called before the process gives up rights for good.
///
/// Nothing is done in a signal handler that has interrupted a call of ours which holds a lock, nor in a process that has
/// the memory of its parent and descriptors of its own (clone(2)).
#[cold]
pub fn before_fewer_rights() {
    let process = page().pid();
    if runtime::get().is_none() || lock::interrupted() || (process != 0 && process != raw::getpid()) {
        return;
    }
    table::each_socket(|fd, r| {
        let is_inherited = r.obj.ring().is_some_and(|ep| ep.side.link().is_inherited());
        if is_inherited && let Err(e) = demote::demote(fd, r, Reason::FewerRights) {
            netacc_log::log!(Warn, "fd {fd}: cannot become a kernel socket ({}): {e}", Reason::FewerRights.name());
        }
    });
    inherited::forget_unneeded();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_after_a_call() {
        assert_eq!(raw::getresuid()[0], rustix::process::getuid().as_raw());
        let root = [0, 0, 0];
        for (before, change, after) in [
            (root, Change::All(7), [7, 7, 7]),
            ([7, 0, 7], Change::All(7), [7, 7, 7]),
            ([7, 7, 0], Change::All(7), [7, 7, 0]),
            (root, Change::RealEffective(7, 7), [7, 7, 7]),
            (root, Change::RealEffective(UNCHANGED, 7), [0, 7, 7]),
            (root, Change::RealEffective(7, UNCHANGED), [7, 0, 0]),
            (root, Change::RealEffective(UNCHANGED, 0), root),
            (root, Change::Each([7, 7, UNCHANGED]), [7, 7, 0]),
            (root, Change::Each([7, 7, 7]), [7, 7, 7]),
        ] {
            assert_eq!(change.applied(before), after, "{before:?} {change:?}");
        }
    }

    #[test]
    fn a_user_is_given_up_if_there_is_no_way_back() {
        for (before, change) in [
            ([0, 0, 0], Change::All(7)),
            ([0, 0, 0], Change::RealEffective(7, 7)),
            ([0, 0, 0], Change::Each([7, 7, 7])),
            ([7, 7, 0], Change::Each([7, 7, 7])),
            ([7, 0, 0], Change::All(7)),
        ] {
            assert!(change.gives_up(before), "{before:?} {change:?}");
        }
        for (before, change) in [
            ([0, 0, 0], Change::All(0)),
            ([7, 7, 7], Change::All(0)),
            ([7, 7, 7], Change::All(7)),
            ([0, 0, 0], Change::RealEffective(UNCHANGED, 7)),
            ([0, 0, 0], Change::Each([UNCHANGED, 7, UNCHANGED])),
            ([7, 7, 7], Change::Each([0, 0, 0])),
        ] {
            assert!(!change.gives_up(before), "{before:?} {change:?}");
        }
    }
}
