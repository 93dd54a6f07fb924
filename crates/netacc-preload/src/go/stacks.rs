//! Stacks on which the library's code runs, since a goroutine's has a few hundred bytes left.
//!
//! A thread takes a free one for each call, beginning at a place that its thread pointer chooses, so that it finds the
//! same one again and shares it with nobody. A call that a signal handler makes while its thread is in one finds the
//! next. Nothing has to be done when a thread ends.

use core::ffi::c_void;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use netacc_sys::mem;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

/// How many there are. More threads than that cannot be in calls on our descriptors at once: the next one waits. Go's
/// own sockets never block in a call, so that few threads are.
pub const COUNT: usize = 1 << COUNT_BITS;
pub const COUNT_BITS: usize = 10;
/// Length of each, of which the first [`GUARD`] bytes cannot be accessed.
pub const LENGTH: usize = 1 << LENGTH_BITS;
pub const LENGTH_BITS: usize = 17;
pub const GUARD: usize = 4096;

/// The stack's memory cannot be accessed yet: it was never used.
pub const UNMADE: u32 = 0;
/// A thread uses it.
pub const BUSY: u32 = 1;
/// It is free.
pub const FREE: u32 = 2;

/// The state of a stack, in a cache line of its own.
#[repr(C, align(64))]
pub struct State(pub AtomicU32);

/// Distance of two states.
pub const STATE_BITS: usize = 6;
const _: () = assert!(size_of::<State>() == 1 << STATE_BITS);

netacc_sys::tables! {
    pub static STATES: [State; COUNT] = [const { State(AtomicU32::new(UNMADE)) }; COUNT];
}

/// Where the first stack begins.
pub static AREA: AtomicUsize = AtomicUsize::new(0);

/// The stack on which the program ends, which is no thread's otherwise: [`BUSY`] once a thread ends the program.
pub static EXIT_STATE: State = State(AtomicU32::new(FREE));

/// Reserves the address space, one stack more than there are states for. False if that is not possible.
pub fn prepare() -> bool {
    let whole = (COUNT + 1) << LENGTH_BITS;
    if !mem::is_affordable(whole) {
        return false;
    }
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh private mapping overlaps nothing.
    let Ok(area) = (unsafe { mmap_anonymous(ptr::null_mut(), whole, ProtFlags::empty(), flags) }) else { return false };
    // The last one is for the end. The first one is made now so that there is always one.
    for at in [0, COUNT] {
        // SAFETY: part of the mapping, and nobody knows of it yet.
        let opened = unsafe {
            let stack = area.cast::<u8>().add((at << LENGTH_BITS) + GUARD).cast::<c_void>();
            mprotect(stack, LENGTH - GUARD, MprotectFlags::READ | MprotectFlags::WRITE)
        };
        if opened.is_err() {
            if let Some(area) = NonNull::new(area.cast()) {
                // SAFETY: nobody refers to it.
                unsafe { mem::unmap(area, whole) };
            }
            return false;
        }
    }
    // Relaxed: there is one thread.
    if let Some(first) = STATES.first() {
        first.0.store(FREE, Ordering::Relaxed);
    }
    AREA.store(area.expose_provenance(), Ordering::Relaxed);
    true
}
