//! The kernel's record lock of a file (`F_SETLK`, fcntl(2)), by which the processes that have a socket in common take turns.
//!
//! It belongs to the process, so it says nothing between threads, and the child of a fork does not have it. It ends with its
//! process, and when the process closes any number of the file.

use crate::raw;

/// This process's lock of a whole file, until it is dropped.
#[derive(Debug)]
pub struct RecordLock(i32);

impl RecordLock {
    /// Takes the lock without waiting; `None`: another process has it, or the file takes none.
    pub fn try_take(fd: i32) -> Option<RecordLock> {
        set(fd, libc::F_WRLCK).then_some(RecordLock(fd))
    }
}

impl Drop for RecordLock {
    fn drop(&mut self) {
        set(self.0, libc::F_UNLCK);
    }
}

/// Takes or frees the lock. Returns whether this succeeded.
#[expect(clippy::cast_possible_truncation, reason = "libc has the small constants of struct flock as i32")]
fn set(fd: i32, kind: i32) -> bool {
    let lock = libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: 0, l_len: 0, l_pid: 0 };
    raw::fcntl(fd, libc::F_SETLK, (&raw const lock).addr()).is_ok()
}
