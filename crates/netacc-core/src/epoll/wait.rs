//! epoll_wait(2): reports accelerated connections from the ready queue, and all other descriptors from the kernel.

use crate::epoll::call::Call;
use crate::epoll::children::absorb_children;
use crate::epoll::nested::arm_children;
use crate::epoll::queues::Queues;
use crate::epoll::ready::{arm_liveness, collect, harvest};
use crate::epoll::sift::{Polled, complete_switches, sift};
use crate::epoll::stash::unstash;
use crate::epoll::subscription::{any_bits, arm_all};
use crate::epoll::threads::{hand_off, plain};
use crate::epoll::unheard::{is_unheard, serve_polled};
use crate::epoll::{fairness, shared};
use crate::fd::{later, table};
use crate::listen::{adopt, unsettled};
use crate::object::instance::Epoll;
use crate::operator::requests;
use crate::outcome::Outcome;
use crate::switch::{queued_connects, standstill};
use crate::wait::call_signals::CallSignals;
use crate::wait::idle_windows;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use netacc_stats::{Counter, page};
use netacc_sys::errno::{Answer, Errno, Fail};
use netacc_sys::time::Deadline;
use netacc_sys::{cancel, cpu, delivery, raw, time, user, visits};
use netacc_transport::WaitSet;
use netacc_transport::rdma::engine::progress;
use netacc_transport::rdma::engine::progress::ArmOutcome;
use netacc_transport::wait::longer;

/// Time (ticks, some 50 microseconds) after which the kernel's set is polled while accelerated connections keep having
/// events, so that other descriptors do not starve.
const KERNEL_INTERVAL: u64 = 150_000;
/// Time (ns) after which a registration without a subscription is checked again.
const POLLED_STEP: i64 = 1_000_000;
/// Number of steps that are left out where a process has its connections alone ([`longer`]): its first one has 16 ms.
const STEPS_AHEAD: u32 = 4;
/// The longest tick of the kernel's clock (ns), by which the cheap clock may be behind.
const COARSE: u64 = 10_000_000;
/// Largest number of polls of the kernel's set in one call that does not wait.
const AT_ONCE: usize = 32;
/// Length (events) up to which an application's array never receives our own events temporarily.
const SHIELDED: usize = 64;

/// The largest array of events that the kernel takes.
const MOST_EVENTS: i32 = i32::MAX / size_of::<libc::epoll_event>() as i32;

/// Size of the kernel's signal set in bytes.
const SIGSET: usize = 8;

/// Whether a wait for `timeout` nanoseconds (negative: for ever) needs the socket layer.
#[inline]
pub fn concerns(fd: i32, timeout: i64) -> bool {
    // A call that does not sleep misses nothing that another thread adds.
    table::is_epoll(fd, |e| timeout != 0 || !e.is_plain() || unsettled::is_any()) || later::has_later()
}

/// epoll_wait(2), epoll_pwait(2), epoll_pwait2(2) for `timeout` nanoseconds, for ever if negative. `pass` is libc's
/// call, -1 with errno set when it fails.
#[inline]
pub fn wait(fd: i32, mut call: Call, timeout: i64, pass: impl FnOnce() -> i32) -> Outcome {
    later::close_later();
    let Some(r) = table::epoll(fd) else {
        return Outcome::Pass;
    };
    if !(1..=MOST_EVENTS).contains(&call.max) {
        return Outcome::Pass;
    }
    if unsettled::is_any() {
        adopt::settle();
    }
    if !r.obj.is_plain() {
        call.deadline = Deadline::after(timeout);
        return mixed(r.obj, &call);
    }
    if timeout == 0 {
        return Outcome::Pass;
    }
    // The coarse clock suffices, since the deadline is hardly ever reached. Its possible lag is added, so that no
    // thread wakes early.
    if timeout > 0 {
        call.deadline = Deadline::At(time::coarse().saturating_add(timeout as u64).saturating_add(COARSE));
    }
    plain(r, &call, pass).unwrap_or_else(|| mixed(r.obj, &call))
}

