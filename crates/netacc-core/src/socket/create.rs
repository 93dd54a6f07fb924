//! Descriptors: socket(2), and the dup family.

use crate::fdtable::Entry;
use crate::object::reference::Ref;
use crate::object::socket::{HANDED, KEEPABLE, NONBLOCK, PLACEHOLDER, Path, REPLACED, Socket};
use crate::outcome::Outcome;
use crate::socket::closing::{File, changes_files};
use crate::socket::{closing, fd_cache, pin};
use crate::{fdtable, process_fallback, runtime, socket};
use core::sync::atomic::{AtomicI32, Ordering};
use libc::{AF_INET, AF_INET6, IPPROTO_TCP, O_CLOEXEC, O_NONBLOCK, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM};
use netacc_stats::Reason;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::signals::Blocked;
use netacc_sys::{Guard, lock, raw, reserved_fds};
use rustix::fd::FromRawFd;

/// Unconnected TCP sockets (descriptor + 1), one per family, whose duplicates stand for sockets that the kernel need
/// not have: to make a TCP socket costs ten times as much as a duplicate.
static TEMPLATES: [AtomicI32; 2] = [AtomicI32::new(0), AtomicI32::new(0)];

/// The template of a family: an unconnected socket with all defaults.
pub(crate) fn template(domain: i32) -> Result<i32> {
    let [t4, t6] = &TEMPLATES;
    let cell = if domain == AF_INET { t4 } else { t6 };
    let known = cell.load(Ordering::Acquire);
    if known != 0 {
        return Ok(known - 1);
    }
    let fd = raw::socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0)?;
    #[allow(unsafe_code)]
    // SAFETY: the descriptor was just made, and nobody else owns it.
    let fd = reserved_fds::adopt(unsafe { rustix::fd::OwnedFd::from_raw_fd(fd) })?;
    match cell.compare_exchange(0, fd + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(fd),
        Err(other) => {
            reserved_fds::close(fd);
            Ok(other - 1)
        }
    }
}

/// A real TCP socket (descriptor + 1) per family, held ready: a placeholder becomes real without a further
/// descriptor, so that connect(2) works where RLIMIT_NOFILE leaves none, as on a socket the kernel always had.
static READY_SOCKETS: [AtomicI32; 2] = [AtomicI32::new(0), AtomicI32::new(0)];

fn ready_socket(domain: i32) -> &'static AtomicI32 {
    let [s4, s6] = &READY_SOCKETS;
    if domain == AF_INET { s4 } else { s6 }
}

/// Holds a further socket ready, if there is a number for it beyond those of the application.
#[cold]
fn keep_ready_socket(domain: i32) {
    let Ok(fd) = raw::socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0) else { return };
    #[allow(unsafe_code)]
    // SAFETY: the descriptor was just made, and nobody else owns it.
    let parked = reserved_fds::park(unsafe { rustix::fd::OwnedFd::from_raw_fd(fd) });
    if let Ok(fd) = parked
        && ready_socket(domain).compare_exchange(0, fd + 1, Ordering::AcqRel, Ordering::Acquire).is_err()
    {
        reserved_fds::close(fd);
    }
}

/// A kernel socket for `s`: a new one, or else the one held ready. Returns a descriptor of ours.
fn real_socket(s: &Socket, flags: i32) -> Result<i32> {
    let no_number = match raw::socket(s.domain(), flags | SOCK_CLOEXEC, 0) {
        Err(e @ (Errno::MFILE | Errno::NFILE)) => e,
        made => return made,
    };
    let ready = ready_socket(s.domain()).swap(0, Ordering::AcqRel) - 1;
    if ready < 0 {
        return Err(no_number);
    }
    if s.has(NONBLOCK) {
        let _ = raw::fcntl(ready, libc::F_SETFL, (libc::O_RDWR | O_NONBLOCK) as usize);
    }
    Ok(ready)
}

/// Closes the spares: in the child of a fork, since they are the parent's, which may connect them; and where they
/// belong to another network namespace.
pub fn drop_ready_sockets() {
    for cell in &READY_SOCKETS {
        let fd = cell.swap(0, Ordering::Relaxed) - 1;
        if fd >= 0 {
            reserved_fds::close(fd);
        }
    }
}

/// A descriptor that stands for a TCP socket without one behind it.
pub fn placeholder(domain: i32, cloexec: bool) -> Result<i32> {
    let cmd = if cloexec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    fd_cache::close_all();
    raw::fcntl(template(domain)?, cmd, 0)
}

/// Enters a socket for `fd`; an entry that was there belonged to a descriptor closed behind our back.
pub fn enter(fd: i32, r: Ref<Socket>) -> Result<()> {
    match fdtable::put(fd, Entry::Socket(r)) {
        Ok(stale) => {
            closing::replaced(fd, stale);
            Ok(())
        }
        Err(e) => {
            pin::put(r.obj);
            Err(e)
        }
    }
}

