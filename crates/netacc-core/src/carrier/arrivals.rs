//! Server's host: companion connections that arrive. A listening socket is open only while a queue pair waits for its
//! companion, clients of other addresses are not let in, and only a few may be there that have not sent their token
//! yet.
//!
//! Anybody may connect there, so the engine's lock is held for a few of them at a time.

use crate::addr;
use crate::carrier::admission::{Bounds, Silent, displaced};
use crate::carrier::base::{Base, Bases, COMPANION_CONNECT, KIND};
use crate::carrier::engine::Engine;
use crate::carrier::entry::{Entry, tag};
use crate::carrier::own_port;
use crate::limits::COMPANIONS_PER_PASS;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{private, raw, time};
use netacc_wire::base::{self as wire, HELLO, TOKEN, WELCOME};

/// Clients that have not said who they are.
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
struct Stranger {
    fd: i32,
    ip: IpAddr,
    since: u64,
    said: Vec<u8>,
}

/// The listening sockets, and the clients that have come to them.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
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

impl Bases {
    /// The port at which companions of queue pairs at `ip` are awaited.
    pub(super) fn listen(&mut self, ip: IpAddr) -> Result<u16> {
        if let Some(l) = self.arrivals.listening.iter().find(|l| l.ip == ip) {
            return Ok(l.port);
        }
        let fd = private::raise(raw::socket(addr::domain(ip), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)?);
        let opened = addr::with(SocketAddr::new(ip, 0), |p, n| raw::bind(fd, p, n))
            .and_then(|()| raw::listen(fd, 128))
            .and_then(|()| addr::local_of(fd).ok_or(Errno::NOTCONN))
            .and_then(|local| self.watch(EPOLL_CTL_ADD, fd, EPOLLIN, KIND | fd as u64).map(|()| local.port()));
        let port = opened.inspect_err(|_| private::close(fd))?;
        crate::log!(Debug, "{}: listening for companion connections of QPs", SocketAddr::new(ip, port));
        self.arrivals.listening.push(Listening { ip, fd, port });
        Ok(port)
    }

    /// The next client at this listening socket and its address, if there is one.
    fn accept(&mut self, listener: i32) -> Option<(i32, Option<IpAddr>)> {
        let (nobody, flags) = (core::ptr::null_mut(), SOCK_CLOEXEC | SOCK_NONBLOCK);
        match raw::accept4(listener, nobody, core::ptr::null_mut(), flags) {
            Ok(fd) => {
                let fd = private::raise(fd);
                Some((fd, addr::peer_of(fd).map(|a| a.ip().to_canonical())))
            }
            // Whatever it was, the socket is still readable if another client is there.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => None,
            // Without a descriptor for the client, the socket would wake the thread over and over.
            Err(_) => {
                self.arrivals.deaf = self.watch(EPOLL_CTL_MOD, listener, 0, KIND | listener as u64).is_ok();
                None
            }
        }
    }

    /// Done once in a while: listens again, since there may be descriptors by now.
    pub(super) fn listen_again(&mut self) {
        if !core::mem::take(&mut self.arrivals.deaf) {
            return;
        }
        for l in &self.arrivals.listening {
            let _ = raw::epoll_ctl(self.epoll, EPOLL_CTL_MOD, l.fd, EPOLLIN as u32, KIND | l.fd as u64);
        }
    }

    /// Lets a client in until it has identified itself.
    fn admit(&mut self, fd: i32, ip: IpAddr) {
        let watched = self.watch(EPOLL_CTL_ADD, fd, EPOLLIN, (2 * KIND) | fd as u64);
        if watched.is_err() {
            return private::close(fd);
        }
        self.arrivals.strangers.push_back(Stranger { fd, ip, since: time::now(), said: Vec::with_capacity(HELLO) });
    }

    /// The client that makes room for one from `ip`, if there are too many.
    fn displaced_by(&self, ip: IpAddr) -> Option<i32> {
        let silent = |s: &Stranger| Silent { id: s.fd as usize, ip: s.ip, since: s.since };
        let all: Vec<Silent> = self.arrivals.strangers.iter().map(silent).collect();
        displaced(&all, ip, STRANGERS).map(|s| s.id as i32)
    }

