//! Calls that make processes, and stdio's way to close a descriptor.

use core::ffi::{c_char, c_int, c_void};
use libc::{pid_t, termios, winsize};
use netacc_core::exec::at_exit;
use netacc_core::fd::closing::File;
use netacc_core::fd::{closing, create};
use netacc_core::fork::prepare::NewSpaces;
use netacc_core::fork::{child, prepare, rights, vfork};
use netacc_core::{engine, namespace, runtime};
use netacc_sys::errno::Errno;
use netacc_sys::{cancel, delivery, heap, libc_kind, linker, reserved_fds, visits};
use rustix::fd::{AsRawFd, IntoRawFd};
use rustix::fs::{Mode, OFlags, open};

/// Makes a fork by the call `next`, which returns as fork(2) does.
pub fn forked<R: Copy + Into<i64>>(next: impl FnOnce() -> R) -> R {
    forked_to(NewSpaces::default(), next)
}

/// Makes a fork by the call `next`, whose child begins in namespaces of its own.
pub fn forked_to<R: Copy + Into<i64>>(new: NewSpaces, next: impl FnOnce() -> R) -> R {
    made(new, -1, next)
}

/// Calls `next`, which forks a child that keeps `end`: see [`netacc_core::vfork`].
pub(crate) fn forked_with<R: Copy + Into<i64>>(end: c_int, next: impl FnOnce() -> R) -> R {
    made(NewSpaces::default(), end, next)
}

fn made<R: Copy + Into<i64>>(new: NewSpaces, end: c_int, next: impl FnOnce() -> R) -> R {
    if !libc_kind::is_known() {
        return next();
    }
    let forking = prepare::prepare_for(new);
    let pid = next();
    if pid.into() == 0 {
        vfork::in_child(end);
        child::child_in(forking, new);
    } else {
        prepare::parent(forking, pid.into() > 0);
    }
    pid
}

/// Forks by `next`, which calls no functions of pthread_atfork(3). Other threads cannot use our allocator meanwhile, so
/// that the child finds it whole.
pub(crate) fn at_rest<R: Copy + Into<i64>>(next: impl FnOnce() -> R) -> R {
    heap::before_fork();
    let pid = next();
    if pid.into() == 0 {
        heap::in_child()
    } else {
        heap::after_fork()
    }
    pid
}

/// Updates the table after libc has replaced the standard descriptors by internal calls.
fn standard_replaced() {
    (0..3).for_each(|fd| drop(closing::forget(fd, File::Gone)));
}

exports! {
    /// fork(2).
    fn fork() -> pid_t {
        visit!(fork());
        forked(|| call_next!(fork() -> pid_t))
    }

    /// Another name of fork(2).
    fn __fork() -> pid_t {
        visit!(__fork());
        forked(|| call_next!(__fork() -> pid_t))
    }

    /// _Fork(3): fork without the handlers of pthread_atfork.
    fn _Fork() -> pid_t {
        visit!(_Fork());
        forked(|| at_rest(|| call_next!(_Fork() -> pid_t)))
    }
}

/// Forks and ends the parent, as daemon(3) does: 0 in the child, -1 where there is none.
unsafe fn go_on_as_child() -> c_int {
    // SAFETY: no contract beyond fork's.
    match unsafe { fork() } {
        -1 => -1,
        0 => 0,
        _ => end_process(0),
    }
}

