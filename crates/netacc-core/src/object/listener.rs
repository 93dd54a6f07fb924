//! The accelerated half of a listening socket: its rendezvous, its links, and the threads that wait for clients.
//!
//! [`crate::listen::taking`] takes up links, and [`crate::listen::ending`] ends a listener.

use crate::object::entrance::Entrance;
use crate::object::kernel_turn::{KernelQueue, KernelTurn, precedes_count};
use crate::object::servers::Servers;
use crate::object::socket::{NONBLOCK, Socket};
use crate::object::tcp_hint::TcpHint;
use core::iter::{Successors, successors};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use netacc_conf::Transports;
use netacc_sys::mem::Zeroed;
use netacc_sys::slab::{Pooled, Slab};
use netacc_sys::{AtomicRef, Lock, SharedCell, lock_rank, raw};
use netacc_transport::rdma::engine;
use netacc_transport::shm::claim::take_slot;
use netacc_transport::shm::owner;
use netacc_transport::shm::segment::{Segment, ServedBy};
use netacc_transport::shm::slots::CONTROL_SLOT;
use netacc_transport::shm::{Link, ShmEndpoint};
use netacc_transport::{WaitOn, WaitSet};
use rustix::fd::{FromRawFd, OwnedFd};

/// Number of places for clients that have connected and not sent their Hello. A silent client keeps its place until
/// others need it.
pub(crate) const HELLOS: usize = 8;

/// The kernel's default limit of a backlog (net.core.somaxconn).
const MOST: u32 = 4096;
/// Value of [`Listener::many`]: the processes descend from one another by fork(2), and know of each other's companions.
pub const SHARED_BY_FORK: u32 = 1;
/// Value of [`Listener::many`]: unrelated processes may share the listener.
const SHARED_BEYOND: u32 = 2;
/// Largest number of links that are handled when the process ends.
pub(crate) const HELD: usize = 64;

/// The accelerated half of a listening socket.
#[derive(Debug)]
pub struct Listener {
    next_free: AtomicRef<Listener>,
    pub(crate) lock: Lock<{ lock_rank::LISTENER }>,
    /// The rendezvous socket (descriptor + 1).
    pub(crate) rendezvous: AtomicI32,
    /// The socket by which clients in other network namespaces reach it.
    pub(crate) entrance: Entrance,
    /// Largest number of connects that may wait in each link's queue.
    pub(crate) backlog: AtomicU32,
    pub(crate) links: AtomicRef<Link>,
    pub(crate) hellos: [AtomicI32; HELLOS],
    pub(crate) next_hello: AtomicU32,
    /// Set when the process had no descriptor left when it last looked for clients.
    pub(crate) starved: AtomicU32,
    /// Set in the child of a fork: the rendezvous socket is the parent's as well.
    pub(crate) inherited: AtomicU32,
    /// Number of threads that sleep on the listener outside of epoll.
    pub(crate) waiters: AtomicU32,
    /// Set once the program has called accept(2) on it, in this process or before the fork.
    pub served: AtomicU32,
    /// Set once the program has waited for it by poll(2), select(2) or epoll(7): it then calls accept(2) when a
    /// connection is reported.
    pub polled: AtomicU32,
    /// Set once another sharer has left the listener to the kernel.
    pub(crate) shut: AtomicU32,
    /// Hint that is set when the last look found a single link, and more connects in it than the one taken.
    pub(crate) waits: AtomicU32,
    /// Number of connections that were accepted over its links, and how many of them the program has passed on to other
    /// processes.
    pub(crate) accepted: AtomicU32,
    pub(crate) passed_on: AtomicU32,
    /// Not 0 if clients were left at the rendezvous since the last connect was taken, because others can take them up.
    pub(crate) passed_over: AtomicU32,
    /// Not 0 from when a client has announced a further link until no client waits at the doors: that link's connects may be
    /// older than those of the links that were taken up. Written under `lock`.
    pub(crate) announced: AtomicU32,
    /// Not 0 when several processes serve this listener: [`SHARED_BY_FORK`], with `SHARED_BEYOND` if unrelated ones may
    /// do so.
    pub many: AtomicU32,
    /// The processes that serve it.
    pub(crate) servers: Servers,
    /// Whether the kernel has reported, or may have reported, that a TCP connection waits.
    pub tcp_waits: TcpHint,
    /// Time ([`netacc_sys::cpu::ticks`]) at which the kernel was last asked and had no connection.
    pub tcp_checked: AtomicU64,
    /// When the connections in the kernel's queue have their turn.
    pub kernel_turn: KernelTurn,
    /// The transports that its clients may use ([`Transports::bits`]).
    permitted: SharedCell<u32>,
    /// The socket object it belongs to.
    pub owner: AtomicRef<Socket>,
}

