//! How a process receives an operator's request (`netacc_ctl`): every intercepted call that moves bytes or waits
//! compares a word of the statistics page, and threads that sleep in such calls also wait on a pipe.
//!
//! [`crate::operator::work`] carries the request out. It uses all of the socket layer, while this module is below every
//! file that sleeps. See `docs/decisions/0020-a-byte-and-a-pipe-for-the-operator.md`.

use crate::process_mode;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use netacc_stats::{ControlRequest, ControlState, Reason, page};
use netacc_sys::{AtomicRef, lock, raw, reserved_fds, time};
use netacc_transport::WaitSet;
use rustix::pipe::{PipeFlags, pipe_with};

/// The request that has been carried out; [`BUSY`] while one is being carried out.
static SEEN: AtomicU32 = AtomicU32::new(0);

/// A value that no request has, so that each call checks whether work is due.
const BUSY: u32 = 1 << 16;

/// Time ([`time::now`]) at which the remaining work is due.
static DUE: AtomicU64 = AtomicU64::new(0);

/// Nonzero while a thread does the work.
static WORKING: AtomicU32 = AtomicU32::new(0);

/// Time (ns) after which a thread that goes to sleep while another one does the work checks again.
const BESIDE_WORK: u64 = 5_000_000;

/// The function that does the work, set when the library starts.
static CARRY_OUT: AtomicRef<fn()> = AtomicRef::none();

/// The ends of the pipe as [`ends`] packs them; 0: it was not made yet.
static WAKE_PIPE: AtomicU64 = AtomicU64::new(0);

/// Largest number of times that one call of the program looks for a further request. A process that stores one after
/// the other keeps no thread here.
const AT_ONCE: usize = 4;

/// Packs the reading and the writing end of the pipe in a word.
const fn ends(reading: i32, writing: i32) -> u64 {
    (reading as u64 + 1) << 32 | (writing as u64 + 1)
}

/// The ends in a word of [`ends`]; -1: there is none.
const fn of_ends(word: u64) -> (i32, i32) {
    ((word >> 32) as i32 - 1, word as u32 as i32 - 1)
}

/// Nonzero in the child of a fork whose parent was loading its rules anew at that moment: the child does so for itself.
static RELOAD: AtomicU32 = AtomicU32::new(0);

/// Called once the process has its page. `off`: an operator switched it off before that.
pub(crate) fn begin(off: bool) {
    if off {
        process_mode::switch_off();
        page().control().set_state(ControlState::Off, 0);
    }
}

/// Carries out an operator's request if there is one. The caller holds no lock.
#[inline]
pub fn check() {
    // Relaxed: a thread that sees an old value checks again in its next call.
    if u32::from(page().control().request()) != SEEN.load(Ordering::Relaxed) {
        carry_out();
    }
}

#[cold]
#[inline(never)]
fn carry_out() {
    let Some(work) = CARRY_OUT.load() else { return };
    let idle = SEEN.load(Ordering::Relaxed) == BUSY && time::now() < DUE.load(Ordering::Relaxed);
    // A signal handler that interrupted a lock holder leaves the work to a later call.
    if lock::interrupted() || (idle && page().control().request() == latest()) {
        return;
    }
    // Acquire and Release: the words that only the working thread uses pass from one such thread to the next.
    if WORKING.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    for _ in 0..AT_ONCE {
        drain_wake_pipe();
        work();
        WORKING.store(0, Ordering::Release);
        // A thread that was woken by a further request meanwhile found this one at work, and did nothing.
        if page().control().request_now() == latest()
            || WORKING.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return;
        }
    }
    WORKING.store(0, Ordering::Release);
    left_until(0);
}

/// Sets the function that does the work. One thread at a time calls it, and holds no lock.
pub fn on_request(work: &'static fn()) {
    CARRY_OUT.store(Some(work));
}

/// The most recent request whose work was begun.
static LATEST: AtomicU16 = AtomicU16::new(0);

fn latest() -> u16 {
    LATEST.load(Ordering::Relaxed)
}

/// The requests whose work has not been begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The process is to be off or on.
    pub(crate) switch: Option<u8>,
    /// The rules are to be loaded anew; the count of the request.
    pub(crate) reload: Option<u8>,
}

