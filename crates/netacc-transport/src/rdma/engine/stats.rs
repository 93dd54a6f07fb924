//! What the stats page shows of queue pairs, and of the connections on them. The record of a queue pair counts itself
//! what it sends and receives.

use crate::host::host;
use crate::num;
use crate::rdma::engine::qp::{QP_CONNECT, QpRecord, Stage};
use crate::rdma::engine::qps::Qps;
use crate::shm::{Link, ShmEndpoint};
use core::sync::atomic::{Ordering, fence};
use netacc_stats::LinkEntry;
use netacc_sys::time;

impl QpRecord {
    fn stats_entry(&self) -> Option<(u32, &'static LinkEntry)> {
        match self.stage() {
            Stage::Up(qp_conn) => qp_conn.entry(),
            Stage::FailedOver(failed) => failed.state.stats.entry(),
            _ => None,
        }
    }
}

impl Qps {
    /// Enters a queue pair that is connected.
    pub(super) fn count_up(&mut self, at: usize) {
        let Some(qp) = self.table.get_mut(at) else { return };
        let server = qp.route.is_none();
        let capacity = if server { 0 } else { num::small(self.limits.conn_per_qp) };
        if let Some((qp_index, device)) = qp.parts(&mut self.devices) {
            qp_index.show(device, server, capacity, u16::try_from(self.index).unwrap_or(u16::MAX));
        }
        self.count_idle(at);
    }

    /// Notes that a queue pair has no connection.
    fn count_idle(&self, at: usize) {
        let Some(qp) = self.table.get(at) else { return };
        let Some((_, entry)) = qp.stats_entry() else { return };
        let now = time::realtime_coarse();
        // The times are those of `maintenance`.
        let timeout = match qp.route {
            Some(_) => self.limits.idle_ns,
            None => (!qp.used).then_some(QP_CONNECT * 5),
        };
        entry.idle_since(now);
        entry.expires_at(timeout.map_or(0, |ns| now.saturating_add(ns)));
    }

    /// Counts one more connection on a queue pair.
    pub(super) fn count_taken(&self, qp_index: usize) {
        if let Some((_, entry)) = self.table.get(qp_index).and_then(QpRecord::stats_entry) {
            entry.taken();
        }
    }

    /// Client's host: shows by which queue pair a connection goes, whose slot of the link `local` `ep` is our side of.
    /// `client` is the other side of the route's link.
    pub(super) fn show_taken(
        &self,
        qp_index: usize,
        ep: &'static ShmEndpoint,
        local: &'static Link,
        client: Option<&'static Link>,
    ) {
        self.publish_qp(qp_index, ep);
        // Sockets on a full link that has been replaced look at their slot themselves.
        if let Some(client) = client.filter(|client| client.is_other_side_of(local)) {
            publish_to_socket(client, ep.side.slot_index());
        }
    }

    /// Stores in the slot which queue pair carries its connection.
    pub(super) fn publish_qp(&self, qp_index: usize, ep: &'static ShmEndpoint) {
        let Some((place, _)) = self.table.get(qp_index).and_then(QpRecord::stats_entry) else { return };
        if let Some(slot) = ep.side.link().segment().and_then(|s| s.slot(ep.side.slot_index())) {
            slot.open.write_qp(place);
        }
    }

    /// Counts one connection less on a queue pair.
    pub(super) fn count_closed(&self, qp_index: usize) {
        let entry = self.table.get(qp_index).and_then(QpRecord::stats_entry);
        if entry.is_some_and(|(_, entry)| entry.left()) {
            self.count_idle(qp_index);
        }
    }
}

/// Shows the socket at the client's end of a slot with its queue pair. The socket's entry may name the link already; if
/// not, the socket will look at the slot itself.
fn publish_to_socket(link: &'static Link, slot: usize) {
    // SeqCst: we tell the slot and then look at the entry; the socket stores to its entry and then looks at the slot.
    fence(Ordering::SeqCst);
    let Some(ep) = link.endpoint(slot) else { return };
    let entry = host().and_then(|host| host.stats_of(ep));
    if let Some(qp) = entry.filter(|e| e.link() == u64::from(link.id())) {
        qp.set_link(ep.side.stats_link());
    }
}
