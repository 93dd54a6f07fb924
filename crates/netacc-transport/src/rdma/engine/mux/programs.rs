//! What the programs want of their connections, as far as it decides about a queue pair.

use crate::Endpoint;
use crate::host::{ProgramConn, host};
use crate::rdma::engine::mux::Mux;
use crate::rdma::engine::mux::conn::Conn;
use crate::rdma::engine::process;
use crate::rdma::engine::qp::{QpRecord, Stage};
use crate::rdma::engine::user_timeout::UserTimeout;
use alloc::vec::Vec;
use core::net::SocketAddr;

impl Mux {
    /// Calls `f` with the program's side of these connections. On the server's host it may be another process's.
    pub fn for_each_conn_of_program(&self, conns: &[usize], mut f: impl FnMut(&ProgramConn)) {
        let Some(host) = host().filter(|_| !process::is_alone()) else { return };
        let told = |c: &usize| {
            let conn = self.conns.table.get(*c).filter(|c| c.kernel < 0)?;
            let open = &conn.ep.side.link().segment()?.slot(conn.slot)?.open;
            Some((open.address(0)?, open.address(1)?))
        };
        let pairs: Vec<(SocketAddr, SocketAddr)> = conns.iter().filter_map(told).collect();
        if pairs.is_empty() {
            return;
        }
        host.each_conn(&mut |conn| {
            if !(conn.ep.side.link().is_remote() || conn.ep.side.is_remote()) {
                return;
            }
            let Some((local, peer)) = conn.addresses.map(|(local, peer)| (plain(local), plain(peer))) else { return };
            if pairs
                .iter()
                .any(|(a, b)| (plain(*a), plain(*b)) == (local, peer) || (plain(*b), plain(*a)) == (local, peer))
            {
                f(conn);
            }
        });
    }

    /// Has the kernel give up when the most impatient of the programs here would have it give up (`TCP_USER_TIMEOUT`,
    /// keepalive).
    pub fn be_patient(&mut self, at: usize) {
        // In the copy nobody knows which program was most impatient; the patience stays as it was told before.
        if process::is_alone() {
            return;
        }
        let Some(conns) = self.qps.table.get(at).map(|e| e.conns.values().copied().collect::<Vec<_>>()) else { return };
        let mut least = if conns.is_empty() { UserTimeout::OF_NOBODY } else { UserTimeout::default() };
        let mut known = conns.is_empty();
        self.for_each_conn_of_program(&conns, |conn| (known, least) = (true, least.and(UserTimeout::of(conn.socket))));
        if !known {
            // The connections belong to other processes by now, and the patience stays as it was told before.
            return;
        }
        if let Some(Stage::FailedOver(m)) = self.qps.table.get_mut(at).map(QpRecord::stage_mut) {
            m.be_patient(least);
        }
    }

    /// For queue pairs (in order) that have no companion connection, and have been silent for the given time (ns): asks
    /// the other device where that may matter. An answer of the process is not waited for, since it may be stopped.
    pub fn probe_devices(&mut self, alone: &[(usize, u64)]) {
        let mut asked: Vec<usize> = alone.iter().map(|(at, _)| *at).filter(|at| self.hangs_on_answer(*at)).collect();
        asked.extend(self.with_keepalive(alone));
        asked.sort_unstable();
        asked.dedup();
        for at in asked {
            if let Some((qp_index, _)) = self.qps.parts(at)
                && qp_index.probe_device().is_err()
            {
                self.qps.broken.push(at);
            }
        }
    }

    /// Whether only the other side can make anything go on: a connection of this queue pair has bytes and no room for
    /// them (TCP would probe a window that is 0), or there is no connection and the next one would have to come.
    fn hangs_on_answer(&self, at: usize) -> bool {
        let Some(qp) = self.qps.table.get(at) else { return false };
        let waits = |c: &Conn| {
            c.sched().is_stalled() || (c.credit == 0 && !c.is_off_qp() && (c.kernel >= 0 || c.ep.unread() > 0))
        };
        let waiting = || qp.conns.values().filter_map(|c| self.conns.table.get(*c)).any(waits);
        qp.conns.is_empty() || !qp.resets.is_empty() || waiting()
    }

    /// The queue pairs among them where a program wants to know what the silence means (SO_KEEPALIVE).
    fn with_keepalive(&self, alone: &[(usize, u64)]) -> Vec<usize> {
        let mut asked = Vec::new();
        let Some(host) = host().filter(|host| !alone.is_empty() && host.has_keepalive()) else { return asked };
        host.each_conn(&mut |conn| {
            if conn.ep.side.is_remote()
                && let Some([seconds, ..]) = host.patience(conn.socket).keepalive
                && let Some(qp_index) = self.links.mate(conn.ep).and_then(|c| Some(self.conns.table.get(c)?.qp))
                && let Ok(n) = alone.binary_search_by_key(&qp_index, |(at, _)| *at)
                && alone.get(n).is_some_and(|(_, probed)| probed / 1_000_000_000 >= seconds.into())
            {
                asked.push(qp_index);
            }
        });
        asked
    }
}

fn plain(a: SocketAddr) -> SocketAddr {
    SocketAddr::new(a.ip().to_canonical(), a.port())
}
