//! How much memory this process may use: the smallest limit that holds for it, of its control groups (cgroups(7)), of its
//! address space and of the host; and what is left of it.

use crate::shm::procfs;
use rustix::process::{Resource, getrlimit};
use rustix::system::sysinfo;

/// Number of bytes of the list of a process's control groups that are looked at, of the longest path of a limit, and of a
/// list of numbers.
const LIST: usize = 4096;
const PATH: usize = 512;
const NUMBERS: usize = 1024;
/// Number of control groups, each the parent of the one before, whose limits are read.
const DEEPEST: usize = 32;

/// What holds for this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The smallest limit in bytes.
    pub smallest: u64,
    /// Number of bytes that are left, for all processes for which such a limit holds; `u64::MAX`: that is not known.
    pub left: u64,
    /// Whether the limits of the control groups could be read.
    pub are_known: bool,
}

impl Limits {
    /// Reads what holds now.
    pub(super) fn read() -> Limits {
        Limits::read_below(b"")
    }

    /// As [`Limits::read`], with the files below the folder `root` instead of `/`.
    fn read_below(root: &[u8]) -> Limits {
        let host = sysinfo();
        let host = host.totalram.saturating_mul(host.mem_unit.into());
        let address_space = getrlimit(Resource::As).current.unwrap_or(u64::MAX);
        let groups = of_groups(root);
        let (of_groups, left) = groups.unwrap_or((u64::MAX, u64::MAX));
        Limits {
            smallest: host.min(address_space).min(of_groups),
            left: left.min(left_on_host(root).unwrap_or(u64::MAX)),
            are_known: groups.is_some(),
        }
    }
}

/// What the host could give to a program (proc_meminfo(5)).
fn left_on_host(root: &[u8]) -> Option<u64> {
    let mut text = [0; NUMBERS];
    number(read(&[root, b"/proc/meminfo"], &mut text)?, b"MemAvailable:").map(|kib| kib.saturating_mul(1024))
}

/// The smallest limit of the control groups and the least that is left of one; `u64::MAX`: there is none. `None`: the list of
/// the groups cannot be read, or none of their files, which is so where nothing is mounted and where no descriptor is free.
fn of_groups(root: &[u8]) -> Option<(u64, u64)> {
    let mut list = [0; LIST];
    let lines = read(&[root, b"/proc/self/cgroup"], &mut list)?.split(|b| *b == b'\n');
    lines.filter_map(group).filter_map(|group| group.smallest(root)).reduce(least)
}

fn least(one: (u64, u64), other: (u64, u64)) -> (u64, u64) {
    (one.0.min(other.0), one.1.min(other.1))
}

/// The number behind the word `name`, at the beginning of a line of which `text` has the end, too.
fn number(text: &[u8], name: &[u8]) -> Option<u64> {
    let lines = text.iter().rposition(|b| *b == b'\n').and_then(|end| text.get(..end))?;
    let rest = lines.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(name).filter(|l| l.starts_with(b" ")))?;
    let digits = rest.split(|b| *b == b' ').find(|word| !word.is_empty())?;
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// A control group that may limit memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group<'a> {
    /// Where its hierarchy is mounted.
    mount: &'static [u8],
    /// The names of its files with limits. Each has a number of bytes, or `max`.
    files: &'static [&'static [u8]],
    /// The name of the file that says how many bytes are in use, of it and of its children.
    usage: &'static [u8],
    /// The words of `memory.stat` behind which stand the bytes of files in memory, and of those that are in memory only.
    cache: [&'static [u8]; 2],
    /// Whether it is one of the unified hierarchy, whose groups have a list of controllers.
    has_controllers: bool,
    /// Its path below the mount.
    path: &'a [u8],
}