#[allow(unsafe_code)]
mod zeroed {
    // SAFETY: the type consists of atomics and locks, for which zero is valid and a fresh object.
    unsafe impl super::Zeroed for super::Listener {}
}

impl Pooled for Listener {
    fn next_free(&self) -> &AtomicRef<Listener> {
        &self.next_free
    }
}

pub(crate) static LISTENERS: Slab<Listener> = Slab::new();

impl Listener {
    /// Begins with the rendezvous socket `sock`. `waiting` connections were in the kernel's queue before it was opened.
    pub(crate) fn start(
        &'static self,
        sock: i32,
        (backlog, waiting): (i32, u32),
        permitted: Transports,
        owner: &'static Socket,
    ) {
        self.permitted.set(permitted.bits());
        self.rendezvous.store(sock + 1, Ordering::Relaxed);
        self.links.set(None);
        self.limit(backlog);
        for n in [&self.many, &self.served, &self.polled, &self.shut, &self.inherited] {
            n.store(0, Ordering::Relaxed);
        }
        for n in [&self.passed_over, &self.announced, &self.accepted, &self.passed_on] {
            n.store(0, Ordering::Relaxed);
        }
        self.servers.begin();
        self.starved.store(0, Ordering::Relaxed);
        self.waiters.store(0, Ordering::Relaxed);
        self.waits.store(0, Ordering::Relaxed);
        self.tcp_waits.start();
        self.tcp_checked.store(0, Ordering::Relaxed);
        self.kernel_turn.start(waiting);
        self.owner.store(Some(owner));
    }

    /// The transports that its clients may use.
    pub(crate) fn permitted(&self) -> Transports {
        Transports::from_bits(self.permitted.get())
    }

    /// Stores the backlog of listen(2). Like the kernel, it takes the number as unsigned, limits it, and lets one more
    /// connect wait.
    pub(crate) fn limit(&'static self, backlog: i32) {
        let limit = (backlog as u32).min(MOST) + 1;
        let _g = self.lock.lock();
        self.backlog.store(limit, Ordering::Relaxed);
        for seg in self.links().filter_map(Link::segment) {
            seg.set_backlog(limit);
        }
    }

    /// Notes that several processes serve the listener from here on. `by_fork`: all of them know of the companions that
    /// one of them awaits.
    pub fn note_sharers(&self, by_fork: bool) {
        self.many.fetch_max(if by_fork { SHARED_BY_FORK } else { SHARED_BEYOND }, Ordering::Relaxed);
    }

    /// Whether other processes may serve the listener as well, so that this one leaves to them what it cannot take at
    /// once.
    pub(crate) fn has_siblings(&self) -> bool {
        self.many.load(Ordering::Relaxed) != 0 && self.servers.number().is_none_or(|n| n > 1)
    }

    /// Counts this process, which is about to accept, among those that serve the listener, and tells the clients if it has
    /// got siblings.
    #[inline]
    pub(crate) fn serve(&self) {
        self.servers.serve();
        if self.servers.has_changed() {
            announce_servers(self);
        }
    }

