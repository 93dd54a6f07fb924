//! Transports: how the bytes of an accelerated connection really move.
//!
//! [`Endpoint`] is the contract; every transport fulfils it and passes the same conformance suite.
//! One folder per transport: today [`shm`].

pub mod bells;
pub mod endpoint;
pub mod iov;
pub mod shm;
pub mod wait;

pub use endpoint::{Endpoint, Interest, Readiness, Shut};
pub use iov::Iov;
pub use wait::WaitSet;
