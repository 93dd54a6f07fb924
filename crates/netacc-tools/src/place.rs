//! Where a process of this host runs: its container, its network namespace, and the host directory (`NACC_HOST_DIR`)
//! that it sees.

use std::fmt;
use std::fs;

use netacc_transport::shm::host_access::{self, Access, Unfit};
use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, open, openat2};
use rustix::io::Errno;

/// Number of characters of a container's identifier that are shown, as container engines show it.
const ID_SHOWN: usize = 12;

/// The number of a process's network namespace; `None` if it may not be seen.
#[must_use]
pub fn network_of(pid: u32) -> Option<u64> {
    namespace_of(pid, "net")
}

/// The number of a namespace of a process (namespaces(7)).
#[must_use]
pub fn namespace_of(pid: u32, kind: &str) -> Option<u64> {
    let link = fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()?;
    link.to_str()?.strip_prefix(kind)?.strip_prefix(":[")?.strip_suffix(']')?.parse().ok()
}

/// The container of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Container {
    /// The name that its cgroup has.
    Named(String),
    /// The number of its network namespace, where the cgroup tells nothing.
    Network(u64),
}

impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name),
            Self::Network(number) => write!(f, "net:{number}"),
        }
    }
}

impl Container {
    /// The container of a process; `None` if it may not be seen.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        let cgroup = fs::read(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        name(&String::from_utf8_lossy(&cgroup)).map(Self::Named).or_else(|| network_of(pid).map(Self::Network))
    }
}

/// The container's name in the text of `/proc/PID/cgroup`.
fn name(cgroup: &str) -> Option<String> {
    cgroup.lines().find_map(|line| line.splitn(3, ':').nth(2)?.split('/').rev().find_map(part))
}

/// The container that one part of a cgroup's path names: `docker-ID.scope`, `cri-containerd-ID.scope`, `libpod-ID`, a bare
/// ID, `machine-NAME.scope` or `systemd-nspawn@NAME.service`, `lxc.payload.NAME`.
fn part(part: &str) -> Option<String> {
    let stem = part.strip_suffix(".scope").or(part.strip_suffix(".service")).unwrap_or(part);
    let clean = |name: &str| Some(crate::text::clean(name)).filter(|name| !name.is_empty());
    for prefix in ["machine-", "systemd-nspawn@", "lxc.payload."] {
        if let Some(name) = stem.strip_prefix(prefix) {
            return clean(&name.replace("\\x2d", "-"));
        }
    }
    let (engine, id) = stem.rsplit_once('-').map_or((None, stem), |(engine, id)| (Some(engine), id));
    let hex = id.len() == 64 && id.bytes().all(|digit| digit.is_ascii_hexdigit());
    let short = id.get(..ID_SHOWN).filter(|_| hex)?;
    match engine {
        Some(engine) => clean(&format!("{engine}-{short}")),
        None => Some(short.to_owned()),
    }
}

/// The host directory as a process sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directory {
    /// It is there and used: its device and inode.
    Usable(u64, u64),
    /// It is not used.
    Unfit(Unfit),
    /// It may not be seen from here.
    Unseen,
}

impl Directory {
    /// The directory `dir` as the process sees it, whose user is `uid` here.
    #[must_use]
    pub fn of(pid: u32, dir: &str, uid: u32) -> Self {
        if dir.len() > host_access::LONGEST {
            return Self::Unfit(Unfit::Long);
        }
        let unseen = |error| if matches!(error, Errno::NOENT | Errno::NOTDIR) { Self::ABSENT } else { Self::Unseen };
        let root = match open(format!("/proc/{pid}/root").as_str(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            Ok(root) => root,
            Err(_) => return Self::Unseen,
        };
        // Within that root: a link on the way would lead out of it.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = openat2(&root, dir, flags, Mode::empty(), ResolveFlags::IN_ROOT).and_then(fstat);
        match found {
            Err(error) => unseen(error),
            Ok(found) => match users::judge(pid, found.st_mode, found.st_uid, uid) {
                Ok(Access::Group) if uid != found.st_uid && !users::enters(pid, uid, found.st_gid) => {
                    Self::Unfit(Unfit::Group(found.st_gid))
                }
                Ok(_) => Self::Usable(found.st_dev, found.st_ino),
                Err(why) => Self::Unfit(why),
            },
        }
    }

    const ABSENT: Self = Self::Unfit(Unfit::Absent);

    /// The directory as this process sees it.
    #[must_use]
    pub fn here(dir: &str) -> Self {
        match host_access::check(dir) {
            Err(why) => Self::Unfit(why),
            Ok(_) => match open(dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).and_then(fstat) {
                Ok(found) => Self::Usable(found.st_dev, found.st_ino),
                Err(_) => Self::ABSENT,
            },
        }
    }
}

/// Users as a process in another user namespace sees them.
mod users {
    use super::{Access, Unfit, host_access};
    use netacc_transport::shm::users::OVERFLOW;
    use std::fs;

