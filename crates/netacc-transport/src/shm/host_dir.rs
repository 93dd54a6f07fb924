//! The host directory (`NACC_HOST_DIR`), by which processes in different network namespaces of one kernel reach each
//! other. Abstract UNIX sockets belong to a network namespace; a UNIX socket that lies in a directory is reached from
//! wherever the directory is mounted.
//!
//! A listener has one socket there, its *entrance* ([`netacc_wire::Entrance`]). Only its own user and root may connect
//! to it (unix(7): connecting needs the permission to write to the file), and a client believes only an entrance of a
//! user whom it trusts. If only a group may enter the directory, the group's members trust each other. A file whose
//! process was killed stays behind; whoever finds it dead removes it.

use crate::shm::guard::{dismiss, pass_credentials};
use crate::shm::host_access::{LONGEST, is_of_group, trust};
use crate::shm::link::Link;
use crate::shm::mapping;
use crate::shm::rendezvous::{FLAGS, NoLink, greet};
use crate::shm::side::Side;
use crate::shm::users::Trust;
use core::ffi::CStr;
use core::mem::MaybeUninit;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{raw, reserved_fds};
use netacc_wire::Entrance;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RawDir, Stat, chmodat, fchmod, fstat, open, openat, renameat, statat, unlinkat,
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, connect, listen, socket_with};

/// Number of clients that may wait at an entrance.
const BACKLOG: i32 = 64;

/// Age (s) from which an entrance that does not listen, and was never published, counts as left behind.
const UNPUBLISHED: i64 = 10;

/// The address of a file in the directory.
fn address(dir: &str, file: &str) -> Result<SocketAddrUnix> {
    let mut path = [0u8; LONGEST + 1 + 64];
    let whole = dir.len() + 1 + file.len();
    let (Some(head), true) = (path.get_mut(..dir.len()), dir.len() <= LONGEST) else {
        return Err(Errno(libc::ENAMETOOLONG));
    };
    head.copy_from_slice(dir.as_bytes());
    let Some([slash, rest @ ..]) = path.get_mut(dir.len()..whole) else { return Err(Errno(libc::ENAMETOOLONG)) };
    *slash = b'/';
    rest.copy_from_slice(file.as_bytes());
    Ok(SocketAddrUnix::new(path.get(..whole).unwrap_or(&[]))?)
}

fn open_dir(dir: &str) -> Result<OwnedFd> {
    Ok(open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

/// Makes the entrance of a listener at `port`: a socket that listens under a name that no other has.
pub fn open_entrance(dir: &str, port: u16) -> Result<(OwnedFd, Entrance)> {
    let mut id = [0u8; 8];
    if rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty()) != Ok(id.len()) {
        return Err(Errno::AGAIN);
    }
    open_as(dir, Entrance { id: u64::from_ne_bytes(id), port })
}

/// Makes the entrance of one connection, for a process that was forked for it. `client` is the address of its client.
pub fn open_for(dir: &str, client: core::net::SocketAddr) -> Result<(OwnedFd, Entrance)> {
    let mut random = [0u8; 4];
    if rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()) != Ok(random.len()) {
        return Err(Errno::AGAIN);
    }
    open_as(dir, Entrance::of_connection(client, u32::from_ne_bytes(random)))
}

fn open_as(dir: &str, entrance: Entrance) -> Result<(OwnedFd, Entrance)> {
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
    let made = publish(&fd, dir, entrance);
    match made {
        Ok(()) => Ok((fd, entrance)),
        Err(e) => {
            reserved_fds::drop_raw(fd);
            Err(e)
        }
    }
}

/// Binds the socket under a name that nobody looks for, and renames it once it listens: a client that finds a name
/// whose socket refuses it takes that for the name of a dead process.
fn publish(fd: &OwnedFd, dir: &str, entrance: Entrance) -> Result<()> {
    // Accepted sockets inherit this.
    pass_credentials(fd.as_fd());
    // bind(2) makes the file with the mode of the socket, less the program's umask(2).
    let own = Mode::RUSR | Mode::WUSR;
    fchmod(fd, own)?;
    let name = entrance.unpublished();
    bind(fd, &address(dir, name.as_str())?)?;
    let published = listen(fd, BACKLOG).map_err(Errno::from).and_then(|()| {
        let of_group = is_of_group(dir);
        let at = open_dir(dir)?;
        // Nobody else can have put another file there under the name.
        let opened = if of_group {
            chmodat(&at, name.as_str(), own | Mode::RGRP | Mode::WGRP, AtFlags::empty())
        } else {
            Ok(())
        };
        let renamed = opened.and_then(|()| renameat(&at, name.as_str(), &at, name.published()));
        reserved_fds::drop_raw(at);
        Ok(renamed?)
    });
    if published.is_err() {
        unlink(dir, name.as_str());
    }
    published
}

