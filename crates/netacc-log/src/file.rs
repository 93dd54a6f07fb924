//! The file of the log. By default it lies in a folder in which every user may make files, and links to files of other
//! users.

use netacc_sys::{raw, reserved_fds, signals};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, lstat, open, rename};
use rustix::process::geteuid;

/// The size (bytes) at which a log is renamed to `PATH.1`, which replaces the one before, and a new log begins.
const MOST: u64 = 16 << 20;
/// The part of that size by which a log may be longer while somebody else has its lock.
const OVERDUE: u64 = 16;
/// The size (bytes) of the longest path that can be configured, with the suffix of a rotated log.
const PATH: usize = 4095 + 2;

/// Appends a line to the log, and returns whether it was written.
pub(super) fn append(path: &str, line: &[u8]) -> bool {
    append_up_to(path, line, MOST)
}

fn append_up_to(path: &str, line: &[u8], most: u64) -> bool {
    let fits = |stat: &Stat| u64::try_from(stat.st_size).is_ok_and(|size| size + line.len() as u64 <= most);
    let Some((fd, stat)) = open_log(path) else { return false };
    if fits(&stat) {
        return write_line(fd, line);
    }
    let turned = rotate(path, &fd, &stat, most);
    match turned {
        // Another thread or process is about to rotate the log.
        Rotation::Others => return write_line(fd, line),
        Rotation::Done => reserved_fds::drop_raw(fd),
        Rotation::Impossible => {
            reserved_fds::drop_raw(fd);
            return false;
        }
    }
    match open_log(path) {
        Some((fd, stat)) if fits(&stat) => write_line(fd, line),
        Some((fd, _)) => {
            reserved_fds::drop_raw(fd);
            false
        }
        None => false,
    }
}

/// Opens the log, if the file there is a log: a regular file with no other name that belongs to our own user or to
/// root. No other file is written to, and none can block us.
fn open_log(path: &str) -> Option<(OwnedFd, Stat)> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = open(path, flags, Mode::from_raw_mode(0o644)).ok()?;
    match fstat(&fd) {
        Ok(stat) if is_log(&stat) => Some((fd, stat)),
        _ => {
            reserved_fds::drop_raw(fd);
            None
        }
    }
}

fn is_log(stat: &Stat) -> bool {
    let ours = stat.st_uid == 0 || stat.st_uid == geteuid().as_raw();
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink == 1 && ours
}

fn write_line(fd: OwnedFd, line: &[u8]) -> bool {
    // Beyond RLIMIT_FSIZE the kernel refuses, and sends a signal that would end the program. Other processes write to
    // the file as well, so its size says nothing here.
    let done = signals::without(libc::SIGXFSZ, || raw::write(fd.as_raw_fd(), line.as_ptr(), line.len()));
    reserved_fds::drop_raw(fd);
    done.is_ok()
}

/// The outcome of a rotation.
#[derive(Debug, PartialEq, Eq)]
enum Rotation {
    /// The path names another file now, or none, so that a new log can be made.
    Done,
    /// Another process or thread rotates the log at this moment.
    Others,
    /// The file cannot be moved away, so it cannot be written to any more.
    Impossible,
}

/// Renames the log. `fd` and `stat` are those of the file that is too long.
fn rotate(path: &str, fd: &OwnedFd, stat: &Stat, most: u64) -> Rotation {
    // If several threads or processes find the log too long, only one renames it. The lock ends with the descriptor. Whoever
    // may read the log can have such a lock for any time, so a log that has grown much longer is renamed without it.
    let is_overdue = u64::try_from(stat.st_size).is_ok_and(|size| size > most.saturating_add(most / OVERDUE));
    match flock(fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) if is_overdue => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Rotation::Others,
        Err(_) => return Rotation::Impossible,
    }
    if lstat(path).is_ok_and(|there| (there.st_dev, there.st_ino) != (stat.st_dev, stat.st_ino)) {
        return Rotation::Done;
    }
    let mut buf = [0u8; PATH];
    let Some(to) = old_name(path, &mut buf) else { return Rotation::Impossible };
    if rename(path, to).is_ok() { Rotation::Done } else { Rotation::Impossible }
}

