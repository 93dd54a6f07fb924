//! A kernel instance that several processes use after a fork.
//!
//! The kernel's set of an instance is inherited by fork(2) like a file, and each process that waits in it takes events
//! from all others: an edge of a waker that one process takes is lost for another one, and a change that one makes
//! applies to all. So a shared set may contain only the program's own entries. A child leaves our entries in its
//! parent's set alone. If it uses the instance (most children execute another program instead) it makes a separate set
//! for our entries, in which the program's set is nested, and announces that in a page that the sharers have in common.
//! The parent sees it before its next wait, and does the same.
//!
//! Until then, or if a process has no descriptor left for a separate set, a wait returns cookies of other processes.
//! They name nothing here (see `epoll::cookies`) and are not reported. They may be level-triggered, so that only the
//! other process can end them: a thread that finds no other event sleeps a millisecond before it looks again.

use crate::epoll::call::Call;
use crate::epoll::cookies::{self, Kind, NOBODY, Named, Value, cookie, open};
use crate::epoll::kernel_set::Usage;
use crate::epoll::listeners::watch_listener;
use crate::epoll::paths::listen_in;
use crate::epoll::ready::enqueue;
use crate::epoll::registration::show_to_kernel;
use crate::epoll::{nested, subscription};
use crate::fd::table::{self, Entry};
use crate::fork::descendants;
use crate::listen::unsettled;
use crate::object::instance::{
    DISABLED, Epoll, OLD_SUBFLOW_WATCHED, ON_KERNEL, PEER_LIVENESS_WATCHED, PROGRAMS, Registration, STRUCTURE,
};
use crate::object::socket::{Path, Socket};
use crate::object::source::Source;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLOUT, EPOLLRDHUP};
use netacc_sys::errno::Result;
use netacc_sys::signals::Blocked;
use netacc_sys::{AtomicRef, mem, raw, reserved_fds, sleeping, time};
use netacc_transport::shm::ShmEndpoint;
use rustix::fd::{FromRawFd, OwnedFd};

/// The flags by which the sharers of one instance coordinate.
#[derive(Debug)]
#[repr(C)]
struct SharerFlags {
    /// Set once a process other than the instance's maker uses it.
    used: AtomicU32,
    /// Number of threads that sleep in the instance while our own entries are in the program's set.
    sleepers: AtomicU32,
    /// Set once the instance's maker has moved its entries to a separate set.
    owner_switched: AtomicU32,
    unused: AtomicU32,
}

// SAFETY: it consists of atomics, for which zero is valid.
#[allow(unsafe_code)]
unsafe impl mem::Zeroed for SharerFlags {}

/// The flags fill a page.
const FLAGS: usize = 4096 / size_of::<SharerFlags>();

/// The flags, in memory that this process shares with all processes forked from it later. Two instances may have the
/// same index and so share flags: then one of them gets a separate set without need.
static SHARED_FLAGS: AtomicRef<[SharerFlags; FLAGS]> = AtomicRef::none();

/// Number of waits, of a millisecond each, of a child for a thread that has to move its entries.
const MOVES: usize = 100;

fn flags(e: &Epoll) -> Option<&'static SharerFlags> {
    SHARED_FLAGS.load()?.get(e.loop_index.get() as usize % FLAGS)
}

/// Called before a fork: marks the instances as possibly shared. Returns whether there are any.
pub fn before_fork() -> bool {
    let mut any = false;
    table::each(0, usize::MAX, |_, entry| any |= matches!(entry, Entry::Epoll(_)));
    if !any {
        return false;
    }
    let _ = SHARED_FLAGS.or_make(|| mem::shared().ok());
    // A signal handler that has interrupted the lock's holder must not wait for it.
    let _s = (!netacc_sys::lock::interrupted()).then(|| STRUCTURE.lock());
    table::each(0, usize::MAX, |_, entry| {
        if let Entry::Epoll(r) = entry
            && r.obj.usage() == Usage::Alone
        {
            r.obj.set_usage(Usage::Forked);
        }
    });
    true
}