/// Removes the name of an entrance.
pub fn remove(dir: &str, entrance: Entrance) {
    unlink(dir, entrance.unpublished().published());
}

fn unlink(dir: &str, file: &str) {
    if let Ok(at) = open_dir(dir) {
        let _ = unlinkat(&at, file, AtFlags::empty());
        reserved_fds::drop_raw(at);
    }
}

/// Calls `found` with the directory and the names in it until it returns false.
fn each_name(dir: &str, mut found: impl FnMut(&OwnedFd, &CStr) -> bool) -> Result<()> {
    let at = open_dir(dir)?;
    // On the stack of the program's thread, which may be small.
    let mut space = [MaybeUninit::uninit(); 1024];
    let mut names = RawDir::new(at.as_fd(), &mut space);
    let mut read = Ok(());
    while let Some(entry) = names.next() {
        match entry {
            Ok(entry) if found(&at, entry.file_name()) => {}
            Ok(_) => break,
            Err(e) => {
                read = Err(Errno::from(e));
                break;
            }
        }
    }
    reserved_fds::drop_raw(at);
    read
}

/// The user who has made the file under an entrance's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// Somebody whom we trust: it is an entrance.
    Trusted,
    /// Another user, and it may be an entrance of that user's.
    Stranger,
    /// Nobody who makes entrances: it is a file of another kind, or has other names. Without that rule a link would have us
    /// connect to any socket that we may connect to.
    Nobody,
}

/// The user who has made a file of the directory. The directory may belong to a group.
fn maker(stat: &Stat, of_group: bool, directory_group: u32) -> Maker {
    let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
    if !is_socket || stat.st_nlink != 1 {
        return Maker::Nobody;
    }
    // In a group's directory it may be older than the directory's mode: then anybody may have made it.
    let is_members = !of_group || stat.st_gid == directory_group && stat.st_mode & 0o7 == 0;
    if is_members && trust(of_group, stat.st_uid) != Trust::No { Maker::Trusted } else { Maker::Stranger }
}

/// A name in the directory that an entrance may have.
#[derive(Debug)]
pub struct Candidate<'a> {
    /// The entrance that the name stands for.
    pub entrance: Entrance,
    at: &'a OwnedFd,
    name: &'a CStr,
    /// The directory's group, if it is one of a group.
    group: Option<u32>,
}

impl Candidate<'_> {
    /// Looks at the file, which costs a system call.
    pub fn maker(&self) -> Maker {
        let found = statat(self.at, self.name, AtFlags::SYMLINK_NOFOLLOW);
        found.map_or(Maker::Nobody, |stat| maker(&stat, self.group.is_some(), self.group.unwrap_or(0)))
    }
}

/// Calls `found` with the name of every entrance of our version in the directory, among so many names as are `left` to be looked
/// at: everybody may fill the directory with names.
pub fn each(dir: &str, left: &mut u32, mut found: impl FnMut(Candidate<'_>)) -> Result<()> {
    let of_group = is_of_group(dir);
    let mut group = None;
    each_name(dir, |at, name| {
        let Some(fewer) = left.checked_sub(1) else { return false };
        *left = fewer;
        if of_group && group.is_none() {
            group = fstat(at).ok().map(|stat| stat.st_gid);
        }
        if let Some(entrance) = Entrance::parse(name.to_bytes()) {
            found(Candidate { entrance, at, name, group });
        }
        true
    })
}

/// Connects to an entrance and makes a link with a fresh segment.
pub fn connect_link(dir: &str, entrance: Entrance) -> core::result::Result<&'static Link, NoLink> {
    let res = |e: rustix::io::Errno| NoLink::Resources(Errno::from(e));
    mapping::affordable().map_err(NoLink::Resources)?;
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None).map_err(res)?;
    pass_credentials(fd.as_fd());
    let made = dial(&fd, dir, entrance).and_then(|(pid, uid, trust)| Ok((greet(&fd, trust, None)?, pid, uid, trust)));
    match made {
        Ok((mapped, pid, uid, trust)) => {
            let link = reserved_fds::adopt(fd).and_then(|control| Link::new(Side::Client, mapped, control, trust, pid));
            let link = link.inspect_err(|_| mapped.discard()).map_err(NoLink::Resources)?;
            link.peer.set_uid(uid);
            Ok(link)
        }
        Err(e) => {
            dismiss(fd);
            Err(e)
        }
    }
}

/// Asks who is behind an entrance: the number of the process, 0 if it has none here, and the user.
pub fn ask(dir: &str, entrance: Entrance) -> core::result::Result<(u32, u32), NoLink> {
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)
        .map_err(|e| NoLink::Resources(Errno::from(e)))?;
    let found = dial(&fd, dir, entrance);
    dismiss(fd);
    found.map(|(pid, uid, _)| (pid, uid))
}

