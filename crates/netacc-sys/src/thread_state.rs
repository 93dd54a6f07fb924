//! How many locks of ours each thread holds, and how many calls of ours it is in, without a thread-local variable: those
//! need a place in every thread's memory, which a loader has to make, and a program without libc has nowhere.
//!
//! A thread is known by its thread pointer, the register by which libc finds a thread's memory. A table has a line for
//! each thread pointer that was ever seen; the line's count is written by that thread alone, so it needs no atomic
//! addition. A line stays with its thread pointer: the next thread whose memory lies at the same place has it then.
//! Where the lines around its own place are taken, a thread has a word in a second table, and only as long as it holds
//! something.
#![allow(unsafe_code)]

#[cfg(debug_assertions)]
use crate::lock_rank;
use crate::raw;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Number of lines in the first table.
const LINES: usize = 1024;
/// Number of lines that a thread looks at to find its own.
const PROBES: usize = 8;
/// Number of words in the second table.
const WORDS: usize = 1024;
/// Number of words that a thread looks at to find its own or a free one.
const WORD_PROBES: usize = 64;
/// Bits of a word that hold the count; the thread pointer, which has 48 bits, is above them.
const COUNT_BITS: u32 = 16;

/// One thread's line. It has a cache line of its own, since it is written at each lock and each call.
#[repr(align(64))]
struct Line {
    /// The thread pointer; 0: the line is free.
    owner: AtomicUsize,
    count: Count,
}

impl Line {
    const fn free() -> Line {
        Line { owner: AtomicUsize::new(0), count: Count::none() }
    }
}

crate::tables! {
    static TABLE: [Line; LINES] = [const { Line::free() }; LINES];
    static CROWD: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
}
/// Set once a word of the second table was taken: without it no thread looks there.
static CROWDED: AtomicU32 = AtomicU32::new(0);

/// Where a thread is counted: its line, or none if it has a word.
pub(crate) type Place = Option<&'static Count>;

/// Bit of `Count::signals`: a signal is to be delivered when the thread leaves the library.
const DUE: u32 = 1;
/// Bit of `Count::signals`: a signal is kept.
const KEPT: u32 = 2;

fn kept_bits(any: bool, due: bool) -> u32 {
    (u32::from(any) * KEPT) | (u32::from(due) * DUE)
}

/// The locks that a thread holds, in its line. Only that thread writes it, so all accesses are Relaxed.
#[derive(Debug)]
pub(crate) struct Count {
    all: AtomicU32,
    /// How many calls of the library the thread is in: see [`crate::visits`].
    visits: AtomicU32,
    /// The number of calls in which handlers run: 0, or where the thread sleeps in a call of libc's inside one of ours.
    open_at: AtomicU32,
    /// What was kept for the thread: [`DUE`] and [`KEPT`] (see [`crate::delivery`]).
    signals: AtomicU32,
    /// Complement of the mask that the thread's call admits its kept signals under; 0: the thread's own.
    admitted: AtomicU64,
    /// How many of them have each rank.
    #[cfg(debug_assertions)]
    by_rank: [AtomicU32; lock_rank::RANKS],
}

impl Count {
    const fn none() -> Count {
        Count {
            all: AtomicU32::new(0),
            visits: AtomicU32::new(0),
            open_at: AtomicU32::new(0),
            signals: AtomicU32::new(0),
            admitted: AtomicU64::new(0),
            #[cfg(debug_assertions)]
            by_rank: [const { AtomicU32::new(0) }; lock_rank::RANKS],
        }
    }

    /// How many calls of the library the thread is in.
    pub(crate) fn visits(&self) -> u32 {
        self.visits.load(Ordering::Relaxed)
    }

    /// Stores in how many calls of the library the thread is. Only the thread itself calls this.
    #[inline(always)]
    pub(crate) fn set_visits(&self, n: u32) {
        self.visits.store(n, Ordering::Relaxed);
    }

