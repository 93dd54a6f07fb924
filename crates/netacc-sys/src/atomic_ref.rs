//! A word that refers to an object which is never freed, or to none.
#![allow(unsafe_code)]

use crate::mem::Zeroed;
use core::iter::successors;
use core::sync::atomic::{AtomicPtr, Ordering};

/// A reference to an object that is never freed, or to none, which threads share. Zeroed memory refers to none.
///
/// A thread that finds an object by [`load`](AtomicRef::load) sees what another one stored in the object before
/// [`store`](AtomicRef::store). [`get`](AtomicRef::get) and [`set`](AtomicRef::set) do without that. They are for a word that a
/// lock guards, and for a look without the lock, which may find an object that is used anew meanwhile.
#[repr(transparent)]
#[derive(Debug)]
pub struct AtomicRef<T: 'static>(AtomicPtr<T>);

// SAFETY: zeroes are the null pointer, which is no object.
unsafe impl<T: Sync> Zeroed for AtomicRef<T> {}

fn pointer<T>(object: Option<&'static T>) -> *mut T {
    object.map_or(core::ptr::null_mut(), |object| core::ptr::from_ref(object).cast_mut())
}

impl<T: Sync> AtomicRef<T> {
    /// Refers to no object.
    pub const fn none() -> Self {
        AtomicRef(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// The object.
    #[inline]
    pub fn load(&self) -> Option<&'static T> {
        // SAFETY: the word is null, as in zeroed memory, or made of a `&'static T` by `pointer`. Acquire: the object is seen as
        // it was at the store.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Refers to `to` from now on.
    #[inline]
    pub fn store(&self, to: Option<&'static T>) {
        self.0.store(pointer(to), Ordering::Release);
    }

    /// Refers to `to` from now on, and returns the object before.
    #[inline]
    pub fn swap(&self, to: Option<&'static T>) -> Option<&'static T> {
        // SAFETY: as in `load`.
        unsafe { self.0.swap(pointer(to), Ordering::AcqRel).as_ref() }
    }

    /// Refers to `to` from now on if it refers to `from`, and returns whether it does.
    #[inline]
    pub fn change(&self, from: Option<&'static T>, to: Option<&'static T>) -> bool {
        self.0.compare_exchange(pointer(from), pointer(to), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The object, which is made if there is none. If several threads make one at the same time, the first one is used.
    pub fn or_make(&self, make: impl FnOnce() -> Option<&'static T>) -> Option<&'static T> {
        self.load().or_else(|| {
            self.change(None, Some(make()?));
            self.load()
        })
    }

    /// Whether it refers to this object.
    #[inline]
    pub fn is(&self, object: &T) -> bool {
        core::ptr::eq(self.0.load(Ordering::Relaxed), object)
    }

    /// Whether it refers to no object.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.0.load(Ordering::Relaxed).is_null()
    }
}

/// The functions for objects that are valid from their first byte on, so that no thread has to see what was stored in them.
impl<T: Zeroed> AtomicRef<T> {
    /// The object, which may have been used anew meanwhile if no lock guards the word.
    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        // SAFETY: as in `load`, and a `T` is valid as zeroes.
        unsafe { self.0.load(Ordering::Relaxed).as_ref() }
    }

    /// Refers to `to` from now on. Under the lock that guards the word.
    #[inline]
    pub fn set(&self, to: Option<&'static T>) {
        self.0.store(pointer(to), Ordering::Relaxed);
    }

    /// Makes `object` the first of the list that begins here, without a lock: such a list only grows.
    pub fn push(&self, object: &'static T, next: &AtomicRef<T>) {
        loop {
            let first = self.get();
            next.set(first);
            if self.change(first, Some(object)) {
                return;
            }
        }
    }

    /// The objects of the list that begins here, each of which may be taken out under the list's lock when it is returned. A thread
    /// without the lock may walk a list from which nothing is taken.
    #[inline]
    pub fn list<N>(&self, next: N) -> impl Iterator<Item = &'static T> + use<T, N>
    where
        N: Fn(&'static T) -> &'static AtomicRef<T>,
    {
        successors(self.load(), move |object| next(object).load())
    }

    /// Takes an object out of the list that begins here. False: it is not there. Under the list's lock.
    pub fn take_out(&'static self, object: &T, next: impl Fn(&'static T) -> &'static AtomicRef<T>) -> bool {
        let mut word = self;
        while let Some(at) = word.get() {
            if core::ptr::eq(at, object) {
                // A thread that goes through the list without the lock sees what the next object is.
                word.store(next(at).get());
                return true;
            }
            word = next(at);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Node {
        next: AtomicRef<Node>,
    }

    // SAFETY: a word that may be zero.
    unsafe impl Zeroed for Node {}

    fn next(node: &'static Node) -> &'static AtomicRef<Node> {
        &node.next
    }

    #[test]
    fn a_list_loses_what_is_taken_out_alone() {
        static LIST: AtomicRef<Node> = AtomicRef::none();
        static NODES: [Node; 3] = [const { Node { next: AtomicRef::none() } }; 3];
        let [first, second, third] = &NODES;
        NODES.iter().for_each(|node| LIST.push(node, &node.next));
        let is_list = |nodes: &[&Node]| {
            LIST.list(next).map(core::ptr::from_ref).eq(nodes.iter().map(|node| core::ptr::from_ref(*node)))
        };
        assert!(is_list(&[third, second, first]));
        assert!(LIST.take_out(second, next) && !LIST.take_out(second, next));
        assert!(is_list(&[third, first]));
        assert!(LIST.take_out(third, next) && LIST.is(first) && LIST.take_out(first, next));
        assert!(is_list(&[]));
    }
}