/// Connects `fd` to an entrance. Returns the process and the user behind it, and the trust in them.
fn dial(fd: &OwnedFd, dir: &str, entrance: Entrance) -> core::result::Result<(u32, u32, Trust), NoLink> {
    let name = entrance.unpublished();
    let name = name.published();
    let of_group = is_of_group(dir);
    let at = open_dir(dir).map_err(NoLink::Resources)?;
    let file = open_file(&at, name, of_group);
    reserved_fds::drop_raw(at);
    let file = file?;
    let connected = connect_to(fd, &file, dir, name);
    reserved_fds::drop_raw(file);
    match connected {
        Ok(()) => {}
        Err(rustix::io::Errno::CONNREFUSED) => {
            // Its process has ended without removing it. Where the sticky bit protects it from us, it stays.
            unlink(dir, name);
            return Err(NoLink::Nobody);
        }
        Err(rustix::io::Errno::NOENT) => return Err(NoLink::Nobody),
        Err(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => return Err(NoLink::Stranger),
        Err(rustix::io::Errno::AGAIN) => return Err(NoLink::Busy),
        // A socket of another kind.
        Err(rustix::io::Errno::PROTOTYPE | rustix::io::Errno::NOTSOCK) => return Err(NoLink::Nobody),
        Err(e) => return Err(NoLink::Resources(Errno::from(e))),
    }
    let (pid, uid) = raw::peer_credentials(fd.as_raw_fd()).map_err(NoLink::Resources)?;
    match trust(of_group, uid) {
        Trust::No => Err(NoLink::Stranger),
        trust => Ok((pid, uid, trust)),
    }
}

/// Opens the file of an entrance, without a right to anything but its name.
fn open_file(at: &OwnedFd, name: &str, of_group: bool) -> core::result::Result<OwnedFd, NoLink> {
    let file = match openat(at, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => file,
        Err(rustix::io::Errno::NOENT) => return Err(NoLink::Nobody),
        Err(e) => return Err(NoLink::Resources(Errno::from(e))),
    };
    let made_by = match (fstat(&file), fstat(at)) {
        (Ok(stat), Ok(directory)) => maker(&stat, of_group, directory.st_gid),
        _ => Maker::Nobody,
    };
    let refused = match made_by {
        Maker::Trusted => return Ok(file),
        Maker::Stranger => NoLink::Stranger,
        Maker::Nobody => NoLink::Nobody,
    };
    reserved_fds::drop_raw(file);
    Err(refused)
}

/// Connects `fd` to the socket of an open file, so that it is the file that was looked at. Where /proc is not mounted it is
/// connected by its name, under which only its owner or the directory's can have put another file since.
fn connect_to(fd: &OwnedFd, file: &OwnedFd, dir: &str, name: &str) -> rustix::io::Result<()> {
    let path = alloc::format!("/proc/self/fd/{}", file.as_raw_fd());
    match connect(fd, &SocketAddrUnix::new(path.as_str())?) {
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => {
            let named = address(dir, name).map_err(|_| rustix::io::Errno::NAMETOOLONG)?;
            connect(fd, &named)
        }
        done => done,
    }
}

/// What [`clear`] has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleared {
    /// Number of files that were removed.
    pub removed: u32,
    /// Number of files of ended processes that could not be removed.
    pub left: u32,
    /// Number of entrances in use.
    pub used: u32,
}

/// Removes the entrances of processes that have ended.
pub fn clear(dir: &str) -> Result<Cleared> {
    let mut cleared = Cleared::default();
    let at = open_dir(dir)?;
    let done = each_name(dir, |_, name| {
        if Entrance::is_any(name.to_bytes()) {
            match name.to_str().map(|file| is_dead(dir, file)) {
                Ok(true) if unlinkat(&at, name, AtFlags::empty()).is_ok() => cleared.removed += 1,
                Ok(true) => cleared.left += 1,
                _ => cleared.used += 1,
            }
        }
        true
    });
    reserved_fds::drop_raw(at);
    done.map(|()| cleared)
}

/// Whether nobody listens at this socket, and nobody is about to.
fn is_dead(dir: &str, file: &str) -> bool {
    let Ok(at) = open_dir(dir) else { return false };
    let opened = openat(&at, file, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    reserved_fds::drop_raw(at);
    let Ok(opened) = opened else { return false };
    // A link is no socket that anybody has left behind, and may lead to any.
    let may_be = fstat(&opened).is_ok_and(|stat| maker(&stat, false, 0) != Maker::Nobody);
    let refused = may_be
        && socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None).is_ok_and(|fd| {
            let refused = connect_to(&fd, &opened, dir, file) == Err(rustix::io::Errno::CONNREFUSED);
            reserved_fds::drop_raw(fd);
            refused
        });
    reserved_fds::drop_raw(opened);
    refused && (!file.starts_with('.') || is_old(dir, file))
}

