//! Redispatch: a connect that is queued at a process which does not accept it is made again.
//!
//! In the kernel the queue belongs to the listener, and if a process dies another one that serves it accepts the
//! connection. So the client connects again, to another process behind the same rendezvous or by TCP, and sends every
//! byte that it has written so far.

use crate::conn::pool::{self, ClaimFor};
use crate::conn::{kernel_queue, ports};
use crate::epoll::paths;
use crate::fd::placeholder::replace_everywhere;
use crate::fd::table;
use crate::fork::descendants;
use crate::object::reference::Ref;
use crate::object::socket::{LINGER_RESET, PLACEHOLDER, SHARED, SHARED_HERE, Socket};
use crate::switch::by_tcp::{SILENT, by_tcp, dial_or_not, is_kernel_full, note_silent, now_tcp, send_drained};
use crate::switch::to_kernel::accept;
use crate::switch::{full_queue, queued};
use crate::timeouts;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, Ordering};
use netacc_stats::Reason;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::time::{self, Deadline};
use netacc_sys::{Guard, lock, raw};
use netacc_transport::Endpoint;
use netacc_transport::rdma::engine::{self, progress};
use netacc_transport::shm::ShmEndpoint;
use netacc_transport::shm::claim::Pushed;
use netacc_transport::shm::owner::Owned;
use netacc_transport::shm::segment::Segment;

/// Switches a connection that [has to](ShmEndpoint::must_switch): redispatches a queued connect, or accepts the peer's
/// switch. Takes both direction locks.
#[cold]
pub fn complete_switch(r: Ref<Socket>) {
    match r.obj.endpoint() {
        Some(ep) if ep.connect.is_orphaned(&ep.side) => redispatch(r),
        Some(_) => accept(r),
        None => {}
    }
}

/// Follows a peer that left the ring while bytes were written: they are sent after it now, and not at the program's
/// next call. Takes both direction locks.
#[cold]
pub(crate) fn go_after(r: Ref<Socket>) {
    // If another thread has closed the connection meanwhile, the close sends the bytes.
    let Some(pin) = r.pin() else { return };
    if let Some(ep) = r.obj.endpoint() {
        ep.await_kernel();
    }
    complete_switch(r);
    drop(pin);
}

/// To be called before the process ends: makes connects to other hosts that no queue pair has taken by TCP, since the
/// kernel would deliver written bytes after the process's end. This concerns only connects that no other process could
/// make.
#[cold]
pub fn settle_queued(until: Deadline) {
    table::each(0, usize::MAX, |_, e| {
        if let table::Entry::Socket(r) = e
            && !until.passed()
            && is_in_doubt(r.obj)
        {
            give_up(r);
        }
    });
    // Connects that other threads have withdrawn must be made again before the process ends. A handler that has
    // interrupted such a thread cannot wait for it.
    while is_moving_any() && !lock::interrupted() && !until.passed() {
        nap();
    }
}

/// Number of threads that are redispatching a connect. Once a thread has withdrawn a connect, [`is_in_doubt`] no longer
/// reports it.
static MOVING: AtomicU32 = AtomicU32::new(0);

/// Guard that counts the calling thread in [`MOVING`].
struct Moving;

impl Moving {
    fn begin() -> Moving {
        // SeqCst, before a connect is withdrawn: a thread that finds a connect withdrawn sees this count.
        MOVING.fetch_add(1, Ordering::SeqCst);
        Moving
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        // In the child of a fork the count may be 0 already.
        let _ = MOVING.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
    }
}

/// Whether any thread is redispatching a connect.
#[inline]
pub fn is_moving_any() -> bool {
    MOVING.load(Ordering::SeqCst) != 0
}

/// Sleeps a moment between two checks of another thread's progress.
pub(super) fn nap() {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 200_000 };
    let _ = raw::ppoll(core::ptr::null_mut(), 0, &raw mut ts, core::ptr::null());
}

/// Called in the child of a fork, in which no other thread exists: resets the count.
pub fn after_fork() {
    MOVING.store(0, Ordering::Relaxed);
    SILENT.after_fork();
    full_queue::after_fork();
}

/// Whether a connect to another host waits for a queue pair, and only this process has the bytes that were written to
/// it.
pub fn is_in_doubt(s: &Socket) -> bool {
    s.is_shm()
        && !s.has(SHARED | LINGER_RESET)
        && s.endpoint().is_some_and(|ep| awaits_queue_pair(ep) && ep.has_written())
}

