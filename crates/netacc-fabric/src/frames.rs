//! How the frames of a connection, and its end, change its identifier and its queue pair.

use crate::device::Page;
use crate::id::{Id, Phase};
use crate::state::{Context, State, now, page_of};
use crate::trace::{self, Direction};
use crate::wire::{Frame, HEAD, Kind};
use core::sync::atomic::Ordering;
use netacc_verbs::sys::*;

impl State {
    /// Processes the frames that have arrived at an identifier.
    pub fn parse(&mut self, number: u64) {
        loop {
            let Some(raw) = self.ids.get(&number).copied() else { return };
            // SAFETY: the identifier is listed, so it exists, and the lock is held.
            let id = unsafe { &mut *raw };
            if id.due > now() {
                return;
            }
            let frame = match Frame::decode(&id.input) {
                Ok(Some(frame)) if id.input.len() >= HEAD + frame.len as usize => frame,
                Ok(_) => break,
                Err(()) => return self.over(number),
            };
            let rest = id.input.split_off(HEAD + frame.len as usize);
            let body = core::mem::replace(&mut id.input, rest).split_off(HEAD);
            if !self.handle(raw, &frame, &body) {
                return;
            }
        }
        self.acknowledge(number);
    }

    /// Tells the other side how many of its messages have arrived.
    fn acknowledge(&mut self, number: u64) {
        let Some(id) = self.ids.get(&number).copied() else { return };
        // SAFETY: the identifier is listed, so it exists, and the lock is held.
        let id = unsafe { &mut *id };
        if id.received != id.acknowledged {
            let late = page_of(id).map_or(0, |page| page.late_acks.load(Ordering::Relaxed));
            if late != 0 && id.ack_due == 0 {
                id.ack_due = now() + late;
            }
            if id.ack_due > now() {
                id.due = id.ack_due;
                return;
            }
            id.ack_due = 0;
            id.acknowledged = id.received;
            let frame = Frame { count: id.received, ..Frame::bare(Kind::Ack) };
            self.write(number, &frame, &[]);
        }
    }

