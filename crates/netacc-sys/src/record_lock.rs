//! The kernel's record lock of a file (`F_SETLK`, fcntl(2)), by which the processes that have a socket in common take turns.
//!
//! It belongs to the process, so it says nothing between threads, and the child of a fork does not have it. It ends with its
//! process, and when the process closes any number of the file.

use crate::errno::{Errno, Result};
use crate::raw;

/// This process's lock of a whole file, until it is dropped.
#[derive(Debug)]
pub struct RecordLock(i32);

impl RecordLock {
    /// Takes the lock without waiting.
    ///
    /// # Errors
    /// `EAGAIN` if another process has it; others if the file takes none.
    pub fn try_take(fd: i32) -> Result<RecordLock> {
        match set(fd, libc::F_WRLCK) {
            Ok(()) => Ok(RecordLock(fd)),
            // fcntl(2): either of the two.
            Err(Errno::ACCES) => Err(Errno::AGAIN),
            Err(e) => Err(e),
        }
    }
}

impl Drop for RecordLock {
    fn drop(&mut self) {
        let _ = set(self.0, libc::F_UNLCK);
    }
}

/// Takes or frees the lock.
#[expect(clippy::cast_possible_truncation, reason = "libc has the small constants of struct flock as i32")]
fn set(fd: i32, kind: i32) -> Result<()> {
    let lock = libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: 0, l_len: 0, l_pid: 0 };
    raw::fcntl(fd, libc::F_SETLK, (&raw const lock).addr()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsRawFd;

    /// Whether a lock stands in the way of another description of the file, as it does in that of another process.
    #[expect(clippy::cast_possible_truncation, reason = "libc has the small constants of struct flock as i32")]
    fn is_locked(fd: i32) -> bool {
        let path = format!("/proc/self/fd/{fd}");
        let again = rustix::fs::open(path.as_str(), rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
        let mut lock = libc::flock {
            l_type: libc::F_WRLCK as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: 0,
            l_len: 0,
            l_pid: 0,
        };
        raw::fcntl(again.as_raw_fd(), libc::F_OFD_GETLK, (&raw mut lock).addr()).unwrap();
        // Its close would take the lock away.
        core::mem::forget(again);
        i32::from(lock.l_type) != libc::F_UNLCK
    }

    #[test]
    fn others_find_the_file_locked_as_long_as_the_lock_lives() {
        let file = rustix::fs::memfd_create("locked", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let lock = RecordLock::try_take(file.as_raw_fd()).unwrap();
        assert!(is_locked(file.as_raw_fd()));
        drop(lock);
        assert!(!is_locked(file.as_raw_fd()));
    }

    #[test]
    fn what_takes_no_lock_is_told_from_what_another_has() {
        assert_eq!(RecordLock::try_take(-1).unwrap_err(), Errno::BADF);
        let (read, _write) = rustix::pipe::pipe().unwrap();
        assert_eq!(RecordLock::try_take(read.as_raw_fd()).unwrap_err(), Errno::BADF, "not open for writing");
    }
}