    /// The number of calls in which handlers run.
    pub(crate) fn open_at(&self) -> u32 {
        self.open_at.load(Ordering::Relaxed)
    }

    /// Stores in how many calls handlers run.
    pub(crate) fn set_open_at(&self, n: u32) {
        self.open_at.store(n, Ordering::Relaxed);
    }

    /// Whether the thread has left the library, as far as can be told: a call in which handlers run may have been left by a
    /// jump out of a handler, and then does not end.
    pub(crate) fn may_be_out(&self) -> bool {
        self.visits() <= self.open_at()
    }

    /// Whether no handler of the program's may run in the thread: it is in a call of the library, or holds a lock of it.
    #[inline(always)]
    pub(crate) fn is_inside(&self) -> bool {
        self.visits() != self.open_at() || self.all.load(Ordering::Relaxed) != 0
    }

    /// Whether a signal is to be delivered when the thread leaves the library.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        self.signals.load(Ordering::Relaxed) & DUE != 0
    }

    /// Whether a kept signal is delivered if the thread makes its call anew. In a call inside another one nothing is
    /// delivered between the two attempts.
    pub(crate) fn may_be_made_anew(&self) -> bool {
        self.is_due() && self.visits().wrapping_sub(self.open_at()) == 1
    }

    /// Whether a signal was kept, be it due or asked for.
    #[inline(always)]
    pub(crate) fn has_kept(&self) -> bool {
        self.signals.load(Ordering::Relaxed) != 0
    }

    /// The word whose lowest bit is [`Count::is_due`].
    pub(crate) fn due_word(&self) -> &AtomicU32 {
        &self.signals
    }

    /// Notes whether signals are kept for the thread, and whether some are due.
    pub(crate) fn set_kept(&self, any: bool, due: bool) {
        self.signals.store(kept_bits(any, due), Ordering::Relaxed);
    }

    /// Notes as [`Count::set_kept`] does, beside what is noted.
    pub(crate) fn add_kept(&self, any: bool, due: bool) {
        self.signals.fetch_or(kept_bits(any, due), Ordering::Relaxed);
    }

    /// Stores the mask under which kept signals are delivered.
    pub(crate) fn set_admitted(&self, mask: u64) {
        self.admitted.store(!mask, Ordering::Relaxed);
    }

    /// Takes the mask under which kept signals are delivered, if it is not the thread's own.
    pub(crate) fn take_admitted(&self) -> Option<u64> {
        match self.admitted.load(Ordering::Relaxed) {
            0 => None,
            admitted => {
                self.admitted.store(0, Ordering::Relaxed);
                Some(!admitted)
            }
        }
    }

    #[cfg(debug_assertions)]
    fn highest_rank(&self) -> u8 {
        let held = |rank: &u8| self.by_rank.get(usize::from(*rank)).is_some_and(|n| n.load(Ordering::Relaxed) != 0);
        (1..lock_rank::RANKS as u8).rev().find(held).unwrap_or(0)
    }

    #[cfg(debug_assertions)]
    pub(crate) fn add_rank(&self, rank: u8) {
        self.change_rank(rank, 1);
    }

    #[cfg(debug_assertions)]
    pub(crate) fn drop_rank(&self, rank: u8) {
        self.change_rank(rank, u32::MAX);
    }

    #[cfg(debug_assertions)]
    fn change_rank(&self, rank: u8, by: u32) {
        if let Some(n) = self.by_rank.get(usize::from(rank)) {
            n.store(n.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
        }
    }

    /// The thread is in no call.
    fn forget_calls(&self) {
        if self.visits() != 0 {
            self.set_visits(0);
        }
        if self.open_at() != 0 {
            self.set_open_at(0);
        }
        if self.admitted.load(Ordering::Relaxed) != 0 {
            self.admitted.store(0, Ordering::Relaxed);
        }
    }

    fn forget(&self) {
        // What is 0 already is not written, since every page that the child writes to is copied.
        if self.all.load(Ordering::Relaxed) != 0 {
            self.all.store(0, Ordering::Relaxed);
        }
        if self.has_kept() {
            self.set_kept(false, false);
        }
        #[cfg(debug_assertions)]
        self.by_rank.iter().for_each(|n| n.store(0, Ordering::Relaxed));
    }
}