/// Waits in an instance with accelerated registrations.
#[inline(never)]
fn mixed(e: &'static Epoll, call: &Call) -> Outcome {
    if !call.sigmask.is_null() && !user::readable(call.sigmask, SIGSET) {
        return Outcome::Failed(Errno::FAULT);
    }
    page().count(Counter::EpollWaits);
    shared::claim(e);
    let done = match room(call) {
        0 => unheard(e, call),
        max => run(e, &Call { max, ..*call }).map(|n| shared::merge(e, call, n)),
    };
    hand_off(e);
    Outcome::from(done).ending(call.deadline)
}

/// Number of events that the program's array can take. The kernel leaves events for the next call that do not fit into the
/// memory that is there.
fn room(call: &Call) -> i32 {
    const EVENT: usize = size_of::<libc::epoll_event>();
    let whole = (call.max as usize).saturating_mul(EVENT);
    if user::known(call.events, whole, user::Access::Write) {
        return call.max;
    }
    (user::writable_part(call.events.cast(), whole) / EVENT) as i32
}

/// Waits for a call whose array cannot be written, which fails as soon as there is an event.
#[cold]
fn unheard(e: &'static Epoll, call: &Call) -> Answer<usize> {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let call = Call { events: &raw mut event, max: 1, ..*call };
    match run(e, &call)? {
        0 => Ok(0),
        _ => Err(Errno::FAULT.into()),
    }
}

/// Makes one round over the ready queue. Returns the number of events.
fn poll_round(e: &'static Epoll, call: &Call, from: usize) -> usize {
    absorb_children(e);
    let n = {
        let _g = e.lock.lock();
        collect(e);
        let mut at = from;
        let room = call.max as usize - from;
        let n = harvest(e, room, |events, data| {
            call.put(at, events, data);
            at += 1;
        });
        if n == room && e.ready_len.get() > 0 {
            // Another waiting thread gets the events that did not fit, as in the kernel.
            e.kick();
        }
        n
    };
    if e.switch_due.get() {
        complete_switches(e);
    }
    n
}

fn run(e: &'static Epoll, call: &Call) -> Answer<usize> {
    let max = call.max as usize;
    let (mut stashed, queueable) = unstash(e, call);
    if queueable {
        return Ok(stashed);
    }
    if e.kernel_first.get() && stashed < max {
        e.kernel_first.set(false);
        let seen = kernel(e, call, stashed, 0, false)?;
        stashed += seen.foreign;
        if seen.queueable {
            return Ok(stashed);
        }
    }
    let mut steps = 0u32;
    let mut signals = CallSignals::new(call.sigmask);
    loop {
        progress::progress();
        requests::check();
        queued_connects::check();
        standstill::check();
        let n = stashed + poll_round(e, call, stashed);
        if n > 0 {
            idle_windows::look_in_passing();
            let now = cpu::ticks();
            fairness::pass(e, now);
            // Polled in this call, the kernel would report an event again if another thread has just switched its
            // connection. So the next call begins with the kernel's set.
            if stashed == 0 && now.wrapping_sub(e.last_kernel.get()) > KERNEL_INTERVAL {
                e.last_kernel.set(now);
                e.kernel_first.set(true);
            }
            return Ok(n);
        }
        if call.deadline == Deadline::Now {
            return at_once(e, call);
        }
        if visits::is_leaving() {
            return Err(Fail::Anew);
        }
        let waiting = || {
            progress::progress();
            let _g = e.lock.lock();
            e.ready_len.get() > 0 || any_bits(e)
        };
        let alone = e.active.is_none();
        let peer = e.peer_cpu.get();
        if !alone && e.spin.run(peer, call.deadline, &mut signals, waiting) {
            continue;
        }
        if let Some(n) = sleep(e, call, steps, &mut signals)? {
            return Ok(n);
        }
        steps = steps.saturating_add(1);
        if call.deadline.passed() {
            return at_once(e, call);
        }
    }
}

