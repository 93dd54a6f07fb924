//! Descriptors that the program receives from others: inherited at its start, or in a message.

use core::ffi::{c_int, c_uint};
use libc::{mmsghdr, msghdr, ssize_t, timespec};
use netacc_core::Outcome;
use netacc_core::conn::{io, msg};
use netacc_sys::visits::{Admission, Visit};

exports! {
    /// recvmsg(2).
    fn recvmsg(fd: c_int, m: *mut msghdr, flags: c_int) -> ssize_t {
        let done = if io::concerns(fd) {
            visit!(recvmsg(fd, m, flags));
            // SAFETY: the application calls under the function's own contract.
            unsafe { sleeps!(msg::recvmsg(fd, m, flags)) }
        } else {
            Outcome::Pass
        };
        match done {
            Outcome::Pass => {
                let n = call_next!(recvmsg(fd => c_int, m => *mut msghdr, flags => c_int) -> ssize_t);
                // SAFETY: the application calls under the function's own contract, and the kernel has filled in its message
                // header.
                if n >= 0 && unsafe { (*m).msg_controllen } != 0
                    // Another copy of the library that has taken this one's place meanwhile leaves what was received to
                    // the kernel.
                    && let Admission::Inside(_visit) = Visit::begin()
                {
                    // SAFETY: the application's message header was just received by the kernel, so it is valid, and what it
                    // names as control messages was written by the kernel.
                    unsafe { msg::received(m) };
                }
                n
            }
            Outcome::Done(n) => n,
            Outcome::Failed(e) => crate::next::fail(e),
            Outcome::Cancelled => crate::next::interrupted(),
            // SAFETY: the application's call once more.
            Outcome::Anew => unsafe { recvmsg(fd, m, flags) },
        }
    }

    /// recvmmsg(2).
    fn recvmmsg(fd: c_int, v: *mut mmsghdr, n: c_uint, flags: c_int, t: *mut timespec) -> c_int {
        let done = {
            visit!(recvmmsg(fd, v, n, flags, t));
            // SAFETY: the application calls under the function's own contract.
            unsafe { sleeps!(msg::recvmmsg(fd, v, n, flags, t)) }
        };
        match done {
            Outcome::Pass => {
                let got = call_next!(recvmmsg(fd => c_int, v => *mut mmsghdr, n => c_uint, flags => c_int, t => *mut timespec) -> c_int);
                if got > 0
                    && let Admission::Inside(_visit) = Visit::begin()
                {
                    for i in 0..got as usize {
                        // SAFETY: the application vouches for its array; the kernel has filled in its first `got` messages.
                        unsafe { msg::received(&raw const (*v.add(i)).msg_hdr) };
                    }
                }
                got
            }
            Outcome::Done(n) => n as c_int,
            Outcome::Failed(e) => crate::next::fail(e) as c_int,
            Outcome::Cancelled => crate::next::interrupted() as c_int,
            // SAFETY: the application's call once more.
            Outcome::Anew => unsafe { recvmmsg(fd, v, n, flags, t) },
        }
    }
}
