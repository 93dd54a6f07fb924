//! Listeners for clients on other hosts.

use crate::rdma::engine::companions::watch::Watch;
use crate::rdma::engine::probe;
use crate::rdma::{Device, port_of};
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use netacc_stats::page;
use netacc_sys::errno::Errno;
use netacc_sys::reserved_fds;
use netacc_verbs::{CmId, EventChannel};
use netacc_wire::qp_hello::QpHello;

/// Set in what events call a listener.
pub(super) const LISTENER: u64 = 1 << 63;

/// A listener for other hosts.
#[derive(Debug)]
pub(super) struct RemoteListener {
    local: SocketAddr,
    /// Number of sockets of the program that listen there.
    users: u32,
    id: Option<CmId>,
    /// The socket at which clients ask whether it is there ([`probe`]), while it is; or -1.
    door: i32,
    /// Set when the port of the questions was taken at the last attempt.
    shut: bool,
    /// Set while the next attempt may end otherwise, since another process has the port.
    retry: bool,
    /// Set once it has been logged that the listener cannot be reached.
    said: bool,
}

/// Handles the connect request of a client on another host for a queue pair.
#[derive(Debug)]
pub(super) struct Request {
    pub id: CmId,
    pub hello: QpHello,
    /// The TCP port of the listener.
    pub port: u16,
    /// The engine that is to have it.
    pub engine: usize,
}

/// Cookie of an identifier that no engine has yet: its events are dropped.
pub(super) const NOBODY: u64 = LISTENER - 1;

netacc_sys::tables! {
    /// TCP ports at which the program listens for other hosts, a bit each: the first engine writes them, and all engines
    /// read them.
    static PORTS: [AtomicU64; 1 << 10] = [const { AtomicU64::new(0) }; 1 << 10];
}

/// Set while clients on other hosts cannot find some listener by RDMA, and the host may get a device by which they can.
static UNHEARD: AtomicBool = AtomicBool::new(false);

/// A listener could not be made known; the periodic look for such listeners finds it from now on.
pub fn note_unheard() {
    UNHEARD.store(true, Ordering::Relaxed);
}

/// Whether some listener could not be made known so far.
pub(super) fn is_unheard() -> bool {
    UNHEARD.load(Ordering::Relaxed)
}

/// Whether some listener could not be made known before this call; what is noted from now on counts for the next one.
pub(super) fn take_unheard() -> bool {
    // AcqRel: one of several threads gets it.
    UNHEARD.swap(false, Ordering::AcqRel)
}

fn bit_of(port: u16) -> (Option<&'static AtomicU64>, u64) {
    (PORTS.get(usize::from(port >> 6)), 1 << (port & 63))
}

/// Whether the program listens at this port.
pub(super) fn listens(port: u16) -> bool {
    let (word, bit) = bit_of(port);
    word.is_some_and(|word| word.load(Ordering::Relaxed) & bit != 0)
}

impl RemoteListener {
    /// Whether it is to be opened, as soon as its port is free.
    fn is_wanted(&self) -> bool {
        self.users > 0 && self.id.is_none() && self.retry
    }

    /// Whether some part of it that is missing is to be tried again.
    fn has_to_try(&self) -> bool {
        self.is_wanted() || self.lacks_door()
    }

    /// Whether clients find it, but nothing answers their questions.
    fn lacks_door(&self) -> bool {
        self.users > 0 && self.id.is_some() && self.door < 0
    }

    /// Tries to listen at the address `there`, and to answer questions.
    fn open(&mut self, events: &EventChannel, watch: &mut Watch, cookie: u64, there: SocketAddr) {
        // Opened first, so that a client that sees that there is a listener is answered. No client is answered before this
        // is done.
        let door = probe::open_door(there);
        // Another process may be about to listen here, and the two must not have one half each.
        if door == Err(Errno::ADDRINUSE) && !core::mem::replace(&mut self.shut, true) {
            return;
        }
        let opened = CmId::create(events, cookie).and_then(|id| {
            // IPv4 has a listener of its own: see `socket::listen::remote_names`.
            if self.local.is_ipv6() {
                id.set_af_only(true)?;
            }
            id.bind_addr(there)?;
            id.listen(128)?;
            Ok(id)
        });
        match opened {
            Ok(id) => {
                let (local, port) = (self.local, there.port());
                netacc_log::log!(Info, "{local}: reachable by RDMA at port {port}");
                self.said = false;
                page().set_rdma_port(local.port(), Some(port));
                self.id = Some(id);
                let door = door.and_then(|fd| watch.door(fd).map(|()| fd).inspect_err(|_| reserved_fds::close(fd)));
                self.door = door.unwrap_or_else(|e| {
                    netacc_log::log!(Info, "{local}: cannot answer probes at UDP port {port}: {e}");
                    -1
                });
            }
            Err(e) => {
                if let Ok(fd) = door {
                    reserved_fds::close(fd);
                }
                if e.errno() == Errno::ADDRINUSE {
                    return;
                }
                self.retry = false;
                note_unheard();
                if !core::mem::replace(&mut self.said, true) {
                    netacc_log::log!(Info, "{}: not reachable by RDMA at port {}: {e}", self.local, there.port());
                }
            }
        }
    }

