//! fork(2): what parent and child may touch, and when a connection belongs to one process alone again.

use crate::fdtable::{self, Entry, Ref};
use crate::namespace;
use crate::socket::{self, Path, SHARED, Socket};
use crate::timeouts;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use netacc_stats::{Counter, Reason, page};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::signals::Blocked;
use netacc_sys::{Guard, Lock, lock, raw, reserved_fds, time};
use netacc_transport::shm::control::Unread;
use netacc_transport::shm::{ShmEndpoint, WaitBudget};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::pipe::{PipeFlags, pipe_with};

/// Most forks that are remembered because their children (or their children) may still live. Beyond that connections
/// stay shared, which costs a little speed and nothing else.
const FORKS: usize = 64;

/// Descendants that share something, known by pipes.
#[derive(Debug)]
struct Descendants {
    /// Reading ends (descriptor + 1) of pipes whose writing ends the descendants hold: the kernel ends one when
    /// the last of them is gone or runs another program.
    pipes: [AtomicI32; FORKS],
    /// Number of pipes in `pipes`, or `FORKS + 1` when there was no room for one.
    live: AtomicU32,
}

/// Descendants that may have a connection of ours.
static CONNECTED: Descendants = Descendants::new();
/// Descendants that may have an epoll instance of ours, and no connection.
static WAITING: Descendants = Descendants::new();
/// Guards `CONNECTED` and `WAITING`.
static LOCK: Lock = Lock::new();
/// Held by the thread that forks while it keeps others from reading: of two such threads each would wait for what the
/// other has.
static FORK_LOCK: Lock = Lock::new();
const FORK_QUIESCE: u64 = time::ns(timeouts::FORK_QUIESCE);
/// Forks under way, whose child is or is about to be there and is not counted yet.
static FORKING: AtomicU32 = AtomicU32::new(0);
/// Number of generations of a sharers that are told apart.
const GENERATIONS: usize = 16;
/// The writing ends (descriptor + 1) of the pipes at which the processes before this one wait for the end of their
/// descendants, the oldest first.
static HELD: [AtomicI32; GENERATIONS] = [const { AtomicI32::new(0) }; GENERATIONS];
/// Set in a process of which more ancestors wait than `HELD` has places.
static TOO_DEEP: AtomicBool = AtomicBool::new(false);
const DESCENDANT_CHECK_INTERVAL: u64 = time::ns(timeouts::DESCENDANT_CHECK_INTERVAL);
static NEXT_CHECK: AtomicU64 = AtomicU64::new(0);

/// What [`prepare`] hands to [`parent`] and [`child`].
#[derive(Debug, Default)]
pub struct Forking {
    /// Reading and writing end of the pipe, if there is anything to share, and what it tells of.
    pipe: Option<(i32, i32)>,
    /// Whether no connection is shared, only epoll instances.
    instances: bool,
    /// [`FORK_LOCK`], if anything is unread.
    guard: Option<Guard<'static>>,
    /// The links of shared connections, which no other thread reads until the fork is done: the kernel copies the
    /// descriptors and then the memory, and the child would know of what comes in between without having it.
    unread: Unread,
    /// What is carried to other hosts is at rest meanwhile: the child goes through it.
    engines: netacc_transport::rdma::engine::AtRest,
}

/// Namespaces in which a child begins and its parent is not (clone(2)).
#[derive(Clone, Copy, Debug, Default)]
pub struct NewSpaces {
    /// A namespace of processes.
    pub processes: bool,
    /// A network namespace.
    pub network: bool,
}

/// To be called in the parent before a fork into its own namespaces.
pub fn prepare() -> Forking {
    prepare_for(NewSpaces::default())
}

