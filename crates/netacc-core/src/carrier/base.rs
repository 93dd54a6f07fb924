//! The TCP connection beside each queue pair, its base ([`netacc_wire::base`]): how it is made, and how it is lost.
//!
//! The server's carrier waits at a port of its own for each of its addresses, which the kernel chooses. That port and a
//! token go to the client while the queue pair is connected, so a base is found by nobody else, and a program's listener
//! never sees it. Bases are made by the thread, which sleeps on one epoll instance for all of them: those that nobody needs
//! cost nothing.

use crate::addr;
use crate::carrier::engine::Engine;
use crate::carrier::entry::{Entry, Stage, tag};
use crate::carrier::knock;
use crate::carrier::moved::REMOVALS;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::Ordering;
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{private, raw, time};
use netacc_verbs::cm::OpenDevice;
use netacc_wire::base::{self as wire, HELLO, TOKEN};
use rustix::rand::{GetRandomFlags, getrandom};

/// A base that is not there after so long (ns) is not waited for.
pub(super) const PATIENCE: u64 = 5_000_000_000;
/// When a base has ended, its queue pair does so within this time (ns), or it goes on without.
const DOUBT: u64 = 1_000_000_000;
/// Clients that have not said who they are: of more, the oldest goes.
const STRANGERS: usize = 64;

/// What an event of the epoll instance is about: a queue pair's base, a listener, a stranger.
const KIND: u64 = 1 << 32;

/// A queue pair's base.
#[derive(Debug)]
pub(super) enum Base {
    /// There is none.
    None,
    /// The other side is to connect it, with this token, and began to when the clock said so (ns).
    Awaited([u8; TOKEN], u64),
    /// It is being connected, since then; the other side is to be told this token.
    Connecting(i32, [u8; TOKEN], u64),
    /// It is there.
    Ready(i32),
}

impl Base {
    fn fd(&self) -> Option<i32> {
        match self {
            Base::Connecting(fd, ..) | Base::Ready(fd) => Some(*fd),
            Base::None | Base::Awaited(..) => None,
        }
    }

    /// It is not needed any more.
    pub fn close(&mut self) {
        if let Some(fd) = core::mem::replace(self, Base::None).fd() {
            private::close(fd);
        }
    }

    /// Its socket, which the caller has then; -1 if it is still to come. `None`: there is none.
    pub fn take(&mut self) -> Option<i32> {
        match *self {
            Base::None => None,
            Base::Awaited(..) | Base::Connecting(..) => Some(-1),
            Base::Ready(fd) => {
                *self = Base::None;
                Some(fd)
            }
        }
    }

    /// Whether it is there or on its way.
    pub fn is_hoped_for(&self) -> bool {
        !matches!(self, Base::None)
    }

    /// It should be there by now.
    pub fn is_late(&self, now: u64) -> bool {
        match self {
            Base::Awaited(_, since) | Base::Connecting(_, _, since) => now.saturating_sub(*since) > PATIENCE,
            Base::None | Base::Ready(_) => false,
        }
    }
}

/// What all bases share.
#[derive(Debug)]
pub(super) struct Bases {
    /// Where the thread hears of them, or -1.
    pub epoll: i32,
    /// Our addresses, with a listener and its port.
    listeners: Vec<(IpAddr, i32, u16)>,
    strangers: VecDeque<Stranger>,
    /// A listener is not heard, since there was no descriptor for who came.
    deaf: bool,
    /// Queue pairs that have failed.
    pub moved: Vec<usize>,
    /// Descriptors of devices that are removed and that librdmacm may still have open.
    pub removed: Vec<i32>,
    /// Devices that librdmacm had open when it was asked last.
    pub open: Vec<OpenDevice>,
    /// So often that is to be looked for.
    pub releases: u32,
    /// The host's devices at the last look ([`devices_there`](super::sysfs::devices_there)).
    pub there: u64,
    /// Removals that this engine knows of.
    pub removals: u32,
    /// The payload of a message that came by TCP.
    pub scratch: Vec<u8>,
}

impl Default for Bases {
    fn default() -> Bases {
        Bases {
            epoll: -1,
            listeners: Vec::new(),
            strangers: VecDeque::new(),
            deaf: false,
            moved: Vec::new(),
            removed: Vec::new(),
            open: Vec::new(),
            releases: 0,
            there: 0,
            removals: REMOVALS.load(Ordering::Relaxed),
            scratch: Vec::new(),
        }
    }
}

/// Whoever has connected and not said which queue pair's base it is.
#[derive(Debug)]
struct Stranger {
    fd: i32,
    ip: Option<IpAddr>,
    said: Vec<u8>,
}