/// The calling thread's thread pointer.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: on x86-64 the word at the thread pointer is its own address (System V ABI, thread-local storage).
    unsafe {
        core::arch::asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, readonly, pure, preserves_flags));
    }
    pointer
}

/// The calling thread's thread pointer.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub(crate) fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register.
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem, pure, preserves_flags));
    }
    pointer
}

/// Where the search for a thread's line or word begins.
#[inline(always)]
fn start(pointer: usize) -> usize {
    // Threads' memories lie whole pages apart: the multiplication spreads them (Knuth's multiplicative hashing).
    (pointer as u64 >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 48
}

#[inline(always)]
fn line(n: usize) -> &'static Line {
    #[allow(clippy::indexing_slicing, reason = "the index is below the length")]
    &TABLE[n % LINES]
}

/// The thread's line, if it lies at the first place.
#[inline(always)]
fn own() -> Result<&'static Count, usize> {
    let me = thread_pointer();
    let first = line(start(me));
    // Relaxed: a line's owner never changes, and this thread has written what is in its own, or nobody has.
    if first.owner.load(Ordering::Relaxed) == me { Ok(&first.count) } else { Err(me) }
}

/// Number of lines that were ever taken.
static TAKEN: AtomicU32 = AtomicU32::new(0);

/// The thread's line, wherever it lies; one that it has taken just now if it `may_take` one.
#[cold]
fn search(me: usize, may_take: bool) -> Place {
    for n in 0..PROBES {
        let line = line(start(me) + n);
        let mut owner = line.owner.load(Ordering::Relaxed);
        if owner == 0 {
            if !may_take {
                return None;
            }
            // A handler of this thread may take it meanwhile, for this thread.
            owner = match line.owner.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    // Relaxed: a child of a fork has what its parent's thread had stored.
                    TAKEN.fetch_add(1, Ordering::Relaxed);
                    me
                }
                Err(other) => other,
            };
        }
        if owner == me {
            return Some(&line.count);
        }
    }
    None
}

/// The words among which the thread's is.
fn words(me: usize) -> impl Iterator<Item = &'static AtomicU64> {
    (0..WORD_PROBES).filter_map(move |n| CROWD.get((start(me) + n) % WORDS))
}

/// The thread's word and its value.
fn word(me: usize) -> Option<(&'static AtomicU64, u64)> {
    if CROWDED.load(Ordering::Relaxed) == 0 {
        return None;
    }
    words(me).map(|word| (word, word.load(Ordering::Relaxed))).find(|(_, value)| value >> COUNT_BITS == me as u64)
}

/// Counts one more for the calling thread.
#[inline]
pub(crate) fn enter() -> Place {
    let place = own_line();
    match place {
        // A handler that comes in between leaves the count as it was.
        Some(count) => count.all.store(count.all.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed),
        None => enter_crowd(thread_pointer()),
    }
    place
}

#[cold]
fn enter_crowd(me: usize) {
    CROWDED.store(1, Ordering::Relaxed);
    if let Some((word, _)) = word(me) {
        word.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let mine = (me as u64) << COUNT_BITS | 1;
    // A thread that holds no lock yet does not keep others from releasing a word.
    while !words(me).any(|word| word.compare_exchange(0, mine, Ordering::Relaxed, Ordering::Relaxed).is_ok()) {
        raw::sched_yield();
    }
}

/// The calling thread's line, which it takes now if it has none; `None` if there is none for it.
#[inline(always)]
pub(crate) fn own_line() -> Place {
    match own() {
        Ok(count) => Some(count),
        Err(me) => search(me, true),
    }
}

/// The lines of all threads, those included that no longer exist.
pub(crate) fn lines() -> impl Iterator<Item = &'static Count> {
    TABLE.iter().filter(|line| line.owner.load(Ordering::Relaxed) != 0).map(|line| &line.count)
}

