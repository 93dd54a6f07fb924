//! Which processes hold a socket.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// A process that holds a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// The name of its program.
    pub name: String,
    /// Its user.
    pub uid: u32,
}

/// The processes that hold a socket, as far as we may look into them.
pub fn holders(inode: u64) -> Vec<Holder> {
    let wanted = format!("socket:[{inode}]");
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut found: Vec<Holder> = pids
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let mut fds = fs::read_dir(entry.path().join("fd")).ok()?.flatten();
            fds.find(|fd| fs::read_link(fd.path()).is_ok_and(|link| link.as_os_str() == wanted.as_str()))?;
            let name = fs::read(entry.path().join("comm")).unwrap_or_default();
            let uid = fs::metadata(entry.path()).ok()?.uid();
            Some(Holder { pid, name: String::from_utf8_lossy(&name).trim().to_owned(), uid })
        })
        .collect();
    found.sort_by_key(|holder| holder.pid);
    found
}
