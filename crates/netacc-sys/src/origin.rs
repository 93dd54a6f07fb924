//! Where the library's file lay when the program started, and what root the process had then.
//!
//! A path leads elsewhere once the process has another root or other mounts: a daemon that has confined itself to a folder
//! (chroot(2)) finds there whatever the folder's owner has put there, and would execute it with its own rights. So what is
//! opened by a path after the start is compared with what was there at the start, by device and inode.

use crate::errno::Errno;
use crate::reserved_fds;
use crate::set_once::SetOnce;
use core::ffi::CStr;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, openat, stat, statat};
use rustix::process::geteuid;

/// Device and inode of a file. Zeroes, which no file has, stand for one that could not be looked up.
type Identity = (u64, u64);

/// What is known of the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The root of the process.
    root: Identity,
    /// The folder in which the library's file lay. The file itself is another one after an installation.
    folder: Identity,
}

/// Why the file at the library's path is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// It cannot be opened.
    Unreadable(Errno),
    /// It is no regular file.
    NoFile,
    /// The path leads elsewhere than at the start, or the file is one that strangers can write to ([`trusts`]).
    Elsewhere,
}

static ORIGIN: SetOnce<Origin> = SetOnce::new();

/// Notes root and library at the start of the program. `path` is the library's, if the linker has loaded it.
pub fn note(path: Option<&CStr>) {
    ORIGIN.set(Origin::now(path));
}

/// Notes what an earlier copy of the library has noted ([`Origin::words`]).
pub fn take_over(words: [u64; 4]) {
    let [root, root_inode, folder, folder_inode] = words;
    ORIGIN.set(Origin { root: (root, root_inode), folder: (folder, folder_inode) });
}

/// What was noted.
pub fn noted() -> Option<Origin> {
    ORIGIN.get()
}

/// Whether a path that begins at the root leads where it led at the start, as far as that is known.
pub fn is_same_root() -> bool {
    ORIGIN.get().is_none_or(|origin| origin.has_root())
}

fn identity(stat: &Stat) -> Identity {
    (stat.st_dev, stat.st_ino)
}

/// The folder of a path, and the name in it.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let at = path.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
    path.split_at(at)
}

impl Origin {
    fn now(path: Option<&CStr>) -> Origin {
        let of = |path: &[u8]| stat(path).map_or((0, 0), |stat| identity(&stat));
        let path = path.map_or(&b""[..], CStr::to_bytes);
        Origin { root: of(b"/"), folder: of(split(path).0) }
    }

    /// What is noted, as numbers for the next copy of the library.
    #[must_use]
    pub fn words(&self) -> [u64; 4] {
        [self.root.0, self.root.1, self.folder.0, self.folder.1]
    }

    fn has_root(&self) -> bool {
        stat(c"/").is_ok_and(|stat| identity(&stat) == self.root)
    }

    /// Opens the library's file for reading.
    ///
    /// # Errors
    /// The variant says why it is not used.
    pub fn open(&self, path: &CStr) -> Result<OwnedFd, Problem> {
        if !self.has_root() {
            return Err(Problem::Elsewhere);
        }
        let (folder, name) = split(path.to_bytes());
        let folder = open_at(CWD, folder, OFlags::PATH | OFlags::DIRECTORY)?;
        let opened = match fstat(&folder) {
            Ok(stat) if identity(&stat) == self.folder => open_in(&folder, stat.st_uid, name),
            Ok(_) => Err(Problem::Elsewhere),
            Err(e) => Err(Problem::Unreadable(e.into())),
        };
        reserved_fds::drop_raw(folder);
        opened
    }
}

