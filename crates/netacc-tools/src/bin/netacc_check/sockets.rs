//! Which rendezvous there are in this network namespace, looked up without connecting to any: a server hears nothing.

use std::collections::HashMap;
use std::fs;
use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// What all rendezvous begin with (`netacc/VERSION/SCOPE/PORT`).
const PREFIX: &str = "@netacc/";
/// `__SO_ACCEPTCON` among the flags: it listens.
const LISTENS: u32 = 1 << 16;

/// The listening rendezvous: name without the leading NUL byte, and inode.
#[derive(Debug, Default)]
pub(crate) struct Rendezvous(HashMap<String, u64>);

impl Rendezvous {
    /// Reads /proc/net/unix.
    pub(crate) fn read() -> io::Result<Self> {
        // Others' names may be any bytes.
        let table = fs::read("/proc/net/unix")?;
        Ok(Self::parse(&String::from_utf8_lossy(&table)))
    }

    fn parse(table: &str) -> Self {
        Self(table.lines().filter_map(entry).collect())
    }

    /// The inode of a rendezvous.
    pub(crate) fn inode(&self, name: &[u8]) -> Option<u64> {
        self.0.get(std::str::from_utf8(name).ok()?).copied()
    }

    /// The version of the protocol of a rendezvous that differs from `name` only in that.
    pub(crate) fn other_version(&self, name: &[u8]) -> Option<&str> {
        let name = std::str::from_utf8(name).ok()?;
        let (_, rest) = name.strip_prefix("netacc/")?.split_once('/')?;
        self.0.keys().filter(|other| *other != name).find_map(|other| {
            let (version, its_rest) = other.strip_prefix("netacc/")?.split_once('/')?;
            (its_rest == rest).then_some(version)
        })
    }
}

/// `NUM: REFCOUNT PROTOCOL FLAGS TYPE STATE INODE NAME`
fn entry(line: &str) -> Option<(String, u64)> {
    let mut words = line.split_ascii_whitespace();
    let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
    let inode = words.nth(2)?.parse().ok()?;
    let name = words.next()?;
    (flags & LISTENS != 0 && name.starts_with(PREFIX)).then(|| (name.get(1..).unwrap_or_default().to_owned(), inode))
}

/// The user that owns a UNIX socket, by sock_diag(7); `None` if the kernel does not tell.
pub(crate) fn owner(inode: u64) -> Option<u32> {
    attribute(&about(inode)?, UNIX_DIAG_UID).map(u32::from_ne_bytes)
}

/// Whether a UNIX socket was shut down, so that it refuses to be connected to. A listener that was left to the kernel is still
/// in the table while a thread sleeps on it. `false` if the kernel does not tell.
pub(crate) fn is_shut(inode: u64) -> bool {
    let state: Option<[u8; 1]> = about(inode).and_then(|reply| attribute(&reply, UNIX_DIAG_SHUTDOWN));
    state.is_some_and(|[ways]| ways != 0)
}

/// What the kernel answers about a UNIX socket, by sock_diag(7).
fn about(inode: u64) -> Option<Vec<u8>> {
    let inode = u32::try_from(inode).ok().filter(|inode| *inode != 0)?;
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )
    .ok()?;
    rustix::net::send(&socket, &request(inode), SendFlags::empty()).ok()?;
    let mut reply = [0_u8; 1024];
    let (count, _) = rustix::net::recv(&socket, &mut reply, RecvFlags::empty()).ok()?;
    reply.get(..count).map(<[u8]>::to_vec)
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const UDIAG_SHOW_UID: u32 = 0x40;
/// The attributes of `enum` in linux/unix_diag.h. The kernel sends the state of the shutdown without being asked.
const UNIX_DIAG_SHUTDOWN: u16 = 6;
const UNIX_DIAG_UID: u16 = 7;