    fn close(&mut self, watch: &Watch) {
        self.id = None;
        let door = core::mem::replace(&mut self.door, -1);
        if door >= 0 {
            watch.forget(door);
        }
    }
}

/// The listeners of an engine, which is the first one.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    all: Vec<RemoteListener>,
    /// Requests that arrived there and are for other engines, kept until the lock is free.
    pub requests: Vec<Request>,
}

impl Listeners {
    /// Makes clients on other hosts find a listener at `local`.
    pub fn listen(&mut self, events: Option<&EventChannel>, watch: &mut Watch, local: SocketAddr) {
        if let Some(l) = self.all.iter_mut().find(|l| l.local == local) {
            l.users += 1;
            return;
        }
        let Some(port) = port_of(local.port()) else {
            return netacc_log::log!(Info, "{local}: not reachable by RDMA, since {} + 20000 is no port", local.port());
        };
        let fresh = RemoteListener { local, users: 1, id: None, door: -1, shut: false, retry: true, said: false };
        match self.all.iter_mut().find(|l| l.users == 0) {
            Some(place) => *place = fresh,
            None => self.all.push(fresh),
        }
        self.announce_port(local.port());
        self.open(events, watch);
        if self.all.iter().any(|l| l.local == local && l.is_wanted()) {
            netacc_log::log!(Info, "{local}: RDMA port {port} is taken; not reachable by RDMA until it is free");
        }
    }

    /// Tries listeners again that had no device and may have one by now.
    pub fn retry(&mut self, events: Option<&EventChannel>, watch: &mut Watch) {
        self.all.iter_mut().for_each(|l| l.retry = true);
        self.open(events, watch);
    }

    pub fn open(&mut self, events: Option<&EventChannel>, watch: &mut Watch) {
        let Some(events) = events else { return };
        for (at, l) in self.all.iter_mut().enumerate() {
            let Some(port) = port_of(l.local.port()) else { continue };
            let there = SocketAddr::new(l.local.ip(), port);
            if l.lacks_door()
                && let Ok(fd) = probe::open_door(there)
            {
                l.door = watch.door(fd).map_or(-1, |()| fd);
                if l.door < 0 {
                    reserved_fds::close(fd);
                }
            }
            if l.is_wanted() {
                l.open(events, watch, LISTENER | at as u64, there);
            }
        }
    }

    /// Descriptors at which clients ask for listeners.
    pub fn doors(&self) -> impl Iterator<Item = i32> {
        self.all.iter().map(|l| l.door).filter(|fd| *fd >= 0)
    }

    /// Tells all engines whether the program listens at this port.
    fn announce_port(&self, port: u16) {
        let (Some(word), bit) = bit_of(port) else { return };
        if self.all.iter().any(|l| l.users > 0 && l.local.port() == port) {
            word.fetch_or(bit, Ordering::Relaxed);
        } else {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Counts one socket less that listens there.
    pub fn unlisten(&mut self, watch: &Watch, local: SocketAddr) {
        if let Some(l) = self.all.iter_mut().find(|l| l.local == local) {
            l.users = l.users.saturating_sub(1);
            if l.users == 0 {
                // The listener's place stays, for the next one: events name it by number.
                l.close(watch);
                let port = l.local.port();
                l.local.set_port(0);
                self.closed_port(port);
                self.announce_port(port);
            }
        }
    }

    /// To be called when a listener at this port is not reachable any more; one at another address may be.
    fn closed_port(&self, port: u16) {
        if !self.all.iter().any(|l| l.local.port() == port && l.id.is_some()) {
            page().set_rdma_port(port, None);
        }
    }

    /// The TCP port of the listener that the connection manager calls `cookie`, while clients can find it.
    pub fn port_of(&self, cookie: u64) -> Option<u16> {
        let listener = self.all.get((cookie & !LISTENER) as usize);
        listener.filter(|l| l.id.is_some()).map(|l| l.local.port())
    }

    /// The device of the listener that the connection manager calls `cookie` is removed: returns which of `devices` it
    /// is.
    pub fn forget(&mut self, watch: &Watch, cookie: u64, devices: &[Device]) -> Option<usize> {
        let l = self.all.get_mut((cookie & !LISTENER) as usize)?;
        let device = l.id.as_ref().and_then(|id| devices.iter().position(|d| d.has(id)));
        l.close(watch);
        let port = l.local.port();
        self.closed_port(port);
        device
    }

    /// Whether some part of a listener that is missing is to be tried again.
    pub fn has_to_try(&self) -> bool {
        self.all.iter().any(RemoteListener::has_to_try)
    }

    /// In the copy: forgets all of them, since they are the other process's.
    pub fn leave(&mut self) {
        core::mem::forget(core::mem::take(&mut self.all));
        core::mem::forget(core::mem::take(&mut self.requests));
    }
}
