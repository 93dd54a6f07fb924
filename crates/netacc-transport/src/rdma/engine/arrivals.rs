//! Server's host: companion connections that arrive. A listening socket is open only while a queue pair waits for its
//! companion, clients of other addresses are not let in, and only a few may be there that have not sent their token
//! yet.
//!
//! Anybody may connect there, so the engine's lock is held for a few of them at a time.

use crate::limits::COMPANIONS_PER_PASS;
use crate::rdma::engine::admission::{Bounds, Silent, evicted};
use crate::rdma::engine::companion::{COMPANION_CONNECT, Companion, Companions, KIND};
use crate::rdma::engine::handover::Handover;
use crate::rdma::engine::own_port;
use crate::rdma::engine::qp::{QpRecord, tag};
use crate::rdma::engine::worker::Engine;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM};
use netacc_sys::addr;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{raw, reserved_fds, time};
use netacc_wire::companion::{self as wire, HELLO, TOKEN, WELCOME};

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
    /// Where companions come from that other processes have accepted.
    pub handover: Handover,
}

impl Arrivals {
    /// The descriptors of all of them.
    pub fn fds(&self) -> impl Iterator<Item = i32> {
        self.listening.iter().map(|l| l.fd).chain(self.strangers.iter().map(|s| s.fd)).chain(self.handover.fds())
    }

    /// Whether something here has to be looked at once in a while.
    pub fn has_any(&self) -> bool {
        !self.listening.is_empty() || !self.strangers.is_empty() || self.handover.fds().next().is_some()
    }
}

impl Companions {
    /// The port at which companions of queue pairs at `ip` are awaited.
    pub(super) fn listen(&mut self, ip: IpAddr) -> Result<u16> {
        if let Some(l) = self.arrivals.listening.iter().find(|l| l.ip == ip) {
            return Ok(l.port);
        }
        let fd = reserved_fds::raise(raw::socket(addr::domain(ip), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)?);
        let opened = addr::with(SocketAddr::new(ip, 0), |p, n| raw::bind(fd, p, n))
            .and_then(|()| raw::listen(fd, 128))
            .and_then(|()| addr::local_of(fd).ok_or(Errno::NOTCONN))
            .and_then(|local| self.epoll_ctl(EPOLL_CTL_ADD, fd, EPOLLIN, KIND | fd as u64).map(|()| local.port()));
        let port = opened.inspect_err(|_| reserved_fds::close(fd))?;
        netacc_log::log!(Debug, "{}: listening for companion connections of QPs", SocketAddr::new(ip, port));
        self.arrivals.listening.push(Listening { ip, fd, port });
        Ok(port)
    }

