//! RDMA verbs and the RDMA connection manager, for a library that is preloaded into programs it does not
//! know: libibverbs and librdmacm are opened when they are first needed ([`load`]), and nothing here
//! starts a thread, writes to a standard stream, or panics.
//!
//! The names are those of the verbs. Each object holds the objects that it needs, so that everything is
//! released in the one order that works, on every path:
//!
//! ```text
//! Context   an open device       held by everything made from it
//! Pd        protection domain    held by Mr and Qp
//! Mr        registered memory    owns its memory: posting needs no promise about its life
//! CompChannel, Cq                held by Qp
//! EventChannel                   held by CmId
//! CmId      a connection         owns its Qp, which is destroyed first
//! ```
//!
//! **Threads.** All objects may be used by several threads at once: both libraries are thread-safe.
//!
//! **Events** of completion channels, devices and the connection manager are acknowledged before they
//! are handed out, because destroying an object waits for its unacknowledged events: a caller that
//! held an event while it dropped the object would wait for ever.
//!
//! **Descriptors.** Each source of events has a `fd()` to wait on, which can be made non-blocking ([`fd`]). The
//! libraries open them close-on-exec. Those of channels, and on request those of a context, are moved to private
//! numbers ([`netacc_sys::reserved_fds`]), so that a program that closes every number it does not know leaves them.
//!
//! **fork**: see [`fork`]. **errno**: any call may change the calling thread's errno, as the libraries do.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod addr;
pub mod context;
mod cq;
mod device;
mod error;
mod event;
mod mr;
mod pd;
mod provider;
mod qp;
mod wc;
mod wr;

pub mod cm;
pub mod fd;
pub mod fork;
pub mod load;
pub mod sys;

pub use cm::{CmEvent, CmEventType, CmId, ConnParam, EventChannel};
pub use context::{Context, Transport};
pub use cq::{CompChannel, Cq};
pub use device::{DeviceList, DeviceRef};
pub use error::{Error, Result, WcStatus};
pub use event::{AsyncEvent, AsyncEventType, Element};
pub use mr::Mr;
pub use pd::Pd;
pub use qp::{PostError, Qp, QpInit, QpState};
pub use wc::Wc;
pub use wr::{RecvWr, SendWr, Sge};
