//! syscall(2): libuv closes with it, other programs read and write with it. A number that has a line in the table goes
//! to the same function as the libc call, so that an accelerated descriptor behaves the same either way. All other
//! calls pass through.

use crate::exec::{execute, hand_off};
use crate::hooks::{has_passed, outcomes};
use crate::identity::before_capabilities;
#[cfg(target_arch = "x86_64")]
use crate::static_children::Execution;
use crate::{clone, fd_passing, hooks as h, process, seccomp, time, uring, users};
use core::ffi::{c_int, c_long, c_uint, c_void};
use netacc_core::fork::rights::{self, Change};
use netacc_core::switch::demote;
use netacc_core::{Outcome, identity};
use netacc_stats::Reason;
use netacc_sys::user;

/// KCMP_FILE of kcmp(2): compare two descriptors.
const KCMP_FILE: usize = 0;

exports! {
    /// syscall(2). The arguments are passed in registers, so six can be read however many the caller gave.
    /// preadv2 takes its offset in two halves, of which the first has all of it on 64-bit machines.
    #[allow(unused_unsafe, reason = "the macro has a block of its own")]
    fn syscall(n: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        let fd = a as c_int;
        // SAFETY: the kernel's arguments of these calls are libc's, in libc's order.
        unsafe {
            match n {
                libc::SYS_close => c_long::from(h::close(fd)),
                libc::SYS_close_range => c_long::from(h::close_range(a as c_uint, b as c_uint, c as c_int)),
                libc::SYS_dup => c_long::from(h::dup(fd)),
                #[cfg(target_arch = "x86_64")]
                libc::SYS_dup2 => c_long::from(h::dup2(fd, b as c_int)),
                libc::SYS_dup3 => c_long::from(h::dup3(fd, b as c_int, c as c_int)),
                libc::SYS_fcntl => c_long::from(h::fcntl(fd, b as c_int, c)),
                libc::SYS_ioctl => c_long::from(h::ioctl(fd, b, c)),
                libc::SYS_socket => c_long::from(h::socket(fd, b as c_int, c as c_int)),
                libc::SYS_bind => c_long::from(h::bind(fd, b as _, c as _)),
                libc::SYS_listen => c_long::from(h::listen(fd, b as c_int)),
                libc::SYS_connect => c_long::from(h::connect(fd, b as _, c as _)),
                libc::SYS_accept => c_long::from(h::accept(fd, b as _, c as _)),
                libc::SYS_accept4 => c_long::from(h::accept4(fd, b as _, c as _, d as c_int)),
                libc::SYS_shutdown => c_long::from(h::shutdown(fd, b as c_int)),
                libc::SYS_getsockname => c_long::from(h::getsockname(fd, b as _, c as _)),
                libc::SYS_getpeername => c_long::from(h::getpeername(fd, b as _, c as _)),
                libc::SYS_getsockopt => c_long::from(h::getsockopt(fd, b as c_int, c as c_int, d as _, e as _)),
                libc::SYS_setsockopt => c_long::from(h::setsockopt(fd, b as c_int, c as c_int, d as _, e as _)),
                libc::SYS_read => h::read(fd, b as _, c) as c_long,
                libc::SYS_readv => h::readv(fd, b as _, c as c_int) as c_long,
                libc::SYS_recvfrom => h::recvfrom(fd, b as _, c, d as c_int, e as _, f as _) as c_long,
                libc::SYS_write => h::write(fd, b as _, c) as c_long,
                libc::SYS_writev => h::writev(fd, b as _, c as c_int) as c_long,
                libc::SYS_sendto => h::sendto(fd, b as _, c, d as c_int, e as _, f as _) as c_long,
                libc::SYS_sendfile => h::sendfile(fd, b as c_int, c as _, d) as c_long,
                libc::SYS_splice => h::splice(fd, b as _, c as c_int, d as _, e, f as c_uint) as c_long,
                libc::SYS_preadv2 => h::preadv2(fd, b as _, c as c_int, d as _, f as c_int) as c_long,
                libc::SYS_pwritev2 => h::pwritev2(fd, b as _, c as c_int, d as _, f as c_int) as c_long,
                #[cfg(target_arch = "x86_64")]
                libc::SYS_poll => c_long::from(h::poll(a as _, b as _, c as c_int)),
                #[cfg(target_arch = "x86_64")]
                libc::SYS_epoll_create => c_long::from(h::epoll_create(fd)),
                #[cfg(target_arch = "x86_64")]
                libc::SYS_epoll_wait => c_long::from(h::epoll_wait(fd, b as _, c as c_int, d as c_int)),
                libc::SYS_epoll_create1 => c_long::from(h::epoll_create1(fd)),
                libc::SYS_epoll_ctl => c_long::from(h::epoll_ctl(fd, b as c_int, c as c_int, d as _)),
                libc::SYS_epoll_pwait => c_long::from(h::epoll_pwait(fd, b as _, c as c_int, d as c_int, e as _)),
                libc::SYS_epoll_pwait2 => c_long::from(h::epoll_pwait2(fd, b as _, c as c_int, d as _, e as _)),
                libc::SYS_exit_group => process::_exit(fd),
                libc::SYS_setns => c_long::from(process::setns(fd, b as c_int)),
                libc::SYS_unshare => c_long::from(process::unshare(fd)),
                #[cfg(target_arch = "x86_64")]
                libc::SYS_setrlimit => c_long::from(seccomp::setrlimit(a as c_uint, b as _)),
                libc::SYS_prlimit64 => c_long::from(seccomp::prlimit(fd, b as c_uint, c as _, d as _)),
                libc::SYS_mlockall => c_long::from(seccomp::mlockall(fd)),
                libc::SYS_prctl => c_long::from(seccomp::prctl(fd, b, c, d, e)),
                libc::SYS_mount => c_long::from(users::mount(a as _, b as _, c as _, d as _, e as _)),
                n if reads_memory(n) => {
                    let next = || passed(n, a, b, c, d, e, f);
                    concluded!(
                        outcome(n, [a, b, c, d, e, f]), received(n, b, next()), a => syscall(n, a, b, c, d, e, f), c_long
                    )
                }
                n if is_worked_on(n) => {
                    visit!(syscall(n, a, b, c, d, e, f));
                    worked_on(n, a, b, c, d, e, f)
                }
                _ => passed(n, a, b, c, d, e, f),
            }
        }
    }
}