    /// The next client at this listening socket and its address, if there is one.
    fn accept(&mut self, listener: i32) -> Option<(i32, Option<IpAddr>)> {
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
                self.arrivals.deaf = self.epoll_ctl(EPOLL_CTL_MOD, listener, 0, KIND | listener as u64).is_ok();
                None
            }
        }
    }

    /// Done once in a while: listens again, since there may be descriptors by now.
    pub(super) fn retry_listen(&mut self) {
        if !core::mem::take(&mut self.arrivals.deaf) {
            return;
        }
        for l in &self.arrivals.listening {
            let _ = raw::epoll_ctl(self.epoll, EPOLL_CTL_MOD, l.fd, EPOLLIN as u32, KIND | l.fd as u64);
        }
    }

    /// Lets a client in until it has identified itself.
    fn admit(&mut self, fd: i32, ip: IpAddr) {
        let watched = self.epoll_ctl(EPOLL_CTL_ADD, fd, EPOLLIN, (2 * KIND) | fd as u64);
        if watched.is_err() {
            return reserved_fds::close(fd);
        }
        self.arrivals.strangers.push_back(Stranger { fd, ip, since: time::now(), said: Vec::with_capacity(HELLO) });
    }

    /// The client that makes room for one from `ip`, if there are too many.
    fn evicted_by(&self, ip: IpAddr) -> Option<i32> {
        let silent = |s: &Stranger| Silent { id: s.fd as usize, ip: s.ip, since: s.since };
        let all: Vec<Silent> = self.arrivals.strangers.iter().map(silent).collect();
        evicted(&all, ip, STRANGERS).map(|s| s.id as i32)
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
                netacc_log::log!(
                    Debug,
                    "{}: no QP awaits a companion connection; closed",
                    SocketAddr::new(l.ip, l.port)
                );
                forget(epoll, l.fd);
            }
            stays
        });
    }

    /// Reads what a client that has not identified itself yet has sent. Once its hello is complete, returns the client
    /// and the token that the hello carries.
    fn receive(&mut self, fd: i32) -> Option<(Stranger, [u8; TOKEN])> {
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
pub(super) fn forget(epoll: i32, fd: i32) {
    let _ = raw::epoll_ctl(epoll, EPOLL_CTL_DEL, fd, 0, 0);
    reserved_fds::close(fd);
}

impl Engine {
    /// Our address and the other side's, for each queue pair that waits for its companion.
    fn awaited(&self) -> Vec<(IpAddr, IpAddr)> {
        self.qps.each().filter(|(_, e)| e.companion.awaits().is_some()).filter_map(|(_, e)| e.ips).collect()
    }

    /// Clients have connected to this listening socket: lets a few of them in. The socket stays readable while there
    /// are more.
    pub(super) fn accept_companions(&mut self, listener: i32) {
        if !self.companions.arrivals.listening.iter().any(|l| l.fd == listener) {
            return;
        }
        let awaited = self.awaited();
        for _ in 0..COMPANIONS_PER_PASS {
            let Some((fd, ip)) = self.companions.accept(listener) else { return };
            let Some(ip) = ip.filter(|ip| awaited.iter().any(|(_, theirs)| theirs == ip)) else {
                reserved_fds::close(fd);
                continue;
            };
            if let Some(victim) = self.companions.evicted_by(ip) {
                // The victim may have identified itself by now, which makes room as well.
                self.on_stranger_data(victim);
                self.companions.keep_strangers(|s| s.fd != victim);
            }
            crate::rdma::engine::companion::without_delay(fd);
            self.companions.admit(fd, ip);
        }
    }

    pub(super) fn on_stranger_data(&mut self, fd: i32) {
        if let Some((stranger, token)) = self.companions.receive(fd) {
            self.welcome(&stranger, &token);
        }
    }

    /// Gives a companion that has come to its queue pair.
    fn welcome(&mut self, stranger: &Stranger, token: &[u8; TOKEN]) {
        let is = |e: &QpRecord| {
            e.companion.awaits() == Some(token) && e.ips.is_some_and(|(_, theirs)| theirs == stranger.ip)
        };
        let found = self.qps.each().find(|(_, e)| is(e)).map(|(at, _)| at);
        let Some(at) = found else { return forget(self.companions.epoll, stranger.fd) };
        let name = u64::from(tag(&self.qps, at));
        let said = wire::welcome();
        let welcomed = self.companions.epoll_ctl(EPOLL_CTL_MOD, stranger.fd, EPOLLIN, name).is_ok()
            && raw::send(stranger.fd, said.as_ptr(), WELCOME, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) == Ok(WELCOME);
        if welcomed {
            self.companion_ready(at, stranger.fd);
        } else {
            reserved_fds::close(stranger.fd);
            self.drop_companion(at);
        }
    }

    /// Companion connections that came to the program's own port, and that it was not given.
    pub(super) fn take_guests(&mut self) {
        while let Some(fd) = own_port::next(self.index) {
            self.admit_guest(fd);
        }
    }

    /// Lets a companion in that came to the program's own port; what it has said is read again.
    pub(super) fn admit_guest(&mut self, fd: i32) {
        let from = addr::peer_of(fd).map(|a| a.ip().to_canonical());
        let Some(ip) =
            from.filter(|_| self.companions.epoll_ctl(EPOLL_CTL_ADD, fd, EPOLLIN, (2 * KIND) | fd as u64).is_ok())
        else {
            return reserved_fds::close(fd);
        };
        crate::rdma::engine::companion::without_delay(fd);
        self.companions.arrivals.strangers.push_back(Stranger { fd, ip, since: time::now(), said: Vec::new() });
        self.on_stranger_data(fd);
    }

    /// Closes what is not needed any more: where no queue pair waits for its companion nobody can connect, and no
    /// client waits to be heard.
    pub(super) fn close_unawaited(&mut self) {
        if !self.companions.arrivals.has_any() {
            return;
        }
        let (awaited, now) = (self.awaited(), time::now());
        self.companions.keep_listening(|ip| awaited.iter().any(|(ours, _)| *ours == ip));
        if awaited.is_empty() {
            self.companions.close_handover();
        }
        self.companions.keep_strangers(|s| {
            now.saturating_sub(s.since) <= COMPANION_CONNECT && awaited.iter().any(|(_, theirs)| *theirs == s.ip)
        });
    }
}

impl Companion {
    /// The token of the companion that the other side is to connect, if it is to connect one.
    pub(super) fn awaits(&self) -> Option<&[u8; TOKEN]> {
        match self {
            Companion::Awaited(token, _) => Some(token),
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
    fn client(companions: &mut Companions, port: u16) -> (TcpStream, i32) {
        let client = TcpStream::connect((HERE, port)).unwrap();
        let listener = companions.arrivals.listening[0].fd;
        let (fd, ip) = companions.accept(listener).unwrap();
        companions.admit(fd, ip.unwrap());
        (client, fd)
    }

    #[test]
    fn a_listening_socket_is_open_while_it_is_wanted() {
        let mut companions = Companions::default();
        let port = companions.listen(HERE).unwrap();
        assert_eq!(companions.listen(HERE), Ok(port));
        let (_client, _) = client(&mut companions, port);
        companions.keep_listening(|_| true);
        companions.keep_strangers(|_| true);
        assert!(companions.arrivals.has_any() && TcpStream::connect((HERE, port)).is_ok());
        companions.keep_listening(|_| false);
        companions.keep_strangers(|_| false);
        assert!(!companions.arrivals.has_any() && TcpStream::connect((HERE, port)).is_err());
        reserved_fds::close(companions.epoll);
    }

    #[test]
    fn a_client_that_sends_anything_but_a_hello_is_dropped() {
        let mut companions = Companions::default();
        let port = companions.listen(HERE).unwrap();
        for (said, token) in [(wire::hello(&[7; TOKEN]), Some([7; TOKEN])), ([7; HELLO], None)] {
            let (mut client, fd) = client(&mut companions, port);
            client.write_all(&said[..10]).unwrap();
            assert!(companions.receive(fd).is_none() && companions.arrivals.strangers.len() == 1);
            client.write_all(&said[10..]).unwrap();
            let heard = companions.receive(fd);
            assert_eq!(heard.as_ref().map(|(_, token)| *token), token);
            assert!(companions.arrivals.strangers.is_empty());
            heard.into_iter().for_each(|(s, _)| reserved_fds::close(s.fd));
        }
        companions.keep_listening(|_| false);
        reserved_fds::close(companions.epoll);
    }

    #[test]
    fn the_oldest_of_too_many_from_one_address_makes_room() {
        let mut companions = Companions::default();
        let port = companions.listen(HERE).unwrap();
        let mut clients = Vec::new();
        for _ in 0..STRANGERS.per_address {
            assert_eq!(companions.evicted_by(HERE), None);
            clients.push(client(&mut companions, port));
        }
        assert_eq!(companions.evicted_by(HERE), clients.first().map(|(_, fd)| *fd));
        assert_eq!(companions.evicted_by(Ipv4Addr::new(10, 0, 0, 1).into()), None);
        companions.keep_listening(|_| false);
        companions.keep_strangers(|_| false);
        reserved_fds::close(companions.epoll);
    }
}
