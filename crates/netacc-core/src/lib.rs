//! What each intercepted call means: the socket layer of NetACC.
//!
//! Every function here answers an [`Outcome`]: the call is done, it failed with an errno, or it is none
//! of our business and goes on to the next libc symbol. Nothing here is called through libc, so nothing
//! here can re-enter a hook.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod conn;

pub mod epoll;
pub mod exec;
pub mod fallback;
pub mod fd;
pub mod fork;
mod host;
pub mod identity;
mod limits;
pub mod listen;
mod machine;
pub mod namespace;
pub mod object;
pub mod operator;
pub mod options;
pub mod outcome;
pub mod process_fallback;
pub mod runtime;
pub mod startup;
pub mod switch;
mod timeouts;
pub mod wait;

/// What a process that ends or executes another program has to tell the RDMA engines.
pub use netacc_transport::rdma::engine;
pub use outcome::Outcome;
