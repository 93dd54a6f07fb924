//! The kernel's sets of an instance, in which what is ours has cookies for values.

use crate::epoll::cookies::{Kind, cookie};
use crate::object::instance::{Epoll, PROGRAMS, Registration};
use crate::operator::hearing;
use core::sync::atomic::Ordering;
use netacc_sys::errno::Result;
use netacc_sys::{raw, reserved_fds};

/// The processes that use an instance's kernel set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Usage {
    /// This process alone.
    Alone = 0,
    /// Processes that were forked from this one exist, or may, and have not said that they use it.
    Forked = 1,
    /// It came by a fork and was not used here: what is ours in it belongs to the parent.
    Inherited = 2,
    /// Other processes use it as well; what is ours is in a set of our own.
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

    /// Whether what is ours in the kernel's set belongs to another process, and nothing of this one is there.
    pub(crate) fn is_inherited(&self) -> bool {
        self.usage() == Usage::Inherited
    }

    /// The kernel's set that has our entries: to sleep on it is to sleep on the program's as well.
    pub(crate) fn set_fd(&self) -> i32 {
        match self.own.load(Ordering::Acquire) {
            0 => self.fd(),
            own => own - 1,
        }
    }

    /// Changes an entry of ours. In a set that belongs to another process nothing is changed: the entries are made when
    /// this process first uses the instance.
    pub(crate) fn enter(&self, op: i32, fd: i32, events: u32, data: u64) -> Result<()> {
        if self.is_inherited() { Ok(()) } else { raw::epoll_ctl(self.set_fd(), op, fd, events, data) }
    }

    /// Changes the entry of a registration that is a plain one of the kernel's, as the program asked.
    pub(crate) fn enter_plain(&self, reg: &Registration, op: i32, events: u32, data: u64) -> Result<()> {
        let programs = reg.flags.load(Ordering::Relaxed) & PROGRAMS != 0;
        let set = if programs { self.fd() } else { self.set_fd() };
        raw::epoll_ctl(set, op, reg.fd.load(Ordering::Relaxed), events, data)
    }

    /// Wakes threads that sleep in this instance so that they look at its queue.
    pub(crate) fn kick(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.ring();
        }
    }

    /// Wakes threads that sleep in this instance, and those that sleep in an instance around it.
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
        self.enter_bell();
        Ok(())
    }

    /// Enters the pipe by which an operator wakes the process. One thread per instance hears of it, which is enough.
    pub(crate) fn enter_bell(&self) {
        let bell = hearing::bell();
        if bell >= 0 {
            let _ =
                self.enter(libc::EPOLL_CTL_ADD, bell, (libc::EPOLLIN | libc::EPOLLET) as u32, cookie(Kind::Kick, self));
        }
    }
}
