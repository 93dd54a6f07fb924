//! An epoll_wait(2) as the application called it.

use core::ffi::c_void;
use netacc_sys::time::Deadline;

/// The arguments of an epoll_wait.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The application's array.
    pub events: *mut libc::epoll_event,
    /// Number of events that the array has room for.
    pub max: i32,
    /// When to give up.
    pub deadline: Deadline,
    /// The kernel's signal mask or null.
    pub sigmask: *const c_void,
}

impl Call {
    /// A call without a deadline.
    pub fn new(events: *mut libc::epoll_event, max: i32, sigmask: *const c_void) -> Call {
        Call { events, max, deadline: Deadline::Never, sigmask }
    }

    /// Writes event `i`.
    #[allow(unsafe_code)]
    pub(super) fn put(&self, i: usize, events: u32, data: u64) {
        // SAFETY: i < max, the length of the application's array.
        unsafe { self.events.add(i).write_unaligned(libc::epoll_event { events, u64: data }) };
    }
}
