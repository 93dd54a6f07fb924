//! The socket layer of NetACC: the meaning of each intercepted call.
//!
//! Every function here answers an [`Outcome`]: the call is done, it failed with an errno, or it is passed on to the
//! next libc symbol. Our own work does not call libc's intercepted functions, so it cannot re-enter a hook.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod config_file;
pub mod conn;

pub mod epoll;
pub mod exec;
pub mod fallback;
pub mod fd;
pub mod fork;
pub mod go;
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
mod own_calls;
pub mod process_mode;
mod rule_table;
pub mod runtime;
pub mod startup;
pub mod switch;
mod timeouts;
pub mod wait;

/// The RDMA engines, which the library notifies when a process ends or executes another program.
pub use netacc_transport::rdma::engine;
pub use outcome::Outcome;
