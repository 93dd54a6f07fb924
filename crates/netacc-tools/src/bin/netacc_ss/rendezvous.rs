//! The rendezvous that a process holds: what /proc says of its listening UNIX sockets.

use std::collections::HashSet;
use std::fs;
use std::net::IpAddr;

use netacc_stats::SockAddr;
use netacc_wire::{Name, Scope};

/// What all of their names begin with (`netacc/VERSION/SCOPE/PORT`).
const PREFIX: &str = "@netacc/";
/// `__SO_ACCEPTCON` among the flags: it listens.
const LISTENS: u32 = 1 << 16;

/// The names of the rendezvous that a process holds; empty if it holds none, or may not be looked into.
pub(crate) fn held(pid: u32) -> Vec<String> {
    let Ok(table) = fs::read(format!("/proc/{pid}/net/unix")) else {
        return Vec::new();
    };
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let own: HashSet<u64> = fds
        .filter_map(|fd| {
            let link = fs::read_link(fd.path()).ok()?;
            link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
        })
        .collect();
    // Others' names may be any bytes.
    let table = String::from_utf8_lossy(&table);
    table.lines().filter_map(entry).filter(|(inode, _)| own.contains(inode)).map(|(_, name)| name).collect()
}

/// `NUM: REFCOUNT PROTOCOL FLAGS TYPE STATE INODE NAME`
fn entry(line: &str) -> Option<(u64, String)> {
    let mut words = line.split_ascii_whitespace();
    let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
    let inode = words.nth(2)?.parse().ok()?;
    let name = words.next()?;
    let listens = flags & LISTENS != 0 && name.starts_with(PREFIX);
    listens.then(|| (inode, name.get(1..).unwrap_or_default().escape_debug().to_string()))
}

/// Which of the names is that of a listener at `local`.
pub(crate) fn of<'a>(local: &SockAddr, names: &'a [String]) -> Option<&'a str> {
    let ip = local.ip()?;
    let scopes: &[Scope] = match ip {
        IpAddr::V4(ip) if ip.is_unspecified() => &[Scope::Any4],
        IpAddr::V6(ip) if ip.is_unspecified() => &[Scope::Dual, Scope::Any6],
        ip => &[Scope::Addr(ip)],
    };
    let whole = |name: &&String| {
        // Behind a plus sign is the place of one process among several that listen.
        let name = name.split('+').next().unwrap_or_default();
        scopes.iter().any(|scope| Name::new(*scope, local.port).as_bytes() == name.as_bytes())
    };
    let found = names.iter().find(whole).or_else(|| names.iter().find(|name| of_group(name, local.port)));
    found.map(String::as_str)
}

/// Whether a name is that of one listener among those that share a port: its scope is a cookie of 16 digits.
fn of_group(name: &str, port: u16) -> bool {
    let mut parts = name.split('/').skip(2);
    let (scope, rest) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let hex = scope.len() == 16 && scope.bytes().all(|digit| digit.is_ascii_hexdigit());
    hex && rest.split('+').next() == Some(&port.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    #[test]
    fn a_listener_finds_its_own() {
        let name = |scope, port, place| String::from_utf8(Name::at(scope, port, place).as_bytes().to_vec()).unwrap();
        let local = IpAddr::from([127, 0, 0, 1]);
        let names = [
            name(Scope::Any4, 80, 0),
            name(Scope::Addr(local), 81, 3),
            name(Scope::One(77), 82, 0),
            name(Scope::Dual, 80, 0),
        ];
        let find = |addr: SockAddr| names.iter().position(|name| of(&addr, &names) == Some(name));
        assert_eq!(find(SockAddr::v4([0; 4], 80)), Some(0));
        assert_eq!(find(SockAddr::v6([0; 16], 80)), Some(3));
        assert_eq!(find(SockAddr::v4([127, 0, 0, 1], 81)), Some(1));
        assert_eq!(find(SockAddr::v4([127, 0, 0, 1], 82)), Some(2));
        assert_eq!(find(SockAddr::v4([127, 0, 0, 1], 80)), None);
        assert_eq!(find(SockAddr::default()), None);
    }

    #[test]
    fn those_of_this_process_are_seen() {
        let name = format!("netacc/0/test/{}", std::process::id());
        let _listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        assert!(held(std::process::id()).contains(&name));
        assert!(held(u32::MAX).is_empty());
    }
}
