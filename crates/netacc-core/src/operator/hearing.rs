//! How a process hears of an operator (`netacc_ctl`): by a byte of its statistics page, at which every call of ours looks, and
//! by a pipe on which threads that sleep in calls of ours wait too.
//!
//! What is done then is [`crate::operator::work`]'s, which is above all that it needs; this module is below whatever sleeps. See
//! `docs/decisions/0020-a-byte-and-a-pipe-for-the-operator.md`.

use crate::process_fallback;
use core::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering};
use netacc_stats::{ControlState, Reason, page};
use netacc_sys::{lock, raw, reserved_fds, time};
use netacc_transport::WaitSet;
use rustix::pipe::{PipeFlags, pipe_with};

/// The request that needs no more work; [`BUSY`] while a request does.
static SEEN: AtomicU16 = AtomicU16::new(0);

/// No request has this number: each call looks whether work is due.
const BUSY: u16 = 0x100;

/// When ([`time::now`]) the work that is left is due.
static DUE: AtomicU64 = AtomicU64::new(0);

/// Not 0 while a thread does the work.
static WORKING: AtomicU32 = AtomicU32::new(0);

/// How long (ns) a thread that goes to sleep while another one does the work sleeps before it looks again.
const BESIDE_WORK: u64 = 5_000_000;

/// What does the work, once the process has its runtime.
static CARRY_OUT: AtomicPtr<fn()> = AtomicPtr::new(core::ptr::null_mut());

/// The ends of the pipe as [`ends`] packs them; 0: there is none.
static BELL: AtomicU64 = AtomicU64::new(0);

/// Largest number of times that one call of the program looks for a further request. A process that stores one after the
/// other keeps no thread here.
const AT_ONCE: usize = 4;

/// Packs the reading and the writing end of the pipe in a word.
const fn ends(reading: i32, writing: i32) -> u64 {
    (reading as u64 + 1) << 32 | (writing as u64 + 1)
}

/// The ends in a word of [`ends`]; -1: there is none.
const fn of_ends(word: u64) -> (i32, i32) {
    ((word >> 32) as i32 - 1, word as u32 as i32 - 1)
}

/// Not 0: an operator has switched the process off.
static OFF: AtomicU32 = AtomicU32::new(0);

/// Whether an operator has switched the process off. Its threads then sleep in calls of ours even where the kernel alone
/// could serve them, so that they hear of it when the process is switched on.
pub(crate) fn is_off() -> bool {
    OFF.load(Ordering::Relaxed) != 0
}

/// Nothing more is accelerated.
pub(crate) fn set_off() {
    OFF.store(1, Ordering::Relaxed);
    if process_fallback::reason().is_none() {
        process_fallback::set(Reason::Operator);
    }
}

/// The process is no longer switched off.
pub(crate) fn set_on() {
    OFF.store(0, Ordering::Relaxed);
}

/// To be called once the process has its page. `off`: an operator has switched it off before.
pub(crate) fn begin(off: bool) {
    if off {
        set_off();
        page().control().set_state(ControlState::Off, 0);
    }
}

/// Looks whether an operator asks for something, and does it: to be called without locks.
#[inline]
pub fn heed() {
    // Relaxed: a thread that sees an old word looks at the next call.
    if u16::from(page().control().request()) != SEEN.load(Ordering::Relaxed) {
        carry_out();
    }
}

#[cold]
#[inline(never)]
fn carry_out() {
    #[allow(unsafe_code)]
    // SAFETY: null or a function in static memory. Acquire pairs with `on_request`.
    let Some(work) = (unsafe { CARRY_OUT.load(Ordering::Acquire).as_ref() }) else { return };
    let idle = SEEN.load(Ordering::Relaxed) == BUSY && time::now() < DUE.load(Ordering::Relaxed);
    // A handler that interrupted a holder of locks leaves the work to the next call.
    if lock::interrupted() || (idle && u16::from(page().control().request()) == latest()) {
        return;
    }
    // Acquire and Release: the words that only the working thread uses pass from one to the next.
    if WORKING.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    for _ in 0..AT_ONCE {
        silence();
        work();
        WORKING.store(0, Ordering::Release);
        // A thread that was woken meanwhile found this one at work.
        if u16::from(page().control().request_now()) == latest()
            || WORKING.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return;
        }
    }
    WORKING.store(0, Ordering::Release);
    left_until(0);
}

/// Says what does the work. It is called by one thread at a time, without locks.
pub fn on_request(work: &'static fn()) {
    CARRY_OUT.store(core::ptr::from_ref(work).cast_mut(), Ordering::Release);
}

/// The request that was begun last.
static LATEST: AtomicU16 = AtomicU16::new(0);

fn latest() -> u16 {
    LATEST.load(Ordering::Relaxed)
}

