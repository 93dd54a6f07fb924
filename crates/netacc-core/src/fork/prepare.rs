//! fork(2) in the parent: what is done before it, so that parent and child can share what they have, and after it.

use crate::fd::table::Entry;
use crate::fd::{placeholder, table};
use crate::fork::descendants::{CONNECTED, FORKING, WAITING, end_of_life};
use crate::fork::namespace;
use crate::object::reference::Ref;
use crate::object::socket::{KEEPABLE, NONBLOCK, Path, SHARED, Socket};
use crate::switch::{demote, promote, queued_connects};
use crate::timeouts;
use core::sync::atomic::Ordering;
use netacc_stats::{Counter, Reason, page};
use netacc_sys::errno::Result;
use netacc_sys::signals::Blocked;
use netacc_sys::{Guard, Lock, lock, raw, reserved_fds, time};
use netacc_transport::shm::control::Unread;
use netacc_transport::shm::{ShmEndpoint, WaitBudget};
use rustix::fd::{AsRawFd, OwnedFd};

/// Held by the thread that forks while it keeps others from reading: of two such threads each would wait for what the
/// other has.
pub(super) static FORK_LOCK: Lock = Lock::new();
const FORK_QUIESCE: u64 = time::ns(timeouts::FORK_QUIESCE);
/// What [`prepare`] hands to [`parent`] and [`child`](super::child::child).
#[derive(Debug, Default)]
pub struct Forking {
    /// Reading and writing end of the pipe, if there is anything to share, and what it tells of.
    pub(super) pipe: Option<(i32, i32)>,
    /// Whether no connection is shared, only epoll instances.
    pub(super) instances: bool,
    /// [`FORK_LOCK`], if anything is unread.
    pub(super) guard: Option<Guard<'static>>,
    /// The links of shared connections, which no other thread reads until the fork is done: the kernel copies the
    /// descriptors and then the memory, and the child would know of what comes in between without having it.
    pub(super) unread: Unread,
    /// What is carried to other hosts is at rest meanwhile: the child goes through it.
    pub(super) engines: netacc_transport::rdma::engine::AtRest,
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
    queued_connects::await_queue_pairs();
    // Before anything is marked as shared: another thread must not take it for ours alone until the child is counted.
    FORKING.fetch_add(1, Ordering::SeqCst);
    let mut shared = false;
    let mut splits = new.processes.then_some(true);
    // All connections together have one patience.
    let timeout = WaitBudget::of_a_fork();
    table::each(0, usize::MAX, |fd, e| {
        let Entry::Socket(r) = e else { return };
        if r.obj.is_candidate() {
            promote::cancel(fd, r);
        }
        if r.obj.is_shm() && *splits.get_or_insert_with(namespace::splits_sharers) {
            let _ = demote::demote(fd, r, Reason::Fork);
        }
        match r.obj.path() {
            Path::New => {
                let _ = placeholder::materialize(fd, r.obj);
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
    let instances = crate::epoll::shared::before_fork();
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

fn share(fd: i32, r: Ref<Socket>, timeout: &WaitBudget) {
    let s = r.obj;
    // A handler of this thread must not close a number between the look at it and what is put under it.
    let _b = Blocked::all();
    // Nobody is in the middle of an operation when the connection becomes shared.
    let _g = (s.rx.lock(), s.tx.lock());
    // Another thread may have closed the socket meanwhile, or moved it to a kernel socket, or to another server: so the
    // endpoint is looked up here.
    let Some(ep) = s.endpoint().filter(|_| r.valid() && s.is_shm()) else { return };
    // The number is looked up here, too. A connection without one is about to be closed by another thread, which waits
    // for the locks: a liveness socket that lies under no number would end at once, and the peer would take the connection for
    // gone before it is.
    let there = table::get(fd).is_some_and(|e| e.is(r));
    let Some(fd) = Some(fd).filter(|_| there).or_else(|| table::number_of(r, fd)) else { return };
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
    if r.obj.has(NONBLOCK) {
        raw::fcntl(liveness.as_raw_fd(), libc::F_SETFL, (libc::O_RDWR | libc::O_NONBLOCK) as usize)?;
    }
    let result = placeholder::replace_everywhere(r.obj, liveness.as_raw_fd());
    // The number holds no placeholder any more that could serve the next connection.
    r.obj.set(KEEPABLE, false);
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
    table::each(0, usize::MAX, |_, e| {
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