fn is_old(dir: &str, file: &str) -> bool {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
    let Ok(at) = open_dir(dir) else { return false };
    let made = statat(&at, file, AtFlags::SYMLINK_NOFOLLOW).map(|found| found.st_mtime);
    reserved_fds::drop_raw(at);
    made.is_ok_and(|made| now.saturating_sub(made) > UNPUBLISHED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::geteuid;

    /// A fresh directory, which is removed with the guard.
    struct Fresh(std::path::PathBuf);

    impl Fresh {
        fn new(name: &str) -> Fresh {
            let path = std::env::temp_dir().join(format!("netacc-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir(&path).unwrap();
            Fresh(path)
        }

        fn name(&self) -> &str {
            self.0.to_str().unwrap()
        }

        fn files(&self) -> usize {
            std::fs::read_dir(&self.0).unwrap().count()
        }
    }

    impl Drop for Fresh {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn an_entrance_is_found_and_a_dead_one_removed() {
        let dir = Fresh::new("dead");
        let (fd, entrance) = open_entrance(dir.name(), 80).unwrap();
        let me = (std::process::id(), geteuid().as_raw());
        assert_eq!(ask(dir.name(), entrance), Ok(me));
        let mut seen = None;
        each(dir.name(), &mut 100, |found| seen = Some((found.entrance, found.maker()))).unwrap();
        assert_eq!(seen, Some((entrance, Maker::Trusted)));
        // Another file, and one that was never published, are not touched.
        std::fs::write(dir.0.join("netacc.txt"), "").unwrap();
        std::fs::write(dir.0.join(Entrance { id: 1, port: 80 }.unpublished().published()), "").unwrap();
        assert_eq!(connect_link(dir.name(), Entrance { id: 1, port: 80 }).map(drop), Err(NoLink::Nobody));
        drop(fd);
        assert_eq!(ask(dir.name(), entrance), Err(NoLink::Nobody));
        assert_eq!(dir.files(), 2, "who finds it dead removes it");
        drop(open_entrance(dir.name(), 81).unwrap());
        assert_eq!(clear(dir.name()).unwrap(), Cleared { removed: 1, left: 0, used: 1 });
        assert_eq!(dir.files(), 2);
    }

    /// A socket of another service, to which names of the directory lead.
    #[test]
    fn a_link_leads_nowhere() {
        let (dir, private) = (Fresh::new("links"), Fresh::new("private"));
        let service = private.0.join("service");
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None).unwrap();
        bind(&fd, &SocketAddrUnix::new(service.to_str().unwrap()).unwrap()).unwrap();
        listen(&fd, 8).unwrap();
        let entrances = [1, 2].map(|id| Entrance { id, port: 80 });
        let [soft, hard] = entrances.each_ref().map(|e| dir.0.join(e.unpublished().published()));
        std::os::unix::fs::symlink(&service, soft).unwrap();
        std::fs::hard_link(&service, hard).unwrap();
        for entrance in entrances {
            assert_eq!(ask(dir.name(), entrance), Err(NoLink::Nobody));
            assert_eq!(connect_link(dir.name(), entrance).map(drop), Err(NoLink::Nobody));
        }
        each(dir.name(), &mut 100, |found| assert_eq!(found.maker(), Maker::Nobody)).unwrap();
        assert_eq!(clear(dir.name()).unwrap(), Cleared { removed: 0, left: 0, used: 2 });
        assert!(rustix::net::accept(&fd).is_err(), "somebody has connected to the service");
        assert_eq!(dir.files(), 2);
    }

    #[test]
    fn no_more_names_are_looked_at_than_wanted() {
        let dir = Fresh::new("many");
        for id in 0..100 {
            std::fs::write(dir.0.join(Entrance { id, port: 80 }.unpublished().published()), "").unwrap();
        }
        let (mut left, mut seen) = (50, 0);
        each(dir.name(), &mut left, |_| seen += 1).unwrap();
        assert!((48..=50).contains(&seen) && left == 0);
        each(dir.name(), &mut left, |_| seen += 1).unwrap();
        each(dir.name(), &mut 200, |_| seen += 1).unwrap();
        assert!((148..=150).contains(&seen), "{seen}");
    }

    #[test]
    fn a_removed_entrance_is_gone() {
        let dir = Fresh::new("gone");
        let (fd, entrance) = open_entrance(dir.name(), 80).unwrap();
        remove(dir.name(), entrance);
        assert_eq!(dir.files(), 0);
        assert_eq!(connect_link(dir.name(), entrance).map(drop), Err(NoLink::Nobody));
        drop(fd);
        assert!(open_entrance("/nonexistent/netacc", 80).is_err());
    }
}
