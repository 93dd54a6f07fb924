//! A connect that was queued at a process which died before taking it.
//!
//! In the kernel the queue belongs to the listener, and another process that serves it takes the
//! connection. So the client goes on: to another process behind the same rendezvous, or to TCP, with every
//! byte it has written so far.

use crate::conn::{pool, ports};
use crate::epoll::paths;
use crate::fd::placeholder::replace_everywhere;
use crate::fd::table;
use crate::fork::descendants;
use crate::object::reference::Ref;
use crate::object::socket::{LINGER_RESET, PLACEHOLDER, SHARED, Socket};
use crate::switch::by_tcp::{SILENT, by_tcp, dial_or_not, is_kernel_full, note_silent, now_tcp, send_drained};
use crate::switch::queued;
use crate::switch::to_kernel::accept;
use crate::timeouts;
use core::sync::atomic::{AtomicU32, Ordering};
use netacc_stats::Reason;
use netacc_sys::errno::Errno;
use netacc_sys::time::Deadline;
use netacc_sys::{lock, raw, time};
use netacc_transport::Endpoint;
use netacc_transport::rdma::engine;
use netacc_transport::rdma::engine::progress;
use netacc_transport::shm::ShmEndpoint;

/// Settles a connection that is [told to switch](ShmEndpoint::must_switch): it goes on elsewhere. Takes both direction locks.
#[cold]
pub fn complete_switch(r: Ref<Socket>) {
    match r.obj.endpoint() {
        Some(ep) if ep.orphaned() => redispatch(r),
        Some(_) => accept(r),
        None => {}
    }
}

/// To be called before the process ends: connects to other hosts that no queue pair has taken are made by TCP, as the
/// kernel would go on with what was written after the process's end. Only where this process is the only one that could
/// make them.
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
    // What other threads have withdrawn must be in its new place before the process ends. A handler may have
    // interrupted one of them.
    while is_moving_any() && !lock::interrupted() && !until.passed() {
        nap();
    }
}

/// Number of threads that are making a connect again; from the moment that a thread has withdrawn it, the connect is
/// not in doubt any more.
static MOVING: AtomicU32 = AtomicU32::new(0);

/// Counts the calling thread among them as long as it lives.
struct Moving;

impl Moving {
    fn begin() -> Moving {
        // SeqCst, before anything is withdrawn: a thread that finds something withdrawn sees this.
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

/// Whether any thread is making a connect again.
#[inline]
pub fn is_moving_any() -> bool {
    MOVING.load(Ordering::SeqCst) != 0
}

/// Sleeps a moment between two looks at what another thread is about to do.
pub(super) fn nap() {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 200_000 };
    let _ = raw::ppoll(core::ptr::null_mut(), 0, &raw mut ts, core::ptr::null());
}

/// Called in the child of a fork, in which no thread makes a connect again.
pub fn after_fork() {
    MOVING.store(0, Ordering::Relaxed);
    SILENT.after_fork();
}

/// Whether a connect to another host waits for a queue pair, and this process alone knows what was written to it.
pub fn is_in_doubt(s: &Socket) -> bool {
    s.is_shm()
        && !s.has(SHARED | LINGER_RESET)
        && s.endpoint().is_some_and(|ep| awaits_queue_pair(ep) && ep.has_written())
}

/// Whether this is a connect of this process's own to another host that no queue pair has taken.
fn awaits_queue_pair(ep: &ShmEndpoint) -> bool {
    ep.is_remote() && ep.is_queued() && !ep.link().is_inherited()
}

/// The program closes the last number of such a connect. If no queue pair came about, no process could make it again:
/// so the number stays until a queue pair has taken the connect, or TCP has the bytes. Takes both direction locks.
#[cold]
pub fn see_off(fd: i32, r: Ref<Socket>) {
    let end = Deadline::within(timeouts::REDISPATCH_CLOSED);
    while r.valid() && is_in_doubt(r.obj) && table::number_of(r, fd).is_none() {
        if r.obj.endpoint().is_some_and(ShmEndpoint::orphaned) || end.passed() {
            return give_up(r);
        }
        progress::progress();
        nap();
    }
    // Another thread may have withdrawn the connect, and then holds its locks. A handler may have interrupted that
    // thread.
    if is_moving_any() && !lock::interrupted() {
        drop((r.obj.rx.lock(), r.obj.tx.lock()));
    }
}

/// Makes the connect by TCP, unless it has been taken just now. Takes both direction locks.
fn give_up(r: Ref<Socket>) {
    by_tcp_if(r, is_in_doubt);
}

/// Makes such a connect by TCP because its program wants it, even if nothing was written to it. Nothing happens to any
/// other connection.
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
        && let Some(old) = s.endpoint().filter(|ep| ep.withdraw())
    {
        move_on(r, old, why);
    }
    drop((rx, tx));
}

