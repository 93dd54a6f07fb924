//! Preparation of the child of a fork for its use of shared memory.

use crate::shm::{blocks, link, liveness, owner, remote};

/// Frees the locks of this folder in the child of a fork, which has one thread: their holders do not exist there. A
/// socket for queries of the parent's is closed.
pub fn reset_locks() {
    link::reset_after_fork();
    blocks::reset_after_fork();
    remote::reset_after_fork();
    liveness::reset_after_fork();
    netacc_sys::closer::after_fork();
    owner::reset_after_fork();
}
