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

pub use absorb::{arm, held_until, readable, sleeps_on};
pub use call::Call;
pub use ctl::{candidate, control, stirred};
pub use paths::{accelerate, accelerated, became_listener, no_listener, switched, to_kernel, watch_hello, withdraw};
pub use shared::before_fork;
pub use subscription::{Subscription, link_gone, link_taken};
pub use wait::{concerns, wait};

pub(crate) use cookies::{Kind, cookie, looks_like_cookie};

use crate::fdtable::{self, Entry, Ref};
use crate::outcome::Outcome;
use crate::socket::{Path, Socket};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::mem::Zeroed;
use netacc_sys::signals::Blocked;
use netacc_sys::slab::{Pooled, Slab};
use netacc_sys::{Lock, cpu, reserved_fds};

/// Guards every list of registrations and subscriptions.
pub(crate) static STRUCTURE: Lock = Lock::new();

netacc_sys::flags! { RegFlag:
    /// [`Registration::queue`]: in the ready queue.
    pub(crate) const QUEUED;
    /// EPOLLONESHOT has fired.
    pub(crate) const DISABLED;
    /// Removed while queued: released when it comes out of the queue.
    pub(crate) const GONE;
    /// To be reported at the next look whatever the marks say: it was just added or changed.
    pub(crate) const FRESH;
    /// [`Registration::flags`]: the application's own event is in the kernel's set.
    pub(crate) const KERNEL;
    /// Hints come by a subscription.
    pub(crate) const SUBSCRIBED;
    /// No subscription could be had: looked at in every round.
    pub(crate) const POLLED;
    /// The connection's peer liveness socket is in the kernel's set.
    pub(crate) const PEER_LIVENESS_WATCHED;
    /// The connection's liveness socket is in the kernel's set: hints come by it.
    pub(crate) const LIVENESS_WATCHED;
    /// The kernel socket with a promoted connection's first bytes is in the kernel's set.
    pub(crate) const OLD_SUBFLOW_WATCHED;
    /// The kernel socket that a connection moves to is in the kernel's set.
    pub(crate) const ON_KERNEL;
    /// The application's own event is in its own set, though ours is another one.
    pub(crate) const PROGRAMS;
    /// A listener that other instances hear as well: counted in [`Epoll::listened`].
    pub(crate) const LISTENED;
    /// What came to the connection's liveness socket is in the kernel's set.
    pub(crate) const ACCEPTED;
}

/// One descriptor registered with one epoll instance.
#[derive(Debug)]
#[repr(align(64))]
pub struct Registration {
    next_free: AtomicPtr<Registration>,
    name: cookies::Name,
    pub(crate) epoll: AtomicPtr<Epoll>,
    pub(crate) sock: AtomicPtr<Socket>,
    /// A nested epoll instance instead of a socket.
    pub(crate) child: AtomicPtr<Epoll>,
    pub(crate) fd: AtomicI32,
    pub(crate) events: AtomicU32,
    pub(crate) data: AtomicU64,
    pub(crate) flags: AtomicU32,
    /// Bits that concern the ready queue. Written under the instance's lock only, so without locked instructions.
    queue: AtomicU32,
    /// The next registration of the same socket.
    pub(crate) next_sock: AtomicPtr<Registration>,
    /// The next registration with the same instance.
    pub(crate) next_all: AtomicPtr<Registration>,
    /// The registration before this one, so that it leaves the list without a walk; null for the first.
    pub(crate) prev_all: AtomicPtr<Registration>,
    pub(crate) next_ready: AtomicPtr<Registration>,
    /// Another number of the same socket with the same instance, which hears by the same subscription. Under the instance's
    /// lock.
    pub(crate) alias: AtomicPtr<Registration>,
    /// What was known at the last report, for edges: [`netacc_transport::shm::Marks`], or the news of a nested
    /// instance.
    pub(crate) seen: [AtomicU64; 2],
}

impl Registration {
    /// Bits of `queue`. Under the instance's lock, as for [`Registration::set_queue_bits`] and [`Registration::unmark`].
    pub(crate) fn queue(&self) -> u32 {
        self.queue.load(Ordering::Relaxed)
    }

    /// Sets bits of `queue` and returns what it was.
    pub(crate) fn set_queue_bits(&self, bits: u32) -> u32 {
        let old = self.queue();
        self.queue.store(old | bits, Ordering::Relaxed);
        old
    }

    /// Clears bits of `queue` and returns what it was.
    pub(crate) fn unmark(&self, bits: u32) -> u32 {
        let old = self.queue();
        self.queue.store(old & !bits, Ordering::Relaxed);
        old
    }
}