    /// Judges a file of this mode and owner for a process of the user `uid`, as the process does.
    pub(super) fn judge(pid: u32, mode: u32, owner: u32, uid: u32) -> Result<Access, Unfit> {
        let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/user")).ok();
        if namespace("self") == namespace(&pid.to_string()) {
            return host_access::judge(mode, owner, uid);
        }
        // As a process of another user namespace, we are shown the numbers that users have in ours.
        let map = fs::read_to_string(format!("/proc/{pid}/uid_map")).unwrap_or_default();
        match number(&map, owner) {
            None => Err(Unfit::Owner(OVERFLOW)),
            Some(owner) => host_access::judge(mode, owner, number(&map, uid).unwrap_or(OVERFLOW)),
        }
    }

    /// Whether a process of user `uid` may enter a directory of this group (proc_pid_status(5)). Both are as we see them.
    pub(super) fn enters(pid: u32, uid: u32, gid: u32) -> bool {
        // The name in it may be of any bytes.
        let status = fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
        let status = String::from_utf8_lossy(&status);
        let groups = status.lines().filter(|line| line.starts_with("Gid:") || line.starts_with("Groups:"));
        uid == 0 || groups.flat_map(str::split_whitespace).any(|word| word.parse() == Ok(gid))
    }

    /// The number that the user has according to the lines of a uid_map: first number there, first number here, count.
    pub(super) fn number(map: &str, uid: u32) -> Option<u32> {
        map.lines().find_map(|line| {
            let mut fields = line.split_whitespace().map(|field| field.parse::<u32>().ok());
            let (there, here, count) = (fields.next()??, fields.next()??, fields.next()??);
            uid.checked_sub(here).filter(|distance| *distance < count)?.checked_add(there)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_users() {
        let map = "         0     100000      65536\n     70000       1000          1\nodd\n";
        for (here, there) in
            [(100_000, Some(0)), (165_535, Some(65_535)), (165_536, None), (1000, Some(70_000)), (0, None)]
        {
            assert_eq!(users::number(map, here), there, "{here}");
        }
        assert_eq!(users::number("0 0 4294967295", 12), Some(12));
    }

    #[test]
    fn names_of_containers() {
        let id = "0123456789abcdef".repeat(4);
        for (path, expected) in [
            (format!("0::/system.slice/docker-{id}.scope"), Some("docker-0123456789ab")),
            (format!("12:cpu:/docker/{id}\n0::/x"), Some("0123456789ab")),
            (
                format!("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{id}.scope"),
                Some("cri-containerd-0123456789ab"),
            ),
            (format!("0::/machine.slice/libpod-{id}.scope/container"), Some("libpod-0123456789ab")),
            ("0::/machine.slice/machine-my\\x2dbox.scope".into(), Some("my-box")),
            ("0::/machine.slice/systemd-nspawn@web.service/payload".into(), Some("web")),
            ("0::/lxc.payload.db/x".into(), Some("db")),
            ("0::/user.slice/user-0.slice/session-1.scope".into(), None),
            ("0::/".into(), None),
            (String::new(), None),
            ("odd".into(), None),
        ] {
            assert_eq!(name(&path).as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn our_own_place() {
        let pid = std::process::id();
        assert!(network_of(pid).is_some() && Container::of(pid).is_some());
        assert_eq!(network_of(u32::MAX), None);
        assert_eq!(Directory::of(pid, "/nonexistent/netacc", 0), Directory::ABSENT);
        assert_eq!(Directory::of(pid, "/", 0), Directory::here("/"));
        assert!(matches!(Directory::of(pid, "/", 0), Directory::Usable(..)));
        assert_eq!(Directory::of(pid, "/proc/version", 0), Directory::Unfit(Unfit::Kind));
    }
}
