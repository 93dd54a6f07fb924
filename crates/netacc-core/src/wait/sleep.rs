//! Sleeping in the kernel, with all that is due before a sleep and after it.

use crate::operator::hearing;
use crate::wait::held::Held;
use core::ffi::c_void;
use netacc_stats::{Counter, page};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::time::Deadline;
use netacc_transport::WaitSet;
use netacc_transport::rdma::engine::progress;
use netacc_transport::rdma::engine::progress::{ArmOutcome, ProgressScope};

/// Sleeps on `set`, which is armed; `disarm` undoes that. `scope` says which engines carry what is waited for.
pub fn sleep(
    set: &mut WaitSet,
    scope: ProgressScope,
    deadline: Deadline,
    sigmask: *const c_void,
    disarm: impl FnOnce(&WaitSet),
) -> Result<usize> {
    sleep_before(set, scope, deadline, sigmask, disarm, true)
}

/// Sleeps as [`sleep`] does; unless `makes_progress` is set, the caller makes the engine's progress afterwards, so that
/// what comes by that is the caller's.
pub(crate) fn sleep_before(
    set: &mut WaitSet,
    scope: ProgressScope,
    deadline: Deadline,
    sigmask: *const c_void,
    disarm: impl FnOnce(&WaitSet),
    makes_progress: bool,
) -> Result<usize> {
    hearing::listen(set);
    let token = progress::arm(set, scope);
    let slept = if matches!(token, ArmOutcome::Ready) {
        set.sleep(Deadline::Now, sigmask)
    } else {
        before_sleep();
        set.sleep(deadline, sigmask)
    };
    // Before the progress: what that brings needs to wake no thread here.
    disarm(set);
    if let ArmOutcome::Yes(token) = token {
        progress::disarm(token, set, makes_progress);
    }
    hearing::heed();
    slept
}

/// To be called when a thread is about to sleep in a call of ours.
pub fn before_sleep() {
    page().count(Counter::Sleeps);
    crate::fork::ownership::idle_check();
    crate::fd::later::close_later();
    crate::fd::fd_cache::close_all();
}

/// Waits for bytes of a kernel's socket: a thread that is cancelled wakes here, and not in a call that the kernel
/// begins anew. It waits by a number of ours, since the program's may become another socket's, and ppoll(2) would look
/// there.
pub(crate) fn for_kernel(ours: &Held, deadline: Deadline) -> Result<()> {
    loop {
        if ours.fd() < 0 {
            return Ok(());
        }
        let mut set = WaitSet::new();
        set.add(ours.fd(), libc::POLLIN);
        let bell = hearing::listen(&mut set);
        let slept = set.sleep(deadline, core::ptr::null());
        hearing::heed();
        match slept {
            Ok(0) if deadline.passed() => return Err(Errno::AGAIN),
            Ok(0) => {}
            Ok(_) if set.only_reported(bell) => {}
            Ok(_) => return Ok(()),
            Err(Errno::INTR) if restarts(deadline) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Whether an interrupted blocking call goes on (signal(7)): with a time-out set it never does; else the
/// kernel restarts it if the handler was installed with SA_RESTART. We cannot know which handler ran, so we go on only
/// when every handler of the process says so.
pub fn restarts(deadline: Deadline) -> bool {
    deadline == Deadline::Never && netacc_sys::signals::all_restart()
}
