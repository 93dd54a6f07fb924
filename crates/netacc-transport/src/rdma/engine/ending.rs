//! How a carried connection ends.

use crate::Endpoint;
use crate::rdma::MsgPath;
use crate::rdma::engine::conn::{SHORT, Source};
use crate::rdma::engine::worker::Engine;
use crate::shm::Link;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use netacc_sys::errno::Errno;
use netacc_sys::raw;
use netacc_wire::frame::Kind;

impl Engine {
    /// Whether all that was written has reached the other hosts; with `ends`, since the process ends, also the ends of
    /// its streams.
    pub fn flush(&mut self, ends: bool) -> bool {
        // A fork just before may have told of its child: a connection that others have does not end with this process.
        let links: Vec<&'static Link> =
            self.links.table.each().filter(|(_, l)| !l.ended).map(|(_, l)| l.link).collect();
        links.into_iter().for_each(Link::service_if_readable);
        let all: Vec<usize> = self.conns.table.each().map(|(c, _)| c).collect();
        for c in &all {
            self.conns.queue(*c);
        }
        self.progress_once();
        let mut done =
            self.links.table.each().all(|(_, l)| l.route.is_none() || l.link.segment().is_none_or(|s| s.queued() == 0));
        for c in all {
            done &= if ends { self.end_of_process(c) } else { self.is_written_out(c) };
        }
        let qps: Vec<usize> = self.qps.table.each().map(|(p, _)| p).collect();
        for p in qps {
            let Some(qp) = self.qps.table.get_mut(p) else { continue };
            match qp.path(&mut self.qps.devices) {
                Some(MsgPath::Qp(qp_index, _)) => {
                    let _ = qp_index.flush();
                    done &= qp_index.is_flushed();
                }
                Some(MsgPath::Companion(stream)) => done &= stream.is_flushed(),
                None => {}
            }
        }
        done
    }

    /// Done once in a while: connections that have nothing more to say, although the last bytes said so, tell that to
    /// the other side.
    pub(super) fn send_final_acks(&mut self) {
        let said: Vec<usize> =
            self.conns.table.each().filter(|(_, c)| c.said_part && !c.is_off_qp()).map(|(at, _)| at).collect();
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
            conn.said_part = false;
            let frame = conn.frame(Kind::Data);
            if path.send(frame, &[]).is_err() {
                self.qps.broken.push(conn.qp);
            }
        }
    }

    /// Ends the connection with the process, as if the program had closed it. False: it is not written out yet.
    pub(super) fn end_of_process(&mut self, at: usize) -> bool {
        if !self.is_written_out(at) {
            return false;
        }
        // A connection that others have lives on.
        if self.conns.table.get(at).is_none_or(|conn| conn.is_off_qp() || self.links.is_handed_off(conn)) {
            return true;
        }
        let Some(conn) = self.conns.table.get_mut(at) else { return true };
        let Some(mut path) = self.qps.path(conn.qp) else {
            return true;
        };
        if !path.can_send() {
            return false;
        }
        // tcp(7): bytes that the program has not read are lost, which is a reset.
        let kind = if conn.ep.is_all_read() && conn.pending.is_empty() { Kind::Fin } else { Kind::Reset };
        let frame = conn.frame(kind);
        conn.fin_sent = true;
        if path.send(frame, &[]).is_err() {
            self.qps.broken.push(conn.qp);
        }
        true
    }

    /// Whether the queue pair has all that the program has written.
    fn is_written_out(&self, at: usize) -> bool {
        let Some(conn) = self.conns.table.get(at).filter(|conn| !conn.is_off_qp()) else { return true };
        let mut byte = 0u8;
        match conn.kernel {
            // A process that goes on with the connection may write for ever.
            -1 if self.links.is_handed_off(conn) => true,
            -1 => conn.ep.unread() == 0 && conn.opening.is_none() && !conn.ep.must_switch(),
            // Where there is a companion connection, the process that has the socket may write for ever, and the rest
            // goes by the companion connection.
            _ if self.qps.table.get(conn.qp).is_some_and(|e| e.can_hand_off()) => true,
            // The end of the stream counts as well.
            fd => raw::recv(fd, &raw mut byte, 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) == Err(Errno::AGAIN),
        }
    }

    /// Answers what the program still writes by a reset, on a connection whose queue pair has ended.
    pub(super) fn pump_cut(&mut self, at: usize) {
        let Some(conn) = self.conns.table.get_mut(at) else { return };
        let mut bytes = [0u8; SHORT];
        match conn.read(&mut Source::Ring, bytes.as_mut_ptr(), SHORT) {
            Err(Errno::AGAIN) => {}
            Ok(0) if conn.fin_given => self.drop_conn(at, false),
            Ok(0) => {}
            _ => self.drop_conn(at, true),
        }
    }

    /// Ends the connection from our side: both ends learn it.
    pub(super) fn reset(&mut self, at: usize) {
        let Some(conn) = self.conns.table.get_mut(at) else { return };
        if !conn.cut
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
    pub(super) fn end_of_name(&mut self, at: usize) {
        let Some(conn) = self.conns.table.get_mut(at).filter(|c| c.fin_seen && c.fin_sent) else {
            return self.drop_conn(at, true);
        };
        conn.cut = true;
        let (qp_index, id) = (conn.qp, conn.id);
        if let Some(qp) = self.qps.table.get_mut(qp_index) {
            qp.conns.remove(&id);
            self.qps.count_closed(qp_index);
        }
        self.conns.queue(at);
    }

    /// Forgets the connection; with `abort` the program here sees a reset.
    pub(super) fn drop_conn(&mut self, at: usize, abort: bool) {
        let Some(conn) = self.conns.table.remove(at) else { return };
        if let Some(pending) = conn.upgrade {
            pending.dropped();
        }
        self.status.carried.fetch_sub(1, Ordering::Relaxed);
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
            && !conn.cut
        {
            qp.conns.remove(&conn.id);
            qp.idle_since = now;
            self.qps.count_closed(conn.qp);
        }
    }
}