/// socket(2).
pub fn socket(domain: i32, ty: i32, proto: i32) -> Outcome {
    let stream = ty & !(SOCK_NONBLOCK | SOCK_CLOEXEC) == SOCK_STREAM;
    if !stream || !(domain == AF_INET || domain == AF_INET6) || !(proto == 0 || proto == IPPROTO_TCP) {
        return Outcome::Pass;
    }
    let Some(rt) = runtime::ensure() else {
        return Outcome::Pass;
    };
    // Where nothing is accelerated a socket is the kernel's from the start, and we know it only so that the stats page
    // can say why.
    let (made, mark) = if rt.conf.enable_rdma_default && process_fallback::reason().is_none() {
        (placeholder(domain, ty & SOCK_CLOEXEC != 0), PLACEHOLDER)
    } else {
        (raw::socket(domain, ty, proto), 0)
    };
    let Ok(fd) = made else { return Outcome::Pass };
    if mark != 0 && ready_socket(domain).load(Ordering::Relaxed) == 0 {
        keep_ready_socket(domain);
    }
    let flags = mark | if ty & SOCK_NONBLOCK != 0 { NONBLOCK } else { 0 };
    let entered = Socket::alloc(fd, domain, flags).and_then(|r| enter(fd, r));
    match entered {
        Ok(()) => Outcome::Done(fd as isize),
        Err(_) => {
            let _ = raw::close(fd);
            Outcome::Pass
        }
    }
}

/// Puts a real TCP socket where only a placeholder was, with everything that was set on it.
pub fn materialize(fd: i32, s: &Socket) -> Result<()> {
    let _g = s.meta.lock();
    // Another thread may have connected it over shared memory since the caller looked, and even moved it to a kernel
    // socket, which must not be covered. A socket enters shared memory under this lock.
    if !s.has(PLACEHOLDER) || s.path() == Path::Shm {
        return Ok(());
    }
    // A handler of this thread must not close the number, or put something else under it, in the middle.
    let _b = Blocked::all();
    // Another thread may have closed the number since the caller looked it up, and the kernel given it to another file.
    // A thread that closes a number takes it out of the table first and waits for this lock then.
    if !matches!(fdtable::get(fd), Some(Entry::Socket(r)) if core::ptr::eq(r.obj, s)) {
        return Err(Errno::BADF);
    }
    let flags = SOCK_STREAM | if s.has(NONBLOCK) { SOCK_NONBLOCK } else { 0 };
    let cloexec = raw::fcntl(fd, libc::F_GETFD, 0)? & libc::FD_CLOEXEC != 0;
    let real = real_socket(s, flags)?;
    s.apply_options(real);
    let moved = raw::dup3(real, fd, if cloexec { O_CLOEXEC } else { 0 });
    reserved_fds::close(real);
    moved?;
    s.set(PLACEHOLDER, false);
    Ok(())
}

/// Puts `real` under every number that the application has for this socket; each keeps its own FD_CLOEXEC. The caller holds
/// both direction locks.
pub fn replace_everywhere(s: &Socket, real: i32) -> Result<()> {
    // A handler of this thread must not close a number, or put something else under it, in the middle.
    let _b = Blocked::all();
    let mut result = Ok(());
    fdtable::each(0, usize::MAX, |fd, entry| {
        if matches!(entry, Entry::Socket(r) if core::ptr::eq(r.obj, s)) {
            let cloexec = raw::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|f| f & libc::FD_CLOEXEC != 0);
            let done = raw::dup3(real, fd, if cloexec { O_CLOEXEC } else { 0 });
            result = result.and(done.map(drop));
        }
    });
    result
}

/// Makes the socket the kernel's from now on.
pub fn to_kernel(fd: i32, s: &'static Socket) -> Result<()> {
    materialize(fd, s)?;
    if s.path() == Path::New {
        s.set_path(Path::Tcp);
    }
    Ok(())
}

/// Whether a call that makes another number for `fd` is for us: the new number is to be the lowest that the program
/// does not have.
#[inline]
pub fn concerns_dup(fd: i32) -> bool {
    fdtable::knows(fd) || reserved_fds::is(fd) || fd_cache::any()
}

/// Whether `fd` stands for something of ours.
pub fn known(fd: i32) -> bool {
    fdtable::get(fd).is_some()
}

/// Enters a duplicate of what `e` refers to at `new`. Returns what stood there, which is to be dropped without locks.
fn entered_dup(new: i32, e: Entry) -> Result<Option<Entry>> {
    match e {
        Entry::Socket(r) => {
            r.obj.add_ref();
            r.obj.set(KEEPABLE, false);
            if r.obj.endpoint().is_some_and(|ep| ep.link().is_inherited()) {
                // In the child of a fork a program makes numbers for the program that follows.
                r.obj.set(HANDED, true);
            }
        }
        Entry::Epoll(r) => r.obj.add_ref(),
    }
    fdtable::put(new, e)
}

/// Locks held while a number is duplicated: a thread that puts another file under all its numbers (a kernel socket, the
/// liveness socket before a fork) sees the new number, or is done before. A handler that interrupted a holder cannot wait.
fn still(e: Entry) -> Option<(Guard<'static>, Guard<'static>)> {
    match e {
        Entry::Socket(r) if changes_files(r.obj) && !lock::interrupted() => Some((r.obj.rx.lock(), r.obj.tx.lock())),
        _ => None,
    }
}