/// The group of a line of `/proc/PID/cgroup`, which is `NUMBER:CONTROLLERS:PATH`. The unified hierarchy has number 0 and no
/// list of controllers.
fn group(line: &[u8]) -> Option<Group<'_>> {
    let mut fields = line.splitn(3, |b| *b == b':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    if controllers.is_empty() {
        let (files, usage): (&[&[u8]], &[u8]) = (&[b"memory.max", b"memory.high"], b"memory.current");
        let (cache, has_controllers): ([&[u8]; 2], bool) = ([b"file", b"shmem"], true);
        return Some(Group { mount: b"/sys/fs/cgroup", files, usage, cache, has_controllers, path });
    }
    let has_memory = controllers.split(|b| *b == b',').any(|controller| controller == b"memory");
    let (files, usage): (&[&[u8]], &[u8]) = (&[b"memory.limit_in_bytes"], b"memory.usage_in_bytes");
    let cache: [&[u8]; 2] = [b"total_cache", b"total_shmem"];
    has_memory.then_some(Group { mount: b"/sys/fs/cgroup/memory", files, usage, cache, has_controllers: false, path })
}

impl Group<'_> {
    /// The smallest limit of the group and its parents, and the least that is left of one. In a container the mount itself is
    /// the container's group, while the path may be the host's.
    fn smallest(&self, root: &[u8]) -> Option<(u64, u64)> {
        let mut all = None;
        let mut path = self.path;
        for _ in 0..DEEPEST {
            path = path.strip_suffix(b"/").unwrap_or(path);
            let limits = self.files.iter().filter_map(|file| limit(&[root, self.mount, path, b"/", file]));
            if let Some(limit) = limits.min() {
                let here = (limit, self.left(root, path, limit));
                all = Some(all.map_or(here, |all| least(all, here)));
            }
            let Some(parent) = path.iter().rposition(|b| *b == b'/').and_then(|at| path.get(..at)) else { break };
            path = parent;
        }
        all.or_else(|| self.is_mounted(root).then_some((u64::MAX, u64::MAX)))
    }

    /// Whether its hierarchy is there to be read. The root of the unified one has no limits, and neither have groups for which
    /// nobody has switched the controller on.
    fn is_mounted(&self, root: &[u8]) -> bool {
        self.has_controllers && read(&[root, self.mount, b"/cgroup.controllers"], &mut [0; NUMBERS]).is_some()
    }

    /// What is left of the limit of the group at `path`. Files that are in memory can be dropped, and do not count.
    fn left(&self, root: &[u8], path: &[u8], limit_there: u64) -> u64 {
        let Some(used) = limit(&[root, self.mount, path, b"/", self.usage]) else { return u64::MAX };
        let mut text = [0; NUMBERS];
        let read = read(&[root, self.mount, path, b"/memory.stat"], &mut text).unwrap_or_default();
        let [files, unwritten] = self.cache.map(|name| number(read, name).unwrap_or(0));
        limit_there.saturating_sub(used.saturating_sub(files.saturating_sub(unwritten)))
    }
}

/// The number in the file whose path has these parts; `u64::MAX` for `max`, and `None` for what cannot be read.
fn limit(parts: &[&[u8]]) -> Option<u64> {
    let mut text = [0; 32];
    let text = core::str::from_utf8(read(parts, &mut text)?).ok()?.trim();
    if text == "max" { Some(u64::MAX) } else { text.parse().ok() }
}