/// To be called in the parent before the fork: every unconnected socket becomes real, every connection gets what
/// several processes need to share it.
pub fn prepare_for(new: NewSpaces) -> Forking {
    // Before this thread takes any lock.
    let in_handler = lock::interrupted();
    // Several processes could not agree on who makes them again.
    socket::queued_connects::await_queue_pairs();
    // Before anything is marked as shared: another thread must not take it for ours alone until the child is counted.
    FORKING.fetch_add(1, Ordering::SeqCst);
    let mut shared = false;
    let mut splits = new.processes.then_some(true);
    // All connections together have one patience.
    let timeout = WaitBudget::of_a_fork();
    fdtable::each(0, usize::MAX, |fd, e| {
        let Entry::Socket(r) = e else { return };
        if r.obj.path() == Path::Tcp && r.obj.has(socket::CANDIDATE) {
            socket::promote::cancel(fd, r);
        }
        if r.obj.path() == Path::Shm && *splits.get_or_insert_with(namespace::splits_sharers) {
            let _ = socket::demote::demote(fd, r, Reason::Fork);
        }
        match r.obj.path() {
            Path::New => {
                let _ = socket::create::materialize(fd, r.obj);
            }
            Path::Shm => {
                shared = true;
                share(fd, r, &timeout);
            }
            Path::Listener => {
                if let Some(l) = r.obj.listener() {
                    l.note_sharers(crate::engine::share_companions());
                }
            }
            Path::Tcp => {}
        }
    });
    let instances = crate::epoll::before_fork();
    let mut forking = Forking { instances: !shared, ..Forking::default() };
    if shared || instances {
        forking.pipe = end_of_life();
    }
    if shared {
        // After all of them are marked: a peer that does the same waits for us as we wait for it.
        each_shared(|ep| ep.before_fork(&timeout));
        // A handler that interrupted a reader must not wait for it.
        let timeout = if in_handler { 0 } else { FORK_QUIESCE };
        forking.guard = FORK_LOCK.lock_within(timeout);
        each_shared(|ep| forking.unread.stop(ep.link(), timeout));
        each_shared(|ep| ep.about_to_fork(&forking.unread));
    }
    // Last: the engine is the peer of its connections, and has to read what they were passed.
    forking.engines = netacc_transport::rdma::engine::before_fork(in_handler);
    forking
}

/// Makes the pipe of a fork: its reading end for this process, its writing end for the descendants.
fn end_of_life() -> Option<(i32, i32)> {
    let (r, w) = pipe_with(PipeFlags::CLOEXEC).ok()?;
    let r = reserved_fds::adopt(r).ok()?;
    Some((r, reserved_fds::adopt(w).ok()?))
}

/// The pipes that a process of our own holds while it goes on with a connection: all processes that share the connection's slot
/// learn from them that the slot is still in use.
#[derive(Debug)]
pub(crate) struct Heir {
    pipe: Option<(i32, i32)>,
    /// Descriptors that the new process keeps open, or -1.
    pub(crate) held: [i32; GENERATIONS + 1],
}

impl Heir {
    /// Prepares for the new process. This process makes a pipe of its own only if `asked_for`: where it gives the slot
    /// to a next connection later.
    pub(crate) fn begin(asked_for: bool) -> Result<Heir> {
        if TOO_DEEP.load(Ordering::Relaxed) {
            return Err(Errno::MFILE);
        }
        let pipe = if asked_for { Some(end_of_life().ok_or(Errno::MFILE)?) } else { None };
        let mut held = [-1; GENERATIONS + 1];
        let before = HELD.iter().map(|h| h.load(Ordering::Relaxed) - 1);
        for (place, fd) in held.iter_mut().zip(before.chain(pipe.map(|(_, writing)| writing))) {
            *place = fd;
        }
        Ok(Heir { pipe, held })
    }

    /// Ends the preparation in this process, when the new process was `made` or could not be.
    pub(crate) fn end(self, made: bool) {
        let Some((reading, writing)) = self.pipe else { return };
        reserved_fds::close(writing);
        if made { CONNECTED.remember(reading) } else { reserved_fds::close(reading) }
    }
}

