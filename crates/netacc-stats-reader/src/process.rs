//! A process, and not merely its number.

use std::fmt;
use std::fs;
use std::io;

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use crate::Error;
use crate::source::system;

/// A process that is held by its folder in `/proc` (proc(5)): once it has ended, nothing is found there, even if another
/// process has been given its number.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    folder: OwnedFd,
}

impl Process {
    /// The process that has this number now.
    ///
    /// # Errors
    ///
    /// [`Error::NoProcess`], or why it cannot be looked into.
    pub fn open(pid: u32) -> Result<Process, Error> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = open(format!("/proc/{pid}").as_str(), flags, Mode::empty());
        folder.map(|folder| Process { pid, folder }).map_err(|error| Error::of_proc(system(error)))
    }

    /// Holds it once more.
    pub(crate) fn copy(&self) -> Result<Process, Errno> {
        Ok(Process { pid: self.pid, folder: fcntl_dupfd_cloexec(&self.folder, 0)? })
    }

    /// Its number, which it has for as long as it exists.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The path of a file in its folder, which leads nowhere once it has ended.
    #[must_use]
    pub fn path(&self, file: impl fmt::Display) -> String {
        format!("/proc/self/fd/{}/{file}", self.folder.as_raw_fd())
    }

    /// The text of a file in its folder.
    ///
    /// # Errors
    ///
    /// As of reading a file; `ESRCH` or `ENOENT` if the process has ended.
    pub fn text(&self, file: &str) -> io::Result<String> {
        fs::read(self.path(file)).map(|text| String::from_utf8_lossy(&text).into_owned())
    }

    /// Whether it has not been reaped yet, so that its number is its own.
    #[must_use]
    pub fn exists(&self) -> bool {
        fs::read(self.path("stat")).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, id};

    #[test]
    fn nothing_is_found_of_a_process_that_has_ended() {
        let own = Process::open(id()).unwrap();
        assert!(own.exists() && own.text("status").unwrap().contains("Name:"));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        assert!(process.exists() && process.pid() == child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.exists() && process.text("status").is_err());
        assert!(matches!(Process::open(child.id()), Err(Error::NoProcess)));
    }
}
