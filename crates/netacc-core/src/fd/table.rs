//! The table from descriptor numbers to objects: every intercepted call makes one look-up in it.
//!
//! # Safety
//! An entry holds the address of a type-stable object (see [`netacc_sys::slab`]) with a tag in its low and the object's
//! generation in its high 16 bits, or 0. The object stays valid memory for ever; comparing generations under the
//! object's lock tells whether it is still the same one.
#![allow(unsafe_code)]

use crate::fd::fd_cache;
use crate::object::instance::Epoll;
use crate::object::reference::Ref;
use crate::object::socket::{REPLACED, Socket};
use crate::timeouts;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::reserved_fds::MAX_FDS;
use netacc_sys::{lock, mem, raw, time};

/// The table's cells, one for each number; null until the first entry. It is public since code that cannot call a
/// function looks a number up in it: a word that is not 0 is one of ours.
pub static TABLE: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());

/// The highest number ever entered, which bounds a walk over the table.
static HIGH: AtomicUsize = AtomicUsize::new(0);

const TAG: u64 = 7;
const SOCKET: u64 = 1;
const EPOLL: u64 = 2;
/// Word of a number that the program has closed and that the fd cache keeps: see [`fd_cache`].
const CACHED: u64 = 3;
/// Tag of a number that a thread is about to close or to give another file; a mark of the thread replaces the object.
const LEAVING: u64 = 7;
const NUMBER_CLOSE: u64 = time::ns(timeouts::NUMBER_CLOSE);
const ADDR: u64 = (1 << 48) - 8;

/// The object of a descriptor number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Entry {
    /// A TCP socket.
    Socket(Ref<Socket>),
    /// An epoll instance.
    Epoll(Ref<Epoll>),
}

impl Entry {
    /// Whether the entry is this socket.
    pub fn is(self, r: Ref<Socket>) -> bool {
        matches!(self, Entry::Socket(x) if x == r)
    }
}

#[inline]
fn cell(fd: i32) -> Option<&'static AtomicU64> {
    // Acquire pairs with the publication in `ensure`. Null until the first TCP socket or epoll.
    let table = TABLE.load(Ordering::Acquire);
    if table.is_null() || fd < 0 || fd as usize >= MAX_FDS {
        return None;
    }
    // SAFETY: the table has MAX_FDS cells and is never unmapped.
    Some(unsafe { &*table.add(fd as usize) })
}

#[inline]
fn decode(word: u64) -> Option<Entry> {
    let generation = (word >> 48) as u16;
    let addr = (word & ADDR) as usize;
    // SAFETY: only `put` makes words with these tags, from references to objects that live for ever.
    unsafe {
        match word & TAG {
            SOCKET => Some(Entry::Socket(Ref { obj: &*(addr as *const Socket), generation })),
            EPOLL => Some(Entry::Epoll(Ref { obj: &*(addr as *const Epoll), generation })),
            _ => None,
        }
    }
}

fn encode(e: Entry) -> u64 {
    match e {
        Entry::Socket(r) => core::ptr::from_ref(r.obj) as u64 | u64::from(r.generation) << 48 | SOCKET,
        Entry::Epoll(r) => core::ptr::from_ref(r.obj) as u64 | u64::from(r.generation) << 48 | EPOLL,
    }
}

/// Whether any number was ever entered. Before that a call need not look its number up.
#[inline]
pub fn in_use() -> bool {
    // Relaxed: nothing is read through it.
    !TABLE.load(Ordering::Relaxed).is_null()
}

/// Whether the table is empty now.
pub fn is_empty() -> bool {
    // Relaxed: nothing is read through a cell.
    let free = |fd: usize| cell(fd as i32).is_none_or(|c| c.load(Ordering::Relaxed) == 0);
    (0..=HIGH.load(Ordering::Relaxed)).all(free)
}

/// Whether `fd` is in the table. This look-up is the whole cost of a call on any other descriptor.
#[inline]
pub fn knows(fd: i32) -> bool {
    // Relaxed: nothing is read through the cell.
    cell(fd).is_some_and(|c| c.load(Ordering::Relaxed) != 0)
}

/// Whether any of these numbers is in the table, which is looked up once for all of them.
#[inline]
pub fn knows_any(mut fds: impl Iterator<Item = i32>) -> bool {
    // Acquire: as in `cell`.
    let table = TABLE.load(Ordering::Acquire);
    // SAFETY: the table has MAX_FDS cells and is never unmapped; a negative number becomes a large index, which is
    // refused.
    let known =
        |fd: i32| (fd as u32 as usize) < MAX_FDS && unsafe { &*table.add(fd as usize) }.load(Ordering::Relaxed) != 0;
    !table.is_null() && fds.any(known)
}