/// Polls the kernel's set without waiting. If our own events fill the array before the application's are reached, it is
/// repeated a limited number of times.
fn at_once(e: &'static Epoll, call: &Call) -> Answer<usize> {
    if is_unheard(e) {
        serve_polled(e);
        let n = poll_round(e, call, 0);
        if n > 0 {
            return Ok(n);
        }
    }
    for _ in 0..AT_ONCE {
        let seen = kernel(e, call, 0, 0, true)?;
        // An array full of another process's events may hide ours.
        if seen.own == 0 && (seen.foreign > 0 || (seen.strange as i32) < call.max) {
            return Ok(seen.foreign);
        }
        let n = seen.foreign + if seen.queueable { 0 } else { poll_round(e, call, seen.foreign) };
        if n > 0 {
            return Ok(n);
        }
    }
    Ok(0)
}

/// How long a thread sleeps.
struct Span {
    /// In nanoseconds; negative: for ever.
    left: i64,
    /// Whether that is less than the program's call has left.
    bounded: bool,
}

impl Span {
    /// Ends the sleep after at most `most` nanoseconds.
    fn limit(&mut self, most: i64) {
        if !(0..=most).contains(&self.left) {
            *self = Span { left: most, bounded: true };
        }
    }

    /// Ends the sleep at the time `at` ([`time::now`]) at the latest.
    fn limit_to(&mut self, at: u64) {
        self.limit(i64::try_from(at.saturating_sub(time::now())).unwrap_or(i64::MAX));
    }
}

/// Arms what wakes a thread that sleeps in the instance. Returns whether no registration has an event yet, and how long the
/// thread may sleep: not at all if one has. `steps` is the number of such sleeps so far.
#[inline]
fn arm(e: &'static Epoll, until: Deadline, steps: u32) -> (bool, Span) {
    let unheard = is_unheard(e);
    if unheard {
        serve_polled(e);
    }
    let with_liveness = e.with_liveness.get() != 0;
    let (quiet, alone) = {
        let _g = e.lock.lock();
        let (unready, alone) = if with_liveness { arm_liveness(e) } else { (true, true) };
        (arm_all(e) && arm_children(e) && unready && e.ready_len.get() == 0, alone)
    };
    let mut span = Span { left: if quiet { until.left() } else { 0 }, bounded: false };
    if unheard {
        span.limit(POLLED_STEP);
    }
    let held = e.held_until.get();
    if held != 0 {
        span.limit_to(held);
    }
    if let Some(due) = requests::due() {
        span.limit_to(due);
    }
    if with_liveness {
        // Another sharer may take the byte that was meant for this one: see `WaitSet::shared`. A process that has its connections
        // alone sleeps in steps as well: then no wake-up that is missing keeps it for long. Its steps outlast the time between two
        // requests to a busy server.
        span.limit(longer(if alone { steps.saturating_add(STEPS_AHEAD) } else { steps }));
    }
    (quiet, span)
}

/// Sleeps on the kernel's set together with what is in `set`: the completion channels or the wakers of the listeners' queues.
fn kernel_beside(e: &'static Epoll, call: &Call, set: &mut WaitSet, token: ArmOutcome, left: i64) -> Answer<Polled> {
    let own = set.add(e.set_fd(), libc::POLLIN);
    let slept = set.sleep(Deadline::after(left), call.sigmask);
    if let ArmOutcome::Yes(token) = token {
        progress::disarm(token, set, true);
    }
    slept?;
    // Usually only the other descriptors have events.
    if set.revents(own) != 0 { kernel(e, call, 0, 0, false) } else { Ok(Polled::default()) }
}

