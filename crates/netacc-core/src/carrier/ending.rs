//! How a carried connection ends.

use crate::carrier::conn::{Conn, SHORT, Source};
use crate::carrier::engine::Engine;
use crate::carrier::local::RESETS;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use netacc_sys::errno::Errno;
use netacc_sys::raw;
use netacc_transport::Endpoint;
use netacc_transport::rdma::Way;
use netacc_transport::shm::Link;
use netacc_wire::frame::Kind;

impl Engine {
    /// Whether all that was written has reached the other hosts; with `ends`, since the process ends, also the ends of
    /// its streams.
    pub fn flush(&mut self, ends: bool) -> bool {
        // A fork just before may have told of its child: a connection that others have does not end with this process.
        let links: Vec<&'static Link> = self.locals.each().filter(|(_, l)| !l.ended).map(|(_, l)| l.link).collect();
        links.into_iter().for_each(Link::service_if_readable);
        let all: Vec<usize> = self.conns.each().map(|(c, _)| c).collect();
        for c in &all {
            self.queue(*c);
        }
        self.round();
        let mut done =
            self.locals.each().all(|(_, l)| l.route.is_none() || l.link.segment().is_none_or(|s| s.queued() == 0));
        for c in all {
            done &= if ends { self.end_of_process(c) } else { self.is_written_out(c) };
        }
        let pipes: Vec<usize> = self.pipes.each().map(|(p, _)| p).collect();
        for p in pipes {
            let Some(entry) = self.pipes.get_mut(p) else { continue };
            match entry.way(&mut self.devices) {
                Some(Way::Qp(pipe, _)) => {
                    let _ = pipe.flush();
                    done &= pipe.is_flushed();
                }
                Some(Way::Base(stream)) => done &= stream.is_flushed(),
                None => {}
            }
        }
        done
    }

    /// Done once in a while: connections that have nothing more to say, although the last bytes said so, tell that to
    /// the other side.
    pub(super) fn tell_whole(&mut self) {
        let said: Vec<usize> =
            self.conns.each().filter(|(_, c)| c.said_part && !c.is_over()).map(|(at, _)| at).collect();
        for at in said {
            let Some(conn) = self.conns.get_mut(at).filter(|c| c.credit > 0) else { continue };
            let mut byte = 0u8;
            let has_more = match conn.kernel {
                -1 => conn.ep.unread() > 0,
                fd => raw::recv(fd, &raw mut byte, 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) != Err(Errno::AGAIN),
            };
            let Some(mut way) = self.pipes.get_mut(conn.pipe).and_then(|e| e.way(&mut self.devices)) else { continue };
            if has_more || !way.is_free() {
                continue;
            }
            conn.said_part = false;
            let frame = conn.frame(Kind::Data);
            if way.send(frame, &[]).is_err() {
                self.broken.push(conn.pipe);
            }
        }
    }

    /// Ends the connection with the process, as if the program had closed it. False: it is not written out yet.
    pub(super) fn end_of_process(&mut self, at: usize) -> bool {
        if !self.is_written_out(at) {
            return false;
        }
        // A connection that others have lives on.
        if self.conns.get(at).is_none_or(|conn| conn.is_over() || self.outlives(conn)) {
            return true;
        }
        let Some(conn) = self.conns.get_mut(at) else { return true };
        let Some(mut way) = self.pipes.get_mut(conn.pipe).and_then(|e| e.way(&mut self.devices)) else {
            return true;
        };
        if !way.can_send() {
            return false;
        }
        // tcp(7): bytes that the program has not read are lost, which is a reset.
        let kind = if conn.ep.is_all_read() && conn.pending.is_empty() { Kind::Fin } else { Kind::Reset };
        let frame = conn.frame(kind);
        conn.fin_sent = true;
        if way.send(frame, &[]).is_err() {
            self.broken.push(conn.pipe);
        }
        true
    }

    /// Whether the connection may go on when this process ends: it belongs to another process's program, or other
    /// processes have it or its kernel socket, too.
    pub(super) fn outlives(&self, conn: &Conn) -> bool {
        let elsewhere = || self.locals.get(conn.local).is_some_and(|l| !l.is_in_process());
        conn.early.is_none() && !conn.cut && (conn.kernel >= 0 || conn.ep.witness_fd() >= 0 || elsewhere())
    }

    /// Whether the queue pair has all that the program has written.
    fn is_written_out(&self, at: usize) -> bool {
        let Some(conn) = self.conns.get(at).filter(|conn| !conn.is_over()) else { return true };
        let mut byte = 0u8;
        match conn.kernel {
            // A process that goes on with the connection may write for ever.
            -1 if self.outlives(conn) => true,
            -1 => conn.ep.unread() == 0 && conn.opening.is_none() && !conn.ep.displaced(),
            // Where there is a base, the process that has the socket may write for ever, and the rest goes by the base.
            _ if self.pipes.get(conn.pipe).is_some_and(|e| e.can_outlive()) => true,
            // The end of the stream counts as well.
            fd => raw::recv(fd, &raw mut byte, 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) == Err(Errno::AGAIN),
        }
    }

    /// Answers what the program still writes by a reset, on a connection whose queue pair has ended.
    pub(super) fn pump_cut(&mut self, at: usize) {
        let Some(conn) = self.conns.get_mut(at) else { return };
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
        let Some(conn) = self.conns.get_mut(at) else { return };
        if !conn.cut
            && let Some(entry) = self.pipes.get_mut(conn.pipe)
            && let Some(mut way) = entry.way(&mut self.devices)
        {
            let frame = conn.frame(Kind::Reset);
            if way.can_send() {
                if way.send(frame, &[]).is_err() {
                    self.broken.push(conn.pipe);
                }
            } else if entry.resets.len() < RESETS {
                entry.resets.push_back(frame);
            } else {
                self.liars.push(conn.pipe);
            }
        }
        self.drop_conn(at, true);
    }

    /// The other side gives the name of a connection to another one. For the other side the first one is over, since
    /// both ends were told; but the program here may not have been given everything yet, or may not have looked. If
    /// there is no such end, the other side is confused.
    pub(super) fn end_of_name(&mut self, at: usize) {
        let Some(conn) = self.conns.get_mut(at).filter(|c| c.fin_seen && c.fin_sent) else {
            return self.drop_conn(at, true);
        };
        conn.cut = true;
        let (pipe, id) = (conn.pipe, conn.id);
        if let Some(entry) = self.pipes.get_mut(pipe) {
            entry.conns.remove(&id);
            self.report_left(pipe);
        }
        self.queue(at);
    }

    /// Forgets the connection; with `abort` the program here sees a reset.
    pub(super) fn drop_conn(&mut self, at: usize, abort: bool) {
        let Some(conn) = self.conns.remove(at) else { return };
        if let Some(early) = conn.early {
            early.dropped();
        }
        self.place.carried.fetch_sub(1, Ordering::Relaxed);
        if let Some(place) = self.locals.get_mut(conn.local).and_then(|l| l.slots.get_mut(conn.slot))
            && *place == at as u32 + 1
        {
            *place = 0;
        }
        match conn.kernel {
            -1 => {
                conn.ep.watch(0);
                conn.ep.close(abort);
            }
            fd => {
                if abort {
                    netacc_transport::shm::reset_at_close(fd);
                }
                netacc_sys::private::close(fd);
            }
        }
        let now = netacc_sys::time::now();
        if let Some(entry) = self.pipes.get_mut(conn.pipe)
            && !conn.cut
        {
            entry.conns.remove(&conn.id);
            entry.idle_since = now;
            self.report_left(conn.pipe);
        }
    }
}
