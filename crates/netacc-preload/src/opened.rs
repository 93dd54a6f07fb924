//! Libraries that the program opens (dlopen(3)) so that their calls would not come to us.
//!
//! A library that is opened with `RTLD_DEEPBIND` finds libc's functions before ours, and would read the placeholder of an
//! accelerated connection. So the flag is taken away, as the sanitizers' runtimes do. A library in a namespace of its own
//! (dlmopen(3)) has a libc of its own, so the process is left to the kernel.
//!
//! The linker searches for a library on behalf of the object that the call comes from: in its namespace, and by its
//! `RUNPATH`. It knows that object by the return address. So nothing of ours is on the stack when it is called: the hook
//! jumps there, with the flags changed.

use core::arch::naked_asm;
use core::ffi::{c_int, c_long, c_void};
use core::ptr;
use netacc_core::fallback;
use netacc_sys::visits::{Admission, Visit};

/// RTLD_DEEPBIND of glibc (dlfcn.h). musl has no such flag.
const DEEPBIND: c_int = 8;
/// LM_ID_BASE of dlmopen(3): the program's own namespace.
const BASE: c_long = 0;

/// Where a hook jumps, and the flags for the function there.
#[repr(C)]
struct Way {
    function: *const c_void,
    flags: usize,
}

/// Opens nothing, where there is no function of libc's.
extern "C" fn opens_nothing() -> *const c_void {
    ptr::null()
}

/// The flags that libc gets for a library in the program's namespace.
fn followed(flags: c_int) -> c_int {
    if flags & DEEPBIND != 0 && fallback::follows_library() { flags & !DEEPBIND } else { flags }
}

/// To be called before a library is opened in the namespace `space`.
fn before_space(space: c_long) {
    if space != BASE {
        fallback::before_apart();
    }
}

/// Defines a hook that jumps where `$way` says, with the arguments as they came but for the flags. The instructions in
/// brackets bring the flags to `$way` as its second argument, and from its result to where the function has them. `$before`
/// is done first.
macro_rules! opens {
    ($( $(#[$attribute:meta])* fn $name:ident in $line:ident => $entry:ident by $way:ident($space:ident) {
        x86_64: [$($x86:literal),* ; $($x86_after:literal),*], aarch64: [$($arm:literal),* ; $($arm_after:literal),*]
    } $($before:expr)?; )*) => {$(
        jumps_by_table! { $(#[$attribute])* fn $name in $line => $entry; }

        #[unsafe(naked)]
        unsafe extern "C" fn $entry() {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                "push rdi", "push rsi", "sub rsp, 8",
                $($x86,)*
                "call {way}",
                "add rsp, 8", "pop rsi", "pop rdi",
                $($x86_after,)*
                "jmp rax",
                way = sym $way,
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                "stp x29, x30, [sp, #-32]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                $($arm,)*
                "bl {way}",
                "mov x16, x0", "mov x17, x1",
                "ldp x0, x1, [sp, #16]",
                "ldp x29, x30, [sp], #32",
                $($arm_after,)*
                "br x16",
                way = sym $way,
            );
        }

        extern "C" fn $way($space: c_long, flags: c_int) -> Way {
            next_of!(NEXT, name_of!($name));
            let (function, flags) = match Visit::begin() {
                // The new copy looks at the flags as the program has given them.
                Admission::Anew => ($line.target().cast_const(), flags),
                _inside => {
                    $($before;)?
                    (NEXT.get().cast_const(), followed(flags))
                }
            };
            let function = if function.is_null() { opens_nothing as *const c_void } else { function };
            Way { function, flags: flags as usize }
        }
    )*};
}

opens! {
    /// dlopen(3).
    fn dlopen in DLOPEN => dlopen_entry by dlopen_way(_file) {
        x86_64: [; "mov esi, edx"],
        aarch64: [; "mov w1, w17"]
    };

    /// dlmopen(3).
    fn dlmopen in DLMOPEN => dlmopen_entry by dlmopen_way(space) {
        x86_64: ["mov esi, edx"; ],
        aarch64: ["mov w1, w2"; "mov w2, w17"]
    } before_space(space);
}
