//! Turns at a listener of the kernel's whose accept(2) blocks: a thread that finds a connection there takes it before others
//! call.

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
    let _turn = if shared { among_processes(fd)? } else { None };
    if tcp_ready(fd) { accept() } else { Err(Errno::AGAIN) }
}

/// Waits until no other process that shares the listener is between its look and its accept(2). A process that is stopped there
/// is not waited for (`None`), and there are no turns where the file takes no lock. `EAGAIN`: the connection was taken meanwhile.
fn among_processes(fd: i32) -> Result<Option<RecordLock>> {
    for look in 0..LOOKS {
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
