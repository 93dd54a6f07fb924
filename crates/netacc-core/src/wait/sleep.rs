//! Sleeping in the kernel, with the work that is due before and after a sleep.

use crate::fd::table;
use crate::object::reference::Ref;
use crate::object::socket::Socket;
use crate::operator::requests;
use crate::switch::queued_connects;
use crate::timeouts;
use crate::wait::call_signals::CallSignals;
use crate::wait::idle_windows;
use netacc_stats::{Counter, page};
use netacc_sys::errno::{Answer, Fail};
use netacc_sys::time::{self, Deadline};
use netacc_sys::visits;
use netacc_transport::WaitSet;
use netacc_transport::rdma::engine::progress;
use netacc_transport::rdma::engine::progress::{ArmOutcome, ProgressScope};

pub(super) const NUMBER_CHECK: u64 = time::ns(timeouts::NUMBER_CHECK);

/// Sleeps on the armed `set`, and undoes the arming by `disarm`. `scope` tells which engines carry the awaited
/// connections.
pub fn sleep(
    set: &mut WaitSet,
    scope: ProgressScope,
    deadline: Deadline,
    signals: &mut CallSignals,
    disarm: impl FnOnce(&WaitSet),
) -> Answer<usize> {
    sleep_before(set, scope, deadline, signals, disarm, true)
}

/// Sleeps as [`sleep`] does. Unless `makes_progress` is set, the caller makes the engine's progress afterwards and gets
/// the bytes that it brings.
pub(crate) fn sleep_before(
    set: &mut WaitSet,
    scope: ProgressScope,
    deadline: Deadline,
    signals: &mut CallSignals,
    disarm: impl FnOnce(&WaitSet),
    makes_progress: bool,
) -> Answer<usize> {
    let wake_pipe = requests::watch(set);
    let token = progress::arm(set, scope);
    let slept = if matches!(token, ArmOutcome::Ready) {
        set.sleep(Deadline::Now, signals.admit())
    } else {
        if let Some(at) = before_sleep() {
            set.wake_at(at);
        }
        set.sleep(deadline, signals.admit())
    };
    // Disarmed before the progress, so that its results need not wake this thread.
    disarm(set);
    if let ArmOutcome::Yes(token) = token {
        progress::disarm(token, set, makes_progress);
    }
    requests::after_sleep(set, wake_pipe);
    slept
}

/// To be called when a thread is about to sleep in an intercepted call. Returns the time ([`time::now`]) at which it is to
/// wake for work of the library's, if there will be any.
pub fn before_sleep() -> Option<u64> {
    page().count(Counter::Sleeps);
    crate::fork::ownership::idle_check();
    crate::fd::later::close_later();
    crate::fd::fd_cache::close_all();
    idle_windows::look()
}

/// What ended a wait for a kernel socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelWait {
    /// The socket is ready, as far as the number tells.
    Ready,
    /// The caller is to look again whose socket the number is.
    LookAgain,
}

/// Waits until a kernel socket has one of the poll(2) events `events`. A cancelled thread wakes here, and not in a call
/// that the kernel restarts. The wait uses a number of ours, since the program's number `fd` may get another socket, at
/// which ppoll(2) would then look. Without a number of ours the wait is short, and the caller looks again. A thread that
/// is to come out of the library makes its call anew, with `anew`.
pub(crate) fn for_kernel(
    ours: Option<i32>,
    fd: i32,
    events: i16,
    deadline: Deadline,
    anew: bool,
) -> Answer<KernelWait> {
    let mut signals = CallSignals::new(core::ptr::null());
    loop {
        if anew && visits::is_leaving() {
            return Err(Fail::Anew);
        }
        let own = ours.filter(|own| *own >= 0);
        let mut set = WaitSet::new();
        set.add(own.unwrap_or(fd), events);
        if own.is_none() {
            set.wake_at(time::now().saturating_add(NUMBER_CHECK));
        }
        let wake_pipe = requests::watch(&mut set);
        let slept = set.sleep(queued_connects::within(deadline), signals.admit());
        requests::after_sleep(&set, wake_pipe);
        match slept {
            Ok(0) if deadline.passed() => return Err(Fail::AGAIN),
            Ok(n) if n > 0 && set.revents(0) != 0 => return Ok(KernelWait::Ready),
            Ok(_) if own.is_none() => return Ok(KernelWait::LookAgain),
            // Only the pipe has reported something.
            Ok(_) => {}
            Err(Fail::INTR) => signals.interrupted(deadline)?,
            Err(e) => return Err(e),
        }
    }
}

/// To be called before a call that blocks is left to the kernel: as long as something remains of an operator's request,
/// the thread waits here for what the call waits for (`events`), since it may be the only one that goes on with that. So
/// does a call with a time-out that has begun, since the kernel would begin it anew.
pub(crate) fn before_kernels_call(r: Ref<Socket>, events: i16, deadline: Deadline) -> Answer<()> {
    while (deadline != Deadline::Never || requests::due().is_some())
        && let Some(fd) = table::reach(r)
        && for_kernel(None, fd, events, deadline, true)? == KernelWait::LookAgain
    {}
    Ok(())
}