impl Taken {
    /// What `now` asks for beyond `before`.
    fn between(before: ControlRequest, now: ControlRequest) -> Self {
        Taken {
            switch: (now.switch != before.switch).then_some(now.switch),
            reload: (now.reload != before.reload).then_some(now.reload),
        }
    }
}

/// The requests whose work has not been begun. Called by the working thread.
pub(crate) fn take() -> Taken {
    let request = page().control().request_now();
    // Relaxed: only the working thread writes these.
    let before = LATEST.swap(request, Ordering::Relaxed);
    let [before, now] = [before, request].map(ControlRequest::of_word);
    let taken = Taken::between(before, now);
    let again = RELOAD.swap(0, Ordering::Relaxed) != 0;
    Taken { reload: taken.reload.or(again.then_some(now.reload)), ..taken }
}

/// Notes that the requests have been carried out as far as this copy of the library can, and are not to be answered.
pub(crate) fn rest() {
    SEEN.store(latest().into(), Ordering::Relaxed);
}

/// Notes that the requests have been carried out. Called by the working thread.
pub(crate) fn done() {
    rest();
    page().control().set_done(ControlRequest::of_word(latest()));
}

/// Notes that work remains, which is due at this time ([`time::now`]), and passes it on: the calling thread may not
/// call us again for long, or sleep in the kernel's call on a connection that is the kernel's by now. A thread that
/// sleeps in a call of ours takes the byte, and sleeps no longer than until the work is due.
pub(crate) fn left_until(due: u64) {
    DUE.store(due, Ordering::Relaxed);
    SEEN.store(BUSY, Ordering::Relaxed);
    wake();
}

/// Wakes a thread that sleeps in a call of ours.
pub(crate) fn wake() {
    let (_, writing) = if is_confined() { (-1, -1) } else { of_ends(WAKE_PIPE.load(Ordering::Acquire)) };
    if writing >= 0 {
        let _ = raw::write(writing, b"!".as_ptr(), 1);
    }
}

/// The read end of the pipe by which the process is woken; -1 if there is none yet.
pub(crate) fn wake_pipe_if_any() -> i32 {
    of_ends(WAKE_PIPE.load(Ordering::Acquire)).0
}

/// Called when a connection has just begun on a faster path. If an operator has switched the process off meanwhile, the
/// connection switches to the kernel like all others.
pub(crate) fn check_again() {
    // Relaxed: the working thread sets the reason first and then visits the connections, each under its locks.
    if process_mode::reason() == Some(Reason::Operator) {
        left_until(0);
    }
}

/// Time ([`time::now`]) at which a sleeping thread has to wake because work is due.
pub(crate) fn due() -> Option<u64> {
    if lock::interrupted() {
        return None;
    }
    due_beside(is_at_work())
}

/// As [`due`], where the caller has looked whether another thread does the work.
fn due_beside(works: bool) -> Option<u64> {
    match works {
        true => Some(time::now().saturating_add(BESIDE_WORK)),
        false => (SEEN.load(Ordering::Relaxed) == BUSY).then(|| DUE.load(Ordering::Relaxed)),
    }
}

/// Whether a thread carries out a request.
fn is_at_work() -> bool {
    // Relaxed: a thread that sees an old value has the pipe in its set, or wakes in time.
    WORKING.load(Ordering::Relaxed) != 0
}

/// Adds the pipe to the set on which a thread is about to sleep. Returns its index there for [`after_sleep`].
pub(crate) fn watch(set: &mut WaitSet) -> Option<usize> {
    if lock::interrupted() {
        return None;
    }
    // One look, so that the thread has the pipe in its set or wakes soon. The working thread has emptied the pipe, and
    // handles bytes that have arrived since; when it ends, it may leave work that nobody else has heard of.
    let works = is_at_work();
    if let Some(due) = due_beside(works) {
        set.wake_at(due);
    }
    let pipe = if works { -1 } else { wake_pipe() };
    (pipe >= 0).then(|| set.add(pipe, libc::POLLIN))
}