/// The page of the flags, as a number, for the copy of the library that takes this one's place; 0: there is none.
pub(crate) fn page_of_flags() -> usize {
    SHARED_FLAGS.load().map_or(0, |flags| core::ptr::from_ref(flags).expose_provenance())
}

/// Takes over the page of the flags from another copy of the library, which has left it mapped.
pub(crate) fn take_page_of_flags(page: usize) {
    #[allow(unsafe_code)]
    // SAFETY: 0, or the address of flags that the other copy has mapped for ever, which consist of atomics.
    SHARED_FLAGS.store(unsafe { core::ptr::with_exposed_provenance::<[SharerFlags; FLAGS]>(page).as_ref() });
}

/// An instance that other processes may use was taken over from another copy of the library: as a parent of theirs, which
/// puts its own entries in a separate set at once, or as a child, which does so when it uses the instance.
pub(crate) fn taken_over(e: &'static Epoll, usage: Usage) {
    e.set_usage(usage);
    if usage == Usage::Inherited {
        e.add_ours(1);
    } else if let Some(m) = flags(e) {
        m.used.store(1, Ordering::SeqCst);
    }
}

/// Called in the child of a fork: marks the instance's set as the parent's.
fn inherit(e: &'static Epoll) {
    if e.is_inherited() {
        return;
    }
    e.others.store(e.sleepers.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    let own = e.own.swap(0, Ordering::Relaxed);
    if own != 0 {
        reserved_fds::close(own - 1);
    }
    e.set_usage(Usage::Inherited);
    // The instance counts as never plain: entries of the parent in the set must not be reported.
    e.add_ours(1);
}

/// To be called before this process waits in an instance or changes our own entries in it.
#[inline]
pub(super) fn claim(e: &'static Epoll) {
    match e.usage() {
        Usage::Alone | Usage::Apart => {}
        Usage::Forked => forked(e),
        Usage::Inherited => adopt_inherited(e),
    }
}

#[cold]
fn forked(e: &'static Epoll) {
    // SeqCst: against `adopt_inherited`, as in `announce`.
    if flags(e).is_some_and(|m| m.used.load(Ordering::SeqCst) != 0) {
        let _ = go_apart(e);
    } else if descendants::nobody_inherits() {
        let _s = STRUCTURE.lock();
        // Checked again under the lock: a forking thread is counted before it takes this lock to mark the instances.
        if descendants::nobody_inherits() && e.usage() == Usage::Forked {
            e.set_usage(Usage::Alone);
        }
    }
}

#[cold]
fn adopt_inherited(e: &'static Epoll) {
    if let Some(m) = flags(e) {
        // SeqCst: a thread announces itself and then looks at this word; we set it and then look for threads.
        m.used.store(1, Ordering::SeqCst);
        let asleep = || m.sleepers.load(Ordering::SeqCst) != 0;
        // Threads of the parent that were asleep at the fork may not have announced themselves.
        let unknown = e.others.swap(0, Ordering::Relaxed) != 0 && m.owner_switched.load(Ordering::SeqCst) == 0;
        if unknown || asleep() {
            // This wakes them, since only a wait of this process could take the event first.
            e.ring();
            if unknown {
                time::pause();
            }
            for _ in 0..MOVES {
                if !asleep() {
                    break;
                }
                time::pause();
            }
        }
    }
    let _ = go_apart(e);
}

/// Guard that announces a thread which is about to sleep while our own entries are in the program's set.
#[derive(Debug)]
pub(super) struct Announced(Option<&'static SharerFlags>);

impl Drop for Announced {
    fn drop(&mut self) {
        if let Some(m) = self.0 {
            // The count must not fall below 0: a process that was killed in its sleep stays counted, and another one
            // whose instance shares the flags may have reset it.
            let less = |n: u32| n.checked_sub(1);
            let _ = m.sleepers.fetch_update(Ordering::SeqCst, Ordering::Relaxed, less);
        }
    }
}

/// To be called before a sleep in `e`.
#[inline]
pub(super) fn announce(e: &'static Epoll) -> Announced {
    match e.usage() {
        Usage::Alone | Usage::Apart => Announced(None),
        Usage::Forked | Usage::Inherited => announced(e),
    }
}

#[cold]
fn announced(e: &'static Epoll) -> Announced {
    let announced = Announced(flags(e).filter(|_| !e.is_inherited()).inspect(|m| {
        // SeqCst: as in `adopt_inherited`.
        m.sleepers.fetch_add(1, Ordering::SeqCst);
    }));
    claim(e);
    announced
}

/// Makes a separate set for our own entries, and moves them there; in a child it enters them anew.
fn go_apart(e: &'static Epoll) -> Result<()> {
    // Signals are blocked during this rare and long operation: see `Blocked`.
    let _b = Blocked::all();
    let _s = STRUCTURE.lock();
    make_set(e)
}

/// The part of [`go_apart`] under the lock.
fn make_set(e: &'static Epoll) -> Result<()> {
    let before = e.usage();
    if before == Usage::Apart {
        return Ok(());
    }
    let own = raw::epoll_create1(libc::EPOLL_CLOEXEC)?;
    #[allow(unsafe_code)]
    // SAFETY: the descriptor was just made, and no other code uses it.
    let own = reserved_fds::adopt(unsafe { OwnedFd::from_raw_fd(own) })?;
    if let Err(err) = raw::epoll_ctl(own, EPOLL_CTL_ADD, e.fd(), EPOLLIN as u32, cookie(Kind::Program, e)) {
        reserved_fds::close(own);
        return Err(err);
    }
    let from = (before == Usage::Forked).then(|| e.fd());
    e.own.store(own + 1, Ordering::Release);
    e.set_usage(Usage::Apart);
    move_kick(e, from);
    subscription::move_all(e, from);
    for reg in e.registered() {
        move_registration(e, reg, from);
    }
    nested::show_own(e);
    if let Some(m) = flags(e).filter(|_| from.is_some()) {
        m.owner_switched.store(1, Ordering::SeqCst);
    }
    // A thread that sleeps in the program's set wakes, and continues with both.
    e.ring();
    Ok(())
}

/// To be called before a listener that the kernel serves is watched by ours, in an instance that this process uses: leaves its
/// entry in the program's set if other processes may use that. One of them may have no other entry, and what it reports here is
/// true as well. The instance has a separate set then. Under `STRUCTURE`.
pub(super) fn leave_to_others(e: &'static Epoll, reg: &Registration) -> bool {
    let is_programs = reg.source() == Source::Kernel && reg.flags.load(Ordering::Relaxed) & PROGRAMS != 0;
    let is_shared = || match e.usage() {
        Usage::Alone | Usage::Inherited => false,
        Usage::Forked => !descendants::nobody_inherits() && make_set(e).is_ok(),
        Usage::Apart => true,
    };
    let stays = is_programs && is_shared();
    if stays {
        reg.flags.fetch_and(!PROGRAMS, Ordering::Relaxed);
        reg.set_source(e, Source::Nothing);
    }
    stays
}

/// Makes the entry that [`leave_to_others`] has left in the program's set the registration's own. False: there is none. Under
/// `STRUCTURE`.
pub(super) fn take_back(e: &'static Epoll, reg: &Registration) -> bool {
    let is_there = || raw::epoll_ctl(e.fd(), EPOLL_CTL_MOD, reg.fd.get(), reg.events.get(), reg.data.get()).is_ok();
    let taken = e.usage() == Usage::Apart && !cookies::looks_like_cookie(reg.data.get()) && is_there();
    if taken {
        reg.flags.fetch_or(PROGRAMS, Ordering::Relaxed);
        reg.set_source(e, Source::Kernel);
    }
    taken
}

/// Enters the kick eventfd in the separate set. It stays in the program's set as well, for threads that sleep there; a
/// child gets one of its own under the same number.
fn move_kick(e: &'static Epoll, from: Option<i32>) {
    let kick = e.kick.load(Ordering::Acquire) - 1;
    if kick < 0 {
        let _ = e.ensure_kick();
        return;
    }
    if from.is_none()
        && let Ok(waker) = netacc_transport::wakers::create()
    {
        let _ = reserved_fds::replace(kick, waker);
        reserved_fds::close(waker);
    }
    let _ = e.enter(EPOLL_CTL_ADD, kick, (EPOLLIN | EPOLLET) as u32, cookie(Kind::Kick, e));
    e.enter_wake_pipe();
}

/// Enters a registration into our own set, out of the program's set `from` if it was there.
fn move_registration(e: &'static Epoll, reg: &'static Registration, from: Option<i32>) {
    let fd = reg.fd.get();
    let del = |fd: i32| {
        if let Some(from) = from.filter(|_| fd >= 0) {
            let _ = raw::epoll_ctl(from, EPOLL_CTL_DEL, fd, 0, 0);
        }
    };
    let Some(s) = reg.sock.get() else {
        if !reg.child.is_none() {
            del(fd);
            nested::enter(e, reg);
        }
        return;
    };
    match s.path() {
        Path::New | Path::Tcp => {
            if reg.source().is_in_kernels_set() {
                // The entry stays in the program's set, as for any foreign descriptor.
                reg.flags.fetch_or(PROGRAMS, Ordering::Relaxed);
            } else if reg.queue() & DISABLED == 0 {
                let _ = show_to_kernel(e, reg, s, EPOLL_CTL_ADD);
            }
        }
        Path::Listener => {
            if from.is_some() && reg.source() == Source::Kernel {
                // It becomes a listener of ours just now: see `leave_to_others`. In an inherited instance it became one before
                // this process waited there.
                reg.flags.fetch_or(PROGRAMS, Ordering::Relaxed);
                return;
            }
            if let Some(l) = s.listener() {
                [fd].into_iter().chain(l.doors()).chain(l.hellos()).for_each(del);
            }
            if from.is_none() {
                reg.alias.set(None);
            }
            let _ = watch_listener(e, reg, fd, s);
        }
        Path::Shm => {
            let Some(ep) = s.endpoint() else { return };
            match from {
                Some(from) => move_sockets(e, reg, ep, from),
                None => rewatch(e, reg, s, ep),
            }
            let _g = e.lock.lock();
            enqueue(e, reg);
        }
    }
}

/// Moves the entries of the kernel sockets that belong to an accelerated connection.
fn move_sockets(e: &'static Epoll, reg: &'static Registration, ep: &ShmEndpoint, from: i32) {
    let ends = (EPOLLIN | EPOLLRDHUP | EPOLLET) as u32;
    let flags = reg.flags.load(Ordering::Relaxed);
    for (entered, fd, events) in [
        (reg.source() == Source::Liveness, ep.liveness.fd(), ends),
        (reg.source() == Source::Liveness, ep.heir_waker.fd(), ends),
        (flags & PEER_LIVENESS_WATCHED != 0, ep.liveness.peer_fd(), ends | EPOLLOUT as u32),
        (flags & OLD_SUBFLOW_WATCHED != 0, ep.old_subflow.fd(), ends | EPOLLOUT as u32),
        (flags & ON_KERNEL != 0, ep.passed.kernel_fd(), ends | EPOLLOUT as u32),
    ] {
        if entered && fd >= 0 {
            let _ = raw::epoll_ctl(from, EPOLL_CTL_DEL, fd, 0, 0);
            let _ = e.enter(EPOLL_CTL_ADD, fd, events, cookie(Kind::Liveness, reg));
        }
    }
}

/// In a child: enters the liveness socket of a connection that was inherited by the fork, which is woken by that socket
/// alone.
fn rewatch(e: &'static Epoll, reg: &'static Registration, s: &'static Socket, ep: &ShmEndpoint) {
    if ep.side.link().is_inherited() {
        reg.alias.set(None);
    }
    reg.flags.fetch_and(!(PEER_LIVENESS_WATCHED | OLD_SUBFLOW_WATCHED | ON_KERNEL), Ordering::Relaxed);
    listen_in(e, reg, s);
}

/// epoll_wait(2) in one set of the kernel's.
#[inline]
fn poll_set(set: i32, array: *mut libc::epoll_event, room: i32, timeout: i64, sigmask: *const c_void) -> Result<usize> {
    match timeout {
        0 => raw::epoll_wait(set, array, room, timeout, sigmask),
        _ => sleeping::epoll_wait(set, array, room, timeout, sigmask),
    }
}

/// epoll_wait(2) in our set and in the program's.
#[inline]
pub(super) fn poll_sets(
    e: &Epoll,
    array: *mut libc::epoll_event,
    room: i32,
    timeout: i64,
    sigmask: *const c_void,
) -> Result<usize> {
    match e.own.load(Ordering::Acquire) {
        0 => poll_set(e.fd(), array, room, timeout, sigmask),
        own => poll_apart(e, own - 1, (array, room), timeout, sigmask),
    }
}

#[cold]
#[allow(unsafe_code)]
fn poll_apart(
    e: &Epoll,
    own: i32,
    (array, room): (*mut libc::epoll_event, i32),
    timeout: i64,
    sigmask: *const c_void,
) -> Result<usize> {
    let n = poll_set(own, array, room, timeout, sigmask)?;
    // SAFETY: the kernel has written n events, and i < n at each call. They are packed.
    let event = |i: usize| unsafe { array.add(i).read_unaligned() };
    // SAFETY: i < n <= room at each call.
    let put = |i: usize, ev: libc::epoll_event| unsafe { array.add(i).write_unaligned(ev) };
    let Some(programs) = (0..n).find(|i| matches!(open(event(*i).u64), Value::Ours(Named::Program))) else {
        return Ok(n);
    };
    (programs + 1..n).for_each(|i| put(i - 1, event(i)));
    let n = n - 1;
    // SAFETY: n < room.
    let rest = unsafe { array.add(n) };
    let more = raw::epoll_wait(e.fd(), rest, room - n as i32, 0, core::ptr::null()).unwrap_or(0);
    for i in n..n + more {
        let mut ev = event(i);
        // Our own entries in the program's set belong to another process, even if they were inherited and have a name
        // here.
        if !matches!(open(ev.u64), Value::Program | Value::Ours(Named::Foreign(_) | Named::Candidate(_))) {
            ev.u64 = NOBODY;
            put(i, ev);
        }
    }
    Ok(n + more)
}

/// Makes one event of those with the same value among the `n` of a call, and returns how many are left. A socket that the
/// kernel serves for several processes may be in the program's set, where another process has entered it, and in the separate
/// set of this one, or have an event in the ready queue as well; the kernel reports an entry once in each call, and a program
/// that reads without O_NONBLOCK relies on it.
#[inline]
pub(super) fn merge(e: &Epoll, call: &Call, n: usize) -> usize {
    if n < 2 || e.usage() != Usage::Apart { n } else { merged(call, n) }
}

#[cold]
#[allow(unsafe_code)]
fn merged(call: &Call, n: usize) -> usize {
    // SAFETY: the call has stored n events, and i < n at each call. They are packed.
    let event = |i: usize| unsafe { call.events.add(i).read_unaligned() };
    let mut left = 0;
    for libc::epoll_event { events, u64: data } in (0..n).map(event) {
        match (0..left).find(|i| event(*i).u64 == data) {
            Some(same) => call.put(same, event(same).events | events, data),
            None => {
                call.put(left, events, data);
                left += 1;
            }
        }
    }
    left
}

/// Called in the child of a fork: the kernel's sets are the parent's.
pub fn after_fork() {
    cookies::after_fork();
    let mut any = false;
    table::each(0, usize::MAX, |_, e| {
        if let Entry::Epoll(r) = e {
            inherit(r.obj);
            any = true;
        }
    });
    if any {
        // Another thread of the parent may have been in the middle of a look.
        unsettled::note();
    }
}
