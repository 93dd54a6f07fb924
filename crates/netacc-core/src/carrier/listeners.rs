//! Listeners for clients on other hosts.

use crate::carrier::engine::Engine;
use crate::carrier::entry::{Entry, Stage, tag};
use crate::carrier::meet::{LISTENER, PIPES};
use core::net::SocketAddr;
use netacc_stats::{Reason, page};
use netacc_sys::errno::Errno;
use netacc_transport::rdma::port_of;
use netacc_verbs::{CmEvent, CmId, Error};
use netacc_wire::base::Base;
use netacc_wire::frame::{Greeting, Stranger};

/// A listener for other hosts.
#[derive(Debug)]
pub(super) struct FarListener {
    local: SocketAddr,
    /// Sockets of the program that listen there.
    users: u32,
    id: Option<CmId>,
    /// The next attempt may end otherwise: another process has the port.
    again: bool,
}

impl FarListener {
    /// Whether it is to be opened, as soon as its port is free.
    pub fn is_wanted(&self) -> bool {
        self.users > 0 && self.id.is_none() && self.again
    }
}

impl Engine {
    /// Clients on other hosts are to find a listener at `local`.
    pub fn listen(&mut self, local: SocketAddr) {
        if let Some(l) = self.listeners.iter_mut().find(|l| l.local == local) {
            l.users += 1;
            return;
        }
        let Some(port) = port_of(local.port()) else {
            return crate::log!(Info, "{local} is not reachable by RDMA: {} + 20000 is no port", local.port());
        };
        let fresh = FarListener { local, users: 1, id: None, again: true };
        match self.listeners.iter_mut().find(|l| l.users == 0) {
            Some(place) => *place = fresh,
            None => self.listeners.push(fresh),
        }
        self.open_listeners();
        if self.listeners.iter().any(|l| l.local == local && l.is_wanted()) {
            crate::log!(Info, "{local} is not reachable by RDMA as long as port {port} is taken");
        }
    }

    pub(super) fn open_listeners(&mut self) {
        for at in 0..self.listeners.len() {
            let Some(l) = self.listeners.get_mut(at).filter(|l| l.is_wanted()) else { continue };
            let Some(port) = port_of(l.local.port()) else { continue };
            let opened = CmId::create(&self.events, LISTENER | at as u64).and_then(|id| {
                // IPv4 has a listener of its own: see `socket::listen::far_names`.
                if l.local.is_ipv6() {
                    id.set_af_only(true)?;
                }
                id.bind_addr(SocketAddr::new(l.local.ip(), port))?;
                id.listen(128)?;
                Ok(id)
            });
            match opened {
                Ok(id) => {
                    crate::log!(Info, "{} is reachable by RDMA at port {port}", l.local);
                    page().set_rdma_port(l.local.port(), Some(port));
                    l.id = Some(id);
                }
                Err(e) if e.errno() == Errno::ADDRINUSE => {}
                Err(e) => {
                    l.again = false;
                    crate::log!(Info, "{} is not reachable by RDMA at port {port}: {e}", l.local);
                }
            }
        }
    }

    /// Whether the program listens at this port.
    pub(super) fn listens(&self, port: u16) -> bool {
        self.listeners.iter().any(|l| l.users > 0 && l.local.port() == port)
    }

    /// One socket less listens there.
    pub fn unlisten(&mut self, local: SocketAddr) {
        if let Some(l) = self.listeners.iter_mut().find(|l| l.local == local) {
            l.users = l.users.saturating_sub(1);
            if l.users == 0 {
                // Its place stays, for the next one: events name it by number.
                l.id = None;
                let port = l.local.port();
                l.local.set_port(0);
                self.closed_port(port);
            }
        }
    }

    pub(super) fn forget_listener(&mut self, cookie: u64) {
        let Some(l) = self.listeners.get_mut((cookie & !LISTENER) as usize) else { return };
        let device = l.id.as_ref().and_then(|id| self.devices.iter().position(|d| d.has(id)));
        l.id = None;
        let port = l.local.port();
        self.closed_port(port);
        // What else is on the device would hold up its removal.
        if let Some(device) = device {
            self.device_goes(device);
        }
    }

    /// A listener at this port is not reachable any more; one at another address may be.
    fn closed_port(&self, port: u16) {
        if !self.listeners.iter().any(|l| l.local.port() == port && l.id.is_some()) {
            page().set_rdma_port(port, None);
        }
    }

    /// A client on another host asks for a queue pair.
    pub(super) fn requested(&mut self, event: CmEvent) {
        let Some(id) = event.request else { return };
        let listener = self.listeners.get((event.cookie & !LISTENER) as usize);
        let Some(port) = listener.filter(|l| l.id.is_some()).map(|l| l.local.port()) else { return };
        let ours = netacc_transport::rdma::greeting(self.limits.msg_size, Base::None);
        let greeting = match Greeting::decode(event.private_data.as_slice()) {
            Ok(greeting) => greeting,
            Err(stranger) => {
                page().fallback(match stranger {
                    Stranger::Version => Reason::PeerVersion,
                    Stranger::Garbage => Reason::ProtocolError,
                });
                // It learns our version from the answer.
                let _ = id.reject(&ours.encode());
                return;
            }
        };
        let Some(at) = self.pipes.add(PIPES, Entry::new(Stage::Gone, 0, None, port)) else { return };
        id.set_cookie(u64::from(tag(&self.pipes, at)));
        let accepted = self.make(id, at).map(drop).and_then(|()| {
            let base = self.offer_base(at, greeting.base);
            match self.pipes.get_mut(at).and_then(|e| e.live_parts(&mut self.devices)) {
                Some((pipe, _)) => {
                    pipe.accept(greeting, base)?;
                    if base != Base::None {
                        pipe.keep();
                    }
                    Ok(())
                }
                None => Err(Error::NoDevice),
            }
        });
        match accepted {
            Ok(()) => self.is_connected(at),
            Err(e) => {
                crate::log!(Warn, "a queue pair for a client is not to be had: {e}");
                self.end_pipe(at, "it could not be accepted");
            }
        }
    }
}
