//! The table of exports: every function that another object can call lies behind a word of this table, so that another
//! copy of the library can take this one's place while the process runs (`exchange`).
//!
//! An exported function only jumps to where its word leads: at first to the function of this copy that does the work, and
//! once the library was replaced to that of the newest copy. The program keeps the addresses of the exported functions of
//! the first copy for good, in its own tables and pointers. Functions that libc is given once for the life of the
//! process are in the table as well, though nobody finds them by name.

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// A line of the table. The layout is a contract between copies of different versions: see [`crate::exchange::Entrance`].
#[repr(C)]
pub struct Export {
    name: *const c_char,
    /// The function of this copy.
    function: *mut c_void,
    /// Where calls go.
    target: AtomicPtr<c_void>,
}

// SAFETY: the pointers lead to a constant text and to code.
unsafe impl Sync for Export {}

impl Export {
    /// Where the target lies in a line, for code that jumps there.
    pub const TARGET: usize = core::mem::offset_of!(Export, target);

    pub const fn new(name: &'static CStr, function: *mut c_void) -> Export {
        Export { name: name.as_ptr(), function, target: AtomicPtr::new(function) }
    }

    /// Where calls go.
    #[inline(always)]
    pub fn target(&self) -> *mut c_void {
        // Relaxed: a call that is made while the library is replaced may come to either copy, and is made anew by the old
        // one. What it needs of the new copy it finds by that copy's own words.
        self.target.load(Ordering::Relaxed)
    }

    /// Has calls go to another function of the same signature.
    pub fn lead_to(&self, function: *mut c_void) {
        // Release: a thread that comes there finds the copy as it is now.
        self.target.store(function, Ordering::Release);
    }

    /// The function of this copy.
    pub fn function(&self) -> *mut c_void {
        self.function
    }

    /// The function's name.
    pub fn name(&self) -> &CStr {
        // SAFETY: a constant text of the copy that the line belongs to, which stays mapped.
        unsafe { CStr::from_ptr(self.name) }
    }
}

/// The line of an exported function in the table, where the linker collects them.
macro_rules! export_line {
    (static $line:ident = $name:ident, $function:path) => {
        #[used]
        #[unsafe(link_section = "netacc_exports")]
        static $line: $crate::table::Export =
            $crate::table::Export::new(name_of!($name), $function as *mut core::ffi::c_void);
    };
}

/// The body of an exported function: a jump to where the table leads.
macro_rules! jump_by_table {
    ($name:ident, $function:path, ( $($arg:ident : $ty:ty),* ) -> $ret:ty) => {{
        export_line!(static LINE = $name, $function);
        let target = LINE.target();
        #[allow(unused_unsafe)]
        // SAFETY: each copy's function of this name has this signature; the arguments are the caller's.
        unsafe { called!(target, ($($arg => $ty),*) -> $ret) }
    }};
}

/// Defines exported functions for which a jump must be all: those with a variable number of arguments, and those that
/// return twice. `$line` is their line in the table, `$entry` the function of this copy.
macro_rules! jumps_by_table {
    ($( $(#[$attribute:meta])* fn $name:ident in $line:ident => $entry:ident; )*) => {$(
        export_line!(static $line = $name, $entry);

        $(#[$attribute])*
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                "jmp qword ptr [rip + {line} + {target}]",
                line = sym $line,
                target = const $crate::table::Export::TARGET,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                "adrp x16, {line} + {target}",
                "ldr x16, [x16, :lo12:{line} + {target}]",
                "br x16",
                line = sym $line,
                target = const $crate::table::Export::TARGET,
            );
        }
    )*};
}

/// Defines exported functions. What they do to the state of the library they do in a [`visit!`].
macro_rules! exports {
    ($( $(#[$attribute:meta])* fn $name:ident ( $($arg:ident : $ty:ty),* $(,)? ) -> $ret:ty $body:block )*) => {$(
        $(#[$attribute])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
            #[allow(unused_unsafe)]
            unsafe extern "C" fn here($($arg: $ty),*) -> $ret $body
            jump_by_table!($name, here, ($($arg : $ty),*) -> $ret)
        }
    )*};
}

/// Defines functions that libc is given once, for the life of the process.
macro_rules! callbacks {
    ($( $(#[$attribute:meta])* fn $name:ident ( $($arg:ident : $ty:ty),* ) $body:block )*) => {$(
        $(#[$attribute])*
        pub extern "C" fn $name($($arg: $ty),*) {
            extern "C" fn here($($arg: $ty),*) $body
            jump_by_table!($name, here, ($($arg : $ty),*) -> ())
        }
    )*};
}

/// Keeps the thread counted as inside the library until the end of the block. While the library is replaced the thread
/// waits, and the call is made anew.
macro_rules! visit {
    ($anew:expr) => {
        let _visit = match netacc_sys::visits::Visit::begin() {
            netacc_sys::visits::Admission::Inside(visit) => Some(visit),
            netacc_sys::visits::Admission::Closer => None,
            #[allow(unused_unsafe)]
            // SAFETY: the caller's arguments once more.
            netacc_sys::visits::Admission::Anew => return unsafe { $anew },
        };
    };
}
