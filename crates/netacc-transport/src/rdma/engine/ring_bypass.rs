//! Bytes that go past the ring: from the program's buffers into registered memory, and from there into the program's.
//!
//! A thread that writes, or waits to read, makes progress for the engine on the way. If the ring is empty then, the
//! bytes need not go into the ring and out of it again at once, which saves this: a copy at each end, and the words
//! that say so.
//!
//! **The order of the bytes.** Everything else comes by the ring, so nothing goes past it unless it is empty, and
//! nobody may put anything in or take anything out meanwhile: the lock of the engine keeps the engine from it, that of
//! the direction the program's other threads. If other processes may use the connection, or it is about to go
//! elsewhere, nothing goes past the ring. Locks are only tried: a thread that has one may be waiting for the other.

use crate::Iov;
use crate::host::{ConnToken, Direction};
use crate::rdma::engine::cell;
use crate::rdma::engine::mux::conn::{Conn, Source};
use crate::rdma::engine::mux::reader::{Program, Reader};
use crate::rdma::engine::worker::Engine;
use crate::shm::ShmEndpoint;

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
        let mate = e.mux.links.mate(ep).and_then(|c| Some(e.mux.conns.table.get(c)?.ep));
        e.progress_for(mate.map(|mate| Reader { program, mate, to: &mut *to }).as_mut());
    });
    left - to.left()
}

fn progress_bypass(ep: &ShmEndpoint, work: impl FnMut(&mut Engine)) {
    // A thread that has such a connection learnt of it from a thread that saw this number.
    if let Some(cell) = ep.side.engine().and_then(cell::at).filter(|p| p.status.carried.get() != 0) {
        cell.progress_with(work);
    }
}

impl Engine {
    fn send_past(&mut self, program: Program, from: &mut Iov<'_>) {
        let Some(at) = self.mux.links.mate(program.ep) else { return };
        {
            let Some(_held) = program.hold(Direction::Write).filter(|_| program.ep.may_write_past()) else { return };
            while self.mux.conns.table.get(at).is_some_and(Conn::may_send_past) {
                let left = from.left();
                self.mux.send_from(at, &mut Source::Program(from));
                if from.left() == 0 || from.left() == left {
                    break;
                }
            }
        }
        if from.left() == 0 {
            self.progress_for(None);
        } else {
            // The engine makes progress when the rest is in the ring, unless the connection has gone elsewhere by then.
            self.mux.qps.post_all();
        }
    }
}
