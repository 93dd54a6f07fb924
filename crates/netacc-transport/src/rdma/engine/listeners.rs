//! Listeners for clients on other hosts.

use crate::rdma::engine::cell::{self, EngineCell};
use crate::rdma::engine::cm::{LISTENER, MAX_QPS};
use crate::rdma::engine::companion::Companions;
use crate::rdma::engine::qp::{QpRecord, Stage, tag};
use crate::rdma::engine::worker::Engine;
use crate::rdma::engine::{manager, probe};
use crate::rdma::port_of;
use crate::timeouts;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use netacc_stats::{Reason, page};
use netacc_sys::errno::Errno;
use netacc_sys::signals::Blocked;
use netacc_sys::{lock, reserved_fds, time};
use netacc_verbs::{CmEvent, CmId, Error};
use netacc_wire::companion::CompanionOffer;
use netacc_wire::frame::{QpHello, Stranger};

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

/// A queue pair that a client on another host asks for.
#[derive(Debug)]
pub(super) struct Request {
    id: CmId,
    hello: QpHello,
    /// The TCP port of the listener.
    port: u16,
    /// The engine that is to have it.
    pub engine: usize,
}

/// Cookie of an identifier that no engine has yet: its events are dropped.
const NOBODY: u64 = LISTENER - 1;

/// TCP ports at which the program listens for other hosts, a bit each: the first engine writes them, and all engines
/// read them.
static PORTS: [AtomicU64; 1 << 10] = [const { AtomicU64::new(0) }; 1 << 10];

/// Set while clients on other hosts cannot find some listener by RDMA, and the host may get a device by which they can.
static UNHEARD: AtomicBool = AtomicBool::new(false);
/// When ([`time::coarse`]) listeners of that kind were last looked for.
static LAST_RETRY: AtomicU64 = AtomicU64::new(0);
const LISTEN_RETRY: u64 = time::ns(timeouts::LISTEN_RETRY);

/// A listener could not be made known; the periodic look for such listeners finds it from now on.
pub fn note_unheard() {
    UNHEARD.store(true, Ordering::Relaxed);
}

/// To be called when a program waits on a listener: clients on other hosts are to find it by these names. False: this
/// host has no device, or lacks what is needed to use one.
pub fn listen(names: impl Iterator<Item = SocketAddr>) -> bool {
    // No client comes to a loopback name from another host.
    let mut names = names.filter(|name| !name.ip().is_loopback()).peekable();
    if names.peek().is_none() {
        return true;
    }
    // Done at once, since clients may come at once.
    let _b = Blocked::all();
    let Some(first) = engines_for_listeners() else { return false };
    first.with_from_app(|e| names.for_each(|name| e.listen(name)));
    first.ring();
    true
}

fn engines_for_listeners() -> Option<&'static EngineCell> {
    if super::available() && super::start().is_ok() && manager::load_all() { cell::first() } else { None }
}

/// To be called when the program listens there no longer.
pub fn unlisten(name: SocketAddr) {
    if let Some(first) = cell::first() {
        first.with_from_app(|e| e.unlisten(name));
    }
}

/// A client has come by TCP: whether listeners that [`listen`] had to leave are to be tried again. This is true at most
/// once a second, and then the caller has to try them.
pub fn retry_due() -> bool {
    if !UNHEARD.load(Ordering::Relaxed) {
        return false;
    }
    let now = time::coarse();
    let lately = now.wrapping_sub(LAST_RETRY.load(Ordering::Relaxed)) < LISTEN_RETRY;
    // Nor in a handler that has interrupted a thread in the middle of an engine's work.
    if lately || lock::interrupted() || !super::available() {
        return false;
    }
    LAST_RETRY.store(now, Ordering::Relaxed);
    // AcqRel: one of several threads gets it, and what is noted from now on counts for the next time.
    if !UNHEARD.swap(false, Ordering::AcqRel) {
        return false;
    }
    if let Some(first) = cell::first() {
        first.with_from_app(Engine::retry_listen);
        first.ring();
    }
    true
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
    pub fn has_to_try(&self) -> bool {
        self.is_wanted() || self.lacks_door()
    }

    /// Whether clients find it, but nothing answers their questions.
    fn lacks_door(&self) -> bool {
        self.users > 0 && self.id.is_some() && self.door < 0
    }

    fn close(&mut self, companions: &Companions) {
        self.id = None;
        let door = core::mem::replace(&mut self.door, -1);
        if door >= 0 {
            companions.close_door(door);
        }
    }
}

