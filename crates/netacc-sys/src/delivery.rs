//! When the program's signal handlers run: never while their thread is inside the library.
//!
//! The library exports sigaction(2) and its relatives, and the kernel gets an entry of the library in place of each
//! handler of the program (`netacc-preload/src/handlers.rs`). The entry asks [`arrived`] what to do. Outside of the
//! library it jumps to the program's handler, without a frame of its own. Inside, where the thread may hold locks and
//! references, the signal with its siginfo is *kept*, and delivered when the thread leaves ([`deliver`]). So a handler
//! may leave by siglongjmp(3), fork, or make any call of ours: there is nothing that it could find half done.
//!
//! **The kernel delivers a kept signal.** The thread sends itself a signal of the same number with a mark, and the entry
//! then gives the handler the siginfo that was kept. So the mask, the stack, the context and the flags of the handler are
//! right without being imitated here.
//!
//! **Signals of one number stay in order.** While one is kept, each that the kernel delivers joins the end of the queue
//! of its number, and the handler gets the head. The mark takes the place of the one that was delivered too early.
//! Signals below 34 do not queue in the kernel, and are not queued here.
//!
//! **A call that would sleep ends instead,** by EINTR or by being made anew (SA_RESTART). [`crate::sleeping`] looks for a
//! kept signal and makes the system call in one step.
//!
//! **Some handlers run inside the library all the same:** those that the kernel got from somebody else, those that come when
//! no place is free, and all of them once a filter of system calls may forbid what delivery needs. Once one is known, the
//! calls that may sleep block signals between their sleeps ([`keeps_all`]).
//!
//! A fault of the thread itself (SIGSEGV and its like, as the kernel raises them) is never kept: its handler may have to
//! make memory accessible that the library reads for the program.
//!
//! # Safety
//! The siginfo and the context are those of the kernel's frame, which lives until the handler returns.
#![allow(unsafe_code)]

use crate::raw;
use crate::signals;
use crate::sleeping;
use crate::thread_state::{self, Count};
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence};

/// Number of signals that all threads together can have kept. Where none is free, a handler runs inside the library.
const PLACES: usize = 128;

/// Value of `si_errno`, which Linux does not use, that marks a signal by which a thread asks for a kept one.
const MARK: u32 = 0x4e41_4343;

/// Lowest signal of which the kernel queues more than one.
const FIRST_QUEUED: i32 = 34;

/// Number of 64-bit words of a siginfo.
const WORDS: usize = 16;

/// The kernel's `siginfo_t`, as words.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Info([u64; WORDS]);

impl Info {
    fn low(&self, word: usize) -> u32 {
        self.0.get(word).map_or(0, |word| *word as u32)
    }

    fn high(&self, word: usize) -> u32 {
        self.0.get(word).map_or(0, |word| (*word >> 32) as u32)
    }

    fn errno(&self) -> u32 {
        self.high(0)
    }

    fn code(&self) -> i32 {
        self.low(1).cast_signed()
    }

    /// Whether this asks for a kept signal. The kernel delivers zeros where it had no memory for the siginfo.
    fn is_mark(&self) -> bool {
        let is_empty = self.errno() == 0 && self.code() == libc::SI_USER && self.low(2) == 0 && self.high(2) == 0;
        self.errno() == MARK || is_empty || (IS_PLAIN.load(Ordering::Relaxed) && self.code() == libc::SI_TKILL)
    }

    fn marked(mut self) -> Info {
        if let Some(first) = self.0.first_mut() {
            *first = (*first & 0xffff_ffff) | (u64::from(MARK) << 32);
        }
        self
    }

    /// The same without what makes the kernel refuse it when its queue is full.
    fn without_value(signal: i32) -> Info {
        let mut words = [0; WORDS];
        if let Some(first) = words.first_mut() {
            *first = u64::from(signal.cast_unsigned());
        }
        Info(words).marked()
    }
}

/// A signal that was kept for a thread. Its fields are written by that thread alone, so all accesses but the one that
/// claims a free place are ordered by the program, and handlers that interrupt them see whole places only.
struct Kept {
    /// The thread's pointer, a multiple of 4, with a [`Phase`] in the low bits; 0: the place is free.
    owner: AtomicUsize,
    /// Grows from one kept signal to the next.
    order: AtomicU64,
    signal: AtomicU32,
    /// Whether the handler was installed with SA_RESTART.
    restarts: AtomicBool,
    info: [AtomicU64; WORDS],
}

/// How far a kept signal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
enum Phase {
    /// The kernel has not been asked for it yet.
    Due = 0,
    /// Its thread is writing or reading the place.
    Busy = 1,
    /// A mark is on its way.
    Asked = 2,
}

crate::tables! {
    static KEPT: [Kept; PLACES] = [const { Kept::free() }; PLACES];
}