/// Whether this is a connect of this process's own to another host that no queue pair has taken.
fn awaits_queue_pair(ep: &ShmEndpoint) -> bool {
    ep.side.is_remote() && ep.side.is_queued() && !ep.side.link().is_inherited()
}

/// Called when the program closes the last number of a connect that waits for a queue pair. If no queue pair were
/// established, no process could make it again: so the number stays open until a queue pair has taken the connect, or
/// TCP has the bytes. Takes both direction locks.
#[cold]
pub fn settle_before_close(fd: i32, r: Ref<Socket>) {
    let end = Deadline::within(timeouts::REDISPATCH_CLOSED);
    while r.valid() && is_in_doubt(r.obj) && table::number_of(r, fd).is_none() {
        if r.obj.endpoint().is_some_and(|ep| ep.connect.is_orphaned(&ep.side)) || end.passed() {
            return give_up(r);
        }
        progress::progress();
        nap();
    }
    // Another thread that has withdrawn the connect holds its locks, and a handler may have interrupted that thread.
    if is_moving_any() && !lock::interrupted() {
        drop((r.obj.rx.lock(), r.obj.tx.lock()));
    }
}

/// Makes the connect by TCP, unless it has just been accepted. Takes both direction locks.
fn give_up(r: Ref<Socket>) {
    by_tcp_if(r, is_in_doubt);
}

/// Makes a connect that waits for a queue pair by TCP because its program needs a kernel socket, even if nothing was
/// written to it. Any other connection is left unchanged.
pub fn instead(r: Ref<Socket>) {
    let waits = |s: &Socket| s.endpoint().is_some_and(awaits_queue_pair);
    if waits(r.obj) {
        by_tcp_if(r, |s| s.is_shm() && !s.has(SHARED) && waits(s));
    }
}

fn by_tcp_if(r: Ref<Socket>, may: impl FnOnce(&Socket) -> bool) {
    let s = r.obj;
    let why = why_by_tcp(s);
    let _moving = Moving::begin();
    let (rx, tx) = (s.rx.lock(), s.tx.lock());
    if r.valid()
        && !descendants::under_way()
        && may(s)
        && let Some(old) = s.endpoint().filter(|ep| ep.side.withdraw())
    {
        move_on(r, old, why);
    }
    drop((rx, tx));
}

/// The reason that is reported if a connect that has to be made again goes by TCP.
fn why_by_tcp(s: &Socket) -> Reason {
    let remote = s.endpoint().map(|ep| ep.side.link()).filter(|link| link.is_remote()).zip(s.peer.get());
    match remote {
        Some((link, server)) => engine::why_not(server, link.engine()).unwrap_or(Reason::OtherHost),
        None => Reason::LinkLost,
    }
}

/// Redispatches a queued connect whose process has died. Takes both direction locks.
#[cold]
pub fn redispatch(r: Ref<Socket>) {
    // The child of a fork in progress would not know the new endpoint, and would have no connection.
    descendants::let_pass(|| {
        let s = r.obj;
        // Determined before the direction locks are taken, since an engine's lock comes first in the order.
        let why = why_by_tcp(s);
        let _moving = Moving::begin();
        let (rx, tx) = (s.rx.lock(), s.tx.lock());
        let orphan = s.ring().filter(|e| r.valid() && e.connect.is_orphaned(&e.side));
        // Checked under the locks, which a forking thread takes after it has announced the fork.
        let now = orphan.is_none() || !descendants::under_way();
        if now
            && let Some(old) = orphan
            && old.side.withdraw()
        {
            // Only this counts. A connect that is moved because its process is busy has been refused by nobody.
            s.redispatched.fetch_add(1, Ordering::Relaxed);
            move_on(r, old, why);
        }
        drop((rx, tx));
        now
    });
}

/// Redispatches all connects to `dest` whose process has died or refused them, in the order in which they were made.
/// Returns whether there were any. The caller has no lock.
#[cold]
pub fn orphans_of(dest: SocketAddr) -> bool {
    let mut found: Vec<(u64, Ref<Socket>)> = Vec::new();
    table::each_socket(|_, r| {
        if r.obj.is_shm() && r.obj.peer.get() == Some(dest) {
            found.extend(
                queued::with_endpoint(r, |ep| ep.connect.is_orphaned(&ep.side).then(|| (queued::made_at(ep), r)))
                    .flatten(),
            );
        }
    });
    found.sort_by_key(|(when, _)| *when);
    // A socket with several numbers is found several times.
    found.dedup_by_key(|(_, r)| core::ptr::from_ref(r.obj));
    for (_, r) in &found {
        redispatch(*r);
    }
    if !found.is_empty() {
        kernel_queue::note(dest);
    }
    !found.is_empty()
}

