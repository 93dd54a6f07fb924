//! What the process' signal handlers say about restarting.
//!
//! # Safety
//! `rt_sigaction` is only asked, never told.
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

/// Whether all installed handlers have SA_RESTART.
pub fn all_restart() -> bool {
    (1..=64usize).filter(|s| !LIBC_SIGNALS.contains(s)).all(|sig| {
        let mut old = KernelSigaction { handler: 0, flags: 0, restorer: 0, mask: 0 };
        // SAFETY: a null new action; `old` is a valid structure for the result; 8 is the mask's size.
        let r = unsafe { raw::syscall6(libc::SYS_rt_sigaction, [sig, 0, (&raw mut old) as usize, 8, 0, 0]) };
        let handled = r == 0 && old.handler != libc::SIG_DFL && old.handler != libc::SIG_IGN;
        !handled || old.flags & libc::SA_RESTART as u64 != 0
    })
}
