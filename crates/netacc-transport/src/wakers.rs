//! Wakers: eventfds on which one side sleeps and which the other side rings.

use netacc_sys::errno::Result;
use netacc_sys::{own_limit, raw, reserved_fds};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;

/// Makes a waker of ours, at a private descriptor number.
pub fn create() -> Result<i32> {
    reserved_fds::adopt(make()?)
}

/// Makes a waker that can be done without: it takes no number that the program could have.
pub fn create_above() -> Result<i32> {
    reserved_fds::park(make()?)
}

fn make() -> Result<OwnedFd> {
    own_limit::raised(|| Ok(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
}

/// Rings a waker. A full counter means that it rings already, so errors do not matter.
pub fn ring(fd: i32) {
    let one = 1u64.to_ne_bytes();
    let _ = raw::write(fd, one.as_ptr(), one.len());
}

/// Takes the ringing of a waker back.
pub fn silence(fd: i32) {
    let mut buf = [0u8; 8];
    let _ = raw::read(fd, buf.as_mut_ptr(), buf.len(), None);
}
