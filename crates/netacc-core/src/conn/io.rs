//! The calls that send and receive.

use crate::conn::connect::fast_open;
use crate::conn::pin::Waiting;
use crate::conn::transfer::one;
use crate::conn::{after_close, candidate, transfer};
use crate::fd::table;
use crate::object::reference::Ref;
use crate::object::socket::Socket;
use crate::outcome::Outcome;
use crate::switch::promote;
use core::ffi::c_void;
use libc::MSG_DONTWAIT;
use netacc_sys::errno::Errno;
use netacc_sys::{addr, user, visits};
use netacc_transport::Iov;
use netacc_transport::shm::ShmEndpoint;

/// Whether a call that moves bytes needs the socket layer: not on a foreign descriptor, and not on a connection that
/// stays with the kernel.
#[inline]
pub fn concerns(fd: i32) -> bool {
    // One look at the state: a connection may leave its ring and become a candidate between two.
    table::is_socket(fd, |s| !s.is_kernels())
}

/// The accelerated connection of this descriptor, with its endpoint.
#[inline]
pub fn accelerated(fd: i32) -> Option<(Ref<Socket>, &'static ShmEndpoint)> {
    let r = table::socket(fd)?;
    Some((r, accelerated_of(fd, r)?))
}

/// The endpoint of a socket that is accelerated, or that has just become so.
#[inline]
fn accelerated_of(fd: i32, r: Ref<Socket>) -> Option<&'static ShmEndpoint> {
    if !(r.obj.is_shm() || r.obj.is_candidate() && promote::advance(fd, r)) {
        return None;
    }
    r.obj.endpoint()
}

/// recv(2), read(2).
#[inline]
pub fn recv(fd: i32, buf: *mut u8, len: usize, flags: i32) -> Outcome {
    let Some(r) = table::socket(fd) else { return Outcome::Pass };
    make(fd, r, accelerated_of(fd, r), &mut Iov::one(&one(buf, len)), (flags, false))
}

/// Makes a read- or write-like call on a connection, with the endpoint that it had at the look-up.
#[inline(always)]
pub(super) fn make(
    fd: i32,
    r: Ref<Socket>,
    mut ep: Option<&'static ShmEndpoint>,
    iov: &mut Iov<'_>,
    (flags, write): (i32, bool),
) -> Outcome {
    if iov.is_outside() {
        return Outcome::Failed(Errno::FAULT);
    }
    let mut call = Waiting::default();
    loop {
        let done = match ep {
            Some(ep) => transfer::make(r, ep, iov, (flags, write), &mut call).into(),
            None => candidate::make(fd, r, iov, (flags, write), &mut call),
        };
        if after_close::is_due(done, &call) {
            return after_close::go_on(&mut call, iov, (flags, write));
        }
        match done {
            Outcome::Anew { .. } if goes_on(fd, r) => ep = accelerated_of(fd, r),
            Outcome::Anew { .. } => {
                let waits = if write { libc::POLLOUT } else { libc::POLLIN };
                return Outcome::Anew { waits, until: call.end() };
            }
            done => return done,
        }
    }
}

/// Whether a call that is to be made anew goes on here, since its connection has changed its path. A call that is to come out
/// of the library is made anew by its hook.
#[inline]
fn goes_on(fd: i32, r: Ref<Socket>) -> bool {
    !visits::is_leaving() && table::socket(fd) == Some(r)
}

/// read(2), which differs from recv(2) in one point: with no room it returns 0 at once.
#[inline]
pub fn read(fd: i32, buf: *mut u8, len: usize) -> Outcome {
    let Some(r) = table::socket(fd) else { return Outcome::Pass };
    let ep = accelerated_of(fd, r);
    let buffer = one(buf, len);
    let mut dst = Iov::one(&buffer);
    if len == 0 && ep.is_some() && !dst.is_outside() {
        return Outcome::Done(0);
    }
    make(fd, r, ep, &mut dst, (0, false))
}

/// send(2).
#[inline]
pub fn send(fd: i32, buf: *const u8, len: usize, flags: i32) -> Outcome {
    send_with(fd, buf, len, flags, (core::ptr::null(), 0))
}

