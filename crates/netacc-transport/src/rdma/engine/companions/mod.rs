//! The TCP connection beside each queue pair, its companion connection ([`netacc_wire::companion`]): how it is made,
//! and how it is lost.
//!
//! While a queue pair is to have its companion connection the server's engine waits for it at a port that the kernel
//! chooses ([`arrivals`](crate::rdma::engine::companions::arrivals)). That port and a token go to the client while the
//! queue pair is connected, so a companion connection is found by nobody else. Where a packet filter closes that port,
//! the client comes to the listener's own port, if the server says by the queue pair that it may
//! ([`own_port`](crate::rdma::engine::companions::own_port)). How the client goes about it is in
//! [`client`](crate::rdma::engine::companions::client).
//!
//! Companion connections are made by the thread, which sleeps on one epoll instance for all of them: those that nobody
//! needs cost nothing.

pub(super) mod arrivals;
pub(super) mod attempt;
mod client;
pub(super) mod companion;
mod handover;
pub(super) mod own_port;
pub(super) mod watch;

use crate::host::host;
use crate::limits::COMPANIONS_PER_PASS;
use crate::num;
use crate::rdma::engine::companions::arrivals::{Arrivals, Stranger};
use crate::rdma::engine::companions::attempt::COMPANION_CONNECT;
use crate::rdma::engine::companions::companion::Companion;
use crate::rdma::engine::companions::handover::Handover;
use crate::rdma::engine::companions::watch::{KIND, Watch};
use crate::rdma::engine::qp::{QpRecord, RESETS, tag};
use crate::rdma::engine::qps::Qps;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use libc::{EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT};
use netacc_sys::addr;
use netacc_sys::{raw, reserved_fds, time};
use netacc_wire::companion::{self as wire, OwnPort, TOKEN, WELCOME};
use netacc_wire::frame::{Frame, Kind};
use rustix::rand::{GetRandomFlags, getrandom};

/// What all companion connections share.
#[derive(Debug, Default)]
pub(super) struct Companions {
    /// The epoll instance by which the thread is notified of them.
    pub watch: Watch,
    pub arrivals: Arrivals,
    /// Where companions come from that other processes have accepted.
    pub handover: Handover,
    /// Servers whose own port was the only one that the client's companion connections got through to.
    pub filtered: Vec<IpAddr>,
    /// Queue pairs that have failed.
    pub failed_over: Vec<usize>,
    /// The payload of a message that came by TCP.
    pub scratch: Vec<u8>,
}

/// What an event leaves to the engine.
#[derive(Clone, Copy, Debug)]
pub(super) enum Heard {
    Nothing,
    /// Something is asked at a door with this descriptor, if it is one still.
    Door(i32),
    /// The other side of this queue pair goes on by TCP.
    GoesOn(usize),
}

impl Companions {
    /// Server's host: what is said of the companion connection of queue pair `at`, for which the client asks with
    /// `asked`.
    pub fn offer(&mut self, qps: &mut Qps, at: usize, asked: wire::CompanionOffer) -> wire::CompanionOffer {
        let mut token = [0u8; TOKEN];
        let wanted = qps.limits.tcp_companion && asked == wire::CompanionOffer::Wanted;
        let Some(qp) = qps.table.get_mut(at).filter(|_| wanted) else { return wire::CompanionOffer::None };
        let Some((ours, _)) = qp.ips else { return wire::CompanionOffer::None };
        if getrandom(&mut token, GetRandomFlags::empty()) != Ok(TOKEN) {
            return wire::CompanionOffer::None;
        }
        match self.arrivals.listen(&mut self.watch, ours) {
            Ok(port) => {
                qp.companion = Companion::Awaited(token, time::now());
                wire::CompanionOffer::At(port, token)
            }
            Err(e) => {
                netacc_log::log!(Info, "no TCP connections beside queue pairs: {e}");
                wire::CompanionOffer::None
            }
        }
    }

