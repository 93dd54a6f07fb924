//! Server's host: a connection that waits at one of the processes that serve a listener, and is not taken there. In the
//! kernel the queue is the listener's, so any other process takes the connection; here it is made once more, at another
//! process.

use crate::Endpoint;
use crate::rdma::engine::mux::Mux;
use crate::rdma::engine::mux::conn::Conn;
use crate::rdma::engine::process;
use crate::shm::ShmEndpoint;
use crate::shm::segment::Segment;
use crate::timeouts;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use netacc_stats::Reason;
use netacc_sys::time;

const QUEUED_CONNECTION: u64 = time::ns(timeouts::QUEUED_CONNECTION);

/// The addresses of the client and the server, as the other host's engine has told them.
fn addresses(ep: &ShmEndpoint) -> Option<(SocketAddr, SocketAddr)> {
    let open = &ep.side.link().segment()?.slot(ep.side.slot_index())?.open;
    Some((open.address(0)?, open.address(1)?))
}

impl Mux {
    /// The process at which connection `at` waits is gone, or has left the listener: gives the connection to another
    /// one, with what was written so far. False: there is none, or nothing of the kind has happened.
    pub fn redispatch_orphan(&mut self, at: usize) -> bool {
        let orphan = self.conns.table.get(at).map(|c| c.ep).filter(|ep| ep.connect.is_orphaned(&ep.side));
        orphan.is_some_and(|old| self.redispatch(at, old))
    }

    fn redispatch(&mut self, at: usize, old: &'static ShmEndpoint) -> bool {
        let Some((client, server)) = addresses(old).filter(|_| !process::is_alone()) else { return false };
        // First the decision: a connect that is not needed after all would be one more that a process accepts.
        if !old.side.withdraw() {
            self.conns.queue(at);
            return true;
        }
        let Some(qp_index) = self.conns.table.get(at).map(|c| c.qp) else { return false };
        let (new, local) = match self.join(client, server, qp_index) {
            Ok(joined) => joined,
            Err(why) => return self.nobody_else(client, why),
        };
        let whole = old.hand_off(new);
        let Some(conn) = self.conns.table.get_mut(at) else { return false };
        let (before, slot) = (conn.local, conn.slot);
        (conn.ep, conn.local, conn.slot) = (new, local, new.side.slot_index());
        old.subscribe(0);
        old.close(false);
        self.links.clear(before, slot, at);
        self.links.place(local, new, at);
        netacc_log::log!(Info, "{client}: its connection was not accepted in time; it is queued at another process");
        self.conns.queue(at);
        whole
    }

    fn nobody_else(&self, client: SocketAddr, why: Reason) -> bool {
        netacc_log::log!(
            Info,
            "{client}: its connection was not accepted, and no other process takes it: {}",
            why.name()
        );
        false
    }

    /// Done once in a while: finds connections that a process does not take. They are offered to the process that looks
    /// first, and their own process gets no others until it goes on.
    pub fn redispatch_queued(&mut self) {
        // Where they wait is as good a place as any, and a copy makes no other connections.
        if process::is_alone() {
            return;
        }
        // A link that nobody has taken up is not said to be served by many: its connects wait for the first process
        // already.
        let late = |ep: &ShmEndpoint| {
            ep.side.is_queued()
                && ep.side.age() > QUEUED_CONNECTION
                && ep.side.link().segment().is_some_and(Segment::served_by_many)
        };
        let is_late = |c: &Conn| c.kernel < 0 && late(c.ep);
        let all: Vec<usize> = self.conns.table.each().filter(|(_, c)| is_late(c)).map(|(at, _)| at).collect();
        for at in all {
            let Some(ep) = self.conns.table.get(at).filter(|c| is_late(c)).map(|c| c.ep) else { continue };
            ep.side.link().queue.stuck.store(1, Ordering::Relaxed);
            if !self.redispatch(at, ep) {
                self.reset(at);
            }
        }
    }
}
