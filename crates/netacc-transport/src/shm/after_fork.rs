//! The work in the child of a fork before it uses shared memory.

use crate::shm::{blocks, link, liveness, owner, remote};

/// Frees the locks of this folder: their holders do not exist in the child of a fork, which has one thread.
pub fn reset_locks() {
    link::reset_after_fork();
    blocks::reset_after_fork();
    remote::reset_after_fork();
    liveness::reset_after_fork();
    netacc_sys::closer::after_fork();
    owner::reset_after_fork();
}
