//! System calls that may sleep, in a thread that is inside the library: they end for a signal that is kept.
//!
//! A signal of the program's that comes inside the library is delivered when the thread leaves it ([`crate::delivery`]). So
//! a call that looked for one, found none, and then slept would sleep on if one came in between. [`sleeping_call`] looks and
//! makes the system call in one step: the handler's entry moves a thread that it finds between the two to the end.
//!
//! # Safety
//! The wrappers pass the kernel what their callers give them, which it validates; `interrupt` changes the context of a
//! handler's frame, which its caller has from the kernel.
#![allow(unsafe_code)]

use crate::errno::{Errno, Result};
use crate::raw;
use crate::thread_state::{self, Count};
use core::ffi::c_void;
use core::sync::atomic::AtomicU32;

/// The error of a program's call whose system call was not made because a signal had come, or is to be restarted after one
/// (SA_RESTART): by the kernel alone the handler would run, and then the call. The kernel has this number (ERESTARTSYS) for
/// the same, and no program ever sees it.
pub const ANEW: Errno = Errno(512);

// A system call that may sleep: `netacc_sleeping_call(number, arguments, due)`. Between its first and its last label the
// kernel call has not been made, or the kernel makes it once more after a handler. `interrupt` ends it there.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".hidden netacc_sleeping_call",
    ".hidden netacc_sleeping_call_end",
    ".hidden netacc_sleeping_call_ended",
    ".globl netacc_sleeping_call",
    ".globl netacc_sleeping_call_end",
    ".globl netacc_sleeping_call_ended",
    "netacc_sleeping_call:",
    "mov rax, rdi",
    "mov rcx, rdx",
    "mov r11, rsi",
    "mov rdi, [r11]",
    "mov rsi, [r11 + 8]",
    "mov rdx, [r11 + 16]",
    "mov r10, [r11 + 24]",
    "mov r8, [r11 + 32]",
    "mov r9, [r11 + 40]",
    "test dword ptr [rcx], 1",
    "jnz netacc_sleeping_call_ended",
    "syscall",
    "netacc_sleeping_call_end:",
    "ret",
    "netacc_sleeping_call_ended:",
    "mov rax, -512",
    "ret",
);

#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".hidden netacc_sleeping_call",
    ".hidden netacc_sleeping_call_end",
    ".hidden netacc_sleeping_call_ended",
    ".globl netacc_sleeping_call",
    ".globl netacc_sleeping_call_end",
    ".globl netacc_sleeping_call_ended",
    "netacc_sleeping_call:",
    "mov x8, x0",
    "mov x9, x1",
    "mov x10, x2",
    "ldp x0, x1, [x9]",
    "ldp x2, x3, [x9, #16]",
    "ldp x4, x5, [x9, #32]",
    "ldr w10, [x10]",
    "tbnz w10, #0, netacc_sleeping_call_ended",
    "svc #0",
    "netacc_sleeping_call_end:",
    "ret",
    "netacc_sleeping_call_ended:",
    "mov x0, #-512",
    "ret",
);

unsafe extern "C" {
    fn netacc_sleeping_call(number: usize, args: *const [usize; 6], due: *const AtomicU32) -> isize;
    static netacc_sleeping_call_end: u8;
    static netacc_sleeping_call_ended: u8;
}

/// Makes a system call that may sleep, in a thread that is inside the library. If a signal was kept before it, it is not made
/// and fails with [`ANEW`]; so does one during which a signal comes, where the kernel would restart it.
///
/// # Safety
/// As for the system call.
unsafe fn sleeping_call(number: i64, args: [usize; 6]) -> Result<usize> {
    static NEVER: AtomicU32 = AtomicU32::new(0);
    let due = thread_state::entered().map_or(&NEVER, Count::due_word);
    // SAFETY: the caller's contract; the word is static.
    let done = unsafe { netacc_sleeping_call(number as usize, &raw const args, due) };
    result(done)
}

/// What a system call has returned.
fn result(done: isize) -> Result<usize> {
    if (-4095..0).contains(&done) { Err(Errno(-done as i32)) } else { Ok(done.cast_unsigned()) }
}

/// connect(2) on a socket of the program's, which may sleep.
pub fn connect(fd: i32, addr: *const c_void, len: u32) -> Result<()> {
    // SAFETY: the address is the program's, which the kernel validates.
    unsafe { whole_call(libc::SYS_connect, [fd as usize, addr as usize, len as usize, 0, 0, 0]) }.map(drop)
}

/// recv(2) from a socket of the program's, which may sleep.
pub fn recv(fd: i32, buf: *mut u8, len: usize, flags: i32) -> Result<usize> {
    transfer(libc::SYS_recvfrom, [fd as usize, buf as usize, len, flags as usize, 0, 0], 3)
}

/// send(2) to a socket of the program's, which may sleep.
pub fn send(fd: i32, buf: *const u8, len: usize, flags: i32) -> Result<usize> {
    transfer(libc::SYS_sendto, [fd as usize, buf as usize, len, flags as usize, 0, 0], 3)
}

/// sendmsg(2) to a socket of the program's, which may sleep.
pub fn sendmsg(fd: i32, message: *const libc::msghdr, flags: i32) -> Result<usize> {
    transfer(libc::SYS_sendmsg, [fd as usize, message as usize, flags as usize, 0, 0, 0], 2)
}

