//! What the stats page shows of a queue pair.

use crate::rdma::conn::QpConn;
use crate::rdma::device::Device;
use crate::shm::link;
use core::net::{IpAddr, SocketAddr};
use netacc_stats::{Counter, LinkEntry, LinkKind, NewLink, SockAddr, page};
use netacc_sys::time;

/// The place of a queue pair on the stats page. Its counters have one writer: the thread that uses the queue pair.
#[derive(Debug, Default)]
pub struct QpStats {
    /// Its number there; 0: the queue pair was never connected.
    id: u32,
    index: u32,
    /// Its entry; `None` also if no entry is free.
    entry: Option<&'static LinkEntry>,
}

impl QpStats {
    /// The number of its entry, and the entry.
    pub fn entry(&self) -> Option<(u32, &'static LinkEntry)> {
        Some((self.index, self.entry?))
    }

    /// Shows that the queue pair goes on by TCP.
    pub fn failed_over(&self) {
        if let Some(entry) = self.entry {
            entry.set_kind(LinkKind::Tcp);
        }
    }

    /// Ends the entry: the queue pair counts as lost if connections were on it.
    pub fn hide(&self) {
        if self.id == 0 {
            return;
        }
        let lost = self.entry.is_some_and(|entry| entry.in_use() > 0);
        page().count(if lost { Counter::LinksLost } else { Counter::LinksClosed });
        if let Some(entry) = self.entry {
            entry.close(self.id);
        }
    }
}

impl QpConn {
    /// Shows a queue pair that is connected. `capacity` is how many connections we put on it; 0: that is the other
    /// side's choice. `thread` is the number of the process's thread that it belongs to.
    pub fn show(&mut self, device: &Device, server: bool, capacity: u32, thread: u16) {
        let new = NewLink {
            id: link::next_id(),
            kind: LinkKind::Rdma,
            server,
            peer_pid: 0,
            now_ns: time::realtime(),
            capacity,
            address: self.qp_num().into(),
        };
        let place = page().open_link(&new);
        let entry = place.and_then(|place| page().link(place));
        if let Some(entry) = entry {
            entry.carried_by(thread);
            entry.lead_to(device.name(), &self.peer_addr().map_or_else(SockAddr::default, sock_addr));
        }
        self.stats = QpStats { id: new.id, index: place.unwrap_or(0), entry };
        self.show_credits();
        page().count(Counter::LinksOpened);
    }

    /// The number of its entry on the stats page, and the entry.
    pub fn entry(&self) -> Option<(u32, &'static LinkEntry)> {
        self.stats.entry()
    }

    pub(super) fn show_credits(&self) {
        if let Some(entry) = self.stats.entry {
            let (free, all) = self.credits();
            entry.set_credits(free, all);
        }
    }

    pub(super) fn show_posted(&self, sends: u32) {
        if let Some(entry) = self.stats.entry {
            entry.posted(sends.into());
            self.show_credits();
        }
    }

    pub(super) fn show_completed(&self, sends: u32) {
        if let Some(entry) = self.stats.entry {
            entry.completed(sends.into());
        }
    }

    pub(super) fn show_received(&self) {
        if let Some(entry) = self.stats.entry {
            entry.received();
            self.show_credits();
        }
    }
}

fn sock_addr(a: SocketAddr) -> SockAddr {
    match a.ip().to_canonical() {
        IpAddr::V4(ip) => SockAddr::v4(ip.octets(), a.port()),
        IpAddr::V6(ip) => SockAddr::v6(ip.octets(), a.port()),
    }
}
