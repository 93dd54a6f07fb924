//! sigaction(2) and its relatives: the kernel gets an entry of the library in place of each handler of the program, so
//! that no handler runs while its thread is inside the library ([`netacc_sys::delivery`]).
//!
//! An entry stands for one handler with the flags that matter here, whatever the signal, and never for another: so a
//! child of vfork(2), which has our memory and a table of handlers of its own, changes nothing for its parent, and a
//! signal that is on its way while the program installs another handler comes to the right one. The program sees its own
//! handlers and flags only. Once all entries are taken, further handlers are installed as they are, and run wherever
//! their signal comes; so do handlers that were installed by a call that is not intercepted.
//!
//! The entries are those of the first copy of the library, which stays mapped (`exchange`). They ask the newest copy.

use core::arch::global_asm;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU64, Ordering};
use netacc_sys::delivery::{self, Arrival, Info, Verdict};
use netacc_sys::{libc_kind, signals};

/// Number of entries.
const ENTRIES: usize = 512;

/// Size (bytes) of an entry's code.
const ENTRY: usize = 16;

netacc_sys::tables! {
    /// What an entry stands for: the handler's address, with flags above it; 0: free.
    static HANDLERS: [AtomicU64; ENTRIES] = [const { AtomicU64::new(0) }; ENTRIES];
}

/// Bits of a word of [`HANDLERS`] that hold the address.
const ADDRESS: u64 = (1 << 56) - 1;
/// The handler was installed with SA_RESTART.
const RESTARTS: u64 = 1 << 56;
/// The handler was installed with SA_RESETHAND.
const RESETS: u64 = 1 << 57;
/// The handler was installed with SA_SIGINFO. The kernel always has that flag, since a kept signal needs its siginfo.
const HAS_INFO: u64 = 1 << 58;
/// A word that is taken.
const TAKEN: u64 = 1 << 63;

const WITH_INFO: u64 = libc::SA_SIGINFO as u64;

type Action = libc::sigaction;

// An entry gives its own address to the code that all of them share. That saves the handler's arguments, asks, and jumps
// to the handler as the kernel would have called it, or returns.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".hidden netacc_handler_entries",
    ".globl netacc_handler_entries",
    ".balign 16",
    "netacc_handler_entries:",
    ".rept {count}",
    "endbr64",
    "lea rcx, [rip - 11]",
    "jmp {common}",
    ".endr",
    count = const ENTRIES,
    common = sym common,
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".hidden netacc_handler_entries",
    ".globl netacc_handler_entries",
    ".balign 16",
    "netacc_handler_entries:",
    ".rept {count}",
    "hint #34",
    "adr x3, .-4",
    "b {common}",
    "nop",
    ".endr",
    count = const ENTRIES,
    common = sym common,
);

unsafe extern "C" {
    static netacc_handler_entries: u8;
}

#[unsafe(naked)]
unsafe extern "C" fn common() {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "call {came}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2: ret",
        came = sym came,
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-48]!",
        "stp x0, x1, [sp, #16]",
        "str x2, [sp, #32]",
        "bl {came}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldr x2, [sp, #32]",
        "ldp x29, x30, [sp], #48",
        "cbz x16, 2f",
        "br x16",
        "2: ret",
        came = sym came,
    );
}

fn first_entry() -> usize {
    &raw const netacc_handler_entries as usize
}

/// The address of the handler that runs now; 0: none does.
unsafe extern "C" fn came(signal: c_int, info: *mut Info, context: *mut c_void, entry: usize) -> usize {
    let word = word_of(entry);
    let target = ARRIVED.target();
    // SAFETY: each copy's function of this name has this signature; the arguments are those of the kernel's frame.
    let runs = unsafe {
        called!(target, (
            signal => c_int, info => *mut Info, context => *mut c_void, entry => usize, word => u64
        ) -> isize)
    };
    if runs == 0 { 0 } else { (word & ADDRESS) as usize }
}

