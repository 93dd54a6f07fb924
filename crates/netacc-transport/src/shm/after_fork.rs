//! Preparation of the child of a fork for its use of shared memory.

use crate::shm::{budget, owner};

/// To be called in the child of a fork: the socket for queries and the threads that close sockets are the parent's.
pub fn after_fork() {
    netacc_sys::closer::after_fork();
    owner::after_fork();
    budget::after_fork();
}
