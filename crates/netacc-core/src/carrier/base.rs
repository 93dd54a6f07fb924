//! The TCP connection beside each queue pair, its base ([`netacc_wire::base`]): how it is made, and how it is lost.
//!
//! While a queue pair is to have its base the server's carrier waits for it at a port that the kernel chooses
//! ([`arrivals`](crate::carrier::arrivals)). That port and a token go to the client while the queue pair is connected, so a
//! base is found by nobody else. Where a packet filter closes that port, the client comes to the listener's own port, if the
//! server says by the queue pair that it may ([`own_port`](crate::carrier::own_port)). How the client goes about it is in
//! [`companion_client`](crate::carrier::companion_client).
//!
//! Bases are made by the thread, which sleeps on one epoll instance for all of them: those that nobody needs cost nothing.

use crate::carrier::arrivals::Arrivals;
use crate::carrier::companion_client::Attempt;
use crate::carrier::engine::Engine;
use crate::carrier::entry::{Entry, Stage, tag};
use crate::carrier::knock;
use crate::carrier::moved::REMOVALS;
use crate::timeouts;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::sync::atomic::Ordering;
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{private, raw, time};
use netacc_verbs::cm::OpenDevice;
use netacc_wire::base::{self as wire, TOKEN};
use rustix::rand::{GetRandomFlags, getrandom};

pub(super) const COMPANION_CONNECT: u64 = time::ns(timeouts::COMPANION_CONNECT);
/// The server's host waits longer (ns): the client may try one port after the other.
const COMPANION_AWAITED: u64 = 3 * COMPANION_CONNECT;
const QP_END_AFTER_COMPANION: u64 = time::ns(timeouts::QP_END_AFTER_COMPANION);

/// What an event of the epoll instance is about: a queue pair's base, a listening socket, a stranger, a door.
pub(super) const KIND: u64 = 1 << 32;

/// A queue pair's base.
#[derive(Debug)]
pub(super) enum Base {
    /// The queue pair has no base.
    None,
    /// The other side is to connect it, with this token, and began to when the clock said so (ns).
    Awaited([u8; TOKEN], u64),
    /// Client's host: it is being connected.
    Connecting(Attempt),
    /// The base is there.
    Ready(i32),
}

impl Base {
    fn fd(&self) -> Option<i32> {
        match self {
            Base::Connecting(attempt) => attempt.fd(),
            Base::Ready(fd) => Some(*fd),
            Base::None | Base::Awaited(..) => None,
        }
    }

    /// Closes a base that is not needed any more.
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

    /// Whether it should be there by now.
    pub fn is_late(&self, now: u64) -> bool {
        match self {
            Base::Awaited(_, since) => now.saturating_sub(*since) > COMPANION_AWAITED,
            Base::Connecting(attempt) => attempt.is_late(now),
            Base::None | Base::Ready(_) => false,
        }
    }
}

/// What all bases share.
#[derive(Debug)]
pub(super) struct Bases {
    /// Where the thread hears of them, or -1.
    pub epoll: i32,
    pub arrivals: Arrivals,
    /// Servers whose own port was the only one that the client's bases got through to.
    pub filtered: Vec<IpAddr>,
    /// Queue pairs that have failed.
    pub moved: Vec<usize>,
    /// Descriptors of devices that are removed and that librdmacm may still have open.
    pub removed: Vec<i32>,
    /// Devices that librdmacm had open when it was asked last.
    pub open: Vec<OpenDevice>,
    /// Number of looks for such descriptors that are still to be made.
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
            arrivals: Arrivals::default(),
            filtered: Vec::new(),
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

/// What goes by a base is whole messages: none waits until the one before is acknowledged (tcp(7)).
pub(super) fn without_delay(fd: i32) {
    let _ = raw::setsockopt_int(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
}

impl Bases {
    /// The epoll instance, which is made if there is none.
    pub fn watch(&mut self, op: i32, fd: i32, events: i32, what: u64) -> Result<()> {
        if self.epoll < 0 {
            self.epoll = private::raise(raw::epoll_create1(libc::EPOLL_CLOEXEC)?);
        }
        raw::epoll_ctl(self.epoll, op, fd, events as u32, what)
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
    pub(super) fn base_is_there(&mut self, at: usize, fd: i32) {
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
                1 => self.accept_companions((what % KIND) as i32),
                // It may have been closed since, and the number be another one's.
                3 => {
                    if let Some(fd) = self.doors().find(|fd| *fd as u64 == what % KIND) {
                        knock::answer(fd);
                    }
                }
                _ => self.hear_stranger((what % KIND) as i32),
            }
        }
        self.close_unawaited();
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
            entry.doubted = time::now().saturating_add(QP_END_AFTER_COMPANION);
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
        match &entry.base {
            Base::Connecting(_) => self.attempt_has_news(at),
            Base::Ready(fd) => {
                let fd = *fd;
                self.base_speaks(at, fd);
            }
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

    /// Whether the thread is to be told when the kernel takes more.
    pub(super) fn watch_moved(&mut self, at: usize, fd: i32, full: bool) {
        let events = EPOLLIN | if full { EPOLLOUT } else { 0 };
        let name = u64::from(tag(&self.pipes, at));
        let _ = self.bases.watch(EPOLL_CTL_MOD, fd, events, name);
    }

    /// The descriptors of all that has to do with bases.
    pub(super) fn all_bases(&self) -> impl Iterator<Item = i32> {
        let ours = [self.bases.epoll].into_iter();
        let bases = self.pipes.each().flat_map(|(_, e)| e.base_fds());
        ours.chain(self.bases.arrivals.fds()).chain(bases).filter(|fd| *fd >= 0)
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
