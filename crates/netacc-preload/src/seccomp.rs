//! Calls by which a process gives up what the fast path needs (system calls, descriptors), and mlockall(2), by which it
//! would lock memory that the fast path reserves and does not use yet.

use core::ffi::{c_int, c_uint};
use libc::{pid_t, rlimit, rlimit64, sock_filter, sock_fprog};
use netacc_core::fallback;
use netacc_sys::{mem, own_limit, raw, reserved_fds, user, visits};
use rustix::thread::{CapabilitySet, capabilities, no_new_privs};

/// A program that sets its limit of descriptors below this does not intend to open any: OpenSSH's sandboxed process
/// sets it to 0.
const FEW: u64 = 16;

exports! {
    /// prctl(2), which may install a filter on system calls.
    fn prctl(what: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
        visit!(prctl(what, a, b, c, d));
        let next = || call_next!(prctl(what => c_int, a => usize, b => usize, c => usize, d => usize) -> c_int);
        if what == libc::PR_SET_SECCOMP {
            match a as u32 {
                libc::SECCOMP_MODE_STRICT => fallback::before_filter(),
                libc::SECCOMP_MODE_FILTER => before_filter(b as _),
                _ => {}
            }
            // Signals that were kept are delivered before: the filter may forbid that.
            return visits::outside(next);
        }
        next()
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

/// To be called before seccomp(2). Programs ask by a call that fails what the kernel can do (libseccomp does, with a filter
/// at a null address), and that changes nothing.
pub fn before(operation: usize, flags: usize, argument: usize) {
    match operation as c_uint {
        libc::SECCOMP_SET_MODE_STRICT if flags == 0 && argument == 0 => fallback::before_filter(),
        libc::SECCOMP_SET_MODE_FILTER if fallback::is_prepared() || knows_flags(flags) => before_filter(argument as _),
        _ => {}
    }
}

/// Whether the kernel has these flags of a filter, and takes them together. It looks at them before it reads the filter, so it
/// is asked with a filter that nobody can read.
fn knows_flags(flags: usize) -> bool {
    const NOWHERE: usize = usize::MAX << 12;
    let question = [libc::SECCOMP_SET_MODE_FILTER as usize, flags, NOWHERE, 0, 0, 0];
    // SAFETY: the kernel would read at the address, where no program has memory, so that it installs nothing.
    let answer = unsafe { raw::syscall6(libc::SYS_seccomp, question) };
    answer != -(libc::EINVAL as isize)
}

/// Prepares for a filter on system calls, if the kernel may take it.
fn before_filter(program: *const sock_fprog) {
    const MOST: u16 = 4096;
    // A former filter may forbid the questions.
    if fallback::is_prepared() {
        return;
    }
    // SAFETY: a number and an address, which any bytes are.
    let Some(program) = (unsafe { user::load(program) }) else { return };
    let length = usize::from(program.len) * size_of::<sock_filter>();
    if (1..=MOST).contains(&program.len) && user::readable(program.filter, length) && may_confine() {
        fallback::before_filter();
    }
}

/// Whether the kernel takes a filter from this thread.
fn may_confine() -> bool {
    no_new_privs().unwrap_or(true) || may(CapabilitySet::SYS_ADMIN)
}

/// Whether the thread has a capability.
fn may(what: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(what))
}

/// Makes a call of the program, `next`, that may set a limit of this process.
fn limited(resource: c_uint, new: *const rlimit, next: impl FnOnce() -> c_int) -> c_int {
    prepare(resource, new);
    let done = next();
    if resource == libc::RLIMIT_NOFILE {
        reserved_fds::limit_was_set();
    }
    done
}

/// Prepares for a new limit of descriptors, if the kernel may take it.
fn prepare(resource: c_uint, new: *const rlimit) {
    if resource != libc::RLIMIT_NOFILE || fallback::is_prepared() {
        return;
    }
    // SAFETY: two numbers, which any bytes are.
    let Some(new) = (unsafe { user::load(new) }) else { return };
    let is_limit = new.rlim_cur < FEW && new.rlim_cur <= new.rlim_max;
    if is_limit && (new.rlim_max <= own_limit::hard() || may(CapabilitySet::SYS_RESOURCE)) {
        fallback::before_filter();
    }
}

/// Whether a call on the process `pid` is one on this process.
fn is_self(pid: pid_t) -> bool {
    pid == 0 || pid == raw::getpid() as pid_t
}

exports! {
    /// setrlimit(2).
    fn setrlimit(resource: c_uint, new: *const rlimit) -> c_int {
        visit!(setrlimit(resource, new));
        limited(resource, new, || call_next!(setrlimit(resource => c_uint, new => *const rlimit) -> c_int))
    }

    /// setrlimit(2) in programs that are built for large files.
    fn setrlimit64(resource: c_uint, new: *const rlimit64) -> c_int {
        visit!(setrlimit64(resource, new));
        let next = || call_next!(setrlimit64(resource => c_uint, new => *const rlimit64) -> c_int);
        // The two types have one layout where long has 64 bits.
        limited(resource, new.cast(), next)
    }

    /// prlimit(2); only a call on the process itself concerns us.
    fn prlimit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
        visit!(prlimit(pid, resource, new, old));
        let next =
            || call_next!(prlimit(pid => pid_t, resource => c_uint, new => *const rlimit, old => *mut rlimit) -> c_int);
        if is_self(pid) { limited(resource, new, next) } else { next() }
    }

    /// prlimit(2) in programs that are built for large files.
    fn prlimit64(pid: pid_t, resource: c_uint, new: *const rlimit64, old: *mut rlimit64) -> c_int {
        visit!(prlimit64(pid, resource, new, old));
        let next = || {
            call_next!(prlimit64(pid => pid_t, resource => c_uint, new => *const rlimit64, old => *mut rlimit64) -> c_int)
        };
        // The two types have one layout where long has 64 bits.
        if is_self(pid) { limited(resource, new.cast(), next) } else { next() }
    }
}
