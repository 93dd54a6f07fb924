//! Connections that begin.

use crate::host::host;
use crate::rdma::engine::mux::Mux;
use crate::rdma::engine::mux::conn::Conn;
use crate::rdma::engine::mux::links::CONNS;
use crate::rdma::engine::process;
use crate::rdma::engine::qp::Payload;
use crate::shm::claim::Pushed;
use crate::shm::{Link, ShmEndpoint};
use core::net::SocketAddr;
use netacc_stats::Reason;
use netacc_wire::frame::{ADDRESSES, Frame, decode_addresses};

impl Mux {
    /// Begins to carry a connection. `name` is what the other side calls it. Returns its place among the connections.
    pub fn begin(
        &mut self,
        ep: &'static ShmEndpoint,
        local: usize,
        qp_index: usize,
        name: Option<(u16, u32)>,
        opening: Option<[u8; ADDRESSES]>,
    ) -> Option<usize> {
        let conn = Conn::new(ep, local, qp_index, name, opening);
        let Some(at) = self.conns.table.add(CONNS, conn) else {
            crate::Endpoint::close(ep, true);
            return None;
        };
        self.status.carried.add(1);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the table has at most CONNS places, and a u16 can name as many"
        )]
        let own_id = at as u16;
        let (id, generation) = name.unwrap_or((own_id, self.conns.table.generation(at)));
        if let Some(conn) = self.conns.table.get_mut(at) {
            (conn.id, conn.generation) = (id, generation);
        }
        if let Some(qp) = self.qps.table.get_mut(qp_index) {
            qp.conns.insert(id, at);
            qp.used = true;
            // Progress that only moves bytes does not allocate.
            qp.stalled.reserve(qp.conns.len());
        }
        let conns = self.conns.table.len();
        self.conns.ready.reserve(conns);
        self.conns.starved.reserve(conns);
        self.links.place(local, ep, at);
        self.qps.count_taken(qp_index);
        self.conns.queue(at);
        Some(at)
    }

    /// Server's host: handles a client on another host that opens a connection. False: the client broke the rules.
    pub fn opened(&mut self, at: usize, frame: Frame, payload: Payload<'_>) -> bool {
        let Some(qp) = self.qps.table.get_mut(at) else { return true };
        if qp.route.is_some() || payload.len() != ADDRESSES {
            return false;
        }
        let mut bytes = [0u8; ADDRESSES];
        let Some((client, server)) = Some(())
            .filter(|()| qp.copy(&mut self.qps.devices, payload, 0, &mut bytes))
            .and_then(|()| decode_addresses(&bytes))
        else {
            return false;
        };
        // The connection manager has confirmed the client's address; its port is the client's own claim, and proves
        // nothing.
        let honest = qp.ips == Some((server.ip(), client.ip()));
        if !honest || qp.port != server.port() || client.port() < 1024 {
            // Its host may have been given another address since the queue pair was connected: that concerns nobody else.
            netacc_log::log!(
                Info,
                "{client}: its host has another address; the RDMA connection to {server} is refused"
            );
            self.qps.refuse(at, frame);
            return true;
        }
        if let Some(&old) = qp.conns.get(&frame.conn) {
            self.end_of_name(old);
        }
        match self.join(client, server, at) {
            Ok((ep, local)) => {
                if self.begin(ep, local, at, Some((frame.conn, frame.generation)), None).is_none() {
                    self.qps.refuse(at, frame);
                }
            }
            Err(why) => {
                netacc_log::log!(Info, "{client}: the RDMA connection to {server} is refused: {}", why.name());
                self.qps.refuse(at, frame);
            }
        }
        true
    }

    /// Connects to a listener of this host on behalf of `client`.
    pub fn join(
        &mut self,
        client: SocketAddr,
        server: SocketAddr,
        qp_index: usize,
    ) -> Result<(&'static ShmEndpoint, usize), Reason> {
        if process::is_alone() {
            return Err(Reason::Refused);
        }
        let claim = host().ok_or(Reason::Refused)?.claim(client, server)?;
        let (link, claimed) = (claim.link, claim.claimed);
        let Some(ep) = link.endpoint(claimed.slot).filter(|ep| ep.begin(claimed.generation)) else {
            link.slots.burned();
            return Err(Reason::NoMemory);
        };
        if let Some(slot) = link.segment().and_then(|s| s.slot(claimed.slot)) {
            slot.open.write_remote(client, server, self.qps.index);
            self.qps.publish_qp(qp_index, ep);
        }
        let Some(local) = self.local_of(link) else {
            drop(claim);
            ep.side.never_mind(claimed.generation);
            crate::Endpoint::close(ep, true);
            return Err(Reason::NoDescriptors);
        };
        if claim.push() == Pushed::Full {
            ep.side.never_mind(claimed.generation);
            crate::Endpoint::close(ep, true);
            return Err(Reason::Refused);
        }
        Ok((ep, local))
    }

    /// The local for a link of the pool's.
    fn local_of(&mut self, link: &'static Link) -> Option<usize> {
        if let Some(at) = self.links.of(link) {
            return Some(at);
        }
        link.hold();
        self.links.add(link, None)
    }
}
