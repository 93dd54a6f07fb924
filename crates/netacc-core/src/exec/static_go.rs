//! Static Go programs that this process executes: the library is mapped into them, since nothing can be preloaded
//! (docs/decisions/0027).
//!
//! Nobody shall notice: neither the program that is executed, nor its parent, nor this process if the execution fails.
//! Where that is not certain the program is executed as if we were absent.

use crate::engine;
use crate::process_mode;
use core::ffi::CStr;
use netacc_stats::Reason;
use netacc_sys::mapped::{Helper, file};
use netacc_sys::{lock, raw};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::CWD;

/// The most bytes of a path.
const PATH_MAX: usize = 4096;

/// What names the program.
#[derive(Clone, Copy, Debug)]
pub enum Named<'a> {
    /// A path, relative to a folder.
    Path(BorrowedFd<'a>, &'a CStr),
    /// A name that is looked for in folders (`PATH`), or a path if it has a slash.
    Searched(&'a CStr, &'a [u8]),
    /// An open file.
    Open(BorrowedFd<'a>),
}

impl<'a> Named<'a> {
    /// A path as execve(2) takes it.
    #[must_use]
    pub fn path(path: &'a CStr) -> Named<'a> {
        Named::Path(CWD, path)
    }

    fn open(self) -> Option<OwnedFd> {
        match self {
            Named::Path(folder, path) => file::open_program(folder, path),
            Named::Searched(name, _) if name.to_bytes().contains(&b'/') => file::open_program(CWD, name),
            Named::Searched(name, folders) => folders.split(|byte| *byte == b':').find_map(|folder| {
                let mut path = [0; PATH_MAX];
                let path = joined(&mut path, folder, name.to_bytes())?;
                file::open_program(CWD, path)
            }),
            Named::Open(file) => rustix::io::fcntl_dupfd_cloexec(file, 0).ok(),
        }
    }
}

/// A file's path in a folder; an empty folder is the current one.
fn joined<'a>(place: &'a mut [u8; PATH_MAX], folder: &[u8], name: &[u8]) -> Option<&'a CStr> {
    let slash: &[u8] = if folder.is_empty() { b"" } else { b"/" };
    let length = folder.len() + slash.len() + name.len();
    let all = folder.iter().chain(slash).chain(name);
    for (to, from) in place.get_mut(..=length)?.iter_mut().zip(all.chain(&[0])) {
        *to = *from;
    }
    CStr::from_bytes_with_nul(place.get(..=length)?).ok()
}

/// To be called before the process executes a program. If that is a static Go program whose calls can be followed, a
/// helper waits for the execution, and maps the library that has this path. If the execution fails, the helper has to be
/// ended.
#[must_use]
pub fn prepare(program: Named<'_>, library: &CStr) -> Option<Helper> {
    // A thread with another number gets the process's when it executes. In a handler that has interrupted our code, a
    // lock may be held that is needed here.
    let may = raw::gettid() == raw::getpid() && !lock::interrupted() && !crate::go::is_off_by_environment();
    // A filter may forbid what this does. Memory with which a device works must not be copied.
    let is_confined = process_mode::reason() == Some(Reason::Confined);
    if !may || is_confined || engine::is_running() {
        return None;
    }
    let opened = program.open()?;
    if !file::is_static_go(opened.as_fd()) || !file::may_execute(opened.as_fd()) {
        return None;
    }
    // What went wrong nobody asks for here: the program is executed, and runs plain.
    Helper::start(library, || file::accept(opened.as_fd()), |_| {}).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_joined() {
        let mut place = [0; PATH_MAX];
        assert_eq!(joined(&mut place, b"/usr/bin", b"etcd"), Some(c"/usr/bin/etcd"));
        let mut place = [0; PATH_MAX];
        assert_eq!(joined(&mut place, b"", b"etcd"), Some(c"etcd"));
        let mut place = [0; PATH_MAX];
        assert_eq!(joined(&mut place, &[b'a'; PATH_MAX - 5], b"etcd"), None);
        assert!(joined(&mut place, &[b'a'; PATH_MAX - 6], b"etcd").is_some());
    }

    #[test]
    fn other_programs_are_executed_without_help() {
        for name in [c"/bin/sh", c"/", c"/none", c"/dev/null", c"/etc/passwd"] {
            assert!(prepare(Named::path(name), c"/none.so").is_none());
        }
        assert!(prepare(Named::Searched(c"sh", b"/none::/bin"), c"/none.so").is_none());
        assert!(Named::Searched(c"sh", b"/none::/bin").open().is_some());
        assert!(Named::Searched(c"sh", b"/none").open().is_none());
    }
}
