//! Whether the host directory (`NACC_HOST_DIR`) may be used, and which processes that meet there trust each other.

use crate::shm::users::{OVERFLOW, Trust, is_one_user};
use core::fmt;
use rustix::fd::BorrowedFd;
use rustix::fs::{Access as Rights, AtFlags, CWD, FileType, accessat, statat};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, getsockname};
use rustix::process::geteuid;

/// Length of the longest directory name in bytes: name and file name have to fit into a socket's address (unix(7)).
pub const LONGEST: usize = 70;

/// Whose processes meet in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everybody may be there, and processes meet that run as one user or as root.
    User,
    /// Its mode is 3770 (inode(7)): only its owner and its group may enter it, each new file gets its group, and no user
    /// can replace the files of another. By that mode the administrator says that the members trust each other. A process
    /// that is met there is trusted, whatever its user.
    Group,
}

/// Why a directory is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// There is none, or it cannot be reached.
    Absent,
    /// Its name is longer than [`LONGEST`].
    Long,
    /// It is a file of another kind, perhaps a symbolic link.
    Kind,
    /// Its owner is this user, who is neither root nor the user that the program runs as.
    Owner(u32),
    /// Its mode: others may write to it, and so could replace a socket of ours.
    Mode(u32),
    /// Only this group may enter it, and the program is not a member. The group is [`OVERFLOW`] if it has no number in our user
    /// namespace.
    Group(u32),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::Absent => f.write_str("it is not there"),
            Unfit::Long => write!(f, "its name is longer than {LONGEST} bytes"),
            Unfit::Kind => f.write_str("it is no directory (a symbolic link is not followed)"),
            Unfit::Owner(uid @ OVERFLOW) => {
                write!(f, "it belongs to user {uid}, which in a user namespace is every user without a number there")
            }
            Unfit::Owner(uid) => write!(f, "it belongs to user {uid}, who is neither root nor the program's user"),
            Unfit::Mode(mode) if mode & 0o7 == 0 => {
                write!(
                    f,
                    "its group may write to it, and it lacks the set-group-ID or the sticky bit (mode {mode:04o})"
                )
            }
            Unfit::Mode(mode) => write!(f, "others may write to it and it has no sticky bit (mode {mode:04o})"),
            Unfit::Group(OVERFLOW) => f.write_str("only a group without a number in this user namespace may enter it"),
            Unfit::Group(gid) => write!(f, "only group {gid} may enter it, and the program is not in that group"),
        }
    }
}

/// Checks that nobody but root and our own user can replace a file in the directory that is ours.
pub fn check(dir: &str) -> core::result::Result<Access, Unfit> {
    if dir.len() > LONGEST {
        return Err(Unfit::Long);
    }
    let Ok(found) = statat(CWD, dir, AtFlags::SYMLINK_NOFOLLOW) else { return Err(Unfit::Absent) };
    let access = judge(found.st_mode, found.st_uid, geteuid().as_raw())?;
    let rights = Rights::READ_OK | Rights::WRITE_OK | Rights::EXEC_OK;
    if access == Access::Group && accessat(CWD, dir, rights, AtFlags::EACCESS) == Err(Errno::ACCESS) {
        return Err(Unfit::Group(found.st_gid));
    }
    // Our own user may be one without a number, as the owner is, and another one.
    if is_one_user(found.st_uid) { Ok(access) } else { Err(Unfit::Owner(found.st_uid)) }
}

/// Judges a file of this mode and owner, for a program of the user `uid`. Whether it is in the directory's group is not
/// looked at.
pub fn judge(mode: u32, owner: u32, uid: u32) -> core::result::Result<Access, Unfit> {
    if FileType::from_raw_mode(mode) != FileType::Directory {
        return Err(Unfit::Kind);
    }
    if owner != 0 && owner != uid {
        return Err(Unfit::Owner(owner));
    }
    let mode = mode & 0o7777;
    if mode & 0o3077 == 0o3070 {
        return Ok(Access::Group);
    }
    if mode & 0o022 != 0 && mode & 0o1000 == 0 {
        return Err(Unfit::Mode(mode));
    }
    Ok(Access::User)
}

/// Whether the directory is one of a group, as far as we are concerned.
pub(super) fn is_of_group(dir: &str) -> bool {
    check(dir) == Ok(Access::Group)
}

/// The trust in a process of this user that we have met in a directory, which is one of a group or not. In the first case
/// it is the group's for our own user and for root as well, so that both sides have the same reason.
pub(super) fn trust(of_group: bool, uid: u32) -> Trust {
    if of_group { Trust::Group } else { Trust::in_user(uid) }
}

/// The trust in a client of this user whose connection `fd` was accepted at an entrance or at a rendezvous.
pub(super) fn trust_in_client(fd: BorrowedFd<'_>, uid: u32) -> Trust {
    // An accepted socket has the name of the one that listened: only an entrance's is a path.
    let name = getsockname(fd).ok().and_then(|name| SocketAddrUnix::try_from(name).ok());
    let path = name.as_ref().and_then(SocketAddrUnix::path_bytes).and_then(|path| core::str::from_utf8(path).ok());
    match path.and_then(|path| path.rsplit_once('/')) {
        Some((dir, _)) => trust(is_of_group(dir), uid),
        None => Trust::in_user(uid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn only_a_safe_directory_is_used() {
        let dir = std::env::temp_dir().join(format!("netacc-safe-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        let name = dir.to_str().unwrap();
        let mode = |bits| std::fs::set_permissions(&dir, PermissionsExt::from_mode(bits)).unwrap();
        for (bits, expected) in [
            (0o755, Ok(Access::User)),
            (0o1777, Ok(Access::User)),
            (0o777, Err(Unfit::Mode(0o777))),
            (0o775, Err(Unfit::Mode(0o775))),
            (0o770, Err(Unfit::Mode(0o770))),
            (0o2770, Err(Unfit::Mode(0o2770))),
            (0o3770, Ok(Access::Group)),
            (0o2750, Ok(Access::User)),
            (0o3750, Ok(Access::User)),
            (0o1770, Ok(Access::User)),
            (0o2777, Err(Unfit::Mode(0o2777))),
            (0o2771, Err(Unfit::Mode(0o2771))),
            (0o3771, Ok(Access::User)),
        ] {
            mode(bits);
            assert_eq!(check(name), expected, "{bits:o}");
        }
        mode(0o700);
        let link = format!("{}.link", name);
        symlink(&dir, &link).unwrap();
        assert_eq!(check(&link), Err(Unfit::Kind));
        std::fs::remove_file(&link).unwrap();
        assert_eq!(check("/nonexistent/netacc"), Err(Unfit::Absent));
        assert_eq!(check("/proc/version"), Err(Unfit::Kind));
        assert_eq!(check(&format!("/{}", "x".repeat(LONGEST))), Err(Unfit::Long));
        std::fs::remove_dir(&dir).unwrap();
    }
}
