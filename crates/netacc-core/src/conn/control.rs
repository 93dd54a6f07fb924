//! fcntl(2), ioctl(2), shutdown(2), getsockname(2), getpeername(2).

use crate::conn::io::accelerated;
use crate::epoll::paths;
use crate::exec::inheritance;
use crate::fd::create::dup_with;
use crate::fd::placeholder::{materialize, status_flags, to_kernel};
use crate::fd::{create, table};
use crate::listen::opening;
use crate::object::reference::Ref;
use crate::object::socket::{CONNECTING, ConnState, NONBLOCK, PLACEHOLDER, Path, STATUS_FLAGS, Socket};
use crate::outcome::Outcome;
use crate::switch::redispatch::go_after;
use crate::switch::{comeback, demote};
use core::ffi::c_void;
use core::net::SocketAddr;
use core::sync::atomic::{Ordering, fence};
use libc::{F_DUPFD, F_DUPFD_CLOEXEC, F_GETFL, F_SETFL, O_NONBLOCK};
use netacc_sys::errno::Errno;
use netacc_sys::{addr, raw, user};
use netacc_transport::rdma::engine::progress;
use netacc_transport::shm::parts;
use netacc_transport::{Endpoint, Shut};

/// F_SETSIG of fcntl(2), which the libc crate does not define for every target.
const F_SETSIG: i32 = 10;
const F_SETOWN_EX: i32 = 15;

/// ioctl(2) requests that ask for signals (asm/sockios.h, asm/ioctls.h).
const FIOSETOWN: u64 = 0x8901;
const SIOCSPGRP: u64 = 0x8902;
const FIOASYNC: u64 = 0x5452;
/// Request for the number of bytes that have not been sent at all (linux/sockios.h).
const SIOCOUTQNSD: u64 = 0x894b;
/// Request that gives a socket, whose number is the argument, to a network block device (linux/nbd.h).
const NBD_SET_SOCK: u32 = 0xab00;
/// Request that attaches a socket to a KCM socket (linux/kcm.h). Its number is the first member of the argument's
/// structure.
const SIOCKCMATTACH: u32 = 0x89e0;

/// Request that clears FD_CLOEXEC (ioctl(2)).
const FIONCLEX: u64 = 0x5450;

/// Whether a call of fcntl(2) needs the socket layer.
#[inline]
pub fn concerns(fd: i32, cmd: i32) -> bool {
    if matches!(cmd, F_DUPFD | F_DUPFD_CLOEXEC) { create::concerns_dup(fd) } else { table::knows(fd) }
}

/// fcntl(2).
pub fn fcntl(fd: i32, cmd: i32, arg: usize) -> Outcome {
    match cmd {
        F_DUPFD | F_DUPFD_CLOEXEC => return dup_with(fd, || raw::fcntl(fd, cmd, arg)),
        F_GETFL | F_SETFL => {}
        // Only the kernel can send the signals of signal-driven I/O.
        libc::F_SETOWN | F_SETOWN_EX | F_SETSIG => {
            demote::by_number_if_connected(fd, netacc_stats::Reason::Unsupported);
            // The setting has to be made on a socket of its own and not on the template.
            if let Some(r) = table::socket(fd)
                && r.obj.path() == Path::New
                && let Err(e) = materialize(fd, r.obj)
            {
                return Outcome::Failed(e);
            }
            return Outcome::Pass;
        }
        libc::F_SETFD if arg as i32 & libc::FD_CLOEXEC == 0 => {
            inheritance::inheritable(fd);
            return Outcome::Pass;
        }
        _ => {
            // The look-up closes a number that is only in the fd cache.
            table::get(fd);
            return Outcome::Pass;
        }
    }
    let Some(r) = table::socket(fd) else { return Outcome::Pass };
    let s = r.obj;
    if cmd == F_GETFL {
        return match s.path() {
            Path::Shm => Outcome::Done(status_flags(s) as isize),
            Path::New if s.has(PLACEHOLDER) => Outcome::Done(status_flags(s) as isize),
            Path::Listener if !has_files_mode(s) => match raw::fcntl(fd, F_GETFL, 0) {
                // The kernel's listener is always non-blocking; the program's own setting is a flag of the object.
                Ok(f) => Outcome::Done(((f & !O_NONBLOCK) | (status_flags(s) & O_NONBLOCK)) as isize),
                Err(e) => Outcome::Failed(e),
            },
            Path::Listener | Path::New | Path::Tcp => Outcome::Pass,
        };
    }
    if let Err(e) = note_status_flags(fd, s, arg as i32) {
        return Outcome::Failed(e);
    }
    match s.path() {
        Path::Shm => {
            // A liveness socket is the kernel's file of this connection, so it holds the flags for a process that
            // inherits it.
            if s.endpoint().is_some_and(|e| e.liveness.fd() >= 0 && !e.side.liveness_listens()) {
                let _ = raw::fcntl(fd, F_SETFL, arg);
            }
            Outcome::Done(0)
        }
        // The flags of a placeholder would apply to all duplicates of the template; they are set when it is
        // materialized.
        Path::New if s.has(PLACEHOLDER) => Outcome::Done(0),
        Path::Listener if !has_files_mode(s) => raw::fcntl(fd, F_SETFL, arg | O_NONBLOCK as usize).map(|_| ()).into(),
        Path::Listener | Path::New | Path::Tcp => Outcome::Pass,
    }
}

