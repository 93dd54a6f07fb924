//! vfork(2): the child runs in the parent's memory, and the parent is suspended until the child has ended or executed.
//!
//! A child that shares our memory would change the parent's tables, so if the tables have entries, the child is made by
//! fork(2), and the parent waits until it has ended or executed. The parent does not see what such a child writes to
//! memory, such as the errno of an exec that failed. A program without TCP sockets and epoll instances makes the real
//! call.

use crate::process::forked_with;
use core::arch::naked_asm;
use core::ffi::c_void;
use libc::pid_t;
use netacc_core::fork::vfork;
use netacc_core::fork::vfork::ChildPipe;
use netacc_sys::libc_kind;
use netacc_sys::visits::{Admission, Visit};

macro_rules! vforks {
    ($( #[doc = $doc:literal] fn $name:ident in $line:ident => $entry:ident by $way:ident; )*) => {$(
        jumps_by_table! {
            #[doc = $doc]
            fn $name in $line => $entry;
        }

        #[unsafe(naked)]
        unsafe extern "C" fn $entry() -> pid_t {
            // A jump, without a frame of ours: the child of the real call goes on with this stack, and returns first.
            #[cfg(target_arch = "x86_64")]
            naked_asm!("sub rsp, 8", "call {way}", "add rsp, 8", "jmp rax", way = sym $way);
            #[cfg(target_arch = "aarch64")]
            naked_asm!("stp x29, x30, [sp, #-16]!", "bl {way}", "ldp x29, x30, [sp], #16", "mov x16, x0", "br x16", way = sym $way);
        }

        extern "C" fn $way() -> *const c_void {
            next_of!(NEXT, name_of!($name));
            let _visit = match Visit::begin() {
                Admission::Inside(visit) => Some(visit),
                Admission::Closer => None,
                Admission::Anew => return $line.target(),
            };
            let next = NEXT.get();
            if (!libc_kind::is_known() || stands_alone()) && !next.is_null() { next } else { by_fork as *const c_void }
        }
    )*};
}

vforks! {
    /// vfork(2).
    fn vfork in VFORK => vfork_entry by vfork_way;
    /// Another name of vfork(2).
    fn __vfork in DUNDER_VFORK => dunder_vfork_entry by dunder_vfork_way;
}

/// Whether the child has no state of ours to change: no table has an entry, and there is no other thread that could
/// make one meanwhile.
fn stands_alone() -> bool {
    next_of!(SINGLE, c"__libc_single_threaded");
    let single = SINGLE.get().cast::<u8>();
    if !vfork::stands_alone() {
        return false;
    }
    if single.is_null() {
        // musl and glibc before 2.32 have no such flag.
        return vfork::has_one_thread();
    }
    // SAFETY: libc's flag (glibc, sys/single_threaded.h), which it writes only while there is one thread.
    unsafe { single.read_volatile() != 0 }
}

/// A fork whose parent waits until the child has ended or executed.
extern "C" fn by_fork() -> pid_t {
    next_of!(FORK, c"fork");
    // A jump has come here from `vfork`, and vfork(2) itself would not return here twice. So where the library was replaced
    // in between, the new copy makes a fork, for which its parent does not wait.
    visit!(crate::process::fork());
    let pipe = ChildPipe::new();
    let end = pipe.as_ref().map_or(-1, ChildPipe::end);
    let pid = forked_with(end, || call_at!(FORK, () -> pid_t));
    let Some(pipe) = pipe else { return pid };
    if pid == 0 {
        pipe.keep();
    } else {
        pipe.wait(pid);
    }
    pid
}
