//! Cookies: the values by which the kernel names our entries in its epoll set.
//!
//! A cookie is not an address: several processes may share a kernel's set after a fork, and an object that one of them
//! registered may not exist in the memory of the others. So it consists of an index into a table of this process, in
//! which an object keeps its index for good, and a stamp that the object gets at each new use. The stamps of a process
//! begin at a random number, and a forked child begins anew: so a cookie of another process, or of an earlier use of
//! the object, names nothing here.
//!
//! # Safety
//! A cell holds 0 or the address of an object in a [`netacc_sys::slab::Slab`], which is valid for ever, and in its low
//! bits which type the object has.
#![allow(unsafe_code)]

use crate::object::instance::{Epoll, Registration};
use crate::object::name::Name;
use crate::object::subscription::Subscription;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{SharedCell, cpu, mem};
use rustix::rand::{GetRandomFlags, getrandom};

/// The high bits of a cookie. No pointer has them; an application's value that has them is stored here and replaced by
/// a cookie in the kernel's set.
const MAGIC: u64 = 0xACC << MAGIC_SHIFT;
const MAGIC_SHIFT: u32 = 52;
const KIND_SHIFT: u32 = 48;
const STAMP_BITS: u32 = 24;
const INDEX_BITS: u32 = 24;
const STAMP_MASK: u32 = (1 << STAMP_BITS) - 1;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

/// A cookie that names nothing in any process.
pub(super) const NOBODY: u64 = MAGIC | (Kind::Kick as u64) << KIND_SHIFT;

/// What an event of ours in the kernel's set means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Kind {
    /// A [`Registration`]: the kernel's half of a listener.
    TcpListener = 1,
    /// A [`Registration`]: a listener's rendezvous, or a client there that has not sent its Hello.
    Rendezvous = 2,
    /// A [`Subscription`]: its waker was written.
    Waker = 3,
    /// A [`Subscription`]: its link's control socket.
    Control = 4,
    /// A [`Registration`] that only keeps an application's value.
    Foreign = 5,
    /// A [`Registration`]: the liveness socket of an accelerated connection.
    Liveness = 6,
    /// An [`Epoll`]: another thread has changed its registrations. The event is only a wake-up.
    Kick = 7,
    /// A [`Registration`]: a nested epoll instance.
    Nested = 8,
    /// A [`Registration`]: a candidate.
    Candidate = 9,
    /// An [`Epoll`]: the program's own set, if our entries are in a separate one (see [`super::shared`]).
    Program = 10,
    /// An [`Epoll`]: an operator wakes the process.
    WakePipe = 11,
}

