//! What the signal handlers of the process ask about restarting, and what they must not interrupt.
//!
//! # Safety
//! `rt_sigaction` is told something by [`reinstall`] alone, whose callers answer for the handler; what `rt_sigprocmask` is told is taken back, except by [`Waiting`], which
//! is for programs of our own and not for the library.
#![allow(unsafe_code)]

use crate::errno::{Errno, Result};
use crate::raw;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

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

/// Signals of a fault of the thread itself, which a thread that sleeps does not cause.
const FAULTS: [i32; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Whether all handlers that can have run in this thread while it slept have SA_RESTART: those of signals that were
/// not `blocked` then.
pub fn all_restart(blocked: u64) -> bool {
    handlers(!blocked).all(|action| action.flags & libc::SA_RESTART as u64 != 0)
}

/// Whether a handler of the program's runs as soon as `blocked` are the blocked signals of this thread, because a signal
/// for it waits.
pub fn will_handle(blocked: u64) -> bool {
    has_handler(pending() & !blocked)
}

/// Whether the kernel has a handler, but for those of libc's own and of faults, of whose address `what` is true.
pub(crate) fn any_handler(what: impl Fn(usize) -> bool) -> bool {
    handlers(u64::MAX).any(|action| what(action.handler))
}

/// The program's handlers of `signals` as the kernel has them, but for those of libc's own and of faults.
fn handlers(signals: u64) -> impl Iterator<Item = KernelSigaction> {
    let possible =
        move |s: &usize| signals & 1 << (s - 1) != 0 && !LIBC_SIGNALS.contains(s) && !FAULTS.contains(&(*s as i32));
    (1..=64usize).filter(possible).filter_map(|sig| {
        let mut old = KernelSigaction { handler: 0, flags: 0, restorer: 0, mask: 0 };
        // SAFETY: a null new action; `old` is a valid structure for the result; 8 is the mask's size.
        let r = unsafe { raw::syscall6(libc::SYS_rt_sigaction, [sig, 0, (&raw mut old) as usize, 8, 0, 0]) };
        (r == 0 && old.handler != libc::SIG_DFL && old.handler != libc::SIG_IGN).then_some(old)
    })
}

/// Installs `entry` for `signal` again, after the kernel has reset the signal's action (SA_RESETHAND) and before the
/// program's handler has run. The kernel has kept the flags and the mask.
pub(crate) fn arm_again(signal: i32, entry: usize) {
    reinstall(signal, |handler, flags| (handler == libc::SIG_DFL).then_some((entry, flags)));
}

/// Replaces the handler and the flags that the kernel has for `signal` by those that `change` returns for them.
pub fn reinstall(signal: i32, change: impl FnOnce(usize, u64) -> Option<(usize, u64)>) {
    let mut action = KernelSigaction { handler: 0, flags: 0, restorer: 0, mask: 0 };
    // SAFETY: a null new action; `action` is a valid structure for the result; 8 is the mask's size.
    let r = unsafe { raw::syscall6(libc::SYS_rt_sigaction, [signal as usize, 0, (&raw mut action) as usize, 8, 0, 0]) };
    let changed = if r == 0 { change(action.handler, action.flags) } else { None };
    let Some((handler, flags)) = changed.filter(|changed| *changed != (action.handler, action.flags)) else { return };
    (action.handler, action.flags) = (handler, flags);
    // SAFETY: a valid structure, which the kernel had but for what the caller has changed; 8 is the mask's size.
    unsafe { raw::syscall6(libc::SYS_rt_sigaction, [signal as usize, (&raw const action) as usize, 0, 8, 0, 0]) };
}

/// Whether `signal` tells of a fault of the thread itself.
pub fn is_fault(signal: i32) -> bool {
    FAULTS.contains(&signal)
}

/// No handler runs in this thread while this lives: for rare, long work under a lock that a handler may need, since a
/// handler may call close(2) (signal-safety(7)).
#[derive(Debug)]
pub struct Blocked {
    before: u64,
}

impl Blocked {
    /// Blocks all signals of the thread.
    pub fn all() -> Blocked {
        Blocked { before: set_mask(u64::MAX) }
    }

    /// Blocks all signals of the thread but those of its own faults, whose handlers the program may need to make memory
    /// accessible that we read or write for it.
    pub fn all_but_faults() -> Blocked {
        Blocked { before: change_mask(libc::SIG_BLOCK, FAULTS.iter().fold(u64::MAX, |all, fault| all & !bit(*fault))) }
    }

    /// Blocks `signal` beside those that are blocked.
    pub fn also(signal: i32) -> Blocked {
        Blocked { before: change_mask(libc::SIG_BLOCK, bit(signal)) }
    }

    /// The thread's mask before.
    pub fn mask_before(&self) -> u64 {
        self.before
    }

    /// Whether `signal` was blocked before.
    pub fn was_blocked(&self, signal: i32) -> bool {
        self.before & bit(signal) != 0
    }

    /// Whether `signal` waits to be delivered.
    pub fn is_pending(&self, signal: i32) -> bool {
        is_pending(signal)
    }

    /// Takes a `signal` that waits, so that it is not delivered (sigtimedwait(2)).
    pub fn take(&self, signal: i32) {
        let set = bit(signal);
        let at_once = [0u64; 2];
        let args = [(&raw const set) as usize, 0, (&raw const at_once) as usize, 8, 0, 0];
        // SAFETY: a set of the size that is said, and a time.
        unsafe { raw::syscall6(libc::SYS_rt_sigtimedwait, args) };
    }
}

/// Whether `signal` waits to be delivered to the thread.
pub fn is_pending(signal: i32) -> bool {
    pending() & bit(signal) != 0
}

/// Whether the program handles any of these signals.
pub fn has_handler(signals: u64) -> bool {
    handlers(signals).next().is_some()
}

/// The signals that wait to be delivered to the thread (sigpending(2)).
pub fn pending() -> u64 {
    let mut waiting = 0u64;
    // SAFETY: a word of the size that is said.
    unsafe { raw::syscall6(libc::SYS_rt_sigpending, [(&raw mut waiting) as usize, 8, 0, 0, 0, 0]) };
    waiting
}

/// Runs `call`, and takes back the `signal` that the kernel may raise in this thread because of it. The call then does
/// nothing but fail.
pub fn without<T>(signal: i32, call: impl FnOnce() -> T) -> T {
    let blocked = Blocked::all();
    // A signal that waits already was raised for the program, and stays.
    let waited = blocked.is_pending(signal);
    let done = call();
    if !waited && blocked.is_pending(signal) {
        blocked.take(signal);
    }
    done
}

/// The bit of `signal` in a set of signals.
pub(crate) fn bit(signal: i32) -> u64 {
    u32::try_from(signal - 1).ok().and_then(|n| 1u64.checked_shl(n)).unwrap_or(0)
}

impl Drop for Blocked {
    fn drop(&mut self) {
        set_mask(self.before);
    }
}

/// The signals that the thread blocks, as a set.
pub fn mask() -> u64 {
    change_mask(libc::SIG_BLOCK, 0)
}

/// Sets the thread's mask; returns the previous one.
fn set_mask(mask: u64) -> u64 {
    change_mask(libc::SIG_SETMASK, mask)
}

/// Changes the thread's mask (sigprocmask(2)); returns the previous one.
fn change_mask(how: i32, mask: u64) -> u64 {
    let mut before = mask;
    let args = [how as usize, (&raw const mask) as usize, (&raw mut before) as usize, 8, 0, 0];
    // SAFETY: two words of the size that is said.
    unsafe { raw::syscall6(libc::SYS_rt_sigprocmask, args) };
    before
}

/// Signals that wait to be read and do not take effect: for a program that has to tidy up first.
#[derive(Debug)]
pub struct Waiting(OwnedFd);

impl Waiting {
    /// Holds `signals` back from this thread, and from those that it starts.
    pub fn begin(signals: &[i32]) -> Result<Waiting> {
        let mask = signals.iter().fold(0, |mask, signal| mask | bit(*signal));
        let flags = (libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) as usize;
        // SAFETY: a mask of the size that is said; -1 asks for a new descriptor.
        let fd =
            unsafe { raw::syscall6(libc::SYS_signalfd4, [usize::MAX, (&raw const mask) as usize, 8, flags, 0, 0]) };
        let fd =
            i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or(Errno(i32::try_from(-fd).unwrap_or(libc::EINVAL)))?;
        let how = libc::SIG_BLOCK as usize;
        // SAFETY: a mask of the size that is said; no old mask is asked for.
        unsafe { raw::syscall6(libc::SYS_rt_sigprocmask, [how, (&raw const mask) as usize, 0, 8, 0, 0]) };
        // SAFETY: the kernel gave us the descriptor just now, and nobody else knows it.
        Ok(Waiting(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The next signal, if there is one.
    pub fn next(&self) -> Option<i32> {
        let mut info = [0u8; 128];
        let read = raw::read(self.0.as_raw_fd(), info.as_mut_ptr(), info.len(), None).ok()?;
        let [a, b, c, d, ..] = info;
        (read == info.len()).then(|| i32::from_ne_bytes([a, b, c, d]))
    }
}

/// Readable when there is a signal.
impl AsFd for Waiting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_of_a_call_is_taken_back_and_one_of_the_program_stays() {
        let seen = std::thread::spawn(|| {
            let waiting = Waiting::begin(&[libc::SIGXFSZ]).unwrap();
            without(libc::SIGXFSZ, || raw::raise(libc::SIGXFSZ));
            let none = waiting.next();
            raw::raise(libc::SIGXFSZ);
            without(libc::SIGXFSZ, || raw::raise(libc::SIGXFSZ));
            (none, waiting.next())
        });
        assert_eq!(seen.join().unwrap(), (None, Some(libc::SIGXFSZ)));
    }

    #[test]
    fn a_signal_waits_to_be_read() {
        // This runs in a thread of its own, whose mask ends with it.
        let seen = std::thread::spawn(|| {
            let waiting = Waiting::begin(&[libc::SIGUSR1, libc::SIGWINCH]).unwrap();
            let none = waiting.next();
            raw::raise(libc::SIGUSR1);
            (none, waiting.next(), waiting.next())
        });
        assert_eq!(seen.join().unwrap(), (None, Some(libc::SIGUSR1), None));
    }

    #[test]
    fn only_a_waiting_signal_with_a_handler_will_be_handled() {
        extern "C" fn nothing(_: i32) {}
        // SAFETY: a handler that does nothing, for a signal that no other test has.
        unsafe { libc::signal(libc::SIGVTALRM, nothing as *const () as libc::sighandler_t) };
        let blocked = Blocked::all();
        let before = blocked.mask_before();
        assert!(!will_handle(before));
        // Its default action is to do nothing.
        raw::raise(libc::SIGWINCH);
        assert!(!will_handle(before));
        raw::raise(libc::SIGVTALRM);
        assert!(will_handle(before) && !will_handle(before | bit(libc::SIGVTALRM)));
        drop(blocked);
        assert!(!will_handle(before));
    }
}
