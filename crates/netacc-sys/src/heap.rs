//! The memory in which the preloaded library keeps what it allocates: dlmalloc over mappings of our own.
//!
//! The program's malloc(3) may be what has called us, and may hold its lock meanwhile; so it is not used. What we
//! allocate is rare and small: tables and texts, not the bytes of connections.
//!
//! The lock is one of [`crate::lock`], so a signal handler that interrupts an allocation finds that this thread is
//! inside ([`crate::lock::interrupted`]). Around a fork the forking thread has it, so that the child finds the memory
//! at rest.
//!
//! # Safety
//! The state is reached with the lock held alone, or by the thread that has it for a fork. What the kernel maps is given
//! to dlmalloc whole, and taken back only as dlmalloc says.
#![allow(unsafe_code)]

use crate::lock::{self, Lock};
use crate::lock_rank;
use crate::mem;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU64, Ordering};
use dlmalloc::Dlmalloc;
use rustix::mm::{MremapFlags, mremap, munmap};

/// How long (ns) a fork in a signal handler waits for another thread's allocation.
const PATIENCE: u64 = 100_000_000;

/// Mappings for dlmalloc.
#[derive(Debug)]
struct Pages;

// SAFETY: fresh private mappings, given back when dlmalloc says so.
unsafe impl dlmalloc::Allocator for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        mem::map(size).map_or((ptr::null_mut(), 0, 0), |at| (at.as_ptr(), size, 0))
    }

    fn remap(&self, at: *mut u8, old: usize, new: usize, may_move: bool) -> *mut u8 {
        let flags = if may_move { MremapFlags::MAYMOVE } else { MremapFlags::empty() };
        // SAFETY: dlmalloc's own mapping.
        let to: *mut u8 = unsafe { mremap(at.cast(), old, new, flags) }.map_or(ptr::null_mut(), |at| at.cast());
        if !to.is_null() {
            mem::moved(at, to, new);
        }
        to
    }

    fn free_part(&self, at: *mut u8, old: usize, new: usize) -> bool {
        // Noted before: another thread may get the range at once.
        mem::moved(at, at, new);
        // SAFETY: the end of dlmalloc's own mapping.
        unsafe { munmap(at.wrapping_add(new).cast(), old - new).is_ok() }
    }

    fn free(&self, at: *mut u8, size: usize) -> bool {
        mem::moved(at, ptr::null_mut(), 0);
        // SAFETY: dlmalloc's own mapping.
        NonNull::new(at).is_some_and(|at| unsafe { munmap(at.as_ptr().cast(), size).is_ok() })
    }

    fn can_release_part(&self, _flags: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        mem::LARGEST_PAGE
    }
}

/// The memory, for `#[global_allocator]`.
#[derive(Debug)]
pub struct Heap;

struct State(UnsafeCell<Dlmalloc<Pages>>);

// SAFETY: `with` alone accesses the state, and only in the thread that holds the lock, or that has taken it for a fork.
unsafe impl Sync for State {}

static STATE: State = State(UnsafeCell::new(Dlmalloc::new_with_allocator(Pages)));
static LOCK: Lock<{ lock_rank::HEAP }> = Lock::new();
/// The thread that has the lock for a fork; 0: none has. Written with the lock held.
static FORKING: AtomicU64 = AtomicU64::new(0);

/// Does `work` with the state.
fn with<T>(work: impl FnOnce(&mut Dlmalloc<Pages>) -> T) -> T {
    // Relaxed: only this thread writes its own mark.
    if FORKING.load(Ordering::Relaxed) == lock::thread_mark() {
        // What is called between the two halves of a fork, such as a function of pthread_atfork(3), may allocate.
        let _inside = lock::Held::one_more();
        // SAFETY: this thread has the lock.
        return work(unsafe { &mut *STATE.0.get() });
    }
    let _guard = LOCK.lock();
    // SAFETY: the lock is held.
    work(unsafe { &mut *STATE.0.get() })
}