impl Engine {
    /// Makes clients on other hosts find a listener at `local`.
    pub fn listen(&mut self, local: SocketAddr) {
        if let Some(l) = self.listeners.iter_mut().find(|l| l.local == local) {
            l.users += 1;
            return;
        }
        let Some(port) = port_of(local.port()) else {
            return netacc_log::log!(Info, "{local}: not reachable by RDMA, since {} + 20000 is no port", local.port());
        };
        let fresh = RemoteListener { local, users: 1, id: None, door: -1, shut: false, retry: true, said: false };
        match self.listeners.iter_mut().find(|l| l.users == 0) {
            Some(place) => *place = fresh,
            None => self.listeners.push(fresh),
        }
        self.announce_port(local.port());
        self.open_listeners();
        if self.listeners.iter().any(|l| l.local == local && l.is_wanted()) {
            netacc_log::log!(Info, "{local}: RDMA port {port} is taken; not reachable by RDMA until it is free");
        }
    }

    /// Tries listeners again that had no device and may have one by now.
    fn retry_listen(&mut self) {
        self.listeners.iter_mut().for_each(|l| l.retry = true);
        self.open_listeners();
    }

    pub(super) fn open_listeners(&mut self) {
        let Some(events) = &self.events else { return };
        for at in 0..self.listeners.len() {
            let Some(l) = self.listeners.get_mut(at) else { continue };
            let Some(port) = port_of(l.local.port()) else { continue };
            let there = SocketAddr::new(l.local.ip(), port);
            if l.lacks_door()
                && let Ok(fd) = probe::open_door(there)
            {
                l.door = self.companions.watch_door(fd).map_or(-1, |()| fd);
                if l.door < 0 {
                    reserved_fds::close(fd);
                }
            }
            if !l.is_wanted() {
                continue;
            }
            // Opened first, so that a client that sees that there is a listener is answered. No client is answered
            // before this is done.
            let door = probe::open_door(there);
            // Another process may be about to listen here, and the two must not have one half each.
            if door == Err(Errno::ADDRINUSE) && !core::mem::replace(&mut l.shut, true) {
                continue;
            }
            let opened = CmId::create(events, LISTENER | at as u64).and_then(|id| {
                // IPv4 has a listener of its own: see `socket::listen::remote_names`.
                if l.local.is_ipv6() {
                    id.set_af_only(true)?;
                }
                id.bind_addr(there)?;
                id.listen(128)?;
                Ok(id)
            });
            let door = door.and_then(|fd| match opened {
                Ok(_) => self.companions.watch_door(fd).map(|()| fd).inspect_err(|_| reserved_fds::close(fd)),
                Err(_) => {
                    reserved_fds::close(fd);
                    Ok(-1)
                }
            });
            match opened {
                Ok(id) => {
                    netacc_log::log!(Info, "{}: reachable by RDMA at port {port}", l.local);
                    l.said = false;
                    page().set_rdma_port(l.local.port(), Some(port));
                    l.id = Some(id);
                    l.door = door.unwrap_or_else(|e| {
                        netacc_log::log!(Info, "{}: cannot answer probes at UDP port {port}: {e}", l.local);
                        -1
                    });
                }
                Err(e) if e.errno() == Errno::ADDRINUSE => {}
                Err(e) => {
                    l.retry = false;
                    note_unheard();
                    if !core::mem::replace(&mut l.said, true) {
                        netacc_log::log!(Info, "{}: not reachable by RDMA at port {port}: {e}", l.local);
                    }
                }
            }
        }
    }

    /// Descriptors at which clients ask for listeners.
    pub(super) fn doors(&self) -> impl Iterator<Item = i32> {
        self.listeners.iter().map(|l| l.door).filter(|fd| *fd >= 0)
    }

