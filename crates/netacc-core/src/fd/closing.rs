//! Removal of numbers from the table: close(2), and every other call that closes or replaces a descriptor.
//!
//! While a number is in the table, another thread may put a file of ours under it: the liveness socket of a connection
//! before a fork, a real socket that replaces a placeholder, or a kernel socket when the connection is demoted. It does
//! so with the socket's locks held. So a number is released in this order, by `remove` only:
//!
//! 1. it is removed from the table, and until the end calls of other threads that name it wait ([`table::Leaving`]);
//! 2. the locks are taken and released, so that any thread that saw the number in the table has finished with it;
//! 3. under the locks: a file that the connection still needs and that is only under this number moves to another one;
//! 4. the kernel may give the number to another file.

use crate::conn::pin;
use crate::epoll::instance;
use crate::fd::later::HANDLER_LOCK_WAIT;
use crate::fd::table::{Entry, Leaving};
use crate::fd::{fd_cache, later, table};
use crate::object::reference::Ref;
use crate::object::socket::{KEEPABLE, SLEPT_ON, Socket};
use crate::outcome::Outcome;
use crate::switch::{comeback, promote, redispatch};
use crate::wait::bell;
use netacc_sys::errno::Errno;
use netacc_sys::{Guard, Lock, lock, raw, reserved_fds};
use netacc_transport::rdma::engine::progress;

/// The file that was under a number when the number left the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// The file is there until the caller closes or replaces it.
    There,
    /// The file was already closed or replaced, by a call that was not intercepted.
    Gone,
}

/// The object of a number that was removed from the table.
enum Removed {
    /// A socket of this domain. `cached`: only a placeholder is under the number, which may be kept in the fd cache.
    Socket {
        domain: i32,
        cached: bool,
    },
    Epoll,
    /// An object whose end has to wait, since a signal handler could not take its locks.
    Aside,
}

/// Removes the number from the table, in the order above. `None`: it was not there. The second part is to be dropped
/// when the number is closed or has another file.
fn remove(fd: i32, file: File) -> Option<(Removed, Option<Leaving>)> {
    later::not_later(fd);
    if !table::knows(fd) {
        return None;
    }
    if file == File::There && lock::interrupted() && set_aside(fd) {
        return Some((Removed::Aside, None));
    }
    removed(fd, file)
}

/// Removes a number in a thread that has not interrupted a holder of locks.
fn removed(fd: i32, file: File) -> Option<(Removed, Option<Leaving>)> {
    let mut kernels = false;
    if let Some(r) = table::socket(fd) {
        before(fd, r);
        // A kernel socket stays under the number until it is closed, which may take long with SO_LINGER.
        kernels = !changes_files(r.obj);
    }
    if file == File::Gone || kernels {
        return table::take(fd).map(|e| (dropped(fd, e, file), None));
    }
    let (e, leaving) = table::take_leaving(fd)?;
    Some((dropped(fd, e, file), Some(leaving)))
}

/// Moves the object to a number of ours, which a later call closes. This is for a signal handler that has interrupted a
/// holder of locks and cannot wait for them. False: there is no free number.
#[cold]
fn set_aside(fd: i32) -> bool {
    let Some(Entry::Socket(r)) = table::get(fd) else { return false };
    let Ok(aside) = reserved_fds::copy(fd) else { return false };
    r.obj.add_ref();
    r.obj.set(KEEPABLE, false);
    if table::put(aside, Entry::Socket(r)).is_err() {
        // This is never the last reference: `fd` has one.
        pin::put(r.obj);
        reserved_fds::close(aside);
        return false;
    }
    later::later(aside, &CLOSE_LATE);
    if let Some(ep) = r.obj.endpoint().filter(|ep| ep.lies_under(fd)) {
        ep.release_number(fd, Some(aside));
    }
    // This is not the last reference either.
    if table::take(fd).is_some() {
        pin::put(r.obj);
    }
    true
}

/// Does the part of a close that needs the number while it is still valid.
fn before(fd: i32, r: Ref<Socket>) {
    if r.obj.is_candidate() {
        // Another process that has the connection by fork goes on, and may be alone with it after this.
        if r.obj.upgrade.held_by.is_counted() && table::number_of(r, fd).is_none() {
            promote::cancel_here(fd, r);
        } else {
            promote::cancel(fd, r);
        }
    }
    if redispatch::is_in_doubt(r.obj) || redispatch::is_moving_any() {
        redispatch::settle_before_close(fd, r);
    }
}

/// Drops the reference of `fd` to its object, after it was removed from the table or replaced by another entry.
fn dropped(fd: i32, e: Entry, file: File) -> Removed {
    match e {
        Entry::Socket(r) => {
            // Read before the reference is dropped: after that the object may stand for another socket.
            let (domain, files) = (r.obj.domain(), changes_files(r.obj));
            let cached = pin::put(r.obj);
            // A sleeping call may need the file of a socket that lives on, also where that is the kernel's by now.
            let slept_on = || r.obj.has(SLEPT_ON) || comeback::was_in_ring(r.obj);
            if files || (r.valid() && slept_on()) {
                await_files(fd, r, file);
            }
            Removed::Socket { domain, cached }
        }
        Entry::Epoll(r) => {
            instance::put(r.obj);
            Removed::Epoll
        }
    }
}

