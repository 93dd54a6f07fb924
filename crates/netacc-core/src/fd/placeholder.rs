//! Placeholders, which stand for sockets that the kernel does not have, and the kernel sockets that replace them.

use crate::fd::table::Entry;
use crate::fd::{fd_cache, table};
use crate::listen::unsettled;
use crate::object::socket::{FIRST, PLACEHOLDER, STATUS_FLAGS, Socket};
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use libc::{AF_INET, O_CLOEXEC, O_NONBLOCK, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::signals::Blocked;
use netacc_sys::{own_limit, raw, reserved_fds};
use rustix::fd::FromRawFd;

/// Unconnected TCP sockets, one per family, whose duplicates stand for sockets that the kernel need not have: making a TCP
/// socket costs ten times as much as making a duplicate. A word is the descriptor + 1 and [`IN_USE`].
///
/// The first placeholder of a process is the descriptor that its template was made under. As long as there is no other,
/// the placeholder becomes real by leaving the template to it, so that a program that makes one connection has one socket.
static TEMPLATES: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Bit of a word of [`TEMPLATES`]: other placeholders may have the file as well, so that it is never bound or connected.
const IN_USE: u64 = 1 << 32;

fn template_cell(domain: i32) -> &'static AtomicU64 {
    let [t4, t6] = &TEMPLATES;
    if domain == AF_INET { t4 } else { t6 }
}

/// The descriptor in a word of [`TEMPLATES`] that is not 0.
fn descriptor(word: u64) -> i32 {
    word as u32 as i32 - 1
}

/// The template of a family: an unconnected socket with all defaults, which stays one.
pub(crate) fn template(domain: i32) -> Result<i32> {
    let cell = template_cell(domain);
    let word = match cell.fetch_or(IN_USE, Ordering::AcqRel) & !IN_USE {
        0 => {
            let fd = raw::socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0)?;
            #[allow(unsafe_code)]
            // SAFETY: the descriptor was just made, and no other code owns it.
            let fd = reserved_fds::adopt(unsafe { rustix::fd::OwnedFd::from_raw_fd(fd) })?;
            let made = fd as u64 + 1;
            match cell.compare_exchange(IN_USE, made | IN_USE, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => made,
                Err(other) => {
                    reserved_fds::close(fd);
                    other
                }
            }
        }
        known => known,
    };
    Ok(descriptor(word))
}

/// Makes a placeholder for a new socket. True: it is the first one, and its template's own file.
pub(super) fn first_or_another(domain: i32, cloexec: bool) -> Result<(i32, bool)> {
    let cell = template_cell(domain);
    if cell.load(Ordering::Acquire) != 0 {
        return placeholder(domain, cloexec).map(|fd| (fd, false));
    }
    fd_cache::close_all();
    let fd = raw::socket(domain, SOCK_STREAM | if cloexec { SOCK_CLOEXEC } else { 0 }, 0)?;
    let Ok(template) = reserved_fds::copy(fd) else {
        raw::close(fd)?;
        return Err(Errno::MFILE);
    };
    if cell.compare_exchange(0, template as u64 + 1, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        return Ok((fd, true));
    }
    // Another thread has made the first one meanwhile.
    reserved_fds::close(template);
    raw::close(fd)?;
    placeholder(domain, cloexec).map(|fd| (fd, false))
}

/// Leaves the template to its first placeholder, unless there may be others.
fn leave_template(s: &Socket) -> bool {
    let cell = template_cell(s.domain());
    let word = cell.load(Ordering::Acquire);
    if !s.has(FIRST) || word == 0 || word & IN_USE != 0 {
        return false;
    }
    let left = cell.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Acquire).is_ok();
    if left {
        reserved_fds::close(descriptor(word));
    }
    left
}

/// A real TCP socket (descriptor + 1) per family in reserve: with it a placeholder is materialized without a new
/// descriptor, so that connect(2) works even if RLIMIT_NOFILE leaves none, as on an ordinary socket.
static READY_SOCKETS: [AtomicI32; 2] = [AtomicI32::new(0), AtomicI32::new(0)];

pub(super) fn ready_socket(domain: i32) -> &'static AtomicI32 {
    let [s4, s6] = &READY_SOCKETS;
    if domain == AF_INET { s4 } else { s6 }
}

/// Puts another socket in reserve, if there is a reserved number for it.
#[cold]
pub(super) fn keep_ready_socket(domain: i32) {
    let Ok(fd) = raw::socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0) else { return };
    #[allow(unsafe_code)]
    // SAFETY: the descriptor was just made, and no other code owns it.
    let parked = reserved_fds::park(unsafe { rustix::fd::OwnedFd::from_raw_fd(fd) });
    if let Ok(fd) = parked
        && ready_socket(domain).compare_exchange(0, fd + 1, Ordering::AcqRel, Ordering::Acquire).is_err()
    {
        reserved_fds::close(fd);
    }
}

