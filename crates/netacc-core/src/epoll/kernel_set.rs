//! The kernel's epoll sets of an instance, in which our own entries have cookies as values.

use crate::epoll::cookies::{Kind, cookie};
use crate::object::instance::{Epoll, PROGRAMS, Registration};
use crate::operator::requests;
use core::sync::atomic::Ordering;
use netacc_sys::errno::Result;
use netacc_sys::{raw, reserved_fds};

/// The processes that use an instance's kernel set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Usage {
    /// This process alone.
    Alone = 0,
    /// Forked processes may exist, and none has announced that it uses the instance.
    Forked = 1,
    /// The instance was inherited by a fork and was not used here: our own entries in it belong to the parent.
    Inherited = 2,
    /// Other processes use it as well, so our own entries are in a separate set.
    Apart = 3,
}

impl Epoll {
    pub(crate) fn usage(&self) -> Usage {
        match self.usage.load(Ordering::Relaxed) {
            0 => Usage::Alone,
            1 => Usage::Forked,
            2 => Usage::Inherited,
            _ => Usage::Apart,
        }
    }

    pub(crate) fn set_usage(&self, usage: Usage) {
        // Release: a thread that sees that the instance has a set of its own sees that set.
        self.usage.store(usage as u32, Ordering::Release);
    }

    /// Whether our own entries in the kernel's set belong to another process, and this one has none.
    pub(crate) fn is_inherited(&self) -> bool {
        self.usage() == Usage::Inherited
    }

    /// The kernel's set with our own entries. A sleep on it includes the program's set.
    pub(crate) fn set_fd(&self) -> i32 {
        match self.own.load(Ordering::Acquire) {
            0 => self.fd(),
            own => own - 1,
        }
    }

    /// Changes one of our own entries. A set that belongs to another process is left unchanged: the entries are made
    /// when this process first uses the instance.
    pub(crate) fn enter(&self, op: i32, fd: i32, events: u32, data: u64) -> Result<()> {
        if self.is_inherited() { Ok(()) } else { raw::epoll_ctl(self.set_fd(), op, fd, events, data) }
    }

    /// Changes the entry of a registration that the kernel serves alone, as the program requested.
    pub(crate) fn enter_plain(&self, reg: &Registration, op: i32, events: u32, data: u64) -> Result<()> {
        let programs = reg.flags.load(Ordering::Relaxed) & PROGRAMS != 0;
        let set = if programs { self.fd() } else { self.set_fd() };
        raw::epoll_ctl(set, op, reg.fd.get(), events, data)
    }

    /// Wakes threads that sleep in this instance so that they look at its queue.
    pub(crate) fn kick(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.ring();
        }
    }

    /// Wakes threads that sleep in this instance or in an outer one.
    pub(crate) fn ring(&self) {
        let k = self.kick.load(Ordering::Acquire);
        if k != 0 {
            netacc_transport::wakers::ring(k - 1);
        }
    }

    /// Makes the waker for [`Epoll::kick`]; under `STRUCTURE`.
    pub(crate) fn ensure_kick(&self) -> Result<()> {
        if self.kick.load(Ordering::Relaxed) != 0 {
            return Ok(());
        }
        let fd = netacc_transport::wakers::create()?;
        let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
        if let Err(e) = self.enter(libc::EPOLL_CTL_ADD, fd, events, cookie(Kind::Kick, self)) {
            reserved_fds::close(fd);
            return Err(e);
        }
        self.kick.store(fd + 1, Ordering::Release);
        self.enter_wake_pipe();
        Ok(())
    }

    /// Enters the pipe by which an operator wakes the process. One thread per instance hears of it, which is enough.
    pub(crate) fn enter_wake_pipe(&self) {
        let wake_pipe = requests::wake_pipe();
        if wake_pipe >= 0 {
            let _ = self.enter(
                libc::EPOLL_CTL_ADD,
                wake_pipe,
                (libc::EPOLLIN | libc::EPOLLET) as u32,
                cookie(Kind::WakePipe, self),
            );
        }
    }
}
