//! The epoll instance by which the engine's thread is notified of companion connections, so that idle ones cost
//! nothing.

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLIN};
use netacc_sys::errno::Result;
use netacc_sys::{raw, reserved_fds};

/// What an event of the epoll instance is about: a queue pair's companion connection, a listening socket, a stranger, a
/// door, where other processes pass companions, one that does.
pub(in crate::rdma::engine) const KIND: u64 = 1 << 32;

/// The word by which the epoll instance names an event of this kind at a descriptor.
pub(in crate::rdma::engine) fn of_fd(kind: u64, fd: i32) -> u64 {
    (kind * KIND) | u64::from(fd.cast_unsigned())
}

/// What goes by a companion connection is whole messages: none waits until the one before is acknowledged (tcp(7)).
pub(in crate::rdma::engine) fn without_delay(fd: i32) {
    let _ = raw::setsockopt_int(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
}

/// The epoll instance.
#[derive(Debug)]
pub(in crate::rdma::engine) struct Watch {
    /// The instance's descriptor, or -1 before it was first needed.
    pub epoll: i32,
}

impl Default for Watch {
    fn default() -> Watch {
        Watch { epoll: -1 }
    }
}

impl Watch {
    /// epoll_ctl(2) with the epoll instance, which is made if there is none.
    pub fn ctl(&mut self, op: i32, fd: i32, events: i32, what: u64) -> Result<()> {
        if self.epoll < 0 {
            self.epoll = reserved_fds::raise(raw::epoll_create1(libc::EPOLL_CLOEXEC)?);
        }
        raw::epoll_ctl(self.epoll, op, fd, events.cast_unsigned(), what)
    }

    /// Closes a watched descriptor. Closing it alone would leave it watched as long as a child that is about to execute
    /// a program has a copy.
    pub fn forget(&self, fd: i32) {
        let _ = raw::epoll_ctl(self.epoll, EPOLL_CTL_DEL, fd, 0, 0);
        reserved_fds::close(fd);
    }

    /// Makes the thread answer the probes at this door.
    pub fn door(&mut self, door: i32) -> Result<()> {
        self.ctl(EPOLL_CTL_ADD, door, EPOLLIN, of_fd(3, door))
    }
}
