//! Go programs: the one function by which the Go runtime makes its system calls is made to call the dispatcher of
//! `syscall()` first (docs/decisions/0023). `classes` has the numbers that concern us, `entry` the assembly, `call`
//! what is done on a stack of ours.
//!
//! # Safety
//! All of the library that changes code of the program, or runs between two instructions of it, is in this module.
//! - The code is changed while the loader runs the constructors, when the program has one thread and has not begun; the
//!   bytes that are replaced are known one by one, and so are those that follow.
//! - The registers' contract is written down in `entry`.

mod call;
mod classes;
mod entry;
mod stacks;

use core::ffi::c_void;
use core::ptr;
use netacc_core::go;
use netacc_sys::go_code::EPOLL_DISTANCE;
use netacc_sys::go_program::{self, Functions, Program, Unfollowed};
use netacc_sys::libc_kind;
use rustix::mm::{MprotectFlags, mprotect};
use rustix::param::page_size;

/// Looks whether the program is Go's, and has its calls come here. Called by the library's constructor.
pub fn start() {
    let Program::Go(functions) = go_program::loaded() else { return };
    if !libc_kind::is_known() {
        return;
    }
    if go::is_off_by_environment() {
        go::note_off();
        go::show();
        return;
    }
    let followed = functions.and_then(follow);
    go::note(followed);
    if followed.is_err() {
        go::show();
    }
}

/// Does so in a static program that `netacc_run` has the library in. Returns whether its calls come here.
pub fn start_static() -> bool {
    start();
    go::is_followed()
}

fn follow(functions: Functions) -> Result<(), Unfollowed> {
    let ready = call::prepare() && stacks::prepare();
    if !ready {
        return Err(Unfollowed::Refused);
    }
    entry::note_functions(&functions);
    let replaced = [
        Some((functions.syscall6, entry::system_call_address())),
        functions.exit.map(|at| (at, entry::exit_address())),
    ];
    let places = functions.epoll.into_iter().flat_map(|first| (first..).step_by(EPOLL_DISTANCE));
    let for_epoll = places.zip(entry::epoll_addresses());
    for (at, to) in replaced.into_iter().flatten().chain(for_epoll) {
        redirect(at, to).map_err(|_| Unfollowed::Refused)?;
    }
    Ok(())
}

/// Replaces the first twelve bytes of a function by a jump that changes nothing but rdx.
fn redirect(function: usize, to: usize) -> rustix::io::Result<()> {
    // movabs rdx, to; jmp rdx
    let mut jump = [0x48, 0xba, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe2];
    for (byte, value) in jump.iter_mut().skip(2).zip(to.to_le_bytes()) {
        *byte = value;
    }
    let first = function & !(page_size() - 1);
    let length = function + jump.len() - first;
    let pages: *mut c_void = ptr::with_exposed_provenance_mut(first);
    // SAFETY: pages of the program's code, which are private to the process. There is one thread, and it runs here, so
    // that nobody misses the right to execute them meanwhile.
    unsafe { mprotect(pages, length, MprotectFlags::READ | MprotectFlags::WRITE) }?;
    // SAFETY: the function has at least as many bytes, which were compared, and the pages may be written just now.
    unsafe { ptr::copy_nonoverlapping(jump.as_ptr(), ptr::with_exposed_provenance_mut(function), jump.len()) };
    // SAFETY: as they were before.
    let again = unsafe { mprotect(pages, length, MprotectFlags::READ | MprotectFlags::EXEC) };
    if again.is_err() {
        // Code that cannot be executed any more ends the program at its first call; that nobody should search for.
        netacc_sys::raw::exit_group(127);
    }
    Ok(())
}
