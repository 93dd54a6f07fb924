//! A libibverbs and a librdmacm for tests, on machines that have no RDMA device and no kernel module for one.
//!
//! One file is both libraries: the tests put it into `LD_LIBRARY_PATH` under both names. Its devices are files in a
//! folder (`device`), its queue pairs are TCP connections that a thread of its own serves (`thread`), and its
//! connection manager's port P is TCP's port P, as on iWARP. So the hosts of a test are network namespaces, what a test
//! does to their network affects the queue pairs too, and no kernel module, emulator or root file system is needed.
//!
//! It keeps to what the verbs manual promises and no more: a message that finds no receive fails the queue pair, and
//! memory is reached only through registered keys, and must not change while a message of it is under way. A completion queue that overflows ends the process with a message,
//! so that the test fails. A test requests faults by writing into the page of a device (`device::Page`).
//!
//! # Safety
//! The exported functions are called as the manual page of the same name says: a pointer is one that this library gave out
//! and that was not given back, or leads to a caller's own structure of the type that the page names. All state is accessed
//! under one lock (`state::lock`).
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the manual page of the same name says what a caller promises")]

mod address;
pub mod chance;
mod channel;
mod cma;
pub mod device;
mod frames;
mod id;
mod queue;
mod state;
mod strings;
mod thread;
mod trace;
mod verbs;
mod wire;

/// Sets the calling thread's errno and returns -1, as both libraries report errors.
fn fail(errno: i32) -> core::ffi::c_int {
    // SAFETY: the function returns the address of the calling thread's errno.
    unsafe { *libc::__errno_location() = errno };
    -1
}