/// To be called after a sleep, without locks. A byte is taken out of the pipe even if no request is due: a busy thread
/// may have seen the request before the controller wrote the byte. If the byte stayed, no thread could sleep any more.
pub(crate) fn after_sleep(set: &WaitSet, at: Option<usize>) {
    if at.is_some_and(|at| set.revents(at) != 0) {
        drain_wake_pipe();
    }
    check();
}

/// The read end of the pipe by which the process is woken, or -1.
#[inline]
pub(crate) fn wake_pipe() -> i32 {
    // Acquire pairs with `make_wake_pipe`.
    match WAKE_PIPE.load(Ordering::Acquire) {
        0 => make_wake_pipe(),
        word => of_ends(word).0,
    }
}

#[cold]
fn make_wake_pipe() -> i32 {
    // Without a page no controller finds the process.
    if page().control().state().is_none() || is_confined() {
        return -1;
    }
    let Ok((r, w)) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK) else { return -1 };
    let Ok(r) = reserved_fds::park(r) else {
        reserved_fds::drop_raw(w);
        return -1;
    };
    let Ok(w) = reserved_fds::park(w) else {
        reserved_fds::close(r);
        return -1;
    };
    // Each thread that finds no pipe makes one, and the first one stays: a thread that did not wait for it, and had
    // none, would hear of nothing for as long as it sleeps.
    if let Err(word) = WAKE_PIPE.compare_exchange(0, ends(r, w), Ordering::AcqRel, Ordering::Acquire) {
        reserved_fds::close(r);
        reserved_fds::close(w);
        return of_ends(word).0;
    }
    page().control().set_wake_pipe(Some(w));
    // A request that came before the pipe woke no thread, and the caller does not check again before it sleeps.
    if u32::from(page().control().request_now()) != SEEN.load(Ordering::Relaxed) {
        let _ = raw::write(w, b"!".as_ptr(), 1);
    }
    r
}

/// Whether a system call of ours may end the process. It uses the kernel alone then.
fn is_confined() -> bool {
    process_mode::reason() == Some(Reason::Confined)
}

/// Empties the pipe. A controller stores its request before it writes to the pipe, so the request is visible
/// afterwards.
pub(crate) fn drain_wake_pipe() {
    let fd = if is_confined() { -1 } else { of_ends(WAKE_PIPE.load(Ordering::Acquire)).0 };
    let mut buf = [0u8; 64];
    // Bounded: a process that writes on and on keeps no thread here.
    for _ in 0..16 {
        if fd < 0 || raw::read(fd, buf.as_mut_ptr(), buf.len(), None) != Ok(buf.len()) {
            return;
        }
    }
}

/// Called in the child of a fork whose parent was loading its rules anew at that moment: the child's first call does so
/// for the child.
pub(crate) fn reload_here() {
    RELOAD.store(1, Ordering::Relaxed);
    left_until(0);
}

/// Called in the child of a fork, which has a page of its own: the pipe and a request in progress are the parent's.
/// Returns whether the parent had work left, which the child has to do for itself.
pub(crate) fn after_fork() -> bool {
    let unfinished = SEEN.swap(0, Ordering::Relaxed) == BUSY;
    LATEST.store(0, Ordering::Relaxed);
    WORKING.store(0, Ordering::Relaxed);
    let (reading, writing) = of_ends(WAKE_PIPE.swap(0, Ordering::Relaxed));
    [reading, writing].into_iter().filter(|fd| *fd >= 0).for_each(reserved_fds::close);
    unfinished
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_requests_do_not_hide_each_other() {
        let none = ControlRequest::default();
        let off = ControlRequest { switch: 5, ..none };
        let both = ControlRequest { switch: 5, reload: 1 };
        assert_eq!(Taken::between(none, none), Taken::default());
        assert_eq!(Taken::between(none, both), Taken { switch: Some(5), reload: Some(1) });
        assert_eq!(Taken::between(off, both), Taken { switch: None, reload: Some(1) });
        assert_eq!(Taken::between(both, ControlRequest { switch: 6, ..both }), Taken { switch: Some(6), reload: None });
        assert!([none, off, both].iter().all(|request| u32::from(request.word()) != BUSY));
    }
}
