//! The lengths in a message header (`struct msghdr`) and in its control messages, as the program's libc has them.
//!
//! In the kernel and in glibc each has 64 bits. In musl it has 32 bits and as many of padding, of which a program says
//! nothing: musl's sendmsg(3) clears the padding in a copy for the kernel. So in a process of musl only the lower half
//! of each word counts, which is the first on the little-endian machines that NetACC is for.
//!
//! # Safety
//! The application's structures are read as the kernel would do it.
#![allow(unsafe_code)]

use netacc_sys::errno::{Errno, Result};
use netacc_sys::{addr, libc_kind, user};

const _: () = assert!(cfg!(target_endian = "little"));

/// Size of a message header in bytes.
pub(super) const SIZE: usize = size_of::<libc::msghdr>();

/// A length as the program means it.
#[inline]
fn meant(length: usize) -> usize {
    if libc_kind::is_musl() { length & u32::MAX as usize } else { length }
}

/// The number of buffers.
///
/// # Safety
/// `m` is a valid message header.
pub(super) unsafe fn buffers(m: *const libc::msghdr) -> usize {
    // SAFETY: the caller guarantees a valid header.
    meant(unsafe { (*m).msg_iovlen })
}

/// The length of all control messages in bytes.
///
/// # Safety
/// `m` is a valid message header.
pub(super) unsafe fn controls(m: *const libc::msghdr) -> usize {
    // SAFETY: the caller guarantees a valid header.
    meant(unsafe { (*m).msg_controllen })
}

/// The error with which the kernel refuses what is sent beside the bytes: an address and control messages, of which it makes
/// copies.
///
/// # Safety
/// `m` is a valid message header.
pub(super) unsafe fn check_sent(m: *const libc::msghdr) -> Result<()> {
    // SAFETY: the caller guarantees a valid header.
    let (name, length, start, controls) = unsafe { ((*m).msg_name, (*m).msg_namelen, (*m).msg_control, controls(m)) };
    addr::given(name, length.min(size_of::<libc::sockaddr_storage>() as u32))?;
    if controls > i32::MAX as usize {
        return Err(Errno(libc::ENOBUFS));
    }
    if !user::readable(start, controls) {
        return Err(Errno::FAULT);
    }
    // SAFETY: the control messages can be read.
    if unsafe { each_control(start.cast(), controls, |_, _, _| {}) } { Ok(()) } else { Err(Errno::INVAL) }
}

/// Calls `f` with each of the control messages in the `length` bytes at `start`: the header, where what follows it begins,
/// and that part's length. False where a message does not lie before the end, or is too short to be one.
///
/// # Safety
/// The bytes can be read.
unsafe fn each_control(start: *const u8, length: usize, mut f: impl FnMut(&libc::cmsghdr, *const u8, usize)) -> bool {
    let header = size_of::<libc::cmsghdr>();
    let mut at = 0;
    while length - at >= header {
        // SAFETY: a whole header lies before the end.
        let h = unsafe { start.add(at).cast::<libc::cmsghdr>().read_unaligned() };
        let whole = meant(h.cmsg_len);
        if whole < header || whole > length - at {
            return false;
        }
        f(&h, start.wrapping_add(at + header), whole - header);
        // The next one begins at a multiple of a word's size (cmsg(3)).
        at = length.min(at.saturating_add(whole.next_multiple_of(size_of::<usize>())));
    }
    true
}

/// Calls `f` for each descriptor in the control messages of `m` (unix(7), SCM_RIGHTS).
///
/// # Safety
/// `m` is a valid message header, or points to unreadable memory.
pub(super) unsafe fn each_passed(m: *const libc::msghdr, mut f: impl FnMut(i32)) {
    if !user::readable(m, SIZE) {
        return;
    }
    // SAFETY: the caller guarantees a valid header, whose memory can be read.
    let (start, length) = unsafe { ((*m).msg_control.cast::<u8>(), controls(m)) };
    if !user::readable(start, length) {
        return;
    }
    let number = size_of::<i32>();
    // SAFETY: the control messages can be read; each number lies within its message.
    unsafe {
        each_control(start, length, |h, data, length| {
            if h.cmsg_level == libc::SOL_SOCKET && h.cmsg_type == libc::SCM_RIGHTS {
                (0..length / number).for_each(|n| f(data.add(n * number).cast::<i32>().read_unaligned()));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(control: &[u64], length: usize) -> Vec<i32> {
        // SAFETY: all zero is a header without anything.
        let mut m: libc::msghdr = unsafe { core::mem::zeroed() };
        m.msg_control = control.as_ptr().cast_mut().cast();
        m.msg_controllen = length;
        let mut found = Vec::new();
        // SAFETY: a header whose control messages lie in `control`.
        unsafe { each_passed(&raw const m, |fd| found.push(fd)) };
        found
    }

    #[test]
    fn descriptors_in_control_messages() {
        let kind = (libc::SCM_RIGHTS as u64) << 32 | libc::SOL_SOCKET as u64;
        let credentials = (libc::SCM_CREDENTIALS as u64) << 32 | libc::SOL_SOCKET as u64;
        // One of 20 bytes with the number 7, one without numbers of ours, one of 24 bytes with 8 and 9.
        let all = [20, kind, 7, 28, credentials, 1, 2, 24, kind, 9 << 32 | 8];
        assert_eq!(passed(&all, 80), [7, 8, 9]);
        // What does not lie before the end is left out, as by the kernel.
        assert_eq!(passed(&all, 79), [7]);
        assert_eq!(passed(&all, 20), [7]);
        assert_eq!(passed(&all, 19), []);
        assert_eq!(passed(&[8, kind, 7], 24), []);
        assert_eq!(passed(&[u64::MAX, kind, 7], 24), []);
        assert_eq!(passed(&[20, kind, 7, u64::MAX, kind], 40), [7]);
        assert_eq!(passed(&[], 0), []);
    }
}
