//! The accelerated half of a listening socket: its rendezvous, its links, and the threads that wait at either.

use crate::epoll;
use crate::socket::crowd;
use crate::socket::withdrawal::hand_on;
use crate::socket::{DORMANT, NONBLOCK, Socket, UNHEARD};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use netacc_sys::mem::Zeroed;
use netacc_sys::signals::Blocked;
use netacc_sys::slab::{Pooled, Slab};
use netacc_sys::{Lock, raw, reserved_fds};
use netacc_transport::rdma::engine;
use netacc_transport::shm::claim::take_slot;
use netacc_transport::shm::segment::SERVER_CLOSED;
use netacc_transport::shm::slots::{CONTROL_SLOT, SLOTS};
use netacc_transport::shm::{Link, guard};
use rustix::fd::{FromRawFd, OwnedFd};

/// Number of places for clients that have connected and not said hello. A client that says nothing keeps its place
/// until others need it.
pub(super) const HELLOS: usize = 8;

/// The kernel's own bound of a backlog (net.core.somaxconn) unless the host says otherwise.
const MOST: u32 = 4096;
/// Of [`Listener::many`]: the processes came from one another by fork(2), and know of each other's companions.
pub const SHARED_BY_FORK: u32 = 1;
/// Of [`Listener::many`]: there may be others.
const SHARED_BEYOND: u32 = 2;
/// Most links that are looked at when the process ends.
const HELD: usize = 64;

/// The accelerated half of a listening socket.
#[derive(Debug)]
pub struct Listener {
    next_free: AtomicPtr<Listener>,
    pub(super) lock: Lock,
    /// The rendezvous socket + 1.
    pub(super) rendezvous: AtomicI32,
    /// Most connects that may wait in each link's queue.
    pub(super) backlog: AtomicU32,
    pub(super) links: AtomicPtr<Link>,
    pub(super) hellos: [AtomicI32; HELLOS],
    pub(super) next_hello: AtomicU32,
    /// Set when the process had no descriptor left when it last looked for clients.
    pub(super) starved: AtomicU32,
    /// Our own number (+ 1) for the kernel's listener, set when the application closes its last one while a call sleeps
    /// on it, which goes on as in the kernel.
    held: AtomicI32,
    /// Set in the child of a fork: the rendezvous socket is the parent's as well.
    inherited: AtomicU32,
    /// Number of threads that sleep on the listener outside of epoll.
    pub(super) waiters: AtomicU32,
    /// Set once the program has called accept(2) here, or had before the fork.
    pub served: AtomicU32,
    /// Set once the program has waited for it by poll(2), select(2) or epoll(7): it calls accept(2) when it was told to.
    pub polled: AtomicU32,
    /// Set once another sharer left the listener to the kernel.
    pub(super) shut: AtomicU32,
    /// Set when the only link there was at the last look had more connects than the one taken: a hint.
    waits: AtomicU32,
    /// Not 0 when more than one process serves this listener: [`SHARED_BY_FORK`], or more.
    pub many: AtomicU32,
    /// Set when the kernel said, or may have said, that a TCP connection waits.
    pub tcp_waits: AtomicU32,
    /// When the kernel was last asked and had no connection, in [`netacc_sys::cpu::ticks`].
    pub tcp_checked: AtomicU64,
    /// The socket object it belongs to.
    pub owner: AtomicPtr<Socket>,
}

#[allow(unsafe_code)]
mod zeroed {
    // SAFETY: only atomics and locks; zero is a fresh object.
    unsafe impl super::Zeroed for super::Listener {}
}

impl Pooled for Listener {
    fn next_free(&self) -> &AtomicPtr<Listener> {
        &self.next_free
    }
}

pub(super) static LISTENERS: Slab<Listener> = Slab::new();

impl Listener {
    pub(super) fn start(&'static self, sock: i32, backlog: i32, owner: &'static Socket) {
        self.rendezvous.store(sock + 1, Ordering::Relaxed);
        self.links.store(core::ptr::null_mut(), Ordering::Relaxed);
        self.limit(backlog);
        for n in [&self.many, &self.served, &self.polled, &self.shut, &self.inherited] {
            n.store(0, Ordering::Relaxed);
        }
        self.starved.store(0, Ordering::Relaxed);
        self.waiters.store(0, Ordering::Relaxed);
        self.waits.store(0, Ordering::Relaxed);
        self.tcp_waits.store(0, Ordering::Relaxed);
        self.tcp_checked.store(0, Ordering::Relaxed);
        self.owner.store(core::ptr::from_ref(owner).cast_mut(), Ordering::Release);
    }

