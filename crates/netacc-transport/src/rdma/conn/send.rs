//! The messages that go out by a queue pair: frames are put together to messages, and messages are posted.

use super::{QpConn, too_long};
use crate::num;
use crate::rdma::bounds::{LONGEST_INLINE, SENDS};
use crate::rdma::chain::{CHAIN, Message};
use crate::rdma::pool::{Buffer, Pool};
use core::sync::atomic::Ordering;
use netacc_verbs::{Error, Result, SendWr};
use netacc_wire::frame::{Brief, FRAME, Frame, Kind};

/// One send of this many has a completion: it frees the places of those before it.
const SIGNAL_EVERY: u32 = 4;
/// One message of this many that are posted together wakes a receiver that sleeps, and so does the last one: more often
/// costs the receiver more than it has from an early beginning.
const SOLICIT_EVERY: usize = 4;

impl QpConn {
    /// Whether a message may be sent now.
    pub fn can_send(&self) -> bool {
        self.flow.can_send() && self.pending() < SENDS - 1 && self.chain.len() < CHAIN && self.can_go_on()
    }

    /// Whether after the next message another one may be sent, whatever the other side does.
    pub fn can_send_two(&self) -> bool {
        self.flow.credits().0 > 2 && self.pending() < SENDS - 2 && self.can_go_on()
    }

    /// Whether one more frame may be sent now, with few bytes: in a message of its own, or behind another one.
    pub fn can_add(&mut self, pool: &mut Pool) -> bool {
        self.can_send() || self.append_buffer(pool, LONGEST_INLINE).is_some()
    }

    /// Where the bytes of a further frame in the last message of the chain may be put, if it has room for `least`
    /// bytes; and for how many it has room.
    pub fn append_buffer(&mut self, pool: &mut Pool, least: usize) -> Option<(*mut u8, usize)> {
        let room = self.chain.room(pool, self.takes);
        if room < least {
            return None;
        }
        Some((self.chain.append_buffer(pool)?, room))
    }

    /// To be called when the bytes are there.
    pub fn placed(&mut self, pool: &Pool, frame: Frame, len: usize) -> Result<()> {
        if self.chain.placed(pool, frame, len) { Ok(()) } else { Err(too_long()) }
    }

    /// Sends a frame with few bytes, at [`QpConn::post`] or before: behind another one if there is room.
    pub fn add(&mut self, pool: &mut Pool, frame: Frame, payload: &[u8]) -> Result<()> {
        let room = self.chain.room(pool, self.takes);
        let fits = room >= payload.len() && !self.chain.is_empty();
        if fits && self.chain.add(pool, self.inline, frame, payload) {
            return Ok(());
        }
        let message = self.short(frame, payload)?;
        self.push(pool, message)
    }

    /// Number of messages that are in flight or about to be posted.
    pub(super) fn pending(&self) -> usize {
        self.in_flight.len() + self.chain.len()
    }

    fn push(&mut self, pool: &Pool, message: Message) -> Result<()> {
        self.chain.push(message);
        if self.chain.len() < CHAIN - 1 { Ok(()) } else { self.post(pool) }
    }

    pub(super) fn can_go_on(&self) -> bool {
        !self.stuck && self.unacked.has_room(self.chain.len())
    }

    /// The beginning of a message, and what may stand for it in the immediate data.
    fn head(&mut self, mut frame: Frame) -> ([u8; FRAME], Option<Brief>) {
        self.takes = self.longest();
        (frame.credits, frame.large) = self.flow.sent();
        frame.acked = self.received;
        self.reply_requested = false;
        self.sent += 1;
        let before = core::mem::replace(&mut self.ack_sent, self.received);
        (frame.encode(), Brief::of(&frame, before))
    }

    /// Sends a message without a buffer: at most [`QpConn::payload_inline`] bytes belong to it. Behind messages that
    /// wait for [`QpConn::post`] it waits too.
    pub fn send(&mut self, frame: Frame, payload: &[u8]) -> Result<()> {
        self.send_short(frame, payload, false)
    }

