//! Descriptors: socket(2), close(2), the dup family.

use crate::carrier::drive;
use crate::epoll;
use crate::fdtable::{self, Entry, Ref};
use crate::kernel_only;
use crate::outcome::Outcome;
use crate::runtime;
use crate::socket::{self, CANDIDATE, HANDED, KEEPABLE, NONBLOCK, PLACEHOLDER, Path, Socket, reroute, vacant};
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use libc::{AF_INET, AF_INET6, IPPROTO_TCP, O_CLOEXEC, O_NONBLOCK, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM};
use netacc_stats::Reason;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{Guard, lock, private, raw};
use rustix::fd::FromRawFd;

/// Unconnected TCP sockets (descriptor + 1), one per family, whose duplicates stand for sockets that the
/// kernel need not have: making a TCP socket costs ten times as much as a duplicate.
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
    // SAFETY: just made, owned by nobody else.
    let fd = private::adopt(unsafe { rustix::fd::OwnedFd::from_raw_fd(fd) })?;
    match cell.compare_exchange(0, fd + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(fd),
        Err(other) => {
            private::close(fd);
            Ok(other - 1)
        }
    }
}

/// A real TCP socket (descriptor + 1) per family, held ready: a placeholder becomes real without a further
/// descriptor, so that connect(2) works where RLIMIT_NOFILE leaves none, as on a socket the kernel always had.
static SPARES: [AtomicI32; 2] = [AtomicI32::new(0), AtomicI32::new(0)];

fn spare_of(domain: i32) -> &'static AtomicI32 {
    let [s4, s6] = &SPARES;
    if domain == AF_INET { s4 } else { s6 }
}

/// Holds a spare socket ready, if there is a number for it where the application has none.
#[cold]
fn keep_spare(domain: i32) {
    let Ok(fd) = raw::socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0) else { return };
    #[allow(unsafe_code)]
    // SAFETY: just made, owned by nobody else.
    let parked = private::park(unsafe { rustix::fd::OwnedFd::from_raw_fd(fd) });
    if let Ok(fd) = parked
        && spare_of(domain).compare_exchange(0, fd + 1, Ordering::AcqRel, Ordering::Acquire).is_err()
    {
        private::close(fd);
    }
}

/// A kernel socket for `s`: a new one, else the spare. A descriptor of ours.
fn real_socket(s: &Socket, flags: i32) -> Result<i32> {
    let no_number = match raw::socket(s.domain(), flags | SOCK_CLOEXEC, 0) {
        Err(e @ (Errno::MFILE | Errno::NFILE)) => e,
        made => return made,
    };
    let spare = spare_of(s.domain()).swap(0, Ordering::AcqRel) - 1;
    if spare < 0 {
        return Err(no_number);
    }
    if s.has(NONBLOCK) {
        let _ = raw::fcntl(spare, libc::F_SETFL, (libc::O_RDWR | O_NONBLOCK) as usize);
    }
    Ok(spare)
}

/// For the child of a fork, since the spares are the parent's, who may connect them; and where they belong to another
/// network namespace.
pub fn drop_spares() {
    for cell in &SPARES {
        let fd = cell.swap(0, Ordering::Relaxed) - 1;
        if fd >= 0 {
            private::close(fd);
        }
    }
}

/// A descriptor that stands for a TCP socket without one behind it.
pub fn placeholder(domain: i32, cloexec: bool) -> Result<i32> {
    let cmd = if cloexec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    vacant::close_all();
    raw::fcntl(template(domain)?, cmd, 0)
}