/// The name of the rotated log: `PATH.1`.
fn old_name<'a>(path: &str, buf: &'a mut [u8; PATH]) -> Option<&'a [u8]> {
    let name = buf.get_mut(..path.len() + 2)?;
    let (stem, end) = name.split_at_mut(path.len());
    stem.copy_from_slice(path.as_bytes());
    end.copy_from_slice(b".1");
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    /// A temporary folder of one test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let folder = std::env::temp_dir().join(format!("netacc-log-{name}-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Folder(folder)
        }

        fn path(&self, name: &str) -> String {
            self.0.join(name).to_str().unwrap().to_owned()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn only_a_regular_file_with_one_name_is_a_log() {
        let folder = Folder::new("kinds");
        let path = |name| folder.path(name);
        assert!(append(&path("log"), b"a\n") && append(&path("log"), b"b\n"));
        assert_eq!(fs::read(path("log")).unwrap(), b"a\nb\n");
        fs::hard_link(path("log"), path("second")).unwrap();
        assert!(!append(&path("log"), b"c\n") && !append(&path("second"), b"c\n"));
        symlink(path("elsewhere"), path("link")).unwrap();
        assert!(!append(&path("link"), b"c\n") && !fs::exists(path("elsewhere")).unwrap());
        rustix::fs::mknodat(rustix::fs::CWD, path("fifo").as_str(), FileType::Fifo, Mode::from_raw_mode(0o600), 0)
            .unwrap();
        assert!(!append(&path("fifo"), b"c\n"), "nobody reads");
        let reader = open(path("fifo").as_str(), OFlags::RDWR | OFlags::NONBLOCK, Mode::empty()).unwrap();
        assert!(!append(&path("fifo"), b"c\n"));
        assert!(rustix::io::read(&reader, &mut [0u8; 8]).is_err(), "the FIFO was written to");
        assert!(!append("/dev/null", b"c\n") && !append("/dev/full", b"c\n") && !append(&path("."), b"c\n"));
        assert_eq!(fs::read(path("log")).unwrap(), b"a\nb\n");
    }

    #[test]
    fn a_file_of_another_user_is_no_log() {
        let folder = Folder::new("owners");
        let path = folder.path("log");
        assert!(append(&path, b"a\n"));
        let (_fd, mut stat) = open_log(&path).unwrap();
        stat.st_uid = geteuid().as_raw() + 1;
        assert!(!is_log(&stat));
        stat.st_uid = 0;
        assert!(is_log(&stat));
    }

    #[test]
    fn a_log_that_is_too_long_is_moved_away_once() {
        let folder = Folder::new("turns");
        let (path, old) = (folder.path("log"), folder.path("log.1"));
        for n in 0..10 {
            assert!(append_up_to(&path, format!("line {n}\n").as_bytes(), 30));
        }
        // A log has room for four lines of seven bytes each.
        assert_eq!(fs::read_to_string(&path).unwrap(), "line 8\nline 9\n");
        assert_eq!(fs::read_to_string(&old).unwrap(), "line 4\nline 5\nline 6\nline 7\n");
        assert!(!append_up_to(&path, &[b'x'; 31], 30), "longer than a log may be");
    }

    #[test]
    fn a_reader_that_locks_the_log_does_not_keep_it_from_being_moved_away() {
        let folder = Folder::new("locked");
        let path = folder.path("log");
        assert!(append_up_to(&path, b"line\n", 160));
        let reader = open(path.as_str(), OFlags::RDONLY, Mode::empty()).unwrap();
        flock(&reader, FlockOperation::NonBlockingLockShared).unwrap();
        for _ in 0..200 {
            assert!(append_up_to(&path, b"line\n", 160));
            assert!(fs::metadata(&path).unwrap().len() <= 160 + 160 / OVERDUE + 5);
        }
        assert!(fs::metadata(folder.path("log.1")).unwrap().len() >= 160);
    }

    #[test]
    fn a_log_that_cannot_be_moved_away_grows_no_further() {
        let folder = Folder::new("stuck");
        let path = folder.path("log");
        fs::create_dir_all(folder.path("log.1/full")).unwrap();
        let written = (0..10).filter(|_| append_up_to(&path, b"line 0\n", 30)).count();
        assert_eq!((written, fs::metadata(&path).unwrap().len()), (4, 28));
        let (fd, stat) = open_log(&path).unwrap();
        let held = flock(&fd, FlockOperation::NonBlockingLockExclusive);
        assert!(held.is_ok());
        let (other, _) = open_log(&path).unwrap();
        assert_eq!(rotate(&path, &other, &stat, 28), Rotation::Others);
    }
}
