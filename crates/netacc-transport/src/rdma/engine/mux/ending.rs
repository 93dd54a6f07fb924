//! How a carried connection ends.

use crate::Endpoint;
use crate::rdma::engine::mux::Mux;
use crate::rdma::engine::mux::conn::{SHORT, Source};
use crate::rdma::engine::mux::state::{RxState, TxState};
use crate::rdma::engine::qp::{QpRecord, Stage};
use alloc::vec::Vec;
use netacc_sys::errno::Errno;
use netacc_sys::raw;
use netacc_wire::frame::Kind;

impl Mux {
    /// Done once in a while: connections that have nothing more to say, although the last bytes said so, tell that to
    /// the other side.
    pub fn send_final_acks(&mut self) {
        let said: Vec<usize> =
            self.conns.table.each().filter(|(_, c)| c.tx() == TxState::Part).map(|(at, _)| at).collect();
        for at in said {
            let Some(conn) = self.conns.table.get_mut(at).filter(|c| c.credit > 0) else { continue };
            let mut byte = 0u8;
            let has_more = match conn.kernel {
                -1 => conn.ep.unread() > 0,
                fd => raw::recv(fd, &raw mut byte, 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) != Err(Errno::AGAIN),
            };
            let Some(mut path) = self.qps.path(conn.qp) else {
                continue;
            };
            if has_more || !path.is_free() {
                continue;
            }
            conn.set_tx(TxState::Open);
            let frame = conn.frame(Kind::Data);
            if path.send(frame, &[]).is_err() {
                self.qps.broken.push(conn.qp);
            }
        }
    }

    /// Ends the connection with the process, as if the program had closed it. False: it is not written out yet.
    pub fn end_of_process(&mut self, at: usize) -> bool {
        if !self.is_written_out(at) {
            return false;
        }
        // A connection that others have lives on.
        if self.conns.table.get(at).is_none_or(|conn| conn.is_off_qp() || self.links.is_handed_off(conn)) {
            return true;
        }
        let Some(conn) = self.conns.table.get_mut(at) else { return true };
        let Some(mut path) = self.qps.path(conn.qp) else { return true };
        if !path.can_send() {
            return false;
        }
        // tcp(7): bytes that the program has not read are lost, which is a reset.
        let kind =
            if conn.ep.rings.is_all_read(&conn.ep.side) && conn.pending.is_empty() { Kind::Fin } else { Kind::Reset };
        let frame = conn.frame(kind);
        conn.set_tx(TxState::Ended);
        if path.send(frame, &[]).is_err() {
            self.qps.broken.push(conn.qp);
        }
        true
    }

    /// Whether the queue pair has all that the program has written.
    pub fn is_written_out(&self, at: usize) -> bool {
        let Some(conn) = self.conns.table.get(at).filter(|conn| !conn.is_off_qp()) else { return true };
        let mut byte = 0u8;
        match conn.kernel {
            // A process that goes on with the connection may write for ever.
            -1 if self.links.is_handed_off(conn) => true,
            -1 => conn.ep.unread() == 0 && conn.tx() != TxState::Opening && !conn.ep.must_switch(),
            // Where there is a companion connection, the process that has the socket may write for ever, and the rest
            // goes by the companion connection.
            _ if self.qps.table.get(conn.qp).is_some_and(|e| e.can_hand_off()) => true,
            // The end of the stream counts as well.
            fd => raw::recv(fd, &raw mut byte, 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) == Err(Errno::AGAIN),
        }
    }

    /// Answers what the program still writes by a reset, on a connection whose queue pair has ended.
    pub fn pump_cut(&mut self, at: usize) {
        let Some(conn) = self.conns.table.get_mut(at) else { return };
        let mut bytes = [0u8; SHORT];
        match conn.read(&mut Source::Ring, bytes.as_mut_ptr(), SHORT) {
            Err(Errno::AGAIN) => {}
            Ok(0) if conn.rx() == RxState::Given => self.drop_conn(at, false),
            Ok(0) => {}
            _ => self.drop_conn(at, true),
        }
    }

    /// Ends the connection from our side: both ends learn it.
    pub fn reset(&mut self, at: usize) {
        let Some(conn) = self.conns.table.get_mut(at) else { return };
        if conn.tx() != TxState::Cut
            && let Some(qp) = self.qps.table.get_mut(conn.qp)
            && let Some(mut path) = qp.path(&mut self.qps.devices)
        {
            let frame = conn.frame(Kind::Reset);
            if path.can_send() {
                if path.send(frame, &[]).is_err() {
                    self.qps.broken.push(conn.qp);
                }
            } else {
                self.qps.reset_later(conn.qp, frame);
            }
        }
        self.drop_conn(at, true);
    }

    /// The other side gives the name of a connection to another one. For the other side the first one is over, since
    /// both ends were told; but the program here may not have been given everything yet, or may not have looked. If
    /// there is no such end, the other side is confused.
    pub fn end_of_name(&mut self, at: usize) {
        let Some(conn) = self.conns.table.get_mut(at).filter(|c| c.rx().is_over() && c.tx() == TxState::Ended) else {
            return self.drop_conn(at, true);
        };
        conn.set_tx(TxState::Cut);
        let (qp_index, id) = (conn.qp, conn.id);
        if let Some(qp) = self.qps.table.get_mut(qp_index) {
            qp.conns.remove(&id);
            self.qps.count_closed(qp_index);
        }
        self.conns.queue(at);
    }

    /// Forgets the connection; with `abort` the program here sees a reset.
    pub fn drop_conn(&mut self, at: usize, abort: bool) {
        let Some(mut conn) = self.conns.table.remove(at) else { return };
        if let Some(pending) = conn.upgrade.take() {
            pending.dropped();
        }
        self.status.carried.subtract(1);
        self.links.clear(conn.local, conn.slot, at);
        match conn.kernel {
            -1 => {
                conn.ep.subscribe(0);
                conn.ep.close(abort);
            }
            fd => {
                if abort {
                    crate::shm::reset_at_close(fd);
                }
                netacc_sys::reserved_fds::close(fd);
            }
        }
        let now = netacc_sys::time::now();
        if let Some(qp) = self.qps.table.get_mut(conn.qp)
            && conn.tx() != TxState::Cut
        {
            qp.conns.remove(&conn.id);
            qp.idle_since = now;
            self.qps.count_closed(conn.qp);
        }
    }

    /// The queue pair of a connection is gone. What has been received is given to the program; then its stream ends, or
    /// is reset if the other side has not had all of our bytes, or we all of its, as far as that is `known`.
    pub fn cut(&mut self, c: usize, known: bool) {
        let Some(conn) = self.conns.table.get_mut(c) else { return };
        let opened = conn.tx() != TxState::Opening;
        conn.set_tx(TxState::Cut);
        if conn.upgrade.is_some() {
            return self.drop_conn(c, true);
        }
        let whole = known
            && opened
            && conn.rx() != RxState::Part
            && conn.credit == netacc_wire::frame::WINDOW
            && conn.kernel < 0
            && conn.ep.unread() == 0;
        if !whole && !conn.rx().is_over() {
            return self.drop_conn(c, true);
        }
        conn.end_rx();
        self.conns.queue(c);
    }

    /// In the copy: whether all that it carried has ended, and the other hosts know.
    pub fn is_done(&self) -> bool {
        let told = |e: &QpRecord| match e.stage() {
            Stage::FailedOver(failed) => e.resets.is_empty() && failed.stream.is_flushed(),
            _ => true,
        };
        self.conns.table.each().next().is_none() && self.qps.table.each().all(|(_, e)| told(e))
    }
}