/// Whether `fd` is a socket for which `f` is true, or a kept or leaving number, which [`get`] handles.
#[inline]
pub fn is_socket(fd: i32, f: impl Fn(&Socket) -> bool) -> bool {
    // Acquire: the object was filled in before it was entered.
    let word = cell(fd).map_or(0, |c| c.load(Ordering::Acquire));
    match decode(word) {
        Some(Entry::Socket(r)) => f(r.obj),
        Some(Entry::Epoll(_)) => false,
        None => word != 0,
    }
}

/// Whether `fd` is an epoll instance for which `f` is true, or a kept or leaving number, which [`get`] handles.
#[inline]
pub fn is_epoll(fd: i32, f: impl Fn(&Epoll) -> bool) -> bool {
    // Acquire: the object was filled in before it was entered.
    let word = cell(fd).map_or(0, |c| c.load(Ordering::Acquire));
    match decode(word) {
        Some(Entry::Epoll(r)) => f(r.obj),
        Some(Entry::Socket(_)) => false,
        None => word != 0,
    }
}

/// The object of `fd`, if it has one.
#[inline]
pub fn get(fd: i32) -> Option<Entry> {
    // Acquire: the object was filled in before it was entered.
    let word = cell(fd)?.load(Ordering::Acquire);
    match decode(word) {
        None if word != 0 => not_there(fd, word),
        there => there,
    }
}

#[cold]
fn not_there(fd: i32, word: u64) -> Option<Entry> {
    if word == CACHED {
        fd_cache::give_back(fd);
        return None;
    }
    decode(left(fd))
}

/// Waits until no thread is about to close the number, and returns its word: the file that it has until then does not
/// belong to the program. A call that holds locks does not wait, since the closing thread may wait for them; nor does
/// that thread itself.
fn left(fd: i32) -> u64 {
    let mut until = None;
    loop {
        let word = cell(fd).map_or(0, |c| c.load(Ordering::Acquire));
        if word & TAG != LEAVING || word == leaving() || lock::interrupted() {
            return word;
        }
        let now = time::now();
        if now > *until.get_or_insert(now.saturating_add(NUMBER_CLOSE)) {
            return word;
        }
        raw::sched_yield();
    }
}

fn leaving() -> u64 {
    lock::thread_mark() & ADDR | LEAVING
}

/// Whether a thread is about to close the number, and it cannot be waited for.
pub fn is_leaving(fd: i32) -> bool {
    let word = cell(fd).map_or(0, |c| c.load(Ordering::Relaxed));
    word & TAG == LEAVING && left(fd) & TAG == LEAVING
}

/// Called in the child of a fork, in which no other thread is closing numbers: removes their marks.
pub fn forget_leaving() {
    for c in (0..=HIGH.load(Ordering::Relaxed)).filter_map(|fd| cell(fd as i32)) {
        if c.load(Ordering::Relaxed) & TAG == LEAVING {
            c.store(0, Ordering::Relaxed);
        }
    }
}

/// Ends the marks of numbers in this range that the calling thread has closed, and whose [`Leaving`] it has forgotten.
pub fn all_left(first: usize, last: usize) {
    let word = leaving();
    for fd in first..=last.min(HIGH.load(Ordering::Relaxed)) {
        drop(Leaving { fd: fd as i32, word });
    }
}

/// Guard that makes calls of other threads that name the number wait: after its removal from the table, and until the
/// kernel has closed it or another file has replaced it, the number has a file that is not the program's.
#[derive(Debug)]
#[must_use]
pub struct Leaving {
    fd: i32,
    /// Word of the number in the table, unless it was entered anew.
    word: u64,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some(c) = cell(self.fd) {
            // Release: the number is closed.
            let _ = c.compare_exchange(self.word, 0, Ordering::Release, Ordering::Relaxed);
        }
    }
}

/// Marks `fd`, which the program has closed, as kept by the fd cache.
pub fn vacate(fd: i32) {
    if let Some(c) = cell(fd) {
        c.store(CACHED, Ordering::Release);
    }
}