export_line!(static ARRIVED = netacc_signal_arrived, arrived);

/// 0 if the handler does not run now. A copy that knows nothing of entries has no such function, and what stands in its
/// place answers -1.
unsafe extern "C" fn arrived(signal: c_int, info: *mut Info, context: *mut c_void, entry: usize, word: u64) -> isize {
    let arrival = Arrival { signal, info, context, entry, restarts: word & RESTARTS != 0, resets: word & RESETS != 0 };
    // SAFETY: an entry calls this in the frame of the kernel's.
    isize::from(unsafe { delivery::arrived(&arrival) } == Verdict::Run)
}

/// The word of an entry of this copy; 0 for any other address.
fn word_of(entry: usize) -> u64 {
    let at = entry.wrapping_sub(first_entry());
    let word = if at.is_multiple_of(ENTRY) { HANDLERS.get(at / ENTRY) } else { None };
    // Relaxed: a word never changes once it is not 0.
    word.map_or(0, |word| word.load(Ordering::Relaxed))
}

export_line!(static HANDLER_OF = netacc_handler_of, handler_of);

/// The word of an entry of this copy, which is the first one; 0 for any other address.
extern "C" fn handler_of(entry: usize) -> u64 {
    word_of(entry)
}

export_line!(static ENTRY_FOR = netacc_entry_for, entry_for);

/// The entry for a word, in this copy, which is the first one; 0: all are taken.
extern "C" fn entry_for(word: u64) -> usize {
    let stands_for = |place: &AtomicU64| {
        // Relaxed: the word stands for itself. Another thread may take the place meanwhile, for the same word.
        match place.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(there) => there == word,
        }
    };
    HANDLERS.iter().position(stands_for).map_or(0, |n| first_entry() + n * ENTRY)
}

/// The program's handler and flags behind what the kernel has, if that is an entry.
fn program_s(handler: usize, flags: u64) -> Option<(usize, u64)> {
    let function = crate::exchange::of_first(c"netacc_handler_of");
    if function.is_null() || handler <= libc::SIG_IGN {
        return None;
    }
    // SAFETY: the first copy's function of this name has this signature.
    let word = unsafe { called!(function, (handler => usize) -> u64) };
    let own = if word & HAS_INFO != 0 { flags } else { flags & !WITH_INFO };
    (word != 0).then_some(((word & ADDRESS) as usize, own))
}

/// The entry for a handler of the program's; `None`: it is installed as it is.
fn entry(handler: usize, flags: u64) -> Option<usize> {
    let function = crate::exchange::of_first(c"netacc_entry_for");
    // SIG_DFL, SIG_IGN, SIG_ERR and SIG_HOLD are no handlers.
    if function.is_null() || handler < 16 || handler as u64 > ADDRESS {
        return None;
    }
    let bit = |flag: c_int, bit: u64| if flags & flag as u64 != 0 { bit } else { 0 };
    let word = handler as u64
        | TAKEN
        | bit(libc::SA_RESTART, RESTARTS)
        | bit(libc::SA_RESETHAND, RESETS)
        | bit(libc::SA_SIGINFO, HAS_INFO);
    // SAFETY: the first copy's function of this name has this signature.
    let entry = unsafe { called!(function, (word => u64) -> usize) };
    if entry == 0 {
        delivery::note_one_inside();
    }
    (entry != 0).then_some(entry)
}

/// Whether the kernel's `handler` is an entry.
fn is_entry(handler: usize) -> bool {
    program_s(handler, 0).is_some()
}

/// To be called at the start: makes known which of the kernel's handlers are entries.
pub fn begin() {
    delivery::set_entries(is_entry);
}

/// Has the kernel call an entry for the handler that libc has installed for `signal`, or has changed.
fn enter(signal: c_int) {
    signals::reinstall(signal, |handler, flags| {
        let (handler, flags) = program_s(handler, flags).unwrap_or((handler, flags));
        Some((entry(handler, flags)?, flags | WITH_INFO))
    });
}

