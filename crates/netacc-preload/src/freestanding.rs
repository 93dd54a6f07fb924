//! What other Rust libraries take from std and libc: the panic handler and the functions that compilers call
//! implicitly. Nothing is linked here, so that the library loads under any libc, and without the libraries of a C
//! compiler.
//!
//! The functions have libc's names, and other code of the process must never find them: they are hidden, which takes
//! assembly, since Rust exports each function that has a name of its own.

use core::arch::{global_asm, naked_asm};
use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicPtr, Ordering};
use netacc_sys::heap::Heap;
use netacc_sys::{raw, static_program, symbol};

#[global_allocator]
static HEAP: Heap = Heap;

/// A line of text on the stack. Text beyond its length is cut off.
struct Line {
    text: [u8; 256],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for (to, from) in self.text.iter_mut().skip(self.len).zip(s.bytes()) {
            *to = from;
            self.len += 1;
        }
        Ok(())
    }
}

/// A panic, which is a bug of the library, ends the program: its state can no longer be relied on.
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let mut line = Line { text: [0; 256], len: 0 };
    let _ = writeln!(line, "netacc: {info}");
    let _ = raw::write(2, line.text.as_ptr(), line.len);
    abort()
}

fn abort() -> ! {
    raw::raise(libc::SIGABRT);
    // The program ignores SIGABRT, or its handler has returned.
    raw::exit_group(128 + libc::SIGABRT)
}

/// The instruction that jumps to a function.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {}"
    };
}

/// The instruction that jumps to a function.
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {}"
    };
}

/// Defines hidden symbols, each of which jumps to one of our functions.
macro_rules! hidden {
    ($( $name:literal => $function:path; )*) => {$(
        global_asm!(
            ".pushsection .text.netacc_hidden, \"ax\"",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", %function"),
            concat!($name, ":"),
            jump!(),
            ".popsection",
            sym $function,
        );
    )*};
}

hidden! {
    // Nothing unwinds here, but the compiled core library can.
    "rust_eh_personality" => abort_now;
    "_Unwind_Resume" => abort_now;
    "memcpy" => memcpy;
    "memmove" => memmove;
    "memset" => memset;
    "memcmp" => memcmp;
    "bcmp" => memcmp;
    "strlen" => strlen;
    // rustix takes it from libc, for the page size.
    "sysconf" => sysconf;
}

extern "C" fn abort_now() -> ! {
    abort()
}

/// Whether a name is that of getauxval(3).
///
/// # Safety
/// A constant of this library, which ends with NUL.
pub unsafe fn is_getauxval(name: *const c_char) -> bool {
    // SAFETY: the caller guarantees the constant.
    unsafe { CStr::from_ptr(name) == c"getauxval" }
}

/// getauxval(3), or what serves as it.
pub fn getauxval() -> *mut c_void {
    if static_program::is_one() { static_program::auxiliary as *mut c_void } else { symbol::any(c"getauxval") }
}

extern "C" fn sysconf(name: c_int) -> c_long {
    call_next!(sysconf(name => c_int) -> c_long)
}

/// Defines functions of libc that compilers call implicitly. Each uses libc's own, which is tuned for the CPU, and ours
/// where libc has none.
macro_rules! forwarded {
    ($( $name:ident in $cell:ident, otherwise $own:path; )*) => {
        $(
            static $cell: AtomicPtr<c_void> = AtomicPtr::new($own as *mut c_void);

            #[unsafe(naked)]
            extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                naked_asm!("jmp qword ptr [rip + {}]", sym $cell);
                #[cfg(target_arch = "aarch64")]
                naked_asm!("adrp x16, {cell}", "ldr x16, [x16, :lo12:{cell}]", "br x16", cell = sym $cell);
            }
        )*

        /// Looks up libc's versions of the functions that compilers call. Until then ours are used.
        pub fn use_libc() {
            $(
                let next = symbol::next(name_of!($name));
                if !next.is_null() {
                    // Relaxed: either function serves, and the code there needs no ordering.
                    $cell.store(next, Ordering::Relaxed);
                }
            )*
        }
    };
}

