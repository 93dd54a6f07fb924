//! Type-stable objects: memory that once held a `T` holds a `T` for ever, so a reference that a slow
//! thread still has is never a wild pointer, only perhaps a recycled object (which carries a
//! generation to tell).

use crate::atomic_ref::AtomicRef;
use crate::lock::Lock;
use crate::lock_rank;
use crate::mem::{self, Zeroed};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Objects that can be kept in a [`Slab`].
pub trait Pooled: Zeroed + 'static {
    /// The link of the free list; used by the slab only.
    fn next_free(&self) -> &AtomicRef<Self>
    where
        Self: Sized;
}

/// A free list of `T` fed by chunks from the kernel.
#[derive(Debug)]
pub struct Slab<T: 'static> {
    lock: Lock<{ lock_rank::LEAF }>,
    free: AtomicRef<T>,
    chunk: AtomicU32,
    /// The objects of the last chunk that nobody has had yet: the first of them, and their number. They are not in the
    /// list, which would touch a page of each.
    fresh: AtomicPtr<T>,
    left: AtomicU32,
}

impl<T: Pooled> Slab<T> {
    /// An empty slab; no memory is mapped before the first object is requested.
    pub const fn new() -> Slab<T> {
        Slab {
            lock: Lock::new(),
            free: AtomicRef::none(),
            // Large objects are links, of which most processes have one or two.
            chunk: AtomicU32::new(if size_of::<T>() > 4096 { 2 } else { 8 }),
            fresh: AtomicPtr::new(core::ptr::null_mut()),
            left: AtomicU32::new(0),
        }
    }

    /// An object in whatever state it was released in (all zero when fresh), or `None` if there is no memory.
    pub fn alloc(&'static self) -> Option<&'static T> {
        let _g = self.lock.lock();
        if let Some(obj) = self.pop().or_else(|| self.next_fresh()) {
            return Some(obj);
        }
        // Chunks double: a process with one socket pays for a page, one with 10,000 for few maps.
        let n = self.chunk.load(Ordering::Relaxed);
        self.chunk.store((n * 2).min(1024), Ordering::Relaxed);
        let objs: &'static [T] = mem::array(n as usize).ok()?;
        self.fresh.store(objs.as_ptr().cast_mut(), Ordering::Relaxed);
        self.left.store(n, Ordering::Relaxed);
        self.next_fresh()
    }

    #[allow(unsafe_code)]
    fn next_fresh(&self) -> Option<&'static T> {
        let left = self.left.load(Ordering::Relaxed).checked_sub(1)?;
        let p = self.fresh.load(Ordering::Relaxed);
        self.left.store(left, Ordering::Relaxed);
        self.fresh.store(p.wrapping_add(1), Ordering::Relaxed);
        // SAFETY: the two words are only written here and in `alloc`, under the lock: `p` is the first of `left + 1` objects
        // at the end of a `&'static [T]`.
        let obj: &'static T = unsafe { p.as_ref() }?;
        // A page that is read first is faulted in twice: as the kernel's page of zeroes, and at the first write.
        obj.next_free().set(None);
        Some(obj)
    }

    /// Gives an object back. The caller must have bumped its generation.
    pub fn release(&'static self, obj: &'static T) {
        let _g = self.lock.lock();
        self.push(obj);
    }

    fn push(&self, obj: &'static T) {
        obj.next_free().set(self.free.get());
        self.free.set(Some(obj));
    }

    fn pop(&self) -> Option<&'static T> {
        let obj = self.free.get()?;
        self.free.set(obj.next_free().get());
        Some(obj)
    }
}

impl<T: Pooled> Default for Slab<T> {
    fn default() -> Self {
        Self::new()
    }
}
