//! The handling of messages that have come.

use crate::rdma::engine::mux::message::Handled;
use crate::rdma::engine::mux::reader::Reader;
use crate::rdma::engine::qp::Payload;
use crate::rdma::engine::worker::Engine;
use netacc_wire::frame::{FRAME, Frame};

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
            let honest = match self.mux.message(at, frame, payload.first(len), reader.as_deref_mut()) {
                Handled::Done => true,
                Handled::Violation => false,
                Handled::OwnPort => self.on_own_port(at, frame),
            };
            if !honest {
                return false;
            }
            if !more {
                return true;
            }
            payload = payload.after(len);
            let mut head = [0u8; FRAME];
            let Some(qp) = self.mux.qps.table.get_mut(at) else { return true };
            if !qp.copy(&mut self.mux.qps.devices, payload, 0, &mut head) {
                return false;
            }
            let Some(next) = Frame::decode(&head) else { return false };
            (frame, payload) = (next, payload.after(FRAME));
        }
    }

    fn on_own_port(&mut self, at: usize, frame: Frame) -> bool {
        let honest = self.companions.own_port(&mut self.mux.qps, at, frame);
        self.end_lost();
        honest
    }
}
