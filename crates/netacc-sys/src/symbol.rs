//! Symbols by name: the next definition after ours, or the first one anywhere.
//!
//! Before glibc 2.34 dlsym(3) is in a library that the program need not have, and allocates memory at its first use in
//! a thread. A hook that looks its libc function up may have been called by an allocator that is just being set up
//! (jemalloc reads files then), which would wait for itself for ever. musl's allocates where it finds nothing. So under
//! these the tables of the loaded objects are read here: no allocation, no lock but the linker's own for its list.

#![allow(unsafe_code)]

use crate::libc_kind::{self, Libc};
pub use crate::symbol_tables::search_from;
use crate::symbol_tables::{self, first_copy, walk};
use core::ffi::{CStr, c_char, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// dlsym(3), once it is known.
static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// The function for [`search_from`] that a copy that takes this one's place is to use.
pub fn searcher() -> *mut c_void {
    first_copy().map_or(next_here as *mut c_void, |first| first as *mut c_void)
}

/// What `dlsym(RTLD_NEXT, name)` gives to the object that the linker has loaded; null if there is no such symbol.
pub fn next(name: &CStr) -> *mut c_void {
    first_copy().map_or_else(|| next_here(name.as_ptr()), |first| first(name.as_ptr()))
}

extern "C" fn next_here(name: *const c_char) -> *mut c_void {
    // SAFETY: a NUL-terminated name, as both callers give it.
    let name = unsafe { CStr::from_ptr(name) };
    by_linker(libc::RTLD_NEXT, name).unwrap_or_else(|| walk(name, true))
}

/// The first definition of a symbol in the process; null if there is none.
pub fn any(name: &CStr) -> *mut c_void {
    by_linker(libc::RTLD_DEFAULT, name).unwrap_or_else(|| walk(name, false))
}

/// The definition of a symbol in the object that the linker has loaded at this address; null if there is none.
pub fn in_object(address: *const c_void, name: &CStr) -> *mut c_void {
    symbol_tables::in_object(address.addr(), name)
}

/// The first definition of a symbol in the objects behind the one that the linker has loaded at this address; null if there is
/// none. That is no look-up of the linker's, so it leaves no error for dlerror(3).
pub fn after(address: *const c_void, name: &CStr) -> *mut c_void {
    symbol_tables::after(address.addr(), name)
}

/// The definition of a symbol in an object of which the caller knows where its tables are; null if there is none.
///
/// # Safety
/// `dynamic` is the address of the dynamic section of an object that is loaded at `base` and stays so.
pub unsafe fn in_tables(base: *const c_void, dynamic: *const c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the caller guarantees the object.
    unsafe { symbol_tables::definition_in(base.addr(), dynamic.addr(), name) }
}

/// The result of dlsym(3), if it may be called.
fn by_linker(from: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    if !matches!(libc_kind::libc(), Libc::Glibc(minor) if minor >= 34) {
        return None;
    }
    // Relaxed: every thread finds the same address, and the code there needs no ordering.
    let mut function = DLSYM.load(Ordering::Relaxed);
    if function.is_null() {
        // Ours would answer with functions of ours, and one of another preloaded library by what is next after that.
        function = symbol_tables::of_libc(c"dlsym").unwrap_or_else(|| symbol_tables::next(c"dlsym"));
        DLSYM.store(function, Ordering::Relaxed);
    }
    if function.is_null() {
        return None;
    }
    // SAFETY: libc's function of this signature, and a NUL-terminated name. What is next depends on the object that the
    // call comes from, which is ours.
    unsafe {
        let function: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void = core::mem::transmute(function);
        let found = function(from, name.as_ptr());
        // A call in tail position may be compiled as a jump, and dlsym(3) then takes our caller for its own. After an exchange
        // that caller is in the new copy of the library, which the linker does not know.
        Some(core::hint::black_box(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walk_finds_what_dlsym_finds() {
        for name in [
            c"read",
            c"write",
            c"close",
            c"socket",
            c"fcntl",
            c"poll",
            c"epoll_wait",
            c"fork",
            c"fclose",
            c"recvmmsg",
            c"memcpy",
            c"environ",
        ] {
            // SAFETY: a NUL-terminated name.
            let expected = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
            assert!(!expected.is_null());
            assert_eq!((walk(name, true), next(name)), (expected, expected), "{name:?}");
        }
        assert!(walk(c"netacc_no_such_function", true).is_null());
        let read = next(c"read");
        assert_eq!((in_object(read, c"read"), in_object(read, c"netacc_no_such_function")), (read, ptr::null_mut()));
        assert!(in_object(ptr::null(), c"read").is_null(), "no object has this address");
        assert_eq!(walk(c"errno", false), ptr::null_mut(), "a thread's variable");
    }
}
