//! The TCP connection beside each queue pair, its base ([`netacc_wire::base`]): how it is made, and how it is lost.
//!
//! While a queue pair is to have its base the server's carrier waits for it at a port that the kernel chooses
//! ([`arrivals`](crate::carrier::arrivals)). That port and a
//! token go to the client while the queue pair is connected, so nobody else finds a base, and a program's listener
//! never sees it. Bases are made by the thread, which sleeps on one epoll instance for all of them: bases that are not
//! needed cost nothing.

use crate::addr;
use crate::carrier::arrivals::Arrivals;
use crate::carrier::engine::Engine;
use crate::carrier::entry::{Entry, Stage, tag};
use crate::carrier::knock;
use crate::carrier::moved::REMOVALS;
use crate::timeouts;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicBool, Ordering};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{private, raw, time};
use netacc_verbs::cm::OpenDevice;
use netacc_wire::base::{self as wire, HELLO, TOKEN};
use rustix::rand::{GetRandomFlags, getrandom};

pub(super) const COMPANION_CONNECT: u64 = time::ns(timeouts::COMPANION_CONNECT);
const QP_END_AFTER_COMPANION: u64 = time::ns(timeouts::QP_END_AFTER_COMPANION);

/// Unit of the kinds of events of the epoll instance: a queue pair's base, a listening socket, a stranger, a door.
pub(super) const KIND: u64 = 1 << 32;

/// A queue pair's base.
#[derive(Debug)]
pub(super) enum Base {
    /// The queue pair has no base.
    None,
    /// The other side is to connect it, with this token, and has been expected to since this time (ns).
    Awaited([u8; TOKEN], u64),
    /// It is being connected, since this time (ns); the other side is to be sent this token.
    Connecting(i32, [u8; TOKEN], u64),
    /// The base is there.
    Ready(i32),
}

impl Base {
    fn fd(&self) -> Option<i32> {
        match self {
            Base::Connecting(fd, ..) | Base::Ready(fd) => Some(*fd),
            Base::None | Base::Awaited(..) => None,
        }
    }

    /// Closes the base, which is not needed any more.
    pub fn close(&mut self) {
        if let Some(fd) = core::mem::replace(self, Base::None).fd() {
            private::close(fd);
        }
    }

    /// Takes its socket, which the caller then owns; -1 if it is still to come. `None`: there is no base.
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
            Base::Awaited(_, since) | Base::Connecting(_, _, since) => now.saturating_sub(*since) > COMPANION_CONNECT,
            Base::None | Base::Ready(_) => false,
        }
    }
}

/// What all bases share.
#[derive(Debug)]
pub(super) struct Bases {
    /// The epoll instance by which the thread hears of them, or -1.
    pub epoll: i32,
    pub arrivals: Arrivals,
    /// Queue pairs that have failed.
    pub moved: Vec<usize>,
    /// Descriptors of devices that are removed and that librdmacm may still have open.
    pub removed: Vec<i32>,
    /// Devices that librdmacm had open when it was asked last.
    pub open: Vec<OpenDevice>,
    /// Number of looks at those descriptors that are still to be made, one per round of periodic work.
    pub releases: u32,
    /// The host's devices at the last look ([`devices_there`](super::sysfs::devices_there)).
    pub there: u64,
    /// Number of removals that this engine knows of.
    pub removals: u32,
    /// The payload of a message that came by TCP.
    pub scratch: Vec<u8>,
}

impl Default for Bases {
    fn default() -> Bases {
        Bases {
            epoll: -1,
            arrivals: Arrivals::default(),
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

/// Client's host: logs that a queue pair to `server` has no companion connection, mostly because of a packet filter. An
/// operator is warned of that once, since each further queue pair meets the same.
fn warn_of_none(server: IpAddr, why: Errno) {
    static SAID: AtomicBool = AtomicBool::new(false);
    // Relaxed: nothing else depends on it.
    if SAID.swap(true, Ordering::Relaxed) {
        crate::log!(Info, "{server}: no companion connection ({why}); connections end where their QP fails");
    } else {
        crate::log!(Warn, "{server}: no companion connection ({why}); connections end where their QP fails");
    }
}

/// A socket of our own at `ip`.
fn socket_at(ip: IpAddr) -> Result<i32> {
    let fd = private::raise(raw::socket(addr::domain(ip), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)?);
    // The port of a socket that connects need only be free towards its destination.
    let _ = raw::setsockopt_int(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
    without_delay(fd);
    let bound = addr::with(SocketAddr::new(ip, 0), |p, n| raw::bind(fd, p, n));
    bound.map(|()| fd).inspect_err(|_| private::close(fd))
}

/// Sends at once what goes by a base: these are whole messages, of which none is to wait until the one before is
/// acknowledged (tcp(7)).
pub(super) fn without_delay(fd: i32) {
    let _ = raw::setsockopt_int(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
}

impl Bases {
    /// Watches a descriptor by the epoll instance, which is made if there is none.
    pub fn watch(&mut self, op: i32, fd: i32, events: i32, what: u64) -> Result<()> {
        if self.epoll < 0 {
            self.epoll = private::raise(raw::epoll_create1(libc::EPOLL_CLOEXEC)?);
        }
        raw::epoll_ctl(self.epoll, op, fd, events as u32, what)
    }

    /// Has the thread answer what is asked at this door.
    pub fn attend(&mut self, door: i32) -> Result<()> {
        self.watch(EPOLL_CTL_ADD, door, EPOLLIN, (3 * KIND) | door as u64)
    }

    /// Closes a door.
    pub fn leave(&self, door: i32) {
        // Closing the descriptor alone would not do: a copy may be in a child that is about to execute a program.
        let _ = raw::epoll_ctl(self.epoll, libc::EPOLL_CTL_DEL, door, 0, 0);
        private::close(door);
    }
}

impl Engine {
    /// Server's host: what the server says of the base of queue pair `at`, for which the client asks with `asked`.
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
                crate::log!(
                    Info,
                    "RDMA: cannot listen for companion connections ({e}); connections end where their QP fails"
                );
                wire::Base::None
            }
        }
    }

    /// Client's host: begins to connect the base of queue pair `at`, if the server waits for it.
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
            Err(e) => warn_of_none(theirs, e),
        }
    }