/// Prepares an entry that is about to be duplicated. A placeholder of an unconnected socket becomes real first, so that
/// both descriptors refer to one socket.
fn before_dup(old: i32) -> Result<Option<Entry>> {
    let e = fdtable::get(old);
    fd_cache::close_all();
    if let Some(Entry::Socket(r)) = e
        && r.obj.path() == Path::New
    {
        materialize(old, r.obj)?;
    }
    Ok(e)
}

/// dup(2) and fcntl(F_DUPFD): `make` does the duplication.
pub fn dup_with(old: i32, make: impl FnOnce() -> Result<i32>) -> Outcome {
    match before_dup(old) {
        Ok(None) if reserved_fds::is(old) => Outcome::Failed(Errno::BADF),
        Ok(None) => Outcome::Pass,
        Ok(Some(e)) => match made(old, e, make) {
            Ok(new) => {
                if is_stdio(new) {
                    socket::demote::by_number_if_connected(new, Reason::Stdio);
                }
                Outcome::Done(new as isize)
            }
            Err(err) => Outcome::Failed(err),
        },
        Err(err) => Outcome::Failed(err),
    }
}

/// Makes another number for `old`, which stands for `e`.
fn made(old: i32, e: Entry, make: impl FnOnce() -> Result<i32>) -> Result<i32> {
    let locks = still(e);
    if fdtable::get(old) != Some(e) {
        // Another thread closed the number just now.
        return Err(Errno::BADF);
    }
    let new = make()?;
    let entered = entered_dup(new, e);
    drop(locks);
    match entered {
        Ok(stale) => {
            closing::replaced(new, stale);
            Ok(new)
        }
        Err(err) => {
            closing::not_entered(new, e);
            let _ = raw::close(new);
            Err(err)
        }
    }
}

/// dup(2).
pub fn dup(old: i32) -> Outcome {
    dup_with(old, || raw::dup(old))
}

/// Whether stdio reads and writes the number inside libc: a connection there is the kernel's.
pub fn is_stdio(fd: i32) -> bool {
    (0..=2).contains(&fd)
}

/// dup2(2) and dup3(2); `dup3` refuses equal numbers, dup2 returns them.
pub fn dup3(old: i32, new: i32, flags: i32, is_dup2: bool) -> Outcome {
    if old == new || reserved_fds::is(new) || reserved_fds::is(old) {
        return match () {
            () if reserved_fds::is(old) || (reserved_fds::is(new) && old != new) => Outcome::Failed(Errno::BADF),
            () if !is_dup2 => Outcome::Failed(Errno::INVAL),
            () if fdtable::get(old).is_none() => Outcome::Pass,
            () => match raw::fcntl(old, libc::F_GETFD, 0) {
                Ok(_) => Outcome::Done(new as isize),
                Err(e) => Outcome::Failed(e),
            },
        };
    }
    // A number that a handler has closed is not to be closed once more when it stands for something else.
    closing::finish_later();
    if !fdtable::knows(old) && !fdtable::knows(new) {
        return Outcome::Pass;
    }
    if is_stdio(new) {
        socket::demote::by_number_if_connected(old, Reason::Stdio);
    }
    let source = match before_dup(old) {
        Ok(e) => e,
        Err(err) => return Outcome::Failed(err),
    };
    if source.is_none() && fdtable::get(new).is_none() {
        return Outcome::Pass;
    }
    put_over(new, old, source, flags)
}

/// The file of `old`, which stands for `source`, comes to lie under `new`. Apart, so that a call on other descriptors
/// makes a small frame.
#[inline(never)]
fn put_over(new: i32, old: i32, source: Option<Entry>, flags: i32) -> Outcome {
    let locks = source.and_then(still);
    let known = source.is_none_or(|e| fdtable::get(old) == Some(e)) && raw::fcntl(old, libc::F_GETFD, 0).is_ok();
    drop(locks);
    if !known || flags & !O_CLOEXEC != 0 {
        // The kernel says what is wrong, once a thread that closes the number has done so.
        let _ = fdtable::is_leaving(old);
        return raw::dup3(old, new, flags).into();
    }
    if let Some(r) = fdtable::socket(new) {
        r.obj.set(REPLACED, true);
    }
    // What is there ends first: from then on nobody takes the number for that connection's.
    let leaving = closing::forget(new, File::There);
    let locks = source.and_then(still);
    let done = raw::dup3(old, new, flags).and_then(|_| source.map_or(Ok(None), |e| entered_dup(new, e)));
    drop(locks);
    drop(leaving);
    match done {
        Ok(stale) => {
            closing::replaced(new, stale);
            Outcome::Done(new as isize)
        }
        Err(e) => Outcome::Failed(e),
    }
}

/// `O_NONBLOCK` as fcntl(2) shows it.
pub fn status_flags(s: &Socket) -> i32 {
    libc::O_RDWR | if s.has(NONBLOCK) { O_NONBLOCK } else { 0 }
}
