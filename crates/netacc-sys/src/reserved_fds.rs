//! Our own descriptors: kept at high numbers, out of the application's way, and known as ours, so that
//! a program that closes "everything" does not close them.

use crate::errno::{Errno, Result};
use crate::own_limit::{self, raised};
use crate::{mem, raw};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};
use rustix::fd::{AsRawFd, IntoRawFd, OwnedFd};

/// Descriptors above this are never tracked (fs.nr_open's default).
pub const MAX_FDS: usize = 1 << 20;
const WORDS: usize = MAX_FDS / 64;

static BITS: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());
/// The highest number that was ever marked: a walk over all bits would have the kernel map dozens of empty pages.
static HIGHEST: AtomicI32 = AtomicI32::new(0);
/// Where our descriptors begin at the latest above the program's limit: the kernel has a table of all numbers up to the
/// highest one, which each fork copies.
const LATEST: u64 = 8192;
/// Where they begin if that limit is higher, among the numbers of the program. The size of the kernel's table is a power of
/// two, and this leaves room for 512 numbers in one of 4,096.
const AMONG: i32 = 3584;
/// The lowest number for our descriptors; 0: not computed yet.
static FLOOR: AtomicI32 = AtomicI32::new(0);

#[allow(unsafe_code)]
fn bits() -> Option<&'static [AtomicU64]> {
    let p = BITS.load(Ordering::Acquire);
    if p.is_null() {
        return None;
    }
    // SAFETY: set once to an array of WORDS words that is never unmapped.
    Some(unsafe { core::slice::from_raw_parts(p, WORDS) })
}

fn bits_or_map() -> Result<&'static [AtomicU64]> {
    if let Some(b) = bits() {
        return Ok(b);
    }
    let fresh: &'static [AtomicU64] = mem::array(WORDS)?;
    // Of two threads that map at once one wins; the other's untouched mapping is only address space.
    let _ =
        BITS.compare_exchange(core::ptr::null_mut(), fresh.as_ptr().cast_mut(), Ordering::AcqRel, Ordering::Acquire);
    Ok(bits().unwrap_or(fresh))
}

/// Marks the number as ours.
fn mark_reserved(bits: &[AtomicU64], n: i32) -> Result<()> {
    bits.get(n as usize / 64).ok_or(Errno::MFILE)?.fetch_or(1 << (n % 64), Ordering::Relaxed);
    HIGHEST.fetch_max(n, Ordering::Relaxed);
    Ok(())
}

/// Divisor of the numbers below the program's limit, for what they are used for without need.
const PART_FOR_SAVINGS: u64 = 16;

/// The number from which on our descriptors lie, as far as there are numbers.
pub fn floor() -> i32 {
    let known = FLOOR.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let floor = match own_limit::floor() {
        floor @ ..=LATEST => floor.max(3) as i32,
        _ => AMONG,
    };
    FLOOR.store(floor, Ordering::Relaxed);
    floor
}

/// The end of the lower half of the numbers that a program is likely to use: up to its limit, or to [`LATEST`].
pub fn lower_half() -> i32 {
    match floor() {
        AMONG => LATEST as i32 / 2,
        floor => floor / 2,
    }
}

/// Number of descriptors below the program's limit that the library may hold only because they save time, of all that lie
/// from [`floor`] on: the program may come to need them.
pub fn room_for_savings() -> usize {
    let below = own_limit::of_program().saturating_sub(u64::from(floor().unsigned_abs()));
    if below == 0 { usize::MAX } else { usize::try_from(below / PART_FOR_SAVINGS).unwrap_or(usize::MAX) }
}

/// To be called when the program has set its limit of descriptors: those that we make from now on lie above the new one.
pub fn limit_was_set() {
    // Relaxed: a thread that still uses the number known before makes a descriptor where it would have been a moment ago.
    FLOOR.store(0, Ordering::Relaxed);
}

/// Duplicates a descriptor to a number from [`floor`] on.
fn dup_high(fd: i32) -> Result<i32> {
    let made = raised(|| raw::dup_above(fd, floor()));
    // The program may have lowered its limits since the floor was computed.
    if made == Err(Errno::INVAL) && FLOOR.swap(0, Ordering::Relaxed) != floor() {
        return raised(|| raw::dup_above(fd, floor()));
    }
    made
}

/// Moves a descriptor of ours to a high number and marks it. The mark stays until [`close`].
pub fn adopt(fd: OwnedFd) -> Result<i32> {
    let bits = bits_or_map()?;
    let low = fd.as_raw_fd();
    let n = match dup_high(low) {
        Ok(n) => {
            drop_raw(fd);
            n
        }
        // No higher number is left: the descriptor keeps the one it has.
        Err(_) => fd.into_raw_fd(),
    };
    let _ = mark_reserved(bits, n);
    Ok(n)
}

/// Marks a descriptor as ours that another copy of the library has had at its number.
pub fn take_over(fd: i32) {
    if let Ok(bits) = bits_or_map() {
        let _ = mark_reserved(bits, fd);
    }
}

/// Moves and marks a descriptor as [`adopt`] does, but never to a number that the application could have: it is closed
/// if no higher one is free.
pub fn park(fd: OwnedFd) -> Result<i32> {
    let parked = dup_high(fd.as_raw_fd()).and_then(|n| {
        mark_reserved(bits_or_map()?, n)?;
        Ok(n)
    });
    drop_raw(fd);
    parked
}

/// Moves a descriptor that a library has made for us, and whose number there we can change, out of the application's
/// way. Returns the number it has then, which must not be closed through libc before [`give_back`].
pub fn raise(fd: i32) -> i32 {
    let Ok(n) = copy(fd) else { return fd };
    let _ = raw::close(fd);
    n
}