/// Notes the flags that F_SETFL sets. The kernel refuses O_DIRECT for a file without direct I/O, and changes no other flag then.
fn note_status_flags(fd: i32, s: &Socket, flags: i32) -> netacc_sys::errno::Result<()> {
    if flags & libc::O_DIRECT != 0 {
        return Err(Errno::INVAL);
    }
    for (note, flag) in STATUS_FLAGS {
        s.set(note, flags & flag != 0);
    }
    if flags & libc::O_ASYNC != 0 {
        demote::by_number_if_connected(fd, netacc_stats::Reason::Unsupported);
    }
    Ok(())
}

/// Whether a listener's file has the mode that the program sets: the processes that have it in common may each accept there
/// without knowing of the others.
fn has_files_mode(s: &Socket) -> bool {
    s.listener().is_some_and(|l| l.servers.is_unknown())
}

/// Whether a call of ioctl(2) on any descriptor may give one of our sockets to the kernel.
#[inline]
pub fn gives_socket(request: usize) -> bool {
    matches!(request as u32, NBD_SET_SOCK | SIOCKCMATTACH)
}

/// Demotes the socket that such a request names.
///
/// # Safety
/// `arg` is a valid argument of the request.
#[cold]
#[allow(unsafe_code)]
unsafe fn give_socket(request: u64, arg: usize) {
    let given = match request as u32 {
        NBD_SET_SOCK => arg as i32,
        // SAFETY: the caller guarantees a valid argument, and its first int can be read.
        _ if user::readable(arg as *const i32, size_of::<i32>()) => unsafe {
            core::ptr::read_unaligned(arg as *const i32)
        },
        _ => return,
    };
    let _ = demote::by_number(given, netacc_stats::Reason::Unsupported);
}

/// ioctl(2).
///
/// # Safety
/// `arg` is a valid argument of the request.
#[allow(unsafe_code)]
pub unsafe fn ioctl(fd: i32, request: usize, arg: usize) -> Outcome {
    let gives = gives_socket(request);
    // Only the low 32 bits count: some callers sign-extend.
    let request = u64::from(request as u32);
    let Some(r) = table::socket(fd) else {
        if gives {
            // SAFETY: the caller guarantees a valid argument of this request.
            unsafe { give_socket(request, arg) };
        }
        return Outcome::Pass;
    };
    let s = r.obj;
    let p = arg as *mut i32;
    if request == libc::FIONBIO {
        if !user::readable(p, size_of::<i32>()) {
            return Outcome::Failed(Errno::FAULT);
        }
        // SAFETY: FIONBIO takes a pointer to int (ioctl(2)).
        let on = unsafe { core::ptr::read_unaligned(p) } != 0;
        s.set(NONBLOCK, on);
        return match s.path() {
            Path::Shm => Outcome::Done(0),
            // The kernel's listener stays non-blocking, whatever the application sets.
            Path::Listener if !on && !has_files_mode(s) => Outcome::Done(0),
            Path::New if s.has(PLACEHOLDER) => Outcome::Done(0),
            _ => Outcome::Pass,
        };
    }
    if request == FIONCLEX {
        inheritance::inheritable(fd);
    }
    if matches!(request, SIOCSPGRP | FIOSETOWN | FIOASYNC) {
        demote::by_number_if_connected(fd, netacc_stats::Reason::Unsupported);
    }
    let Some((_, ep)) = accelerated(fd) else {
        if s.path() == Path::New
            && !matches!(request, libc::FIONREAD | libc::TIOCOUTQ)
            && let Err(e) = materialize(fd, s)
        {
            // The request must not change the template, so without a socket of its own it fails.
            return Outcome::Failed(e);
        }
        return Outcome::Pass;
    };
    let n = match request {
        libc::FIONREAD => parts::unread(ep),
        libc::TIOCOUTQ | SIOCOUTQNSD => ep.unsent(),
        // SIOCATMARK: no urgent data is ever received, so the mark is never reached.
        0x8905 => 0,
        _ => return Outcome::Pass,
    };
    if !user::writable(p, size_of::<i32>()) {
        return Outcome::Failed(Errno::FAULT);
    }
    // SAFETY: these requests write an int.
    unsafe { core::ptr::write_unaligned(p, n.min(i32::MAX as usize) as i32) };
    Outcome::Done(0)
}

