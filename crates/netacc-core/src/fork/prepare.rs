//! The parent's work before a fork, so that parent and child can share their objects, and after it.

use crate::conn::{abort, neighbours};
use crate::fd::placeholder;
use crate::fd::table::{self, Entry};
use crate::fork::descendants::{CONNECTED, FORKING, Tracked, WAITING};
use crate::fork::{namespace, ownership};
use crate::listen::withdrawal;
use crate::object::reference::Ref;
use crate::object::socket::{ConnState, KEEPABLE, Path, SHARED, SHARED_HERE, Socket, Upgrade};
use crate::switch::{demote, promote, queued_connects};
use crate::wait::spin;
use crate::{runtime, timeouts};
use core::sync::atomic::{AtomicU32, Ordering};
use netacc_stats::{Counter, Reason, page};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::signals::Blocked;
use netacc_sys::{Guard, Lock, lock, lock_rank, raw, reserved_fds, time};
use netacc_transport::shm::unread::Unread;
use netacc_transport::shm::{ShmEndpoint, WaitBudget, heir_waker};
use rustix::fd::{AsRawFd, OwnedFd};

/// Lock of a forking thread while it keeps others from reading: without it two such threads could wait for each other.
pub(super) static FORK_LOCK: Lock<{ lock_rank::FORK }> = Lock::new();
/// Largest number of connections for which a fork makes a waker for the child. A server that forks for each connection has one
/// that is new; one that has many forks for something else.
const HEIRS: u32 = 8;
const FORK_QUIESCE: u64 = time::ns(timeouts::FORK_QUIESCE);

/// The bits of the forks under way, by which a socket says which of them have counted their child as a holder of its
/// connection.
static COUNTING: AtomicU32 = AtomicU32::new(0);

/// The bit of one fork. Another thread may fork at the same time, and only that fork may have seen a connection that has
/// just been opened.
#[derive(Debug, Default)]
pub(super) struct Counting(u32);

impl Counting {
    fn begin() -> Counting {
        loop {
            let used = COUNTING.load(Ordering::Relaxed);
            let bit = !used & used.wrapping_add(1);
            // Relaxed: what the bits of the sockets say is changed under their locks.
            if bit != 0 && COUNTING.compare_exchange(used, used | bit, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return Counting(bit);
            }
            // Thirty-two threads fork at once, and each of them will be done soon.
            raw::sched_yield();
        }
    }

    /// Whether this fork has counted its child as a holder of the connection.
    pub(super) fn counts(&self, s: &Socket) -> bool {
        s.counted_by.load(Ordering::Relaxed) & self.0 != 0
    }

    /// In the child, when it has looked at all of its connections: forgets the forks of the parent. A connection may have
    /// several numbers, so none is forgotten before all were looked at.
    pub(super) fn after_fork() {
        COUNTING.store(0, Ordering::Relaxed);
        table::each(0, usize::MAX, |_, e| {
            if let Entry::Socket(r) = e {
                r.obj.counted_by.store(0, Ordering::Relaxed);
            }
        });
    }

    /// In the parent: ends the fork, which has made a child or not.
    fn end(&self, forked: bool) {
        table::each(0, usize::MAX, |_, e| {
            let Entry::Socket(r) = e else { return };
            let counted = r.obj.counted_by.load(Ordering::Relaxed) & self.0 != 0;
            if counted && r.obj.counted_by.fetch_and(!self.0, Ordering::Relaxed) & self.0 != 0 && !forked {
                r.obj.holders.take_back();
            }
        });
        COUNTING.fetch_and(!self.0, Ordering::Relaxed);
    }
}

/// The data that [`prepare`] passes to [`parent`] and [`child`](super::child::child).
#[derive(Debug, Default)]
pub struct Forking {
    /// How the parent knows when the child's copies of its objects have gone.
    pub(super) tracked: Tracked,
    /// Whether no connection is shared, only epoll instances.
    pub(super) instances: bool,
    /// The bit by which sockets say that their connection was counted for this fork.
    pub(super) counting: Counting,
    /// [`FORK_LOCK`], if anything is unread.
    pub(super) guard: Option<Guard<'static>>,
    /// The links of shared connections, which no other thread reads until the fork is done: the kernel copies the
    /// descriptor table before the memory, and the child's memory could name a descriptor that was received in between
    /// and that the child does not have.
    pub(super) unread: Unread,
    /// Locks that keep the RDMA engines at rest meanwhile, since the child walks over their connections.
    pub(super) engines: netacc_transport::rdma::engine::AtRest,
}

/// New namespaces in which a child begins (clone(2)).
#[derive(Clone, Copy, Debug, Default)]
pub struct NewSpaces {
    /// A new PID namespace.
    pub processes: bool,
    /// A new network namespace.
    pub network: bool,
}

