//! Who owns a TCP socket: asked from the kernel by sock_diag(7).

use crate::shm::users::is_one_user;
use core::net::{IpAddr, SocketAddr};
use netacc_sys::{private, raw};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const REQUEST: usize = 16 + 56;
/// `idiag_cookie` and `idiag_uid` in `struct inet_diag_msg`, after the netlink header.
const COOKIE_AT: usize = 16 + 44;
const UID_AT: usize = 16 + 64;
const TCP_ESTABLISHED: u8 = 1;
const TCP_LISTEN: u8 = 10;

/// What the kernel says of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    state: u8,
    uid: u32,
    cookie: u64,
}

/// The cookie (`SO_COOKIE`) of the listener that a connection from `from` to `dest` would reach, if the kernel tells. Of
/// several that share a port by `SO_REUSEPORT` it is the one that the kernel would choose. `None` also where a connection of
/// before with these addresses is in TIME_WAIT.
pub fn listener_cookie(from: SocketAddr, dest: SocketAddr) -> Option<u64> {
    ask(dest, Some(from)).filter(|f| f.state == TCP_LISTEN).map(|f| f.cookie)
}

/// The effective uid behind the socket that a connection to `dest` would reach, if there is a listener, the kernel tells,
/// and the number stands for one user.
pub fn listener_uid(dest: SocketAddr) -> Option<u32> {
    one_user(ask(dest, None), TCP_LISTEN)
}

/// The effective uid behind the end `local` of an established connection to `remote`.
pub fn connection_uid(local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    one_user(ask(local, Some(remote)), TCP_ESTABLISHED)
}

fn one_user(found: Option<Found>, wanted: u8) -> Option<u32> {
    found.filter(|f| f.state == wanted && is_one_user(f.uid)).map(|f| f.uid)
}

fn ask(local: SocketAddr, remote: Option<SocketAddr>) -> Option<Found> {
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

/// State, owner and cookie in `struct inet_diag_msg`.
fn parse(reply: &[u8]) -> Option<Found> {
    let kind = u16::from_ne_bytes(reply.get(4..6)?.try_into().ok()?);
    if kind != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let word = |at: usize| Some(u32::from_ne_bytes(reply.get(at..at + 4)?.try_into().ok()?));
    // Two words, the lower one first.
    let cookie = u64::from(word(COOKIE_AT + 4)?) << 32 | u64::from(word(COOKIE_AT)?);
    Some(Found { state: *reply.get(17)?, uid: word(UID_AT)?, cookie })
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
            let _alone = crate::starting();
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
    fn names_the_listener_of_a_group_that_the_kernel_chooses() {
        use rustix::net::sockopt::{set_socket_reuseport, socket_cookie};
        use std::collections::HashSet;

        let member = |port: u16| -> OwnedFd {
            let fd = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
            set_socket_reuseport(&fd, true).unwrap();
            rustix::net::bind(&fd, &SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
            rustix::net::listen(&fd, 100).unwrap();
            fd
        };
        let first = member(0);
        let at = SocketAddr::try_from(rustix::net::getsockname(&first).unwrap()).unwrap();
        let group = [first, member(at.port())];
        let cookies: Vec<u64> = group.iter().map(|fd| socket_cookie(fd).unwrap()).collect();
        let mut seen = HashSet::new();
        for _ in 0..64 {
            // Bound first, so that the kernel can be asked before it has chosen.
            let c = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
            rustix::net::bind(&c, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
            let from = SocketAddr::try_from(rustix::net::getsockname(&c).unwrap()).unwrap();
            // The port of a connection before, whose other end is in TIME_WAIT: then the kernel names that.
            let Some(told) = listener_cookie(from, at) else { continue };
            rustix::net::connect(&c, &at).unwrap();
            let mut ready = group.each_ref().map(|fd| rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN));
            rustix::event::poll(&mut ready, None).unwrap();
            let chosen = ready.iter().position(|p| !p.revents().is_empty()).unwrap();
            assert_eq!(cookies[chosen], told);
            rustix::net::accept(&group[chosen]).unwrap();
            seen.insert(told);
        }
        assert_eq!(seen.len(), 2, "64 connections went to one of two listeners");
    }

    #[test]
    fn garbage_replies_name_nobody() {
        assert_eq!(parse(&[]), None);
        assert_eq!(parse(&[0xff; 40]), None);
    }
}
