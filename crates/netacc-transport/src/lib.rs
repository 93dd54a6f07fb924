//! Transports: they move the bytes of accelerated connections.
//!
//! [`Endpoint`] is the interface to the socket layer, and one suite (`netacc-conformance`) tests its implementations.
//! [`shm`] is the transport within a host. Between hosts, bytes go over the queue pairs of [`rdma`]; such a connection
//! has a ring at each end, and its endpoint is that of the ring.

#![cfg_attr(not(test), no_std)]
#![warn(
    clippy::cast_lossless,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::ptr_as_ptr
)]

extern crate alloc;

pub mod endpoint;
pub mod host;
pub mod iov;
mod limits;
mod num;
pub mod rdma;
pub mod shm;
pub mod timeouts;
pub mod wait;
pub mod wakers;

pub use endpoint::{Endpoint, Interest, Readiness, Shut};
pub use iov::Iov;
pub use wait::{WaitOn, WaitSet};

/// Lock for tests that start a program, and for tests that close a descriptor and expect its end: until a started
/// program executes, it has all descriptors of this process, and no file is closed meanwhile.
#[cfg(test)]
pub(crate) fn starting() -> std::sync::MutexGuard<'static, ()> {
    static STARTING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    STARTING.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
