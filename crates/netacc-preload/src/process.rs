//! Calls that make processes, and stdio's way to close a descriptor.

use core::ffi::c_int;
use netacc_core::fork;
use netacc_core::socket::create;

unsafe extern "C" {
    fn fileno(f: *mut libc::FILE) -> c_int;
}

/// fork(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> libc::pid_t {
    let forking = fork::prepare();
    let pid = call_next!(fork() -> libc::pid_t);
    if pid == 0 {
        fork::child(forking);
    } else {
        fork::parent(forking, pid > 0);
    }
    pid
}

/// _Fork(3): fork without the handlers of pthread_atfork.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> libc::pid_t {
    let forking = fork::prepare();
    let pid = call_next!(_Fork() -> libc::pid_t);
    if pid == 0 {
        fork::child(forking);
    } else {
        fork::parent(forking, pid > 0);
    }
    pid
}

/// vfork(2) may be a fork (POSIX): a child that shares our memory would change the parent's tables.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() -> libc::pid_t {
    // SAFETY: no contract beyond fork's.
    unsafe { fork() }
}

/// fclose(3) closes by an internal call: our side is dropped first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fclose(f: *mut libc::FILE) -> c_int {
    // SAFETY: the application's open stream.
    create::forget(unsafe { fileno(f) });
    call_next!(fclose(f => *mut libc::FILE) -> c_int)
}