/// recvmsg(2) from a socket of the program's, which may sleep.
pub fn recvmsg(fd: i32, message: *mut libc::msghdr, flags: i32) -> Result<usize> {
    transfer(libc::SYS_recvmsg, [fd as usize, message as usize, flags as usize, 0, 0, 0], 2)
}

/// A call that moves bytes and has its flags in the argument `at`. With MSG_DONTWAIT it does not sleep, and no signal ends it.
fn transfer(number: i64, args: [usize; 6], at: usize) -> Result<usize> {
    if args.get(at).is_some_and(|flags| *flags as i32 & libc::MSG_DONTWAIT != 0) {
        // SAFETY: the buffers are the program's, which the kernel validates; a message header is one of ours.
        return result(unsafe { raw::syscall6(number, args) });
    }
    // SAFETY: as above.
    unsafe { whole_call(number, args) }
}

/// accept4(2), which may sleep.
pub fn accept4(fd: i32, addr: *mut c_void, len: *mut u32, flags: i32) -> Result<i32> {
    let args = [fd as usize, addr as usize, len as usize, flags as usize, 0, 0];
    // SAFETY: the caller's buffer for the address, which the kernel validates.
    unsafe { whole_call(libc::SYS_accept4, args) }.map(|fd| fd as i32)
}

/// ppoll(2), which may sleep; `timeout` and `sigmask` may be null. The kernel's `sigset_t` has 8 bytes.
pub fn ppoll(fds: *mut libc::pollfd, n: usize, timeout: *mut libc::timespec, sigmask: *const c_void) -> Result<usize> {
    let args = [fds as usize, n, timeout as usize, sigmask as usize, 8, 0];
    // SAFETY: the entries are the caller's, which the kernel validates.
    unsafe { sleeping_call(libc::SYS_ppoll, args) }.map_err(interrupted)
}

/// epoll_pwait2(2) where the kernel has it, else epoll_pwait(2) with the time-out rounded up. `timeout` is in nanoseconds,
/// negative waits for ever.
pub fn epoll_wait(
    ep: i32,
    events: *mut libc::epoll_event,
    max: i32,
    timeout: i64,
    sigmask: *const c_void,
) -> Result<usize> {
    raw::epoll_wait_by(ep, events, max, timeout, sigmask, |number, args| {
        // SAFETY: the array is the caller's, which the kernel validates.
        unsafe { sleeping_call(number, args) }.map_err(interrupted)
    })
}

/// A program's whole call: [`ANEW`] if that can be obeyed.
///
/// # Safety
/// As for the system call.
unsafe fn whole_call(number: i64, args: [usize; 6]) -> Result<usize> {
    let may_be_made_anew = || thread_state::entered().is_some_and(Count::may_be_made_anew);
    // SAFETY: the caller's contract.
    unsafe { sleeping_call(number, args) }.map_err(|e| if may_be_made_anew() { e } else { interrupted(e) })
}

/// The error of a call that is part of a larger one, and is not made anew alone.
fn interrupted(e: Errno) -> Errno {
    if e == ANEW { Errno::INTR } else { e }
}

/// Ends a sleeping call that the context is about to make, for the first time or once more.
pub(crate) unsafe fn interrupt(context: *mut c_void) {
    let begin = netacc_sleeping_call as *const () as usize;
    let (end, ended) = (&raw const netacc_sleeping_call_end as usize, &raw const netacc_sleeping_call_ended as usize);
    // SAFETY: the caller's contract.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    #[cfg(target_arch = "x86_64")]
    if let Some(pc) = context.uc_mcontext.gregs.get_mut(libc::REG_RIP as usize)
        && (begin..end).contains(&(*pc as usize))
    {
        *pc = ended as i64;
    }
    #[cfg(target_arch = "aarch64")]
    if (begin..end).contains(&(context.uc_mcontext.pc as usize)) {
        context.uc_mcontext.pc = ended as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call that would sleep ends at once if a signal is due.
    #[test]
    fn a_sleeping_call_ends_for_a_signal_that_is_due() {
        std::thread::spawn(|| {
            let mut pipe = [0; 2];
            // SAFETY: room for two numbers.
            assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pipe.as_mut_ptr()) }, 0);
            let line = thread_state::own_line().unwrap();
            let mut byte = 0u8;
            line.set_kept(true, true);
            assert_eq!(recv(pipe[0], &raw mut byte, 1, 0), Err(Errno::INTR), "no call of the program's is made anew");
            line.set_visits(1);
            assert_eq!(recv(pipe[0], &raw mut byte, 1, 0), Err(ANEW));
            assert_eq!(recv(pipe[0], &raw mut byte, 1, libc::MSG_DONTWAIT), Err(Errno::AGAIN));
            let mut entry = libc::pollfd { fd: pipe[0], events: libc::POLLIN, revents: 0 };
            assert_eq!(ppoll(&raw mut entry, 1, core::ptr::null_mut(), core::ptr::null()), Err(Errno::INTR));
            line.set_visits(0);
            line.set_kept(false, false);
            assert_eq!(send(pipe[1], b"x".as_ptr(), 1, 0), Ok(1));
            assert_eq!(recv(pipe[0], &raw mut byte, 1, 0), Ok(1));
        })
        .join()
        .unwrap();
    }
}
