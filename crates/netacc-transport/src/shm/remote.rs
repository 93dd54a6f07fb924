//! Links to servers on other hosts. Both sides are in this process: the client's side belongs to the socket layer, and
//! the server's side to an RDMA engine, which sends the rings' bytes over the network.

use crate::num;
use crate::shm::Link;
use crate::shm::ShmEndpoint;
use crate::shm::liveness::Liveness;
use crate::shm::mapping::Mapped;
use crate::shm::segment::Segment;
use crate::shm::server_state::ServerState;
use crate::shm::side::Side;
use crate::shm::side_machines::PEER_GONE;
use crate::shm::side_state::SideState;
use crate::shm::slot_side::SlotSide;
use crate::shm::slots::SLOTS;
use crate::shm::users::Trust;
use core::sync::atomic::Ordering;
use netacc_stats::{LinkEntry, page};
use netacc_sys::errno::Result;
use netacc_sys::{Guard, Lock, lock, lock_rank, raw, reserved_fds};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// Guards `Link::mate`. It is taken last.
static PAIRS: Lock<{ lock_rank::LEAF }> = Lock::new();

impl Link {
    /// Makes both sides of a link: the client's, and the server's for the RDMA engine with this number.
    pub fn pair(engine: usize) -> Result<(&'static Link, &'static Link)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (local_end, peer_end) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let memfd = Segment::create()?;
        let seg = Segment::map_own(memfd.as_fd());
        reserved_fds::drop_raw(memfd);
        let mapped = Mapped { seg: seg?, file: 0 };
        let one = |side, control: OwnedFd| {
            reserved_fds::adopt(control)
                .and_then(|control| Link::new(side, mapped, control, Trust::User, raw::getpid()))
        };
        let client = one(Side::Client, local_end).inspect_err(|_| mapped.discard())?;
        let server = one(Side::Server, peer_end).inspect_err(|_| client.put())?;
        {
            let _g = PAIRS.lock();
            client.mate.set(Some(server));
            server.mate.set(Some(client));
        }
        client.remote.store(num::small(engine) + 1, Ordering::Relaxed);
        if let Some(seg) = server.segment() {
            seg.set_backlog(const { num::constant(SLOTS) + 1 });
            seg.set_server(ServerState::Open);
        }
        Ok((client, server))
    }

    /// The other side in this process, for as long as the lock is held.
    fn mate(&self, _held: &Guard<'_>) -> Option<&'static Link> {
        self.mate.get()
    }

    /// To be called when the last user of this side has released it. Returns whether the other side keeps the mapping
    /// that both have used.
    pub(super) fn part(&self) -> bool {
        let held = PAIRS.lock();
        let mate = self.mate(&held);
        for link in mate.into_iter().chain([self]) {
            link.mate.set(None);
        }
        mate.is_some()
    }

    /// Hands a waker of ours to the other side, if that is in this process; false if it is not.
    pub(super) fn hand_waker(&self, id: u32, fd: i32) -> Result<bool> {
        // A signal handler may have interrupted the thread that holds the lock: then the other side gets a message.
        let held = if lock::interrupted() { PAIRS.try_lock() } else { Some(PAIRS.lock()) };
        let Some(mate) = held.as_ref().and_then(|held| self.mate(held)) else { return Ok(false) };
        mate.wakers().learn(id, reserved_fds::copy(fd)?);
        Ok(true)
    }

    /// Whether the server is on another host (client side).
    #[inline]
    pub fn is_remote(&self) -> bool {
        self.remote.load(Ordering::Relaxed) != 0
    }

    /// The number of the RDMA engine that has the server's side, if the server is on another host.
    #[inline]
    pub fn engine(&self) -> Option<usize> {
        (self.remote.load(Ordering::Relaxed) as usize).checked_sub(1)
    }

    /// Accepts no more connects, and has the clients make the queued ones again by TCP (server side).
    pub fn refuse_connects(&'static self) {
        let Some(seg) = self.segment() else { return };
        seg.set_server(ServerState::Withdrawn);
        for slot in core::iter::from_fn(|| self.pop()).take(SLOTS) {
            if let Some(ep) = self.endpoint(slot as usize) {
                ep.stir_peer();
            }
        }
    }
}

/// The statistics entry of the queue pair that carries the connection, if that belongs to this process and is known
/// already.
fn qp_entry(side: &SlotSide) -> Option<&'static LinkEntry> {
    let ours = side.link().peer_pid() == raw::getpid();
    let place = side.view().filter(|_| ours).and_then(|v| v.slot.open.qp())?;
    page().link(place)
}

/// Whether the queue pair that carries the connection has failed, so that TCP carries it.
pub fn has_failed_over(ep: &ShmEndpoint) -> bool {
    qp_entry(&ep.side).is_some_and(LinkEntry::is_failed_over)
}

impl SlotSide {
    /// Whether the other program is on another host.
    #[inline]
    pub fn is_remote(&self) -> bool {
        self.remote.load(Ordering::Relaxed) != 0
    }

    /// The number of the RDMA engine that carries the connection, if the other program is on another host. At a server
    /// it is an engine of the process that listens for RDMA, which may be another one; it is a hint, since a peer can
    /// write it.
    #[inline]
    pub fn engine(&self) -> Option<usize> {
        (self.remote.load(Ordering::Relaxed) as usize).checked_sub(1)
    }

    /// The number under which the statistics show the path of the connection: that of its queue pair, if that belongs
    /// to this process and is known already, else that of the link.
    pub fn stats_link(&self) -> u64 {
        let qp = || qp_entry(self).filter(|entry| entry.is_rdma()).map(LinkEntry::id);
        self.is_remote().then(qp).flatten().filter(|id| *id != 0).unwrap_or(self.link().id()).into()
    }
}

impl Liveness {
    /// The peer liveness socket if it can still report events, else -1.
    pub fn peer_to_poll(&self, side: &SlotSide) -> i32 {
        if side.state.look().has(PEER_GONE) { -1 } else { self.peer_fd() }
    }
}

impl ShmEndpoint {
    /// Whether the next received bytes may be copied to a reader's buffers without the ring: no byte precedes them, and
    /// no other process reads. The caller holds the lock for reading, and lets no byte enter the ring until it has
    /// copied.
    pub fn may_read_past(&self) -> bool {
        self.side.view().is_some_and(|v| {
            let state = self.observe(&v);
            state.is_alone()
                && !v.link.is_inherited()
                && !state.is_read_side_over()
                && self.edges.lowat() <= 1
                && !self.old_subflow.is_there()
                && !self.has_data(&v)
        })
    }

    /// Whether the next written bytes may bypass the ring, as far as this side knows: the other side has to have read
    /// all bytes in it. The caller holds the lock for writing.
    pub fn may_write_past(&self) -> bool {
        let may = |state: SideState| state.is_alone() && !state.is_write_side_over();
        self.side.view().is_some_and(|v| !v.link.is_inherited() && may(self.observe(&v)) && !self.peer_closed(&v))
    }
}