/// Redispatches a connect from a busy process to one that waits for connects, or to the queue that all processes of the
/// listener have. Takes both direction locks.
#[cold]
pub fn elsewhere(r: Ref<Socket>) -> bool {
    let s = r.obj;
    let _moving = Moving::begin();
    let (rx, tx) = (s.rx.lock(), s.tx.lock());
    let movable = r.valid() && s.is_shm() && !s.has(SHARED) && !descendants::under_way();
    let waiting = s.endpoint().filter(|e| movable && e.side.is_queued());
    let can_move = |e: &ShmEndpoint| s.peer.get().is_some_and(|dest| pool::can_move(dest, e.side.link()));
    let moved =
        waiting.filter(|e| can_move(e) && e.side.withdraw()).map(|old| move_on(r, old, Reason::NotTaken)).is_some();
    drop((rx, tx));
    moved
}

/// Makes a withdrawn connect once more and writes its bytes again. Under both direction locks.
fn move_on(r: Ref<Socket>, old: &'static ShmEndpoint, why: Reason) {
    let s = r.obj;
    let (mut bytes, first) = old.written();
    let ended = old.side.ended();
    match reconnect(s, old) {
        Ok(new) => {
            if !new.rewrite(&mut bytes, first, ended) {
                new.fail(Errno::CONNRESET);
            }
            paths::switched(s, old, || s.set_endpoint(new));
            // No other process shares the new endpoint.
            s.set(SHARED | SHARED_HERE, false);
            s.holders.leave();
            // Threads that sleep on the connection wake, check it again, and find the new endpoint.
            old.poke_self();
            if new.side.link().segment().is_some_and(Segment::may_be_served_by_many) {
                queued::note_redispatched(r);
            }
            old.close(false);
            netacc_log::log!(
                Info,
                "fd {}: the server did not accept; queued at another process with {} bytes",
                s.first_fd(),
                bytes.len()
            );
        }
        Err(_) if full_queue::wait_for_room(s, old) => {}
        Err(not) => {
            let why = if not == Reason::Refused { not } else { why };
            let done = by_tcp(r, old, &bytes, ended, why);
            netacc_log::log!(
                Info,
                "fd {}: {}; using kernel TCP with {} bytes: {done:?}",
                s.first_fd(),
                why.name(),
                bytes.len()
            );
            match done {
                Err(Errno::TIMEDOUT) if old.side.is_remote() => {
                    s.peer.get().into_iter().for_each(|peer| note_silent(peer.ip()));
                    old.fail(Errno::TIMEDOUT);
                }
                Err(Errno::TIMEDOUT) if full_queue::wait_after_timeout(s, old) => {}
                Err(_) => old.fail(Errno::CONNRESET),
                Ok(()) => {}
            }
        }
    }
}

/// Makes connects that have waited too long at one process by TCP, where any of the processes that serve the listener
/// can accept them. `queue` has all connects of this process that wait there, oldest first. Where some of them cannot
/// go, neither do older ones, since a process takes what remains in its queue before what comes by TCP; so the order in
/// which connects are accepted stays that in which they were made. Takes both direction locks of each.
///
/// `why` is the reason that is shown: `NotTaken`, `Fork` for connects that two processes are about to have, or `Operator` for those of
/// a process that is about to leave shared memory.
#[cold]
pub fn bypass(queue: &[Ref<Socket>], why: Reason) {
    let Some(target) = queue.first().and_then(|r| r.obj.peer.get()) else { return };
    let has_room = |found: Owned| found.room() as usize >= queue.len();
    // Before a fork or a switch no later attempt follows, so the queue of another listener that was full just now says nothing.
    let is_full = why == Reason::NotTaken && is_kernel_full();
    if is_full || !kernel_queue::listener(target).is_none_or(has_room) {
        return;
    }
    let _moving = Moving::begin();
    // The connects are withdrawn first, the youngest before all others: the server would also accept a TCP connection
    // that turns out not to be needed.
    let mut leaving: Vec<Leaving> = queue.iter().rev().map_while(|r| Leaving::begin(*r, why)).collect();
    leaving.reverse();
    let mut any = false;
    let mut refused = false;
    for connect in leaving {
        refused = refused || connect.go_by_tcp(target, why).is_err();
        if refused {
            move_on(connect.r, connect.old, Reason::LinkLost);
        }
        any |= !refused;
    }
    if any {
        kernel_queue::note(target);
    }
}

