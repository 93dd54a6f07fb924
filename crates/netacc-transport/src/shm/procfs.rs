//! Queries about another process, a sharer or the peer, by proc(5).

use alloc::format;
use core::fmt::{self, Write};
use netacc_sys::{raw, reserved_fds};
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, fstat, open, readlinkat_raw, statat};

/// The path of a file about a process, on the stack: a process that was forked while another thread was allocating must
/// not allocate.
#[derive(Default)]
struct ProcPath {
    bytes: [u8; 32],
    len: usize,
}

impl ProcPath {
    fn new(pid: u32, file: &str) -> ProcPath {
        let mut path = ProcPath::default();
        // The longest name has 21 bytes.
        let _ = write!(path, "/proc/{pid}/{file}");
        path
    }

    fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl Write for ProcPath {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let end = self.len + s.len();
        self.bytes.get_mut(self.len..end).ok_or(fmt::Error)?.copy_from_slice(s.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// Whether `pid` has ended and was not waited for, so that its process id is still in use. False if /proc does not show
/// it.
pub(super) fn is_zombie(pid: u32) -> bool {
    matches!(state_of(pid), Some(b'Z' | b'X'))
}

/// Whether `pid` is stopped, by a signal or by a tracer. False if /proc does not show it.
pub(super) fn is_stopped(pid: u32) -> bool {
    matches!(state_of(pid), Some(b'T' | b't'))
}

/// Whether `pid` is known to be in another user namespace than this process (user_namespaces(7)). False if that is not
/// visible: for a process of another user, or without /proc.
#[inline(never)]
pub(super) fn is_in_another_user_namespace(pid: u32) -> bool {
    let namespace = |pid| {
        let found = statat(CWD, ProcPath::new(pid, "ns/user").as_bytes(), AtFlags::empty()).ok()?;
        Some((found.st_dev, found.st_ino))
    };
    namespace(pid).is_some_and(|theirs| namespace(raw::getpid()).is_some_and(|ours| ours != theirs))
}

fn state_of(pid: u32) -> Option<u8> {
    let mut text = [0u8; 256];
    let read = read_start(ProcPath::new(pid, "stat").as_bytes(), &mut text)?;
    state(text.get(..read)?)
}

/// Reads the beginning of a file of the kernel's into `text`, and returns how many bytes that is.
pub(super) fn read_start(path: &[u8], text: &mut [u8]) -> Option<usize> {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let read = raw::read(file.as_raw_fd(), text.as_mut_ptr(), text.len(), None);
    reserved_fds::drop_raw(file);
    read.ok()
}

/// The third field of `/proc/PID/stat` (proc(5)). The second is a name in parentheses, with any characters in it.
fn state(stat: &[u8]) -> Option<u8> {
    let end = stat.iter().rposition(|b| *b == b')')?;
    stat.get(end + 2).copied()
}

/// Whether `pid` has the file of our descriptor `ours` open. False if that is not visible: for a process of another
/// user, or without /proc.
pub(super) fn has_open(pid: u32, ours: BorrowedFd<'_>) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(file) = fstat(ours) else { return false };
    let Ok(folder) = open(ProcPath::new(pid, "fd").as_bytes(), flags, Mode::empty()) else { return false };
    let mut buf = [core::mem::MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(&folder, &mut buf);
    let mut found = false;
    while let Some(Ok(entry)) = entries.next() {
        let theirs = statat(&folder, entry.file_name(), AtFlags::empty());
        found |= theirs.is_ok_and(|t| (t.st_dev, t.st_ino) == (file.st_dev, file.st_ino));
    }
    reserved_fds::drop_raw(folder);
    found
}

/// Whether `pid` has the socket with this inode number open. False if that is not visible: for a process of another
/// user, or without /proc.
pub(super) fn has_socket(pid: u32, inode: u32) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(folder) = open(format!("/proc/{pid}/fd").as_str(), flags, Mode::empty()) else { return false };
    let wanted = format!("socket:[{inode}]");
    let mut buf = [core::mem::MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(&folder, &mut buf);
    let mut found = false;
    while let Some(Ok(entry)) = entries.next() {
        // The link of a socket cannot be confused with the path of a file, which begins with a slash.
        let mut text = [0u8; 64];
        let length = readlinkat_raw(&folder, entry.file_name(), &mut text);
        found |= length.is_ok_and(|n| text.get(..n) == Some(wanted.as_bytes()));
    }
    reserved_fds::drop_raw(folder);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::process::{Child, Command};

    /// Starts a child and waits until it has closed its copies of our descriptors. The kernel closes them in ascending
    /// order when the child executes, a little after `spawn` has returned, so the end of the highest one is awaited.
    fn start(command: &mut Command) -> Child {
        let _alone = crate::starting();
        let (end, first) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let last = rustix::io::fcntl_dupfd_cloexec(&first, 900).unwrap();
        drop(first);
        let child = command.spawn().unwrap();
        drop(last);
        assert_eq!(rustix::io::read(&end, &mut [0]), Ok(0));
        child
    }

    #[test]
    fn paths_of_any_process_fit() {
        assert_eq!(ProcPath::new(u32::MAX, "stat").as_bytes(), b"/proc/4294967295/stat");
        assert_eq!(ProcPath::new(1, "fd").as_bytes(), b"/proc/1/fd");
    }

    #[test]
    fn the_state_follows_any_name() {
        assert_eq!(state(b"12 (sh) S 1 12"), Some(b'S'));
        assert_eq!(state(b"12 (a) Z (b)) Z 1 12"), Some(b'Z'));
        assert_eq!(state(b"12 (cut"), None);
        assert_eq!(state(b"12 (cut)"), None);
        assert!(!is_zombie(std::process::id()));
    }

    #[test]
    fn an_ended_process_is_a_zombie_until_it_is_waited_for() {
        let mut child = start(&mut Command::new("true"));
        let pid = child.id();
        while !is_zombie(pid) {
            raw::sched_yield();
        }
        assert!(raw::process_exists(pid));
        child.wait().unwrap();
        assert!(!is_zombie(pid));
    }

    #[test]
    fn a_stopped_process_is_seen_to_go_on() {
        let mut child = start(Command::new("sleep").arg("100"));
        let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
        let signal = |s| rustix::process::kill_process(pid, s).unwrap();
        assert!(!is_stopped(child.id()));
        signal(rustix::process::Signal::STOP);
        while !is_stopped(child.id()) {
            raw::sched_yield();
        }
        signal(rustix::process::Signal::CONT);
        while is_stopped(child.id()) {
            raw::sched_yield();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_file_is_found_under_any_number() {
        let pair = |_| socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let [(a, _b), (c, d)] = [0, 1].map(pair);
        let copy = rustix::fd::IntoRawFd::into_raw_fd(c.try_clone().unwrap());
        #[allow(unsafe_code)]
        // SAFETY: no other code owns the descriptor.
        let copy: std::os::fd::OwnedFd = unsafe { std::os::fd::FromRawFd::from_raw_fd(copy) };
        let mut sleeper = start(Command::new("sleep").arg("100").stdin(copy));
        assert!(has_open(sleeper.id(), c.as_fd()));
        assert!(!has_open(sleeper.id(), d.as_fd()));
        assert!(has_open(std::process::id(), a.as_fd()));
        let [held, not] = [c.as_fd(), d.as_fd()].map(|fd| u32::try_from(fstat(fd).unwrap().st_ino).unwrap());
        assert!(has_socket(sleeper.id(), held) && !has_socket(sleeper.id(), not));
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(!has_open(sleeper.id(), c.as_fd()));
    }
}