exports! {
    /// daemon(3): libc's forks and ends the parent by internal calls, but the parent may carry the connections that the
    /// child goes on with.
    fn daemon(nochdir: c_int, noclose: c_int) -> c_int {
        visit!(daemon(nochdir, noclose));
        if !libc_kind::is_known() {
            return call_next!(daemon(nochdir => c_int, noclose => c_int) -> c_int);
        }
        // SAFETY: no contract beyond fork's.
        if unsafe { go_on_as_child() } != 0 {
            return -1;
        }
        if let Err(e) = rustix::process::setsid() {
            return crate::next::fail(e.into()) as c_int;
        }
        // musl's daemon does not lead its session, so that it never gets a terminal.
        // SAFETY: no contract beyond fork's.
        if libc_kind::is_musl() && unsafe { go_on_as_child() } != 0 {
            return -1;
        }
        if nochdir == 0 {
            // The result is ignored, as libc does.
            let _ = rustix::process::chdir(c"/");
        }
        if noclose == 0 {
            let null = match open(c"/dev/null", OFlags::RDWR, Mode::empty()) {
                Ok(null) => null,
                Err(e) => return crate::next::fail(e.into()) as c_int,
            };
            let fd = null.as_raw_fd();
            if !netacc_sys::raw::is_null_device(fd) {
                reserved_fds::drop_raw(null);
                return crate::next::fail(Errno::NODEV) as c_int;
            }
            for n in 0..3 {
                // SAFETY: a descriptor that is open.
                unsafe { crate::hooks::dup2(fd, n) };
            }
            if fd > 2 {
                reserved_fds::drop_raw(null);
            } else {
                // The number of `null` is one of the three standard ones.
                let _ = null.into_raw_fd();
            }
        }
        0
    }

    /// setns(2) may take the thread to another network namespace.
    fn setns(fd: c_int, kind: c_int) -> c_int {
        visit!(setns(fd, kind));
        let next = || call_next!(setns(fd => c_int, kind => c_int) -> c_int);
        // 0: whatever kind of namespace `fd` is.
        if kind == 0 || kind & libc::CLONE_NEWNET != 0 { namespace::may_change(next, |r| *r == 0) } else { next() }
    }

    /// unshare(2) may take the thread to a new network namespace.
    fn unshare(what: c_int) -> c_int {
        visit!(unshare(what));
        if what & libc::CLONE_NEWUSER != 0 {
            rights::before_fewer_rights();
        }
        let next = || call_next!(unshare(what => c_int) -> c_int);
        if what & libc::CLONE_NEWNET != 0 { namespace::may_change(next, |r| *r == 0) } else { next() }
    }
}

/// Base address of the library that has a libc function.
fn library_of(function: *mut c_void) -> *mut c_void {
    linker::object_of(function).map_or(core::ptr::null_mut(), |info| info.dli_fbase)
}

exports! {
    /// forkpty(3) forks by an internal call where it is part of libc (glibc 2.34); before that it lives in a library of
    /// its own, which calls our fork.
    fn forkpty(
        master: *mut c_int,
        name: *mut c_char,
        mode: *const termios,
        size: *const winsize,
    ) -> pid_t {
        visit!(forkpty(master, name, mode, size));
        next_of!(FORK, c"fork");
        next_of!(FORKPTY, c"forkpty");
        let next = || {
            call_next!(forkpty(
                master => *mut c_int, name => *mut c_char, mode => *const termios, size => *const winsize
            ) -> pid_t)
        };
        let pid = if library_of(FORK.get()) == library_of(FORKPTY.get()) { forked(next) } else { next() };
        if pid == 0 {
            standard_replaced();
        }
        pid
    }

    /// login_tty(3) puts the terminal under the standard descriptors and closes `fd`, by internal calls.
    fn login_tty(fd: c_int) -> c_int {
        visit!(login_tty(fd));
        let done = call_next!(login_tty(fd => c_int) -> c_int);
        if done == 0 {
            standard_replaced();
            drop(closing::forget(fd, File::Gone));
        }
        done
    }

    /// fclose(3) closes by an internal call. The stream's buffer is flushed while the descriptor is still in our table;
    /// then our entry is dropped, since another thread may get the number right after the close.
    fn fclose(f: *mut libc::FILE) -> c_int {
        let fd = call_next!(fileno(f => *mut libc::FILE) -> c_int);
        if create::known(fd) {
            // An error here occurs again in fclose, which reports it. This may sleep, so it comes before the visit.
            call_next!(fflush(f => *mut libc::FILE) -> c_int);
            visit!(fclose(f));
            let _leaving = closing::forget(fd, File::There);
            return call_next!(fclose(f => *mut libc::FILE) -> c_int);
        }
        call_next!(fclose(f => *mut libc::FILE) -> c_int)
    }
}

