//! Server's host: companion connections that arrive. A listening socket is open only while a queue pair waits for its
//! companion, clients of other addresses are not let in, and only a few may be there that have not sent their token
//! yet.
//!
//! Anybody may connect there, so the engine's lock is held for a few of them at a time.

use crate::rdma::engine::admission::{Bounds, Silent, evicted};
use crate::rdma::engine::companions::watch::{Watch, of_fd, without_delay};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLIN, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM};
use netacc_sys::addr;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{raw, reserved_fds, time};
use netacc_wire::companion::{self as wire, HELLO, TOKEN};

/// Clients that have not sent their token yet.
const STRANGERS: Bounds = Bounds { per_address: 16, all: 64 };

/// A listening socket at one of our addresses.
#[derive(Debug)]
struct Listening {
    ip: IpAddr,
    fd: i32,
    port: u16,
}

/// A client that has connected and not yet named the queue pair whose companion it is.
#[derive(Debug)]
pub(in crate::rdma::engine) struct Stranger {
    pub fd: i32,
    pub ip: IpAddr,
    pub since: u64,
    said: Vec<u8>,
}

/// The listening sockets, and the clients that have come to them.
#[derive(Debug, Default)]
pub(in crate::rdma::engine) struct Arrivals {
    listening: Vec<Listening>,
    strangers: VecDeque<Stranger>,
    /// Set when a listening socket is not watched, since there was no descriptor for a client.
    deaf: bool,
}

impl Arrivals {
    /// The descriptors of all of them.
    pub fn fds(&self) -> impl Iterator<Item = i32> {
        self.listening.iter().map(|l| l.fd).chain(self.strangers.iter().map(|s| s.fd))
    }

    /// Whether something here has to be looked at once in a while.
    pub fn has_any(&self) -> bool {
        !self.listening.is_empty() || !self.strangers.is_empty()
    }
}

impl Arrivals {
    /// Whether this socket listens for companions.
    pub fn has(&self, listener: i32) -> bool {
        self.listening.iter().any(|l| l.fd == listener)
    }

    /// The port at which companions of queue pairs at `ip` are awaited.
    pub fn listen(&mut self, watch: &mut Watch, ip: IpAddr) -> Result<u16> {
        if let Some(l) = self.listening.iter().find(|l| l.ip == ip) {
            return Ok(l.port);
        }
        let fd = reserved_fds::raise(raw::socket(addr::domain(ip), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)?);
        let opened = addr::with(SocketAddr::new(ip, 0), |p, n| raw::bind(fd, p, n))
            .and_then(|()| raw::listen(fd, 128))
            .and_then(|()| addr::local_of(fd).ok_or(Errno::NOTCONN))
            .and_then(|local| watch.ctl(EPOLL_CTL_ADD, fd, EPOLLIN, of_fd(1, fd)).map(|()| local.port()));
        let port = opened.inspect_err(|_| reserved_fds::close(fd))?;
        netacc_log::log!(Debug, "{}: listening for companion connections of QPs", SocketAddr::new(ip, port));
        self.listening.push(Listening { ip, fd, port });
        Ok(port)
    }

    /// The next client at this listening socket and its address, if there is one.
    pub fn accept(&mut self, watch: &mut Watch, listener: i32) -> Option<(i32, Option<IpAddr>)> {
        let (nobody, flags) = (core::ptr::null_mut(), SOCK_CLOEXEC | SOCK_NONBLOCK);
        match raw::accept4(listener, nobody, core::ptr::null_mut(), flags) {
            Ok(fd) => {
                let fd = reserved_fds::raise(fd);
                Some((fd, addr::peer_of(fd).map(|a| a.ip().to_canonical())))
            }
            // Whatever it was, the socket is still readable if another client is there.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => None,
            // Without a descriptor for the client, the socket would wake the thread over and over.
            Err(_) => {
                self.deaf = watch.ctl(EPOLL_CTL_MOD, listener, 0, of_fd(1, listener)).is_ok();
                None
            }
        }
    }

    /// Done once in a while: listens again, since there may be descriptors by now.
    pub fn retry_listen(&mut self, watch: &Watch) {
        if !core::mem::take(&mut self.deaf) {
            return;
        }
        for l in &self.listening {
            let _ = raw::epoll_ctl(watch.epoll, EPOLL_CTL_MOD, l.fd, EPOLLIN as u32, of_fd(1, l.fd));
        }
    }

    /// Lets a client in until it has identified itself. False: that is not possible, and the client is closed.
    pub fn admit(&mut self, watch: &mut Watch, fd: i32, ip: IpAddr) -> bool {
        if watch.ctl(EPOLL_CTL_ADD, fd, EPOLLIN, of_fd(2, fd)).is_err() {
            reserved_fds::close(fd);
            return false;
        }
        without_delay(fd);
        self.strangers.push_back(Stranger { fd, ip, since: time::now(), said: Vec::with_capacity(HELLO) });
        true
    }

    /// The client that makes room for one from `ip`, if there are too many.
    pub fn evicted_by(&self, ip: IpAddr) -> Option<i32> {
        let silent = |(id, s): (usize, &Stranger)| Silent { id, ip: s.ip, since: s.since };
        let all: Vec<Silent> = self.strangers.iter().enumerate().map(silent).collect();
        self.strangers.get(evicted(&all, ip, STRANGERS)?.id).map(|s| s.fd)
    }

