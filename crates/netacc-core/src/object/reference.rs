//! References to the library's objects. Objects are recycled and never freed, so a reference always points to valid
//! memory, and the generation tells whether the object is still the one that was looked up.

use core::sync::atomic::{AtomicPtr, Ordering};
use netacc_sys::slab::Pooled;

/// An object, with the generation that it had when it was looked up.
#[derive(Debug)]
pub struct Ref<T: 'static> {
    /// The object that was looked up.
    pub obj: &'static T,
    /// Generation of the object at the look-up.
    pub generation: u16,
}

impl<T> Clone for Ref<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ref<T> {}

impl<T> PartialEq for Ref<T> {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self.obj, other.obj) && self.generation == other.generation
    }
}

/// Takes an object out of the list that begins at `head`, if it is there. Under the list's lock.
pub(crate) fn take_out<T: Pooled>(
    head: &'static AtomicPtr<T>,
    object: &T,
    next: impl Fn(&'static T) -> &'static AtomicPtr<T>,
) {
    let mut cell = head;
    while let Some(x) = at(cell.load(Ordering::Relaxed)) {
        if core::ptr::eq(x, object) {
            // Release: a thread that goes through the list without the lock sees what the next object is.
            cell.store(next(x).load(Ordering::Relaxed), Ordering::Release);
            break;
        }
        cell = next(x);
    }
}

/// The object behind a pointer kept in one of our atomics.
///
/// This is only for types that are kept in a [`Slab`](netacc_sys::slab::Slab): their memory is valid for ever.
#[allow(unsafe_code)]
pub(crate) fn at<T: Pooled>(p: *mut T) -> Option<&'static T> {
    // SAFETY: our atomics hold null or the address of a slab object.
    unsafe { p.as_ref() }
}
