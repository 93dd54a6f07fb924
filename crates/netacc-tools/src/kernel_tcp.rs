//! The TCP sockets of a network namespace, as the kernel lists them in `/proc/PID/net/tcp` and `tcp6`.

use std::fmt::Display;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A TCP socket that some process holds. IPv4 addresses within IPv6 are shown as those of IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSocket {
    /// Its own address.
    pub local: SocketAddr,
    /// The address of the other end; unspecified for a listener.
    pub peer: SocketAddr,
    /// The state, as the kernel numbers it.
    state: u8,
    /// The inode, by which `/proc/PID/fd` shows the socket.
    pub inode: u64,
}

/// `TCP_ESTABLISHED`, and `TCP_LISTEN`.
const ESTABLISHED: u8 = 1;
const LISTEN: u8 = 10;

impl KernelSocket {
    /// Whether it is an end of an established connection.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.state == ESTABLISHED
    }

    /// Whether it listens, and a connection to `dest` may reach it.
    #[must_use]
    pub fn serves(&self, dest: SocketAddr) -> bool {
        let (own, ip) = (self.local.ip(), dest.ip().to_canonical());
        let everywhere = own.is_unspecified() && (own.is_ipv6() || ip.is_ipv4());
        self.state == LISTEN && self.local.port() == dest.port() && (everywhere || own == ip)
    }
}

/// The TCP sockets of the network namespace of a process; `pid` is its number, or `self`.
#[must_use]
pub fn sockets(pid: impl Display) -> Vec<KernelSocket> {
    let table = |family| fs::read_to_string(format!("/proc/{pid}/net/{family}")).unwrap_or_default();
    ["tcp", "tcp6"].into_iter().flat_map(|family| table(family).lines().filter_map(entry).collect::<Vec<_>>()).collect()
}

/// The inodes of the listeners that a connection to `dest` may reach. Listeners at the very address come first, as the
/// kernel prefers them to those at every address.
#[must_use]
pub fn listeners(sockets: &[KernelSocket], dest: SocketAddr) -> Vec<u64> {
    let mut found: Vec<&KernelSocket> = sockets.iter().filter(|socket| socket.serves(dest)).collect();
    found.sort_by_key(|socket| socket.local.ip().is_unspecified());
    found.into_iter().map(|socket| socket.inode).collect()
}

/// `SL: LOCAL REMOTE STATE QUEUES TIMER RETRANSMITS UID TIMEOUT INODE`; `None` for a socket that no process holds.
fn entry(line: &str) -> Option<KernelSocket> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (local, peer) = (place(words.next()?)?, place(words.next()?)?);
    let state = u8::from_str_radix(words.next()?, 16).ok()?;
    let inode = words.nth(5)?.parse().ok().filter(|inode| *inode != 0)?;
    Some(KernelSocket { local, peer, state, inode })
}

/// An address in hexadecimal digits, as the kernel keeps its words in memory.
fn place(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |n: usize| Some(u32::from_str_radix(ip.get(n * 8..n * 8 + 8)?, 16).ok()?.to_ne_bytes());
    let ip: IpAddr = match ip.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let (a, b, c, d) = (word(0)?, word(1)?, word(2)?, word(3)?);
            let mut all = [0; 16];
            all.iter_mut().zip([a, b, c, d].as_flattened()).for_each(|(to, from)| *to = *from);
            Ipv6Addr::from(all).into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip.to_canonical(), u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_kernels_table() {
        let line = "   1: 0100007F:1F90 0200007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 77 1 0";
        let found = entry(line).unwrap();
        assert_eq!((found.local, found.peer), ("127.0.0.1:8080".parse().unwrap(), "127.0.0.2:50000".parse().unwrap()));
        assert!(found.is_established() && found.inode == 77);
        assert!(!entry(&line.replace(" 01 ", " 0A ")).unwrap().is_established(), "it listens");
        assert_eq!(entry(&line.replace(" 77 ", " 0 ")), None, "nobody holds it");
        let mapped = "0000000000000000FFFF00000100007F:0050";
        assert_eq!(place(mapped), Some("127.0.0.1:80".parse().unwrap()));
        assert_eq!(place("B80D0120000000000000000001000000:0001"), Some("[2001:db8::1]:1".parse().unwrap()));
        for odd in ["", ":", "0100007F", "0100007:1", "0100007G:1", "0100007F:x"] {
            assert_eq!(place(odd), None, "{odd}");
        }
        assert_eq!(entry("  sl  local_address rem_address   st"), None);
    }

    #[test]
    fn a_connection_of_our_own_and_its_listener() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let client = TcpStream::connect(at).unwrap();
        let all = sockets("self");
        let ends = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        assert_eq!(all.iter().filter(|s| s.is_established() && (s.local, s.peer) == ends).count(), 1);
        assert_eq!(listeners(&all, at).len(), 1);
        assert_eq!(listeners(&all, SocketAddr::new([127, 0, 0, 9].into(), at.port())).len(), 0);
    }

    #[test]
    fn which_listener_a_connection_reaches() {
        let listens = |local: &str| {
            let local = local.parse().unwrap();
            KernelSocket { local, peer: "0.0.0.0:0".parse().unwrap(), state: LISTEN, inode: 1 }
        };
        for (local, dest, reached) in [
            ("0.0.0.0:80", "127.0.0.1:80", true),
            ("0.0.0.0:80", "127.0.0.1:81", false),
            ("0.0.0.0:80", "[::1]:80", false),
            ("[::]:80", "127.0.0.1:80", true),
            ("127.0.0.2:80", "127.0.0.1:80", false),
            ("127.0.0.1:80", "[::ffff:127.0.0.1]:80", true),
        ] {
            assert_eq!(listens(local).serves(dest.parse().unwrap()), reached, "{local} {dest}");
        }
    }
}