fn each_shared(mut f: impl FnMut(&'static ShmEndpoint)) {
    fdtable::each(0, usize::MAX, |_, e| {
        if let Entry::Socket(r) = e
            && r.obj.has(SHARED)
            && let Some(ep) = r.obj.endpoint()
        {
            f(ep);
        }
    });
}

fn share(fd: i32, r: Ref<Socket>, timeout: &WaitBudget) {
    let s = r.obj;
    // A handler of this thread must not close a number between the look at it and what is put under it.
    let _b = Blocked::all();
    // Nobody is in the middle of an operation when the connection becomes shared.
    let _g = (s.rx.lock(), s.tx.lock());
    // Another thread may have closed the socket meanwhile, or moved it to a kernel socket, or to another server: so the
    // endpoint is looked up here.
    let Some(ep) = s.endpoint().filter(|_| r.valid() && s.path() == Path::Shm) else { return };
    // The number is looked up here, too. A connection without one is about to be closed by another thread, which waits
    // for the locks: a liveness socket that lies under no number would end at once, and the peer would take the connection for
    // gone before it is.
    let there = fdtable::get(fd).is_some_and(|e| e.is(r));
    let Some(fd) = Some(fd).filter(|_| there).or_else(|| fdtable::number_of(r, fd)) else { return };
    if s.set(SHARED, true) && ep.liveness_fd() >= 0 {
        return;
    }
    match ep.share(timeout) {
        Ok(Some(liveness)) => {
            // What is left in the kernel of a promoted connection is still to be read.
            ep.keep_old_subflow();
            if let Err(e) = put_under(fd, r, &liveness) {
                netacc_log::log!(Warn, "fd {fd}: cannot put the liveness socket under its number: {e}");
            }
            reserved_fds::drop_raw(liveness);
        }
        Ok(None) => {}
        Err(e) => netacc_log::log!(
            Warn,
            "fd {fd}: cannot create the liveness socket ({e}); the child's copy of the connection is reset"
        ),
    }
}

/// Puts the liveness socket under every number the application has for the connection.
fn put_under(first: i32, r: Ref<Socket>, liveness: &OwnedFd) -> Result<()> {
    if r.obj.has(socket::NONBLOCK) {
        raw::fcntl(liveness.as_raw_fd(), libc::F_SETFL, (libc::O_RDWR | libc::O_NONBLOCK) as usize)?;
    }
    let result = socket::create::replace_everywhere(r.obj, liveness.as_raw_fd());
    // The number holds no placeholder any more that could serve the next connection.
    r.obj.set(socket::KEEPABLE, false);
    if let (Ok(()), Some(ep)) = (result, r.obj.endpoint()) {
        ep.set_liveness(first);
    }
    result
}

/// To be called in the parent after the fork (also when it failed: then there is no child).
pub fn parent(f: Forking, forked: bool) {
    drop(f.engines);
    if forked {
        page().count(Counter::Forks);
    }
    if let Some((reading, writing)) = f.pipe {
        reserved_fds::close(writing);
        let which = if f.instances { &WAITING } else { &CONNECTED };
        which.remember(reading);
    }
    FORKING.fetch_sub(1, Ordering::SeqCst);
    f.unread.go_on();
    drop(f.guard);
    forget_untold();
}

/// In the parent: a connection without a liveness socket belongs to the parent alone, since the child's copy of it was reset.
fn forget_untold() {
    fdtable::each(0, usize::MAX, |_, e| {
        if let Entry::Socket(r) = e
            && r.obj.has(SHARED)
            && r.obj.endpoint().is_some_and(ShmEndpoint::is_untold)
        {
            let _g = (r.obj.rx.lock(), r.obj.tx.lock());
            if r.valid()
                && let Some(ep) = r.obj.endpoint().filter(|ep| ep.forget_untold())
            {
                ep.unshare();
                r.obj.set(SHARED, ep.is_shared());
            }
        }
    });
}

impl Descendants {
    const fn new() -> Descendants {
        Descendants { pipes: [const { AtomicI32::new(0) }; FORKS], live: AtomicU32::new(0) }
    }

    /// Remembers a fork by the end of its pipe.
    fn remember(&self, reading: i32) {
        // A process that forks for each request must not run out of places because it never sleeps in between.
        let _g = LOCK.lock();
        self.forget_ended();
        match self.pipes.iter().find(|d| d.load(Ordering::Relaxed) == 0) {
            Some(d) => {
                d.store(reading + 1, Ordering::Relaxed);
                self.live.fetch_add(1, Ordering::Relaxed);
            }
            None => {
                reserved_fds::close(reading);
                self.live.store(FORKS as u32 + 1, Ordering::Relaxed);
            }
        }
    }

    /// Whether there are no descendants, as far as is known without asking the kernel.
    fn none(&self) -> bool {
        self.live.load(Ordering::Relaxed) == 0
    }

    /// Whether there are no descendants any more; asks the kernel.
    fn all_ended(&self) -> bool {
        if self.none() {
            return true;
        }
        let _g = LOCK.lock();
        self.forget_ended();
        self.none()
    }

    /// Forgets the forks of which no descendant is left. Under `LOCK`.
    fn forget_ended(&self) {
        let mut polled = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; FORKS];
        for (p, d) in polled.iter_mut().zip(&self.pipes) {
            p.fd = d.load(Ordering::Relaxed) - 1;
        }
        let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        if !raw::ppoll(polled.as_mut_ptr(), FORKS, &raw mut ts, core::ptr::null()).is_ok_and(|n| n > 0) {
            return;
        }
        for (p, d) in polled.iter().zip(&self.pipes) {
            if p.fd >= 0 && p.revents != 0 {
                // In this order: another thread may fork in between, and the child closes what it finds.
                d.store(0, Ordering::Relaxed);
                reserved_fds::close(p.fd);
                self.live.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Called in the child of a fork: the pipes are the parent's.
    fn after_fork(&self) {
        for d in &self.pipes {
            let fd = d.swap(0, Ordering::Relaxed) - 1;
            if fd >= 0 {
                reserved_fds::close(fd);
            }
        }
        self.live.store(0, Ordering::Relaxed);
    }
}

/// Whether no descendant can hold a connection of ours any more. Asks the kernel.
pub(crate) fn alone() -> bool {
    !under_way() && CONNECTED.all_ended()
}

/// Whether no descendant can use an epoll instance of ours, as far as is known without asking the kernel.
pub(crate) fn nobody_inherits() -> bool {
    !under_way() && CONNECTED.none() && WAITING.none()
}

/// Whether a thread is about to fork: what it has shared has to stay where it is until the child is there.
pub(crate) fn under_way() -> bool {
    FORKING.load(Ordering::SeqCst) != 0
}

/// Repeats `what` until it is done, while another thread's fork is in its way, which takes a moment. Whether a fork
/// that takes longer, or is this thread's own, ever ends is not known: then `what` has to be done later or not at all.
pub(crate) fn let_pass(mut what: impl FnMut() -> bool) {
    for _ in 0..200 {
        if what() {
            return;
        }
        time::pause();
    }
}

/// Whether this process never forked, or no descendant is left that could have a connection of ours, as far as is known
/// without asking the kernel.
pub(crate) fn has_no_children() -> bool {
    !under_way() && CONNECTED.none()
}

/// Whether a connection is ours alone again. The caller holds both direction locks of `s`.
pub fn unshare_if_alone(s: &Socket) {
    if s.has(SHARED)
        && alone()
        && let Some(ep) = s.endpoint().filter(|e| !e.link().is_inherited())
    {
        ep.unshare();
        s.set(SHARED, ep.is_shared());
    }
}

/// Called when a thread goes to sleep, for whatever reason: makes connections that children shared our own again.
/// Without it they would stay shared as long as the connection lives, which is correct and a little slower; so it need
/// not happen while a thread sleeps, since it uses nothing then.
#[inline]
pub fn idle_check() {
    if !(CONNECTED.none() && WAITING.none()) {
        look_for_ended();
    }
}

#[cold]
fn look_for_ended() {
    let now = time::now();
    let due = NEXT_CHECK.load(Ordering::Relaxed);
    if now < due
        || NEXT_CHECK
            .compare_exchange(due, now + DESCENDANT_CHECK_INTERVAL, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
    {
        return;
    }
    WAITING.all_ended();
    if CONNECTED.none() || !alone() {
        return;
    }
    fdtable::each(0, usize::MAX, |_, e| {
        if let Entry::Socket(r) = e
            && r.obj.has(SHARED)
            && let Some(rx) = r.obj.rx.try_lock()
            && let Some(tx) = r.obj.tx.try_lock()
        {
            unshare_if_alone(r.obj);
            drop((rx, tx));
        }
    });
}

/// To be called in a child that begins in `new`: what this process knows of the network is not true there.
pub fn child_in(f: Forking, new: NewSpaces) {
    child(f);
    if new.network && crate::runtime::get().is_some() {
        crate::process_fallback::from_here(Reason::Namespace);
    }
}

/// To be called in the child, where no other thread exists, locks may be in any state, and the links are the parent's.
/// Nothing here allocates: the child of _Fork(3) finds the allocator as other threads have left it.
pub fn child(f: Forking) {
    lock::forget_held();
    netacc_sys::cancel::forget();
    LOCK.reset();
    FORK_LOCK.reset();
    CONNECTED.after_fork();
    WAITING.after_fork();
    FORKING.store(0, Ordering::Relaxed);
    // The writing end stays open as long as we live: that is its purpose.
    if let Some((reading, writing)) = f.pipe {
        reserved_fds::close(reading);
        hold(writing);
    }
    crate::runtime::reset_locks();
    crate::epoll::reset_locks();
    socket::create::drop_ready_sockets();
    socket::closing::after_fork();
    crate::poll::after_fork();
    socket::reset_locks();
    netacc_transport::shm::reset_locks();
    socket::pool::after_fork();
    netacc_transport::rdma::engine::after_fork(&f.engines);
    socket::queued_connects::after_fork();
    socket::redispatch::after_fork();
    socket::adopt::after_fork();
    netacc_transport::shm::promote::after_fork();
    fdtable::forget_leaving();
    fdtable::each(0, usize::MAX, |_, e| {
        let Entry::Socket(r) = e else { return };
        for l in [&r.obj.rx, &r.obj.tx, &r.obj.meta] {
            l.reset();
        }
        if let Some(l) = r.obj.listener() {
            l.after_fork();
        }
        if let Some(ep) = r.obj.endpoint() {
            // Its sockets must not be kept open by the child, or the parent's death would go unnoticed.
            ep.link().inherit();
            ep.reset_if_untold();
            ep.forget_sleepers();
            ep.forget_missing();
            if !r.obj.has(SHARED) {
                r.obj.disown();
            }
        }
    });
    // These locks are free already, and after _Fork(3) nothing may be given back to the allocator.
    core::mem::forget((f.unread, f.engines, f.guard));
    reserved_fds::fill_gaps();
    crate::runtime::after_fork(fdtable::numbers());
}

/// In the child: keeps the pipe at which the parent waits. Pipes of ancestors that do not wait any more make room for
/// it.
fn hold(writing: i32) {
    let free = || HELD.iter().find(|h| h.load(Ordering::Relaxed) == 0);
    if free().is_none() {
        HELD.iter().for_each(forget_if_gone);
    }
    match free() {
        Some(h) => h.store(writing + 1, Ordering::Relaxed),
        None => TOO_DEEP.store(true, Ordering::Relaxed),
    }
}

/// Closes the writing end of a pipe that nobody reads (pipe(7): poll(2) reports an error there).
fn forget_if_gone(held: &AtomicI32) {
    let fd = held.load(Ordering::Relaxed) - 1;
    let mut p = libc::pollfd { fd, events: 0, revents: 0 };
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let _ = raw::ppoll(&raw mut p, 1, &raw mut ts, core::ptr::null());
    if p.revents & libc::POLLERR != 0 {
        held.store(0, Ordering::Relaxed);
        reserved_fds::close(fd);
    }
}