/// A kernel socket for `s`: a new one, or else the one in reserve. Returns a descriptor of ours.
fn real_socket(s: &Socket) -> Result<i32> {
    let nonblock = status_flags(s) & O_NONBLOCK;
    let flags = SOCK_STREAM | SOCK_CLOEXEC | if nonblock != 0 { SOCK_NONBLOCK } else { 0 };
    let no_number = match own_limit::raised(|| raw::socket(s.domain(), flags, 0)) {
        Err(e @ (Errno::MFILE | Errno::NFILE)) => e,
        made => {
            set_status_flags(s, made?, libc::O_RDWR | nonblock);
            return made;
        }
    };
    let ready = ready_socket(s.domain()).swap(0, Ordering::AcqRel) - 1;
    if ready < 0 {
        return Err(no_number);
    }
    set_status_flags(s, ready, libc::O_RDWR);
    Ok(ready)
}

/// Closes the sockets in reserve: in the child of a fork, since the parent may connect them, and after a change of the
/// network namespace.
pub fn drop_ready_sockets() {
    for cell in &READY_SOCKETS {
        let fd = cell.swap(0, Ordering::Relaxed) - 1;
        if fd >= 0 {
            reserved_fds::close(fd);
        }
    }
}

/// Makes a placeholder: a duplicate of the template under a program's number.
pub fn placeholder(domain: i32, cloexec: bool) -> Result<i32> {
    let cmd = if cloexec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    fd_cache::close_all();
    raw::fcntl(template(domain)?, cmd, 0)
}

/// Replaces a placeholder by a real TCP socket, with all options that were set on it.
pub fn materialize(fd: i32, s: &Socket) -> Result<()> {
    let _g = s.meta.lock();
    // Another thread may have connected the socket over shared memory since the caller checked, and even have demoted
    // it to a kernel socket, which must not be replaced. A socket enters shared memory under this lock.
    if !s.has(PLACEHOLDER) || s.is_shm() {
        return Ok(());
    }
    // Signals are blocked, since a handler of this thread must not close the number or replace its file in between.
    let _b = Blocked::all();
    // Another thread may have closed the number since the caller looked it up, and another file may have it. A thread
    // that closes a number first removes it from the table and then waits for this lock.
    if !matches!(table::get(fd), Some(Entry::Socket(r)) if core::ptr::eq(r.obj, s)) {
        return Err(Errno::BADF);
    }
    if leave_template(s) {
        set_status_flags(s, fd, libc::O_RDWR);
        s.apply_options(fd);
        s.set(PLACEHOLDER, false);
        return Ok(());
    }
    let cloexec = raw::fcntl(fd, libc::F_GETFD, 0)? & libc::FD_CLOEXEC != 0;
    let real = real_socket(s)?;
    s.apply_options(real);
    let moved = raw::dup3(real, fd, if cloexec { O_CLOEXEC } else { 0 });
    reserved_fds::close(real);
    moved?;
    s.set(PLACEHOLDER, false);
    Ok(())
}

/// Puts `real` under every number that the application has for this socket, which keeps its own FD_CLOEXEC, and under the
/// one that was kept for its sleeping calls. The caller holds both direction locks.
pub fn replace_everywhere(s: &Socket, real: i32) -> Result<()> {
    // Signals are blocked, since a handler of this thread must not close a number or replace its file in between.
    let _b = Blocked::all();
    let mut result = Ok(());
    table::each(0, usize::MAX, |fd, entry| {
        if matches!(entry, Entry::Socket(r) if core::ptr::eq(r.obj, s)) {
            let cloexec = raw::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|f| f & libc::FD_CLOEXEC != 0);
            let done = raw::dup3(real, fd, if cloexec { O_CLOEXEC } else { 0 });
            result = result.and(done.map(drop));
        }
    });
    let kept = s.kept.fd();
    if kept >= 0 {
        result = result.and(raw::dup3(real, kept, O_CLOEXEC).map(drop));
    }
    result
}

/// Materializes the socket and leaves it to the kernel.
pub fn to_kernel(fd: i32, s: &'static Socket) -> Result<()> {
    materialize(fd, s)?;
    s.leave_to_kernel();
    Ok(())
}

/// To be called before another process gets an unconnected socket, by a fork or a message: materializes it, and leaves to
/// the kernel to whom it is connected, or that it listens, since each of the processes may decide that.
///
/// A listener that was left to the kernel stays the kernel's: all of them have its queue.
pub fn share(fd: i32, s: &'static Socket) -> Result<()> {
    materialize(fd, s)?;
    let listens = raw::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Ok(1);
    if listens || !s.let_others_have() {
        s.leave_to_kernel();
    } else {
        unsettled::note();
    }
    Ok(())
}

/// Whether the number is one of the standard streams, which libc reads and writes internally: a connection there stays
/// with the kernel.
pub fn is_stdio(fd: i32) -> bool {
    (0..=2).contains(&fd)
}

/// The flags of the socket's file description, as fcntl(2) returns them.
pub fn status_flags(s: &Socket) -> i32 {
    let noted = s.flags();
    STATUS_FLAGS.iter().filter(|(note, _)| noted & note != 0).fold(libc::O_RDWR, |all, (_, flag)| all | flag)
}

/// Gives the kernel socket `fd`, whose file has the flags `has`, those of the socket's file.
pub fn set_status_flags(s: &Socket, fd: i32, has: i32) {
    let flags = status_flags(s);
    if flags != has {
        let _ = raw::fcntl(fd, libc::F_SETFL, flags as usize);
    }
}