    /// Tells all engines whether the program listens at this port.
    fn announce_port(&self, port: u16) {
        let (Some(word), bit) = bit_of(port) else { return };
        if self.listeners.iter().any(|l| l.users > 0 && l.local.port() == port) {
            word.fetch_or(bit, Ordering::Relaxed);
        } else {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Counts one socket less that listens there.
    pub fn unlisten(&mut self, local: SocketAddr) {
        if let Some(l) = self.listeners.iter_mut().find(|l| l.local == local) {
            l.users = l.users.saturating_sub(1);
            if l.users == 0 {
                // The listener's place stays, for the next one: events name it by number.
                l.close(&self.companions);
                let port = l.local.port();
                l.local.set_port(0);
                self.closed_port(port);
                self.announce_port(port);
            }
        }
    }

    pub(super) fn forget_listener(&mut self, cookie: u64) {
        let Some(l) = self.listeners.get_mut((cookie & !LISTENER) as usize) else { return };
        let device = l.id.as_ref().and_then(|id| self.devices.iter().position(|d| d.has(id)));
        l.close(&self.companions);
        let port = l.local.port();
        self.closed_port(port);
        // What else is on the device would hold up the device's removal.
        if let Some(device) = device {
            self.device_goes(device);
        }
    }

    /// To be called when a listener at this port is not reachable any more; one at another address may be.
    fn closed_port(&self, port: u16) {
        if !self.listeners.iter().any(|l| l.local.port() == port && l.id.is_some()) {
            page().set_rdma_port(port, None);
        }
    }

    /// Handles the request of a client on another host for a queue pair.
    pub(super) fn requested(&mut self, event: CmEvent) {
        let Some(id) = event.request else { return };
        let listener = self.listeners.get((event.cookie & !LISTENER) as usize);
        let Some(port) = listener.filter(|l| l.id.is_some()).map(|l| l.local.port()) else { return };
        let ours = crate::rdma::hello(self.limits.msg_size, CompanionOffer::None);
        let hello = match QpHello::decode(event.private_data.as_slice()) {
            Ok(hello) => hello,
            Err(stranger) => {
                page().fallback(match stranger {
                    Stranger::Version => Reason::PeerVersion,
                    Stranger::Garbage => Reason::ProtocolError,
                });
                // The client learns our version from the answer.
                let _ = id.reject(&ours.encode());
                return;
            }
        };
        let Some((engine, cell)) = cell::least(|cell| cell.served.load(Ordering::Relaxed)) else { return };
        cell.served.fetch_add(1, Ordering::Relaxed);
        let request = Request { id, hello, port, engine };
        if engine == self.index {
            return self.accept(request);
        }
        // The first engine is the one that opens a device first, and so makes its descriptors private for all.
        if let Err(e) = self.device_of(&request.id) {
            cell.served.fetch_sub(1, Ordering::Relaxed);
            return netacc_log::log!(Warn, "RDMA: cannot open the device of a client's QP ({e}); dropping the request");
        }
        request.id.set_cookie(NOBODY);
        self.requests.push(request);
    }

    /// Takes over a request that arrived at the first engine, since this engine was chosen for it.
    pub(super) fn adopt_request(&mut self, mut request: Request) {
        let migrated = match &self.events {
            Some(events) => request.id.migrate(events),
            None => Err(Error::NoDevice),
        };
        match migrated {
            Ok(()) => self.accept(request),
            Err(e) => {
                self.cell.served.fetch_sub(1, Ordering::Relaxed);
                netacc_log::log!(
                    Warn,
                    "RDMA thread {}: cannot take over a client's QP ({e}); the request is dropped",
                    self.index
                );
            }
        }
    }

    fn accept(&mut self, request: Request) {
        let Request { id, hello, port, .. } = request;
        let admitted = id.peer_addr().is_some_and(|peer| self.make_room(peer.ip().to_canonical()));
        let place = admitted.then(|| self.qps.add(MAX_QPS, QpRecord::new(Stage::Gone, 0, None, port))).flatten();
        let Some(at) = place else {
            self.cell.served.fetch_sub(1, Ordering::Relaxed);
            // The client goes by TCP.
            let _ = id.reject(&crate::rdma::hello(self.limits.msg_size, CompanionOffer::None).encode());
            return;
        };
        id.set_cookie(u64::from(tag(&self.qps, at)));
        let held = self.make(id, at).map(drop).and_then(|()| {
            let companion = self.offer_companion(at, hello.companion);
            match self.qps.get_mut(at).and_then(|e| e.live_parts(&mut self.devices)) {
                Some((qp_index, _)) => {
                    qp_index.accept(hello, companion)?;
                    Ok(companion == CompanionOffer::None || qp_index.keep())
                }
                None => Err(Error::NoDevice),
            }
        });
        match held {
            Ok(held) => {
                self.is_connected(at);
                if !held {
                    self.drop_companion(at);
                }
            }
            Err(e) => {
                netacc_log::log!(Warn, "RDMA: cannot accept a client's QP ({e}); the QP is closed");
                self.end_qp(at, "it could not be accepted");
            }
        }
    }
}
