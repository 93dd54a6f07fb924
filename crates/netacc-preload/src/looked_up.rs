//! Functions that the program looks up by name (dlsym(3), dlvsym(3)).
//!
//! A handle of libc, or of a library that needs libc, leads to libc's functions past ours: so do Python's ctypes, Java's JNA,
//! Ruby's Fiddle and LuaJIT look them up. They would find the placeholder of an accelerated connection. So where the
//! answer is the function that ours calls next, the program gets ours in its place.
//!
//! Every other answer stays as it is. A library that is preloaded behind ours may look libc's function up in this way, to
//! call it from its own: ours calls that one, which would then call itself.
//!
//! What `RTLD_DEFAULT` and `RTLD_NEXT` find depends on the object that the call comes from, which the linker knows by the
//! return address. So nothing of ours is on the stack there: the hook jumps to libc's function.

use crate::{exchange, freestanding};
use core::arch::naked_asm;
use core::ffi::{c_char, c_void};
use core::ptr;
use netacc_sys::{libc_kind, user};

/// Where a hook jumps, and the first argument for the function there; the others are as they came.
#[repr(C)]
struct Way {
    function: *const c_void,
    first: *mut c_void,
}

/// Where the answer is known: the function that returns it.
extern "C" fn returns(answer: *mut c_void) -> *mut c_void {
    answer
}

impl Way {
    fn answer(answer: *mut c_void) -> Way {
        Way { function: returns as *const c_void, first: answer }
    }
}

/// Whether what a handle leads to depends on the object that the call comes from.
fn is_callers(handle: *mut c_void) -> bool {
    ptr::eq(handle, libc::RTLD_DEFAULT) || ptr::eq(handle, libc::RTLD_NEXT)
}

/// The answer to a look-up of `name` for which libc's answer is `found`.
fn answer(found: *mut c_void, name: *const c_char) -> *mut c_void {
    if found.is_null() {
        return found;
    }
    // SAFETY: the program's name stays as it is during the call.
    let Some(name) = (unsafe { user::text(name) }) else { return found };
    let ours = exchange::exported(name, found);
    if ours.is_null() { found } else { ours }
}

/// The answer to a look-up of getauxval(3) by rustix, which is a part of this library: the name lies in it. It is found without
/// libc's dlsym(3), which before glibc 2.34 allocates memory at its first use, and which a static program lacks.
fn own(name: *const c_char) -> Option<*mut c_void> {
    if !exchange::holds(name.cast()) {
        return None;
    }
    // SAFETY: a constant of ours, which ends with NUL.
    unsafe { freestanding::is_getauxval(name) }.then(freestanding::getauxval)
}

/// Defines hooks that do what `$way` says of their arguments.
macro_rules! looks_up {
    ($( $(#[$attribute:meta])* fn $name:ident in $line:ident => $entry:ident by $way:ident; )*) => {$(
        jumps_by_table! { $(#[$attribute])* fn $name in $line => $entry; }

        #[unsafe(naked)]
        unsafe extern "C" fn $entry() {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                "push rsi", "push rdx", "sub rsp, 8",
                "call {way}",
                "mov rdi, rdx",
                "add rsp, 8", "pop rdx", "pop rsi",
                "jmp rax",
                way = sym $way,
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                "stp x29, x30, [sp, #-32]!",
                "mov x29, sp",
                "stp x1, x2, [sp, #16]",
                "bl {way}",
                "mov x16, x0", "mov x0, x1",
                "ldp x1, x2, [sp, #16]",
                "ldp x29, x30, [sp], #32",
                "br x16",
                way = sym $way,
            );
        }

        extern "C" fn $way(handle: *mut c_void, name: *const c_char, version: *const c_char) -> Way {
            if let Some(answer) = own(name) {
                return Way::answer(answer);
            }
            next_of!(NEXT, name_of!($name));
            let function = NEXT.get();
            if function.is_null() {
                return Way::answer(ptr::null_mut());
            }
            if is_callers(handle) || !libc_kind::is_known() {
                return Way { function, first: handle };
            }
            // SAFETY: libc's function with the program's arguments; dlsym(3) does not look at the third one.
            let found = unsafe {
                called!(
                    function,
                    (handle => *mut c_void, name => *const c_char, version => *const c_char) -> *mut c_void
                )
            };
            Way::answer(answer(found, name))
        }
    )*};
}

looks_up! {
    /// dlsym(3).
    fn dlsym in DLSYM => dlsym_entry by dlsym_way;

    /// dlvsym(3).
    fn dlvsym in DLVSYM => dlvsym_entry by dlvsym_way;
}