/// The reason that is reported if a connect that has to be made again goes by TCP.
fn why_by_tcp(s: &Socket) -> Reason {
    let remote = s.endpoint().map(ShmEndpoint::link).filter(|link| link.is_remote()).zip(s.peer.get());
    match remote {
        Some((link, server)) => engine::why_not(server, link.engine()).unwrap_or(Reason::OtherHost),
        None => Reason::LinkLost,
    }
}

/// Gives an orphaned connection another server. Takes both direction locks.
#[cold]
pub fn redispatch(r: Ref<Socket>) {
    // The child of a fork that is under way would not know of another endpoint, and would have nothing.
    descendants::let_pass(|| {
        let s = r.obj;
        // Asked before the locks, since an engine's lock comes first.
        let why = why_by_tcp(s);
        let _moving = Moving::begin();
        let (rx, tx) = (s.rx.lock(), s.tx.lock());
        let orphan = s.endpoint().filter(|e| r.valid() && s.is_shm() && e.orphaned());
        // Asked under the locks, which a thread that forks takes after it has said so.
        let now = orphan.is_none() || !descendants::under_way();
        if now
            && let Some(old) = orphan
            && old.withdraw()
        {
            move_on(r, old, why);
        }
        drop((rx, tx));
        now
    });
}

/// Moves a connect that waits at a busy process to another process, which waits for connects. Takes both direction
/// locks.
#[cold]
pub fn elsewhere(r: Ref<Socket>) -> bool {
    let s = r.obj;
    let _moving = Moving::begin();
    let (rx, tx) = (s.rx.lock(), s.tx.lock());
    let movable = r.valid() && s.is_shm() && !s.has(SHARED) && !descendants::under_way();
    let waiting = s.endpoint().filter(|e| movable && e.is_queued());
    let awaited = |e: &ShmEndpoint| s.peer.get().is_some_and(|dest| pool::is_awaited_elsewhere(dest, e.link()));
    let moved = waiting.filter(|e| awaited(e) && e.withdraw()).map(|old| move_on(r, old, Reason::LinkLost)).is_some();
    drop((rx, tx));
    moved
}

/// Makes a connect that was withdrawn once more, with what was written so far. Under both direction locks.
fn move_on(r: Ref<Socket>, old: &'static ShmEndpoint, why: Reason) {
    let s = r.obj;
    let (mut bytes, first) = old.written();
    let ended = old.ended();
    match reconnect(s, old) {
        Ok(new) => {
            if !new.rewrite(&mut bytes, first, ended) {
                new.fail(Errno::CONNRESET);
            }
            paths::switched(s, old, || s.set_endpoint(new));
            // No other process knows of the new endpoint.
            s.set(SHARED, false);
            // Threads that wait for it look again, and find the new one.
            old.poke_self();
            if new.link().may_be_served_by_many() {
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
                Err(Errno::TIMEDOUT) if old.is_remote() => {
                    s.peer.get().into_iter().for_each(|peer| note_silent(peer.ip()));
                    old.fail(Errno::TIMEDOUT);
                }
                Err(_) => old.fail(Errno::CONNRESET),
                Ok(()) => {}
            }
        }
    }
}

