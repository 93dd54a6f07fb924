//! Reads a configuration file as carefully as the library does.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use netacc_conf::MAX_FILE_BYTES;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2};
use rustix::io::Errno;

/// Why a configuration file was not read.
#[derive(Debug)]
pub enum Unreadable {
    /// The system says why.
    Os(std::io::Error),
    /// Reading a FIFO would wait, and use up what the library is to read.
    NotRegular,
    /// Longer than anybody's configuration.
    TooLong,
}

impl From<Errno> for Unreadable {
    fn from(error: Errno) -> Self {
        Unreadable::Os(std::io::Error::from_raw_os_error(error.raw_os_error()))
    }
}

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unreadable::Os(error) => error.fmt(f),
            Unreadable::NotRegular => f.write_str("not a regular file"),
            Unreadable::TooLong => write!(f, "longer than {MAX_FILE_BYTES} bytes"),
        }
    }
}

/// Reads the whole file.
pub fn read(path: &Path) -> Result<Vec<u8>, Unreadable> {
    if !fs::metadata(path).map_err(Unreadable::Os)?.is_file() {
        return Err(Unreadable::NotRegular);
    }
    whole(File::open(path).map_err(Unreadable::Os)?)
}

/// Reads the whole file that a process finds at an absolute path: in a container it has files of its own.
pub fn read_of(pid: u32, path: &Path) -> Result<Vec<u8>, Unreadable> {
    let name = open_of(pid, path)?;
    // The process may have put anything there: opening a FIFO must not wait, and a device must not be touched.
    if FileType::from_raw_mode(fstat(&name)?.st_mode) != FileType::RegularFile {
        return Err(Unreadable::NotRegular);
    }
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let again = format!("/proc/self/fd/{}", name.as_raw_fd());
    whole(OpenOptions::new().read(true).custom_flags(flags).open(again).map_err(Unreadable::Os)?)
}

/// Opens a file as a name only. Symbolic links lead where they lead for the process.
fn open_of(pid: u32, path: &Path) -> Result<OwnedFd, Errno> {
    let (flags, root) = (OFlags::PATH | OFlags::CLOEXEC, format!("/proc/{pid}/root"));
    let folder = open(root.as_bytes(), flags | OFlags::DIRECTORY, Mode::empty())?;
    match openat2(folder.as_fd(), path.as_os_str().as_bytes(), flags, Mode::empty(), ResolveFlags::IN_ROOT) {
        // Linux before 5.6, or a filter that does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => {
            open([root.as_bytes(), path.as_os_str().as_bytes()].concat().as_slice(), flags, Mode::empty())
        }
        opened => opened,
    }
}

fn whole(file: File) -> Result<Vec<u8>, Unreadable> {
    let mut text = Vec::new();
    // One byte more than allowed tells a longer file from one that just fits.
    file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut text).map_err(Unreadable::Os)?;
    if text.len() > MAX_FILE_BYTES { Err(Unreadable::TooLong) } else { Ok(text) }
}
