//! What the stats page shows of queue pairs, and of the connections on them. The pipe of a queue pair counts itself
//! what it sends and receives.

use crate::carrier::engine::Engine;
use crate::carrier::entry::{Entry, Stage};
use crate::carrier::meet::QP_CONNECT;
use crate::epoll;
use crate::socket::Socket;
use core::sync::atomic::{Ordering, fence};
use netacc_stats::LinkEntry;
use netacc_sys::time;
use netacc_transport::shm::{Link, ShmEndpoint};

impl Entry {
    fn shown(&self) -> Option<(u32, &'static LinkEntry)> {
        match &self.stage {
            Stage::Up(pipe) => pipe.entry(),
            Stage::Moved(moved) => moved.left.shown.entry(),
            _ => None,
        }
    }
}

impl Engine {
    /// Enters a queue pair that is connected.
    pub(super) fn report_up(&mut self, at: usize) {
        let Some(entry) = self.pipes.get_mut(at) else { return };
        let server = entry.route.is_none();
        let capacity = if server { 0 } else { self.limits.conn_per_qp as u32 };
        if let Some((pipe, device)) = entry.parts(&mut self.devices) {
            pipe.show(device, server, capacity, self.index as u16);
        }
        self.report_idle(at);
    }

    /// Notes that a queue pair has no connection.
    fn report_idle(&self, at: usize) {
        let Some(entry) = self.pipes.get(at) else { return };
        let Some((_, shown)) = entry.shown() else { return };
        let now = time::realtime_coarse();
        // The same times as in `tidy`.
        let patience = match entry.route {
            Some(_) => self.limits.idle_ns,
            None => (!entry.used).then_some(QP_CONNECT * 5),
        };
        shown.idle_since(now);
        shown.expires_at(patience.map_or(0, |ns| now.saturating_add(ns)));
    }

    /// Counts one more connection on a queue pair, whose slot of a link `ep` is our side of.
    pub(super) fn report_taken(&self, pipe: usize, ep: &'static ShmEndpoint, local: usize) {
        let Some((_, shown)) = self.pipes.get(pipe).and_then(Entry::shown) else { return };
        shown.taken();
        // On the server's host that was told before the connect was queued.
        let Some((local, route)) = self.locals.get(local).and_then(|l| Some((l.link, self.routes.get(l.route?)?)))
        else {
            return;
        };
        self.report_carrier(pipe, ep);
        // Sockets on a full link that has been replaced look at their slot themselves.
        if let Some(client) = route.link.filter(|client| client.is_other_side_of(local)) {
            tell_socket(client, ep.slot_index());
        }
    }

    /// Stores in the slot which queue pair carries its connection.
    pub(super) fn report_carrier(&self, pipe: usize, ep: &'static ShmEndpoint) {
        let Some((place, _)) = self.pipes.get(pipe).and_then(Entry::shown) else { return };
        if let Some(slot) = ep.link().segment().and_then(|s| s.slot(ep.slot_index())) {
            slot.open.tell_carrier(place);
        }
    }

    /// Counts one connection less on a queue pair.
    pub(super) fn report_left(&self, pipe: usize) {
        let shown = self.pipes.get(pipe).and_then(Entry::shown);
        if shown.is_some_and(|(_, shown)| shown.left()) {
            self.report_idle(pipe);
        }
    }
}

/// Shows the socket at the client's end of a slot with its queue pair. The socket's entry may name the link already; if
/// not, the socket will look at the slot itself.
fn tell_socket(link: &'static Link, slot: usize) {
    // SeqCst: we tell the slot and then look at the entry; the socket stores to its entry and then looks at the slot.
    fence(Ordering::SeqCst);
    let Some(ep) = link.endpoint(slot) else { return };
    let socket = epoll::at(ep.owner.load(Ordering::Acquire) as *mut Socket);
    let entry = socket.filter(|s| s.endpoint().is_some_and(|e| core::ptr::eq(e, ep))).and_then(Socket::stats);
    if let Some(entry) = entry.filter(|e| e.link() == u64::from(link.id())) {
        entry.set_link(ep.shown_link());
    }
}