/// The request that is to be begun now, if there is one. For the working thread.
pub(crate) fn take() -> Option<u8> {
    let request = page().control().request_now();
    // Relaxed: only the working thread writes it.
    (LATEST.swap(request.into(), Ordering::Relaxed) != u16::from(request)).then_some(request)
}

/// The request is carried out. For the working thread.
pub(crate) fn done() {
    SEEN.store(latest(), Ordering::Relaxed);
    page().control().set_done(latest() as u8);
}

/// Some of the work is left, and is due at this time ([`time::now`]). For the working thread.
pub(crate) fn left_until(due: u64) {
    DUE.store(due, Ordering::Relaxed);
    SEEN.store(BUSY, Ordering::Relaxed);
}

/// A connection has just begun on a faster path. Where an operator has switched the process off meanwhile, the connection goes to
/// the kernel like those that were there.
pub(crate) fn recheck() {
    // Relaxed: the working thread sets this first and looks for connections afterwards, each under its locks.
    if process_fallback::reason() == Some(Reason::Operator) {
        left_until(0);
    }
}

/// When ([`time::now`]) a thread that sleeps has to wake, since work is due.
pub(crate) fn due() -> Option<u64> {
    (SEEN.load(Ordering::Relaxed) == BUSY && !lock::interrupted()).then(|| match WORKING.load(Ordering::Relaxed) {
        0 => DUE.load(Ordering::Relaxed),
        _ => time::now().saturating_add(BESIDE_WORK),
    })
}

/// Adds the pipe to the set on which a thread is about to sleep. Returns its index there for [`after_sleep`].
pub(crate) fn listen(set: &mut WaitSet) -> Option<usize> {
    if let Some(due) = due() {
        set.wake_at(due);
    }
    // The thread that works has emptied the pipe; what is in it by now is for that thread too.
    let bell = if WORKING.load(Ordering::Relaxed) == 0 && !lock::interrupted() { bell() } else { -1 };
    (bell >= 0).then(|| set.add(bell, libc::POLLIN))
}

/// To be called after a sleep, without locks. A byte is taken out of the pipe even if no request is due: a busy thread may
/// have seen the request before the controller wrote the byte. If the byte stayed, no thread could sleep any more.
pub(crate) fn after_sleep(set: &WaitSet, at: Option<usize>) {
    if at.is_some_and(|at| set.revents(at) != 0) {
        silence();
    }
    heed();
}

/// The reading end of the pipe by which the process is woken, or -1.
#[inline]
pub(crate) fn bell() -> i32 {
    // Acquire pairs with `make_bell`.
    match BELL.load(Ordering::Acquire) {
        0 => make_bell(),
        word => of_ends(word).0,
    }
}

#[cold]
fn make_bell() -> i32 {
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
    // Each thread that finds no pipe makes one, and the first one stays: a thread that did not wait for it, and had none,
    // would hear of nothing for as long as it sleeps.
    if let Err(word) = BELL.compare_exchange(0, ends(r, w), Ordering::AcqRel, Ordering::Acquire) {
        reserved_fds::close(r);
        reserved_fds::close(w);
        return of_ends(word).0;
    }
    page().control().set_bell(Some(w));
    // A request that came before the pipe rings nobody. The caller looks before it sleeps only if it looks now.
    if u16::from(page().control().request_now()) != SEEN.load(Ordering::Relaxed) {
        let _ = raw::write(w, b"!".as_ptr(), 1);
    }
    r
}

/// Whether a system call of ours may end the process. It uses the kernel alone then.
fn is_confined() -> bool {
    process_fallback::reason() == Some(Reason::Confined)
}

/// Takes what rang the pipe out of it: a controller asks before it rings, so what was asked for is seen afterwards.
pub(crate) fn silence() {
    let fd = if is_confined() { -1 } else { of_ends(BELL.load(Ordering::Acquire)).0 };
    let mut buf = [0u8; 64];
    // Bounded: a process that writes on and on keeps no thread here.
    for _ in 0..16 {
        if fd < 0 || raw::read(fd, buf.as_mut_ptr(), buf.len(), None) != Ok(buf.len()) {
            return;
        }
    }
}

/// In the child of a fork, whose page is its own: the pipe is the parent's, and so is a request that the parent carries out.
/// True if the parent had something left to do, which the child has to do for itself.
pub(crate) fn after_fork() -> bool {
    let unfinished = SEEN.swap(0, Ordering::Relaxed) == BUSY;
    LATEST.store(0, Ordering::Relaxed);
    WORKING.store(0, Ordering::Relaxed);
    let (reading, writing) = of_ends(BELL.swap(0, Ordering::Relaxed));
    [reading, writing].into_iter().filter(|fd| *fd >= 0).for_each(reserved_fds::close);
    unfinished
}
