//! Waiting for a connection: a thread spins briefly if that has paid lately, and then sleeps in the kernel.

use crate::fd::table;
use crate::fork::ownership;
use crate::object::reference::Ref;
use crate::object::socket::Socket;
use crate::switch::{queued_connects, standstill};
use crate::wait::call_signals::CallSignals;
use crate::wait::idle_windows;
use crate::wait::sleep::sleep_before;
use netacc_stats::{Counter, page};
use netacc_sys::errno::{Answer, Fail};
use netacc_sys::time::Deadline;
use netacc_transport::rdma::engine::progress::{self, ProgressScope};
use netacc_transport::shm::{ShmEndpoint, enough, parts};
use netacc_transport::{Endpoint, Interest, Readiness, WaitSet};

/// The longest step, of some 30 ms, of a sleep that nothing ends before its time ([`netacc_transport::wait::longer`]).
const LONGEST_STEP: u32 = 5;

/// Waits until `sock` is ready for `interest`. `EAGAIN` when the deadline passes, `EINTR` as the kernel
/// would. The caller holds a pin and no lock.
///
/// ppoll(2) looks its numbers up again when it is interrupted, and reports a file that another thread has put under a
/// number meanwhile (dup2) instead of EINTR. So a wake-up for such a number alone counts as a signal.
pub fn ready(sock: Ref<Socket>, interest: Interest, deadline: Deadline) -> Answer<()> {
    until(sock, interest, 0, deadline)
}

/// Waits until `sock` is ready for `interest`, where a reader needs `wanted` bytes (0: as SO_RCVLOWAT says), the end of the
/// stream, or as many as come before it takes some. Errors are those of [`ready`].
pub fn until(sock: Ref<Socket>, interest: Interest, wanted: usize, deadline: Deadline) -> Answer<()> {
    until_done(sock, interest, wanted, deadline, |ep| {
        progress::progress_for(ep);
        false
    })
}

/// Whether a reader that wants so many bytes has to wait no longer, where the connection is ready for `r`.
fn can_read(ep: &ShmEndpoint, r: Readiness, wanted: usize) -> bool {
    const ENDED: u32 = Readiness::RDHUP | Readiness::HUP | Readiness::ERR;
    if wanted == 0 {
        return r.readable();
    }
    r.0 & ENDED != 0 || parts::unread(ep) >= wanted || parts::end_after_ring(ep) || enough::is_writer_waiting(ep)
}

/// Waits as [`until`] does for a connection to another host, and calls `progress` for the engine's progress, which
/// returns whether that ends the wait.
pub fn until_done(
    sock: Ref<Socket>,
    interest: Interest,
    wanted: usize,
    deadline: Deadline,
    mut progress: impl FnMut(&'static ShmEndpoint) -> bool,
) -> Answer<()> {
    let s = sock.obj;
    let Some(ep) = s.endpoint() else { return Ok(()) };
    let remote = ep.side.is_remote();
    let mut is_ready = || {
        if remote && progress(ep) {
            return true;
        }
        let r = ep.readiness();
        (interest.read && can_read(ep, r, wanted)) || (interest.write && r.writable())
    };
    let mut signals = CallSignals::new(core::ptr::null());
    // A connect that no server has accepted waits for a queue pair, for which spinning does not pay.
    let spins = !(remote && ep.side.is_queued());
    if if spins { s.spin.run(ep.peer_cpu(), deadline, &mut signals, &mut is_ready) } else { is_ready() } {
        idle_windows::look_in_passing();
        return Ok(());
    }
    let replaced = || table::is_replaced(sock, s.first_fd()) && table::number_of(sock, -1).is_none();
    if deadline != Deadline::Now && replaced() {
        // Another thread has replaced the number's file while this one was spinning, and may have sent a signal after
        // that. The program repeats the call on the new file.
        return Err(Fail::INTR);
    }
    let mut steps = 0u32;
    loop {
        ownership::settle(s);
        let numbers = [ep.liveness.fd(), ep.old_subflow.fd()];
        let mut set = WaitSet::new();
        let slept = sleep_once(s, ep, (interest, wanted, steps), deadline, &mut set, &mut signals, &mut is_ready);
        steps = if slept == Ok(0) { steps.saturating_add(1) } else { 0 };
        let other_file = |fd: &i32| set.only_reported(*fd) && table::is_replaced(sock, *fd);
        // Readiness is reported whatever ended the sleep.
        if is_ready() {
            page().count(Counter::Wakeups);
            return Ok(());
        }
        match slept {
            Ok(0) if deadline.passed() => return Err(Fail::AGAIN),
            // The caller looks the connection up again and finds its new path.
            Ok(_) if !is_here(s, ep) => return signals.leave(deadline),
            Ok(_) if ep.must_switch() => {
                crate::switch::redispatch::complete_switch(sock);
                return signals.leave(deadline);
            }
            Ok(_) if deadline.passed() => return Err(Fail::AGAIN),
            // A thread that replaced the number wakes this one first, and a signal may have come while it was awake.
            Ok(_) if replaced() || numbers.iter().any(other_file) => return Err(Fail::INTR),
            Ok(_) => {}
            Err(Fail::INTR) => signals.interrupted(deadline)?,
            Err(e) => return Err(e),
        }
    }
}

/// Whether the connection still is at the endpoint.
fn is_here(s: &Socket, ep: &ShmEndpoint) -> bool {
    s.ring().is_some_and(|e| core::ptr::eq(e, ep))
}

/// Sleeps until the endpoint may be ready, or until the deadline or an earlier time at which something else is due. Returns
/// how many descriptors of `set` have reported something; 1 where there was no need to sleep.
fn sleep_once(
    s: &'static Socket,
    ep: &'static ShmEndpoint,
    (interest, wanted, steps): (Interest, usize, u32),
    deadline: Deadline,
    set: &mut WaitSet,
    signals: &mut CallSignals,
    is_ready: &mut impl FnMut() -> bool,
) -> Answer<usize> {
    let until = standstill::within(queued_connects::within(deadline));
    set.steps = steps;
    if wanted > 1 && parts::has_several(ep) {
        // What comes before or after the ring wakes nobody who waits for more than is there.
        set.shared = true;
        set.steps = steps.min(LONGEST_STEP);
    }
    // The path is checked after the registration: a thread that switches the connection first changes the path and then
    // wakes the registered waiters.
    let armed_in_vain = ep.arm(interest, set);
    // The endpoint does not know how many bytes are wanted, which may be fewer than SO_RCVLOWAT says.
    let is_over = if wanted > 0 { is_ready() || ep.must_switch() || !ep.side.is_live() } else { armed_in_vain };
    if is_over || !is_here(s, ep) {
        ep.disarm(interest, set);
        return Ok(1);
    }
    let scope = ProgressScope::of(ep);
    sleep_before(set, scope, until, signals, |set| ep.disarm(interest, set), !ep.side.is_remote())
}
