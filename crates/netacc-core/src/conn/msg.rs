//! sendmsg(2), recvmsg(2) and their many-message forms.
//!
//! # Safety
//! The application's `msghdr` structures are read and written as the kernel would do it.
#![allow(unsafe_code)]

use crate::conn::candidate;
use crate::conn::connect::fast_open;
use crate::conn::io::{self, accelerated};
use crate::conn::msg_header::{self, SIZE as HEADER, each_passed};
use crate::fd::table;
use crate::listen::{adopt, dispatcher};
use crate::object::reference::Ref;
use crate::object::socket::{INQ, Socket};
use crate::outcome::Outcome;
use crate::switch::{demote, promote};
use netacc_stats::Reason;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::time::Deadline;
use netacc_sys::user;
use netacc_transport::Iov;
use netacc_transport::shm::{ShmEndpoint, parts};

const IOV_MAX: usize = 1024;

/// The flag by which the kernel marks calls of 32-bit programs (linux/socket.h). It is the sign bit of a call's flags, and is
/// refused as a flag of the program's before anything else is looked at.
const MSG_CMSG_COMPAT: i32 = i32::MIN;

/// # Safety
/// `m` is the application's valid message header.
unsafe fn iov<'a>(m: *const libc::msghdr) -> Result<Iov<'a>> {
    if !user::readable(m, HEADER) {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller guarantees a valid header.
    let (vec, n, name, len) = unsafe { ((*m).msg_iov, msg_header::buffers(m), (*m).msg_name, (*m).msg_namelen) };
    if !name.is_null() && (len as i32) < 0 {
        return Err(Errno::INVAL);
    }
    if n > IOV_MAX {
        return Err(Errno(libc::EMSGSIZE));
    }
    if !user::readable(vec, n * size_of::<libc::iovec>()) {
        return Err(Errno::FAULT);
    }
    // SAFETY: the application's array of n iovecs.
    unsafe { Iov::new(vec, n) }.ok_or(Errno::INVAL)
}

/// The connection of a call, with its endpoint. The kernel makes a call with control messages, and all later calls on
/// the connection if it was a candidate, unless it is in a ring already.
///
/// # Safety
/// `m` is the application's valid message header.
unsafe fn endpoint_for(fd: i32, m: *const libc::msghdr) -> Option<(Ref<Socket>, &'static ShmEndpoint)> {
    accelerated(fd).or_else(|| {
        // SAFETY: the caller guarantees a valid header, and its memory can be read.
        let controls = user::readable(m, HEADER) && unsafe { msg_header::controls(m) } != 0;
        if controls && promote::given_up(fd) { accelerated(fd) } else { None }
    })
}

/// The socket and the buffers of a call on a candidate.
///
/// # Safety
/// `m` is the application's valid message header.
unsafe fn candidate<'a>(fd: i32, m: *const libc::msghdr) -> Option<(Ref<Socket>, Iov<'a>)> {
    let r = crate::fd::table::socket(fd).filter(|r| candidate::is_ours(r.obj))?;
    // SAFETY: the caller guarantees a valid header.
    unsafe { iov(m) }.ok().map(|v| (r, v))
}

/// Whether a message may have control messages, in which descriptors are passed. A header whose memory may be
/// unreadable counts, and is examined later.
///
/// # Safety
/// `m` is the application's valid message header, or points to unreadable memory.
#[inline]
pub unsafe fn carries(m: *const libc::msghdr) -> bool {
    // Only the lower half, which is all that counts under musl; the kernel refuses more than that.
    // SAFETY: the caller guarantees a valid header where its memory can be read.
    table::in_use() && (!user::known(m, HEADER, user::Access::Read) || unsafe { (*m).msg_controllen } as u32 != 0)
}

/// Demotes the descriptors that a message passes to another process. Fails if one of them cannot be demoted: the
/// receiver would get a descriptor without a connection.
///
/// # Safety
/// `m` is a valid message header of the application's.
pub unsafe fn passing(m: *const libc::msghdr) -> Result<()> {
    let mut all = Ok(());
    let mut pass = |fd| {
        if let Some(r) = table::socket(fd) {
            dispatcher::passes_on(r.obj);
        }
        all = all.and(demote::by_number(fd, Reason::Passed));
    };
    // SAFETY: the caller guarantees a valid header.
    unsafe { each_passed(m, &mut pass) };
    all
}

/// Enters the descriptors that were received with `m`, which the kernel has filled in, in the table.
///
/// # Safety
/// `m` is a valid message header of the application's.
pub unsafe fn received(m: *const libc::msghdr) {
    // SAFETY: the caller guarantees a valid header.
    unsafe { each_passed(m, adopt::received) };
}