/// A socket of our own at `ip`.
fn socket_at(ip: IpAddr) -> Result<i32> {
    let fd = private::raise(raw::socket(addr::domain(ip), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)?);
    // The port of one that connects need only be free towards its destination.
    let _ = raw::setsockopt_int(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
    without_delay(fd);
    let bound = addr::with(SocketAddr::new(ip, 0), |p, n| raw::bind(fd, p, n));
    bound.map(|()| fd).inspect_err(|_| private::close(fd))
}

/// What goes by a base is whole messages: none waits until the one before is acknowledged (tcp(7)).
fn without_delay(fd: i32) {
    let _ = raw::setsockopt_int(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
}

impl Bases {
    /// The epoll instance, which is made if there is none.
    fn watch(&mut self, op: i32, fd: i32, events: i32, what: u64) -> Result<()> {
        if self.epoll < 0 {
            self.epoll = private::raise(raw::epoll_create1(libc::EPOLL_CLOEXEC)?);
        }
        raw::epoll_ctl(self.epoll, op, fd, events as u32, what)
    }

    /// The port at which we wait for the bases of queue pairs at `ip`.
    fn listen(&mut self, ip: IpAddr) -> Result<u16> {
        if let Some((_, _, port)) = self.listeners.iter().find(|(at, _, _)| *at == ip) {
            return Ok(*port);
        }
        let fd = private::raise(raw::socket(addr::domain(ip), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)?);
        let at = self.listeners.len() as u64;
        let opened = addr::with(SocketAddr::new(ip, 0), |p, n| raw::bind(fd, p, n))
            .and_then(|()| raw::listen(fd, 128))
            .and_then(|()| addr::local_of(fd).ok_or(Errno::NOTCONN))
            .and_then(|local| self.watch(EPOLL_CTL_ADD, fd, EPOLLIN, KIND | at).map(|()| local.port()));
        let port = opened.inspect_err(|_| private::close(fd))?;
        crate::log!(Info, "waits at {} for the TCP connections beside queue pairs", SocketAddr::new(ip, port));
        self.listeners.push((ip, fd, port));
        Ok(port)
    }

    /// The thread answers what is asked at this door.
    pub fn attend(&mut self, door: i32) -> Result<()> {
        self.watch(EPOLL_CTL_ADD, door, EPOLLIN, (3 * KIND) | door as u64)
    }

    /// A door is to be closed.
    pub fn leave(&self, door: i32) {
        // Not by closing it alone: a copy may be in a child that is about to execute a program.
        let _ = raw::epoll_ctl(self.epoll, libc::EPOLL_CTL_DEL, door, 0, 0);
        private::close(door);
    }

    /// One more has connected to listener `at`, if that is so.
    fn accept(&mut self, at: usize) -> bool {
        let Some((_, listener, _)) = self.listeners.get(at).copied() else { return false };
        let (nobody, flags) = (core::ptr::null_mut(), SOCK_CLOEXEC | SOCK_NONBLOCK);
        let fd = match raw::accept4(listener, nobody, core::ptr::null_mut(), flags) {
            Ok(fd) => private::raise(fd),
            Err(Errno::INTR | Errno::CONNABORTED) => return true,
            Err(Errno::AGAIN) => return false,
            // Without a descriptor for it, it would wake the thread over and over.
            Err(_) => {
                self.deaf = self.watch(EPOLL_CTL_MOD, listener, 0, KIND | at as u64).is_ok();
                return false;
            }
        };
        without_delay(fd);
        let ip = addr::peer_of(fd).map(|a| a.ip().to_canonical());
        self.strangers.push_back(Stranger { fd, ip, said: Vec::with_capacity(HELLO) });
        if self.watch(EPOLL_CTL_ADD, fd, EPOLLIN, (2 * KIND) | fd as u64).is_err() {
            self.strangers.pop_back();
            private::close(fd);
        }
        true
    }

    /// Whether some listener is not heard.
    pub fn is_deaf(&self) -> bool {
        self.deaf
    }

    /// Once in a while: there may be descriptors again.
    pub fn listen_again(&mut self) {
        if !core::mem::take(&mut self.deaf) {
            return;
        }
        for (at, (_, listener, _)) in self.listeners.iter().enumerate() {
            let _ = raw::epoll_ctl(self.epoll, EPOLL_CTL_MOD, *listener, EPOLLIN as u32, KIND | at as u64);
        }
    }

    /// A stranger has said something: who it is, if that is all.
    fn hear(&mut self, fd: i32) -> Option<(Stranger, [u8; TOKEN])> {
        let at = self.strangers.iter().position(|s| s.fd == fd)?;
        let s = self.strangers.get_mut(at)?;
        let mut said = [0u8; HELLO];
        // Not a byte more than that: what follows belongs to the queue pair.
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
                private::close(s.fd);
                None
            }
        }
    }
}

