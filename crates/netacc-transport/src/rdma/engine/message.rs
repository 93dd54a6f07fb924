//! The handling of messages that have come.

use crate::rdma::engine::qp::Payload;
use crate::rdma::engine::reader::Reader;
use crate::rdma::engine::upgrade_pending::PendingUpgrade;
use crate::rdma::engine::worker::Engine;
use netacc_wire::frame::{FRAME, Frame, Kind, WINDOW};

impl Engine {
    /// Handles a message that came: one frame or several, perhaps for `reader`. False: the other side broke the rules.
    pub(super) fn messages(
        &mut self,
        at: usize,
        mut frame: Frame,
        mut payload: Payload<'_>,
        mut reader: Option<&mut Reader<'_, '_>>,
    ) -> bool {
        loop {
            let Some((len, more)) = frame.payload(payload.len()) else { return false };
            if !self.message(at, frame, payload.first(len), reader.as_deref_mut()) {
                return false;
            }
            if !more {
                return true;
            }
            payload = payload.after(len);
            let mut head = [0u8; FRAME];
            let Some(qp) = self.qps.table.get_mut(at) else { return true };
            if !qp.copy(&mut self.qps.devices, payload, 0, &mut head) {
                return false;
            }
            let Some(next) = Frame::decode(&head) else { return false };
            (frame, payload) = (next, payload.after(FRAME));
        }
    }

    /// Completes a frame that does not carry its connection's generation: with the generation of the connection that has the
    /// number, if the other side has told which use of the number it means. `None`: it has not, so the frame is about
    /// an earlier use.
    pub(super) fn named(&self, at: usize, frame: Frame) -> Option<Frame> {
        let c = *self.qps.table.get(at)?.conns.get(&frame.conn)?;
        let conn = self.conns.table.get(c).filter(|conn| conn.generation_confirmed)?;
        Some(Frame { generation: conn.generation, ..frame })
    }

    fn on_own_port(&mut self, at: usize, frame: Frame) -> bool {
        let honest = self.companions.own_port(&mut self.qps, at, frame);
        self.end_lost();
        honest
    }

    /// Handles one frame of a message.
    fn message(
        &mut self,
        at: usize,
        frame: Frame,
        mut payload: Payload<'_>,
        reader: Option<&mut Reader<'_, '_>>,
    ) -> bool {
        match frame.kind {
            Kind::Credit | Kind::Probe => return true,
            Kind::Resume => return false,
            Kind::Open => return self.opened(at, frame, payload),
            Kind::Upgrade => return self.on_upgrade_request(at, frame, payload),
            Kind::Ready => return self.ready(at, frame, payload),
            Kind::OwnPort => return self.on_own_port(at, frame),
            Kind::Data | Kind::Part | Kind::Fin | Kind::Reset | Kind::Window | Kind::Cancel => {}
        }
        let Some(qp) = self.qps.table.get_mut(at) else { return true };
        let Some(&c) = qp.conns.get(&frame.conn) else { return true };
        // The frame is about an earlier connection with that number: it is over here, and the other side will learn
        // that.
        let Some(conn) = self.conns.table.get_mut(c).filter(|c| c.generation == frame.generation) else { return true };
        conn.generation_confirmed = true;
        conn.credit = match conn.credit.checked_add(frame.window) {
            Some(credit) if credit <= WINDOW => credit,
            _ => return false,
        };
        match frame.kind {
            Kind::Data | Kind::Part => {
                // On a connection that asks, or is asked for, no bytes can come yet.
                if conn.upgrade.as_ref().is_some_and(PendingUpgrade::is_unanswered) {
                    return false;
                }
                // Pending bytes were not told as delivered, so an honest peer cannot send more than this.
                if conn.fin_seen || conn.pending.len() + payload.len() > WINDOW as usize {
                    return false;
                }
                conn.broken_off = frame.kind == Kind::Part;
                if let Some(reader) = reader {
                    payload = payload.after(reader.take(conn, payload.start(), payload.len()));
                }
                let devices = &mut self.qps.devices;
                let copy = |skip: usize, to: &mut [u8]| qp.copy(devices, payload, skip, to);
                if !conn.give(payload.start(), payload.len(), copy) {
                    self.reset(c);
                    return true;
                }
            }
            Kind::Fin => conn.fin_seen = true,
            Kind::Reset => {
                if let Some(pending) = &mut conn.upgrade {
                    pending.refused();
                }
                // tcp(7): a reset after the end of the stream is a different one than a reset before it. That end may
                // not have been given to the program yet, since both may have come at once.
                conn.give_pending();
                self.drop_conn(c, true);
                return true;
            }
            Kind::Cancel => return self.cancelled(c),
            _ => {}
        }
        self.conns.queue(c);
        true
    }
}