    /// Notes that the program waits for the listener by poll(2) or a similar call.
    pub fn note_polled(&self, s: &Socket) {
        self.servers.serve();
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

    /// The sockets at which clients ask for a link: the rendezvous and, if there is one, the entrance.
    pub fn doors(&self) -> impl Iterator<Item = i32> + use<> {
        [self.rendezvous_fd(), self.entrance.fd()].into_iter().filter(|fd| *fd >= 0)
    }

    /// The number under which a call that was made with `fd` finds the kernel's listener.
    pub fn kernel_fd(&self, fd: i32) -> i32 {
        self.owner.load().map_or(fd, |s| s.kernel_fd(fd))
    }

    /// Whether a client could not be taken up when somebody last tried.
    pub fn has_starved(&self) -> bool {
        self.starved.load(Ordering::Relaxed) != 0
    }

    /// Whether a client waits that cannot be taken up because the process has no free descriptor: accept(2) reports
    /// that, and the listener stays readable, as in the kernel.
    pub fn starves(&self) -> bool {
        self.has_starved() && self.doors().chain(self.hellos()).any(readable)
    }

    /// Whether another sharer has left the listener to the kernel; this process then has to do so, too.
    pub fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Relaxed) != 0
    }

    /// Sockets of clients that have not sent their Hello yet.
    pub fn hellos(&self) -> impl Iterator<Item = i32> + '_ {
        self.hellos.iter().map(|g| g.load(Ordering::Relaxed)).filter(|g| *g != 0).map(|g| g - 1)
    }

    /// The links of this listener, newest first. Called under `lock` (or epoll's `STRUCTURE`), which keeps them mapped.
    pub(crate) fn links(&self) -> Links {
        links_from(self.links.load())
    }

    /// Whether this process has taken up links of its own at the listener. Links of its parent do not count, since the
    /// parent serves them.
    pub(crate) fn serves_here(&'static self) -> bool {
        let _g = self.lock.lock();
        self.links().any(|link| !link.is_inherited())
    }

    /// Calls `f` with the current links, without a lock; a reference keeps each of them meanwhile.
    pub(crate) fn with_links_held(&'static self, f: impl FnOnce(&[Option<&'static Link>])) {
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

    /// Calls `f` for every link. Called under epoll's `STRUCTURE` lock, which a thread takes before it releases a
    /// removed link; not under `lock`, since `f` takes locks that come before it in the order.
    pub fn each_link(&self, f: impl FnMut(&'static Link)) {
        self.links().for_each(f);
    }

    /// Reads the control sockets of all links.
    pub fn service_links(&self) {
        let _g = self.lock.lock();
        self.links().for_each(|l| l.service_if_readable());
    }

    /// Whether a connect waits in shared memory, and whether a client has announced a further link that may not be taken up
    /// yet, and may hold earlier connects than the known links.
    pub fn queued_or_more(&self) -> (bool, bool) {
        // The connects that were seen in the single link came before those of a further link.
        if self.waits.load(Ordering::Relaxed) != 0 {
            return (true, false);
        }
        let _g = self.lock.lock();
        let (queued, more) = self.links().fold((false, false), |(queued, more), l| {
            (queued || l.has_queued(), more | l.segment().is_some_and(Segment::take_more))
        });
        if more {
            self.announced.store(1, Ordering::Relaxed);
        }
        (queued, self.announced.load(Ordering::Relaxed) != 0)
    }

    /// Begins the connection of the next connect that waits in shared memory. `None`: none waits; `Some(None)`: the
    /// next one was given up by its client. Done under the lock: a link whose connect is no longer queued, and whose
    /// connection has not begun, would count as idle, and another thread could remove it.
    pub fn take_next(&self) -> Option<Option<&'static ShmEndpoint>> {
        let _g = self.lock.lock();
        self.waits.store(0, Ordering::Relaxed);
        self.passed_over.store(0, Ordering::Relaxed);
        let mut links = self.links();
        let only = links.next()?;
        if links.next().is_none() {
            let slot = only.pop()?;
            self.waits.store(only.segment().is_some_and(|s| only.queue.seen_queued(s)).into(), Ordering::Relaxed);
            return Some(take_slot(only, slot));
        }
        // Takes the oldest connect of all links, as from the single queue of a kernel listener.
        let (_, first) = self.oldest()?;
        let slot = first.pop()?;
        Some(take_slot(first, slot))
    }

    /// The link with the oldest connect, and when that was queued. Under `lock`.
    fn oldest(&self) -> Option<(u64, &'static Link)> {
        self.links().filter_map(|l| Some((l.segment()?.front_time()?, l))).min_by_key(|(when, _)| *when)
    }

    /// Whether a connection that waits at the kernel's listener `fd` comes before the connects that wait in shared
    /// memory.
    pub fn is_kernels_turn(&self, fd: i32) -> bool {
        let queue = self.kernel_turn.look(fd);
        if queue == KernelQueue::Empty {
            return false;
        }
        let _g = self.lock.lock();
        if queue == KernelQueue::CountedNow {
            self.links().for_each(note_filled);
        }
        self.oldest().and_then(|(_, l)| Some((l, l.segment()?))).is_some_and(|(link, segment)| {
            let taken = segment.connects_taken();
            !precedes_count(taken, link.queue.filled_at_count.get())
        })
    }

    /// Whether a connect waits in shared memory.
    pub fn queued(&self) -> bool {
        let _g = self.lock.lock();
        self.links().any(Link::has_queued)
    }

    /// Number of connects that clients have queued so far. It changes when new ones come.
    pub fn arrived(&self) -> u64 {
        let _g = self.lock.lock();
        self.links().filter_map(|l| l.segment()).fold(0, |n, s| n.wrapping_add(s.pushed()))
    }

    /// Arms the connect queues of all links; true if one of them holds a connect.
    pub fn arm(&self, set: &mut WaitSet) -> bool {
        // Counted before the lock is taken: a thread that takes up a link under the lock later sees this waiter, and a
        // link that was taken up before is seen here.
        self.waiters.fetch_add(1, Ordering::SeqCst);
        for fd in self.doors().chain(self.hellos()) {
            set.add(fd, libc::POLLIN);
        }
        let mut ready = false;
        let _g = self.lock.lock();
        for l in self.links() {
            // Another thread may find the client gone and remove the link while this one sleeps.
            if let Some(q) = l.endpoint(CONTROL_SLOT)
                && set.hold(l, WaitOn::Listener)
            {
                ready |= q.waiters.arm_queue(&q.side, set) && l.has_queued();
            }
        }
        ready
    }

    /// Undoes [`Listener::arm`].
    pub fn disarm(&self, set: &WaitSet) {
        // The count must not fall below 0, since the object may stand for another listener by now.
        let less = |n: u32| n.checked_sub(1);
        let _ = self.waiters.fetch_update(Ordering::SeqCst, Ordering::Relaxed, less);
        let _g = self.lock.lock();
        for l in self.links() {
            if let Some(q) = l.endpoint(CONTROL_SLOT) {
                q.waiters.disarm_queue(&q.side, set);
            }
        }
    }
}

