//! epoll(7) over accelerated connections and everything else at once.
//!
//! An application's epoll instance stays a kernel one: foreign descriptors live in it as always. Beside
//! them it holds descriptors of ours (wakers, control sockets, rendezvous), whose events carry a cookie
//! instead of the application's data. Accelerated connections are not in the kernel's set at all; their
//! registrations ([`Registration`]) are ours, hints come by the ready sets of the links ([`Subscription`]), and each hint
//! is verified before it is reported.
//!
//! Locks: `STRUCTURE` guards the lists of registrations and subscriptions; an instance's own lock guards its
//! ready queue and active subscriptions. The order is `STRUCTURE`, then instance (a parent before a nested one),
//! then listener.

mod absorb;
mod arrivals;
mod call;
mod cookies;
mod ctl;
mod fairness;
mod listeners;
mod nested;
mod paths;
pub(crate) mod ready;
mod shared;
mod stash;
pub(crate) mod subscription;
mod threads;
mod wait;

use crate::object::instance::Epoll;
use crate::object::instance::KERNEL;
use crate::object::instance::Registration;
use crate::object::instance::STRUCTURE;
use crate::object::reference::at;
pub use absorb::{arm, held_until, readable, sleeps_on};
pub use call::Call;
pub use ctl::{candidate, control, stirred};
pub use paths::{accelerate, accelerated, became_listener, no_listener, switched, to_kernel, watch_hello, withdraw};
pub use shared::before_fork;
pub use subscription::{link_gone, link_taken};
pub use wait::{concerns, wait};

pub(crate) use cookies::{Kind, cookie};

use crate::fdtable;
use crate::fdtable::Entry;
use crate::object::reference::Ref;
use crate::object::socket::{Path, Socket};
use crate::outcome::Outcome;
use core::sync::atomic::Ordering;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::signals::Blocked;
use netacc_sys::slab::Slab;
use netacc_sys::{cpu, reserved_fds};

static EPOLLS: Slab<Epoll> = Slab::new();
static REGISTRATIONS: Slab<Registration> = Slab::new();

/// epoll_create(2), epoll_create1(2): the kernel's instance, entered so that we hear of what is added.
pub fn create(make: impl FnOnce() -> Result<i32>) -> Outcome {
    crate::socket::fd_cache::close_all();
    let fd = match make() {
        Ok(fd) => fd,
        Err(e) => return Outcome::Failed(e),
    };
    if let Some(e) = EPOLLS.alloc().filter(|e| cookies::enter(*e).inspect_err(|_| EPOLLS.release(e)).is_ok()) {
        e.fd.store(fd, Ordering::Relaxed);
        for n in [
            &e.ours,
            &e.polled,
            &e.based,
            &e.nested,
            &e.inner,
            &e.usage,
            &e.others,
            &e.listened,
            &e.sleepers,
            &e.stash_len,
            &e.stash_queueable,
            &e.ready_len,
            &e.foreign,
            &e.edges,
            &e.switch_due,
            &e.news,
        ] {
            n.store(0, Ordering::Relaxed);
        }
        e.own.store(0, Ordering::Relaxed);
        e.last_kernel.store(0, Ordering::Relaxed);
        e.held_until.store(0, Ordering::Relaxed);
        e.slice_start.store(0, Ordering::Relaxed);
        e.loop_index.store(fairness::assign_index(), Ordering::Relaxed);
        e.peer_cpu.store(cpu::NO_CPU, Ordering::Relaxed);
        e.spin.reset();
        e.refs.store(1, Ordering::Release);
        let r = Ref { obj: e, generation: e.generation() };
        match fdtable::put(fd, Entry::Epoll(r)) {
            Ok(stale) => crate::socket::closing::replaced(fd, stale),
            // Untracked, the instance still works for everything but accelerated connections, and those cannot be made
            // with a number beyond the table either.
            Err(_) => EPOLLS.release(e),
        }
    }
    Outcome::Done(fd as isize)
}

impl Epoll {
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
        Ok(())
    }
}

/// Drops a reference; the last one aborts the instance.
pub fn put(e: &'static Epoll) {
    if e.refs.fetch_sub(1, Ordering::AcqRel) != 1 {
        // Perhaps it was the number that we use: another number stands for the same instance from here on.
        fdtable::each(0, usize::MAX, |fd, entry| {
            if matches!(entry, Entry::Epoll(r) if core::ptr::eq(r.obj, e)) {
                e.fd.store(fd, Ordering::Relaxed);
            }
        });
        return;
    }
    // A handler may close a listener or a connection, which needs this lock.
    let _b = Blocked::all();
    let _s = STRUCTURE.lock();
    e.generation.fetch_add(1, Ordering::Release);
    while let Some(reg) = at(e.registrations.load(Ordering::Relaxed)) {
        ctl::unlink_closed(e, reg);
    }
    // Instances around it forget it, as in the kernel.
    if nested::ever() {
        fdtable::each(0, usize::MAX, |_, entry| {
            if let Entry::Epoll(outer) = entry
                && outer.obj.nested.load(Ordering::Relaxed) > 0
            {
                nested::forget_child(outer.obj, e);
            }
        });
    }
    ready::discard(e);
    subscription::drop_all(e);
    let k = e.kick.swap(0, Ordering::AcqRel);
    if k != 0 {
        reserved_fds::close(k - 1);
    }
    let own = e.own.swap(0, Ordering::AcqRel);
    if own != 0 {
        reserved_fds::close(own - 1);
    }
    EPOLLS.release(e);
}

/// A socket's last descriptor is closed: its registrations go, as in the kernel.
pub fn forget_socket(s: &'static Socket) {
    if s.registrations.load(Ordering::Acquire).is_null() {
        return;
    }
    let _s = STRUCTURE.lock();
    let kernels = matches!(s.path(), Path::New | Path::Tcp);
    while let Some(reg) = at(s.registrations.load(Ordering::Relaxed)) {
        if kernels {
            // The kernel forgets a closed file by itself; by now the number may belong to another file.
            reg.flags.fetch_and(!KERNEL, Ordering::Relaxed);
        }
        match at(reg.epoll.load(Ordering::Relaxed)) {
            Some(e) => ctl::unlink_closed(e, reg),
            None => break,
        }
    }
}

pub(crate) fn new_registration() -> Result<&'static Registration> {
    let r = REGISTRATIONS.alloc().ok_or(Errno::NOMEM)?;
    cookies::enter(r).inspect_err(|_| REGISTRATIONS.release(r))?;
    r.flags.store(0, Ordering::Relaxed);
    r.queue.store(0, Ordering::Relaxed);
    r.sock.store(core::ptr::null_mut(), Ordering::Relaxed);
    r.child.store(core::ptr::null_mut(), Ordering::Relaxed);
    r.alias.store(core::ptr::null_mut(), Ordering::Relaxed);
    Ok(r)
}

pub(crate) fn release_registration(r: &'static Registration) {
    r.epoll.store(core::ptr::null_mut(), Ordering::Relaxed);
    REGISTRATIONS.release(r);
}

/// Called in the child of a fork: frees the locks.
pub fn reset_locks() {
    STRUCTURE.reset();
    cookies::after_fork();
    EPOLLS.reset_lock();
    REGISTRATIONS.reset_lock();
    subscription::reset_locks();
    fdtable::each(0, usize::MAX, |_, e| {
        if let Entry::Epoll(r) = e {
            shared::after_fork(r.obj);
        }
    });
}