/// sendmsg(2). A destination address is ignored, as by a connected TCP socket; control messages have no
/// effect on this path.
///
/// # Safety
/// `m` points to a valid message header, or to unreadable memory.
pub unsafe fn sendmsg(fd: i32, m: *const libc::msghdr, flags: i32) -> Outcome {
    if flags & MSG_CMSG_COMPAT != 0 {
        return Outcome::Failed(Errno::INVAL);
    }
    // SAFETY: the caller guarantees that `m` is a valid header or unreadable, which the callee checks.
    let Some((r, ep)) = (unsafe { endpoint_for(fd, m) }) else {
        if flags & libc::MSG_FASTOPEN != 0
            && let Some(r) = crate::fd::table::socket(fd)
            && let Err(e) = fast_open(fd, r, None, (core::ptr::null(), 0), flags)
        {
            return e.into();
        }
        if crate::fd::table::socket(fd).is_none() {
            // SAFETY: the caller guarantees that `m` is a valid header or unreadable, which the callee checks.
            let ready = unsafe { passing(m) };
            if let Err(e) = ready {
                return Outcome::Failed(e);
            }
        }
        // SAFETY: the caller guarantees that `m` is a valid header or unreadable, which the callee checks.
        return match unsafe { candidate(fd, m) } {
            Some((r, mut v)) => io::make(fd, r, None, &mut v, (flags, true)),
            None => Outcome::Pass,
        };
    };
    // SAFETY: the caller guarantees that `m` is a valid header or unreadable, which the callee checks.
    let mut v = match unsafe { iov(m).and_then(|v| msg_header::check_sent(m).map(|()| v)) } {
        Ok(v) => v,
        Err(e) => return Outcome::Failed(e),
    };
    if flags & libc::MSG_FASTOPEN != 0 {
        // SAFETY: the header can be read, as its check has found.
        let to = unsafe { ((*m).msg_name.cast_const(), (*m).msg_namelen) };
        if let Err(e) = fast_open(fd, r, Some(ep), to, flags) {
            return e.into();
        }
    }
    io::make(fd, r, Some(ep), &mut v, (flags, true))
}

/// Writes the control message of TCP_INQ: the number of bytes left to read, or 1 where only the end of the stream is
/// left.
///
/// # Safety
/// `m` is a message header of the application's, in memory that can be written.
#[cold]
unsafe fn put_inq(m: *mut libc::msghdr, ep: &ShmEndpoint) {
    let left = match parts::unread(ep) {
        0 => i32::from(ep.observed().has_peer_ended()),
        n => n.min(i32::MAX as usize) as i32,
    };
    // SAFETY: the caller guarantees a writable header; no more is written than its buffer has room for (cmsg(3)), and
    // only if that can be written.
    unsafe {
        let room = msg_header::controls(m);
        let whole = libc::CMSG_LEN(size_of::<i32>() as u32) as usize;
        let there = room.min(whole);
        (*m).msg_controllen = 0;
        if there < size_of::<libc::cmsghdr>() || !user::writable((*m).msg_control, there) {
            (*m).msg_flags |= libc::MSG_CTRUNC;
            return;
        }
        if there < whole {
            (*m).msg_flags |= libc::MSG_CTRUNC;
        }
        let mut message = [0u64; 4];
        let h = message.as_mut_ptr().cast::<libc::cmsghdr>();
        (*h).cmsg_len = there as _;
        (*h).cmsg_level = libc::SOL_TCP;
        (*h).cmsg_type = libc::TCP_CM_INQ;
        libc::CMSG_DATA(h).cast::<i32>().write_unaligned(left);
        core::ptr::copy_nonoverlapping(message.as_ptr().cast::<u8>(), (*m).msg_control.cast::<u8>(), there);
        (*m).msg_controllen = room.min(libc::CMSG_SPACE(size_of::<i32>() as u32) as usize) as _;
    }
}

/// recvmsg(2).
///
/// # Safety
/// `m` points to a valid message header, or to unreadable memory.
pub unsafe fn recvmsg(fd: i32, m: *mut libc::msghdr, flags: i32) -> Outcome {
    if flags & MSG_CMSG_COMPAT != 0 {
        return Outcome::Failed(Errno::INVAL);
    }
    // SAFETY: the caller guarantees that `m` is a valid header or unreadable, which the callees check.
    let found = unsafe {
        match endpoint_for(fd, m) {
            Some((r, ep)) => iov(m).map(|v| Some((r, Some(ep), v))),
            None => Ok(candidate(fd, m).map(|(r, v)| (r, None, v))),
        }
    };
    let (r, ep, mut v) = match found {
        Ok(Some(found)) => found,
        Ok(None) => return Outcome::Pass,
        Err(e) => return Outcome::Failed(e),
    };
    let got = io::make(fd, r, ep, &mut v, (flags, false));
    if let Outcome::Done(_) = got {
        // What was read is lost then, as it is in the kernel.
        if !user::writable(m, HEADER) {
            return Outcome::Failed(Errno::FAULT);
        }
        // SAFETY: the caller guarantees a header, and `m` was found writable above. A connected stream gives no address
        // and, but for TCP_INQ, no control messages.
        unsafe {
            (*m).msg_namelen = 0;
            (*m).msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
            match ep {
                Some(ep) if r.obj.has(INQ) => put_inq(m, ep),
                Some(_) => (*m).msg_controllen = 0,
                None => {}
            }
        }
    }
    got
}