/// shutdown(2).
pub fn shutdown(fd: i32, how: i32) -> Outcome {
    let done = shut(fd, how);
    progress::progress();
    done
}

fn shut(fd: i32, how: i32) -> Outcome {
    crate::switch::promote::given_up(fd);
    loop {
        let Some((r, ep)) = accelerated(fd) else { return shutdown_other(fd, how) };
        let how = match how {
            libc::SHUT_RD => Shut::Read,
            libc::SHUT_WR => Shut::Write,
            libc::SHUT_RDWR => Shut::Both,
            _ => return Outcome::Failed(Errno::INVAL),
        };
        if ep.is_pending() && ep.side.withdraw() {
            // The kernel aborts a pending connect, whichever half is shut down.
            return super::abort::abort(r, ep).into();
        }
        // The connect has completed, and a further connect(2) reports that.
        r.obj.set(CONNECTING, false);
        if ep.observed().has_ended() {
            ep.stir();
            return Outcome::Failed(Errno::NOTCONN);
        }
        // A write that is copying holds the lock and finishes, so that the end of stream follows its bytes; one that
        // waits for room holds no lock, and the end wakes it.
        let tx = r.obj.tx.lock();
        if !r.valid() {
            return Outcome::Failed(Errno::BADF);
        }
        // Another thread may have switched the connection meanwhile, which it does under this lock.
        if !r.obj.is_shm() || !r.obj.endpoint().is_some_and(|now| core::ptr::eq(now, ep)) {
            continue;
        }
        ep.shutdown(how);
        if how != Shut::Write && ep.old_subflow.fd() >= 0 {
            // A call may still sleep on the kernel socket from before the promotion.
            let _ = raw::shutdown(ep.old_subflow.fd(), libc::SHUT_RD);
        }
        drop(tx);
        // A peer that demotes the connection stores `SWITCHED` and then loads our end; this side has stored its end and
        // loads `SWITCHED`.
        fence(Ordering::SeqCst);
        ep.readiness();
        if ep.side.is_moving() {
            // The peer's program reads a kernel socket by now, and sees the end only there.
            go_after(r);
        }
        return Outcome::Done(0);
    }
}

/// shutdown(2) on a socket that is not in a ring: the kernel does it, on a socket of its own.
fn shutdown_other(fd: i32, how: i32) -> Outcome {
    let Some(r) = table::socket(fd) else { return Outcome::Pass };
    let s = r.obj;
    match s.path() {
        // The kernel's call fails and has an effect all the same: a connection that the socket has later is shut down.
        Path::New => Outcome::pass_after(to_kernel(fd, s)),
        Path::Listener => {
            let done = raw::shutdown(fd, how);
            if done.is_ok() && how != libc::SHUT_WR {
                opening::abort(fd, s);
            }
            paths::stirred(s);
            done.into()
        }
        Path::Shm | Path::Tcp => Outcome::Pass,
    }
}

/// Returns an address of a connection that left shared memory: it keeps its own addresses, and the kernel tells whether
/// it is still connected.
fn demoted(
    fd: i32,
    p: *mut c_void,
    len: *mut u32,
    ask: fn(i32, *mut c_void, *mut u32) -> netacc_sys::errno::Result<()>,
    kept: fn(&Socket) -> Option<SocketAddr>,
) -> Outcome {
    let Some(r) = table::socket(fd).filter(|r| r.obj.is(ConnState::Demoted) || comeback::was_in_ring(r.obj)) else {
        return Outcome::Pass;
    };
    let (mut buf, mut n) = ([0u64; 16], 128);
    let Some(a) = kept(r.obj).filter(|_| ask(fd, buf.as_mut_ptr().cast(), &raw mut n).is_ok()) else {
        return Outcome::Pass;
    };
    give(r, a, p, len)
}

/// getsockname(2).
pub fn getsockname(fd: i32, p: *mut c_void, len: *mut u32) -> Outcome {
    let Some((r, _)) = accelerated(fd) else { return demoted(fd, p, len, raw::getsockname, |s| s.local.get()) };
    let Some(a) = r.obj.local.get() else { return Outcome::Pass };
    give(r, a, p, len)
}

/// getpeername(2).
pub fn getpeername(fd: i32, p: *mut c_void, len: *mut u32) -> Outcome {
    let Some((r, ep)) = accelerated(fd) else { return demoted(fd, p, len, raw::getpeername, |s| s.peer.get()) };
    let Some(a) = r.obj.peer.get() else { return Outcome::Pass };
    if ep.observed().has_ended() || ep.is_pending() {
        return Outcome::Failed(Errno::NOTCONN);
    }
    give(r, a, p, len)
}

/// Stores an address of a socket where the program wants it.
fn give(r: Ref<Socket>, a: SocketAddr, p: *mut c_void, len: *mut u32) -> Outcome {
    addr::check(p, len).map(|()| addr::write(a, r.obj.domain(), p, len)).into()
}
