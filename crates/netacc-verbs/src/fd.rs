//! The descriptors of the verbs' objects: plain numbers on which a caller waits, for example with poll(2) or epoll(7).

use crate::error::{Error, Result};
use netacc_sys::raw;

/// A descriptor's number.
pub type RawFd = i32;

/// Sets whether reading an event fails with `EAGAIN` if there is none, instead of waiting for one.
pub fn set_nonblocking(fd: RawFd, on: bool) -> Result<()> {
    change(fd, libc::F_GETFL, libc::F_SETFL, libc::O_NONBLOCK, on)
}

/// Sets whether exec closes the descriptor. The libraries open theirs close-on-exec.
pub fn set_cloexec(fd: RawFd, on: bool) -> Result<()> {
    change(fd, libc::F_GETFD, libc::F_SETFD, libc::FD_CLOEXEC, on)
}

fn change(fd: RawFd, get: i32, set: i32, flag: i32, on: bool) -> Result<()> {
    let failed = |errno| Error::Verb { verb: "fcntl", errno };
    let old = raw::fcntl(fd, get, 0).map_err(failed)?;
    let new = if on { old | flag } else { old & !flag };
    if new == old {
        return Ok(());
    }
    raw::fcntl(fd, set, new as usize).map(drop).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_sys::Errno;
    use std::io::ErrorKind;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn flags_are_set_and_taken_back() {
        let (mut end, _other) = UnixStream::pair().unwrap();
        set_nonblocking(end.as_raw_fd(), true).unwrap();
        assert_eq!(end.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        set_nonblocking(end.as_raw_fd(), false).unwrap();
        assert_eq!(raw::fcntl(end.as_raw_fd(), libc::F_GETFL, 0).unwrap() & libc::O_NONBLOCK, 0);
        set_cloexec(end.as_raw_fd(), false).unwrap();
        assert_eq!(raw::fcntl(end.as_raw_fd(), libc::F_GETFD, 0).unwrap(), 0);
        set_cloexec(end.as_raw_fd(), true).unwrap();
        assert_eq!(raw::fcntl(end.as_raw_fd(), libc::F_GETFD, 0).unwrap(), libc::FD_CLOEXEC);
    }

    #[test]
    fn no_descriptor_is_an_error() {
        assert_eq!(set_nonblocking(-1, true).unwrap_err(), Error::Verb { verb: "fcntl", errno: Errno::BADF });
    }
}