/// A connect that was withdrawn from the queue of a process, and that no other thread touches until it is made again.
struct Leaving {
    r: Ref<Socket>,
    old: &'static ShmEndpoint,
    #[expect(dead_code, reason = "the locks are held as long as it lives")]
    locks: (Guard<'static>, Guard<'static>),
}

impl Leaving {
    /// `None`: the connect was just accepted, or has to wait where it is. The locks are only tried, since another
    /// thread that has one of them may wait for one that this thread has taken for an earlier connect.
    fn begin(r: Ref<Socket>, why: Reason) -> Option<Leaving> {
        let s = r.obj;
        let locks = (s.rx.try_lock()?, s.tx.try_lock()?);
        let old = s.ring().filter(|e| r.valid() && e.side.is_queued())?;
        let stays = s.has(SHARED)
            || descendants::under_way()
            || (why == Reason::NotTaken && !old.side.link().segment().is_some_and(Segment::served_by_many));
        (!stays && old.side.withdraw()).then_some(Leaving { r, old, locks })
    }

    /// Fails if the kernel does not connect at once.
    fn go_by_tcp(&self, target: SocketAddr, why: Reason) -> Result<()> {
        let (s, old) = (self.r.obj, self.old);
        let real = raw::socket(s.domain(), libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)?;
        s.apply_options(real);
        let dialled = dial_or_not(s, real, target);
        if dialled.is_ok() {
            let bytes = old.written().0;
            let done = send_drained(s, real, &bytes, old.side.ended(), Deadline::within(timeouts::REDISPATCH_LOCAL));
            netacc_log::log!(
                Info,
                "fd {}: its server has not taken it ({}), by TCP with {} bytes: {done:?}",
                s.first_fd(),
                why.name(),
                bytes.len()
            );
            if done.and_then(|()| replace_everywhere(s, real)).is_ok() {
                s.set(PLACEHOLDER, false);
                old.side.link().queue.stuck.store(1, Ordering::Relaxed);
                now_tcp(s, old, why);
            } else {
                old.fail(Errno::CONNRESET);
            }
        }
        // Before the connect is made in another way: if the handshake had completed meanwhile, the server would accept
        // a second connection.
        let _ = raw::close(real);
        dialled
    }
}

/// Number of links over which a connect is made again after a link was refused, or its process died, before it goes by
/// TCP.
const LINKS_TRIED: u32 = 3;

/// Makes the connect once more over a link other than that of `old`.
fn reconnect(s: &'static Socket, old: &ShmEndpoint) -> core::result::Result<&'static ShmEndpoint, Reason> {
    if s.redispatched.load(Ordering::Relaxed) > LINKS_TRIED {
        if let Some(target) = s.peer.get()
            && old.side.link().was_refused()
        {
            ports::note_absent(target, Reason::Refused, time::coarse());
        }
        return Err(Reason::Refused);
    }
    let (Some(local), Some(target)) = (s.local.get(), s.peer.get()) else { return Err(Reason::Refused) };
    if s.endpoint().is_some_and(|ep| ep.side.is_remote()) {
        // In this namespace the rendezvous of that name would belong to another listener.
        return Err(Reason::OtherHost);
    }
    if s.endpoint().is_some_and(|ep| ep.side.link().was_refused()) {
        // Further links would be refused, too.
        return Err(Reason::Refused);
    }
    // A process that goes on accepting has only been too busy for this one.
    let what = if old.side.link().accepting() { ClaimFor::Move } else { ClaimFor::Connect };
    let claim = pool::claim(local, target, None, what)?;
    let (link, slot, generation) = (claim.link, claim.claimed.slot, claim.claimed.generation);
    let ep = claim.begin(local, target)?;
    if let Some(sl) = link.segment().and_then(|seg| seg.slot(slot)) {
        // Its place among the connects of other links is still that of the program's call.
        sl.open.when.store(queued::made_at(old), Ordering::Relaxed);
    }
    let pushed = claim.push();
    let goes_elsewhere = pushed == Pushed::Left || !link.accepting();
    if pushed == Pushed::Full || (goes_elsewhere && ep.side.withdraw()) {
        if pushed == Pushed::Full {
            ep.side.never_mind(generation);
        }
        ep.close(true);
        return Err(Reason::Refused);
    }
    Ok(ep)
}