/// To be called in the parent before a fork into its own namespaces.
pub fn prepare() -> Forking {
    prepare_for(NewSpaces::default())
}

/// To be called in the parent before the fork: every unconnected socket becomes real, every connection gets what
/// several processes need to share it.
pub fn prepare_for(new: NewSpaces) -> Forking {
    // Determined before this thread takes a lock.
    let in_handler = lock::interrupted();
    // After the fork several processes would have such a connect, and could not agree which of them makes it again.
    queued_connects::await_queue_pairs();
    queued_connects::leave_before_fork();
    if !in_handler {
        table::each_socket(leave_queue);
    }
    if runtime::get().is_some() {
        spin::before_fork();
    }
    // Counted before any object is marked as shared: another thread must not end the sharing before the child is
    // tracked.
    FORKING.fetch_add(1, Ordering::SeqCst);
    let mut shared = false;
    let counting = Counting::begin();
    let mut splits = new.processes.then_some(true);
    // One time budget covers all connections together.
    let timeout = WaitBudget::of_a_fork();
    table::each(0, usize::MAX, |fd, e| {
        let Entry::Socket(r) = e else { return };
        let held = end_candidacy(fd, r);
        if r.obj.is_shm() && *splits.get_or_insert_with(namespace::splits_sharers) {
            let _ = demote::demote(fd, r, Reason::Fork);
        }
        share_unconnected(fd, r.obj);
        match r.obj.path() {
            Path::New => {}
            Path::Shm => {
                shared = true;
                share(fd, r, &counting, &timeout);
                // Another thread may just have taken it to the kernel for an operator.
                end_candidacy(fd, r);
            }
            Path::Listener => share_listener(r.obj),
            // As above. One that the child may go on with has been counted, once for this fork.
            Path::Tcp if !held => drop(end_candidacy(fd, r)),
            Path::Tcp => {}
        }
    });
    let instances = crate::epoll::shared::before_fork();
    let mut forking = Forking { instances: !shared, counting, ..Forking::default() };
    if shared || instances {
        forking.tracked = Tracked::begin();
    }
    if shared {
        forking.stop_sharers(&timeout, in_handler);
    }
    // Done last: the engine is the peer of its connections, and first has to read the liveness sockets that they sent.
    forking.engines = netacc_transport::rdma::engine::before_fork(in_handler);
    forking
}

impl Forking {
    /// Prepares the connections that parent and child will have, after all of them are marked: a peer that is forking too
    /// waits for us as we wait for it.
    fn stop_sharers(&mut self, timeout: &WaitBudget, in_handler: bool) {
        each_shared(|ep| ep.before_fork(timeout));
        let mut heirs = 0;
        each_shared(|ep| heirs += u32::from(heirs < HEIRS && heir_waker::make(ep)));
        // A handler that has interrupted a reader must not wait for it.
        let timeout = if in_handler { 0 } else { FORK_QUIESCE };
        self.guard = FORK_LOCK.lock_within(timeout);
        each_shared(|ep| self.unread.stop(ep.side.link(), timeout));
        each_shared(|ep| ep.about_to_fork(&self.unread));
    }
}

fn share_listener(s: &Socket) {
    if let Some(l) = s.listener() {
        l.note_sharers(crate::engine::share_companions());
        l.servers.before_fork();
    }
}

/// Passes the connects on that wait at a listener which the child may be the one to serve.
fn leave_queue(fd: i32, r: Ref<Socket>) {
    let Some(l) = r.obj.listener().filter(|_| r.obj.path() == Path::Listener) else { return };
    share_listener(r.obj);
    if l.served.load(Ordering::Relaxed) == 0 || l.servers.may_begin_to_serve(|fd| table::socket(fd).is_some()) {
        withdrawal::leave_to_heirs(fd, r.obj, l);
    }
}

/// Leaves it to the kernel to whom an unconnected socket is connected, or that it listens: parent and child have it from
/// here on, and either may connect it or call listen(2).
fn share_unconnected(fd: i32, s: &'static Socket) {
    if s.change(ConnState::Aborted, ConnState::New) {
        // As before a connect: the kernel socket still shows the port of the previous connection.
        abort::bind_anew(fd, s);
    }
    if s.path() == Path::New
        && let Err(e) = placeholder::share(fd, s)
        // Another thread may have closed the number just now.
        && e != Errno::BADF
    {
        netacc_log::log!(Warn, "fd {fd}: no kernel socket for it ({e}); parent and child do not have it in common");
    }
}

/// Leaves a candidate to the kernel, unless the child may go on with it. Returns whether it may.
fn end_candidacy(fd: i32, r: Ref<Socket>) -> bool {
    if !r.obj.is_candidate() {
        return false;
    }
    let held = hold_in_both(r);
    if !held {
        neighbours::note_reason(r.obj, Reason::Fork);
        promote::cancel(fd, r);
    }
    held
}