/// Where the calling thread was counted.
pub(crate) fn entered() -> Place {
    own().map_or_else(|me| search(me, false), Some)
}

/// Counts one less for the calling thread, which was counted at this place.
#[inline]
pub(crate) fn leave(place: Place) {
    match place {
        Some(count) => count.all.store(count.all.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed),
        None => leave_crowd(thread_pointer()),
    }
}

#[cold]
fn leave_crowd(me: usize) {
    let Some((word, value)) = word(me) else { return };
    // Only this thread changes the word, and a handler leaves it as it was.
    let left = if value & ((1 << COUNT_BITS) - 1) > 1 { value - 1 } else { 0 };
    word.store(left, Ordering::Relaxed);
}

/// How many are counted for the calling thread.
#[inline]
pub(crate) fn count() -> u32 {
    match own() {
        Ok(count) => count.all.load(Ordering::Relaxed),
        Err(me) => match search(me, false) {
            Some(count) => count.all.load(Ordering::Relaxed),
            None => word(me).map_or(0, |(_, value)| (value & ((1 << COUNT_BITS) - 1)) as u32),
        },
    }
}

/// The highest rank among the locks that the calling thread holds; 0 if it holds none that has a rank, or has no line.
#[cfg(debug_assertions)]
pub(crate) fn highest_rank() -> u8 {
    entered().map_or(lock_rank::NONE, Count::highest_rank)
}

/// Whether no other thread has ever made a call of ours.
pub(crate) fn is_only_thread() -> bool {
    TAKEN.load(Ordering::Relaxed) == 1 && CROWDED.load(Ordering::Relaxed) == 0 && entered().is_some()
}

/// Called in the child of a fork: no thread holds a lock, and the next thread at the address of one that no longer
/// exists begins anew. The calling thread is in the calls in which it was.
pub(crate) fn forget() {
    let own = entered();
    // The lines lie on many pages, and the child pays for each that it looks at.
    if let Some(own) = own.filter(|_| is_only_thread()) {
        return own.forget();
    }
    for line in &TABLE {
        line.count.forget();
        if !own.is_some_and(|own| core::ptr::eq(own, &line.count)) {
            line.count.forget_calls();
        }
    }
    if CROWDED.load(Ordering::Relaxed) != 0 {
        CROWD.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn each_thread_counts_for_itself() {
        let place = enter();
        assert_eq!(count(), 1);
        std::thread::spawn(|| {
            assert_eq!(count(), 0);
            let (a, b) = (enter(), enter());
            assert_eq!(count(), 2);
            leave(a);
            leave(b);
            assert_eq!(count(), 0);
        })
        .join()
        .unwrap();
        leave(place);
        assert_eq!(count(), 0);
    }

    #[test]
    fn a_crowd_is_counted_too() {
        // Each has a thread pointer of its own, and none has a line.
        let crowd: Vec<usize> = (0..200).map(|n| 0x7f00_0000_0000 + n * 4096).collect();
        for round in 1..4u64 {
            for me in &crowd {
                enter_crowd(*me);
                assert_eq!(word(*me).unwrap().1 & 0xffff, round);
            }
        }
        for left in (0..3).rev() {
            for me in &crowd {
                leave_crowd(*me);
                assert_eq!(word(*me).map_or(0, |(_, value)| value & 0xffff), left);
            }
        }
        assert!(CROWD.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn threads_that_begin_at_once_have_lines_of_their_own() {
        let barrier = Barrier::new(32);
        std::thread::scope(|s| {
            for _ in 0..32 {
                s.spawn(|| {
                    barrier.wait();
                    let place = enter();
                    barrier.wait();
                    assert_eq!(count(), 1);
                    barrier.wait();
                    leave(place);
                    assert_eq!(count(), 0);
                });
            }
        });
    }
}