/// Sleeps in the kernel. `None`: the caller has to check again. `steps` is the number of such sleeps so far.
fn sleep(e: &'static Epoll, call: &Call, steps: u32, signals: &mut CallSignals) -> Answer<Option<usize>> {
    let until = standstill::within(queued_connects::within(call.deadline));
    // Counted before the last check, so that a thread that queues a registration later kicks this one.
    e.sleepers.fetch_add(1, Ordering::SeqCst);
    let announced = shared::announce(e);
    let (quiet, mut span) = arm(e, until, steps);
    let mut set = WaitSet::new();
    let queues = Queues::arm(e, &mut set, span.left != 0);
    if queues.ready(e) {
        span.left = 0;
    }
    let token = if quiet && span.left != 0 { progress::arm(&mut set, e.scope()) } else { ArmOutcome::No };
    if matches!(token, ArmOutcome::Ready) {
        span.left = 0;
    }
    if quiet
        && span.left != 0
        && let Some(at) = crate::wait::sleep::before_sleep()
    {
        span.limit_to(at);
    }
    let call = &Call { sigmask: signals.admit(), ..*call };
    let ends = span.left != 0 && delivery::is_due();
    if ends {
        span.left = 0;
    }
    let beside = matches!(token, ArmOutcome::Yes(_)) || !queues.is_empty();
    let seen =
        if beside { kernel_beside(e, call, &mut set, token, span.left) } else { kernel(e, call, 0, span.left, true) };
    queues.disarm(&set);
    drop(announced);
    e.sleepers.fetch_sub(1, Ordering::SeqCst);
    let seen = match seen {
        Err(Fail::INTR) if signals.was_nothing() => return Ok(None),
        seen => seen?,
    };
    if ends && seen.own + seen.foreign == 0 {
        return Err(Fail::INTR);
    }
    e.last_kernel.set(cpu::ticks());
    if quiet && seen.own > 0 {
        page().count(Counter::Wakeups);
    }
    if seen.foreign > 0 {
        return Ok(Some(seen.foreign + if seen.queueable { 0 } else { poll_round(e, call, seen.foreign) }));
    }
    let whole = until == call.deadline && !span.bounded && !beside;
    if quiet && whole && seen.own + seen.strange == 0 && call.deadline.passed() {
        return Ok(Some(0));
    }
    if seen.strange > 0 && seen.own == 0 {
        yield_to_others(call, signals)?;
    }
    Ok(None)
}

/// Sleeps a moment, since the set has only events of another process, which only that process can end.
#[cold]
fn yield_to_others(call: &Call, signals: &mut CallSignals) -> Answer<()> {
    let left = call.deadline.left();
    let ns = if (0..POLLED_STEP).contains(&left) { left } else { POLLED_STEP };
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: ns };
    match raw::ppoll(core::ptr::null_mut(), 0, &raw mut ts, signals.admit()).map_err(Fail::Errno) {
        Err(Fail::INTR) if signals.was_nothing() => Ok(()),
        done => done.map(drop),
    }
}

/// Polls the kernel's set and stores foreign events in the application's array from index `from` on; our own are
/// handled.
fn kernel(e: &'static Epoll, call: &Call, from: usize, timeout: i64, masked: bool) -> Answer<Polled> {
    page().count(Counter::KernelPolls);
    let mask = if masked { call.sigmask } else { core::ptr::null() };
    let room = call.max - from as i32;
    // A short array is left unchanged behind the reported events, as the kernel does it. A long array is used directly,
    // since no program relies on its end.
    let mut own = [const { MaybeUninit::<libc::epoll_event>::uninit() }; SHIELDED];
    #[allow(unsafe_code)]
    let array = if room as usize <= SHIELDED {
        own.as_mut_ptr().cast()
    } else {
        // SAFETY: from < max.
        unsafe { call.events.add(from) }
    };
    let look = |mask| shared::poll_sets(e, array, room, timeout, mask);
    let n = match if timeout == 0 { look(mask).map_err(Fail::Errno) } else { cancel::asleep(mask, look) } {
        Ok(n) => n,
        // Earlier events of this call must be reported and not be lost to EINTR.
        Err(_) if from > 0 => return Ok(Polled::default()),
        Err(err) => return Err(err),
    };
    Ok(sift(e, call, array, n as i32, from))
}