/// Enters a socket for `fd`; an entry that was there belonged to a descriptor closed behind our back.
pub fn enter(fd: i32, r: Ref<Socket>) -> Result<()> {
    match fdtable::put(fd, Entry::Socket(r)) {
        Ok(stale) => {
            if let Some(e) = stale {
                drop_entry(e);
            }
            Ok(())
        }
        Err(e) => {
            socket::put(r.obj);
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
    // Where nothing is accelerated a socket is the kernel's from the start, and only known to us so that the
    // stats page can say why.
    let (made, mark) = if rt.conf.enable_rdma_default && kernel_only::reason().is_none() {
        (placeholder(domain, ty & SOCK_CLOEXEC != 0), PLACEHOLDER)
    } else {
        (raw::socket(domain, ty, proto), 0)
    };
    let Ok(fd) = made else { return Outcome::Pass };
    if mark != 0 && spare_of(domain).load(Ordering::Relaxed) == 0 {
        keep_spare(domain);
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
    // Another thread may have connected it since the caller looked, over shared memory, and even taken it to a kernel
    // socket: that one must not be covered. It enters shared memory under this lock.
    if !s.has(PLACEHOLDER) || s.path() == Path::Shm {
        return Ok(());
    }
    // Another thread may have closed the number since the caller looked it up, and the kernel given it to another file. Who
    // closes one takes it out of the table first and waits for this lock then.
    if !matches!(fdtable::get(fd), Some(Entry::Socket(r)) if core::ptr::eq(r.obj, s)) {
        return Err(Errno::BADF);
    }
    let flags = SOCK_STREAM | if s.has(NONBLOCK) { SOCK_NONBLOCK } else { 0 };
    let cloexec = raw::fcntl(fd, libc::F_GETFD, 0)? & libc::FD_CLOEXEC != 0;
    let real = real_socket(s, flags)?;
    s.opts.apply(s, real);
    let moved = raw::dup3(real, fd, if cloexec { O_CLOEXEC } else { 0 });
    private::close(real);
    moved?;
    s.set(PLACEHOLDER, false);
    Ok(())
}

/// Puts `real` under every number that the application has for this socket; each keeps its own FD_CLOEXEC.
pub fn replace_everywhere(s: &Socket, real: i32) -> Result<()> {
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

/// From now on the kernel does it.
pub fn to_kernel(fd: i32, s: &'static Socket) -> Result<()> {
    materialize(fd, s)?;
    if s.path() == Path::New {
        s.set_path(Path::Tcp);
    }
    Ok(())
}

/// Drops what an entry of the table refers to.
pub fn drop_entry(e: Entry) {
    match e {
        Entry::Socket(r) => drop(put_socket(r)),
        Entry::Epoll(r) => epoll::put(r.obj),
    }
}

/// Whether another file may come to lie under the numbers: not of what is the kernel's for good.
fn changes_files(s: &Socket) -> bool {
    s.path() != Path::Tcp || s.has(CANDIDATE)
}

/// Drops a socket's reference of a number that has left the table and is about to be closed for the kernel. True as in
/// [`socket::put`].
fn put_socket(r: Ref<Socket>) -> bool {
    let files = changes_files(r.obj);
    let vacant = socket::put(r.obj);
    // Another thread may be at putting a real socket there, or a kernel socket under all numbers, and have seen this one. It
    // is done when the locks are free, and before the number can be another file's.
    if files && !lock::interrupted() {
        drop(r.obj.meta.lock());
        // The last number's locks were free when the connection ended.
        if r.valid() {
            drop((r.obj.rx.lock(), r.obj.tx.lock()));
        }
    }
    vacant
}

/// Numbers (+ 1) that a signal handler closed while its thread was in the middle of a call of ours.
static LATER: [AtomicI32; 32] = [const { AtomicI32::new(0) }; 32];
/// Whether there may be one.
static ANY_LATER: AtomicU32 = AtomicU32::new(0);

/// Whether a handler left one to be closed.
#[inline]
pub fn has_later() -> bool {
    ANY_LATER.load(Ordering::Relaxed) != 0
}

/// Closes what a handler could not. At the start of calls.
#[inline]
pub fn close_later() {
    if has_later() && !lock::interrupted() {
        close_kept();
    }
}

#[cold]
fn close_kept() {
    ANY_LATER.store(0, Ordering::SeqCst);
    for cell in &LATER {
        let fd = cell.swap(0, Ordering::SeqCst) - 1;
        if fd >= 0 {
            let _ = close(fd);
        }
    }
}

/// close(2). A handler may call it (signal-safety(7)), also of a thread that holds a lock of ours: then the number stays
/// open until the next call that may do it.
pub fn close(fd: i32) -> Outcome {
    if fdtable::knows(fd) && lock::interrupted() {
        let place = LATER.iter().find(|c| c.compare_exchange(0, fd + 1, Ordering::SeqCst, Ordering::Relaxed).is_ok());
        if place.is_some() {
            ANY_LATER.store(1, Ordering::SeqCst);
            return Outcome::Done(0);
        }
    }
    close_later();
    before_close(fd);
    match fdtable::take(fd) {
        Some(Entry::Socket(r)) => {
            let domain = r.obj.domain();
            let vacant = put_socket(r);
            drive::drive();
            if vacant && vacant::keep(fd, domain) {
                return Outcome::Done(0);
            }
            raw::close(fd).into()
        }
        Some(e) => {
            drop_entry(e);
            raw::close(fd).into()
        }
        None if private::is(fd) => Outcome::Failed(Errno::BADF),
        None => Outcome::Pass,
    }
}

/// Whether a call that closes number `fd` or accepts from it is for us.
#[inline]
pub fn concerns(fd: i32) -> bool {
    fdtable::knows(fd) || private::is(fd) || has_later()
}

/// Whether a call that makes another number for `fd` is for us: it is to be the lowest that the program does not have.
#[inline]
pub fn concerns_dup(fd: i32) -> bool {
    fdtable::knows(fd) || private::is(fd) || vacant::any()
}

/// Whether `fd` stands for something of ours.
pub fn known(fd: i32) -> bool {
    fdtable::get(fd).is_some()
}

/// libc closes by itself: only our side of the descriptor is dropped.
pub fn forget(fd: i32) {
    before_close(fd);
    if let Some(e) = fdtable::take(fd) {
        drop_entry(e);
    }
}

/// Before a number leaves the table, and before the kernel gives it to another file.
fn before_close(fd: i32) {
    if let Some(r) = fdtable::socket(fd) {
        if r.obj.has(socket::CANDIDATE) {
            socket::promote::cancel(fd, r);
        }
        if reroute::is_in_doubt(r.obj) || reroute::is_moving_any() {
            reroute::see_off(fd, r);
        }
        crate::fork::number_closed(fd, r);
    }
}

/// close_range(2), which must spare our own descriptors.
pub fn close_range(first: u32, last: u32, flags: u32) -> Outcome {
    const CLOEXEC: u32 = 4;
    if first > last || flags & CLOEXEC != 0 {
        return Outcome::Pass;
    }
    fdtable::each(first as usize, last as usize, |fd, _| {
        before_close(fd);
        if let Some(e) = fdtable::take(fd) {
            drop_entry(e);
        }
    });
    let mut from = first;
    let mut result = Ok(());
    private::each(|ours| {
        let ours = ours as u32;
        if ours >= from && ours <= last {
            if ours > from {
                result = result.and(raw::close_range(from, ours - 1, flags));
            }
            from = ours + 1;
        }
    });
    if from <= last {
        result = result.and(raw::close_range(from, last, flags));
    }
    result.into()
}

/// closefrom(3).
pub fn close_from(first: i32) -> Outcome {
    close_range(first.max(0) as u32, u32::MAX >> 1, 0)
}

/// A duplicate of what `e` refers to appeared at `new`. Returns what stood there, to be dropped without locks.
fn entered_dup(new: i32, e: Entry) -> Result<Option<Entry>> {
    match e {
        Entry::Socket(r) => {
            r.obj.add_ref();
            r.obj.set(KEEPABLE, false);
            if r.obj.endpoint().is_some_and(|ep| ep.link().is_inherited()) {
                // In the child of a fork numbers are made for the program that follows.
                r.obj.set(HANDED, true);
            }
        }
        Entry::Epoll(r) => r.obj.add_ref(),
    }
    fdtable::put(new, e)
}

/// Kept while a number of it is duplicated: a thread that puts another file under all its numbers (a kernel socket, the
/// base before a fork) sees the new one, or is done before. A handler that interrupted a holder cannot wait.
fn still(e: Entry) -> Option<(Guard<'static>, Guard<'static>)> {
    match e {
        Entry::Socket(r) if changes_files(r.obj) && !lock::interrupted() => Some((r.obj.rx.lock(), r.obj.tx.lock())),
        _ => None,
    }
}

/// An entry that is about to be duplicated. A placeholder of an unconnected socket becomes real first,
/// so that both descriptors refer to one socket.
fn before_dup(old: i32) -> Result<Option<Entry>> {
    let e = fdtable::get(old);
    vacant::close_all();
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
        Ok(None) if private::is(old) => Outcome::Failed(Errno::BADF),
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

/// Another number for `old`, which stands for `e`.
fn made(old: i32, e: Entry, make: impl FnOnce() -> Result<i32>) -> Result<i32> {
    let locks = still(e);
    if fdtable::get(old) != Some(e) {
        // Another thread closed it just now.
        return Err(Errno::BADF);
    }
    let new = make()?;
    let entered = entered_dup(new, e);
    drop(locks);
    match entered {
        Ok(stale) => {
            if let Some(stale) = stale {
                drop_entry(stale);
            }
            Ok(new)
        }
        Err(err) => {
            drop_entry(e);
            let _ = raw::close(new);
            Err(err)
        }
    }
}

/// dup(2).
pub fn dup(old: i32) -> Outcome {
    dup_with(old, || raw::dup(old))
}

/// Numbers that stdio reads and writes inside libc: a connection there is the kernel's.
pub fn is_stdio(fd: i32) -> bool {
    (0..=2).contains(&fd)
}

/// dup2(2) and dup3(2); `dup3` refuses equal numbers, dup2 returns them.
pub fn dup3(old: i32, new: i32, flags: i32, is_dup2: bool) -> Outcome {
    if old == new || private::is(new) || private::is(old) {
        return match () {
            () if private::is(old) || (private::is(new) && old != new) => Outcome::Failed(Errno::BADF),
            () if !is_dup2 => Outcome::Failed(Errno::INVAL),
            () if fdtable::get(old).is_none() => Outcome::Pass,
            () => match raw::fcntl(old, libc::F_GETFD, 0) {
                Ok(_) => Outcome::Done(new as isize),
                Err(e) => Outcome::Failed(e),
            },
        };
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
    let locks = source.and_then(still);
    let known = source.is_none_or(|e| fdtable::get(old) == Some(e)) && raw::fcntl(old, libc::F_GETFD, 0).is_ok();
    drop(locks);
    if !known || flags & !O_CLOEXEC != 0 {
        // The kernel says what is wrong.
        return raw::dup3(old, new, flags).into();
    }
    if let Some(r) = fdtable::socket(new) {
        r.obj.set(socket::REPLACED, true);
    }
    // What is there ends first: from then on nobody takes the number for that connection's.
    forget(new);
    let locks = source.and_then(still);
    let done = raw::dup3(old, new, flags).and_then(|_| source.map_or(Ok(None), |e| entered_dup(new, e)));
    drop(locks);
    match done {
        Ok(stale) => {
            if let Some(e) = stale {
                drop_entry(e);
            }
            Outcome::Done(new as isize)
        }
        Err(e) => Outcome::Failed(e),
    }
}

/// `O_NONBLOCK` as fcntl(2) shows it.
pub fn status_flags(s: &Socket) -> i32 {
    libc::O_RDWR | if s.has(NONBLOCK) { O_NONBLOCK } else { 0 }
}
