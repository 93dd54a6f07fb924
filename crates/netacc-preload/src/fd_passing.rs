//! Descriptors that the program receives from others: inherited at its start, or in a message.

use crate::hooks::has_passed;
use core::ffi::{c_int, c_uint};
use libc::{mmsghdr, msghdr, ssize_t, timespec};
use netacc_core::Outcome;
use netacc_core::conn::{io, msg};
use netacc_sys::visits::{Admission, Visit};

/// What the socket layer makes of a recvmsg(2).
///
/// # Safety
/// The contract is that of the call.
#[inline(always)]
pub unsafe fn one(fd: c_int, m: *mut msghdr, flags: c_int) -> Outcome {
    if !io::concerns(fd) {
        return Outcome::Pass;
    }
    // SAFETY: the caller's guarantee.
    unsafe { answered!(sleeps!(msg::recvmsg(fd, m, flags))) }
}

/// What the socket layer makes of a recvmmsg(2).
///
/// # Safety
/// The contract is that of the call.
#[inline(always)]
pub unsafe fn many(fd: c_int, v: *mut mmsghdr, n: c_uint, flags: c_int, t: *mut timespec) -> Outcome {
    // SAFETY: the caller's guarantee.
    unsafe { answered!(sleeps!(msg::recvmmsg(fd, v, n, flags, t))) }
}

/// Takes up what the kernel has received for a recvmsg(2) with the result `n`. Another copy of the library that has taken
/// this one's place meanwhile leaves it to the kernel.
///
/// # Safety
/// The kernel has filled in the message header where it has received something.
pub unsafe fn one_received(n: ssize_t, m: *mut msghdr) {
    // SAFETY: the caller's guarantee; what the header names as control messages was written by the kernel.
    unsafe {
        if n >= 0
            && (*m).msg_controllen != 0
            && let Admission::Inside(_visit) = Visit::begin()
        {
            msg::received(m);
        }
    }
}

/// Takes up what the kernel has received for a recvmmsg(2) with the result `n`.
///
/// # Safety
/// The kernel has filled in the first `n` message headers.
pub unsafe fn many_received(n: ssize_t, v: *mut mmsghdr) {
    if n > 0
        && let Admission::Inside(_visit) = Visit::begin()
    {
        for i in 0..n as usize {
            // SAFETY: the caller's guarantee.
            unsafe { msg::received(&raw const (*v.add(i)).msg_hdr) };
        }
    }
}

exports! {
    /// recvmsg(2).
    fn recvmsg(fd: c_int, m: *mut msghdr, flags: c_int) -> ssize_t {
        // SAFETY: the application calls under the function's own contract.
        unsafe {
            concluded!(one(fd, m, flags), {
                let n = call_next!(recvmsg(fd => c_int, m => *mut msghdr, flags => c_int) -> ssize_t);
                one_received(n, m);
                n
            }, fd => recvmsg(fd, m, flags), ssize_t)
        }
    }

    /// recvmmsg(2).
    fn recvmmsg(fd: c_int, v: *mut mmsghdr, n: c_uint, flags: c_int, t: *mut timespec) -> c_int {
        // SAFETY: the application calls under the function's own contract.
        unsafe {
            concluded!(many(fd, v, n, flags, t), {
                let got = call_next!(recvmmsg(
                    fd => c_int, v => *mut mmsghdr, n => c_uint, flags => c_int, t => *mut timespec
                ) -> c_int);
                many_received(got as ssize_t, v);
                got
            }, fd => recvmmsg(fd, v, n, flags, t), c_int)
        }
    }
}
