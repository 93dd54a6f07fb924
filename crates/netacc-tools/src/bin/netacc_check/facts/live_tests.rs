//! Tests of looking at a host, on made-up roots and on this machine.

use super::*;

/// A made-up root, removed at the end.
pub(in crate::facts) struct Tree(PathBuf);

impl Tree {
    pub(in crate::facts) fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("netacc-check-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        Tree(root)
    }

    pub(in crate::facts) fn system(&self) -> System {
        System { root: self.0.clone() }
    }

    pub(in crate::facts) fn put(&self, path: &str, content: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub(in crate::facts) fn link(&self, path: &str, target: &str) {
        std::os::unix::fs::symlink(self.0.join(target), self.0.join(path)).unwrap();
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn listeners_that_others_can_reach() {
    let tree = Tree::new("listeners");
    let head = "  sl  local_address rem_address   st\n";
    tree.put("proc/net/tcp", &format!("{head}   0: 0100007F:18EB 00000000:0000 0A\n   1: 00000000:0016 00000000:0000 0A\n   2: 0200000A:0050 0300000A:1234 01\nnonsense\n"));
    tree.put("proc/net/tcp6", &format!("{head}   0: 00000000000000000000000001000000:0277 0:0 0A\n   1: 00000000000000000000000000000000:01BB 0:0 0A\n"));
    let mut problems = Vec::new();
    assert_eq!(listeners(&tree.system(), &mut problems), [22, 443]);
    assert!(problems.is_empty());
    listeners(&Tree::new("no-proc").system(), &mut problems);
    assert!(problems[0].contains("/proc/net/tcp: "), "{problems:?}");
}

#[test]
fn limits_of_control_groups() {
    let tree = Tree::new("cgroup");
    tree.put("proc/self/cgroup", "4:cpu,memory:/a/b\n3:cpuset:/x\n0::/c\n");
    assert_eq!(memory_limit(&tree.system()), None);
    tree.put("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
    assert_eq!(memory_limit(&tree.system()), None);
    tree.put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000000\n");
    tree.put("sys/fs/cgroup/c/memory.max", "max\n");
    assert_eq!(memory_limit(&tree.system()), Some(1_000_000));
    tree.put("sys/fs/cgroup/c/memory.max", "5000\n");
    assert_eq!(memory_limit(&tree.system()), Some(5000));
}

#[test]
fn containers_are_told() {
    let tree = Tree::new("container");
    tree.put("proc/self/cgroup", "0::/kubepods.slice/pod1\n");
    assert_eq!(container(&tree.system()).as_deref(), Some("Kubernetes"));
    tree.put(".dockerenv", "");
    assert_eq!(container(&tree.system()).as_deref(), Some("Docker"));
}

#[test]
fn this_machine_has_facts() {
    let host = host(None);
    assert_eq!(host.machine, std::env::consts::ARCH);
    assert!(!host.kernel.is_empty() && host.glibc.is_some());
    assert!(host.limits.nofile.is_some());
    assert!(ldconfig().iter().any(|(name, path)| name == "libc.so.6" && path.starts_with('/')));
}

#[test]
fn a_named_file_that_is_missing_is_told() {
    let config = configuration(Some(Path::new("/no/such/netacc.conf")));
    assert!(config.text.is_none() && config.error.is_some_and(|error| error.contains("No such file")));
}
