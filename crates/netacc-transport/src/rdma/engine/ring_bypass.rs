//! Bytes that go past the ring: from the program's buffers into registered memory, and from there into the program's.
//!
//! A thread that writes, or waits to read, makes progress for the engine on the way. If the ring is empty then, the
//! bytes need not go into the ring and out of it again at once, which saves this: a copy at each end, and the words
//! that say so.
//!
//! **The order of the bytes.** Everything else comes by the ring, so nothing goes past it unless it is empty, and nobody may
//! put anything in or take anything out meanwhile: the lock of the engine keeps the engine from it, that of the direction
//! the program's other threads. If other processes may use the connection, or it is about to go elsewhere, nothing goes
//! past the ring. Locks are only tried: a thread that has one may be waiting for the other.

use crate::host::{ConnToken, Direction, host};
use crate::rdma::engine::conn::{Conn, Source};
use crate::rdma::engine::worker::Engine;
use crate::rdma::engine::{cell, progress};
use crate::shm::ShmEndpoint;
use crate::{Endpoint, Iov};
use core::sync::atomic::Ordering;
use netacc_sys::Guard;

/// A thread of the program that reads, and has found nothing.
#[derive(Debug)]
pub(super) struct Reader<'a, 'b> {
    program: Program,
    /// The engine's side of its connection.
    mate: &'static ShmEndpoint,
    to: &'a mut Iov<'b>,
}

/// The program's side of the connection that a thread reads or writes.
#[derive(Clone, Copy, Debug)]
struct Program {
    socket: ConnToken,
    ep: &'static ShmEndpoint,
}

/// Sends bytes of `from` for a thread that writes; returns how many have gone out. The others go by the ring. If none
/// are left the engine has made progress.
pub fn send(socket: ConnToken, ep: &'static ShmEndpoint, from: &mut Iov<'_>) -> usize {
    let left = from.left();
    let program = Program { socket, ep };
    progress_bypass(ep, |e| e.send_past(program, from));
    left - from.left()
}

/// Makes progress for a thread that reads and has found nothing; returns how many bytes have come for it.
pub fn receive(socket: ConnToken, ep: &'static ShmEndpoint, to: &mut Iov<'_>) -> usize {
    let left = to.left();
    let program = Program { socket, ep };
    progress_bypass(ep, |e| {
        let mate = e.mate(ep).and_then(|c| Some(e.conns.get(c)?.ep));
        e.progress_for(mate.map(|mate| Reader { program, mate, to: &mut *to }).as_mut());
    });
    left - to.left()
}

fn progress_bypass(ep: &ShmEndpoint, work: impl FnMut(&mut Engine)) {
    // Relaxed: a thread that has such a connection learnt of it from a thread that saw this number.
    if let Some(cell) = ep.engine().and_then(cell::at).filter(|p| p.carried.load(Ordering::Relaxed) != 0) {
        progress::progress_with(cell, work);
    }
}

impl Program {
    /// Keeps other threads away from a direction of the connection, unless one is there, or the connection has left the ring.
    fn hold(self, direction: Direction) -> Option<Guard<'static>> {
        host()?.try_hold(self.socket, self.ep, direction)
    }
}

impl Reader<'_, '_> {
    /// Takes what has come for `conn` as far as it is for this reader; returns how many bytes.
    pub fn take(&mut self, conn: &mut Conn, bytes: *const u8, len: usize) -> usize {
        let its = core::ptr::eq(conn.ep, self.mate) && conn.upgrade.is_none() && conn.kernel < 0;
        if !its || conn.cut || conn.fin_seen || !conn.pending.is_empty() || self.to.left() == 0 {
            return 0;
        }
        let Some(_held) = self.program.hold(Direction::Read).filter(|_| self.program.ep.may_read_past()) else {
            return 0;
        };
        let v = libc::iovec { iov_base: bytes.cast_mut().cast(), iov_len: len };
        let n = Iov::one(&v).copy_into(self.to);
        conn.delivered = conn.delivered.saturating_add(n as u32);
        n
    }
}

impl Engine {
    /// The connection that has `ep` at its other side, if that is in this process.
    pub(super) fn mate(&self, ep: &ShmEndpoint) -> Option<usize> {
        let link = ep.link();
        let (_, local) = self.locals.each().find(|(_, local)| local.link.is_other_side_of(link))?;
        local.conn(ep.slot_index())
    }

    fn send_past(&mut self, program: Program, from: &mut Iov<'_>) {
        let Some(at) = self.mate(program.ep) else { return };
        {
            let Some(_held) = program.hold(Direction::Write).filter(|_| program.ep.may_write_past()) else { return };
            while self.conns.get(at).is_some_and(Conn::may_send_past) {
                let left = from.left();
                self.send_from(at, &mut Source::Program(from));
                if from.left() == 0 || from.left() == left {
                    break;
                }
            }
        }
        if from.left() == 0 {
            self.progress_for(None);
        } else {
            // The engine makes progress when the rest is in the ring, unless the connection has gone elsewhere by then.
            self.post_all();
        }
    }
}

impl Conn {
    /// Whether it has sent all that is in its ring, and can go on.
    fn may_send_past(&self) -> bool {
        let begun = self.upgrade.is_none() && self.opening.is_none() && self.kernel < 0;
        begun && !self.stalled && !self.fin_sent && !self.cut && self.credit > 0 && self.ep.unread() == 0
    }
}
