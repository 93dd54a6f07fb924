//! The TCP connection beside each queue pair, its companion connection ([`netacc_wire::companion`]): how it is made,
//! and how it is lost.
//!
//! While a queue pair is to have its companion connection the server's engine waits for it at a port that the kernel
//! chooses ([`arrivals`](crate::rdma::engine::arrivals)). That port and a token go to the client while the queue pair is
//! connected, so a companion connection is found by nobody else. Where a packet filter closes that port, the client
//! comes to the listener's own port, if the server says by the queue pair that it may
//! ([`own_port`](crate::rdma::engine::own_port)). How the client goes about it is in
//! [`companion_client`](crate::rdma::engine::companion_client).
//!
//! Companion connections are made by the thread, which sleeps on one epoll instance for all of them: those that nobody
//! needs cost nothing.

use crate::rdma::engine::arrivals::Arrivals;
use crate::rdma::engine::companion_client::Attempt;
use crate::rdma::engine::failover::REMOVALS;
use crate::rdma::engine::probe;
use crate::rdma::engine::qp::{QpRecord, Stage, tag};
use crate::rdma::engine::worker::Engine;
use crate::timeouts;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::sync::atomic::Ordering;
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{raw, reserved_fds, time};
use netacc_verbs::cm::OpenDevice;
use netacc_wire::companion::{self as wire, TOKEN};
use rustix::rand::{GetRandomFlags, getrandom};

pub(super) const COMPANION_CONNECT: u64 = time::ns(timeouts::COMPANION_CONNECT);
/// The server's host waits longer (ns): the client may try one port after the other.
const COMPANION_AWAITED: u64 = 3 * COMPANION_CONNECT;
const QP_END_AFTER_COMPANION: u64 = time::ns(timeouts::QP_END_AFTER_COMPANION);

/// What an event of the epoll instance is about: a queue pair's companion connection, a listening socket, a stranger, a door,
/// where other processes pass companions, one that does.
pub(super) const KIND: u64 = 1 << 32;

/// A queue pair's companion connection.
#[derive(Debug)]
pub(super) enum Companion {
    /// The queue pair has no companion connection.
    None,
    /// The other side is to connect it, with this token, and began to when the clock said so (ns).
    Awaited([u8; TOKEN], u64),
    /// Client's host: it is being connected.
    Connecting(Attempt),
    /// The companion connection is there.
    Ready(i32),
}

impl Companion {
    fn fd(&self) -> Option<i32> {
        match self {
            Companion::Connecting(attempt) => attempt.fd(),
            Companion::Ready(fd) => Some(*fd),
            Companion::None | Companion::Awaited(..) => None,
        }
    }

    /// Closes a companion connection that is not needed any more.
    pub fn close(&mut self) {
        if let Some(fd) = core::mem::replace(self, Companion::None).fd() {
            reserved_fds::close(fd);
        }
    }

    /// Its socket, which the caller has then; -1 if it is still to come. `None`: there is none.
    pub fn take(&mut self) -> Option<i32> {
        match *self {
            Companion::None => None,
            Companion::Awaited(..) | Companion::Connecting(..) => Some(-1),
            Companion::Ready(fd) => {
                *self = Companion::None;
                Some(fd)
            }
        }
    }

    /// Whether it is there or on its way.
    pub fn is_hoped_for(&self) -> bool {
        !matches!(self, Companion::None)
    }

    /// Whether it should be there by now.
    pub fn is_late(&self, now: u64) -> bool {
        match self {
            Companion::Awaited(_, since) => now.saturating_sub(*since) > COMPANION_AWAITED,
            Companion::Connecting(attempt) => attempt.is_late(now),
            Companion::None | Companion::Ready(_) => false,
        }
    }
}

