//! What the stats page shows of a queue pair.

use crate::shm::link;
use core::net::{IpAddr, SocketAddr};
use netacc_stats::{Counter, LinkEntry, LinkKind, NewLink, SockAddr, page};
use netacc_sys::time;

/// The place of a queue pair on the stats page. Its counters have one writer: the thread that uses the queue pair.
#[derive(Debug, Default)]
pub struct QpStats {
    /// Number of the entry; 0: the queue pair was never connected.
    id: u32,
    index: u32,
    /// The entry; `None` also if no entry is free.
    entry: Option<&'static LinkEntry>,
}

/// What is shown of a queue pair that is connected.
#[derive(Debug)]
pub struct Shown<'a> {
    /// Set on the server's host.
    pub server: bool,
    /// Number of connections that we put on it; 0: that is the other side's choice.
    pub capacity: u32,
    /// The number of the process's thread that it belongs to.
    pub thread: u16,
    /// The name of its device.
    pub device: &'a str,
    /// The queue pair's number.
    pub qp_num: u32,
}

impl QpStats {
    /// Shows a queue pair that is connected to `peer`. `credits` are the other side's receives that are free, and all
    /// that it has.
    pub(super) fn show(shown: &Shown<'_>, peer: Option<SocketAddr>, credits: (u16, u16)) -> QpStats {
        let new = NewLink {
            id: link::next_id(),
            kind: LinkKind::Rdma,
            server: shown.server,
            peer_pid: 0,
            now_ns: time::realtime(),
            capacity: shown.capacity,
            address: shown.qp_num.into(),
        };
        let place = page().open_link(&new);
        let entry = place.and_then(|place| page().link(place));
        if let Some(entry) = entry {
            entry.carried_by(shown.thread);
            entry.lead_to(shown.device, &peer.map_or_else(SockAddr::default, sock_addr));
        }
        let stats = QpStats { id: new.id, index: place.unwrap_or(0), entry };
        stats.show_credits(credits);
        page().count(Counter::LinksOpened);
        stats
    }

    fn show_credits(&self, (free, all): (u16, u16)) {
        if let Some(entry) = self.entry {
            entry.set_credits(free, all);
        }
    }

    /// Shows that messages were posted.
    pub(super) fn posted(&self, sends: u32, credits: (u16, u16)) {
        if let Some(entry) = self.entry {
            entry.posted(sends.into());
            self.show_credits(credits);
        }
    }

    /// Shows that messages have gone out.
    pub(super) fn completed(&self, sends: u32) {
        if let Some(entry) = self.entry {
            entry.completed(sends.into());
        }
    }

    /// Shows that a message has come.
    pub(super) fn received(&self, credits: (u16, u16)) {
        if let Some(entry) = self.entry {
            entry.received();
            self.show_credits(credits);
        }
    }

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

fn sock_addr(a: SocketAddr) -> SockAddr {
    match a.ip().to_canonical() {
        IpAddr::V4(ip) => SockAddr::v4(ip.octets(), a.port()),
        IpAddr::V6(ip) => SockAddr::v6(ip.octets(), a.port()),
    }
}