/// sendmmsg(2).
///
/// # Safety
/// `v` points to `n` valid message headers.
pub unsafe fn sendmmsg(fd: i32, v: *mut libc::mmsghdr, n: u32, flags: i32) -> Outcome {
    if flags & MSG_CMSG_COMPAT != 0 {
        return Outcome::Failed(Errno::INVAL);
    }
    if accelerated(fd).is_none() && !promote::given_up(fd) {
        if crate::fd::table::socket(fd).is_none() {
            for i in 0..n.min(IOV_MAX as u32) as usize {
                // SAFETY: the caller guarantees `n` headers, and i < n.
                let ready = unsafe { passing(&raw const (*v.add(i)).msg_hdr) };
                if let Err(e) = ready {
                    return Outcome::Failed(e);
                }
            }
        }
        return candidate::pass_by_number(fd);
    }
    let mut done = 0;
    while done < n.min(IOV_MAX as u32) {
        // SAFETY: the caller guarantees `n` headers, and done < n.
        let one = unsafe { v.add(done as usize) };
        if !user::writable(one, size_of::<libc::mmsghdr>()) {
            return if done == 0 { Outcome::Failed(Errno::FAULT) } else { Outcome::Done(done as isize) };
        }
        // SAFETY: the header was found to be writable.
        match unsafe { sendmsg(fd, &raw const (*one).msg_hdr, flags) } {
            // SAFETY: the header was found to be writable.
            Outcome::Done(k) => unsafe { (*one).msg_len = k as u32 },
            other if done == 0 => return other,
            _ => break,
        }
        done += 1;
    }
    Outcome::Done(done as isize)
}

/// recvmmsg(2). The time-out is checked after each message, as the man page says, and what is left of it is stored in its
/// place.
///
/// # Safety
/// `v` points to `n` valid message headers.
pub unsafe fn recvmmsg(fd: i32, v: *mut libc::mmsghdr, n: u32, flags: i32, timeout: *mut libc::timespec) -> Outcome {
    if flags & MSG_CMSG_COMPAT != 0 {
        return Outcome::Failed(Errno::INVAL);
    }
    if accelerated(fd).is_none() && !promote::given_up(fd) {
        return candidate::pass_by_number(fd);
    }
    if timeout.is_null() {
        // SAFETY: the caller's guarantee.
        return unsafe { received_until(fd, v, n, flags, Deadline::Never) };
    }
    // SAFETY: two numbers, which any bytes are.
    let deadline = match unsafe { user::load(timeout) } {
        None => return Outcome::Failed(Errno::FAULT),
        Some(t) if t.tv_sec < 0 || !(0..1_000_000_000).contains(&t.tv_nsec) => return Outcome::Failed(Errno::INVAL),
        Some(t) => Deadline::after(t.tv_sec.saturating_mul(1_000_000_000).saturating_add(t.tv_nsec)),
    };
    // SAFETY: the caller's guarantee.
    let done = unsafe { received_until(fd, v, n, flags, deadline) };
    let left = deadline.left().max(0);
    let left = libc::timespec { tv_sec: left / 1_000_000_000, tv_nsec: left % 1_000_000_000 };
    // A call that is to be made anew has what is left then; it has its whole time-out where that cannot be written.
    // SAFETY: where the program wants it.
    let stored = !matches!(done, Outcome::Done(1..) | Outcome::Anew { .. }) || unsafe { user::store(timeout, left) };
    if stored { done } else { Outcome::Failed(Errno::FAULT) }
}

/// A recvmmsg(2) that ends with the first message after a deadline.
///
/// # Safety
/// As for [`recvmmsg`].
unsafe fn received_until(fd: i32, v: *mut libc::mmsghdr, n: u32, flags: i32, deadline: Deadline) -> Outcome {
    let mut flags_now = flags & !libc::MSG_WAITFORONE;
    let mut done = 0;
    while done < n.min(IOV_MAX as u32) {
        // SAFETY: the caller guarantees `n` headers, and done < n.
        let one = unsafe { v.add(done as usize) };
        // SAFETY: the caller guarantees that it is a valid header or unreadable, which the callee checks.
        let got = unsafe { recvmsg(fd, &raw mut (*one).msg_hdr, flags_now) };
        let is_writable = !matches!(got, Outcome::Done(_)) || user::writable(one, size_of::<libc::mmsghdr>());
        match if is_writable { got } else { Outcome::Failed(Errno::FAULT) } {
            // SAFETY: the header was found to be writable.
            Outcome::Done(k) => unsafe { (*one).msg_len = k as u32 },
            other if done == 0 => return other,
            other => {
                if let (Outcome::Failed(e), Some((_, ep))) = (other, accelerated(fd)) {
                    ep.side.put_back(e);
                }
                break;
            }
        }
        // After the end of the stream the further headers get 0 bytes each, as in the kernel.
        done += 1;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags_now |= libc::MSG_DONTWAIT;
        }
        if deadline.passed() {
            break;
        }
    }
    Outcome::Done(done as isize)
}
