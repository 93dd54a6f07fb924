//! The preloaded library: exported symbols that stand before libc's (ld.so(8), `LD_PRELOAD`).
//!
//! # Safety
//! Every function here has the signature of the libc function whose name it bears and is called by the application
//! under that function's contract; pointers are handed on to [`netacc_core`], which documents its use of them, or to
//! the next symbol.
//!
//! To intercept another call, add a line to the table in `hooks`.
#![no_std]
#![allow(unsafe_code)]
#![allow(missing_docs, reason = "the exported functions are documented by their man pages")]
#![allow(clippy::missing_safety_doc, reason = "see the module's safety note")]

#[macro_use]
mod table;
#[macro_use]
mod next;
mod aio;
mod aliases;
mod clone;
mod exchange;
mod exec;
mod fd_passing;
mod freestanding;
#[cfg(target_arch = "x86_64")]
mod go;
mod handlers;
mod hooks;
mod identity;
mod looked_up;
mod opened;
mod process;
mod seccomp;
mod stand_ins;
mod startup;
#[cfg(target_arch = "x86_64")]
mod static_children;
#[cfg(target_arch = "x86_64")]
mod static_start;
mod syscall;
mod time;
mod uring;
mod users;
mod vfork;
#[cfg(target_arch = "x86_64")]
mod without_libc;