    /// Makes the other device acknowledge a request; if it does not, the queue pair fails. This takes no credit, and
    /// the other process does not notice it. It is for queue pairs that keep no messages. If all places but the last
    /// one, which is for credits, are taken, the messages in flight have the same effect.
    pub fn probe_device(&mut self) -> Result<()> {
        if self.pending() >= SENDS - 1 || self.stuck {
            return Ok(());
        }
        self.in_flight.push_back(None);
        let wr = self.numbered(SendWr::write_nothing(0), false);
        self.post_as_they_are(&mut [wr])
    }

    pub(super) fn send_short(&mut self, frame: Frame, payload: &[u8], now: bool) -> Result<()> {
        let message = self.short(frame, payload)?;
        if !self.chain.is_empty() {
            self.chain.push(message);
            return Ok(());
        }
        self.book(&message)?;
        let wr = message.request(None).ok_or(too_long())?;
        let wr = self.numbered(wr, now);
        self.post_requests(&mut [wr])
    }

    fn short(&mut self, frame: Frame, payload: &[u8]) -> Result<Message> {
        let (head, _) = self.head(frame);
        let mut bytes = [0u8; LONGEST_INLINE];
        let len = FRAME + payload.len();
        let Some(message) = bytes.get_mut(..len).filter(|_| len <= self.inline) else { return Err(too_long()) };
        for (to, from) in message.iter_mut().zip(head.iter().chain(payload)) {
            *to = *from;
        }
        Ok(Message::Short(bytes, len, !matches!(frame.kind, Kind::Credit | Kind::Probe)))
    }

    /// Keeps a message that is about to be posted until it is confirmed.
    pub(super) fn book(&mut self, message: &Message) -> Result<()> {
        let kept = match message {
            Message::Short(bytes, len, asks) => self.unacked.inline(bytes.get(..*len).unwrap_or_default(), *asks),
            Message::Long(buffer, len, _) => self.unacked.buffer(*buffer, *len, None),
            Message::Whole(buffer, len, _, head) => self.unacked.buffer(*buffer, *len, Some(*head)),
        };
        self.in_flight.push_back(match message {
            Message::Short(..) => None,
            Message::Long(buffer, ..) | Message::Whole(buffer, ..) => Some(*buffer),
        });
        if kept { Ok(()) } else { Err(no_room()) }
    }

    /// Puts buffer `n` of `pool`, with `len` bytes after the room for the beginning, behind those that are to be sent
    /// by [`QpConn::post`]. With `known` the other side knows which use of the connection's number it is.
    pub fn send_buffer(&mut self, pool: &Pool, frame: Frame, n: Buffer, len: usize, known: bool) -> Result<()> {
        let (head, brief) = self.head(frame);
        // The beginning is in the buffer as well: if the queue pair fails, the message goes out again by TCP.
        if !pool.write(n, 0, &head) {
            return Err(too_long());
        }
        self.push(pool, Message::Long(n, FRAME + len, brief.filter(|_| known && self.immediate)))
    }

    /// Whether a message that begins with `frame` can have it in its immediate data.
    pub fn can_be_brief(&self, frame: &Frame) -> bool {
        let (credits, large) = self.flow.to_say();
        let frame = Frame { credits, large, acked: self.received, ..*frame };
        self.immediate && Brief::of(&frame, self.ack_sent).is_some()
    }

    /// Sends a buffer that has `len` bytes from its beginning on, for a frame that [can be
    /// brief](QpConn::can_be_brief).
    pub fn send_whole(&mut self, pool: &Pool, frame: Frame, n: Buffer, len: usize) -> Result<()> {
        let (head, brief) = self.head(frame);
        self.push(pool, Message::Whole(n, len, brief.ok_or(too_long())?, head))
    }

    /// Whether messages wait for [`QpConn::post`].
    pub fn is_waiting(&self) -> bool {
        !self.chain.is_empty()
    }

