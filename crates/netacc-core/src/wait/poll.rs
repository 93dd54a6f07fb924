//! poll(2) and ppoll(2) for accelerated connections together with all other descriptors.
//!
//! # Safety
//! The application's array is read and written within its stated length.
#![allow(unsafe_code)]

use crate::fd::{later, table};
use crate::operator::requests;
use crate::outcome::Outcome;
use crate::process_mode;
use crate::switch::{queued_connects, standstill};
use crate::wait::bell::Bell;
use crate::wait::call_signals::CallSignals;
use crate::wait::idle_windows;
use crate::wait::poll_entries::{Fds, Look};
use crate::wait::poll_objects::is_looked_at;
use crate::wait::sleep;
use core::ffi::c_void;
use libc::{POLLNVAL, pollfd};
use netacc_stats::{Counter, page};
use netacc_sys::errno::{Answer, Fail};
use netacc_sys::time::Deadline;
use netacc_sys::{user, visits};
use netacc_transport::WaitSet;
use netacc_transport::rdma::engine::progress;
use rustix::process::{Resource, getrlimit};

/// Number of entries that are accepted without a check of RLIMIT_NOFILE.
const FEW: usize = 16;

/// Size of the kernel's signal set in bytes.
const SIGSET: usize = 8;

/// Size of an entry in bytes.
const ENTRY: usize = size_of::<pollfd>();

/// Whether the array names a number that is in the table.
///
/// # Safety
/// `p` points to `n` valid entries, or is null.
#[inline]
pub unsafe fn concerns(p: *const pollfd, n: usize) -> bool {
    // SAFETY: the caller guarantees `n` valid entries at `p`, and they can be read.
    let numbers = (0..n).map(|i| unsafe { (*p.add(i)).fd });
    // An array that may be unreadable is examined on the slow path.
    let there = || user::known(p, n.wrapping_mul(ENTRY), user::Access::Read);
    later::has_later() || (table::in_use() && n > 0 && (!there() || table::knows_any(numbers)))
}

/// poll(2), ppoll(2): `sigmask` is the kernel's or null. The clock is not read for a call without our descriptors; a
/// deadline of `None` is an invalid time-out, which the kernel reports.
///
/// # Safety
/// `p` points to `n` valid entries.
pub unsafe fn poll(
    p: *mut pollfd,
    n: usize,
    deadline: impl FnOnce() -> Option<Deadline>,
    sigmask: *const c_void,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { poll_with(p, n, deadline, sigmask, POLLNVAL, Part::Whole) }
}

/// Which part of a call of the program's a poll is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// All of it: without a descriptor of ours libc makes it.
    Whole,
    /// The rest of one that has waited already, which ends here whatever descriptors are left.
    Rest,
}

/// As [`poll`], where `closed` is what an entry has whose number another thread has closed during the call.
///
/// # Safety
/// `p` points to `n` valid entries.
pub(super) unsafe fn poll_with(
    p: *mut pollfd,
    n: usize,
    deadline: impl FnOnce() -> Option<Deadline>,
    sigmask: *const c_void,
    closed: i16,
    part: Part,
) -> Outcome {
    later::close_later();
    // The kernel reports memory that cannot be accessed.
    let there = user::writable(p, n.saturating_mul(ENTRY)) && (sigmask.is_null() || user::readable(sigmask, SIGSET));
    if n == 0 || !there {
        return Outcome::Pass;
    }
    // SAFETY: the caller guarantees `n` valid entries, and they can be written.
    let mut fds = unsafe { Fds::new(p, n) };
    let mut any = part == Part::Rest;
    fds.each(|_, p| any = any || is_ours(p.fd));
    // The kernel refuses more entries than RLIMIT_NOFILE, whatever they are.
    let allowed = |n: usize| getrlimit(Resource::Nofile).current.is_none_or(|most| n as u64 <= most);
    if !any || (n > FEW && !allowed(n)) {
        return Outcome::Pass;
    }
    let Some(deadline) = deadline() else { return Outcome::Pass };
    requests::check();
    queued_connects::check();
    standstill::check();
    idle_windows::look_in_passing();
    loop {
        match run(&mut fds, deadline, sigmask) {
            Ok(n) if n > 0 => match fds.after_closes(n, closed) {
                // What it was for is closed, and the file that has the number has nothing yet.
                0 if deadline != Deadline::Now && !deadline.passed() => {}
                n => return Outcome::Done(n as isize),
            },
            done => return Outcome::from(done.map(|n| fds.after_closes(n, closed))).ending(deadline),
        }
    }
}