    /// To be called when a base should be there by now, and is not.
    pub(super) fn base_is_late(&mut self, at: usize) {
        if let Some(Entry { base: Base::Connecting(..), ips: Some((_, theirs)), .. }) = self.pipes.get(at) {
            warn_of_none(*theirs, Errno::TIMEDOUT);
        }
        self.lose_base(at);
    }

    /// To be called when there will be no base: nothing is kept for it.
    pub(super) fn lose_base(&mut self, at: usize) {
        let Some(entry) = self.pipes.get_mut(at) else { return };
        entry.base.close();
        if let Some((pipe, device)) = entry.parts(&mut self.devices) {
            pipe.keep_nothing(&mut device.pool);
        } else if entry.is_moved() {
            self.end_pipe_with(at, "there is no TCP connection to go on by", Some(Errno::CONNRESET));
        }
    }

    /// To be called when the base of a queue pair is there.
    pub(super) fn base_is_there(&mut self, at: usize, fd: i32) {
        let Some(entry) = self.pipes.get_mut(at) else { return private::close(fd) };
        match &mut entry.stage {
            // A failed queue pair has waited for it.
            Stage::Moved(moved) => {
                entry.base = Base::None;
                moved.stream.attach(fd);
            }
            _ => entry.base = Base::Ready(fd),
        }
    }

    /// Handles the events of the epoll instance.
    pub(super) fn serve_bases(&mut self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
        let Ok(n) = raw::epoll_wait(self.bases.epoll, events.as_mut_ptr(), 32, 0, core::ptr::null()) else { return };
        for event in events.iter().take(n) {
            let what = event.u64;
            match what / KIND {
                0 => self.base_event(what as u32),
                1 => self.accept_companions((what % KIND) as i32),
                // The door may have been closed since, and the number may belong to another descriptor.
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

    /// Whether the other side's process seems to be gone, as its base shows it: the kernel ends the base first, and the
    /// connection manager reports the end only after a while, in which a connection would begin that nobody takes.
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

    /// Handles an event of the base of the queue pair with this tag.
    fn base_event(&mut self, name: u32) {
        let at = name as usize & 0xff_ffff;
        if tag(&self.pipes, at) != name {
            return;
        }
        let Some(entry) = self.pipes.get_mut(at) else { return };
        match entry.base {
            Base::Connecting(fd, token, _) => self.say_hello(at, name, fd, &token),
            Base::Ready(fd) => self.base_speaks(at, fd),
            // The base of a failed queue pair is looked at in every round.
            Base::None | Base::Awaited(..) => {}
        }
    }

    /// A base has something: if that is its end, the queue pair tells what else has ended.
    fn base_speaks(&mut self, at: usize, fd: i32) {
        let mut byte = 0u8;
        if !self.seems_gone(at) && raw::recv(fd, &raw mut byte, 1, libc::MSG_DONTWAIT | libc::MSG_PEEK).is_ok() {
            self.pipe_failed(at, "the other side goes on by TCP");
        }
    }

    /// Client's host: a base is connected, or could not be.
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
        if let Some((_, theirs)) = self.pipes.get(at).and_then(|e| e.ips) {
            warn_of_none(theirs, Errno(failed));
        }
        self.lose_base(at);
    }

    /// Has the thread hear of bytes, and if `full` of the moment when the kernel takes more.
    pub(super) fn watch_moved(&mut self, at: usize, fd: i32, full: bool) {
        let events = EPOLLIN | if full { EPOLLOUT } else { 0 };
        let name = u64::from(tag(&self.pipes, at));
        let _ = self.bases.watch(EPOLL_CTL_MOD, fd, events, name);
    }

    /// All descriptors that belong to bases.
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