/// Takes the mark off: the library is about to close the descriptor itself.
pub fn give_back(fd: i32) {
    if let Some(w) = bits().and_then(|b| b.get(fd as usize / 64)) {
        w.fetch_and(!(1 << (fd % 64)), Ordering::Relaxed);
    }
}

/// A duplicate, which is ours, of one of the application's descriptors.
pub fn copy(fd: i32) -> Result<i32> {
    let bits = bits_or_map()?;
    let n = dup_high(fd).or_else(|_| raw::dup_above(fd, 0))?;
    let _ = mark_reserved(bits, n);
    Ok(n)
}

/// Descriptors (number + 1) that are held only to be there when the program has used up all others.
type Reserve = [AtomicI32; 3];

/// As many as it takes to give some back.
static RESERVE: Reserve = [const { AtomicI32::new(0) }; 3];
/// For descriptors that a peer passes. The reserve is not used for those, since they stay.
static SPARE: Reserve = [const { AtomicI32::new(0) }; 3];

/// Fills the reserve, as far as there are numbers.
#[cold]
pub fn reserve() {
    fill(&RESERVE, copy);
}

/// Holds some numbers ready for descriptors that a peer passes ([`make_room`]), as far as there are some that the
/// application does not expect to get.
pub fn hold_spare() {
    if SPARE.iter().any(is_empty) {
        fill(&SPARE, |file| {
            let bits = bits_or_map()?;
            let n = dup_high(file)?;
            mark_reserved(bits, n)?;
            Ok(n)
        });
    }
}

fn is_empty(cell: &AtomicI32) -> bool {
    cell.load(Ordering::Relaxed) == 0
}

#[cold]
fn fill(cells: &Reserve, copy: impl Fn(i32) -> Result<i32>) {
    if !cells.iter().any(is_empty) {
        return;
    }
    // An unused eventfd costs hardly any memory, and its copies none.
    let Ok(file) = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC) else { return };
    for cell in cells.iter().filter(|c| is_empty(c)) {
        let Ok(n) = copy(file.as_raw_fd()) else { break };
        if cell.compare_exchange(0, n + 1, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            close(n);
        }
    }
    drop_raw(file);
}

/// Gives the reserve up; false if there was none.
#[cold]
pub fn release_reserve() -> bool {
    RESERVE.iter().filter(|cell| release(cell)).count() > 0
}

/// Gives the spare numbers up.
#[cold]
pub fn release_spare() {
    for cell in &SPARE {
        release(cell);
    }
}

/// Gives the number in the cell back; false if there is none.
fn release(cell: &AtomicI32) -> bool {
    let n = cell.swap(0, Ordering::Relaxed) - 1;
    if n >= 0 {
        close(n);
    }
    n >= 0
}

/// Whether the program has used up all numbers. `fd` is any open descriptor.
#[cold]
pub fn is_exhausted(fd: i32) -> bool {
    match raw::dup_above(fd, 0) {
        Ok(n) => {
            let _ = raw::close(n);
            false
        }
        Err(e) => e == Errno::MFILE,
    }
}

/// Gives one of the spare numbers back if the program has used up all others, for a descriptor that is about to be
/// received. `fd` is any open descriptor. False: no number is free.
#[cold]
pub fn make_room(fd: i32) -> bool {
    !is_exhausted(fd) || SPARE.iter().any(release)
}

/// Number of our descriptors below `limit`.
pub fn below(limit: u64) -> u64 {
    let mut count = 0;
    each(|fd| count += u64::from(u64::from(fd.unsigned_abs()) < limit));
    count
}

/// Closes without going through libc's `close`, which is our own hook.
pub fn drop_raw(fd: OwnedFd) {
    let _ = raw::close(fd.into_raw_fd());
}

/// Puts a duplicate of `file` under the number `ours`.
pub fn replace(ours: i32, file: i32) -> Result<()> {
    raised(|| raw::dup3(file, ours, libc::O_CLOEXEC)).map(drop)
}

/// Whether `fd` is one of ours.
#[inline]
pub fn is(fd: i32) -> bool {
    let Some(bits) = bits() else { return false };
    fd >= 0 && bits.get(fd as usize / 64).is_some_and(|w| w.load(Ordering::Relaxed) & (1 << (fd % 64)) != 0)
}

/// Closes a descriptor of ours.
pub fn close(fd: i32) {
    give_back(fd);
    let _ = raw::close(fd);
}

/// Whether the number is open.
pub fn is_open(fd: i32) -> bool {
    raw::fcntl(fd, libc::F_GETFD, 0).is_ok()
}

/// Called in the child of a fork, before it makes a descriptor. The kernel copies the descriptors first and the memory
/// then: of a descriptor that another thread of the parent made in between, the child has the mark only. Somebody will
/// close that number, so it must not be another file's until then: a file that does nothing is put there.
pub fn fill_gaps() {
    own_limit::after_fork();
    let mut filler = None;
    each(|fd| {
        if is_open(fd) {
            return;
        }
        if filler.is_none() {
            filler = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok();
        }
        if let Some(f) = &filler {
            let _ = replace(fd, f.as_raw_fd());
        }
    });
    if let Some(f) = filler {
        drop_raw(f);
    }
}

/// Calls `f` for every descriptor of ours, in rising order.
pub fn each(mut f: impl FnMut(i32)) {
    for (i, w) in bits().unwrap_or(&[]).iter().enumerate().take(HIGHEST.load(Ordering::Relaxed) as usize / 64 + 1) {
        let mut word = w.load(Ordering::Relaxed);
        while word != 0 {
            f((i * 64) as i32 + word.trailing_zeros() as i32);
            word &= word - 1;
        }
    }
}