/// What a client has to know of the processes that serve the listener.
pub(crate) fn served_by(l: &Listener) -> ServedBy {
    // Programs that wait by poll(2) and the like come back to the listener soon. Whether there is any other process that
    // could take what one leaves must be known: a client goes to the kernel's queue for it.
    let blocks = || {
        let owner = l.owner.load();
        l.polled.load(Ordering::Relaxed) == 0 && owner.is_some_and(|s| !s.has(NONBLOCK))
    };
    match l.many.load(Ordering::Relaxed) {
        0 => ServedBy::One,
        _ if !l.has_siblings() => ServedBy::Forked,
        _ if l.servers.number().is_some() && blocks() => ServedBy::Acceptors,
        _ => ServedBy::Several,
    }
}

/// Tells the clients which processes serve the listener: those that have a link by a word in its segment, and others by
/// a mark on the kernel's listener.
pub(crate) fn announce_servers(l: &Listener) {
    let by = served_by(l);
    if let Some(s) = l.owner.load().filter(|_| matches!(by, ServedBy::Several | ServedBy::Acceptors)) {
        owner::mark_shared(l.kernel_fd(s.first_fd()));
    }
    let _g = l.lock.lock();
    l.links().filter_map(Link::segment).for_each(|segment| segment.set_served_by(by));
}

/// Notes up to where (`position`) the queues of all links hold connects that come before the connections which the kernel is
/// about to [count](KernelTurn::count_now).
pub(crate) fn note_all(l: &Listener, position: impl Fn(Segment) -> u64) {
    let _g = l.lock.lock();
    for (link, segment) in l.links().filter_map(|link| Some((link, link.segment()?))) {
        link.queue.filled_at_count.set(position(segment));
    }
}

/// Notes up to where the queue of a link that is taken up holds connects which come before the connections that the kernel
/// has counted: they may be older than the count, unless that was made before clients found the listener. Under its lock.
pub(crate) fn note_taken_up(l: &Listener, link: &Link) {
    match link.segment() {
        Some(segment) if l.kernel_turn.precedes_links() => {
            link.queue.filled_at_count.set(segment.connects_taken());
        }
        _ => note_filled(link),
    }
}

/// Notes how far the link's queue is filled, for a link that is there when the kernel has counted its connections. Under the
/// listener's lock.
fn note_filled(link: &Link) {
    if let Some(segment) = link.segment() {
        link.queue.filled_at_count.set(segment.pushed());
    }
}

pub(crate) fn readable(fd: i32) -> bool {
    raw::events_now(fd, libc::POLLIN) != 0
}

#[allow(unsafe_code)]
pub(crate) fn reserved_back(fd: i32) -> OwnedFd {
    // SAFETY: the caller took the number out of its only cell.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Links of a listener.
pub(crate) type Links = Successors<&'static Link, fn(&&'static Link) -> Option<&'static Link>>;

/// The links from `first` on, each of which may be taken out of the list when it is returned.
pub(crate) fn links_from(first: Option<&'static Link>) -> Links {
    successors(first, |link| link.next.load())
}

/// Whether a connection waits at the kernel's listener `fd`.
pub fn tcp_ready(fd: i32) -> bool {
    readable(fd)
}

/// The names by which clients on other hosts find a listener. A listener for both address families is listed once for
/// each: iWARP listens with TCP sockets of its own, and an IPv6 one takes no client of IPv4. If only one of the names
/// can be registered, it is the first.
pub(crate) fn remote_names(s: &Socket, local: SocketAddr) -> impl Iterator<Item = SocketAddr> {
    let both = local.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED)
        && s.opts.get(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY).is_none_or(|only| only == 0);
    let first = both.then(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), local.port()));
    first.into_iter().chain([local])
}

/// The listener that took up `link`, at the server.
#[allow(unsafe_code)]
pub fn owner_of(link: &'static Link) -> Option<&'static Listener> {
    // SAFETY: 0 or a listener object, which is never freed.
    unsafe { (link.owner.load(Ordering::Acquire) as *const Listener).as_ref() }
}