/// What all companion connections share.
#[derive(Debug)]
pub(super) struct Companions {
    /// Where the thread hears of them, or -1.
    pub epoll: i32,
    pub arrivals: Arrivals,
    /// Servers whose own port was the only one that the client's companion connections got through to.
    pub filtered: Vec<IpAddr>,
    /// Queue pairs that have failed.
    pub failed_over: Vec<usize>,
    /// Descriptors of devices that are removed and that librdmacm may still have open.
    pub removed: Vec<i32>,
    /// Devices that librdmacm had open when it was asked last.
    pub open: Vec<OpenDevice>,
    /// The devices of the host and the removals as they were then, if that was before a fork.
    pub open_at: Option<(u64, u32)>,
    /// Number of looks for such descriptors that are still to be made.
    pub releases: u32,
    /// The host's devices at the last look ([`devices_there`](super::sysfs::devices_there)).
    pub there: u64,
    /// Removals that this engine knows of.
    pub removals: u32,
    /// The payload of a message that came by TCP.
    pub scratch: Vec<u8>,
}

impl Default for Companions {
    fn default() -> Companions {
        Companions {
            epoll: -1,
            arrivals: Arrivals::default(),
            filtered: Vec::new(),
            failed_over: Vec::new(),
            removed: Vec::new(),
            open: Vec::new(),
            open_at: None,
            releases: 0,
            there: 0,
            removals: REMOVALS.load(Ordering::Relaxed),
            scratch: Vec::new(),
        }
    }
}