/// An epoll instance.
#[derive(Debug)]
#[repr(align(64))]
pub struct Epoll {
    next_free: AtomicPtr<Epoll>,
    name: cookies::Name,
    generation: AtomicU32,
    refs: AtomicU32,
    pub(crate) lock: Lock,
    fd: AtomicI32,
    /// Number of registrations that need us; 0: every call passes through. Written under `STRUCTURE`.
    ours: AtomicU32,
    pub(crate) registrations: AtomicPtr<Registration>,
    pub(crate) ready_head: AtomicPtr<Registration>,
    pub(crate) ready_tail: AtomicPtr<Registration>,
    pub(crate) ready_len: AtomicU32,
    pub(crate) watches: AtomicPtr<Subscription>,
    pub(crate) active: AtomicPtr<Subscription>,
    /// Number of registrations with POLLED, and of nested instances.
    pub(crate) polled: AtomicU32,
    /// How many of them are woken by a liveness socket.
    pub(crate) based: AtomicU32,
    /// How many of them are listeners: a sleep is registered with each.
    pub(crate) listened: AtomicU32,
    pub(crate) nested: AtomicU32,
    /// Set once it was registered in another instance: what it hears is counted for that one.
    inner: AtomicU32,
    pub(crate) sleepers: AtomicU32,
    /// A [`shared::Usage`].
    usage: AtomicU32,
    /// The kernel's set of what is ours (descriptor + 1), if that is not the application's.
    own: AtomicI32,
    /// Set while threads of the parent may sleep in it that slept there at the fork.
    others: AtomicU32,
    /// Waker for changes by other threads (descriptor + 1).
    kick: AtomicI32,
    pub(crate) last_kernel: AtomicU64,
    /// When its turn began (ticks), and its place among the process's loops; see [`fairness`].
    slice_start: AtomicU64,
    loop_index: AtomicU32,
    /// Set when accelerated connections filled the application's array while the kernel's set was due to be looked at.
    pub(crate) kernel_first: AtomicU32,
    pub(crate) peer_cpu: AtomicU32,
    pub(crate) spin: crate::wait::Spin,
    /// Foreign events taken from the kernel while only looking whether there are any.
    pub(crate) stash: [AtomicU64; 3 * STASH],
    pub(crate) stash_len: AtomicU32,
    /// Set when one of the stashed events is of a connection that may be promoted.
    stash_queueable: AtomicU32,
    /// Set when foreign descriptors were found ready when the kernel's set was last only looked at.
    pub(crate) foreign: AtomicU32,
    /// Set when a foreign descriptor is registered by edges or one-shot: what is taken from the kernel while only
    /// looking must be kept, since the kernel will not say it again.
    pub(crate) edges: AtomicU32,
    /// Set when a look found connections that must go elsewhere.
    pub(crate) switch_due: AtomicU32,
    /// When ([`netacc_sys::time::now`]) a look may find bytes that a peer holds back until then; 0: none are known of.
    pub(crate) held_until: AtomicU64,
    /// Counts what would make the kernel wake an instance around this one: an edge there.
    pub(crate) news: AtomicU32,
}

/// Number of events that can be stashed.
pub(crate) const STASH: usize = 8;

#[allow(unsafe_code)]
mod zeroed {
    // SAFETY: only atomics and locks; zero is a fresh object.
    unsafe impl super::Zeroed for super::Epoll {}
    // SAFETY: only atomics; zero is a fresh object.
    unsafe impl super::Zeroed for super::Registration {}
}

impl Pooled for Epoll {
    fn next_free(&self) -> &AtomicPtr<Epoll> {
        &self.next_free
    }
}

impl Pooled for Registration {
    fn next_free(&self) -> &AtomicPtr<Registration> {
        &self.next_free
    }
}

static EPOLLS: Slab<Epoll> = Slab::new();
static REGISTRATIONS: Slab<Registration> = Slab::new();

/// The object behind a pointer kept in one of our atomics.
///
/// Only for types kept in a [`Slab`]: their memory is valid for ever.
#[allow(unsafe_code)]
pub(crate) fn at<T: Pooled>(p: *mut T) -> Option<&'static T> {
    // SAFETY: our atomics hold null or the address of a slab object.
    unsafe { p.as_ref() }
}

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
    /// The kernel's descriptor of the instance.
    pub fn fd(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// Whether nothing of ours is or ever was in it, so that every call passes through. A kernel's set that once held
    /// descriptors of ours may do so still.
    pub fn is_plain(&self) -> bool {
        self.kick.load(Ordering::Acquire) == 0
            && self.ours.load(Ordering::Acquire) == 0
            && self.stash_len.load(Ordering::Relaxed) == 0
    }

    /// Its current generation.
    pub fn generation(&self) -> u16 {
        self.generation.load(Ordering::Relaxed) as u16
    }

    /// Counts one more descriptor that refers to it.
    pub fn add_ref(&self) {
        self.refs.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts `by` more registrations that need us. Under `STRUCTURE`, so a locked instruction is not needed.
    pub(crate) fn add_ours(&self, by: i32) {
        // Release: a thread that sees that the instance needs us sees the registration.
        self.ours.store(self.ours.load(Ordering::Relaxed).wrapping_add_signed(by), Ordering::Release);
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
        Ok(())
    }
}

impl Ref<Epoll> {
    /// Whether the object is still the one that was looked up.
    pub fn valid(&self) -> bool {
        self.obj.generation() == self.generation
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
