//! The handling of frames that have come.

use crate::rdma::engine::mux::Mux;
use crate::rdma::engine::mux::reader::Reader;
use crate::rdma::engine::mux::state::RxState;
use crate::rdma::engine::mux::upgrade_pending::PendingUpgrade;
use crate::rdma::engine::qp::Payload;
use netacc_wire::frame::{Frame, Kind, WINDOW};

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rdma::engine) enum Handled {
    Done,
    /// The other side broke the rules.
    Violation,
    /// It is about the companion connection, which the engine has.
    OwnPort,
}

impl From<bool> for Handled {
    fn from(honest: bool) -> Handled {
        if honest { Handled::Done } else { Handled::Violation }
    }
}

impl Mux {
    /// Completes a frame that does not carry its connection's generation: with the generation of the connection that
    /// has the number, if the other side has told which use of the number it means. `None`: it has not, so the frame is
    /// about an earlier use.
    pub fn named(&self, at: usize, frame: Frame) -> Option<Frame> {
        let c = *self.qps.table.get(at)?.conns.get(&frame.conn)?;
        let conn = self.conns.table.get(c).filter(|conn| conn.rx() != RxState::Unheard)?;
        Some(Frame { generation: conn.generation, ..frame })
    }

    /// Handles one frame of a message.
    pub fn message(
        &mut self,
        at: usize,
        frame: Frame,
        payload: Payload<'_>,
        reader: Option<&mut Reader<'_, '_>>,
    ) -> Handled {
        match frame.kind {
            Kind::OwnPort => Handled::OwnPort,
            _ => Handled::from(self.message_of_conn(at, frame, payload, reader)),
        }
    }

    fn message_of_conn(
        &mut self,
        at: usize,
        frame: Frame,
        mut payload: Payload<'_>,
        reader: Option<&mut Reader<'_, '_>>,
    ) -> bool {
        match frame.kind {
            Kind::Credit | Kind::Probe => return true,
            Kind::Resume | Kind::OwnPort => return false,
            Kind::Open => return self.opened(at, frame, payload),
            Kind::Upgrade => return self.on_upgrade_request(at, frame, payload),
            Kind::Ready => return self.ready(at, frame, payload),
            Kind::Data | Kind::Part | Kind::Fin | Kind::Reset | Kind::Window | Kind::Cancel => {}
        }
        let Some(qp) = self.qps.table.get_mut(at) else { return true };
        let Some(&c) = qp.conns.get(&frame.conn) else { return true };
        // A frame about an earlier connection with that number: the other side will learn that it is over here.
        let Some(conn) = self.conns.table.get_mut(c).filter(|c| c.generation == frame.generation) else { return true };
        conn.note_heard();
        conn.credit = match conn.credit.checked_add(frame.window) {
            Some(credit) if credit <= WINDOW => credit,
            _ => return false,
        };
        match frame.kind {
            Kind::Data | Kind::Part => {
                // On a connection that asks, or is asked for, no bytes can come yet. Pending bytes were not told as
                // delivered, so an honest peer cannot send more than the window.
                let asks = conn.upgrade.as_ref().is_some_and(PendingUpgrade::is_unanswered);
                if asks || conn.rx().is_over() || conn.pending.len() + payload.len() > WINDOW as usize {
                    return false;
                }
                conn.set_rx(if frame.kind == Kind::Part { RxState::Part } else { RxState::Open });
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
            Kind::Fin => conn.end_rx(),
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
