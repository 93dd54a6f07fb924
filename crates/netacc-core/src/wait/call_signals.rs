//! The signals that come during a call which may sleep more than once.
//!
//! A call of the kernel's ends with EINTR when a handler runs before there is a result. A call of ours also wakes for
//! work of our own and sleeps again. A handler that ran between two sleeps would end neither, and a program that looks
//! at what its handler has noted when the call returns would sleep on.
//!
//! Where all handlers come through the library ([`delivery::keeps_all`]) none runs there: a signal that comes between two
//! sleeps is kept and ends the next one, and one that nobody handles interrupts nothing. Where a handler may run inside the
//! library, the call blocks signals between its sleeps, and only the system call in which it sleeps admits them
//! (ppoll(2)): one that came meanwhile ends that at once. So does a call with a mask of its own, since what that blocks
//! must not end it.
//!
//! Blocking is needed for the first sleep, too: a thread that is woken for work of ours may get its CPU only milliseconds later,
//! and a signal that comes meanwhile is delivered when the system call returns, which says that there was an event. If
//! signals are blocked outside of the sleep, it stays pending instead, and ends the next sleep.
//!
//! The kernel drops a signal that nobody handles (SIGCHLD, as most programs leave it), unless it is blocked. Then it waits,
//! and ends the next sleep as if a handler had run. So a sleep that was interrupted although no handler ran is repeated.
//!
//! Blocking costs two system calls, which a call that does not sleep and does not yield its CPU saves, and each sleep asks
//! once which signals wait.

use core::ffi::c_void;
use netacc_sys::delivery;
use netacc_sys::errno::{Answer, Fail};
use netacc_sys::signals::{self, Blocked};
use netacc_sys::time::Deadline;
use netacc_sys::user;

/// The signals of one call. They are admitted again when this is dropped.
#[derive(Debug)]
pub struct CallSignals {
    /// The program's own mask for the sleep, or null.
    given: *const c_void,
    /// Whether signals are kept rather than blocked between the sleeps.
    are_kept: bool,
    /// The thread's mask at the beginning, which is valid once signals are blocked.
    before: u64,
    blocked: Option<Blocked>,
    /// The signals that waited when the last sleep began, and were admitted by it.
    waited: u64,
}

impl CallSignals {
    /// For a call with the mask `given`, which may be null (ppoll(2)).
    pub fn new(given: *const c_void) -> CallSignals {
        CallSignals::that(given, given.is_null() && delivery::keeps_all())
    }

    fn that(given: *const c_void, are_kept: bool) -> CallSignals {
        CallSignals { given, are_kept, before: 0, blocked: None, waited: 0 }
    }

    /// The mask for the next sleep, which may be null. It is valid as long as this is neither moved nor dropped.
    pub fn admit(&mut self) -> *const c_void {
        if self.are_kept {
            return core::ptr::null();
        }
        self.block();
        self.waited = signals::pending() & !self.mask();
        if self.given.is_null() { (&raw const self.before).cast() } else { self.given }
    }

    /// The signals that a sleep does not admit.
    fn mask(&self) -> u64 {
        if self.given.is_null() { self.before } else { user::signal_set(self.given) }
    }

    /// Blocks the signals until the next sleep unless they are kept, also for a program that has a mask of its own for it: not every such
    /// program blocks outside of the call what the mask admits.
    pub fn block(&mut self) {
        if !self.are_kept && self.blocked.is_none() {
            let blocked = Blocked::all_but_faults();
            self.before = blocked.mask_before();
            self.blocked = Some(blocked);
        }
    }

    /// Ends this wait of a call that goes on with another one, unless a signal has come meanwhile that ends the call: its
    /// handler runs between the two waits, and would end neither.
    pub fn leave(self, deadline: Deadline) -> Answer<()> {
        let ends = self.blocked.is_some() && signals::will_handle(self.before);
        if ends || delivery::is_due() { self.handled(deadline) } else { Ok(()) }
    }

    /// What follows for a call of which a sleep was interrupted: it sleeps again if no handler ran and none is to run.
    pub fn interrupted(&self, deadline: Deadline) -> Answer<()> {
        if !delivery::is_due() && self.was_nothing() { Ok(()) } else { self.handled(deadline) }
    }