    /// listen(2) has set the backlog. The kernel takes it for unsigned, bounds it, and lets one more connect wait.
    pub(super) fn limit(&'static self, backlog: i32) {
        let limit = (backlog as u32).min(MOST) + 1;
        let _g = self.lock.lock();
        self.backlog.store(limit, Ordering::Relaxed);
        for seg in self.links().filter_map(Link::segment) {
            seg.header().backlog.store(limit, Ordering::Relaxed);
        }
    }

    /// More than one process serves it from here on. `by_fork`: all of them know of the companions that one of them awaits.
    pub fn note_sharers(&self, by_fork: bool) {
        self.many.fetch_max(if by_fork { SHARED_BY_FORK } else { SHARED_BEYOND }, Ordering::Relaxed);
    }

    /// The program waits for it by poll(2) or the like.
    pub fn note_polled(&self, s: &Socket) {
        if self.polled.load(Ordering::Relaxed) != 0 {
            return;
        }
        self.polled.store(1, Ordering::Relaxed);
        if self.many.load(Ordering::Relaxed) != 0
            && !s.has(NONBLOCK)
            && let Some(local) = s.local.get()
        {
            engine::note_blocking(local.port());
        }
    }

    /// The rendezvous socket, or -1.
    pub fn rendezvous_fd(&self) -> i32 {
        self.rendezvous.load(Ordering::Relaxed) - 1
    }

    /// Keeps the kernel's listener under a number of ours, since the application closes `fd`, its last number for this
    /// listener of `s`, in whose calls threads sleep.
    pub fn keep(&self, fd: i32, s: &Socket) {
        let Ok(ours) = reserved_fds::copy(fd) else { return };
        let mut old = self.held.swap(ours + 1, Ordering::AcqRel);
        if !s.listener().is_some_and(|l| core::ptr::eq(l, self)) {
            // Another thread has left the listener to the kernel meanwhile, and the object may serve another one.
            let taken_back = self.held.compare_exchange(ours + 1, 0, Ordering::AcqRel, Ordering::Relaxed);
            old = taken_back.unwrap_or(0).max(old);
        }
        if old != 0 {
            reserved_fds::close(old - 1);
        }
    }

    /// The number by which the kernel's listener can be reached, for a call that was made with `fd`.
    pub fn kernel_fd(&self, fd: i32) -> i32 {
        match self.held.load(Ordering::Acquire) {
            0 => fd,
            kept => kept - 1,
        }
    }

    /// Whether a client waits that cannot be taken up for want of descriptors: accept(2) reports that, and the listener
    /// stays readable, as the kernel's does.
    pub fn starves(&self) -> bool {
        self.starved.load(Ordering::Relaxed) != 0 && (readable(self.rendezvous_fd()) || self.hellos().any(readable))
    }