impl Engine {
    /// Server's host: what is said of the base of queue pair `at`, for which the client asks with `asked`.
    pub(super) fn offer_base(&mut self, at: usize, asked: wire::Base) -> wire::Base {
        let mut token = [0u8; TOKEN];
        let Some(entry) = self.pipes.get_mut(at).filter(|_| self.limits.tcp_base && asked == wire::Base::Wanted) else {
            return wire::Base::None;
        };
        let Some((ours, _)) = entry.ips else { return wire::Base::None };
        if getrandom(&mut token, GetRandomFlags::empty()) != Ok(TOKEN) {
            return wire::Base::None;
        }
        match self.bases.listen(ours) {
            Ok(port) => {
                entry.base = Base::Awaited(token, time::now());
                wire::Base::At(port, token)
            }
            Err(e) => {
                crate::log!(Info, "no TCP connections beside queue pairs: {e}");
                wire::Base::None
            }
        }
    }

    /// Client's host: the base of queue pair `at` begins to be connected, if the server waits for it.
    pub(super) fn connect_base(&mut self, at: usize, offered: wire::Base) {
        let wire::Base::At(port, token) = offered else { return };
        let name = u64::from(tag(&self.pipes, at));
        let Some(entry) = self.pipes.get_mut(at) else { return };
        let Some((ours, theirs)) = entry.ips else { return };
        let done = socket_at(ours).and_then(|fd| {
            let there = match addr::with(SocketAddr::new(theirs, port), |p, n| raw::connect(fd, p, n)) {
                Ok(()) | Err(Errno::INPROGRESS) => self.bases.watch(EPOLL_CTL_ADD, fd, EPOLLOUT, name),
                Err(e) => Err(e),
            };
            there.map(|()| fd).inspect_err(|_| private::close(fd))
        });
        match done {
            Ok(fd) => {
                entry.base = Base::Connecting(fd, token, time::now());
                if !entry.parts(&mut self.devices).is_some_and(|(pipe, _)| pipe.keep()) {
                    self.lose_base(at);
                }
            }
            Err(e) => crate::log!(Info, "no TCP connection beside a queue pair to {theirs}: {e}"),
        }
    }

    /// There will be no base: nothing is kept for it.
    pub(super) fn lose_base(&mut self, at: usize) {
        let Some(entry) = self.pipes.get_mut(at) else { return };
        entry.base.close();
        if let Some((pipe, device)) = entry.parts(&mut self.devices) {
            pipe.keep_nothing(&mut device.pool);
        } else if entry.is_moved() {
            self.end_pipe_with(at, "there is no TCP connection to go on by", Some(Errno::CONNRESET));
        }
    }

    /// The base of a queue pair is there.
    fn base_is_there(&mut self, at: usize, fd: i32) {
        let Some(entry) = self.pipes.get_mut(at) else { return private::close(fd) };
        match &mut entry.stage {
            // It was waited for.
            Stage::Moved(moved) => {
                entry.base = Base::None;
                moved.stream.attach(fd);
            }
            _ => entry.base = Base::Ready(fd),
        }
    }

    /// The epoll instance has something.
    pub(super) fn serve_bases(&mut self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
        let Ok(n) = raw::epoll_wait(self.bases.epoll, events.as_mut_ptr(), 32, 0, core::ptr::null()) else { return };
        for event in events.iter().take(n) {
            let what = event.u64;
            match what / KIND {
                0 => self.base_event(what as u32),
                1 => self.accept_bases((what % KIND) as usize),
                // It may have been closed since, and the number be another one's.
                3 => {
                    if let Some(fd) = self.doors().find(|fd| *fd as u64 == what % KIND) {
                        knock::answer(fd);
                    }
                }
                _ => self.hear_stranger((what % KIND) as i32),
            }
        }
    }

    /// All that have connected to listener `at`. Those that have said who they are make room for others.
    fn accept_bases(&mut self, at: usize) {
        while self.bases.accept(at) {
            if self.bases.strangers.len() <= STRANGERS {
                continue;
            }
            let all: Vec<i32> = self.bases.strangers.iter().map(|s| s.fd).collect();
            all.into_iter().for_each(|fd| self.hear_stranger(fd));
            if self.bases.strangers.len() > STRANGERS
                && let Some(oldest) = self.bases.strangers.pop_front()
            {
                private::close(oldest.fd);
            }
        }
    }

    fn hear_stranger(&mut self, fd: i32) {
        if let Some((stranger, token)) = self.bases.hear(fd) {
            self.welcome(stranger, token);
        }
    }