/// Whether libc's function for the call reads some of the program's memory itself, in glibc or in musl. Such a call stays a
/// system call where it is passed on: it would be stopped by a signal where the kernel answers `EFAULT`.
fn reads_memory(n: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if n == libc::SYS_select {
        return true;
    }
    matches!(
        n,
        libc::SYS_ppoll
            | libc::SYS_pselect6
            | libc::SYS_sendmsg
            | libc::SYS_sendmmsg
            | libc::SYS_recvmsg
            | libc::SYS_recvmmsg
    )
}

/// What the socket layer makes of such a call. The kernel's form of ppoll, select and pselect6 writes the time left.
///
/// # Safety
/// The contract is that of the call.
#[inline(never)]
unsafe fn outcome(n: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Outcome {
    let fd = a as c_int;
    // SAFETY: the kernel's arguments of these calls are libc's, in libc's order.
    unsafe {
        match n {
            libc::SYS_ppoll => time::left_in(c as _, || outcomes::ppoll(a as _, b as _, c as _, d as _)),
            libc::SYS_pselect6 => selected(fd, [b, c, d], e, f),
            libc::SYS_sendmsg => outcomes::sendmsg(fd, b as _, c as c_int),
            libc::SYS_sendmmsg => outcomes::sendmmsg(fd, b as _, c as c_uint, d as c_int),
            libc::SYS_recvmsg => fd_passing::one(fd, b as _, c as c_int),
            libc::SYS_recvmmsg => fd_passing::many(fd, b as _, c as c_uint, d as c_int, e as _),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => outcomes::select(fd, b as _, c as _, d as _, e as _),
            _ => Outcome::Pass,
        }
    }
}

/// What the socket layer makes of a pselect6(2), whose last argument is the address of two words: the signal mask's
/// address and size.
///
/// # Safety
/// The contract is that of the call.
unsafe fn selected(n: c_int, sets: [usize; 3], t: usize, mask: usize) -> Outcome {
    // SAFETY: a word, which any bytes are.
    let given = if mask == 0 { Some(0) } else { unsafe { user::load(mask as *const usize) } };
    // Where the two words cannot be read, the kernel says so.
    let Some(mask) = given else { return Outcome::Pass };
    let [r, w, x] = sets.map(|set| set as *mut c_void);
    // SAFETY: the caller's guarantee.
    unsafe { time::left_in(t as _, || outcomes::pselect(n, r, w, x, t as _, mask as _)) }
}

/// Takes up what was received by the system call `n`, which the kernel has made, with the message headers at `at`.
///
/// # Safety
/// The kernel has filled in the message headers of these calls.
unsafe fn received(n: c_long, at: usize, result: c_long) -> c_long {
    // SAFETY: the caller's guarantee.
    unsafe {
        match n {
            libc::SYS_recvmsg => fd_passing::one_received(result as isize, at as _),
            libc::SYS_recvmmsg => fd_passing::many_received(result as isize, at as _),
            _ => {}
        }
    }
    result
}

/// Whether [`worked_on`] has a line for the call.
fn is_worked_on(n: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if matches!(n, libc::SYS_fork | libc::SYS_vfork) {
        return true;
    }
    matches!(
        n,
        libc::SYS_clone
            | libc::SYS_clone3
            | libc::SYS_setuid
            | libc::SYS_setreuid
            | libc::SYS_setresuid
            | libc::SYS_chroot
            | libc::SYS_pivot_root
            | libc::SYS_landlock_restrict_self
            | libc::SYS_capset
            | libc::SYS_seccomp
            | libc::SYS_execve
            | libc::SYS_execveat
            | libc::SYS_io_uring_setup
            | libc::SYS_kcmp
            | libc::SYS_fsconfig
            | libc::SYS_bpf
            | libc::SYS_pidfd_getfd
    )
}

/// Calls that have no function of their own here. None of them sleeps for long.
#[allow(unused_unsafe, reason = "the macro has a block of its own")]
unsafe fn worked_on(n: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    // SAFETY: the kernel's arguments of these calls are libc's, in libc's order.
    unsafe {
        match n {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork => process::forked(|| process::at_rest(|| passed(n, a, b, c, d, e, f))),
            // A child that has the caller's stack would return over it before the caller does.
            #[cfg(target_arch = "x86_64")]
            libc::SYS_vfork if netacc_sys::libc_kind::is_known() => {
                process::forked(|| process::at_rest(|| passed(libc::SYS_fork, a, b, c, d, e, f)))
            }
            libc::SYS_clone => clone::made(a as u64, || passed(n, a, b, c, d, e, f)),
            libc::SYS_clone3 => match clone::flags3(a, b) {
                Some(flags) => clone::made(flags, || passed(n, a, b, c, d, e, f)),
                None => passed(n, a, b, c, d, e, f),
            },
            // The system call changes the calling thread alone, where libc's functions change all threads.
            libc::SYS_setuid | libc::SYS_setreuid | libc::SYS_setresuid => {
                let [real, effective, saved] = [a, b, c].map(|user| user as libc::uid_t);
                rights::before_change(match n {
                    libc::SYS_setuid => Change::All(real),
                    libc::SYS_setreuid => Change::RealEffective(real, effective),
                    _ => Change::Each([real, effective, saved]),
                });
                identity::may_change(a as libc::uid_t, || passed(n, a, b, c, d, e, f))
            }
            libc::SYS_seccomp => {
                seccomp::before(a, b, c);
                // As in `prctl`.
                netacc_sys::visits::outside(|| passed(n, a, b, c, d, e, f))
            }
            libc::SYS_chroot | libc::SYS_pivot_root | libc::SYS_landlock_restrict_self => {
                rights::before_fewer_rights();
                passed(n, a, b, c, d, e, f)
            }
            libc::SYS_capset => {
                before_capabilities(a as _, b as _);
                passed(n, a, b, c, d, e, f)
            }
            libc::SYS_execve => {
                hand_off(false, b as _, c as _);
                execute!(Execution::path(a as _, c as _), passed(n, a, b, c, d, e, f))
            }
            libc::SYS_execveat => {
                hand_off(false, c as _, d as _);
                execute!(Execution::at(a as c_int, b as _, d as _, e as c_int), passed(n, a, b, c, d, e, f))
            }
            // io_uring uses descriptors without our hooks. A program that can do without it gets the error that many
            // containers return. It calls before its first socket, as libuv does, and keeps for good what it gets then.
            libc::SYS_io_uring_setup if uring::is_refused() => crate::next::fail(netacc_sys::Errno::NOSYS) as c_long,
            libc::SYS_io_uring_setup => {
                let ring = passed(n, a, b, c, d, e, f);
                if ring >= 0 {
                    uring::was_made();
                }
                ring
            }
            // The call compares two numbers' files; the kernel needs a real socket under each of them to answer.
            libc::SYS_kcmp if c == KCMP_FILE => {
                let _ = [d, e].map(|fd| demote::by_number(fd as c_int, Reason::Unsupported));
                passed(n, a, b, c, d, e, f)
            }
            libc::SYS_fsconfig => {
                users::configured(b, c as _, d as _, e as c_int);
                passed(n, a, b, c, d, e, f)
            }
            libc::SYS_bpf => {
                users::mapped(a, b as _, c);
                passed(n, a, b, c, d, e, f)
            }
            libc::SYS_pidfd_getfd => {
                let _ = demote::by_number(b as c_int, Reason::Unsupported);
                passed(n, a, b, c, d, e, f)
            }
            _ => passed(n, a, b, c, d, e, f),
        }
    }
}

unsafe fn passed(n: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    call_next!(syscall(n => c_long, a => usize, b => usize, c => usize, d => usize, e => usize, f => usize) -> c_long)
}
