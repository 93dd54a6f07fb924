//! Transports: how the bytes of an accelerated connection really move.
//!
//! [`Endpoint`] is the contract; every transport fulfils it and passes the same conformance suite.
//! One folder per transport: [`shm`] within a host. Between hosts bytes go over the queue pairs of [`rdma`]; a connection
//! there has a ring at each end, and its endpoint is that of the ring.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod endpoint;
pub mod host;
pub mod iov;
mod limits;
pub mod rdma;
pub mod shm;
pub mod timeouts;
pub mod wait;
pub mod wakers;

pub use endpoint::{Endpoint, Interest, Readiness, Shut};
pub use iov::Iov;
pub use wait::WaitSet;

/// Held by a test that starts a program, and by a test that closes something and looks for its end: until a program
/// runs it has all descriptors of this process, and nothing ends while it does.
#[cfg(test)]
pub(crate) fn starting() -> std::sync::MutexGuard<'static, ()> {
    static STARTING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    STARTING.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