    /// Processes one frame. Returns false if the frames after it must wait or the connection is over.
    fn handle(&mut self, raw: *mut Id, frame: &Frame, body: &[u8]) -> bool {
        // SAFETY: the identifier is listed, so it exists, and the lock is held.
        let id = unsafe { &mut *raw };
        let (number, pair) = (id.number, self.pair_of(id));
        let none = core::ptr::null_mut();
        // Messages may be held back, and are traced when they count as arrived.
        if !matches!(frame.kind, Kind::Send | Kind::Nothing) {
            trace::message(pair, Direction::In, frame, body);
        }
        match (frame.kind, id.phase) {
            (Kind::Request, Phase::Expected) => {
                let Some(listener) = self.ids.get(&id.listener).copied() else {
                    self.over(number);
                    return false;
                };
                id.phase = Phase::Asked;
                id.cm.verbs = self.context_of(id.local.map(|a| a.ip())).cast();
                if id.cm.verbs.is_null() {
                    self.over(number);
                    return false;
                }
                let data = id.padded(body, 56);
                self.tell(raw, RDMA_CM_EVENT_CONNECT_REQUEST, 0, &data, listener);
            }
            (Kind::Accept, Phase::Requested) => {
                id.phase = Phase::Connected;
                if let Some(pair) = self.pairs.get_mut(&pair) {
                    pair.state = IBV_QPS_RTS;
                }
                let data = id.padded(body, 196);
                self.write(number, &Frame::bare(Kind::Ready), &[]);
                self.tell(raw, RDMA_CM_EVENT_ESTABLISHED, 0, &data, none);
            }
            (Kind::Reject, Phase::Requested) => {
                id.phase = Phase::Ended;
                let data = id.padded(body, 148);
                // 28 is IB_CM_REJ_CONSUMER_DEFINED: the program has rejected.
                self.tell(raw, RDMA_CM_EVENT_REJECTED, 28, &data, none);
            }
            (Kind::Ready, Phase::Accepted) => {
                id.phase = Phase::Connected;
                self.tell(raw, RDMA_CM_EVENT_ESTABLISHED, 0, &[], none);
            }
            (Kind::Send | Kind::Nothing, Phase::Connected) => {
                let late = page_of(id).map_or(0, |page| page.late_messages.load(Ordering::Relaxed));
                if late != 0 && !id.kept_back {
                    // The message is put back in front and processed again when it is due.
                    let mut again = Vec::new();
                    frame.encode(&mut again);
                    again.extend_from_slice(body);
                    again.append(&mut id.input);
                    id.input = again;
                    (id.kept_back, id.due) = (true, now() + late);
                    return false;
                }
                id.kept_back = false;
                trace::message(pair, Direction::In, frame, body);
                if frame.kind == Kind::Send && page_of(id).is_some_and(|page| Page::comes_due(&page.fail_receive_after))
                {
                    id.received = id.received.wrapping_add(1);
                    self.write(number, &Frame { count: id.received, ..Frame::bare(Kind::Ack) }, &[]);
                    self.flush(pair, IBV_WC_WR_FLUSH_ERR);
                    self.hang_up(number);
                    return false;
                }
                if frame.kind == Kind::Send && !self.received(pair, frame, body) {
                    self.write(number, &Frame::bare(Kind::NoReceive), &[]);
                    self.flush(pair, IBV_WC_WR_FLUSH_ERR);
                    return false;
                }
                id.received = id.received.wrapping_add(1);
            }
            (Kind::Ack, Phase::Connected | Phase::Accepted) => {
                let news = frame.count.wrapping_sub(id.confirmed);
                (id.confirmed, id.waiting) = (frame.count, 0);
                self.acknowledged(pair, news);
            }
            (Kind::NoReceive, Phase::Connected) => self.flush(pair, IBV_WC_RNR_RETRY_EXC_ERR),
            (Kind::Disconnect, Phase::Connected | Phase::Accepted) => self.disconnected(raw),
            _ => {
                self.over(number);
                return false;
            }
        }
        true
    }

    /// Handles that the other side has disconnected, or has ended.
    fn disconnected(&mut self, raw: *mut Id) {
        // SAFETY: the identifier is listed, so it exists, and the lock is held.
        let id = unsafe { &mut *raw };
        let context = id.cm.verbs.cast::<Context>();
        // SAFETY: the pointer is null or leads to the context of the identifier's device, which is open.
        if id.left || unsafe { context.as_ref() }.is_some_and(|c| c.iwarp) {
            // On InfiniBand the receives of a side stay until it disconnects as well.
            self.flush(self.pair_of(id), IBV_WC_WR_FLUSH_ERR);
        }
        if !id.told {
            id.told = true;
            self.tell(raw, RDMA_CM_EVENT_DISCONNECTED, 0, &[], core::ptr::null_mut());
        }
    }

    /// Handles the end of the TCP connection.
    pub fn over(&mut self, number: u64) {
        let Some(raw) = self.ids.get(&number).copied() else { return };
        // SAFETY: the identifier is listed, so it exists; the lock is held.
        let id = unsafe { &mut *raw };
        drop(id.socket.take());
        let none = core::ptr::null_mut();
        match id.phase {
            Phase::Expected => {
                self.ids.remove(&number);
                // SAFETY: the identifier came from a box, is listed no longer, and was never given to the program.
                drop(unsafe { Box::from_raw(raw) });
            }
            Phase::Requested => {
                id.phase = Phase::Ended;
                self.tell(raw, RDMA_CM_EVENT_UNREACHABLE, -libc::ECONNRESET, &[], none);
            }
            Phase::Accepted | Phase::Connected => {
                self.disconnected(raw);
                id.phase = Phase::Ended;
            }
            _ => id.phase = Phase::Ended,
        }
    }
}