    /// Whether another sharer has left the listener to the kernel; then this one has to do so, too.
    pub fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Relaxed) != 0
    }

    /// Sockets of clients that have not said hello yet.
    pub fn hellos(&self) -> impl Iterator<Item = i32> + '_ {
        self.hellos.iter().map(|g| g.load(Ordering::Relaxed)).filter(|g| *g != 0).map(|g| g - 1)
    }

    /// The links of this listener, newest first. Under `lock` (or epoll's `STRUCTURE`), which keeps them
    /// mapped.
    pub(super) fn links(&self) -> Links {
        Links { at: self.links.load(Ordering::Acquire) }
    }

    /// Removes links whose peer is gone.
    pub fn sweep(&'static self) {
        while let Some(link) = self.unlink_one() {
            epoll::link_gone(link);
            link.put();
        }
    }

    fn unlink_one(&'static self) -> Option<&'static Link> {
        let _g = self.lock.lock();
        let mut cell: &'static AtomicPtr<Link> = &self.links;
        while let Some(link) = load_link(cell) {
            if link.is_lost() && link.segment().is_none_or(|s| s.queued() == 0) {
                cell.store(link.next.load(Ordering::Relaxed), Ordering::Relaxed);
                crowd::link_removed(link);
                return Some(link);
            }
            cell = &link.next;
        }
        None
    }

    /// The process closed its last descriptor of the listener. Connections go on; connects that wait are reset, as the
    /// kernel would, unless other processes have the listener: then those serve them.
    pub fn close(&'static self) {
        match self.many.load(Ordering::Relaxed) {
            0 => self.reset_queued(),
            _ => self.hand_on(),
        }
    }

    /// Ends the listener, since no process listens any more: connects that wait are reset, connections go on.
    pub(super) fn reset_queued(&'static self) {
        self.end(|links| {
            for link in links {
                let Some(seg) = link.segment() else { continue };
                // SeqCst: a client pushes and then looks at this word; we mark and then drain.
                seg.header().server.store(SERVER_CLOSED, Ordering::SeqCst);
                // A client that goes on and on is not waited for.
                for slot in core::iter::from_fn(|| link.pop()).take(SLOTS) {
                    if let Some(ep) = take_slot(link, slot) {
                        netacc_transport::Endpoint::close(ep, true);
                    }
                }
            }
        });
    }

    /// Ends the listener for a process that serves it and knows nothing of us: connects that wait go there by TCP.
    pub(super) fn withdraw(&'static self) {
        let sock = self.rendezvous_fd();
        if sock >= 0 {
            // This ends it for all processes that have it. Clients that connected to it and were not taken up see an
            // end.
            let _ = raw::shutdown(sock, libc::SHUT_RDWR);
            dismiss_waiting(sock);
        }
        self.hand_on();
    }

    /// Connects that wait here go to the processes that have the listener too. The clients that wait at the rendezvous are
    /// left to these where the socket is theirs as well and this process has served nobody, such as the child of a server
    /// that forks for each connection.
    fn hand_on(&'static self) {
        if self.inherited.load(Ordering::Relaxed) == 0 || self.serves_here() {
            self.take_all_links();
        }
        self.end(hand_on);
    }

    /// A client that waits at the rendezvous may have queued connects, and a rendezvous that other processes do not have would
    /// end with them.
    pub(super) fn take_all_links(&'static self) {
        for _ in 0..HELD {
            if !self.take_links() {
                return;
            }
        }
    }

    /// Whether this process has links of its own at the listener; those of a parent are its own to serve.
    pub(super) fn serves_here(&'static self) -> bool {
        let _g = self.lock.lock();
        self.links().any(|link| !link.is_inherited())
    }

    /// Calls `f` with the links that there are, without a lock: each is held meanwhile.
    pub(super) fn with_links_held(&'static self, f: impl FnOnce(&[Option<&'static Link>])) {
        let mut held = [None; HELD];
        {
            let _g = self.lock.lock();
            for (place, link) in held.iter_mut().zip(self.links().filter(|l| l.hold_if_used())) {
                *place = Some(link);
            }
        }
        f(&held);
        held.into_iter().flatten().for_each(Link::put);
    }

    fn end(&'static self, last: impl FnOnce(Links)) {
        // A handler may close another listener, which needs the same locks.
        let _b = Blocked::all();
        #[allow(unsafe_code)]
        // SAFETY: null or a socket object, which is never freed.
        if let Some(s) = unsafe { self.owner.load(Ordering::Acquire).as_ref() }
            && !s.has(DORMANT | UNHEARD)
            && let Some(local) = s.local.get()
        {
            super::listen::remote_names(s, local).for_each(engine::unlisten);
        }
        let mut next = {
            let _g = self.lock.lock();
            let sock = self.rendezvous.swap(0, Ordering::Relaxed) - 1;
            if sock >= 0 {
                // Clients that wait there end with the socket, unless another process has the socket too.
                if self.many.load(Ordering::Relaxed) == 0 {
                    let _ = raw::shutdown(sock, libc::SHUT_RDWR);
                    dismiss_waiting(sock);
                }
                reserved_fds::close(sock);
            }
            let kept = self.held.swap(0, Ordering::AcqRel);
            if kept != 0 {
                reserved_fds::close(kept - 1);
            }
            self.dismiss_hellos();
            let first = load_link(&self.links);
            self.links.store(core::ptr::null_mut(), Ordering::Relaxed);
            first
        };
        last(Links::from(next));
        while let Some(link) = next {
            next = load_link(&link.next);
            crowd::link_removed(link);
            epoll::link_gone(link);
            link.put();
        }
        LISTENERS.release(self);
    }

    fn dismiss_hellos(&self) {
        for cell in &self.hellos {
            let fd = cell.swap(0, Ordering::Relaxed);
            if fd != 0 {
                guard::dismiss(reserved_back(fd - 1));
            }
        }
    }

    /// Closes the sockets of clients that have not said hello, in the child of a fork, whose copies are not the last
    /// ones.
    fn close_hellos(&self) {
        for cell in &self.hellos {
            let fd = cell.swap(0, Ordering::Relaxed);
            if fd != 0 {
                let _ = raw::close(fd - 1);
            }
        }
    }

    /// Calls `f` for every link. Under epoll's `STRUCTURE` lock, which a thread that removes a link takes before it
    /// lets the link go; not under `lock`, since `f` takes locks that come before it.
    pub fn each_link(&self, f: impl FnMut(&'static Link)) {
        self.links().for_each(f);
    }

    /// Reads the control sockets of all links.
    pub fn service_links(&self) {
        let _g = self.lock.lock();
        self.links().for_each(|l| l.service_if_readable());
    }

    /// Whether a connect waits in shared memory, and whether a client announced a further link, which may hold earlier
    /// connects than those that we know.
    pub fn queued_or_more(&self) -> (bool, bool) {
        // What waited in the only link when we looked there came before what a further link brings.
        if self.waits.load(Ordering::Relaxed) != 0 {
            return (true, false);
        }
        let _g = self.lock.lock();
        self.links().fold((false, false), |(queued, more), l| (queued || l.has_queued(), more | l.take_more()))
    }

    /// Takes the next connect that waits in shared memory.
    pub fn pop(&self) -> Option<(&'static Link, u32)> {
        let _g = self.lock.lock();
        self.waits.store(0, Ordering::Relaxed);
        let mut links = self.links();
        let only = links.next()?;
        if links.next().is_none() {
            let slot = only.pop()?;
            self.waits.store(only.seen_queued().into(), Ordering::Relaxed);
            return Some((only, slot));
        }
        // First come, first served, as with the kernel's one queue.
        let first = self.links().filter_map(|l| Some((l.segment()?.front_time()?, l))).min_by_key(|(when, _)| *when)?.1;
        Some((first, first.pop()?))
    }

    /// Called in the child of a fork: the links are the parent's, the sockets are shared.
    pub fn after_fork(&'static self) {
        self.lock.reset();
        self.waits.store(0, Ordering::Relaxed);
        // Relaxed: the child has one thread.
        self.inherited.store(1, Ordering::Relaxed);
        let mut next = load_link(&self.links);
        self.links.store(core::ptr::null_mut(), Ordering::Relaxed);
        while let Some(link) = next {
            next = load_link(&link.next);
            crowd::link_removed(link);
            link.inherit();
        }
        self.close_hellos();
    }

    /// Whether a connect waits in shared memory.
    pub fn queued(&self) -> bool {
        let _g = self.lock.lock();
        self.links().any(Link::has_queued)
    }

    /// Number of connects that clients have queued so far: a change shows new ones.
    pub fn arrived(&self) -> u64 {
        let _g = self.lock.lock();
        self.links().filter_map(|l| l.segment()).fold(0, |n, s| n.wrapping_add(s.pushed()))
    }

    /// Arms every link's connect queue; true if one holds something.
    pub fn arm(&self, set: &mut netacc_transport::WaitSet) -> bool {
        // Before the lock: a thread that takes up a link under it afterwards sees us, and if it did so before, we see
        // the link.
        self.waiters.fetch_add(1, Ordering::SeqCst);
        set.add(self.rendezvous_fd(), libc::POLLIN);
        for fd in self.hellos() {
            set.add(fd, libc::POLLIN);
        }
        let mut ready = false;
        let _g = self.lock.lock();
        for l in self.links() {
            if let Some(q) = l.endpoint(CONTROL_SLOT) {
                ready |= q.arm_queue(set) && l.has_queued();
            }
        }
        ready
    }

    /// Undoes [`Listener::arm`].
    pub fn disarm(&self, set: &netacc_transport::WaitSet) {
        // Not below 0: the object may serve another listener by now.
        let less = |n: u32| n.checked_sub(1);
        let _ = self.waiters.fetch_update(Ordering::SeqCst, Ordering::Relaxed, less);
        let _g = self.lock.lock();
        for l in self.links() {
            if let Some(q) = l.endpoint(CONTROL_SLOT) {
                q.disarm_queue(set);
            }
        }
    }
}