    /// Server's host: a base for a queue pair has come.
    fn welcome(&mut self, stranger: Stranger, token: [u8; TOKEN]) {
        let is = |base: &Base| matches!(base, Base::Awaited(wanted, _) if *wanted == token);
        let from = |ips: Option<(IpAddr, IpAddr)>| ips.map(|(_, theirs)| theirs) == stranger.ip;
        let found = self.pipes.each().find(|(_, e)| is(&e.base) && from(e.ips)).map(|(at, _)| at);
        let Some(at) = found else { return private::close(stranger.fd) };
        let name = u64::from(tag(&self.pipes, at));
        match self.bases.watch(EPOLL_CTL_MOD, stranger.fd, EPOLLIN, name) {
            Ok(()) => self.base_is_there(at, stranger.fd),
            Err(_) => {
                private::close(stranger.fd);
                self.lose_base(at);
            }
        }
    }

    /// Whether the other side's process seems to be gone, as its base has it: the kernel ends that first, and the connection
    /// manager says so only after a while, in which a connection would begin that nobody takes.
    pub(super) fn seems_gone(&mut self, at: usize) -> bool {
        let Some(entry) = self.pipes.get_mut(at) else { return true };
        let Base::Ready(fd) = entry.base else { return false };
        let mut byte = 0u8;
        let said = raw::recv(fd, &raw mut byte, 1, libc::MSG_DONTWAIT | libc::MSG_PEEK);
        let gone = matches!(said, Ok(0)) || said.is_err_and(|e| !matches!(e, Errno::AGAIN | Errno::INTR));
        if gone {
            entry.doubted = time::now().saturating_add(DOUBT);
            self.lose_base(at);
        }
        gone
    }

    /// Something has happened to the base of the queue pair with this tag.
    fn base_event(&mut self, name: u32) {
        let at = name as usize & 0xff_ffff;
        if tag(&self.pipes, at) != name {
            return;
        }
        let Some(entry) = self.pipes.get_mut(at) else { return };
        match entry.base {
            Base::Connecting(fd, token, _) => self.say_hello(at, name, fd, &token),
            Base::Ready(fd) => self.base_speaks(at, fd),
            // A failed queue pair's is looked at in every round.
            Base::None | Base::Awaited(..) => {}
        }
    }

    /// A base has something: if that is its end, the queue pair says what else has ended.
    fn base_speaks(&mut self, at: usize, fd: i32) {
        let mut byte = 0u8;
        if !self.seems_gone(at) && raw::recv(fd, &raw mut byte, 1, libc::MSG_DONTWAIT | libc::MSG_PEEK).is_ok() {
            self.pipe_failed(at, "the other side goes on by TCP");
        }
    }

    /// Client's host: a base is connected, or is not.
    fn say_hello(&mut self, at: usize, name: u32, fd: i32, token: &[u8; TOKEN]) {
        let said = wire::hello(token);
        let failed = raw::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or(libc::EIO);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        if failed == 0
            && raw::send(fd, said.as_ptr(), HELLO, flags) == Ok(HELLO)
            && self.bases.watch(EPOLL_CTL_MOD, fd, EPOLLIN, name.into()).is_ok()
        {
            return self.base_is_there(at, fd);
        }
        crate::log!(Info, "no TCP connection beside a queue pair: {}", Errno(failed));
        self.lose_base(at);
    }

    /// Whether the thread is to be told when the kernel takes more.
    pub(super) fn watch_moved(&mut self, at: usize, fd: i32, full: bool) {
        let events = EPOLLIN | if full { EPOLLOUT } else { 0 };
        let name = u64::from(tag(&self.pipes, at));
        let _ = self.bases.watch(EPOLL_CTL_MOD, fd, events, name);
    }

    /// The descriptors of all that has to do with bases.
    pub(super) fn all_bases(&self) -> impl Iterator<Item = i32> {
        let ours = [self.bases.epoll].into_iter();
        let listeners = self.bases.listeners.iter().map(|(_, fd, _)| *fd);
        let strangers = self.bases.strangers.iter().map(|s| s.fd);
        let bases = self.pipes.each().flat_map(|(_, e)| e.base_fds());
        ours.chain(listeners).chain(strangers).chain(bases).filter(|fd| *fd >= 0)
    }
}

impl Entry {
    /// The descriptors of its base.
    fn base_fds(&self) -> impl Iterator<Item = i32> {
        let moved = match &self.stage {
            Stage::Moved(moved) => Some(moved.stream.fd()),
            _ => None,
        };
        moved.into_iter().chain(self.base.fd())
    }

    fn is_moved(&self) -> bool {
        matches!(self.stage, Stage::Moved(_))
    }
}
