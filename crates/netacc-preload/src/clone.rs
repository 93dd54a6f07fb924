//! clone(2): a child with memory of its own is the child of a fork, however it was made.

use crate::process::{at_rest, forked_to};
use core::ffi::{c_int, c_long, c_ulong, c_void};
use libc::pid_t;
use netacc_core::fallback;
use netacc_core::fork::prepare::{Forking, NewSpaces};
use netacc_core::fork::{child, prepare};
use netacc_stats::Reason;
use netacc_sys::{heap, libc_kind, user, visits};

/// Kind of child that a clone with the given flags makes.
enum Child {
    /// A thread, or a process that shares the caller's memory: whatever it does, it does to our tables as well.
    SharesMemory,
    /// A process that shares the caller's descriptor table: a change by either would have to be reported to the other.
    SharesDescriptors,
    /// A process with its own memory and its own descriptor table.
    Forked(NewSpaces),
}

fn child(flags: u64) -> Child {
    let has = |flag: c_int| flags & flag as u64 != 0;
    if has(libc::CLONE_VM) {
        Child::SharesMemory
    } else if has(libc::CLONE_FILES) {
        Child::SharesDescriptors
    } else {
        Child::Forked(NewSpaces { processes: has(libc::CLONE_NEWPID), network: has(libc::CLONE_NEWNET) })
    }
}

/// The flags of clone3(2), the first member of its structure. `None`: the kernel makes no child, since it cannot read the
/// structure or knows none that is as short.
pub fn flags3(args: usize, size: usize) -> Option<u64> {
    const SHORTEST: usize = 64;
    // SAFETY: any eight bytes are flags.
    if size < SHORTEST { None } else { unsafe { user::load(args as *const u64) } }
}

/// Handles a clone that the system call `next` makes, which returns in both parent and child.
pub fn made(flags: u64, next: impl FnOnce() -> c_long) -> c_long {
    match child(flags) {
        // The child, which may have the caller's thread pointer, begins outside the library.
        Child::SharesMemory => visits::outside(next),
        Child::SharesDescriptors => {
            fallback::fall_back(Reason::Fork);
            next()
        }
        Child::Forked(new) => forked_to(new, || at_rest(next)),
    }
}

/// What a child that begins in a function of its own does.
struct Begin {
    forking: Option<Forking>,
    new: NewSpaces,
    function: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
}

/// The child's first function. `begin` lies on the stack of the parent's thread, of which the child has a copy.
extern "C" fn begin(begin: *mut c_void) -> c_int {
    // SAFETY: `clone` below gives the address of a `Begin`, and nobody else has it in this process.
    let begin = unsafe { &mut *begin.cast::<Begin>() };
    heap::in_child();
    if let Some(forking) = begin.forking.take() {
        child::child_in(forking, begin.new);
    }
    (begin.function)(begin.argument)
}

exports! {
    /// clone(3), libc's function, which is variadic in C. The kernel does not look at an argument that the flags do not
    /// call for, so one that the caller left out may have any value.
    fn clone(
        function: Option<extern "C" fn(*mut c_void) -> c_int>,
        stack: *mut c_void,
        flags: c_int,
        argument: *mut c_void,
        parent_tid: *mut pid_t,
        tls: c_ulong,
        child_tid: *mut pid_t,
    ) -> c_int {
        visit!(clone(function, stack, flags, argument, parent_tid, tls, child_tid));
        let next = |function: Option<extern "C" fn(*mut c_void) -> c_int>, argument: *mut c_void| {
            call_next!(clone(
                function => Option<extern "C" fn(*mut c_void) -> c_int>, stack => *mut c_void, flags => c_int,
                argument => *mut c_void, parent_tid => *mut pid_t, tls => c_ulong, child_tid => *mut pid_t
            ) -> c_int)
        };
        if !libc_kind::is_known() {
            return next(function, argument);
        }
        let (new, function) = match (child(flags as u64), function) {
            // Without function or stack libc refuses.
            (Child::Forked(new), Some(function)) if !stack.is_null() => (new, function),
            (Child::SharesDescriptors, function) => {
                fallback::fall_back(Reason::Fork);
                return next(function, argument);
            }
            // As in `made`.
            (_, function) => return visits::outside(|| next(function, argument)),
        };
        let mut start = Begin { forking: Some(prepare::prepare_for(new)), new, function, argument };
        heap::before_fork();
        let pid = next(Some(begin), (&raw mut start).cast());
        heap::after_fork();
        if let Some(forking) = start.forking.take() {
            prepare::parent(forking, pid > 0);
        }
        pid
    }
}
