//! The accelerated half of a listening socket: its rendezvous, its links, and who waits at either.

use crate::carrier;
use crate::epoll;
use crate::socket::crowd;
use crate::socket::{DORMANT, Socket, UNHEARD};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use netacc_sys::mem::Zeroed;
use netacc_sys::signals::Blocked;
use netacc_sys::slab::{Pooled, Slab};
use netacc_sys::{Lock, private, raw};
use netacc_transport::shm::segment::{SERVER_CLOSED, SERVER_LEFT, Segment};
use netacc_transport::shm::slots::{CONTROL_SLOT, SLOTS};
use netacc_transport::shm::{Link, guard};
use rustix::fd::{FromRawFd, OwnedFd};

/// Places for clients that have connected and not said hello. One that says nothing has its place until others need it.
pub(super) const GREETING: usize = 8;

/// The accelerated half of a listening socket.
#[derive(Debug)]
pub struct Listener {
    next_free: AtomicPtr<Listener>,
    pub(super) lock: Lock,
    /// The rendezvous socket + 1.
    pub(super) rendezvous: AtomicI32,
    pub(super) backlog: AtomicU32,
    pub(super) links: AtomicPtr<Link>,
    pub(super) greeting: [AtomicI32; GREETING],
    pub(super) next_greeting: AtomicU32,
    /// The process had no descriptor left when it last looked for clients.
    pub(super) starved: AtomicU32,
    /// Our own number (+ 1) for the kernel's listener: the application closed its last one while a call sleeps
    /// on it, which goes on as in the kernel.
    kept: AtomicI32,
    /// Threads that sleep on the listener outside of epoll.
    pub(super) waiters: AtomicU32,
    /// The program has called accept(2) here, or had before the fork.
    pub served: AtomicU32,
    /// The program has waited for it by poll(2), select(2) or epoll(7), and calls accept(2) when there is something.
    pub polled: AtomicU32,
    /// Another process of the family left the listener to the kernel.
    pub(super) shut: AtomicU32,
    /// The only link there was at the last look had more connects than the one taken: a hint.
    waits: AtomicU32,
    /// More than one process serves this listener.
    pub many: AtomicU32,
    /// The kernel said (or may have) that a TCP connection waits.
    pub tcp_waits: AtomicU32,
    /// When the kernel was last asked and had none, in [`netacc_sys::cpu::ticks`].
    pub tcp_asked: AtomicU64,
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
        self.backlog.store(backlog.max(1) as u32, Ordering::Relaxed);
        self.links.store(core::ptr::null_mut(), Ordering::Relaxed);
        for n in [&self.many, &self.served, &self.polled, &self.shut] {
            n.store(0, Ordering::Relaxed);
        }
        self.starved.store(0, Ordering::Relaxed);
        self.waiters.store(0, Ordering::Relaxed);
        self.waits.store(0, Ordering::Relaxed);
        self.tcp_waits.store(0, Ordering::Relaxed);
        self.tcp_asked.store(0, Ordering::Relaxed);
        self.owner.store(core::ptr::from_ref(owner).cast_mut(), Ordering::Release);
    }

    /// The rendezvous socket, or -1.
    pub fn rendezvous_fd(&self) -> i32 {
        self.rendezvous.load(Ordering::Relaxed) - 1
    }

    /// The application closes `fd`, its last number for this listener, which is that of `s`, and in whose calls threads
    /// sleep.
    pub fn keep(&self, fd: i32, s: &Socket) {
        let Ok(ours) = private::copy(fd) else { return };
        let mut old = self.kept.swap(ours + 1, Ordering::AcqRel);
        if !s.listener().is_some_and(|l| core::ptr::eq(l, self)) {
            // Another thread has left the listener to the kernel meanwhile, and the object may serve another one.
            let taken_back = self.kept.compare_exchange(ours + 1, 0, Ordering::AcqRel, Ordering::Relaxed);
            old = taken_back.unwrap_or(0).max(old);
        }
        if old != 0 {
            private::close(old - 1);
        }
    }

    /// The number by which the kernel's listener can be reached, for a call that was made with `fd`.
    pub fn kernel_fd(&self, fd: i32) -> i32 {
        match self.kept.load(Ordering::Acquire) {
            0 => fd,
            kept => kept - 1,
        }
    }

    /// Whether a client waits that cannot be taken up for want of descriptors: accept(2) says so, and the
    /// listener stays readable, as the kernel's does.
    pub fn starves(&self) -> bool {
        self.starved.load(Ordering::Relaxed) != 0 && (readable(self.rendezvous_fd()) || self.greeting().any(readable))
    }

    /// Whether another process of the family has left the listener to the kernel; then so should we.
    pub fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Relaxed) != 0
    }

    /// Sockets of clients that have not said hello yet.
    pub fn greeting(&self) -> impl Iterator<Item = i32> + '_ {
        self.greeting.iter().map(|g| g.load(Ordering::Relaxed)).filter(|g| *g != 0).map(|g| g - 1)
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
        while let Some(link) = follow(cell) {
            if link.is_lost() && link.segment().is_none_or(|s| s.queued() == 0) {
                cell.store(link.next.load(Ordering::Relaxed), Ordering::Relaxed);
                crowd::left(link);
                return Some(link);
            }
            cell = &link.next;
        }
        None
    }

    /// The process closed its last descriptor of the listener. Connections go on; connects that wait are reset, as by
    /// the kernel, unless other processes have the listener: those serve them.
    pub fn close(&'static self) {
        match self.many.load(Ordering::Relaxed) {
            0 => self.reset_queued(),
            _ => self.hand_on(),
        }
    }

    /// Nobody listens any more: connects that wait are reset, connections go on.
    pub(super) fn reset_queued(&'static self) {
        self.end(|link, seg| {
            // SeqCst: a client pushes and then looks at this word; we mark and then drain.
            seg.header().server.store(SERVER_CLOSED, Ordering::SeqCst);
            // A client that goes on and on is not waited for.
            for slot in core::iter::from_fn(|| link.pop()).take(SLOTS) {
                if let Some(ep) = super::accept::take_slot(link, slot) {
                    netacc_transport::Endpoint::close(ep, true);
                }
            }
        });
    }

    /// Another process serves the listener and knows nothing of us: connects that wait go there by TCP.
    pub(super) fn leave(&'static self) {
        let sock = self.rendezvous_fd();
        if sock >= 0 {
            // For all processes that have it. Clients that connected to it and were not taken up see an end.
            let _ = raw::shutdown(sock, libc::SHUT_RDWR);
            dismiss_waiting(sock);
        }
        self.hand_on();
    }

    /// Clients whose connect waits here make it once more: at the rendezvous, where another process may serve them,
    /// or by TCP.
    fn hand_on(&'static self) {
        self.end(|link, _| hand_on(link));
    }

    fn end(&'static self, last: impl Fn(&'static Link, Segment)) {
        // A handler may close another listener, which needs the same locks.
        let _b = Blocked::all();
        #[allow(unsafe_code)]
        // SAFETY: null or a socket object, which is never freed.
        if let Some(s) = unsafe { self.owner.load(Ordering::Acquire).as_ref() }
            && !s.has(DORMANT | UNHEARD)
            && let Some(local) = s.local.get()
        {
            super::listen::far_names(s, local).for_each(carrier::unlisten);
        }
        let mut next = {
            let _g = self.lock.lock();
            let sock = self.rendezvous.swap(0, Ordering::Relaxed) - 1;
            if sock >= 0 {
                // Clients that wait there end with the socket, unless another process has it too.
                if self.many.load(Ordering::Relaxed) == 0 {
                    let _ = raw::shutdown(sock, libc::SHUT_RDWR);
                    dismiss_waiting(sock);
                }
                private::close(sock);
            }
            let kept = self.kept.swap(0, Ordering::AcqRel);
            if kept != 0 {
                private::close(kept - 1);
            }
            self.dismiss_greeting();
            let first = follow(&self.links);
            self.links.store(core::ptr::null_mut(), Ordering::Relaxed);
            first
        };
        while let Some(link) = next {
            next = follow(&link.next);
            crowd::left(link);
            if let Some(seg) = link.segment() {
                last(link, seg);
            }
            epoll::link_gone(link);
            link.put();
        }
        LISTENERS.release(self);
    }

    fn dismiss_greeting(&self) {
        for cell in &self.greeting {
            let fd = cell.swap(0, Ordering::Relaxed);
            if fd != 0 {
                guard::dismiss(private_back(fd - 1));
            }
        }
    }

    /// In the child of a fork, whose copies of these sockets are not the last ones.
    fn close_greeting(&self) {
        for cell in &self.greeting {
            let fd = cell.swap(0, Ordering::Relaxed);
            if fd != 0 {
                let _ = raw::close(fd - 1);
            }
        }
    }

    /// Calls `f` for every link. Under epoll's `STRUCTURE` lock, which whoever removes a link takes before
    /// he lets it go; not under `lock`, since `f` takes locks that come before it.
    pub fn each_link(&self, f: impl FnMut(&'static Link)) {
        self.links().for_each(f);
    }

    /// Reads the control sockets of all links.
    pub fn service_links(&self) {
        let _g = self.lock.lock();
        self.links().for_each(|l| l.service_if_readable());
    }

    /// Whether a connect waits in shared memory, and whether a client announced a further link, which may
    /// hold earlier connects than those we know.
    pub fn queued_or_more(&self) -> (bool, bool) {
        // What waited in the only link when we looked there came before what a further link brings.
        if self.waits.load(Ordering::Relaxed) != 0 {
            return (true, false);
        }
        let _g = self.lock.lock();
        self.links().fold((false, false), |(queued, more), l| {
            (queued || l.segment().is_some_and(|s| s.queued() > 0), more | l.take_more())
        })
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
        // First come, first served, as with one queue in the kernel.
        let first = self.links().filter_map(|l| Some((l.segment()?.front_time()?, l))).min_by_key(|(when, _)| *when)?.1;
        Some((first, first.pop()?))
    }

    /// For the child of a fork: the links are the parent's, the sockets are shared.
    pub fn after_fork(&'static self) {
        self.lock.reset();
        self.waits.store(0, Ordering::Relaxed);
        let mut next = follow(&self.links);
        self.links.store(core::ptr::null_mut(), Ordering::Relaxed);
        while let Some(link) = next {
            next = follow(&link.next);
            crowd::left(link);
            crate::fork::inherit(link);
        }
        self.close_greeting();
    }

    /// Whether a connect waits in shared memory.
    pub fn queued(&self) -> bool {
        let _g = self.lock.lock();
        self.links().any(|l| l.segment().is_some_and(|s| s.queued() > 0))
    }

    /// Counts the connects that clients have queued: what it was before tells of new ones.
    pub fn arrived(&self) -> u64 {
        let _g = self.lock.lock();
        self.links().filter_map(|l| l.segment()).fold(0, |n, s| n.wrapping_add(s.pushed()))
    }

    /// Arms every link's connect queue; true if one holds something.
    pub fn arm(&self, set: &mut netacc_transport::WaitSet) -> bool {
        // Before the lock: who takes up a link under it afterwards sees us, and if it was before, we see the
        // link.
        self.waiters.fetch_add(1, Ordering::SeqCst);
        set.add(self.rendezvous_fd(), libc::POLLIN);
        for fd in self.greeting() {
            set.add(fd, libc::POLLIN);
        }
        let mut ready = false;
        let _g = self.lock.lock();
        for l in self.links() {
            if let Some(q) = l.endpoint(CONTROL_SLOT) {
                ready |= q.arm_queue(set) && l.segment().is_some_and(|s| s.queued() > 0);
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

/// A link takes no further connects: those that wait there are made once more.
pub(super) fn hand_on(link: &'static Link) {
    let Some(seg) = link.segment() else { return };
    // SeqCst: as in `reset_queued`.
    seg.header().server.store(SERVER_LEFT, Ordering::SeqCst);
    for slot in core::iter::from_fn(|| link.pop()).take(SLOTS) {
        if let Some(ep) = link.endpoint(slot as usize) {
            ep.stir_peer();
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
        guard::dismiss(private_back(fd));
    }
}

#[allow(unsafe_code)]
pub(super) fn private_back(fd: i32) -> OwnedFd {
    // SAFETY: the caller took the number out of its only cell.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

#[allow(unsafe_code)]
pub(super) fn follow(p: &AtomicPtr<Link>) -> Option<&'static Link> {
    // SAFETY: links are type-stable.
    unsafe { p.load(Ordering::Acquire).as_ref() }
}

/// A walk over a listener's links.
#[derive(Clone, Debug)]
pub(super) struct Links {
    at: *mut Link,
}

impl Iterator for Links {
    type Item = &'static Link;

    #[allow(unsafe_code)]
    fn next(&mut self) -> Option<&'static Link> {
        // SAFETY: as in `follow`.
        let l = unsafe { self.at.as_ref() }?;
        self.at = l.next.load(Ordering::Acquire);
        Some(l)
    }
}

/// Whether the kernel has a connection for listener `fd`.
pub fn tcp_ready(fd: i32) -> bool {
    readable(fd)
}