forwarded! {
    memcpy in MEMCPY, otherwise own::memcpy;
    memmove in MEMMOVE, otherwise own::memmove;
    memset in MEMSET, otherwise own::memset;
    memcmp in MEMCMP, otherwise own::memcmp;
    strlen in STRLEN, otherwise own::strlen;
}

// In assembly, since a compiler makes calls of these functions from loops that do the same.

#[cfg(target_arch = "x86_64")]
mod own {
    use core::arch::naked_asm;

    #[unsafe(naked)]
    pub(super) extern "C" fn memcpy() {
        naked_asm!("mov rax, rdi", "mov rcx, rdx", "rep movsb", "ret");
    }

    #[unsafe(naked)]
    pub(super) extern "C" fn memmove() {
        naked_asm!(
            "mov rax, rdi",
            "mov rcx, rdi",
            "sub rcx, rsi",
            "cmp rcx, rdx",
            "mov rcx, rdx",
            // The destination begins within the source: backwards.
            "jb 2f",
            "rep movsb",
            "ret",
            "2:",
            "lea rdi, [rdi + rdx - 1]",
            "lea rsi, [rsi + rdx - 1]",
            "std",
            "rep movsb",
            "cld",
            "ret",
        );
    }

    #[unsafe(naked)]
    pub(super) extern "C" fn memset() {
        naked_asm!("mov r8, rdi", "mov eax, esi", "mov rcx, rdx", "rep stosb", "mov rax, r8", "ret");
    }

    #[unsafe(naked)]
    pub(super) extern "C" fn memcmp() {
        naked_asm!(
            "xor ecx, ecx",
            "2:",
            "cmp rcx, rdx",
            "je 3f",
            "movzx eax, byte ptr [rdi + rcx]",
            "movzx r8d, byte ptr [rsi + rcx]",
            "inc rcx",
            "sub eax, r8d",
            "je 2b",
            "ret",
            "3:",
            "xor eax, eax",
            "ret",
        );
    }

    #[unsafe(naked)]
    pub(super) extern "C" fn strlen() {
        naked_asm!("xor eax, eax", "2:", "cmp byte ptr [rdi + rax], 0", "je 3f", "inc rax", "jmp 2b", "3:", "ret",);
    }
}

#[cfg(target_arch = "aarch64")]
mod own {
    use core::arch::naked_asm;

    #[unsafe(naked)]
    pub(super) extern "C" fn memcpy() {
        naked_asm!(
            "mov x3, x0",
            "2:",
            "cbz x2, 3f",
            "ldrb w4, [x1], #1",
            "strb w4, [x3], #1",
            "sub x2, x2, #1",
            "b 2b",
            "3:",
            "ret",
        );
    }

    #[unsafe(naked)]
    pub(super) extern "C" fn memmove() {
        naked_asm!(
            "sub x3, x0, x1",
            "cmp x3, x2",
            // The destination begins within the source: backwards.
            "b.lo 4f",
            "mov x3, x0",
            "2:",
            "cbz x2, 3f",
            "ldrb w4, [x1], #1",
            "strb w4, [x3], #1",
            "sub x2, x2, #1",
            "b 2b",
            "3:",
            "ret",
            "4:",
            "cbz x2, 3b",
            "sub x2, x2, #1",
            "ldrb w4, [x1, x2]",
            "strb w4, [x0, x2]",
            "b 4b",
        );
    }

    #[unsafe(naked)]
    pub(super) extern "C" fn memset() {
        naked_asm!("mov x3, x0", "2:", "cbz x2, 3f", "strb w1, [x3], #1", "sub x2, x2, #1", "b 2b", "3:", "ret",);
    }

    #[unsafe(naked)]
    pub(super) extern "C" fn memcmp() {
        naked_asm!(
            "2:",
            "cbz x2, 3f",
            "ldrb w3, [x0], #1",
            "ldrb w4, [x1], #1",
            "sub x2, x2, #1",
            "subs w3, w3, w4",
            "b.eq 2b",
            "mov w0, w3",
            "ret",
            "3:",
            "mov w0, #0",
            "ret",
        );
    }

    #[unsafe(naked)]
    pub(super) extern "C" fn strlen() {
        naked_asm!("mov x1, x0", "2:", "ldrb w2, [x0], #1", "cbnz w2, 2b", "sub x0, x0, x1", "sub x0, x0, #1", "ret",);
    }
}