/// The object that a cookie of this process names.
#[derive(Clone, Copy, Debug)]
pub(super) enum Named {
    Listener(&'static Registration),
    Rendezvous(&'static Registration),
    Waker(&'static Subscription),
    Control(&'static Subscription),
    Foreign(&'static Registration),
    Liveness(&'static Registration),
    Kick,
    Nested(&'static Registration),
    Candidate(&'static Registration),
    Program,
    WakePipe,
}

/// What a value in the kernel's set is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    /// A value of the application.
    Program,
    /// A cookie of ours.
    Ours(Named),
    /// A cookie that names nothing here: a stale one, or one of another process.
    Stranger,
}

/// An object that cookies can name.
pub(crate) trait Nameable: Sized + 'static {
    /// Number of the type in the low bits of a cell.
    const TYPE: u64;
    fn name(&self) -> &Name;
}

impl Nameable for Registration {
    const TYPE: u64 = 1;
    fn name(&self) -> &Name {
        &self.name
    }
}

impl Nameable for Subscription {
    const TYPE: u64 = 2;
    fn name(&self) -> &Name {
        &self.name
    }
}

impl Nameable for Epoll {
    const TYPE: u64 = 3;
    fn name(&self) -> &Name {
        &self.name
    }
}

const TYPE_MASK: u64 = 63;

/// Cells in the first chunk of the table; each further one has twice as many as the one before.
const FIRST: u32 = 512;
const CHUNKS: usize = (INDEX_BITS - FIRST.trailing_zeros()) as usize;

static TABLE: [AtomicPtr<AtomicU64>; CHUNKS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; CHUNKS];
static NEXT_INDEX: SharedCell<u32> = SharedCell::<u32>::new(1);
/// The last stamp that was given; 0: none was given in this process.
static LAST_STAMP: AtomicU32 = AtomicU32::new(0);
static LOCK: netacc_sys::Lock<{ netacc_sys::lock_rank::LEAF }> = netacc_sys::Lock::new();

/// Chunk of an index, and its position in the chunk.
fn place(index: u32) -> (usize, usize) {
    let chunk = (index / FIRST + 1).ilog2();
    (chunk as usize, (index - ((1 << chunk) - 1) * FIRST) as usize)
}

fn cell(index: u32) -> Option<&'static AtomicU64> {
    let (chunk, at) = place(index);
    // Acquire pairs with the publication in `make_cell`.
    let chunk = TABLE.get(chunk)?.load(Ordering::Acquire);
    if chunk.is_null() {
        return None;
    }
    // SAFETY: chunk k has FIRST << k cells, which `place` stays below, and is never unmapped.
    Some(unsafe { &*chunk.add(at) })
}

/// The cell of an index, whose chunk is made if there is none. Called under `LOCK`.
fn make_cell(index: u32) -> Result<&'static AtomicU64> {
    let (chunk, _) = place(index);
    let entry = TABLE.get(chunk).ok_or(Errno::NOMEM)?;
    if entry.load(Ordering::Relaxed).is_null() {
        let cells: &'static [AtomicU64] = mem::array((FIRST << chunk) as usize)?;
        // Release: a thread that sees the chunk sees its zeros.
        entry.store(cells.as_ptr().cast_mut(), Ordering::Release);
    }
    cell(index).ok_or(Errno::NOMEM)
}

fn next_stamp() -> u32 {
    if LAST_STAMP.load(Ordering::Relaxed) == 0 {
        let mut random = [0u8; 4];
        let word = match getrandom(&mut random, GetRandomFlags::NONBLOCK) {
            Ok(4) => u32::from_ne_bytes(random),
            _ => cpu::ticks() as u32,
        };
        // If another thread was first, its word stays. Relaxed: the number guards no other data.
        let _ = LAST_STAMP.compare_exchange(0, word | 1, Ordering::Relaxed, Ordering::Relaxed);
    }
    loop {
        match LAST_STAMP.fetch_add(1, Ordering::Relaxed).wrapping_add(1) & STAMP_MASK {
            0 => {}
            stamp => return stamp,
        }
    }
}

/// Gives an object that is about to be used a new stamp, and an index if it has none. Cookies of an earlier use name
/// nothing from here on.
pub(crate) fn enter<T: Nameable>(obj: &'static T) -> Result<()> {
    let name = obj.name();
    if name.index.load(Ordering::Relaxed) == 0 {
        let _g = LOCK.lock();
        let index = NEXT_INDEX.get();
        // Release: a thread that finds the object by its cell sees it whole.
        make_cell(index)?.store(core::ptr::from_ref(obj) as u64 | T::TYPE, Ordering::Release);
        NEXT_INDEX.set(index + 1);
        name.index.store(index, Ordering::Relaxed);
    }
    // Relaxed: an event with the new stamp was registered later, by a system call.
    name.stamp.store(next_stamp(), Ordering::Relaxed);
    Ok(())
}

/// Called in the child of a fork: begins a new series of stamps, so that cookies of parent and child cannot be
/// confused.
pub(super) fn after_fork() {
    LAST_STAMP.store(0, Ordering::Relaxed);
}

/// The cookie of an object that has an index and a stamp.
pub(crate) fn cookie<T: Nameable>(kind: Kind, obj: &T) -> u64 {
    let name = obj.name();
    let (index, stamp) = (name.index.load(Ordering::Relaxed), name.stamp.load(Ordering::Relaxed));
    MAGIC | (kind as u64) << KIND_SHIFT | u64::from(stamp) << INDEX_BITS | u64::from(index)
}

/// Whether an application's value has the form of a cookie.
pub(crate) fn looks_like_cookie(data: u64) -> bool {
    data >> MAGIC_SHIFT == MAGIC >> MAGIC_SHIFT
}

/// The object of type `T` that a cookie names, if any.
fn find<T: Nameable>(data: u64) -> Option<&'static T> {
    let index = data as u32 & INDEX_MASK;
    // Acquire pairs with `enter`.
    let word = cell(index)?.load(Ordering::Acquire);
    if word & TYPE_MASK != T::TYPE {
        return None;
    }
    // SAFETY: the cell's low bits say that an object of type `T` is at the address, and objects are never freed.
    let obj = unsafe { &*((word & !TYPE_MASK) as *const T) };
    let stamp = (data >> INDEX_BITS) as u32 & STAMP_MASK;
    (obj.name().stamp.load(Ordering::Relaxed) == stamp).then_some(obj)
}

fn named(data: u64) -> Option<Named> {
    Some(match data >> KIND_SHIFT & 15 {
        1 => Named::Listener(find(data)?),
        2 => Named::Rendezvous(find(data)?),
        3 => Named::Waker(find(data)?),
        4 => Named::Control(find(data)?),
        5 => Named::Foreign(find(data)?),
        6 => Named::Liveness(find(data)?),
        7 => find::<Epoll>(data).map(|_| Named::Kick)?,
        8 => Named::Nested(find(data)?),
        9 => Named::Candidate(find(data)?),
        10 => find::<Epoll>(data).map(|_| Named::Program)?,
        11 => find::<Epoll>(data).map(|_| Named::WakePipe)?,
        _ => return None,
    })
}

/// What a value in the kernel's set is.
#[inline]
pub(super) fn open(data: u64) -> Value {
    if !looks_like_cookie(data) {
        return Value::Program;
    }
    named(data).map_or(Value::Stranger, Value::Ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_fill_the_chunks_in_order() {
        let mut expected = (0, 0);
        for index in 0..FIRST * 31 {
            assert_eq!(place(index), expected);
            expected.1 += 1;
            if expected.1 == (FIRST as usize) << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert!(place(INDEX_MASK).0 <= CHUNKS);
    }

    #[test]
    fn a_cookie_names_its_object_in_its_use_alone() {
        let reg = crate::epoll::registration::new_registration().unwrap();
        let mine = cookie(Kind::Liveness, reg);
        assert!(looks_like_cookie(mine));
        assert!(matches!(open(mine), Value::Ours(Named::Liveness(r)) if core::ptr::eq(r, reg)));
        // The cookie of a registration names no subscription and no instance.
        assert!(matches!(open(cookie(Kind::Waker, reg)), Value::Stranger));
        assert!(matches!(open(cookie(Kind::Kick, reg)), Value::Stranger));
        enter(reg).unwrap();
        assert!(matches!(open(mine), Value::Stranger));
        assert!(matches!(open(cookie(Kind::Liveness, reg)), Value::Ours(Named::Liveness(_))));
    }

    #[test]
    fn any_value_is_something() {
        for high in [0, 0xACC0, 0xACC7, 0xACC9, 0xACCA, 0xACCF, 0xACBF, 0xACD0, 0xffff] {
            for low in [0, 1, 63, 0xff_ffff, 0x1_0000_0000, 0xffff_ffff_ffff] {
                let data = high << 48 | low;
                let ours = looks_like_cookie(data);
                assert_eq!(ours, (0xACC0..=0xACCF).contains(&high));
                assert_eq!(matches!(open(data), Value::Program), !ours);
            }
        }
        assert!(matches!(open(NOBODY), Value::Stranger));
    }
}