    /// Drops the clients for which `stays` is false.
    fn keep_strangers(&mut self, stays: impl Fn(&Stranger) -> bool) {
        let epoll = self.epoll;
        self.arrivals.strangers.retain(|s| {
            let stays = stays(s);
            if !stays {
                forget(epoll, s.fd);
            }
            stays
        });
    }

    /// Closes the listening sockets at addresses for which `stays` is false.
    fn keep_listening(&mut self, stays: impl Fn(IpAddr) -> bool) {
        let epoll = self.epoll;
        self.arrivals.listening.retain(|l| {
            let stays = stays(l.ip);
            if !stays {
                crate::log!(Debug, "{}: no QP awaits a companion connection; closed", SocketAddr::new(l.ip, l.port));
                forget(epoll, l.fd);
            }
            stays
        });
    }

    /// Reads what a client that has not identified itself yet has sent. Once its hello is complete, returns the client
    /// and the token that the hello carries.
    fn hear(&mut self, fd: i32) -> Option<(Stranger, [u8; TOKEN])> {
        let at = self.arrivals.strangers.iter().position(|s| s.fd == fd)?;
        let s = self.arrivals.strangers.get_mut(at)?;
        let mut said = [0u8; HELLO];
        // No byte more than the hello is read: what follows belongs to the queue pair.
        let got = raw::recv(fd, said.as_mut_ptr(), HELLO - s.said.len(), libc::MSG_DONTWAIT);
        s.said.extend_from_slice(said.get(..got.unwrap_or(0))?);
        match got {
            Err(Errno::AGAIN | Errno::INTR) => return None,
            Ok(1..) if s.said.len() < HELLO => return None,
            _ => {}
        }
        let s = self.arrivals.strangers.remove(at)?;
        match s.said.first_chunk().and_then(wire::token) {
            Some(token) => Some((s, token)),
            None => {
                forget(self.epoll, s.fd);
                None
            }
        }
    }
}

/// Closes a watched descriptor. Closing it alone would leave it watched as long as a child that is about to execute a program
/// has a copy.
fn forget(epoll: i32, fd: i32) {
    let _ = raw::epoll_ctl(epoll, EPOLL_CTL_DEL, fd, 0, 0);
    private::close(fd);
}

impl Engine {
    /// Our address and the other side's, for each queue pair that waits for its companion.
    fn awaited(&self) -> Vec<(IpAddr, IpAddr)> {
        self.pipes.each().filter(|(_, e)| e.base.awaits().is_some()).filter_map(|(_, e)| e.ips).collect()
    }

    /// Clients have connected to this listening socket: lets a few of them in. The socket stays readable while there
    /// are more.
    pub(super) fn accept_companions(&mut self, listener: i32) {
        if !self.bases.arrivals.listening.iter().any(|l| l.fd == listener) {
            return;
        }
        let awaited = self.awaited();
        for _ in 0..COMPANIONS_PER_PASS {
            let Some((fd, ip)) = self.bases.accept(listener) else { return };
            let Some(ip) = ip.filter(|ip| awaited.iter().any(|(_, theirs)| theirs == ip)) else {
                private::close(fd);
                continue;
            };
            if let Some(victim) = self.bases.displaced_by(ip) {
                // The victim may have identified itself by now, which makes room as well.
                self.hear_stranger(victim);
                self.bases.keep_strangers(|s| s.fd != victim);
            }
            crate::carrier::base::without_delay(fd);
            self.bases.admit(fd, ip);
        }
    }

    pub(super) fn hear_stranger(&mut self, fd: i32) {
        if let Some((stranger, token)) = self.bases.hear(fd) {
            self.welcome(&stranger, &token);
        }
    }

    /// Gives a companion that has come to its queue pair.
    fn welcome(&mut self, stranger: &Stranger, token: &[u8; TOKEN]) {
        let is = |e: &Entry| e.base.awaits() == Some(token) && e.ips.is_some_and(|(_, theirs)| theirs == stranger.ip);
        let found = self.pipes.each().find(|(_, e)| is(e)).map(|(at, _)| at);
        let Some(at) = found else { return forget(self.bases.epoll, stranger.fd) };
        let name = u64::from(tag(&self.pipes, at));
        let said = wire::welcome();
        let welcomed = self.bases.watch(EPOLL_CTL_MOD, stranger.fd, EPOLLIN, name).is_ok()
            && raw::send(stranger.fd, said.as_ptr(), WELCOME, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) == Ok(WELCOME);
        if welcomed {
            self.base_is_there(at, stranger.fd);
        } else {
            private::close(stranger.fd);
            self.lose_base(at);
        }
    }