/// Makes a connect that waits too long at its process by TCP, where any of the processes that serve the listener may
/// take it. If the kernel does not take it at once it is queued anew. Takes both direction locks.
#[cold]
pub fn bypass(r: Ref<Socket>) {
    let s = r.obj;
    let _moving = Moving::begin();
    let (rx, tx) = (s.rx.lock(), s.tx.lock());
    let Some(old) = s.endpoint().filter(|e| r.valid() && s.is_shm() && e.is_queued()) else { return };
    if s.has(SHARED) || descendants::under_way() || !old.link().served_by_many() || is_kernel_full() {
        return;
    }
    let (Some(target), Ok(real)) = (s.peer.get(), raw::socket(s.domain(), libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0))
    else {
        return;
    };
    s.apply_options(real);
    // First the decision: a connection by TCP that is not needed after all would be one more that the server accepts.
    if !old.withdraw() {
        // The server has taken the connect just now.
    } else if dial_or_not(s, real, target).is_err() {
        // Closed before anything else: a handshake that ends meanwhile would be a connection that the server accepts.
        let _ = raw::close(real);
        move_on(r, old, Reason::LinkLost);
        return;
    } else {
        let bytes = old.written().0;
        let done = send_drained(s, real, &bytes, old.ended(), Deadline::within(timeouts::REDISPATCH_LOCAL));
        netacc_log::log!(
            Info,
            "fd {}: its server takes nothing, by TCP with {} bytes: {done:?}",
            s.first_fd(),
            bytes.len()
        );
        if done.and_then(|()| replace_everywhere(s, real)).is_ok() {
            s.set(PLACEHOLDER, false);
            old.link().stuck.store(1, Ordering::Relaxed);
            now_tcp(s, old, Reason::NotTaken);
        } else {
            old.fail(Errno::CONNRESET);
        }
    }
    let _ = raw::close(real);
    drop((rx, tx));
}

/// Number of links over which a connect is made again before it goes by TCP: a server may turn away each link that it
/// is offered.
const LINKS_TRIED: u32 = 3;

/// Makes the same connect once more, over another link than that of `old`.
fn reconnect(s: &'static Socket, old: &ShmEndpoint) -> core::result::Result<&'static ShmEndpoint, Reason> {
    if s.redispatched.fetch_add(1, Ordering::Relaxed) >= LINKS_TRIED {
        if let Some(target) = s.peer.get()
            && old.link().is_turned_away()
        {
            ports::note_absent(target, Reason::Refused, time::coarse());
        }
        return Err(Reason::Refused);
    }
    let (Some(local), Some(target)) = (s.local.get(), s.peer.get()) else { return Err(Reason::Refused) };
    if s.endpoint().is_some_and(ShmEndpoint::is_remote) {
        // On this host the rendezvous of that name would be another listener's.
        return Err(Reason::OtherHost);
    }
    if s.endpoint().is_some_and(|ep| ep.link().was_refused()) {
        // The next link would be refused, too, and so on.
        return Err(Reason::Refused);
    }
    let claim = pool::claim(local, target, None, false)?;
    let (link, slot) = (claim.link, claim.claimed.slot);
    let generation = claim.claimed.generation;
    let Some(ep) = link.endpoint(slot).filter(|e| e.begin(generation)) else {
        link.slots.burned();
        return Err(Reason::NoMemory);
    };
    if let Some(sl) = link.segment().and_then(|seg| seg.slot(slot)) {
        sl.open.write(local, target);
    }
    let pushed = claim.push();
    if !pushed || (!link.accepting() && ep.withdraw()) {
        if !pushed {
            ep.never_mind(generation);
        }
        ep.close(true);
        return Err(Reason::Refused);
    }
    Ok(ep)
}