pub(super) fn readable(fd: i32) -> bool {
    let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    raw::ppoll(&raw mut p, 1, &raw mut ts, core::ptr::null()) == Ok(1)
}

/// Ends the clients that wait at a rendezvous which is shut down.
fn dismiss_waiting(sock: i32) {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    while let Ok(fd) = raw::accept4(sock, core::ptr::null_mut(), core::ptr::null_mut(), flags) {
        guard::dismiss(reserved_back(fd));
    }
}

#[allow(unsafe_code)]
pub(super) fn reserved_back(fd: i32) -> OwnedFd {
    // SAFETY: the caller took the number out of its only cell.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

#[allow(unsafe_code)]
pub(super) fn load_link(p: &AtomicPtr<Link>) -> Option<&'static Link> {
    // SAFETY: links are type-stable.
    unsafe { p.load(Ordering::Acquire).as_ref() }
}

/// A walk over a listener's links.
#[derive(Clone, Debug)]
pub(super) struct Links {
    at: *mut Link,
}

impl Links {
    fn from(first: Option<&'static Link>) -> Links {
        Links { at: first.map_or(core::ptr::null_mut(), |link| core::ptr::from_ref(link).cast_mut()) }
    }
}

impl Iterator for Links {
    type Item = &'static Link;

    #[allow(unsafe_code)]
    fn next(&mut self) -> Option<&'static Link> {
        // SAFETY: as in `load_link`.
        let l = unsafe { self.at.as_ref() }?;
        self.at = l.next.load(Ordering::Acquire);
        Some(l)
    }
}

/// Whether the kernel has a connection for listener `fd`.
pub fn tcp_ready(fd: i32) -> bool {
    readable(fd)
}