/// Lets the child go on with a candidate whose client is in another network namespace: a server that forks for each
/// connection. False: it is none.
fn hold_in_both(r: Ref<Socket>) -> bool {
    let s = r.obj;
    if !s.is(ConnState::Candidate(Upgrade::AwaitOffer)) || s.upgrade.when.load(Ordering::Relaxed) == 0 {
        return false;
    }
    // With both locks held no other thread is in a call that counts what it reads and sends.
    let _g = (s.rx.lock(), s.tx.lock());
    let there = r.valid() && s.is(ConnState::Candidate(Upgrade::AwaitOffer));
    // SeqCst: see `HeldBy::is_counted`.
    there && s.upgrade.held_by.fork() && s.upgrade.sending.load(Ordering::SeqCst) == 0
}

fn each_shared(mut f: impl FnMut(&'static ShmEndpoint)) {
    table::each(0, usize::MAX, |_, e| {
        if let Entry::Socket(r) = e
            && r.obj.has(SHARED)
            && let Some(ep) = r.obj.endpoint()
        {
            f(ep);
        }
    });
}

fn share(fd: i32, r: Ref<Socket>, counting: &Counting, timeout: &WaitBudget) {
    let s = r.obj;
    // Signals are blocked, since a handler of this thread must not close a number between the look-up and the
    // replacement of its file.
    let _b = Blocked::all();
    // With both locks held no other thread is in an operation when the connection becomes shared.
    let _g = (s.rx.lock(), s.tx.lock());
    // Another thread may have closed, demoted or redispatched the connection meanwhile: so the endpoint is looked up
    // here.
    let Some(ep) = s.ring().filter(|_| r.valid()) else { return };
    // The number is looked up here, too. A connection without one is being closed by another thread, which waits for
    // the locks: a liveness socket under no number would end at once, and the peer would conclude too early that the
    // connection is closed.
    let there = table::get(fd).is_some_and(|e| e.is(r));
    let Some(fd) = Some(fd).filter(|_| there).or_else(|| table::number_of(r, fd)) else { return };
    count_holder(s, counting);
    if s.set(SHARED, true) && ep.liveness.fd() >= 0 {
        return;
    }
    match ep.share(timeout) {
        Ok(Some(liveness)) => {
            // The old subflow of a promoted connection may still have unread bytes.
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

/// Counts the child as a further holder of a connection, before it exists: the count is never too low. Under both
/// direction locks.
fn count_holder(s: &Socket, counting: &Counting) {
    // A connection with several numbers comes here once for each.
    if counting.counts(s) {
        return;
    }
    let first = !s.has(SHARED);
    if first {
        s.set(SHARED_HERE, true);
    }
    // Without a count, of a connection that is shared already, it is not known who has it.
    let counted = if first { s.holders.begin() } else { s.holders.fork() };
    if !counted {
        s.holders.forget();
    }
    s.counted_by.fetch_or(counting.0, Ordering::Relaxed);
}

/// Puts the liveness socket under every number the application has for the connection.
fn put_under(first: i32, r: Ref<Socket>, liveness: &OwnedFd) -> Result<()> {
    placeholder::set_status_flags(r.obj, liveness.as_raw_fd(), libc::O_RDWR);
    let result = placeholder::replace_everywhere(r.obj, liveness.as_raw_fd());
    // The number has no placeholder any more that the fd cache could keep.
    r.obj.set(KEEPABLE, false);
    if let (Ok(()), Some(ep)) = (result, r.obj.endpoint()) {
        ep.set_liveness(first);
    }
    result
}

/// To be called in the parent after the fork, also if that failed (`forked` is false).
pub fn parent(f: Forking, forked: bool) {
    drop(f.engines);
    if forked {
        page().count(Counter::Forks);
    }
    f.counting.end(forked);
    let which = if f.instances { &WAITING } else { &CONNECTED };
    match f.tracked {
        Tracked::Needless => {}
        Tracked::By { reading, writing } => {
            reserved_fds::close(writing);
            which.remember(reading);
        }
        Tracked::Lost => which.lose(),
    }
    FORKING.fetch_sub(1, Ordering::SeqCst);
    f.unread.go_on();
    drop(f.guard);
    forget_untold();
}

/// In the parent: ends the sharing of connections without a liveness socket, since the child has reset its copy of
/// them.
fn forget_untold() {
    table::each(0, usize::MAX, |_, e| {
        if let Entry::Socket(r) = e
            && r.obj.has(SHARED)
            && r.obj.endpoint().is_some_and(|ep| ep.side.is_untold())
        {
            let _g = (r.obj.rx.lock(), r.obj.tx.lock());
            if r.valid()
                && let Some(ep) = r.obj.endpoint().filter(|ep| ep.side.forget_untold() && ep.liveness.fd() < 0)
            {
                ownership::end_sharing(r.obj, ep);
            }
        }
    });
}