/// Calls libc's fork(2), for a child that goes on after this process.
pub fn next_fork() -> pid_t {
    call_next!(fork() -> pid_t)
}

callbacks! {
    /// Runs when the process ends by exit(3) or by returning from main: it passes on queued connects and sends what was
    /// written to other hosts.
    fn finish() {
        // A process that never had a TCP socket has nothing to pass on.
        if !libc_kind::is_known() || runtime::get().is_none() {
            return;
        }
        visit!(finish());
        at_exit::hand_on_all();
        at_exit::leave_host_directory();
        at_exit::settle_orphans();
        at_exit::settle_switches();
        engine::finish(next_fork);
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;

/// quick_exit(3) ends by an internal call. It calls the registered functions in reverse order, and the program's own
/// ones may still use connections; so ours is registered first.
pub fn at_quick_exit() {
    extern "C" fn finish_quickly(_: *mut c_void) {
        finish();
    }
    next_of!(REGISTER, c"__cxa_at_quick_exit");
    // at_quick_exit(3) of glibc is linked into each program; this is the function of glibc that it calls. If libc has
    // no room for another function, the handler is missing, and nothing can be done about that.
    if !REGISTER.get().is_null() {
        call_at!(REGISTER, (finish_quickly => extern "C" fn(*mut c_void), core::ptr::null_mut() => *mut c_void) -> c_int);
    } else if libc_kind::is_musl() {
        call_next!(at_quick_exit(finish => extern "C" fn()) -> c_int);
    }
}

callbacks! {
    fn before_fork() {
        heap::before_fork();
    }

    fn after_fork() {
        heap::after_fork();
        delivery::deliver_here();
    }

    fn in_child() {
        heap::in_child();
    }
}

/// Registers our functions with pthread_atfork(3). libc calls the functions that were registered first last before a
/// fork; so other threads are kept from our allocator for the shortest time, and never while a function of the program
/// waits for one of them.
pub fn at_fork() {
    type Function = extern "C" fn();
    if libc_kind::is_musl() {
        call_next!(pthread_atfork(before_fork => Function, after_fork => Function, in_child => Function) -> c_int);
        return;
    }
    // pthread_atfork(3) of glibc is linked into each program; this is the function of glibc that it calls. A last
    // argument of null says that the functions stay for good.
    call_next!(__register_atfork(
        before_fork => Function, after_fork => Function, in_child => Function, core::ptr::null_mut() => *mut c_void
    ) -> c_int);
}

fn end_process(status: c_int) -> ! {
    finish();
    netacc_sys::raw::exit_group(status)
}

exports! {
    /// pthread_cancel(3). A thread that sleeps in one of our calls first has to release our locks and references.
    fn pthread_cancel(thread: libc::pthread_t) -> c_int {
        visit!(pthread_cancel(thread));
        // musl wakes the thread itself.
        if !libc_kind::is_known() || libc_kind::is_musl() {
            return call_next!(pthread_cancel(thread => libc::pthread_t) -> c_int);
        }
        // Looked up first, since a cancelled thread may be gone after the call.
        let tid = cancel::number_of(thread as usize);
        let done = call_next!(pthread_cancel(thread => libc::pthread_t) -> c_int);
        // After libc's call: a thread that is woken sooner finds that it is not cancelled, and sleeps again.
        cancel::note(thread as usize);
        cancel::wake(thread as usize, tid);
        done
    }
}

/// Ends the calling thread, which is cancelled and holds nothing of ours. If this returns, the cancelled thread was
/// another one with the same `pthread_t`.
#[cold]
pub fn cancelled() {
    cancel::forget_note();
    let inside = visits::end_all();
    delivery::deliver_here();
    call_next!(pthread_testcancel() -> c_int);
    visits::resume(inside);
}

exports! {
    /// _exit(2).
    fn _exit(status: c_int) -> ! {
        end_process(status)
    }

    /// Another name of _exit(2).
    fn _Exit(status: c_int) -> ! {
        end_process(status)
    }
}
