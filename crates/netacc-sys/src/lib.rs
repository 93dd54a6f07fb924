//! The floor NetACC stands on: raw system calls, a futex lock, type-stable memory, the CPU we run on.
//!
//! Nothing in this crate calls a libc function that NetACC intercepts, so our own work can never
//! re-enter our own hooks. `unsafe` is fenced: each module that needs it re-allows it at its top
//! and says why.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

/// Defines tables of which a process touches a page or two, if any: they are larger than a program with few connections needs,
/// or for what few programs do. They lie together, so that the other variables share few pages. Each page costs a process
/// that begins a page fault, which takes as long as several system calls.
#[macro_export]
macro_rules! tables {
    ($( $(#[$attribute:meta])* $visibility:vis static $name:ident: $type:ty = $value:expr; )*) => {$(
        $(#[$attribute])*
        #[allow(unsafe_code, reason = "zeroed memory like any other, in a section of its own")]
        #[unsafe(link_section = ".bss.netacc_tables")]
        $visibility static $name: $type = $value;
    )*};
}

pub mod addr;
pub mod atomic_ref;
pub mod cancel;
pub mod closer;
pub mod cpu;
pub mod delivery;
pub mod errno;
mod flags;
pub mod go_code;
pub mod go_program;
pub mod heap;
pub mod image;
pub mod libc_kind;
pub mod linker;
pub mod lock;
pub mod lock_rank;
pub mod locked;
#[cfg(target_arch = "x86_64")]
pub mod mapped;
pub mod mem;
pub mod origin;
pub mod own_calls;
pub mod own_limit;
pub mod raw;
pub mod record_lock;
pub mod reserved_fds;
pub mod set_once;
pub mod shared_cell;
pub mod signals;
pub mod slab;
pub mod sleeping;
pub mod static_program;
pub mod successor;
pub mod symbol;
mod symbol_tables;
pub mod thread;
mod thread_state;
pub mod time;
#[cfg(target_arch = "x86_64")]
pub mod tracee;
pub mod user;
pub mod visits;
pub mod weak;

pub use atomic_ref::AtomicRef;
pub use errno::Errno;
pub use lock::{Guard, Lock};
pub use locked::{Locked, LockedGuard};
pub use shared_cell::SharedCell;
