//! Descriptors: socket(2), and the dup family.

use crate::conn::pin::{self, Pin};
use crate::fd::closing::{File, changes_files};
use crate::fd::placeholder::{first_or_another, is_stdio, keep_ready_socket, materialize, ready_socket};
use crate::fd::table::Entry;
use crate::fd::{closing, fd_cache, later, table};
use crate::object::reference::Ref;
use crate::object::socket::{ConnState, FIRST, HANDED, KEEPABLE, NONBLOCK, PLACEHOLDER, Path, REPLACED, Socket};
use crate::operator::requests;
use crate::outcome::Outcome;
use crate::switch::demote;
use crate::{process_mode, startup};
use core::sync::atomic::Ordering;
use libc::{AF_INET, AF_INET6, IPPROTO_TCP, O_CLOEXEC, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM};
use netacc_stats::Reason;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{Guard, SharedCell, lock, raw, reserved_fds};

/// Enters a socket for `fd`. An earlier entry belonged to a descriptor that was closed by a call that was not
/// intercepted.
pub fn enter(fd: i32, r: Ref<Socket>) -> Result<()> {
    match table::put(fd, Entry::Socket(r)) {
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

/// Number of connects in a row that were left to the kernel.
static BY_KERNEL: SharedCell<u32> = SharedCell::<u32>::new(0);

/// From so many on a new socket is the kernel's at once. A placeholder would be replaced by one, which takes five system
/// calls; a kernel socket that connects over shared memory after all costs the one that made it.
const MOSTLY_BY_KERNEL: u32 = 16;

/// Notes whether a connect was left to the kernel.
pub fn note_connect(by_kernel: bool) {
    // A thread that sees an older number makes a socket of the other kind, and both kinds do.
    let before = BY_KERNEL.get();
    let now = if by_kernel { before.saturating_add(1).min(MOSTLY_BY_KERNEL) } else { 0 };
    if now != before {
        BY_KERNEL.set(now);
    }
}

/// socket(2).
pub fn socket(domain: i32, ty: i32, proto: i32) -> Outcome {
    let stream = ty & !(SOCK_NONBLOCK | SOCK_CLOEXEC) == SOCK_STREAM;
    if !stream || !(domain == AF_INET || domain == AF_INET6) || !(proto == 0 || proto == IPPROTO_TCP) {
        return Outcome::Pass;
    }
    let Some(rt) = startup::ensure() else { return Outcome::Pass };
    requests::check();
    // If nothing is accelerated, a socket is the kernel's from the start, and is entered only so that the stats page
    // shows the reason.
    let is_ours = rt.accelerates() && process_mode::reason().is_none();
    let made = if is_ours && BY_KERNEL.get() < MOSTLY_BY_KERNEL {
        let made = first_or_another(domain, ty & SOCK_CLOEXEC != 0);
        made.map(|(fd, is_first)| (fd, PLACEHOLDER | if is_first { FIRST } else { 0 }))
    } else {
        raw::socket(domain, ty, proto).map(|fd| (fd, 0))
    };
    let Ok((fd, mark)) = made else { return Outcome::Pass };
    // The first placeholder becomes real without another descriptor.
    if is_ours && mark & FIRST == 0 && ready_socket(domain).load(Ordering::Relaxed) == 0 {
        keep_ready_socket(domain);
    }
    let flags = mark | if ty & SOCK_NONBLOCK != 0 { NONBLOCK } else { 0 };
    let entered = Socket::alloc(fd, domain, ConnState::New, flags).and_then(|r| enter(fd, r));
    match entered {
        Ok(()) => Outcome::Done(fd as isize),
        Err(_) => {
            let _ = raw::close(fd);
            Outcome::Pass
        }
    }
}

/// Whether a call that duplicates `fd` needs the socket layer, so that the new number is the lowest that the program
/// does not use.
#[inline]
pub fn concerns_dup(fd: i32) -> bool {
    table::knows(fd) || reserved_fds::is(fd) || fd_cache::any()
}

/// Whether `fd` is in the table.
pub fn known(fd: i32) -> bool {
    table::get(fd).is_some()
}

/// Enters `new` as a duplicate for the object of `e`. Returns the previous entry, which has to be dropped without
/// locks.
fn entered_dup(new: i32, e: Entry) -> Result<Option<Entry>> {
    match e {
        Entry::Socket(r) => {
            r.obj.add_ref();
            r.obj.set(KEEPABLE, false);
            if r.obj.endpoint().is_some_and(|ep| ep.side.link().is_inherited()) {
                // In the child of a fork, a program duplicates numbers for the program that it will execute.
                r.obj.set(HANDED, true);
            }
        }
        Entry::Epoll(r) => r.obj.add_ref(),
    }
    table::put(new, e)
}

/// Takes the locks to be held while a number is duplicated: a thread that puts another file under all numbers of the
/// socket (a kernel socket, the liveness socket before a fork) then sees the new number, or has finished before. A
/// signal handler that has interrupted a holder cannot wait for them.
fn still(e: Entry) -> Option<(Guard<'static>, Guard<'static>)> {
    match e {
        Entry::Socket(r) if changes_files(r.obj) && !lock::interrupted() => Some((r.obj.rx.lock(), r.obj.tx.lock())),
        _ => None,
    }
}

/// Prepares an entry that is about to be duplicated. A placeholder of an unconnected socket becomes real first, so that
/// both descriptors refer to one socket.
fn before_dup(old: i32) -> Result<Option<Entry>> {
    let e = table::get(old);
    fd_cache::close_all();
    if let Some(Entry::Socket(r)) = e {
        // What is done by the new number is not followed.
        r.obj.upgrade.held_by.spoil();
        if r.obj.path() == Path::New {
            materialize(old, r.obj)?;
        }
    }
    Ok(e)
}

/// Keeps the object of an entry while one of its numbers is duplicated: another thread may close the last number meanwhile.
/// `None`: it has just done so, and the number has another entry or none. An epoll instance counts its numbers only, so nothing
/// keeps it.
fn kept(e: Option<Entry>) -> Option<Kept> {
    match e {
        Some(Entry::Socket(r)) => r.pin().map(|pin| Kept(Some(pin))),
        Some(Entry::Epoll(_)) | None => Some(Kept(None)),
    }
}

/// Guard made by [`kept`].
struct Kept(#[allow(dead_code)] Option<Pin>);

/// dup(2) and fcntl(F_DUPFD): `make` does the duplication.
pub fn dup_with(old: i32, make: impl Fn() -> Result<i32>) -> Outcome {
    loop {
        let e = match before_dup(old) {
            Ok(Some(e)) => e,
            Ok(None) if reserved_fds::is(old) => return Outcome::Failed(Errno::BADF),
            Ok(None) => return Outcome::Pass,
            Err(err) => return Outcome::Failed(err),
        };
        match made(old, e, &make) {
            Ok(Some(new)) => {
                if is_stdio(new) {
                    demote::by_number_if_connected(new, Reason::Stdio);
                }
                return Outcome::Done(new as isize);
            }
            Ok(None) => {}
            Err(err) => return Outcome::Failed(err),
        }
    }
}

/// Duplicates `old`, whose entry is `e`. `None`: another thread has closed the number, which may have another file by now.
fn made(old: i32, e: Entry, make: &impl Fn() -> Result<i32>) -> Result<Option<i32>> {
    let Some(_kept) = kept(Some(e)) else { return Ok(None) };
    let locks = still(e);
    if table::get(old) != Some(e) {
        return Ok(None);
    }
    let new = make()?;
    if table::get(old) != Some(e) {
        // Nothing tells which of the files has been duplicated.
        let _ = raw::close(new);
        return Ok(None);
    }
    let entered = entered_dup(new, e);
    drop(locks);
    match entered {
        Ok(stale) => {
            closing::replaced(new, stale);
            Ok(Some(new))
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

/// dup2(2) and dup3(2); `dup3` refuses equal numbers, dup2 returns them.
pub fn dup3(old: i32, new: i32, flags: i32, is_dup2: bool) -> Outcome {
    if old == new || reserved_fds::is(new) || reserved_fds::is(old) {
        return match () {
            () if reserved_fds::is(old) || (reserved_fds::is(new) && old != new) => Outcome::Failed(Errno::BADF),
            () if !is_dup2 => Outcome::Failed(Errno::INVAL),
            () if table::get(old).is_none() => Outcome::Pass,
            () => match raw::fcntl(old, libc::F_GETFD, 0) {
                Ok(_) => Outcome::Done(new as isize),
                Err(e) => Outcome::Failed(e),
            },
        };
    }
    // A number that a handler has closed must not be closed again when it has another file.
    later::finish_later();
    if !table::knows(old) && !table::knows(new) {
        return Outcome::Pass;
    }
    if is_stdio(new) {
        demote::by_number_if_connected(old, Reason::Stdio);
    }
    let source = match before_dup(old) {
        Ok(e) => e,
        Err(err) => return Outcome::Failed(err),
    };
    if source.is_none() && table::get(new).is_none() {
        return Outcome::Pass;
    }
    put_over(new, old, source, flags)
}

/// Puts the file of `old`, whose entry is `source`, under `new`. It is a separate function so that a call on other
/// descriptors needs a small frame only.
#[inline(never)]
fn put_over(new: i32, old: i32, source: Option<Entry>, flags: i32) -> Outcome {
    let locks = source.and_then(still);
    let known = source.is_none_or(|e| table::get(old) == Some(e)) && raw::fcntl(old, libc::F_GETFD, 0).is_ok();
    drop(locks);
    if !known || flags & !O_CLOEXEC != 0 {
        // The kernel returns the error after a thread that is closing the number has finished.
        let _ = table::is_leaving(old);
        return raw::dup3(old, new, flags).into();
    }
    if let Some(r) = table::socket(new) {
        r.obj.set(REPLACED, true);
    }
    // The object of `new` ends first: from then on no thread takes the number for that connection's.
    let leaving = closing::forget(new, File::There);
    let mut source = source;
    let done = loop {
        match made_over(new, old, source, flags) {
            Ok(Some(stale)) => break Ok(stale),
            // Another thread has closed `old`, and what is under `new` now may be either file.
            Ok(None) => match before_dup(old) {
                Ok(now) => source = now,
                Err(e) => break Err(e),
            },
            Err(e) => break Err(e),
        }
    };
    drop(leaving);
    match done {
        Ok(stale) => {
            closing::replaced(new, stale);
            Outcome::Done(new as isize)
        }
        Err(e) => Outcome::Failed(e),
    }
}

/// Puts the file of `old` under `new`, and enters that as a duplicate for `source`. Returns the entry that `new` had; `None`:
/// `old` has another entry by now.
fn made_over(new: i32, old: i32, source: Option<Entry>, flags: i32) -> Result<Option<Option<Entry>>> {
    let Some(_kept) = kept(source) else { return Ok(None) };
    let locks = source.and_then(still);
    raw::dup3(old, new, flags)?;
    if table::get(old) != source {
        return Ok(None);
    }
    let Some(e) = source else { return Ok(Some(None)) };
    let entered = entered_dup(new, e);
    drop(locks);
    entered.map(Some).inspect_err(|_| {
        closing::not_entered(new, e);
        let _ = raw::close(new);
    })
}
