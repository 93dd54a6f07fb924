//! How clients on other hosts find the program's listeners, and get queue pairs.

use crate::rdma::engine::admission::{Bounds, Silent, evicted};
use crate::rdma::engine::cell::{self, EngineCell};
use crate::rdma::engine::listeners::{self, NOBODY, Request};
use crate::rdma::engine::qp::{QP_CONNECT, QpRecord, Stage, tag};
use crate::rdma::engine::qps::MAX_QPS;
use crate::rdma::engine::worker::Engine;
use crate::rdma::engine::{manager, process, thread};
use crate::timeouts;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::Ordering;
use netacc_stats::{Reason, page};
use netacc_sys::signals::Blocked;
use netacc_sys::{SharedCell, lock, time};
use netacc_verbs::{CmEvent, Error};
use netacc_wire::companion::CompanionOffer;
use netacc_wire::qp_hello::{QpHello, Stranger};

/// When ([`time::coarse`]) listeners that could not be made known were last looked for.
static LAST_RETRY: SharedCell<u64> = SharedCell::<u64>::new(0);
const LISTEN_RETRY: u64 = time::ns(timeouts::LISTEN_RETRY);
/// Time (ns) after which a queue pair whose client has said nothing makes room for another one. Before that the
/// newcomer goes by TCP instead: a client's first message is under way for a moment, and its connections would be lost
/// with the queue pair.
const FIRST_WORD: u64 = 300_000_000;

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
    if process::available() && thread::start().is_ok() && manager::load_all() { cell::first() } else { None }
}

/// To be called when the program listens there no longer.
pub fn unlisten(name: SocketAddr) {
    if let Some(first) = cell::first() {
        first.with_from_app(|e| e.listeners.unlisten(&e.companions.watch, name));
    }
}

/// A client has come by TCP: whether listeners that [`listen`] had to leave are to be tried again. This is true at most
/// once a second, and then the caller has to try them.
pub fn retry_due() -> bool {
    if !listeners::is_unheard() {
        return false;
    }
    let now = time::coarse();
    let lately = now.wrapping_sub(LAST_RETRY.get()) < LISTEN_RETRY;
    // Nor in a handler that has interrupted a thread in the middle of an engine's work.
    if lately || lock::interrupted() || !process::available() {
        return false;
    }
    LAST_RETRY.set(now);
    if !listeners::take_unheard() {
        return false;
    }
    if let Some(first) = cell::first() {
        first.with_from_app(Engine::retry_listen);
        first.ring();
    }
    true
}

impl Engine {
    /// Handles the request of a client on another host for a queue pair.
    pub(super) fn requested(&mut self, event: CmEvent) {
        let Some(id) = event.request else { return };
        let Some(port) = self.listeners.port_of(event.cookie) else { return };
        let ours = crate::rdma::hello(self.mux.qps.limits.msg_size, CompanionOffer::None);
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
        let Some((engine, cell)) = cell::least(|cell| cell.status.served.load(Ordering::Relaxed)) else { return };
        cell.status.served.fetch_add(1, Ordering::Relaxed);
        let request = Request { id, hello, port, engine };
        if engine == self.index {
            return self.accept(request);
        }
        // The first engine is the one that opens a device first, and so makes its descriptors private for all.
        if let Err(e) = self.mux.qps.device_of(&request.id) {
            cell.status.served.fetch_sub(1, Ordering::Relaxed);
            return netacc_log::log!(Warn, "RDMA: cannot open the device of a client's QP ({e}); dropping the request");
        }
        request.id.set_cookie(NOBODY);
        self.listeners.requests.push(request);
    }

    /// Takes over a request that arrived at the first engine, since this engine was chosen for it.
    pub(super) fn adopt_request(&mut self, mut request: Request) {
        let migrated = match &self.mux.qps.events {
            Some(events) => request.id.migrate(events),
            None => Err(Error::NoDevice),
        };
        match migrated {
            Ok(()) => self.accept(request),
            Err(e) => {
                self.status.served.fetch_sub(1, Ordering::Relaxed);
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
        let place =
            admitted.then(|| self.mux.qps.table.add(MAX_QPS, QpRecord::new(Stage::Requested, 0, None, port))).flatten();
        let Some(at) = place else {
            self.status.served.fetch_sub(1, Ordering::Relaxed);
            // The client goes by TCP.
            let _ = id.reject(&crate::rdma::hello(self.mux.qps.limits.msg_size, CompanionOffer::None).encode());
            return;
        };
        id.set_cookie(u64::from(tag(&self.mux.qps.table, at)));
        let held = self.mux.qps.make(id, at).map(drop).and_then(|()| {
            let companion = self.companions.offer(&mut self.mux.qps, at, hello.companion);
            match self.mux.qps.live_parts(at) {
                Some((qp_index, _)) => {
                    qp_index.accept(hello, companion)?;
                    Ok(companion == CompanionOffer::None || qp_index.keep())
                }
                None => Err(Error::NoDevice),
            }
        });
        match held {
            Ok(held) => {
                self.mux.qps.is_connected(at);
                if !held {
                    self.mux.qps.drop_companion(at);
                    self.end_lost();
                }
            }
            Err(e) => {
                netacc_log::log!(Warn, "RDMA: cannot accept a client's QP ({e}); the QP is closed");
                self.end_qp(at, "it could not be accepted");
            }
        }
    }

    /// Makes clients on other hosts find a listener at `local`.
    fn listen(&mut self, local: SocketAddr) {
        self.listeners.listen(self.mux.qps.events.as_ref(), &mut self.companions.watch, local);
    }

    /// Opens listeners whose port was taken.
    pub(super) fn open_listeners(&mut self) {
        self.listeners.open(self.mux.qps.events.as_ref(), &mut self.companions.watch);
    }

    /// Tries listeners again that had no device and may have one by now.
    fn retry_listen(&mut self) {
        self.listeners.retry(self.mux.qps.events.as_ref(), &mut self.companions.watch);
    }

    /// Makes room for a queue pair of a client at `ip`: if there are too many whose clients have said nothing, the
    /// oldest of those ends, and if there are as many queue pairs as there can be, one without connections. False:
    /// there is none that could end.
    fn make_room(&mut self, ip: IpAddr) -> bool {
        let now = time::now();
        let bounds = self.mux.qps.limits.silent;
        let full = Bounds { per_address: MAX_QPS, all: 0 };
        let silent = |e: &QpRecord| !e.used;
        let idle = |e: &QpRecord| e.conns.is_empty() && now.saturating_sub(e.idle_since) > QP_CONNECT;
        let ready = |victim: Silent| now.saturating_sub(victim.since) > FIRST_WORD;
        match evicted(&self.mux.qps.clients(silent), ip, bounds) {
            Some(victim) if !ready(victim) => return false,
            None if self.mux.qps.table.each().count() < MAX_QPS => return true,
            _ => {}
        }
        // Messages of clients may be unread. The engine's thread handles them.
        self.complete(None);
        self.ring();
        let victim = match evicted(&self.mux.qps.clients(silent), ip, bounds) {
            None if self.mux.qps.table.each().count() < MAX_QPS => return true,
            None => evicted(&self.mux.qps.clients(idle), ip, full),
            victim => victim.filter(|victim| ready(*victim)),
        };
        if let Some(victim) = victim {
            self.end_qp(victim.id, "it has not been used, and others come");
        }
        victim.is_some()
    }
}