/// The program's handler behind the one that libc reports.
fn shown(handler: usize) -> usize {
    program_s(handler, 0).map_or(handler, |(handler, _)| handler)
}

/// Installs a handler by libc's function `next`, which is sigaction(2) for one signal.
///
/// # Safety
/// `new` and `old` are null or point to an action.
unsafe fn installed(
    new: *const Action,
    old: *mut Action,
    next: impl FnOnce(*const Action, *mut Action) -> c_int,
) -> c_int {
    if !libc_kind::is_known() {
        return next(new, old);
    }
    // SAFETY: the caller's contract.
    let mut given = unsafe { new.as_ref() }.copied();
    if let Some(action) = &mut given {
        // An entry comes back where a library has asked the kernel itself.
        let flags = action.sa_flags as u64;
        let (handler, flags) = program_s(action.sa_sigaction, flags).unwrap_or((action.sa_sigaction, flags));
        if let Some(entry) = entry(handler, flags) {
            action.sa_sigaction = entry;
            action.sa_flags |= libc::SA_SIGINFO;
        }
    }
    let done = next(given.as_ref().map_or(core::ptr::null(), core::ptr::from_ref), old);
    // SAFETY: the caller's contract.
    if let Some(old) = unsafe { old.as_mut() }.filter(|_| done == 0)
        && let Some((handler, flags)) = program_s(old.sa_sigaction, old.sa_flags as u64)
    {
        old.sa_sigaction = handler;
        old.sa_flags = flags as c_int;
    }
    done
}

/// Installs a handler by libc's function `$name`, and returns the previous one.
macro_rules! install {
    ($name:ident, $signal:ident, $handler:ident) => {{
        let before = call_next!($name($signal => c_int, $handler => usize) -> isize);
        if before == -1 || !libc_kind::is_known() {
            return before as usize;
        }
        enter($signal);
        shown(before as usize)
    }};
}

exports! {
    /// signal(2).
    fn signal(signal: c_int, handler: usize) -> usize {
        install!(signal, signal, handler)
    }

    /// Another name of signal(2), with BSD's meaning.
    fn bsd_signal(signal: c_int, handler: usize) -> usize {
        install!(bsd_signal, signal, handler)
    }

    /// Another name of signal(2), with System V's meaning.
    fn sysv_signal(signal: c_int, handler: usize) -> usize {
        install!(sysv_signal, signal, handler)
    }

    /// The function that programs call which are compiled for System V's meaning of signal(2).
    fn __sysv_signal(signal: c_int, handler: usize) -> usize {
        install!(__sysv_signal, signal, handler)
    }

    /// Another name of signal(2).
    fn ssignal(signal: c_int, handler: usize) -> usize {
        install!(ssignal, signal, handler)
    }

    /// sigset(3).
    fn sigset(signal: c_int, handler: usize) -> usize {
        install!(sigset, signal, handler)
    }
}

/// Installs an action by libc's function `$name`.
macro_rules! install_action {
    ($name:ident, $signal:ident, $new:ident, $old:ident) => {{
        let next = |$new: *const Action, $old: *mut Action| {
            call_next!($name($signal => c_int, $new => *const Action, $old => *mut Action) -> c_int)
        };
        // SAFETY: the application calls under the function's own contract.
        unsafe { installed($new, $old, next) }
    }};
}

exports! {
    /// sigaction(2).
    fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
        install_action!(sigaction, signal, new, old)
    }

    /// Another name of sigaction(2).
    fn __sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
        install_action!(__sigaction, signal, new, old)
    }

    /// siginterrupt(3) changes a flag of the handler.
    fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
        let done = call_next!(siginterrupt(signal => c_int, interrupts => c_int) -> c_int);
        if done == 0 && libc_kind::is_known() {
            enter(signal);
        }
        done
    }
}
