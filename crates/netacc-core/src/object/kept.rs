//! Our own numbers for sockets whose number the program has closed while calls sleep on them. In the kernel such a call
//! keeps the file; here the file of a connection may be replaced meanwhile, and needs a number for that.

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use netacc_sys::reserved_fds;

/// The numbers (+ 1). A socket that finds no free cell is not kept.
static NUMBERS: [AtomicI32; 64] = [const { AtomicI32::new(0) }; 64];

/// The number of ours that a socket has, if any. It is a number like those of the program: a kernel socket that replaces
/// the file of the socket is put under it, too.
#[derive(Debug)]
pub struct Kept {
    /// Index (+ 1) in [`NUMBERS`]; 0: none. Written under both direction locks of the socket. Acquire and Release: a
    /// thread that sees the index sees the number there.
    place: AtomicU32,
}

impl Kept {
    /// The number, or -1. So it is in the child of a fork that a handler made during a call.
    #[inline]
    pub fn fd(&self) -> i32 {
        self.place.load(Ordering::Acquire).checked_sub(1).map_or(-1, number)
    }

    /// Keeps the file of `fd`, which is about to be closed, unless there is a number already.
    pub(crate) fn keep(&self, fd: i32) {
        if self.fd() >= 0 {
            return;
        }
        let Ok(ours) = reserved_fds::copy(fd) else { return };
        // AcqRel: a thread that closes the number, here or in the child of a fork, sees its file.
        let free = |c: &AtomicI32| c.compare_exchange(0, ours + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        match (1..).zip(&NUMBERS).find(|(_, cell)| free(cell)) {
            Some((place, _)) => self.place.store(place, Ordering::Release),
            None => reserved_fds::close(ours),
        }
    }

    /// Called in the child of a fork, which has none of the numbers: the next one in that place is another socket's.
    pub(crate) fn forget(&self) {
        self.place.store(0, Ordering::Relaxed);
    }

    /// Closes the number at the end of the socket.
    pub(crate) fn release(&self) {
        let place = self.place.swap(0, Ordering::AcqRel);
        if let Some(cell) = place.checked_sub(1).and_then(|place| NUMBERS.get(place as usize)) {
            close(cell);
        }
    }
}

fn number(place: u32) -> i32 {
    NUMBERS.get(place as usize).map_or(-1, |cell| cell.load(Ordering::Acquire) - 1)
}

fn close(cell: &AtomicI32) {
    let fd = cell.swap(0, Ordering::AcqRel) - 1;
    if fd >= 0 {
        reserved_fds::close(fd);
    }
}

/// Called in the child of a fork: closes the numbers, since the sleeping threads are the parent's.
pub fn after_fork() {
    NUMBERS.iter().for_each(close);
}