    /// Companion connections that came to the program's own port, and that it was not given.
    pub(super) fn take_guests(&mut self) {
        while let Some(fd) = own_port::next(self.index) {
            let from = addr::peer_of(fd).map(|a| a.ip().to_canonical());
            let Some(ip) =
                from.filter(|_| self.bases.watch(EPOLL_CTL_ADD, fd, EPOLLIN, (2 * KIND) | fd as u64).is_ok())
            else {
                private::close(fd);
                continue;
            };
            crate::carrier::base::without_delay(fd);
            self.bases.arrivals.strangers.push_back(Stranger { fd, ip, since: time::now(), said: Vec::new() });
            self.hear_stranger(fd);
        }
    }

    /// Closes what is not needed any more: where no queue pair waits for its companion nobody can connect, and no
    /// client waits to be heard.
    pub(super) fn close_unawaited(&mut self) {
        if !self.bases.arrivals.has_any() {
            return;
        }
        let (awaited, now) = (self.awaited(), time::now());
        self.bases.keep_listening(|ip| awaited.iter().any(|(ours, _)| *ours == ip));
        self.bases.keep_strangers(|s| {
            now.saturating_sub(s.since) <= COMPANION_CONNECT && awaited.iter().any(|(_, theirs)| *theirs == s.ip)
        });
    }
}

impl Base {
    /// The token of the companion that the other side is to connect, if it is to connect one.
    pub(super) fn awaits(&self) -> Option<&[u8; TOKEN]> {
        match self {
            Base::Awaited(token, _) => Some(token),
            _ => None,
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
    fn client(bases: &mut Bases, port: u16) -> (TcpStream, i32) {
        let client = TcpStream::connect((HERE, port)).unwrap();
        let listener = bases.arrivals.listening[0].fd;
        let (fd, ip) = bases.accept(listener).unwrap();
        bases.admit(fd, ip.unwrap());
        (client, fd)
    }

    #[test]
    fn a_listening_socket_is_open_while_it_is_wanted() {
        let mut bases = Bases::default();
        let port = bases.listen(HERE).unwrap();
        assert_eq!(bases.listen(HERE), Ok(port));
        let (_client, _) = client(&mut bases, port);
        bases.keep_listening(|_| true);
        bases.keep_strangers(|_| true);
        assert!(bases.arrivals.has_any() && TcpStream::connect((HERE, port)).is_ok());
        bases.keep_listening(|_| false);
        bases.keep_strangers(|_| false);
        assert!(!bases.arrivals.has_any() && TcpStream::connect((HERE, port)).is_err());
        private::close(bases.epoll);
    }

    #[test]
    fn a_client_that_sends_anything_but_a_hello_is_dropped() {
        let mut bases = Bases::default();
        let port = bases.listen(HERE).unwrap();
        for (said, token) in [(wire::hello(&[7; TOKEN]), Some([7; TOKEN])), ([7; HELLO], None)] {
            let (mut client, fd) = client(&mut bases, port);
            client.write_all(&said[..10]).unwrap();
            assert!(bases.hear(fd).is_none() && bases.arrivals.strangers.len() == 1);
            client.write_all(&said[10..]).unwrap();
            let heard = bases.hear(fd);
            assert_eq!(heard.as_ref().map(|(_, token)| *token), token);
            assert!(bases.arrivals.strangers.is_empty());
            heard.into_iter().for_each(|(s, _)| private::close(s.fd));
        }
        bases.keep_listening(|_| false);
        private::close(bases.epoll);
    }

    #[test]
    fn the_oldest_of_too_many_from_one_address_makes_room() {
        let mut bases = Bases::default();
        let port = bases.listen(HERE).unwrap();
        let mut clients = Vec::new();
        for _ in 0..STRANGERS.per_address {
            assert_eq!(bases.displaced_by(HERE), None);
            clients.push(client(&mut bases, port));
        }
        assert_eq!(bases.displaced_by(HERE), clients.first().map(|(_, fd)| *fd));
        assert_eq!(bases.displaced_by(Ipv4Addr::new(10, 0, 0, 1).into()), None);
        bases.keep_listening(|_| false);
        bases.keep_strangers(|_| false);
        private::close(bases.epoll);
    }
}