/// Takes back a cached number: exactly one of several callers gets it.
pub fn occupy(fd: i32) -> bool {
    cell(fd).is_some_and(|c| c.compare_exchange(CACHED, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok())
}

/// The TCP socket `fd`, if it is in the table.
#[inline]
pub fn socket(fd: i32) -> Option<Ref<Socket>> {
    match get(fd)? {
        Entry::Socket(r) => Some(r),
        Entry::Epoll(_) => None,
    }
}

/// The epoll instance `fd`, if it is in the table.
#[inline]
pub fn epoll(fd: i32) -> Option<Ref<Epoll>> {
    match get(fd)? {
        Entry::Epoll(r) => Some(r),
        Entry::Socket(_) => None,
    }
}

/// Makes the table, if there is none.
pub fn ensure() -> Result<()> {
    if TABLE.load(Ordering::Acquire).is_null() {
        if !mem::is_affordable(size_of::<[AtomicU64; MAX_FDS]>()) {
            return Err(Errno::NOMEM);
        }
        let t: &'static [AtomicU64] = mem::array(MAX_FDS)?;
        // If two threads race, the loser leaves an untouched mapping behind.
        let _ =
            TABLE.compare_exchange(core::ptr::null_mut(), t.as_ptr().cast_mut(), Ordering::AcqRel, Ordering::Acquire);
    }
    Ok(())
}

/// Enters an object. Returns the previous entry, of a descriptor that was closed by a call that was not intercepted.
pub fn put(fd: i32, e: Entry) -> Result<Option<Entry>> {
    ensure()?;
    let c = cell(fd).ok_or(Errno::MFILE)?;
    if HIGH.load(Ordering::Relaxed) < fd as usize {
        HIGH.fetch_max(fd as usize, Ordering::Relaxed);
    }
    let old = c.swap(encode(e), Ordering::AcqRel);
    if old == CACHED {
        fd_cache::lost();
    }
    Ok(decode(old))
}

/// Removes the entry of `fd`, which already has another file: exactly one of several callers gets it.
#[inline]
pub fn take(fd: i32) -> Option<Entry> {
    take_for(fd, 0)
}

/// Removes a number from the table for a caller that is about to close it or to replace its file, and that drops the
/// [`Leaving`] afterwards.
pub fn take_leaving(fd: i32) -> Option<(Entry, Leaving)> {
    let word = leaving();
    take_for(fd, word).map(|e| (e, Leaving { fd, word }))
}

fn take_for(fd: i32, new: u64) -> Option<Entry> {
    let c = cell(fd)?;
    let mut word = c.load(Ordering::Relaxed);
    loop {
        if word == 0 || word & TAG == LEAVING {
            return None;
        }
        let next = if word == CACHED { 0 } else { new };
        match c.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => word = now,
        }
    }
    if word == CACHED {
        fd_cache::closed(fd);
    }
    decode(word)
}

/// The numbers of all entries.
pub fn numbers() -> impl Iterator<Item = i32> {
    (0..=HIGH.load(Ordering::Relaxed) as i32).filter(|fd| look(*fd).is_some())
}

/// The object of `fd`, without a wait for a closing thread.
fn look(fd: i32) -> Option<Entry> {
    let word = cell(fd)?.load(Ordering::Acquire);
    if word == CACHED {
        fd_cache::give_back(fd);
    }
    decode(word)
}

/// The end of the range that has all numbers of entries.
pub fn end() -> usize {
    HIGH.load(Ordering::Relaxed) + 1
}

/// Calls `f` for every entry with a number in the range.
pub fn each(first: usize, last: usize, mut f: impl FnMut(i32, Entry)) {
    let high = HIGH.load(Ordering::Relaxed);
    for fd in first..=last.min(high) {
        if let Some(e) = look(fd as i32) {
            f(fd as i32, e);
        }
    }
}

/// A number that refers to socket `r`, other than `not`.
pub fn number_of(r: Ref<Socket>, not: i32) -> Option<i32> {
    numbers_of(r, not).0
}

/// A number by which the library reaches the file of socket `r`: one of the program's, or the one that was
/// [kept](crate::object::kept) for calls that go on after the program has closed the last.
pub fn reach(r: Ref<Socket>) -> Option<i32> {
    number_of(r, -1).or_else(|| Some(r.obj.kept.fd()).filter(|fd| *fd >= 0))
}

/// A number that refers to socket `r`, other than `not`, and how many such numbers there are.
pub fn numbers_of(r: Ref<Socket>, not: i32) -> (Option<i32>, u32) {
    let (mut found, mut count) = (None, 0);
    each(0, MAX_FDS, |fd, e| {
        if fd != not && e.is(r) {
            found = Some(fd);
            count += 1;
        }
    });
    (found, count)
}

/// Whether another file has replaced that of `fd`, which was a number of socket `r`. A number that was closed and then
/// given to another file does not count.
pub fn is_replaced(r: Ref<Socket>, fd: i32) -> bool {
    r.obj.has(REPLACED) && !get(fd).is_some_and(|e| e.is(r))
}

/// Calls `f` for every number of a socket of ours.
pub(crate) fn each_socket(mut f: impl FnMut(i32, Ref<Socket>)) {
    each(0, usize::MAX, |fd, e| {
        if let Entry::Socket(r) = e {
            f(fd, r);
        }
    });
}
