//! What the preloaded library takes from libc by reference: a handful of weak symbols, each of which may be absent.
//!
//! A strong reference would name a library that the process must have, and a version of it. A loader that finds either
//! missing ends the program before it has begun. An absent weak symbol is a null pointer. Everything else of libc is
//! looked up by name: see [`crate::symbol`].
#![allow(unsafe_code)]

use crate::static_program;
use core::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use core::ptr;

/// Declares weak symbols and the cells in which the loader stores their addresses. A cell has a name of its own,
/// because the compiler takes a function's own address to be not null.
macro_rules! weak_symbols {
    ($( $symbol:literal in $cell:ident; )*) => {
        $(core::arch::global_asm!(
            concat!(".weak ", $symbol),
            ".pushsection .data.rel.ro.netacc_weak, \"aw\"",
            ".balign 8",
            concat!(".globl ", stringify!($cell)),
            concat!(".hidden ", stringify!($cell)),
            concat!(stringify!($cell), ":"),
            concat!(".quad ", $symbol),
            ".popsection",
        );)*

        unsafe extern "C" {
            $(static $cell: *mut c_void;)*
        }
    };
}

weak_symbols! {
    "dl_iterate_phdr" in netacc_weak_dl_iterate_phdr;
    "environ" in netacc_weak_environ;
    "getauxval" in netacc_weak_getauxval;
    "gnu_get_libc_version" in netacc_weak_gnu_get_libc_version;
    "pthread_self" in netacc_weak_pthread_self;
    "__errno_location" in netacc_weak_errno_location;
    "_r_debug" in netacc_weak_r_debug;
    "_dl_debug_addr" in netacc_weak_dl_debug_addr;
}

/// Reads a cell. The compiler must not take the value for constant: the loader writes it.
macro_rules! address {
    ($cell:ident) => {{
        // SAFETY: a word that the loader has written before any code of ours runs.
        unsafe { ptr::read_volatile(&raw const $cell) }
    }};
}

/// dl_iterate_phdr(3) as the process finds it: libc's, or one of the program's own; null where there is none.
pub(crate) fn dl_iterate_phdr() -> *mut c_void {
    address!(netacc_weak_dl_iterate_phdr)
}

/// Where the linker has the structure that debuggers find the loaded objects by (`struct r_debug`, link.h): glibc exports it,
/// musl its address. 0 under another libc.
pub(crate) fn linkers_list() -> usize {
    let here = address!(netacc_weak_r_debug);
    let place = address!(netacc_weak_dl_debug_addr).cast::<usize>();
    match (here.is_null(), place.is_null()) {
        (false, _) => here.addr(),
        // SAFETY: musl's variable, which nobody writes to.
        (true, false) => unsafe { place.read() },
        (true, true) => 0,
    }
}

/// The environment's array (environ(7)); null where there is none.
pub fn environment() -> *const *const c_char {
    let cell = address!(netacc_weak_environ).cast::<*const *const c_char>();
    if cell.is_null() {
        return static_program::environment();
    }
    // SAFETY: libc's variable.
    unsafe { cell.read() }
}

/// Whether the kernel gave the process rights that its caller does not have when it executed the program (`AT_SECURE`,
/// getauxval(3)): the program is set-user-ID, has file capabilities, or entered another security domain. It is so as well
/// where nobody says.
pub fn has_gained_rights() -> bool {
    let function = address!(netacc_weak_getauxval);
    if function.is_null() {
        return !static_program::is_one() || static_program::auxiliary(libc::AT_SECURE as usize) != 0;
    }
    // SAFETY: libc's function, which takes a number and returns one of the values that the kernel gave the program.
    unsafe {
        let function: unsafe extern "C" fn(c_ulong) -> c_ulong = core::mem::transmute(function);
        function(libc::AT_SECURE) != 0
    }
}

/// glibc's version, such as `2.36`; `None` under another libc.
pub fn glibc_version() -> Option<&'static CStr> {
    let function = address!(netacc_weak_gnu_get_libc_version);
    if function.is_null() {
        return None;
    }
    // SAFETY: libc's function, which takes nothing and returns a constant string.
    unsafe {
        let function: unsafe extern "C" fn() -> *const c_char = core::mem::transmute(function);
        let version = function();
        (!version.is_null()).then(|| CStr::from_ptr(version))
    }
}

/// What pthread_self(3) says of the calling thread; 0 where there is no such function.
#[inline]
pub fn pthread_self() -> usize {
    let function = address!(netacc_weak_pthread_self);
    if function.is_null() {
        return 0;
    }
    // SAFETY: libc's function, which takes nothing and cannot fail.
    unsafe {
        let function: unsafe extern "C" fn() -> usize = core::mem::transmute(function);
        function()
    }
}

/// Where the calling thread's errno lies.
#[inline]
fn errno_location() -> Option<*mut c_int> {
    let function = address!(netacc_weak_errno_location);
    if function.is_null() {
        return static_program::errno_place();
    }
    // SAFETY: libc's function, which takes nothing and cannot fail.
    unsafe {
        let function: unsafe extern "C" fn() -> *mut c_int = core::mem::transmute(function);
        Some(function())
    }
}

/// The calling thread's errno.
pub fn errno() -> i32 {
    // SAFETY: this thread's errno.
    errno_location().map_or(0, |place| unsafe { place.read() })
}

/// Sets the calling thread's errno.
#[inline]
pub fn set_errno(n: i32) {
    if let Some(place) = errno_location() {
        // SAFETY: this thread's errno.
        unsafe { place.write(n) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_is_the_threads_own() {
        set_errno(7);
        assert_eq!(errno(), 7);
        std::thread::spawn(|| set_errno(8)).join().unwrap();
        assert_eq!((errno(), std::io::Error::last_os_error().raw_os_error()), (7, Some(7)));
    }

    #[test]
    fn what_is_there_is_found() {
        assert!(glibc_version().is_some() && pthread_self() != 0 && !environment().is_null());
        assert!(!has_gained_rights());
    }
}
