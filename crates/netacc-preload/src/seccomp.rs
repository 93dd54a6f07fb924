//! Calls by which a process gives up what the fast path needs (system calls, descriptors), and mlockall(2), by which it
//! would lock memory that the fast path reserves and does not use yet.

use core::ffi::{c_int, c_uint};
use libc::{pid_t, rlimit, rlimit64};
use netacc_core::fallback;
use netacc_sys::{mem, user};

/// A program that sets its limit of descriptors below this does not intend to open any: OpenSSH's sandboxed process
/// sets it to 0.
const FEW: u64 = 16;

exports! {
    /// prctl(2), which may install a filter on system calls.
    fn prctl(what: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
        visit!(prctl(what, a, b, c, d));
        if what == libc::PR_SET_SECCOMP {
            fallback::before_filter();
        }
        call_next!(prctl(what => c_int, a => usize, b => usize, c => usize, d => usize) -> c_int)
    }

    /// mlockall(2), after which each new mapping is populated at once. Our reserved mappings must not be.
    fn mlockall(flags: c_int) -> c_int {
        visit!(mlockall(flags));
        if flags & libc::MCL_FUTURE != 0 {
            mem::note_locking();
        }
        call_next!(mlockall(flags => c_int) -> c_int)
    }
}

/// Prepares for a new limit of descriptors.
fn limits(resource: c_uint, new: Option<u64>) {
    if resource == libc::RLIMIT_NOFILE && new.is_some_and(|n| n < FEW) {
        fallback::before_filter();
    }
}

/// The soft limit that `p` points to, if there is one.
fn current(p: *const rlimit) -> Option<u64> {
    // SAFETY: two numbers, which any bytes are.
    unsafe { user::load(p) }.map(|l| l.rlim_cur)
}

exports! {
    /// setrlimit(2).
    fn setrlimit(resource: c_uint, new: *const rlimit) -> c_int {
        visit!(setrlimit(resource, new));
        limits(resource, current(new));
        call_next!(setrlimit(resource => c_uint, new => *const rlimit) -> c_int)
    }

    /// setrlimit(2) in programs that are built for large files.
    fn setrlimit64(resource: c_uint, new: *const rlimit64) -> c_int {
        visit!(setrlimit64(resource, new));
        // The two types have one layout where long has 64 bits.
        limits(resource, current(new.cast()));
        call_next!(setrlimit64(resource => c_uint, new => *const rlimit64) -> c_int)
    }

    /// prlimit(2); only a call on the process itself concerns us.
    fn prlimit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
        visit!(prlimit(pid, resource, new, old));
        if pid == 0 {
            limits(resource, current(new));
        }
        call_next!(prlimit(pid => pid_t, resource => c_uint, new => *const rlimit, old => *mut rlimit) -> c_int)
    }

    /// prlimit(2) in programs that are built for large files.
    fn prlimit64(pid: pid_t, resource: c_uint, new: *const rlimit64, old: *mut rlimit64) -> c_int {
        visit!(prlimit64(pid, resource, new, old));
        if pid == 0 {
            // The two types have one layout where long has 64 bits.
            limits(resource, current(new.cast()));
        }
        call_next!(prlimit64(pid => pid_t, resource => c_uint, new => *const rlimit64, old => *mut rlimit64) -> c_int)
    }
}