/// The beginning of the file whose path has these parts.
fn read<'a>(parts: &[&[u8]], text: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut path = [0; PATH];
    let mut len = 0;
    for part in parts {
        path.get_mut(len..len + part.len())?.copy_from_slice(part);
        len += part.len();
    }
    let n = procfs::read_start(path.get(..len)?, text)?;
    text.get(..n)
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test fails by panicking")]
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
        assert_eq!(limit(&[&[b'/'; PATH + 1]]), None);
        let limits = Limits::read();
        assert!(limits.smallest > 0 && limits.smallest < u64::MAX, "{limits:?}");
        assert!(limits.left > 0 && limits.left <= limits.smallest, "{limits:?}");
    }

    /// A folder with such files as the kernel has in `/`, each with its text.
    struct Root(std::path::PathBuf);

    impl Root {
        fn new(name: &str, files: &[(&str, &str)]) -> Root {
            let root = std::env::temp_dir().join(format!("netacc-limits-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                std::fs::create_dir_all(path.parent().expect("below the root")).expect("a folder");
                std::fs::write(path, text).expect("a file");
            }
            Root(root)
        }

        fn read(&self) -> Limits {
            Limits::read_below(self.0.as_os_str().as_encoded_bytes())
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const MIB: u64 = 1 << 20;
    const STAT: &str = "anon 1048576\nfile 20971520\nkernel 4096\nshmem 16777216\n";

    #[test]
    fn the_unified_hierarchy_limits_by_each_parent() {
        let root = Root::new(
            "unified",
            &[
                ("proc/self/cgroup", "0::/a/b\n"),
                ("sys/fs/cgroup/a/memory.max", "104857600\n"),
                ("sys/fs/cgroup/a/memory.high", "max\n"),
                ("sys/fs/cgroup/a/memory.current", "52428800\n"),
                ("sys/fs/cgroup/a/memory.stat", STAT),
                ("sys/fs/cgroup/a/b/memory.max", "max\n"),
                ("sys/fs/cgroup/a/b/memory.high", "209715200\n"),
                ("sys/fs/cgroup/a/b/memory.current", "194 MiB or so"),
            ],
        );
        let limits = root.read();
        assert!(limits.are_known);
        // Of the 50 MiB in use, 4 are files that can be dropped.
        assert_eq!((limits.smallest / MIB, limits.left / MIB), (100, 54), "{limits:?}");
    }

    #[test]
    fn a_container_sees_its_group_at_the_mount() {
        let root = Root::new(
            "container",
            &[
                ("proc/self/cgroup", "0::/system.slice/docker-0123.scope\n"),
                ("proc/meminfo", "MemTotal:  1048576 kB\nMemAvailable:  2048 kB\n"),
                ("sys/fs/cgroup/memory.max", "67108864\n"),
                ("sys/fs/cgroup/memory.current", "1048576\n"),
            ],
        );
        let limits = root.read();
        assert_eq!((limits.smallest / MIB, limits.left / MIB, limits.are_known), (64, 2, true), "{limits:?}");
    }

    #[test]
    fn the_memory_controller_of_version_1() {
        let root = Root::new(
            "version1",
            &[
                ("proc/self/cgroup", "5:cpu,memory:/lxc/x\n1:name=systemd:/lxc\n0::/lxc\n"),
                ("sys/fs/cgroup/memory/lxc/x/memory.limit_in_bytes", "125829120\n"),
                ("sys/fs/cgroup/memory/lxc/x/memory.usage_in_bytes", "125829120\n"),
                (
                    "sys/fs/cgroup/memory/lxc/x/memory.stat",
                    "cache 9\ntotal_cache 31457280\ntotal_shmem 10485760\nend 0\n",
                ),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ],
        );
        let limits = root.read();
        assert_eq!((limits.smallest / MIB, limits.left / MIB, limits.are_known), (120, 20, true), "{limits:?}");
    }

    #[test]
    fn no_group_has_a_limit() {
        let root =
            Root::new("none", &[("proc/self/cgroup", "0::/x\n"), ("sys/fs/cgroup/cgroup.controllers", "cpu io\n")]);
        let limits = root.read();
        assert!(limits.are_known && limits.smallest > MIB && limits.left == u64::MAX, "{limits:?}");
        // Nothing is mounted where it should be.
        let root = Root::new("chroot", &[("proc/self/cgroup", "4:memory:/x\n0::/x\n")]);
        assert!(!root.read().are_known);
    }

    #[test]
    fn a_hidden_proc_leaves_the_limits_unknown() {
        let root = Root::new("hidden", &[("sys/fs/cgroup/memory.max", "1048576\n")]);
        let limits = root.read();
        assert!(!limits.are_known && limits.smallest > MIB && limits.left == u64::MAX, "{limits:?}");
    }

    #[test]
    fn a_number_is_that_of_a_whole_word() {
        let text = b"anon 5\nfile_mapped 6\nfile 7\nMemAvailable:     8 kB\nshmem x\nsock 12";
        assert_eq!(number(text, b"file"), Some(7));
        assert_eq!(number(text, b"MemAvailable:"), Some(8));
        assert_eq!(number(text, b"shmem"), None);
        assert_eq!(number(text, b"sock"), None);
    }
}
