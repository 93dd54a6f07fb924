//! References to the library's objects. Objects are recycled and never freed, so a reference always points to valid
//! memory, and the generation tells whether the object is still the one that was looked up.

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

/// The object at an address that a transport keeps for us; `None`: 0.
///
/// This is only for types that are kept in a [`Slab`](netacc_sys::slab::Slab): their memory is valid for ever.
#[allow(unsafe_code)]
pub(crate) fn at<T: Pooled>(address: usize) -> Option<&'static T> {
    // SAFETY: 0, or the address of a slab object, which the caller has stored.
    unsafe { (address as *const T).as_ref() }
}
