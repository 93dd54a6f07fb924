//! Who owns a TCP socket: asked from the kernel by sock_diag(7).

use crate::shm::users::is_one_user;
use core::net::{IpAddr, SocketAddr};
use netacc_sys::{private, raw};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const REQUEST: usize = 16 + 56;
/// `idiag_uid` in `struct inet_diag_msg`, after the netlink header.
const UID_AT: usize = 16 + 64;

/// The effective uid behind the socket that a connection to `dest` would reach, if there is a listener, the kernel tells,
/// and the number stands for one user.
pub fn listener_uid(dest: SocketAddr) -> Option<u32> {
    const TCP_LISTEN: u8 = 10;
    one_user(ask(dest, None), TCP_LISTEN)
}

/// The effective uid behind the end `local` of an established connection to `remote`.
pub fn connection_uid(local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    const TCP_ESTABLISHED: u8 = 1;
    one_user(ask(local, Some(remote)), TCP_ESTABLISHED)
}

fn one_user(found: Option<(u8, u32)>, wanted: u8) -> Option<u32> {
    found.filter(|(state, uid)| *state == wanted && is_one_user(*uid)).map(|(_, uid)| uid)
}

fn ask(local: SocketAddr, remote: Option<SocketAddr>) -> Option<(u8, u32)> {
    let fd: OwnedFd =
        socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG)).ok()?;
    let req = request(local, remote);
    let mut reply = [0u8; 1024];
    let n = raw::send(fd.as_raw_fd(), req.as_ptr(), req.len(), 0)
        .and_then(|_| raw::recv(fd.as_raw_fd(), reply.as_mut_ptr(), reply.len(), 0));
    private::drop_raw(fd);
    parse(reply.get(..n.ok()?)?)
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2` for an exact look-up: the kernel finds the socket
/// a SYN with these addresses would reach.
fn request(dest: SocketAddr, remote: Option<SocketAddr>) -> [u8; REQUEST] {
    let mut r = [0u8; REQUEST];
    let mut put = |at: usize, b: &[u8]| {
        if let Some(dst) = r.get_mut(at..at + b.len()) {
            dst.copy_from_slice(b);
        }
    };
    put(0, &(REQUEST as u32).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &1u16.to_ne_bytes()); // NLM_F_REQUEST
    let family = if dest.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    put(16, &[family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    put(20, &u32::MAX.to_ne_bytes());
    // idiag_sport/src describe the socket asked for; a listener has no remote end.
    put(24, &dest.port().to_be_bytes());
    match dest.ip() {
        IpAddr::V4(a) => put(28, &a.octets()),
        IpAddr::V6(a) => put(28, &a.octets()),
    }
    if let Some(remote) = remote {
        put(26, &remote.port().to_be_bytes());
        match remote.ip() {
            IpAddr::V4(a) => put(44, &a.octets()),
            IpAddr::V6(a) => put(44, &a.octets()),
        }
    }
    put(64, &[0xff; 8]); // no cookie
    r
}

/// State and owner in `struct inet_diag_msg`.
fn parse(reply: &[u8]) -> Option<(u8, u32)> {
    let kind = u16::from_ne_bytes(reply.get(4..6)?.try_into().ok()?);
    if kind != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let uid = u32::from_ne_bytes(reply.get(UID_AT..UID_AT + 4)?.try_into().ok()?);
    Some((*reply.get(17)?, uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn finds_the_owner_of_a_listener() {
        let me = rustix::process::geteuid().as_raw();
        for bind in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0"] {
            let l = TcpListener::bind(bind).unwrap();
            let port = l.local_addr().unwrap().port();
            assert_eq!(listener_uid(SocketAddr::new([127, 0, 0, 1].into(), port)), Some(me), "{bind}");
            drop(l);
            assert_eq!(listener_uid(SocketAddr::new([127, 0, 0, 1].into(), port)), None);
        }
    }

    #[test]
    fn finds_the_owner_of_a_connection() {
        let me = rustix::process::geteuid().as_raw();
        let l = TcpListener::bind("127.0.0.1:0").unwrap();
        let c = std::net::TcpStream::connect(l.local_addr().unwrap()).unwrap();
        let (from, to) = (c.local_addr().unwrap(), c.peer_addr().unwrap());
        assert_eq!(connection_uid(from, to), Some(me));
        assert_eq!(connection_uid(to, to), None);
    }

    #[test]
    fn garbage_replies_name_nobody() {
        assert_eq!(parse(&[]), None);
        assert_eq!(parse(&[0xff; 40]), None);
    }
}