    /// How a call ends in which a handler runs, or after which one runs whose signal was kept. A call that the kernel would
    /// restart is made anew, since the kernel begins with the number as well, which the handler may have closed or given to
    /// another file.
    fn handled(&self, deadline: Deadline) -> Answer<()> {
        let restarts = if delivery::is_due() {
            deadline == Deadline::Never && delivery::restarts()
        } else {
            self.restarts(deadline)
        };
        Err(if restarts { Fail::Restart } else { Fail::INTR })
    }

    /// Whether no handler of the program's ran although the last sleep was interrupted.
    pub fn was_nothing(&self) -> bool {
        if delivery::is_due() {
            return false;
        }
        if self.are_kept {
            return !delivery::may_have_run_inside();
        }
        let handled = |signals: u64| signals::has_handler(signals);
        match self.waited {
            // A signal that nobody handles may have come just before the sleep.
            0 => self.blocked.is_some() && !handled(!self.mask()),
            waited => !handled(waited),
        }
    }

    /// Whether an interrupted blocking call is restarted (signal(7)): never if a time-out is set; otherwise the kernel
    /// restarts it if the handler was installed with SA_RESTART. It is not known here which handler ran, so the call is
    /// restarted only if all handlers of the process have SA_RESTART.
    fn restarts(&self, deadline: Deadline) -> bool {
        let mask = || if self.blocked.is_some() { self.before } else { signals::mask() };
        deadline == Deadline::Never && signals::all_restart(mask())
    }
}

impl Drop for CallSignals {
    fn drop(&mut self) {
        // The program may block what it admits by the call's mask, and the handler is to run before the call returns.
        if !self.given.is_null() && delivery::is_due() {
            delivery::admit(user::signal_set(self.given));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_blocked_outside_of_the_sleeps_of_a_call() {
        let term = 1u64 << (libc::SIGTERM - 1);
        let segv = 1u64 << (libc::SIGSEGV - 1);
        let before = signals::mask();
        assert_eq!(before & term, 0);
        let mut call = CallSignals::that(core::ptr::null(), false);
        assert_eq!(signals::mask(), before);
        for _ in 0..2 {
            assert!(!call.admit().is_null());
            assert_eq!(signals::mask() & (term | segv), term);
            assert_eq!(call.before, before);
        }
        drop(call);
        assert_eq!(signals::mask(), before);
    }

    #[test]
    fn a_signal_that_nobody_handles_is_nothing() {
        let window = libc::SIGWINCH;
        let mut call = CallSignals::that(core::ptr::null(), false);
        call.block();
        netacc_sys::raw::raise(window);
        call.admit();
        assert_eq!(call.waited, 1u64 << (window - 1));
        assert!(call.was_nothing());
        // Only signals that the sleep admits can have ended it.
        let all_but_window = !(1u64 << (window - 1));
        let mut call = CallSignals::new((&raw const all_but_window).cast());
        call.admit();
        assert!(call.waited & all_but_window == 0 && call.was_nothing());
    }

    #[test]
    fn signals_that_were_blocked_before_the_first_sleep_are_admitted_by_it() {
        let before = signals::mask();
        let mut call = CallSignals::that(core::ptr::null(), false);
        call.block();
        assert_ne!(signals::mask(), before);
        assert!(!call.admit().is_null());
        assert_eq!(call.before, before);
        drop(call);
        assert_eq!(signals::mask(), before);
    }

    #[test]
    fn signals_that_are_kept_are_not_blocked() {
        let before = signals::mask();
        let mut call = CallSignals::that(core::ptr::null(), true);
        call.block();
        assert!(call.admit().is_null());
        assert_eq!(signals::mask(), before);
    }

    #[test]
    fn the_program_s_own_mask_is_used_as_it_is() {
        let (own, before) = (0u64, signals::mask());
        let given = (&raw const own).cast();
        let mut call = CallSignals::new(given);
        assert!(core::ptr::eq(call.admit(), given) && core::ptr::eq(call.admit(), given));
        assert_ne!(signals::mask(), before);
        drop(call);
        assert_eq!(signals::mask(), before);
    }
}
