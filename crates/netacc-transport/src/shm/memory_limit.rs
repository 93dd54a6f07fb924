//! The smallest limit of memory that holds for this process: of its control groups (cgroups(7)), of its address space and of
//! the host.

use crate::shm::procfs;
use rustix::process::{Resource, getrlimit};
use rustix::system::sysinfo;

/// Number of bytes of the list of a process's control groups that are looked at, and of the longest path of a limit.
const LIST: usize = 4096;
const PATH: usize = 1024;
/// Number of control groups, each the parent of the one before, whose limits are read.
const DEEPEST: usize = 32;

/// The smallest limit in bytes, and whether all that may hold could be read.
pub(super) fn smallest() -> (u64, bool) {
    let host = sysinfo();
    let host = host.totalram.saturating_mul(host.mem_unit.into());
    let address_space = getrlimit(Resource::As).current.unwrap_or(u64::MAX);
    let of_groups = of_groups();
    (host.min(address_space).min(of_groups.unwrap_or(u64::MAX)), of_groups.is_some())
}

/// The smallest limit of the control groups; `None`: the list of them cannot be read, or none of their files, which is so
/// where nothing is mounted and where no descriptor is free.
fn of_groups() -> Option<u64> {
    let mut list = [0; LIST];
    let read = procfs::read_start(b"/proc/self/cgroup", &mut list).and_then(|n| list.get(..n))?;
    let lines = read.split(|b| *b == b'\n');
    lines.filter_map(group).filter_map(|group| group.smallest()).min()
}

/// A control group that may limit memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group<'a> {
    /// Where its hierarchy is mounted.
    mount: &'static [u8],
    /// The names of its files with limits. Each has a number of bytes, or `max`.
    files: &'static [&'static [u8]],
    /// Its path below the mount.
    path: &'a [u8],
}

/// The group of a line of `/proc/PID/cgroup`, which is `NUMBER:CONTROLLERS:PATH`. The unified hierarchy has number 0 and no
/// list of controllers.
fn group(line: &[u8]) -> Option<Group<'_>> {
    let mut fields = line.splitn(3, |b| *b == b':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    if controllers.is_empty() {
        return Some(Group { mount: b"/sys/fs/cgroup", files: &[b"memory.max", b"memory.high"], path });
    }
    let has_memory = controllers.split(|b| *b == b',').any(|controller| controller == b"memory");
    has_memory.then_some(Group { mount: b"/sys/fs/cgroup/memory", files: &[b"memory.limit_in_bytes"], path })
}

impl Group<'_> {
    /// The smallest limit of the group and its parents. In a container the mount itself is the container's group, while the
    /// path may be the host's.
    fn smallest(&self) -> Option<u64> {
        let mut least = None;
        let mut path = self.path;
        for _ in 0..DEEPEST {
            path = path.strip_suffix(b"/").unwrap_or(path);
            for limit in self.files.iter().filter_map(|file| limit(&[self.mount, path, b"/", file])) {
                least = Some(least.unwrap_or(u64::MAX).min(limit));
            }
            let Some(parent) = path.iter().rposition(|b| *b == b'/').and_then(|at| path.get(..at)) else { break };
            path = parent;
        }
        least
    }
}

/// The number in the file whose path has these parts; `u64::MAX` for `max`, and `None` for what cannot be read.
fn limit(parts: &[&[u8]]) -> Option<u64> {
    let mut path = [0; PATH];
    let mut len = 0;
    for part in parts {
        path.get_mut(len..len + part.len())?.copy_from_slice(part);
        len += part.len();
    }
    let mut text = [0; 32];
    let n = procfs::read_start(path.get(..len)?, &mut text)?;
    let text = core::str::from_utf8(text.get(..n)?).ok()?.trim();
    if text == "max" { Some(u64::MAX) } else { text.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_in_both_hierarchies() {
        let of = |line: &'static str| group(line.as_bytes()).map(|g| (g.mount, g.path));
        assert_eq!(of("0::/user.slice/x"), Some((&b"/sys/fs/cgroup"[..], &b"/user.slice/x"[..])));
        assert_eq!(of("4:memory:/a:b"), Some((&b"/sys/fs/cgroup/memory"[..], &b"/a:b"[..])));
        assert_eq!(of("4:cpu,memory:/"), Some((&b"/sys/fs/cgroup/memory"[..], &b"/"[..])));
        assert_eq!(of("9:name=systemd:/"), None);
        assert_eq!(of(""), None);
        assert_eq!(of("4:memory"), None);
    }

    #[test]
    fn limits_that_cannot_be_read_do_not_count() {
        assert_eq!(limit(&[b"/nowhere", b"/", b"memory.max"]), None);
        assert_eq!(limit(&[&[b'/'; PATH]]), None);
        let (there, _) = smallest();
        assert!(there > 0 && there < u64::MAX, "{there}");
    }
}