#[inline]
fn send_with(fd: i32, buf: *const u8, len: usize, flags: i32, to: (*const c_void, u32)) -> Outcome {
    let Some(r) = table::socket(fd) else { return Outcome::Pass };
    let ep = accelerated_of(fd, r);
    if flags & libc::MSG_FASTOPEN != 0
        && let Err(e) = fast_open(fd, r, ep, to, flags)
    {
        return e.into();
    }
    make(fd, r, ep, &mut Iov::one(&one(buf, len)), (flags, true))
}

/// sendto(2). A connection ignores the address, but an invalid one is reported.
#[inline]
pub fn send_to(fd: i32, buf: *const u8, len: usize, flags: i32, addr: *const c_void, addr_len: u32) -> Outcome {
    match addr::given(addr, addr_len) {
        Ok(()) => send_with(fd, buf, len, flags, (addr, addr_len)),
        Err(e) => Outcome::Failed(e),
    }
}

/// Sets the address length that recvfrom(2) returns to 0: a connected stream gives no source address.
///
/// # Safety
/// `len` is the application's pointer, null or valid.
#[inline]
#[allow(unsafe_code)]
pub unsafe fn received_from(done: Outcome, addr: *const c_void, len: *mut u32) -> Outcome {
    if addr.is_null() || !matches!(done, Outcome::Done(_)) {
        return done;
    }
    if !user::writable(len, size_of::<u32>()) {
        return Outcome::Failed(Errno::FAULT);
    }
    // SAFETY: the application's length, in memory that can be written.
    unsafe {
        if (len.read_unaligned() as i32) < 0 {
            return Outcome::Failed(Errno::INVAL);
        }
        len.write_unaligned(0);
    }
    done
}

/// readv(2), writev(2), and preadv2(2), pwritev2(2) without an offset.
///
/// # Safety
/// `vec` points to `count` valid iovecs.
#[allow(unsafe_code)]
pub unsafe fn vectored(fd: i32, vec: *const libc::iovec, count: i32, write: bool, flags: i32) -> Outcome {
    const IOV_MAX: i32 = 1024;
    let Some(r) = table::socket(fd) else { return Outcome::Pass };
    let ep = accelerated_of(fd, r);
    if ep.is_none() && r.obj.is_kernels() {
        return Outcome::Pass;
    }
    if !(0..=IOV_MAX).contains(&count) {
        return Outcome::Failed(Errno::INVAL);
    }
    if !user::readable(vec, count as usize * size_of::<libc::iovec>()) {
        return Outcome::Failed(Errno::FAULT);
    }
    // SAFETY: the caller guarantees that `vec` points to `count` valid iovecs.
    match unsafe { Iov::new(vec, count as usize) } {
        Some(iov) if ep.is_some() && iov.left() == 0 && !iov.is_outside() => Outcome::Done(0),
        Some(mut iov) => make(fd, r, ep, &mut iov, (flags, write)),
        None if ep.is_some() => Outcome::Failed(Errno::INVAL),
        None => Outcome::Pass,
    }
}

/// preadv2(2), pwritev2(2). A socket has no offset; -1 means none.
///
/// # Safety
/// `vec` points to `count` valid iovecs.
#[allow(unsafe_code)]
pub unsafe fn vectored_at(
    fd: i32,
    vec: *const libc::iovec,
    count: i32,
    offset: i64,
    flags: i32,
    write: bool,
) -> Outcome {
    // Flags that mean nothing for a socket, besides RWF_NOWAIT.
    const KNOWN: i32 = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_NOWAIT | libc::RWF_APPEND;
    // Other offsets and flags are refused or handled by the kernel.
    if offset != -1 || flags & !KNOWN != 0 {
        return Outcome::Pass;
    }
    let flags = if flags & libc::RWF_NOWAIT != 0 { MSG_DONTWAIT } else { 0 };
    // SAFETY: the caller guarantees that `vec` points to `count` valid iovecs.
    unsafe { vectored(fd, vec, count, write, flags) }
}