/// `struct nlmsghdr` and `struct unix_diag_req` for one socket.
fn request(inode: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(40);
    bytes.extend(40_u32.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(1_u16.to_ne_bytes()); // NLM_F_REQUEST
    bytes.extend([0; 8]);
    bytes.extend([1, 0, 0, 0]); // AF_UNIX
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(inode.to_ne_bytes());
    bytes.extend(UDIAG_SHOW_UID.to_ne_bytes());
    bytes.extend([0xff; 8]); // no cookie
    bytes
}

/// The value of an attribute behind `struct nlmsghdr` and `struct unix_diag_msg`.
fn attribute<const SIZE: usize>(reply: &[u8], wanted: u16) -> Option<[u8; SIZE]> {
    let short = |at: usize| Some(u16::from_ne_bytes(reply.get(at..at.checked_add(2)?)?.try_into().ok()?));
    if short(4)? != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let mut at = 32_usize;
    loop {
        let (len, kind) = (usize::from(short(at)?), short(at + 2)?);
        if kind == wanted {
            return reply.get(at + 4..at + 4 + SIZE)?.try_into().ok();
        }
        at += len.max(4).next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_tools::holders::holders;
    use std::os::fd::AsRawFd;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    /// shutdown(2).
    const SHUT_RDWR: i32 = 2;

    #[test]
    fn names_in_the_table() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0: 00000002 00000000 00010000 0005 01 42 @netacc/9/7f000001/6379\n\
            0: 00000002 00000000 00010000 0005 01 43 @netacc/8/any4/80\n\
            0: 00000003 00000000 00000000 0005 03 44 @netacc/9/any4/80\n\
            0: 00000002 00000000 00010000 0001 01 45 /run/netacc/9/x\n\
            0: 00000002 00000000 00010000 0001 01 46\nodd\n";
        let found = Rendezvous::parse(table);
        assert_eq!(found.inode(b"netacc/9/7f000001/6379"), Some(42));
        assert_eq!(found.inode(b"netacc/9/any4/80"), None, "one end of a connection");
        assert_eq!(found.other_version(b"netacc/9/any4/80"), Some("8"));
        assert_eq!(found.other_version(b"netacc/9/7f000001/6379"), None);
    }

    #[test]
    fn a_socket_of_our_own_is_found_with_its_owner() {
        let name = format!("netacc/test/{}", std::process::id());
        let _listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let inode = Rendezvous::read().unwrap().inode(name.as_bytes()).unwrap();
        let me = rustix::process::geteuid().as_raw();
        // Without the kernel's unix_diag the holder must do.
        assert!(owner(inode).is_none_or(|uid| uid == me));
        let found = holders(inode);
        assert_eq!((found.len(), found[0].pid, found[0].uid), (1, std::process::id(), me));
        assert!(holders(u64::MAX).is_empty());
    }

    #[test]
    fn a_socket_that_was_shut_down_is_told_apart() {
        let name = format!("netacc/test/shut/{}", std::process::id());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let inode = Rendezvous::read().unwrap().inode(name.as_bytes()).unwrap();
        assert!(!is_shut(inode));
        netacc_sys::raw::shutdown(listener.as_raw_fd(), SHUT_RDWR).unwrap();
        assert_eq!(Rendezvous::read().unwrap().inode(name.as_bytes()), Some(inode), "the kernel shows it as before");
        // Without the kernel's unix_diag nobody can tell.
        assert_eq!(is_shut(inode), owner(inode).is_some());
        assert!(!is_shut(0) && !is_shut(u64::MAX));
    }

    #[test]
    fn replies_of_the_kernel() {
        let uid = |reply: &[u8]| attribute(reply, UNIX_DIAG_UID).map(u32::from_ne_bytes);
        let mut reply = vec![0; 32];
        reply[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        assert_eq!(uid(&reply), None);
        for (len, kind, value) in [(5_u16, UNIX_DIAG_SHUTDOWN, 3_u32), (8, UNIX_DIAG_UID, 1000)] {
            reply.extend(len.to_ne_bytes());
            reply.extend(kind.to_ne_bytes());
            reply.extend(value.to_ne_bytes());
        }
        assert_eq!(uid(&reply), Some(1000));
        assert_eq!(attribute(&reply, UNIX_DIAG_SHUTDOWN), Some([3_u8]));
        for end in 0..reply.len() {
            assert_eq!(uid(&reply[..end]), None, "cut at {end}");
        }
        assert_eq!(uid(&[0xff; 64]), None);
    }
}
