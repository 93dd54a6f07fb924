//! What the process' signal handlers say about restarting, and what they must not interrupt.
//!
//! # Safety
//! `rt_sigaction` is only asked, never told; what `rt_sigprocmask` is told is taken back.
#![allow(unsafe_code)]

use crate::raw;

/// The kernel's `struct sigaction` on x86-64 and AArch64.
#[repr(C)]
struct KernelSigaction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// Signals 32 and 33 belong to the threads library.
const LIBC_SIGNALS: core::ops::RangeInclusive<usize> = 32..=33;

/// Signals of a fault of the thread itself, which a thread that sleeps does not commit.
const FAULTS: [i32; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];

/// Whether all handlers that can have run in this thread while it slept have SA_RESTART: those of signals it does
/// not block.
pub fn all_restart() -> bool {
    let mut blocked = 0u64;
    // SAFETY: a null new mask; `blocked` has the size that is said.
    let r = unsafe { raw::syscall6(libc::SYS_rt_sigprocmask, [0, 0, (&raw mut blocked) as usize, 8, 0, 0]) };
    if r != 0 {
        blocked = 0;
    }
    let possible =
        |s: &usize| !LIBC_SIGNALS.contains(s) && !FAULTS.contains(&(*s as i32)) && blocked & 1 << (s - 1) == 0;
    (1..=64usize).filter(possible).all(|sig| {
        let mut old = KernelSigaction { handler: 0, flags: 0, restorer: 0, mask: 0 };
        // SAFETY: a null new action; `old` is a valid structure for the result; 8 is the mask's size.
        let r = unsafe { raw::syscall6(libc::SYS_rt_sigaction, [sig, 0, (&raw mut old) as usize, 8, 0, 0]) };
        let handled = r == 0 && old.handler != libc::SIG_DFL && old.handler != libc::SIG_IGN;
        !handled || old.flags & libc::SA_RESTART as u64 != 0
    })
}

/// No handler runs in this thread as long as this lives: for rare, long work under a lock that a handler may need, since
/// close(2) may be called by one (signal-safety(7)).
#[derive(Debug)]
pub struct Blocked {
    before: u64,
}

impl Blocked {
    /// Blocks all signals of the thread.
    pub fn all() -> Blocked {
        Blocked { before: set_mask(u64::MAX) }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        set_mask(self.before);
    }
}

/// Sets the thread's mask; returns the one before.
fn set_mask(mask: u64) -> u64 {
    let mut before = mask;
    let how = libc::SIG_SETMASK as usize;
    // SAFETY: two words of the size that is said.
    unsafe {
        raw::syscall6(libc::SYS_rt_sigprocmask, [how, (&raw const mask) as usize, (&raw mut before) as usize, 8, 0, 0]);
    }
    before
}