/// The order of the next kept signal.
static NEXT: AtomicU64 = AtomicU64::new(0);
/// Set once a signal was kept: without it the child of a fork looks at no place.
static USED: AtomicBool = AtomicBool::new(false);
/// Set where the process may no longer send itself signals with a siginfo: a filter of system calls is about to be installed.
static STOPPED: AtomicBool = AtomicBool::new(false);
/// Set where the kernel refuses signals with a siginfo: a mark is then a signal that the thread sends to itself.
static IS_PLAIN: AtomicBool = AtomicBool::new(false);

/// Set once a handler is known that may run inside the library.
static ANY_INSIDE: AtomicBool = AtomicBool::new(false);
/// A `fn(usize) -> bool` that knows the entries; null until one is set.
static IS_ENTRY: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

impl Kept {
    const fn free() -> Kept {
        Kept {
            owner: AtomicUsize::new(0),
            order: AtomicU64::new(0),
            signal: AtomicU32::new(0),
            restarts: AtomicBool::new(false),
            info: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    fn is(&self, me: usize, phase: Phase) -> bool {
        self.owner.load(Ordering::Relaxed) == me | phase as usize
    }

    /// Whether the place holds a signal of this thread that nobody writes or reads.
    fn is_whole(&self, me: usize) -> bool {
        self.is(me, Phase::Due) || self.is(me, Phase::Asked)
    }

    fn change(&self, me: usize, from: Phase, to: Phase) -> bool {
        let (from, to) = (me | from as usize, me | to as usize);
        self.owner.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn read(&self) -> Info {
        let mut words = [0; WORDS];
        words.iter_mut().zip(&self.info).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
        Info(words)
    }

    fn order(&self) -> u64 {
        self.order.load(Ordering::Relaxed)
    }

    fn signal(&self) -> i32 {
        self.signal.load(Ordering::Relaxed).cast_signed()
    }

    fn has(&self, signal: i32) -> bool {
        self.signal() == signal
    }
}

/// The thread's pointer as an owner of places.
fn this_thread() -> usize {
    thread_state::thread_pointer() & !3
}

/// Keeps a signal of this thread. False: there is no free place.
fn keep(me: usize, signal: i32, restarts: bool, info: &Info, phase: Phase) -> bool {
    let claim = |place: &&Kept| {
        let busy = me | Phase::Busy as usize;
        place.owner.compare_exchange(0, busy, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    let Some(place) = KEPT.iter().find(claim) else { return false };
    USED.store(true, Ordering::Relaxed);
    place.signal.store(signal.cast_unsigned(), Ordering::Relaxed);
    place.restarts.store(restarts, Ordering::Relaxed);
    place.info.iter().zip(info.0).for_each(|(to, from)| to.store(from, Ordering::Relaxed));
    place.order.store(NEXT.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    place.owner.store(me | phase as usize, Ordering::Relaxed);
    true
}

/// Takes the oldest kept signal of this number, for a mark or for another signal.
///
/// There are never fewer marks on their way than signals that wait for one: a mark that takes a signal for which none was
/// sent leaves another one without.
fn take(me: usize, signal: i32, by_mark: bool) -> Option<Info> {
    loop {
        let mine = KEPT.iter().filter(|place| place.is_whole(me) && place.has(signal));
        let oldest = mine.min_by_key(|place| place.order())?;
        let was_due = oldest.change(me, Phase::Due, Phase::Busy);
        if was_due || oldest.change(me, Phase::Asked, Phase::Busy) {
            if was_due && by_mark {
                let asked = |place: &&Kept| place.has(signal) && place.change(me, Phase::Asked, Phase::Due);
                let _ = KEPT.iter().find(asked);
            }
            let info = oldest.read();
            compiler_fence(Ordering::SeqCst);
            oldest.owner.store(0, Ordering::Relaxed);
            return Some(info);
        }
    }
}

/// The oldest signal of this thread for which the kernel was not asked yet.
fn oldest_due(me: usize) -> Option<&'static Kept> {
    KEPT.iter().filter(|place| place.is(me, Phase::Due)).min_by_key(|place| place.order())
}

/// A signal that the kernel delivers to an entry of the library.
#[derive(Debug)]
pub struct Arrival {
    /// The signal's number.
    pub signal: i32,
    /// The siginfo of the kernel's frame.
    pub info: *mut Info,
    /// The context of the kernel's frame (`ucontext_t`).
    pub context: *mut c_void,
    /// The entry, which the kernel has as the handler.
    pub entry: usize,
    /// Whether the program's handler was installed with SA_RESTART.
    pub restarts: bool,
    /// Whether it was installed with SA_RESETHAND.
    pub resets: bool,
}

/// What an entry does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It jumps to the program's handler.
    Run,
    /// It returns to the interrupted code.
    Return,
}

/// Decides about a signal, in the handler's frame.
///
/// # Safety
/// `arrival` has the siginfo and the context of the frame that the kernel has made for the calling handler.
pub unsafe fn arrived(arrival: &Arrival) -> Verdict {
    // SAFETY: the caller's contract. What a process sends has no code above 0, and a fault may come where nothing is in order.
    if signals::is_fault(arrival.signal) && unsafe { (*arrival.info).code() } > 0 {
        return Verdict::Run;
    }
    let Some(line) = thread_state::entered() else { return Verdict::Run };
    if line.is_inside() {
        // SAFETY: the caller's contract.
        return unsafe { arrived_inside(line, arrival) };
    }
    if !line.has_kept() {
        // SAFETY: the caller's contract. A mark for a signal that was given to its handler before.
        let is_late = unsafe { (*arrival.info).errno() == MARK };
        return if is_late { Verdict::Return } else { Verdict::Run };
    }
    // SAFETY: as above.
    unsafe { arrived_outside(line, arrival) }
}

/// Keeps a signal that has interrupted the library.
#[cold]
unsafe fn arrived_inside(line: &'static Count, arrival: &Arrival) -> Verdict {
    let me = this_thread();
    // SAFETY: the caller's contract.
    let info = unsafe { &*arrival.info };
    // A mark that comes while a call admits signals that the program blocks is asked for once more at its end.
    let is_mark = info.errno() == MARK;
    let is_there = || KEPT.iter().any(|place| place.is_whole(me) && place.has(arrival.signal));
    if is_mark {
        KEPT.iter().filter(|place| place.has(arrival.signal)).for_each(|place| {
            place.change(me, Phase::Asked, Phase::Due);
        });
    } else {
        let merges = arrival.signal < FIRST_QUEUED && is_there();
        let may_keep = !STOPPED.load(Ordering::Relaxed);
        if !may_keep || (!merges && !keep(me, arrival.signal, arrival.restarts, info, Phase::Due)) {
            note_one_inside();
            return Verdict::Run;
        }
    }
    if arrival.resets {
        signals::arm_again(arrival.signal, arrival.entry);
    }
    // A late mark, for a signal that was given to its handler before, ends no call.
    if oldest_due(me).is_some() {
        line.set_kept(true, true);
        // SAFETY: the caller's contract.
        unsafe { sleeping::interrupt(arrival.context) };
    }
    Verdict::Return
}

/// Gives a handler that runs now the oldest signal of its number.
#[cold]
unsafe fn arrived_outside(line: &'static Count, arrival: &Arrival) -> Verdict {
    let me = this_thread();
    // SAFETY: the caller's contract.
    let info = unsafe { &mut *arrival.info };
    let came = *info;
    match take(me, arrival.signal, came.is_mark()) {
        None => {
            note(line, me);
            if came.errno() == MARK { Verdict::Return } else { Verdict::Run }
        }
        Some(first) => {
            *info = first;
            let is_behind = !came.is_mark() && keep(me, arrival.signal, arrival.restarts, &came, Phase::Asked);
            note(line, me);
            if is_behind {
                ask(arrival.signal, came);
            }
            Verdict::Run
        }
    }
}

/// Notes what is kept for this thread, which is outside.
fn note(line: &'static Count, me: usize) {
    // In this order: a handler that comes in between notes what it leaves. What is noted too much is found out later.
    line.set_kept(false, false);
    compiler_fence(Ordering::SeqCst);
    let any = KEPT.iter().any(|place| place.is_whole(me));
    line.add_kept(any, any && oldest_due(me).is_some());
}

/// Asks the kernel to deliver a kept signal to this thread.
fn ask(signal: i32, info: Info) {
    let (pid, tid) = (raw::getpid() as usize, raw::gettid() as usize);
    let send = |info: &Info| {
        let args = [pid, tid, signal as usize, core::ptr::from_ref(info) as usize, 0, 0];
        // SAFETY: a siginfo of the kernel's size.
        unsafe { raw::syscall6(libc::SYS_rt_tgsigqueueinfo, args) }
    };
    let mut done = send(&info.marked());
    if done == -(libc::EAGAIN as isize) {
        done = send(&Info::without_value(signal));
    }
    if done < 0 {
        IS_PLAIN.store(true, Ordering::Relaxed);
        raw::raise(signal);
    }
}

/// Delivers the kept signals of this thread, if it is outside the library. The thread is in the state in which it returns
/// to the program, since a handler may not return.
#[cold]
#[inline(never)]
pub(crate) fn deliver(line: &'static Count) {
    if line.is_inside() {
        return;
    }
    let me = this_thread();
    let admitted = line.take_admitted();
    let mut asked = 0;
    // The kernel gets all of them before the first handler runs. So it minds their masks, and a handler that leaves by a jump
    // takes none along.
    let all = signals::Blocked::all();
    while let Some(place) = oldest_due(me) {
        let (signal, info) = (place.signal(), place.read());
        if place.change(me, Phase::Due, Phase::Asked) {
            asked |= signals::bit(signal);
            ask(signal, info);
        }
    }
    note(line, me);
    let blocked = all.mask_before();
    drop(all);
    if let Some(admitted) = admitted.filter(|_| asked & blocked != 0) {
        // The call has admitted what the program blocks outside of it (ppoll(2)), and the handler runs before it returns.
        let mask = admitted & !asked;
        let mut at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = raw::ppoll(core::ptr::null_mut(), 0, &raw mut at_once, (&raw const mask).cast());
    }
    forget_ignored(line, me, asked & !blocked);
}

/// Forgets the signals of a set for which the kernel was asked, and which it would have delivered by now: another thread has
/// the program ignore them.
fn forget_ignored(line: &'static Count, me: usize, set: u64) {
    let asked = |place: &&Kept| place.is(me, Phase::Asked) && set & signals::bit(place.signal()) != 0;
    let mut any = false;
    for place in KEPT.iter().filter(asked) {
        // A mark may still be on its way where marks were merged, or a handler has blocked its signal.
        if !signals::has_handler(signals::bit(place.signal())) && place.change(me, Phase::Asked, Phase::Busy) {
            place.owner.store(0, Ordering::Relaxed);
            any = true;
        }
    }
    if any {
        note(line, me);
    }
}

/// Delivers what the calling thread has kept, if it is outside the library.
pub fn deliver_here() {
    if let Some(line) = thread_state::entered().filter(|line| line.is_due()) {
        deliver(line);
    }
}

/// Whether a signal was kept for the calling thread, so that its call is not to sleep.
#[inline]
pub fn is_due() -> bool {
    thread_state::entered().is_some_and(Count::is_due)
}

/// Whether the call of the calling thread, which does nothing but end for the sake of a kept signal, is to be made anew
/// after its delivery (SA_RESTART).
#[cold]
pub fn restarts() -> bool {
    let me = this_thread();
    let mut due = KEPT.iter().filter(|place| place.is(me, Phase::Due)).peekable();
    // Where several have come it is not known by which the kernel would have decided, and a call that ends harms nobody.
    thread_state::entered().is_some_and(Count::may_be_made_anew)
        && due.peek().is_some()
        && due.all(|place| place.restarts.load(Ordering::Relaxed))
}

/// Has the kept signals of this thread delivered under `mask`, which the call admits (ppoll(2)).
pub fn admit(mask: u64) {
    if let Some(line) = thread_state::entered() {
        line.set_admitted(mask);
    }
}

/// To be called before a filter of system calls is installed: handlers run at once from here on.
pub fn stop() {
    STOPPED.store(true, Ordering::Relaxed);
    note_one_inside();
}

/// Notes that there is a handler that may run inside the library.
pub fn note_one_inside() {
    // Relaxed, here and where it is read: the word stands for itself, and a call that began before it was set asks once more
    // when its sleep is interrupted.
    ANY_INSIDE.store(true, Ordering::Relaxed);
}

/// Sets the question whether the kernel's address of a handler is that of an entry.
pub fn set_entries(is_entry: fn(usize) -> bool) {
    // Relaxed: an address of code.
    IS_ENTRY.store(is_entry as *mut c_void, Ordering::Relaxed);
}

/// Whether each signal with a handler that comes to the calling thread inside the library is kept, as far as is known.
#[inline]
pub fn keeps_all() -> bool {
    !ANY_INSIDE.load(Ordering::Relaxed) && thread_state::entered().is_some()
}

/// Whether a handler may have run inside the library: to be asked when a system call was interrupted and no signal is due. A
/// thread that was stopped and goes on is interrupted as well, and one of which libc wants something (pthread_cancel(3)).
#[cold]
pub fn may_have_run_inside() -> bool {
    if !ANY_INSIDE.load(Ordering::Relaxed) {
        let asked = IS_ENTRY.load(Ordering::Relaxed);
        // SAFETY: null or a function of this type, as `set_entries` has stored it.
        let is_entry = unsafe { core::mem::transmute::<*mut c_void, Option<fn(usize) -> bool>>(asked) };
        if signals::any_handler(|address| !is_entry.is_some_and(|is_entry| is_entry(address))) {
            note_one_inside();
        }
    }
    ANY_INSIDE.load(Ordering::Relaxed)
}

/// Called in the child of a fork, which no signal has reached yet.
pub(crate) fn forget() {
    if USED.load(Ordering::Relaxed) {
        // What is free already is not written, since every page that the child writes to is copied.
        let taken = KEPT.iter().filter(|place| place.owner.load(Ordering::Relaxed) != 0);
        taken.for_each(|place| place.owner.store(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests;