/// What a look at the entries means for the call.
enum Seen {
    /// The number of entries that have events: the call returns it. It is 0 only in a call that does not wait.
    Events(usize),
    /// An entry is not what it was when it was looked at.
    Changed,
    /// The call waits.
    Nothing,
}

/// Asks the kernel about the entries that need that, after the look that has `found` these.
#[inline]
fn seen(fds: &Fds, found: Look, deadline: Deadline) -> Answer<Seen> {
    let (ready, listens, unsettled) = (found.ready > 0, !found.listeners.is_empty(), found.unsettled);
    if !(ready || listens || unsettled || deadline == Deadline::Now) {
        return Ok(Seen::Nothing);
    }
    Ok(match if found.foreign || listens { fds.ask(found)? } else { found.ready } {
        _ if unsettled && fds.settle() => Seen::Changed,
        // The entry that was ready has changed its path, or another thread has taken the connect.
        0 if ready && deadline != Deadline::Now => Seen::Changed,
        0 if deadline != Deadline::Now => Seen::Nothing,
        n => Seen::Events(n),
    })
}

/// Registers with the entries and sleeps until one of them may have an event, unless one has it already. Returns how many
/// descriptors of `set` have events.
#[inline]
fn sleep_once(
    fds: &Fds,
    set: &mut WaitSet,
    bell: Option<&Bell>,
    deadline: Deadline,
    signals: &mut CallSignals,
) -> Answer<usize> {
    let until = standstill::within(queued_connects::within(deadline));
    let armed = fds.arm(set);
    bell.iter().for_each(|b| b.watch(set));
    let slept = if armed {
        let slept = set.sleep(Deadline::Now, signals.admit());
        fds.disarm(set);
        slept
    } else {
        sleep::sleep(set, progress::ProgressScope::All, until, signals, |set| fds.disarm(set))
    };
    bell.iter().for_each(|b| b.silence());
    slept
}

/// Looks at the entries that are ours, and at the sockets of their peers if the call is not going to sleep: in its sleep a call
/// hears of the end of a peer.
fn look(fds: &Fds, deadline: Deadline) -> Look {
    let waits = deadline != Deadline::Now;
    let found = fds.look(waits);
    let sleeps = found.ready == 0 && waits;
    if found.silent && !sleeps && fds.look_for_ends() { fds.look(waits) } else { found }
}

fn run(fds: &mut Fds, deadline: Deadline, sigmask: *const c_void) -> Answer<usize> {
    let (mut spun, mut steps) = (false, 0u32);
    let mut bell = None;
    let mut signals = CallSignals::new(sigmask);
    loop {
        progress::progress();
        let found = look(fds, deadline);
        let listens = !found.listeners.is_empty();
        match seen(fds, found, deadline)? {
            Seen::Events(n) => return Ok(n),
            Seen::Changed => continue,
            Seen::Nothing => {}
        }
        if visits::is_leaving() && !fds.has_closed() {
            return Err(Fail::Anew);
        }
        if bell.is_none() && (process_mode::is_awaited() || listens) {
            bell = Some(Bell::take());
        }
        let mut set = WaitSet::new();
        set.steps = steps;
        fds.foreign(&mut set);
        if fds.hold() {
            // The set is made again with the new duplicates.
            continue;
        }
        if !spun && let Some((s, peer)) = fds.to_spin_on() {
            spun = true;
            // The other entries wait for at most the time of a spin: to look at a listener costs system calls.
            let looked = || {
                progress::progress();
                fds.has_ready_connection()
            };
            if s.spin.run(peer, deadline, &mut signals, looked) {
                continue;
            }
        }
        let slept = sleep_once(fds, &mut set, bell.as_ref(), deadline, &mut signals);
        if fds.let_go_of_replaced() {
            let n = fds.at_once()?;
            if n > 0 {
                return Ok(n);
            }
        }
        steps = match slept {
            Err(Fail::INTR) if signals.was_nothing() => continue,
            slept if slept? == 0 => steps.saturating_add(1),
            _ => 0,
        };
        fds.heal();
        let Some(n) = fds.results(&set) else { continue };
        if n > 0 {
            page().count(Counter::Wakeups);
            return Ok(n);
        }
        if deadline.passed() {
            return Ok(0);
        }
    }
}

/// Whether the kernel alone cannot determine a descriptor's readiness, or a thread that waits for it has to hear of an
/// operator.
pub fn is_ours(fd: i32) -> bool {
    is_looked_at(fd) || (process_mode::is_awaited() && table::knows(fd))
}
