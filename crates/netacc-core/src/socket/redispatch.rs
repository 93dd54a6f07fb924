//! A connect that was queued at a process which died before taking it.
//!
//! In the kernel the queue belongs to the listener, and another process that serves it takes the
//! connection. So the client goes on: to another process behind the same rendezvous, or to TCP, with every
//! byte it has written so far.

use crate::epoll::paths;
use crate::fd::placeholder::{replace_everywhere, status_flags};
use crate::fd::table;
use crate::fork::descendants;
use crate::object::address::addr_of;
use crate::object::reference::Ref;
use crate::object::socket::{LINGER_RESET, PLACEHOLDER, Path, SHARED, Socket};
use crate::socket::beliefs::Beliefs;
use crate::socket::{pool, ports, queued_connects};
use crate::{process_fallback, timeouts};
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use netacc_stats::{Reason, Transport, page};
use netacc_sys::errno::{Errno, Result};
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
        Some(_) => super::demote::accept(r),
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
    s.path() == Path::Shm
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
        by_tcp_if(r, |s| s.path() == Path::Shm && !s.has(SHARED) && waits(s));
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
        let orphan = s.endpoint().filter(|e| r.valid() && s.path() == Path::Shm && e.orphaned());
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
    let movable = r.valid() && s.path() == Path::Shm && !s.has(SHARED) && !descendants::under_way();
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
            paths::switched(s, old, new, || s.set_endpoint(new));
            // No other process knows of the new endpoint.
            s.set(SHARED, false);
            // Threads that wait for it look again, and find the new one.
            old.poke_self();
            if new.link().may_be_served_by_many() {
                queued_connects::note_redispatched(r);
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
    let Some(old) = s.endpoint().filter(|e| r.valid() && s.path() == Path::Shm && e.is_queued()) else { return };
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

const REDISPATCH_LOCAL: i64 = time::ns(timeouts::REDISPATCH_LOCAL) as i64;
const REDISPATCH_REMOTE: i64 = time::ns(timeouts::REDISPATCH_REMOTE) as i64;
const REDISPATCH_SILENT_HOST: i64 = time::ns(timeouts::REDISPATCH_SILENT_HOST) as i64;
/// That is remembered for so long (ns).
const SPENT: u64 = 10_000_000_000;

/// Hosts that did not answer.
static SILENT: Beliefs<8> = Beliefs::new();

/// Time (ns) to wait for the host.
fn patience_for(s: &Socket, host: IpAddr) -> i64 {
    if !s.endpoint().is_some_and(ShmEndpoint::is_remote) {
        return REDISPATCH_LOCAL;
    }
    let silent = SILENT.holds(SocketAddr::new(host, 0), time::coarse(), SPENT);
    if silent { REDISPATCH_SILENT_HOST } else { REDISPATCH_REMOTE }
}

fn note_silent(host: IpAddr) {
    SILENT.note(SocketAddr::new(host, 0), time::coarse());
}

const BYPASS_CONNECT: i64 = timeouts::BYPASS_CONNECT.as_nanos() as i64;
const KERNEL_QUEUE_FULL: u64 = time::ns(timeouts::KERNEL_QUEUE_FULL);
/// When a connect that bypasses a process last took too long in the kernel ([`time::now`]); 0: never.
static FULL_SINCE: AtomicU64 = AtomicU64::new(0);

/// Whether the kernel's queue of some listener was full just now.
fn is_kernel_full() -> bool {
    let since = FULL_SINCE.load(Ordering::Relaxed);
    since != 0 && time::now().saturating_sub(since) < KERNEL_QUEUE_FULL
}

/// Connects the kernel's socket `fd` at once, or else not at all: then the server does not accept it later, and the connect
/// may be made elsewhere.
fn dial_or_not(s: &Socket, fd: i32, target: SocketAddr) -> Result<()> {
    match dial(s, fd, target, Deadline::after(BYPASS_CONNECT)) {
        Err(Errno::TIMEDOUT) => {}
        done => return done,
    }
    if tcp_state(fd) == Some(TCP_ESTABLISHED) {
        return Ok(());
    }
    // The caller closes it, which ends a connect that is under way: the kernel answers what comes late by a reset.
    FULL_SINCE.store(time::now(), Ordering::Relaxed);
    Err(Errno::TIMEDOUT)
}

/// The kernel's state of a connection (linux/tcp.h).
const TCP_ESTABLISHED: u8 = 1;

fn tcp_state(fd: i32) -> Option<u8> {
    let (mut state, mut len) = (0u8, 1u32);
    raw::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut state).cast(), &raw mut len).ok().map(|()| state)
}

