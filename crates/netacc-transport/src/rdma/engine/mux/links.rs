//! The links of an engine: to programs of this host, and to itself for destinations on other hosts.

use crate::host::host;
use crate::num;
use crate::rdma::engine::mux::conn::Conn;
use crate::rdma::engine::mux::state::TxState;
use crate::rdma::engine::process;
use crate::rdma::engine::status::EngineStatus;
use crate::rdma::engine::table::Table;
use crate::shm::slots::{CONTROL_SLOT, SLOTS};
use crate::shm::{Link, ShmEndpoint};
use alloc::vec;
use alloc::vec::Vec;
use netacc_ring::to_usize;

/// Most connections: as many as their numbers can name.
pub(in crate::rdma::engine) const CONNS: usize = 1 << 16;

/// A link, of which we are one side.
#[derive(Debug)]
pub(in crate::rdma::engine) struct Local {
    pub link: &'static Link,
    pub ready_set: u32,
    /// Per slot the connection's number + 1; 0: none.
    pub slots: Vec<u32>,
    /// The destination whose connects come by it (client's host).
    pub route: Option<usize>,
    /// Number of connects that wait there for a queue pair.
    waiting: usize,
    /// Set once this engine has heard that the other side is gone. Another engine may have the same link, and hear of
    /// it first.
    pub ended: bool,
}

impl Local {
    /// The descriptor of our waker on the link.
    pub fn waker(&self) -> i32 {
        self.link.wakers().fd(self.ready_set)
    }

    /// The connection in a slot.
    pub fn conn(&self, slot: usize) -> Option<usize> {
        (*self.slots.get(slot)? as usize).checked_sub(1)
    }

    /// Has the other side ring; false if it has left bits already.
    pub fn arm(&self) -> bool {
        self.link.my_ready_set(self.ready_set).is_none_or(netacc_ring::ReadySet::arm)
    }

    /// Whether connects wait there.
    pub fn has_queued(&self) -> bool {
        self.link.segment().is_some_and(|s| s.queued() > 0)
    }

    /// Whether the other side is in this process, and perhaps its children.
    pub fn is_in_process(&self) -> bool {
        self.route.is_some() || self.link.peer_pid() == process::owner()
    }

    /// Whether only this process writes on the other side: each of its threads makes progress after it has written.
    pub fn is_ours(&self) -> bool {
        self.is_in_process() && host().is_none_or(|host| host.has_no_children())
    }
}

/// The links of an engine.
#[derive(Debug)]
pub(in crate::rdma::engine) struct Links {
    pub table: Table<Local>,
    /// Set while the engine's thread sleeps: a thread that adds something to listen to has to wake it.
    pub asleep: bool,
    status: &'static EngineStatus,
    /// Links for the server's end of connections that began on TCP: the program's side, and the place of ours.
    pub seats: Vec<(&'static Link, usize)>,
}

impl Links {
    /// No link yet.
    pub fn new(status: &'static EngineStatus) -> Links {
        Links { table: Table::default(), asleep: false, status, seats: Vec::new() }
    }

    /// Watches a link; the caller gives us its reference.
    pub fn add(&mut self, link: &'static Link, route: Option<usize>) -> Option<usize> {
        let Ok(ready_set) = link.open_ready_set() else {
            link.put();
            return None;
        };
        let local = Local { link, ready_set, slots: vec![0; SLOTS], route, waiting: 0, ended: false };
        let Some(at) = self.table.add(CONNS, local) else {
            link.close_ready_set(ready_set);
            link.put();
            return None;
        };
        // The thread is to listen to this link too. For a link to another host the thread is told by the code that
        // makes it, if it has to know.
        if route.is_none() && self.asleep {
            self.status.ring();
        }
        if route.is_some()
            && let Some(q) = link.endpoint(CONTROL_SLOT)
        {
            q.subscribe(ready_set);
        }
        Some(at)
    }

    /// Lets a link go.
    pub fn drop(&mut self, at: usize) {
        if let Some(local) = self.table.remove(at) {
            self.status.waiting.subtract(local.waiting);
            local.link.close_ready_set(local.ready_set);
            local.link.put();
        }
    }

    /// The place of a link.
    pub fn of(&self, link: &Link) -> Option<usize> {
        self.table.each().find(|(_, l)| core::ptr::eq(l.link, link)).map(|(at, _)| at)
    }

    /// The connection in a slot.
    pub fn conn_at(&self, local: usize, slot: usize) -> Option<usize> {
        self.table.get(local)?.conn(slot)
    }

    /// Connection `conn` is in the slot of `ep`, our side of the link at `local`.
    pub fn place(&mut self, local: usize, ep: &ShmEndpoint, conn: usize) {
        if let Some(local) = self.table.get_mut(local) {
            if let Some(place) = local.slots.get_mut(ep.side.slot_index()) {
                *place = num::small(conn) + 1;
            }
            ep.subscribe(local.ready_set);
        }
    }

    /// Connection `conn` is in this slot no longer.
    pub fn clear(&mut self, local: usize, slot: usize, conn: usize) {
        if let Some(place) = self.table.get_mut(local).and_then(|l| l.slots.get_mut(slot))
            && *place == num::small(conn) + 1
        {
            *place = 0;
        }
    }

    /// Counts the connects that are left there, for the thread that chooses the engine of the next one.
    pub fn count_waiting(&mut self, local: usize) {
        let Some(l) = self.table.get_mut(local) else { return };
        let queued = l.link.segment().filter(|_| l.route.is_some()).map_or(0, |s| to_usize(s.queued()));
        let before = core::mem::replace(&mut l.waiting, queued.min(SLOTS));
        self.status.waiting.add(l.waiting.wrapping_sub(before));
    }

    /// The links by which connects to a route's server come.
    pub fn of_route(&self, route: usize) -> Vec<usize> {
        self.table.each().filter(|(_, l)| l.route == Some(route)).map(|(at, _)| at).collect()
    }

    /// The connection that has `ep` at its other side, if that is in this process.
    pub fn mate(&self, ep: &ShmEndpoint) -> Option<usize> {
        let link = ep.side.link();
        let (_, local) = self.table.each().find(|(_, local)| local.link.is_other_side_of(link))?;
        local.conn(ep.side.slot_index())
    }

    /// Whether the connection may go on when this process ends: it belongs to another process's program, or other
    /// processes have it or its kernel socket, too.
    pub fn is_handed_off(&self, conn: &Conn) -> bool {
        let elsewhere = || self.table.get(conn.local).is_some_and(|l| !l.is_in_process());
        conn.upgrade.is_none()
            && conn.tx() != TxState::Cut
            && (conn.kernel >= 0 || conn.ep.liveness.peer_fd() >= 0 || elsewhere())
    }
}
