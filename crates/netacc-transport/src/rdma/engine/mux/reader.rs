//! The program's side of a connection whose bytes go past the ring: see
//! [`ring_bypass`](crate::rdma::engine::ring_bypass).

use crate::Iov;
use crate::host::{ConnToken, Direction, host};
use crate::num;
use crate::rdma::engine::mux::conn::Conn;
use crate::rdma::engine::mux::state::TxState;
use crate::shm::ShmEndpoint;
use netacc_sys::Guard;

/// A thread of the program that reads, and has found nothing.
#[derive(Debug)]
pub(in crate::rdma::engine) struct Reader<'a, 'b> {
    pub program: Program,
    /// The engine's side of its connection.
    pub mate: &'static ShmEndpoint,
    pub to: &'a mut Iov<'b>,
}

/// The program's side of the connection that a thread reads or writes.
#[derive(Clone, Copy, Debug)]
pub(in crate::rdma::engine) struct Program {
    pub socket: ConnToken,
    pub ep: &'static ShmEndpoint,
}

impl Program {
    /// Keeps other threads away from a direction of the connection, unless one is there, or the connection has left the
    /// ring.
    pub fn hold(self, direction: Direction) -> Option<Guard<'static>> {
        host()?.try_hold(self.socket, self.ep, direction)
    }
}

impl Reader<'_, '_> {
    /// Takes what has come for `conn` as far as it is for this reader; returns how many bytes.
    pub fn take(&mut self, conn: &mut Conn, bytes: *const u8, len: usize) -> usize {
        let its = core::ptr::eq(conn.ep, self.mate) && conn.upgrade.is_none() && conn.kernel < 0;
        if !its || conn.tx() == TxState::Cut || conn.rx().is_over() || !conn.pending.is_empty() || self.to.left() == 0 {
            return 0;
        }
        let Some(_held) = self.program.hold(Direction::Read).filter(|_| self.program.ep.may_read_past()) else {
            return 0;
        };
        let v = libc::iovec { iov_base: bytes.cast_mut().cast(), iov_len: len };
        let n = Iov::one(&v).copy_into(self.to);
        conn.delivered = conn.delivered.saturating_add(num::small(n));
        n
    }
}