/// Makes the connect of `old` by the kernel, and writes the bytes after it.
fn by_tcp(r: Ref<Socket>, old: &'static ShmEndpoint, bytes: &[u8], ended: bool, why: Reason) -> Result<()> {
    let s = r.obj;
    if process_fallback::reason().is_some() {
        // The address may belong to another host here.
        return Err(Errno::ADDRNOTAVAIL);
    }
    let target = s.peer.get().ok_or(Errno::NOTCONN)?;
    let number = table::number_of(r, -1).ok_or(Errno::BADF)?;
    let until = Deadline::after(patience_for(s, target.ip()));
    // If the numbers stand for no TCP socket of the kernel's, a fresh one takes the place of all of them once it is
    // connected. Otherwise they stand for one socket, which holds the port that the application bound.
    if s.has(PLACEHOLDER) || old.liveness_fd() >= 0 {
        let real = raw::socket(s.domain(), libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)?;
        s.apply_options(real);
        let done = connect_and_send(s, real, target, bytes, ended, until).and_then(|()| replace_everywhere(s, real));
        if done.is_ok() {
            s.set(PLACEHOLDER, false);
        }
        let _ = raw::close(real);
        done?;
    } else {
        connect_and_send(s, number, target, bytes, ended, until)?;
    }
    now_tcp(s, old, why);
    Ok(())
}

/// To be called when the numbers of `s` are a connected kernel socket.
fn now_tcp(s: &'static Socket, old: &'static ShmEndpoint, why: Reason) {
    page().demoted(why);
    page().fallback(why);
    if let Some(e) = s.stats() {
        e.set_transport(Transport::Tcp);
        e.set_reason(why);
    }
    // In this order: a thread that registers it meanwhile does so at the kernel, where it is already, and not at the
    // ring that it leaves.
    s.set_path(Path::Tcp);
    paths::to_kernel(s, old);
    // Threads that wait for it look again, and find the kernel's socket.
    old.poke_self();
    s.detach();
}

/// Connects the kernel's socket `fd` and gives it what was written so far. It does not wait for ever: the caller may be an
/// epoll_wait.
fn connect_and_send(s: &Socket, fd: i32, target: SocketAddr, bytes: &[u8], ended: bool, until: Deadline) -> Result<()> {
    dial(s, fd, target, until)?;
    send_drained(s, fd, bytes, ended, until)
}

/// Connects the kernel's socket `fd`, and leaves it non-blocking.
fn dial(s: &Socket, fd: i32, target: SocketAddr, until: Deadline) -> Result<()> {
    raw::fcntl(fd, libc::F_SETFL, (libc::O_RDWR | libc::O_NONBLOCK) as usize)?;
    let (mut buf, mut len) = ([0u64; 4], 32u32);
    addr_of(target, s.domain(), &mut buf, &mut len);
    match raw::connect(fd, buf.as_ptr().cast(), len) {
        Ok(()) => {}
        Err(Errno::INPROGRESS) => writable(fd, until)?,
        Err(e) => return Err(e),
    }
    match raw::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_ERROR)? {
        0 => Ok(()),
        e => Err(Errno(e)),
    }
}

/// Gives a connected socket what was written so far, and the application's flags.
fn send_drained(s: &Socket, fd: i32, bytes: &[u8], ended: bool, until: Deadline) -> Result<()> {
    send_all(s, fd, bytes, until)?;
    if ended {
        raw::shutdown(fd, libc::SHUT_WR)?;
    }
    raw::fcntl(fd, libc::F_SETFL, status_flags(s) as usize).map(drop)
}

fn send_all(s: &Socket, fd: i32, mut bytes: &[u8], until: Deadline) -> Result<()> {
    let buffer = |size: i32| raw::setsockopt_int(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, size);
    let mut widened = false;
    while !bytes.is_empty() {
        match raw::send(fd, bytes.as_ptr(), bytes.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
            Ok(n) => bytes = bytes.get(n..).unwrap_or(&[]),
            Err(Errno::INTR) => {}
            // The server may not have accepted yet, so that no process reads: the kernel's buffer must take it all. The
            // kernel grants twice what is asked for, which covers its own bookkeeping.
            Err(Errno::AGAIN) if !widened => {
                widened = true;
                buffer(bytes.len().min(1 << 20) as i32 * 2)?;
            }
            Err(Errno::AGAIN) => writable(fd, until)?,
            Err(e) => return Err(e),
        }
    }
    // The size that the application asked for counts again for what comes next; the kernel doubles it (socket(7)).
    match s.opts.get(libc::SOL_SOCKET, libc::SO_SNDBUF) {
        Some(n) if widened => buffer(n / 2),
        _ => Ok(()),
    }
}

/// Waits until the kernel's socket takes something, or answers.
fn writable(fd: i32, until: Deadline) -> Result<()> {
    loop {
        let left = until.left();
        let mut p = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
        let mut ts = libc::timespec { tv_sec: left / 1_000_000_000, tv_nsec: left % 1_000_000_000 };
        match raw::ppoll(&raw mut p, 1, &raw mut ts, core::ptr::null()) {
            Ok(0) => return Err(Errno::TIMEDOUT),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
}
