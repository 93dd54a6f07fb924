//! Which processes have a candidate after forks.
//!
//! A server that forks for each connection accepts it in the parent, and the child uses it. The connection may switch in
//! the child once nobody else has it ([`super::holders`]): the count of bytes that a switch needs is kept by one process,
//! and another one would go on reading a kernel's stream that has ended. A process that is killed, or executes another
//! program, does not count down: then the connection stays on TCP, as it does once a second process has used it.

use crate::object::holders::Holders;
use core::sync::atomic::{AtomicU32, Ordering};
use netacc_sys::raw;

/// The processes that hold a candidate. The mark of the count says that it has to stay on TCP, and the note beside the
/// count is the process that has used the connection since the fork; 0: none has.
#[derive(Debug, Default)]
pub struct HeldBy {
    holders: Holders,
    /// Whether this process was forked with the connection: 1, and 2 once it has an entrance for it.
    pub(crate) heir: AtomicU32,
}

/// Which processes hold a connection, as one of them sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// This process alone, which knows all that was read and sent.
    Alone,
    /// Other processes have it, too.
    Shared,
    /// Other processes have used it, or it is not known: it stays on TCP.
    Lost,
}

impl HeldBy {
    pub(crate) fn reset(&self) {
        self.holders.forget();
        self.heir.store(0, Ordering::Relaxed);
    }

    /// Whether another process may have the connection.
    #[inline]
    pub(crate) fn is_counted(&self) -> bool {
        self.holders.is_counted()
    }

    /// Counts a further holder before a fork. False: that cannot be counted. Called under both direction locks.
    pub(crate) fn fork(&self) -> bool {
        if self.is_counted() { self.holders.fork() } else { self.holders.begin() }
    }

    /// In the child of a fork: the connection came by that.
    pub(crate) fn inherit(&self) {
        if self.is_counted() {
            self.heir.store(1, Ordering::Relaxed);
        }
    }

    /// This process no longer has the connection.
    pub(crate) fn leave(&self) {
        self.holders.leave();
    }

    /// The connection stays on TCP in every process: this one uses it without counting what it reads and sends.
    pub(crate) fn spoil(&self) {
        self.holders.mark();
    }

    /// Which processes hold the connection now. A count that has come down to this process alone is given back.
    pub(crate) fn standing(&self) -> Standing {
        if !self.is_counted() {
            return Standing::Alone;
        }
        let Some(found) = self.holders.find() else {
            // Another thread may have found it alone just now.
            return if self.is_counted() { Standing::Lost } else { Standing::Alone };
        };
        let user = found.note().load(Ordering::Acquire);
        if found.count.is_marked() {
            return Standing::Lost;
        }
        if found.count.number() > 1 {
            return Standing::Shared;
        }
        if user != 0 && user != raw::getpid() {
            return Standing::Lost;
        }
        self.holders.end_at(found);
        Standing::Alone
    }

    /// To be called before each read and write that is counted, under the lock of the direction. False: another process has
    /// used the connection, which stays on TCP.
    #[inline]
    pub(crate) fn may_use(&self) -> bool {
        !self.is_counted() || self.note_use()
    }

    #[cold]
    fn note_use(&self) -> bool {
        let found = self.holders.find();
        match (self.standing(), found) {
            (Standing::Alone, _) => true,
            (Standing::Shared, Some(found)) => {
                let own = raw::getpid();
                let first = found.note().compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire);
                if first.is_err_and(|user| user != own) {
                    self.spoil();
                    return false;
                }
                true
            }
            _ => {
                self.spoil();
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::holders;

    /// A copy, as the child of a fork has it.
    fn copy(of: &HeldBy) -> HeldBy {
        let copied = HeldBy { holders: holders::tests::copy(&of.holders), ..HeldBy::default() };
        copied.inherit();
        copied
    }

    #[test]
    fn the_last_holder_is_alone() {
        let parent = HeldBy::default();
        assert_eq!(parent.standing(), Standing::Alone);
        assert!(parent.fork());
        let child = copy(&parent);
        assert_eq!((parent.standing(), child.standing()), (Standing::Shared, Standing::Shared));
        assert!(child.may_use());
        parent.leave();
        assert_eq!((child.standing(), child.is_counted()), (Standing::Alone, false));
        child.leave();
    }

    #[test]
    fn what_another_process_has_used_is_lost() {
        let parent = HeldBy::default();
        assert!(parent.fork());
        let child = copy(&parent);
        // As if another process had used it first.
        parent.holders.find().unwrap().note().store(raw::getpid() + 1, Ordering::Relaxed);
        assert!(!parent.may_use());
        parent.leave();
        assert_eq!(child.standing(), Standing::Lost);
        child.leave();
        let other = HeldBy::default();
        assert!(other.fork());
        let child = copy(&other);
        other.spoil();
        other.leave();
        assert_eq!(child.standing(), Standing::Lost);
        child.leave();
    }

    #[test]
    fn a_count_that_was_given_to_another_connection_is_lost() {
        let parent = HeldBy::default();
        assert!(parent.fork());
        let child = copy(&parent);
        let late = copy(&parent);
        child.leave();
        parent.leave();
        assert_eq!(late.standing(), Standing::Lost);
        assert!(!late.may_use());
        late.leave();
    }
}