    /// Drops the clients for which `stays` is false.
    pub fn keep_strangers(&mut self, watch: &Watch, stays: impl Fn(&Stranger) -> bool) {
        self.strangers.retain(|s| {
            let stays = stays(s);
            if !stays {
                watch.forget(s.fd);
            }
            stays
        });
    }

    /// Closes the listening sockets at addresses for which `stays` is false.
    pub fn keep_listening(&mut self, watch: &Watch, stays: impl Fn(IpAddr) -> bool) {
        self.listening.retain(|l| {
            let stays = stays(l.ip);
            if !stays {
                netacc_log::log!(
                    Debug,
                    "{}: no QP awaits a companion connection; closed",
                    SocketAddr::new(l.ip, l.port)
                );
                watch.forget(l.fd);
            }
            stays
        });
    }

    /// Reads what a client that has not identified itself yet has sent. Once its hello is complete, returns the client
    /// and the token that the hello carries.
    pub fn receive(&mut self, watch: &Watch, fd: i32) -> Option<(Stranger, [u8; TOKEN])> {
        let at = self.strangers.iter().position(|s| s.fd == fd)?;
        let s = self.strangers.get_mut(at)?;
        let mut said = [0u8; HELLO];
        // No byte more than the hello is read: what follows belongs to the queue pair.
        let got = raw::recv(fd, said.as_mut_ptr(), HELLO - s.said.len(), libc::MSG_DONTWAIT);
        s.said.extend_from_slice(said.get(..got.unwrap_or(0))?);
        match got {
            Err(Errno::AGAIN | Errno::INTR) => return None,
            Ok(1..) if s.said.len() < HELLO => return None,
            _ => {}
        }
        let s = self.strangers.remove(at)?;
        match s.said.first_chunk().and_then(wire::token) {
            Some(token) => Some((s, token)),
            None => {
                watch.forget(s.fd);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;
    use std::io::Write;
    use std::net::TcpStream;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// A client that has connected, and the stranger that it is.
    fn client(arrivals: &mut Arrivals, watch: &mut Watch, port: u16) -> (TcpStream, i32) {
        let client = TcpStream::connect((HERE, port)).unwrap();
        let listener = arrivals.listening[0].fd;
        let (fd, ip) = arrivals.accept(watch, listener).unwrap();
        assert!(arrivals.admit(watch, fd, ip.unwrap()));
        (client, fd)
    }

    #[test]
    fn a_listening_socket_is_open_while_it_is_wanted() {
        let (mut arrivals, mut watch) = (Arrivals::default(), Watch::default());
        let port = arrivals.listen(&mut watch, HERE).unwrap();
        assert_eq!(arrivals.listen(&mut watch, HERE), Ok(port));
        let (_client, _) = client(&mut arrivals, &mut watch, port);
        arrivals.keep_listening(&watch, |_| true);
        arrivals.keep_strangers(&watch, |_| true);
        assert!(arrivals.has_any() && TcpStream::connect((HERE, port)).is_ok());
        arrivals.keep_listening(&watch, |_| false);
        arrivals.keep_strangers(&watch, |_| false);
        assert!(!arrivals.has_any() && TcpStream::connect((HERE, port)).is_err());
        reserved_fds::close(watch.epoll);
    }

    #[test]
    fn a_client_that_sends_anything_but_a_hello_is_dropped() {
        let (mut arrivals, mut watch) = (Arrivals::default(), Watch::default());
        let port = arrivals.listen(&mut watch, HERE).unwrap();
        for (said, token) in [(wire::hello(&[7; TOKEN]), Some([7; TOKEN])), ([7; HELLO], None)] {
            let (mut client, fd) = client(&mut arrivals, &mut watch, port);
            client.write_all(&said[..10]).unwrap();
            assert!(arrivals.receive(&watch, fd).is_none() && arrivals.strangers.len() == 1);
            client.write_all(&said[10..]).unwrap();
            let heard = arrivals.receive(&watch, fd);
            assert_eq!(heard.as_ref().map(|(_, token)| *token), token);
            assert!(arrivals.strangers.is_empty());
            heard.into_iter().for_each(|(s, _)| reserved_fds::close(s.fd));
        }
        arrivals.keep_listening(&watch, |_| false);
        reserved_fds::close(watch.epoll);
    }

    #[test]
    fn the_oldest_of_too_many_from_one_address_makes_room() {
        let (mut arrivals, mut watch) = (Arrivals::default(), Watch::default());
        let port = arrivals.listen(&mut watch, HERE).unwrap();
        let mut clients = Vec::new();
        for _ in 0..STRANGERS.per_address {
            assert_eq!(arrivals.evicted_by(HERE), None);
            clients.push(client(&mut arrivals, &mut watch, port));
        }
        assert_eq!(arrivals.evicted_by(HERE), clients.first().map(|(_, fd)| *fd));
        assert_eq!(arrivals.evicted_by(Ipv4Addr::new(10, 0, 0, 1).into()), None);
        arrivals.keep_listening(&watch, |_| false);
        arrivals.keep_strangers(&watch, |_| false);
        reserved_fds::close(watch.epoll);
    }
}
