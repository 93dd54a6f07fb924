//! The dynamic linker's functions (dlopen(3), dladdr(3)), found by name: before glibc 2.34 they are in a library of
//! their own, which the program need not have.
//!
//! # Safety
//! Opening a library runs its constructors, as in a program that is linked with it.
#![allow(unsafe_code)]

use crate::{origin, symbol};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// dlerror(3), once it is known: a look-up clears what it would say.
static ERROR: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Opens a library (dlopen(3)); null if it cannot be opened. None is loaded once the process has another root than at
/// its start, under which somebody else may have put another file at the library's path.
pub fn open(file: &CStr, flags: c_int) -> *mut c_void {
    if flags & libc::RTLD_NOLOAD == 0 && !origin::is_same_root() {
        return ptr::null_mut();
    }
    // Relaxed: every thread finds the same address, and the code there needs no ordering.
    ERROR.store(symbol::any(c"dlerror"), Ordering::Relaxed);
    // glibc before 2.34 has one of its own for its name services.
    let mut function = symbol::any(c"dlopen");
    if function.is_null() {
        function = symbol::any(c"__libc_dlopen_mode");
    }
    if function.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: libc's function of this signature, and a NUL-terminated name.
    unsafe {
        let function: unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void = core::mem::transmute(function);
        function(file.as_ptr(), flags)
    }
}

/// The address of a symbol of an open library (dlsym(3)); null if there is none.
///
/// # Safety
/// `library` comes from [`open`], or is one of dlsym's own constants.
pub unsafe fn symbol(library: *mut c_void, name: &CStr) -> *mut c_void {
    // Ours would answer with functions of ours.
    let mut function = symbol::next(c"dlsym");
    if function.is_null() {
        function = symbol::any(c"__libc_dlsym");
    }
    if function.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: libc's function of this signature and a NUL-terminated name; the caller guarantees the rest of its
    // contract.
    unsafe {
        let function: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void = core::mem::transmute(function);
        function(library, name.as_ptr())
    }
}

/// The definition of a symbol in a library, if the library is loaded.
pub fn loaded(library: &CStr, name: &CStr) -> *mut c_void {
    // The library is only found, not loaded. It stays held, since what was found in it is used.
    let handle = open(library, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
    // SAFETY: an open library.
    if handle.is_null() { ptr::null_mut() } else { unsafe { symbol(handle, name) } }
}

/// The linker's error of the last [`open`] (dlerror(3)): null or a NUL-terminated string of this thread.
pub fn error() -> *const c_char {
    let function = ERROR.load(Ordering::Relaxed);
    if function.is_null() {
        return ptr::null();
    }
    // SAFETY: libc's function, which takes nothing.
    unsafe {
        let function: unsafe extern "C" fn() -> *const c_char = core::mem::transmute(function);
        function()
    }
}

/// What is known of the object that an address lies in (dladdr(3)), which is only looked up.
#[allow(clippy::not_unsafe_ptr_arg_deref, reason = "the address is not used as a pointer")]
pub fn object_of(address: *const c_void) -> Option<libc::Dl_info> {
    let function = symbol::any(c"dladdr");
    if function.is_null() {
        return None;
    }
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: libc's function of this signature, with room for its answer; all zero is one as well.
    unsafe {
        let function: unsafe extern "C" fn(*const c_void, *mut libc::Dl_info) -> c_int = core::mem::transmute(function);
        (function(address, info.as_mut_ptr()) != 0).then(|| info.assume_init())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_opened_and_searched() {
        let library = open(c"libc.so.6", libc::RTLD_NOW);
        // SAFETY: an open library.
        let read = unsafe { symbol(library, c"read") };
        assert!(!library.is_null() && !read.is_null() && !object_of(read).unwrap().dli_fbase.is_null());
        assert_eq!(loaded(c"libc.so.6", c"read"), read);
        assert!(open(c"libnetacc-is-not-there.so.1", libc::RTLD_NOW).is_null() && !error().is_null());
    }
}