/// Opens a file in the library's folder, which this user owns.
fn open_in(folder: &OwnedFd, owner: u32, name: &[u8]) -> Result<OwnedFd, Problem> {
    // What is no regular file is not opened for reading, which may block or change it.
    let look = |flags| statat(folder, name, flags).map_err(|e| Problem::Unreadable(e.into()));
    let (entry, file) = (look(AtFlags::SYMLINK_NOFOLLOW)?, look(AtFlags::empty())?);
    if !is(&file, FileType::RegularFile) {
        return Err(Problem::NoFile);
    }
    if !trusts(&entry, owner) || !trusts(&file, owner) {
        return Err(Problem::Elsewhere);
    }
    let opened = open_at(folder, name, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
    match fstat(&opened) {
        Ok(stat) if identity(&stat) == identity(&file) && trusts(&stat, owner) => Ok(opened),
        _ => {
            reserved_fds::drop_raw(opened);
            Err(Problem::Elsewhere)
        }
    }
}

/// Whether only those can have made this link, or can write to this file, who can execute code in this process or in any
/// that is started with the library: root, this process's user, and the owner of the library's folder.
fn trusts(stat: &Stat, owner: u32) -> bool {
    let others_write = !is(stat, FileType::Symlink) && stat.st_mode & 0o002 != 0;
    [0, owner, geteuid().as_raw()].contains(&stat.st_uid) && !others_write
}

fn is(stat: &Stat, kind: FileType) -> bool {
    FileType::from_raw_mode(stat.st_mode) == kind
}

fn open_at(folder: impl rustix::fd::AsFd, name: &[u8], flags: OFlags) -> Result<OwnedFd, Problem> {
    openat(folder, name, flags | OFlags::CLOEXEC, Mode::empty()).map_err(|e| Problem::Unreadable(e.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    fn c(path: &Path) -> CString {
        CString::new(path.to_str().unwrap()).unwrap()
    }

    #[test]
    fn a_path_that_leads_elsewhere_is_refused() {
        let top = std::env::temp_dir().join(format!("netacc-origin-{}", std::process::id()));
        let (folder, other) = (top.join("lib"), top.join("other"));
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir_all(&other).unwrap();
        let path = folder.join("a.so");
        fs::write(&path, "first").unwrap();
        let origin = Origin::now(Some(&c(&path)));
        assert!(origin.open(&c(&path)).is_ok());

        // Another file, as an installation brings it, also by a link.
        fs::write(other.join("b.so"), "second").unwrap();
        fs::rename(other.join("b.so"), &path).unwrap();
        assert!(origin.open(&c(&path)).is_ok());
        fs::rename(&path, other.join("b.so")).unwrap();
        symlink(other.join("b.so"), &path).unwrap();
        assert!(origin.open(&c(&path)).is_ok());

        // Everybody may write to the file, it is none, or it is another user's.
        fs::set_permissions(other.join("b.so"), fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(origin.open(&c(&path)).unwrap_err(), Problem::Elsewhere);
        fs::set_permissions(other.join("b.so"), fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(origin.open(&c(&folder)).unwrap_err(), Problem::Elsewhere);
        fs::create_dir(folder.join("c.so")).unwrap();
        assert_eq!(origin.open(&c(&folder.join("c.so"))).unwrap_err(), Problem::NoFile);
        assert_eq!(origin.open(&c(&folder.join("d.so"))).unwrap_err(), Problem::Unreadable(Errno(libc::ENOENT)));
        let mut stat = stat(c(&other.join("b.so")).as_c_str()).unwrap();
        assert!(trusts(&stat, 4711));
        stat.st_uid = 4712;
        assert!(!trusts(&stat, 4711) && trusts(&stat, 4712));

        // Another folder has the name by now, and another root.
        fs::rename(&folder, top.join("aside")).unwrap();
        fs::create_dir(&folder).unwrap();
        fs::write(&path, "third").unwrap();
        assert_eq!(origin.open(&c(&path)).unwrap_err(), Problem::Elsewhere);
        let moved = Origin { root: origin.folder, ..Origin::now(Some(&c(&path))) };
        assert_eq!(moved.open(&c(&path)).unwrap_err(), Problem::Elsewhere);
        fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn words_are_those_of_the_copy_before() {
        let origin = Origin::now(Some(c"/proc/self/exe"));
        take_over(origin.words());
        assert_eq!(noted(), Some(origin));
        assert!(is_same_root());
    }
}
