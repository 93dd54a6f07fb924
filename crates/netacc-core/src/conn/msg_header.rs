//! The lengths in a message header (`struct msghdr`) and in its control messages, as the program's libc has them.
//!
//! In the kernel and in glibc each has 64 bits. In musl it has 32 bits and as many of padding, of which a program says
//! nothing: musl's sendmsg(3) clears the padding in a copy for the kernel. So in a process of musl only the lower half
//! of each word counts, which is the first on the little-endian machines that NetACC is for.
//!
//! # Safety
//! The application's structures are read as the kernel would do it.
#![allow(unsafe_code)]

use netacc_sys::{libc_kind, user};

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
    let header = size_of::<libc::cmsghdr>();
    let mut at = 0;
    while length - at >= header {
        // SAFETY: a whole header lies before the end.
        let h = unsafe { start.add(at).cast::<libc::cmsghdr>().read_unaligned() };
        let whole = meant(h.cmsg_len);
        if whole < header || whole > length - at {
            return;
        }
        if h.cmsg_level == libc::SOL_SOCKET && h.cmsg_type == libc::SCM_RIGHTS {
            for n in 0..(whole - header) / size_of::<i32>() {
                let mut fd = [0u8; size_of::<i32>()];
                // SAFETY: the number lies within its message, which lies before the end.
                unsafe {
                    let number = start.add(at + header + n * size_of::<i32>());
                    core::ptr::copy_nonoverlapping(number, fd.as_mut_ptr(), size_of::<i32>());
                }
                f(i32::from_ne_bytes(fd));
            }
        }
        // The next one begins at a multiple of a word's size (cmsg(3)).
        at = length.min(at.saturating_add(whole.next_multiple_of(size_of::<usize>())));
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
