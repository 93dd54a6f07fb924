//! Turns at a listener of the kernel's whose accept(2) blocks: a thread that finds a connection there takes it before others
//! call.

use crate::fd::table;
use crate::object::listener::tcp_ready;
use crate::object::socket::Socket;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::record_lock::RecordLock;
use netacc_sys::{raw, time};

/// Number of looks whether another process still has the turn: the first ones give it this CPU, the others are a millisecond apart.
const LOOKS: u32 = 30;
const YIELDS: u32 = 20;

/// Calls the kernel's accept(2) at a listener whose mode is the program's, so that the call may block. The threads of this
/// process do so one at a time, each after a look, and so do the processes that share the listener (`shared`): else all of
/// them would be woken by one connection, and all but one would block where they hear neither of clients in shared memory nor
/// of an operator. Only where a call of libc's accept(2) takes the connection first, the thread blocks until the next one.
/// `EAGAIN`: none waits, or another thread is about to take it.
pub(super) fn alone(s: &Socket, fd: i32, shared: bool, accept: impl FnOnce() -> Result<i32>) -> Result<i32> {
    let Some(_alone) = s.accepting.try_lock() else {
        // The caller looks once more. The other thread may need this CPU.
        raw::sched_yield();
        return Err(Errno::AGAIN);
    };
    let turn = if shared { among_processes(s, fd)? } else { None };
    let done = if tcp_ready(fd) { accept() } else { Err(Errno::AGAIN) };
    // A close of the number has freed the lock. Another file that has the number now may have locks of the program's.
    turn.filter(|_| !is_here(s, fd)).into_iter().for_each(core::mem::forget);
    done
}

/// Whether the number is still one of the listener's.
fn is_here(s: &Socket, fd: i32) -> bool {
    s.kept.fd() == fd || table::socket(fd).is_some_and(|r| core::ptr::eq(r.obj, s))
}

/// Waits until no other process that shares the listener is between its look and its accept(2). A process that is stopped there
/// is not waited for (`None`), and there are no turns where the file takes no lock. `EAGAIN`: the connection was taken meanwhile,
/// or the number is another file's.
fn among_processes(s: &Socket, fd: i32) -> Result<Option<RecordLock>> {
    for look in 0..LOOKS {
        if !is_here(s, fd) {
            return Err(Errno::AGAIN);
        }
        match RecordLock::try_take(fd) {
            Ok(turn) => return Ok(Some(turn)),
            Err(Errno::AGAIN) => {}
            Err(_) => return Ok(None),
        }
        if look < YIELDS {
            raw::sched_yield()
        } else {
            time::pause()
        }
        if !tcp_ready(fd) {
            return Err(Errno::AGAIN);
        }
    }
    Ok(None)
}