/// What goes by a companion connection is whole messages: none waits until the one before is acknowledged (tcp(7)).
pub(super) fn without_delay(fd: i32) {
    let _ = raw::setsockopt_int(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
}

impl Companions {
    /// The epoll instance, which is made if there is none.
    pub fn epoll_ctl(&mut self, op: i32, fd: i32, events: i32, what: u64) -> Result<()> {
        if self.epoll < 0 {
            self.epoll = reserved_fds::raise(raw::epoll_create1(libc::EPOLL_CLOEXEC)?);
        }
        raw::epoll_ctl(self.epoll, op, fd, events as u32, what)
    }

    /// The thread answers what is asked at this door.
    pub fn watch_door(&mut self, door: i32) -> Result<()> {
        self.epoll_ctl(EPOLL_CTL_ADD, door, EPOLLIN, (3 * KIND) | door as u64)
    }

    /// A door is to be closed.
    pub fn close_door(&self, door: i32) {
        // Not by closing it alone: a copy may be in a child that is about to execute a program.
        let _ = raw::epoll_ctl(self.epoll, libc::EPOLL_CTL_DEL, door, 0, 0);
        reserved_fds::close(door);
    }
}

impl Engine {
    /// Server's host: what is said of the companion connection of queue pair `at`, for which the client asks with `asked`.
    pub(super) fn offer_companion(&mut self, at: usize, asked: wire::CompanionOffer) -> wire::CompanionOffer {
        let mut token = [0u8; TOKEN];
        let Some(qp) =
            self.qps.get_mut(at).filter(|_| self.limits.tcp_companion && asked == wire::CompanionOffer::Wanted)
        else {
            return wire::CompanionOffer::None;
        };
        let Some((ours, _)) = qp.ips else { return wire::CompanionOffer::None };
        if getrandom(&mut token, GetRandomFlags::empty()) != Ok(TOKEN) {
            return wire::CompanionOffer::None;
        }
        match self.companions.listen(ours) {
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

    /// There will be no companion connection: nothing is kept for it.
    pub(super) fn drop_companion(&mut self, at: usize) {
        let Some(qp) = self.qps.get_mut(at) else { return };
        qp.companion.close();
        if let Some((qp_index, device)) = qp.parts(&mut self.devices) {
            qp_index.keep_nothing(&mut device.pool);
        } else if qp.is_failed_over() {
            self.end_qp_with(at, "there is no TCP connection to go on by", Some(Errno::CONNRESET));
        }
    }

    /// The companion connection of a queue pair is there.
    pub(super) fn companion_ready(&mut self, at: usize, fd: i32) {
        let Some(qp) = self.qps.get_mut(at) else { return reserved_fds::close(fd) };
        match &mut qp.stage {
            // It was waited for.
            Stage::FailedOver(failed) => {
                qp.companion = Companion::None;
                failed.stream.attach(fd);
            }
            _ => qp.companion = Companion::Ready(fd),
        }
    }

    /// The epoll instance has something.
    pub(super) fn serve_companions(&mut self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
        let Ok(n) = raw::epoll_wait(self.companions.epoll, events.as_mut_ptr(), 32, 0, core::ptr::null()) else {
            return;
        };
        for event in events.iter().take(n) {
            let what = event.u64;
            match what / KIND {
                0 => self.on_companion_event(what as u32),
                1 => self.accept_companions((what % KIND) as i32),
                // It may have been closed since, and the number be another one's.
                3 => {
                    if let Some(fd) = self.doors().find(|fd| *fd as u64 == what % KIND) {
                        probe::answer(fd);
                    }
                }
                4 => self.accept_couriers((what % KIND) as i32),
                5 => self.on_courier((what % KIND) as i32),
                _ => self.on_stranger_data((what % KIND) as i32),
            }
        }
        self.close_unawaited();
    }

    /// Whether the other side's process seems to be gone, as its companion connection has it: the kernel ends that
    /// first, and the connection manager says so only after a while, in which a connection would begin that nobody
    /// takes.
    pub(super) fn seems_gone(&mut self, at: usize) -> bool {
        let Some(qp) = self.qps.get_mut(at) else { return true };
        let Companion::Ready(fd) = qp.companion else { return false };
        let mut byte = 0u8;
        let said = raw::recv(fd, &raw mut byte, 1, libc::MSG_DONTWAIT | libc::MSG_PEEK);
        let gone = matches!(said, Ok(0)) || said.is_err_and(|e| !matches!(e, Errno::AGAIN | Errno::INTR));
        if gone {
            qp.doubted = time::now().saturating_add(QP_END_AFTER_COMPANION);
            self.drop_companion(at);
        }
        gone
    }

    /// Something has happened to the companion connection of the queue pair with this tag.
    fn on_companion_event(&mut self, name: u32) {
        let at = name as usize & 0xff_ffff;
        if tag(&self.qps, at) != name {
            return;
        }
        let Some(qp) = self.qps.get_mut(at) else { return };
        match &qp.companion {
            Companion::Connecting(_) => self.attempt_has_news(at),
            Companion::Ready(fd) => {
                let fd = *fd;
                self.on_companion_data(at, fd);
            }
            // A failed queue pair's is looked at in every round.
            Companion::None | Companion::Awaited(..) => {}
        }
    }

    /// A companion connection has something: if that is its end, the queue pair says what else has ended.
    fn on_companion_data(&mut self, at: usize, fd: i32) {
        let mut byte = 0u8;
        if !self.seems_gone(at) && raw::recv(fd, &raw mut byte, 1, libc::MSG_DONTWAIT | libc::MSG_PEEK).is_ok() {
            self.qp_failed(at, "the other side goes on by TCP");
        }
    }

    /// Whether the thread is to be told when the kernel takes more.
    pub(super) fn watch_failover(&mut self, at: usize, fd: i32, full: bool) {
        let events = EPOLLIN | if full { EPOLLOUT } else { 0 };
        let name = u64::from(tag(&self.qps, at));
        let _ = self.companions.epoll_ctl(EPOLL_CTL_MOD, fd, events, name);
    }

    /// The descriptors of all that has to do with companion connections.
    pub(super) fn all_companions(&self) -> impl Iterator<Item = i32> {
        let ours = [self.companions.epoll].into_iter();
        let companions = self.qps.each().flat_map(|(_, e)| e.companion_fds());
        ours.chain(self.companions.arrivals.fds()).chain(companions).filter(|fd| *fd >= 0)
    }
}

impl QpRecord {
    /// The descriptors of its companion connection.
    fn companion_fds(&self) -> impl Iterator<Item = i32> {
        let failed = match &self.stage {
            Stage::FailedOver(failed) => Some(failed.stream.fd()),
            _ => None,
        };
        failed.into_iter().chain(self.companion.fd())
    }

    fn is_failed_over(&self) -> bool {
        matches!(self.stage, Stage::FailedOver(_))
    }
}