// SAFETY: dlmalloc fulfils the contract with each layout.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: any size and alignment is taken.
        with(|state| unsafe { state.malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: any size and alignment is taken.
        with(|state| unsafe { state.calloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller of `dealloc` guarantees a block of this allocator with this layout.
        with(|state| unsafe { state.free(at, layout.size(), layout.align()) });
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller of `realloc` guarantees a block of this allocator with this layout.
        with(|state| unsafe { state.realloc(at, layout.size(), layout.align(), size) })
    }
}

/// Called by the thread that is about to fork, at the latest moment there is: other threads allocate nothing from here
/// on.
pub fn before_fork() {
    if FORKING.load(Ordering::Relaxed) == lock::thread_mark() {
        return;
    }
    // A handler that interrupted an allocation of its own thread has the lock below it. In the child that allocation
    // goes on as in the parent.
    let guard = if lock::interrupted() { LOCK.lock_within(PATIENCE) } else { Some(LOCK.lock()) };
    if let Some(guard) = guard {
        FORKING.store(lock::thread_mark(), Ordering::Relaxed);
        // The thread is not inside an allocation meanwhile.
        guard.keep_uncounted();
    }
}

/// Called in the child of a fork, whose only thread may have another mark than the one that forked.
pub fn in_child() {
    // Where no thread has the lock for the fork, a handler has forked that interrupted an allocation, which goes on.
    if FORKING.load(Ordering::Relaxed) != 0 {
        FORKING.store(0, Ordering::Relaxed);
        LOCK.release_uncounted();
    } else {
        LOCK.keep_in_child();
    }
}

/// Called by the same thread after the fork, in the parent.
pub fn after_fork() {
    if FORKING.load(Ordering::Relaxed) == lock::thread_mark() {
        FORKING.store(0, Ordering::Relaxed);
        LOCK.release_uncounted();
    }
}

#[cfg(test)]
#[allow(clippy::undocumented_unsafe_blocks, reason = "each pointer comes from the heap and goes back to it once")]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    #[test]
    fn threads_allocate_at_once() {
        std::thread::scope(|s| {
            for seed in 1..5u64 {
                s.spawn(move || {
                    let mut x = seed;
                    let mut held: Vec<(usize, Layout, u8)> = Vec::new();
                    for _ in 0..20_000 {
                        x ^= x << 13;
                        x ^= x >> 7;
                        x ^= x << 17;
                        if x % 3 == 0 && !held.is_empty() {
                            let (at, layout, mark) = held.swap_remove(x as usize % held.len());
                            let bytes = unsafe { core::slice::from_raw_parts(at as *const u8, layout.size()) };
                            assert!(bytes.iter().all(|b| *b == mark));
                            unsafe { Heap.dealloc(at as *mut u8, layout) };
                            continue;
                        }
                        let size = 1 + x as usize % if x % 64 == 0 { 300_000 } else { 500 };
                        let layout = layout(size, 1 << ((x >> 20) % 8));
                        let at = unsafe { Heap.alloc(layout) };
                        assert!(!at.is_null() && at.addr() % layout.align() == 0);
                        unsafe { at.write_bytes(x as u8, size) };
                        held.push((at.expose_provenance(), layout, x as u8));
                    }
                    held.iter().for_each(|(at, layout, _)| unsafe { Heap.dealloc(*at as *mut u8, *layout) });
                });
            }
        });
        let grown = unsafe {
            let at = Heap.alloc_zeroed(layout(100, 8));
            Heap.realloc(at, layout(100, 8), 1 << 20)
        };
        assert!(unsafe { core::slice::from_raw_parts(grown, 100) }.iter().all(|b| *b == 0));
        unsafe { Heap.dealloc(grown, layout(1 << 20, 8)) };
    }

    #[test]
    fn the_forking_thread_may_allocate_and_others_wait() {
        before_fork();
        before_fork();
        assert!(!lock::interrupted());
        let at = unsafe { Heap.alloc(layout(64, 8)) };
        let at = at.expose_provenance();
        let waits = std::thread::spawn(move || unsafe { Heap.dealloc(at as *mut u8, layout(64, 8)) });
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!waits.is_finished());
        after_fork();
        after_fork();
        waits.join().unwrap();
    }
}