/// Whether another file may still be put under the numbers: not for a socket that stays with the kernel.
pub(super) fn changes_files(s: &Socket) -> bool {
    !s.is_kernels()
}

/// Waits for another thread that has seen the number in the table and may be putting a file under it: it has finished
/// when the locks are free. If the socket lives on, by another number or in a sleeping call, it no longer needs the
/// file of this number afterwards.
fn await_files(fd: i32, r: Ref<Socket>, file: File) {
    let in_handler = lock::interrupted();
    drop(held(&r.obj.meta, in_handler));
    // The locks were taken when the connection ended with its last number.
    if !r.valid() {
        return;
    }
    let locks = (held(&r.obj.rx, in_handler), held(&r.obj.tx, in_handler));
    if r.valid() {
        go_on_elsewhere(fd, r, file);
    }
    drop(locks);
}

/// Takes one of the socket's locks. `None`: its holder may be the thread that this signal handler has interrupted.
fn held<const RANK: u8>(lock: &'static Lock<RANK>, in_handler: bool) -> Option<Guard<'static>> {
    if in_handler { lock.lock_within(HANDLER_LOCK_WAIT) } else { Some(lock.lock()) }
}

/// Moves a file that the socket has only under this number to another one: the number was removed from the table, and
/// gets or has another file. Under both direction locks.
fn go_on_elsewhere(fd: i32, r: Ref<Socket>, file: File) {
    let (other, count) = table::numbers_of(r, fd);
    // A call that sleeps on a listener may use this number even if there are others.
    let wanted = other.is_none() || r.obj.listener().is_some() || r.obj.has(SLEPT_ON);
    if file == File::There && wanted && r.obj.is_pinned_beside(count) {
        r.obj.kept.keep(fd);
        // A ppoll(2) that is woken looks its numbers up again, and this one may have another file then.
        bell::ring_all();
    }
    if let Some(ep) = r.obj.endpoint()
        && ep.lies_under(fd)
    {
        match file {
            File::There => ep.release_number(fd, other),
            File::Gone => ep.lose_number(fd, other),
        }
    }
}

/// Undoes the effect of a number that was made for `e` and could not be entered.
pub(super) fn not_entered(fd: i32, e: Entry) {
    dropped(fd, e, File::There);
}

/// Drops an entry that another one replaced in the table: the program had closed the number by a call that was not
/// intercepted.
pub fn replaced(fd: i32, stale: Option<Entry>) {
    if let Some(e) = stale {
        dropped(fd, e, File::Gone);
    }
}

/// Only our side of the descriptor is dropped: the kernel's is closed or replaced by the caller, or was. The caller
/// drops the result after that.
pub fn forget(fd: i32, file: File) -> Option<Leaving> {
    remove(fd, file).and_then(|(_, leaving)| leaving)
}

/// The function that closes a number which was left for a later call.
static CLOSE_LATE: fn(i32) = close_one_held;

fn close_one_held(fd: i32) {
    if reserved_fds::is(fd) {
        let _leaving = remove(fd, File::There);
        reserved_fds::close(fd);
    } else {
        let _ = close_now(fd);
    }
}

/// close(2). A signal handler may call it (signal-safety(7)), even in a thread that holds a lock of ours: then the
/// number stays open until the next call that may close it.
pub fn close(fd: i32) -> Outcome {
    if table::knows(fd) && lock::interrupted() {
        if table::is_leaving(fd) {
            return Outcome::Failed(Errno::BADF);
        }
        return if later::later(fd, &CLOSE_LATE) { Outcome::Done(0) } else { Outcome::Failed(Errno::BADF) };
    }
    later::close_later();
    later::not_later(fd);
    closed(fd, removed(fd, File::There))
}

fn close_now(fd: i32) -> Outcome {
    closed(fd, remove(fd, File::There))
}

#[inline]
fn closed(fd: i32, removed: Option<(Removed, Option<Leaving>)>) -> Outcome {
    match removed {
        Some((Removed::Socket { domain, cached }, _leaving)) => {
            progress::progress();
            if cached && fd_cache::keep(fd, domain) {
                return Outcome::Done(0);
            }
            raw::close(fd).into()
        }
        Some((Removed::Epoll | Removed::Aside, _leaving)) => raw::close(fd).into(),
        // The program closes the number twice, and the file there no longer belongs to it.
        None if reserved_fds::is(fd) || table::is_leaving(fd) => Outcome::Failed(Errno::BADF),
        None => Outcome::Pass,
    }
}

/// Whether a call that closes number `fd` or accepts from it needs the socket layer.
#[inline]
pub fn concerns(fd: i32) -> bool {
    table::knows(fd) || reserved_fds::is(fd) || later::has_later()
}

/// close_range(2), which must spare our own descriptors.
pub fn close_range(first: u32, last: u32, flags: u32) -> Outcome {
    const CLOEXEC: u32 = 4;
    if first > last || flags & CLOEXEC != 0 {
        return Outcome::Pass;
    }
    later::close_later();
    table::each(first as usize, last as usize, |fd, _| {
        // The guards end when all numbers are closed.
        core::mem::forget(forget(fd, File::There));
    });
    let mut from = first;
    let mut result = Ok(());
    reserved_fds::each(|ours| {
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
    table::all_left(first as usize, last as usize);
    result.into()
}

/// closefrom(3).
pub fn close_from(first: i32) -> Outcome {
    close_range(first.max(0) as u32, u32::MAX >> 1, 0)
}