    /// What the epoll instance has now.
    pub fn events(&self) -> impl Iterator<Item = u64> + use<> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
        let n = raw::epoll_wait(self.watch.epoll, events.as_mut_ptr(), 32, 0, core::ptr::null()).unwrap_or(0);
        events.into_iter().take(n).map(|event| event.u64)
    }

    /// Handles an event of the epoll instance.
    pub fn on_event(&mut self, qps: &mut Qps, what: u64) -> Heard {
        let low = num::low_half(what);
        let fd = low.cast_signed();
        match what / KIND {
            0 => return self.on_companion_event(qps, low),
            1 => self.accept(qps, fd),
            // It may have been closed since, and the number be another one's.
            3 => return Heard::Door(fd),
            4 => self.accept_couriers(qps, fd),
            5 => self.on_courier(qps, fd),
            _ => self.on_stranger_data(qps, fd),
        }
        Heard::Nothing
    }

    /// Something has happened to the companion connection of the queue pair with this tag.
    fn on_companion_event(&mut self, qps: &mut Qps, name: u32) -> Heard {
        let at = name as usize & 0xff_ffff;
        if tag(&qps.table, at) != name {
            return Heard::Nothing;
        }
        let Some(qp) = qps.table.get(at) else { return Heard::Nothing };
        match &qp.companion {
            Companion::Connecting(_) => self.attempt_has_news(qps, at),
            // If that is its end, the queue pair says what else has ended.
            Companion::Ready(fd) => {
                let (fd, mut byte) = (*fd, 0u8);
                let peek = libc::MSG_DONTWAIT | libc::MSG_PEEK;
                if !qps.seems_gone(at) && raw::recv(fd, &raw mut byte, 1, peek).is_ok() {
                    return Heard::GoesOn(at);
                }
            }
            // A failed queue pair's is looked at in every round.
            Companion::None | Companion::Awaited(..) => {}
        }
        Heard::Nothing
    }

    /// Clients have connected to this listening socket: lets a few of them in. The socket stays readable while there
    /// are more.
    fn accept(&mut self, qps: &mut Qps, listener: i32) {
        if !self.arrivals.has(listener) {
            return;
        }
        let awaited = qps.awaiting();
        for _ in 0..COMPANIONS_PER_PASS {
            let Some((fd, ip)) = self.arrivals.accept(&mut self.watch, listener) else { return };
            let Some(ip) = ip.filter(|ip| awaited.iter().any(|(_, theirs)| theirs == ip)) else {
                reserved_fds::close(fd);
                continue;
            };
            if let Some(victim) = self.arrivals.evicted_by(ip) {
                // The victim may have identified itself by now, which makes room as well.
                self.on_stranger_data(qps, victim);
                self.arrivals.keep_strangers(&self.watch, |s| s.fd != victim);
            }
            self.arrivals.admit(&mut self.watch, fd, ip);
        }
    }

    fn on_stranger_data(&mut self, qps: &mut Qps, fd: i32) {
        if let Some((stranger, token)) = self.arrivals.receive(&self.watch, fd) {
            self.welcome(qps, &stranger, &token);
        }
    }

    /// Gives a companion that has come to its queue pair.
    fn welcome(&mut self, qps: &mut Qps, stranger: &Stranger, token: &[u8; TOKEN]) {
        let is = |e: &QpRecord| {
            e.companion.awaits() == Some(token) && e.ips.is_some_and(|(_, theirs)| theirs == stranger.ip)
        };
        let found = qps.table.each().find(|(_, e)| is(e)).map(|(at, _)| at);
        let Some(at) = found else { return self.watch.forget(stranger.fd) };
        let name = u64::from(tag(&qps.table, at));
        let said = wire::welcome();
        let welcomed = self.watch.ctl(EPOLL_CTL_MOD, stranger.fd, EPOLLIN, name).is_ok()
            && raw::send(stranger.fd, said.as_ptr(), WELCOME, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) == Ok(WELCOME);
        if welcomed {
            qps.companion_ready(at, stranger.fd);
        } else {
            reserved_fds::close(stranger.fd);
            qps.drop_companion(at);
        }
    }

    /// Companion connections that came to the program's own port, and that it was not given.
    pub fn take_guests(&mut self, qps: &mut Qps) {
        while let Some(fd) = own_port::next(qps.index) {
            self.admit_guest(qps, fd);
        }
    }

    /// Admits a companion that connected to the program's own port; its token is read again.
    fn admit_guest(&mut self, qps: &mut Qps, fd: i32) {
        let Some(from) = addr::peer_of(fd) else { return reserved_fds::close(fd) };
        if self.arrivals.admit(&mut self.watch, fd, from.ip().to_canonical()) {
            self.on_stranger_data(qps, fd);
        }
    }

    /// Processes have connected to pass companions. The socket stays readable while there are more.
    fn accept_couriers(&mut self, qps: &mut Qps, socket: i32) {
        if !self.handover.is_at(socket) {
            return;
        }
        for _ in 0..COMPANIONS_PER_PASS {
            match self.handover.next_courier(&mut self.watch) {
                Some(courier) => self.on_courier(qps, courier),
                None => return,
            }
        }
    }

    /// A process that has connected has passed something, or has ended.
    fn on_courier(&mut self, qps: &mut Qps, courier: i32) {
        if self.handover.has(courier)
            && let Some(companion) = self.handover.take(&self.watch, courier)
        {
            self.admit_guest(qps, companion);
        }
    }

    /// Whether something here has to be looked at once in a while.
    pub fn awaits_any(&self) -> bool {
        self.arrivals.has_any() || self.handover.fds().next().is_some()
    }

    /// Closes what is not needed any more: where no queue pair waits for its companion nobody can connect, and no
    /// client waits to be heard.
    pub fn close_unawaited(&mut self, qps: &Qps) {
        if !self.awaits_any() {
            return;
        }
        let (awaited, now) = (qps.awaiting(), time::now());
        self.arrivals.keep_listening(&self.watch, |ip| awaited.iter().any(|(ours, _)| *ours == ip));
        if awaited.is_empty() {
            self.handover.close(&self.watch);
        }
        self.arrivals.keep_strangers(&self.watch, |s| {
            now.saturating_sub(s.since) <= COMPANION_CONNECT && awaited.iter().any(|(_, theirs)| *theirs == s.ip)
        });
    }

    /// Handles a client's request to connect its companion to the listener's own port, or a server's answer to it.
    /// False: the other side broke the rules.
    pub fn own_port(&mut self, qps: &mut Qps, at: usize, frame: Frame) -> bool {
        let Some(qp) = qps.table.get_mut(at) else { return true };
        if qp.route.is_some() {
            return OwnPort::of(frame.generation).is_some_and(|answer| self.own_port_answered(qps, at, answer));
        }
        if qp.resets.len() >= RESETS {
            // The peer keeps sending requests and leaves no room for the answer.
            return false;
        }
        let address = qp.ips.map(|(ours, _)| SocketAddr::new(ours, qp.port));
        let awaited = address.zip(qp.companion.awaits().copied());
        let answer = awaited.map_or(OwnPort::Closed, |(to, token)| self.await_at_own_port(qps.index, to, &token));
        let generation = answer.code();
        let Some(qp) = qps.table.get_mut(at) else { return true };
        qp.resets.push_back(Frame {
            kind: Kind::OwnPort,
            credits: 0,
            large: false,
            conn: 0,
            generation,
            window: 0,
            acked: 0,
            next: 0,
        });
        true
    }

    /// Awaits a companion at the listener's own port, if it may come there. Where the client asks once more it is
    /// awaited already.
    fn await_at_own_port(&mut self, index: usize, to: SocketAddr, token: &[u8; TOKEN]) -> OwnPort {
        let answer = host().map_or(OwnPort::Closed, |host| host.takes_companions(to));
        own_port::give_up(token);
        if answer != OwnPort::Come {
            return answer;
        }
        let Some(owner) = own_port::place_of(index) else { return OwnPort::Closed };
        // Also where no other process has the listener: a child may get it before the companion comes.
        if let Err(e) = self.handover.open(&mut self.watch, owner) {
            netacc_log::log!(Info, "companion TCP connections cannot come from other processes ({e})");
        }
        own_port::expect(token, owner);
        answer
    }

    /// Whether the thread is to be told when the kernel takes more of what goes by a failed queue pair's companion.
    pub fn watch_failover(&mut self, qps: &Qps, at: usize, fd: i32, full: bool) {
        let events = EPOLLIN | if full { EPOLLOUT } else { 0 };
        let _ = self.watch.ctl(EPOLL_CTL_MOD, fd, events, u64::from(tag(&qps.table, at)));
    }

    /// The descriptors of all that has to do with companion connections.
    pub fn fds<'a>(&'a self, qps: &'a Qps) -> impl Iterator<Item = i32> + 'a {
        let companions = qps.table.each().flat_map(|(_, e)| e.companion_fds());
        let ways = self.arrivals.fds().chain(self.handover.fds());
        [self.watch.epoll].into_iter().chain(ways).chain(companions).filter(|fd| *fd >= 0)
    }
}
