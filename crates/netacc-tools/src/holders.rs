//! Which processes hold a socket.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::text::clean;

/// A process that holds a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// The name of its program.
    pub name: String,
    /// Its user.
    pub uid: u32,
    /// The descriptors that refer to the socket.
    pub fds: Vec<u32>,
}

impl Holder {
    /// The process in a sentence.
    #[must_use]
    pub fn described(&self) -> String {
        format!("process {} ({})", self.pid, clean(&self.name))
    }
}

/// The processes that hold a socket, as far as we may look into them.
pub fn holders(inode: u64) -> Vec<Holder> {
    holders_of(&[inode]).remove(&inode).unwrap_or_default()
}

/// The processes that hold each of several sockets. One walk through `/proc` serves all of them.
pub fn holders_of(inodes: &[u64]) -> HashMap<u64, Vec<Holder>> {
    let inodes: HashSet<u64> = inodes.iter().copied().collect();
    let mut found: HashMap<u64, Vec<Holder>> = HashMap::new();
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in pids {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        for fd in fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten() {
            let Some(inode) = inode_of(&fd).filter(|inode| inodes.contains(inode)) else { continue };
            let Some(number) = fd.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let all = found.entry(inode).or_default();
            match all.last_mut().filter(|last| last.pid == pid) {
                Some(holder) => holder.fds.push(number),
                None => all.extend(holder(pid, number)),
            }
        }
    }
    found.values_mut().for_each(|all| all.sort_by_key(|holder| holder.pid));
    found
}

fn holder(pid: u32, fd: u32) -> Option<Holder> {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let uid = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    Some(Holder { pid, name: String::from_utf8_lossy(&name).trim().to_owned(), uid, fds: vec![fd] })
}

/// The inode of the socket that a link in `/proc/PID/fd` leads to.
fn inode_of(fd: &fs::DirEntry) -> Option<u64> {
    fs::read_link(fd.path()).ok()?.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}