    /// Sends the messages that wait for it.
    pub fn post(&mut self, pool: &Pool) -> Result<()> {
        if self.chain.is_empty() {
            return Ok(());
        }
        let chain = self.chain.take();
        // There may be more of the messages that only return credits or use up receives.
        let mut posted = Ok(());
        for part in chain.chunks(CHAIN) {
            if posted.is_ok() {
                posted = self.post_part(pool, part);
            } else {
                // These go out by the companion connection, behind those that could not be posted.
                for message in part {
                    let _ = self.book(message);
                }
            }
        }
        self.stuck |= posted.is_err();
        self.chain.put_back(chain);
        posted
    }

    /// Sends these messages, of which there are at most [`CHAIN`].
    fn post_part(&mut self, pool: &Pool, part: &[Message]) -> Result<()> {
        for message in part {
            self.book(message)?;
        }
        let nothing = SendWr::send_inline(0, &[]).ok_or(too_long())?;
        let mut requests = [nothing; CHAIN];
        let last_long = part.iter().rposition(|m| !matches!(m, Message::Short(..)));
        for (at, (request, message)) in requests.iter_mut().zip(part).enumerate() {
            let wr = message.request(Some(pool)).ok_or(too_long())?;
            // All buffers are to be free again soon, and perhaps nothing else follows for long.
            *request = self.numbered(wr, Some(at) == last_long);
        }
        self.post_requests(requests.get_mut(..part.len()).ok_or(too_long())?)
    }

    /// Numbers the next request that is posted. It has a completion if that is wanted `now`, or else if the places
    /// might run out without any thread hearing of it. Its number tells how many requests it completes.
    fn numbered<'a>(&mut self, wr: SendWr<'a>, now: bool) -> SendWr<'a> {
        self.unsignaled += 1;
        let signal = now || self.unsignaled >= SIGNAL_EVERY;
        let completes = if signal { core::mem::take(&mut self.unsignaled) } else { 0 };
        let wr = wr.numbered(u64::from(self.tag) << 32 | u64::from(completes));
        if signal {
            self.signaled += 1;
            self.awaited.fetch_add(1, Ordering::Relaxed);
            wr.signaled()
        } else {
            wr
        }
    }

    /// `count` sends have completed, or never will.
    pub(super) fn await_fewer(&mut self, count: u32) {
        self.signaled -= count;
        self.awaited.fetch_sub(count, Ordering::Relaxed);
    }

    fn post_requests(&mut self, requests: &mut [SendWr<'_>]) -> Result<()> {
        if self.immediate {
            // The last one always has the mark: nothing else would report it. See
            // [`Armed::Solicited`](crate::rdma::device::Armed::Solicited).
            for wr in requests.rchunks_mut(SOLICIT_EVERY).filter_map(<[_]>::last_mut) {
                *wr = wr.solicited();
            }
        }
        self.post_as_they_are(requests)
    }

    fn post_as_they_are(&mut self, requests: &mut [SendWr<'_>]) -> Result<()> {
        let count = num::small(requests.len());
        let qp = self.id.qp().ok_or(Error::NoDevice)?;
        let posted = qp.post_send(requests).map_err(Error::from);
        // The messages are numbered already: a later one in their place would be taken for one of them.
        self.stuck |= posted.is_err();
        self.stats.posted(count, self.flow.credits());
        posted
    }
}

impl Message {
    /// The request that posts the message, with the pool of its buffer if it has one.
    fn request<'a>(&'a self, pool: Option<&'a Pool>) -> Option<SendWr<'a>> {
        match self {
            Message::Short(bytes, len, _) => SendWr::send_inline(0, bytes.get(..*len)?),
            Message::Long(buffer, len, None) => Some(SendWr::send(0, pool?.sge(*buffer, 0, *len)?)),
            Message::Long(buffer, len, Some(brief)) => {
                Some(SendWr::send(0, pool?.sge(*buffer, FRAME, *len)?).with_imm(brief.encode()))
            }
            Message::Whole(buffer, len, brief, _) => {
                Some(SendWr::send(0, pool?.sge(*buffer, 0, *len)?).with_imm(brief.encode()))
            }
        }
    }
}

fn no_room() -> Error {
    Error::Misuse { verb: "ibv_post_send", why: "more messages than are kept until they are confirmed" }
}
