//! A connected queue pair with credits: messages in, messages out.

use crate::rdma::device::{Device, Sends};
use crate::rdma::kept::Kept;
use crate::rdma::registered::Registered;
use crate::rdma::shown::Shown;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use netacc_verbs::sys::ibv_qp_cap;
use netacc_verbs::{CmId, ConnParam, Cq, Error, QpInit, RecvWr, Result, SendWr};
use netacc_wire::base::Base;
use netacc_wire::frame::{FRAME, Frame, Greeting, Kind};

extern crate alloc;

/// Receives that are posted: with the usual buffers of 16 KiB, 64 KiB of a queue pair's.
pub const RECEIVES: u16 = 4;
/// So many free ones are told by a message of their own, if no other has gone out before. More than one of them for each
/// message that only brings credits, or two sides that send and answer would answer each other's credits with credits.
const OWED: u16 = 3;
/// Messages that may be under way.
pub(super) const SENDS: usize = 16;
/// One send in so many has a completion: it frees the places of those before it.
const SIGNAL_EVERY: u32 = 4;
/// What we would like to send inline: the beginning of a message and 64 bytes or more. Devices differ; each that we know
/// takes 64 bytes, so that all messages but those with many bytes of a connection need no buffer.
const INLINE: [u32; 3] = [96, 80, 64];
/// The longest of those.
const SHORT: usize = 96;
/// A message that only brings credits.
const CREDITS: Frame = Frame { kind: Kind::Credit, credits: 0, conn: 0, epoch: 0, window: 0, heard: 0 };
/// One that asks for an answer.
const PROBE: Frame = Frame { kind: Kind::Probe, ..CREDITS };
/// Work request numbers: this bit says that it is a receive.
const RECEIVE: u64 = 1 << 31;

/// A queue pair that carries messages.
#[derive(Debug)]
pub struct Pipe {
    id: CmId,
    receives: Registered,
    size: usize,
    /// The upper half of our work requests' numbers.
    tag: u32,
    /// The longest message that the other side takes.
    peer_size: usize,
    /// Receives of the other side that are free, as far as it has said.
    credits: u16,
    /// How many it has in all.
    peer_receives: u16,
    /// Receives of ours that are free again, which it has not been told.
    owed: u16,
    /// Buffers of the messages that are under way, oldest first; `None`: went inline.
    under_way: VecDeque<Option<u16>>,
    /// Of those, the last that have no completion of their own.
    unsignaled: u32,
    /// Messages received, modulo 65,536.
    heard: u16,
    /// The other side waits for a message.
    asked: bool,
    /// Messages sent, for the case that the queue pair fails.
    kept: Kept,
    inline: usize,
    cq: usize,
    pub(super) shown: Shown,
}

/// What a completion of a pipe means.
#[derive(Debug)]
pub enum Completion {
    /// A message: its number, to be given to [`Pipe::repost`], its beginning and what belongs to it.
    Message(u32, Frame, *const u8, usize),
    /// A message was sent; there is room for more.
    Sent,
}

impl Pipe {
    /// Makes the queue pair of an identifier that is on `device`, with receives posted. `tag` is the upper half of
    /// the numbers of its work requests.
    pub fn new(mut id: CmId, device: &mut Device, tag: u32) -> Result<Pipe> {
        let size = device.sends.size();
        let (cq, at) = device.cq_for_one_more()?;
        let made = create_qp(&mut id, device, &cq)
            .and_then(|inline| Ok((inline, Registered::new(device.pd()?, size * usize::from(RECEIVES))?)));
        let (inline, receives) = made.inspect_err(|_| device.cq_has_one_less(at))?;
        let mut pipe = Pipe {
            id,
            receives,
            size,
            tag,
            peer_size: 0,
            credits: 0,
            peer_receives: 0,
            owed: 0,
            under_way: VecDeque::with_capacity(SENDS),
            unsignaled: 0,
            heard: 0,
            asked: false,
            kept: Kept::default(),
            inline,
            cq: at,
            shown: Shown::default(),
        };
        for n in 0..u32::from(RECEIVES) {
            pipe.post_receive(n).inspect_err(|_| device.cq_has_one_less(at))?;
        }
        Ok(pipe)
    }

    fn greeting(&self, base: Base) -> Greeting {
        Greeting { receives: RECEIVES, size: self.size as u32, base }
    }

    /// Asks the other side for the connection.
    pub fn connect(&self, base: Base) -> Result<()> {
        self.id.connect(&ConnParam { private_data: &self.greeting(base).encode(), ..ConnParam::default() })
    }

    /// Accepts a connect request that came with `greeting`.
    pub fn accept(&mut self, greeting: Greeting, base: Base) -> Result<()> {
        self.meet(greeting);
        self.id.accept(&ConnParam { private_data: &self.greeting(base).encode(), ..ConnParam::default() })
    }

    /// There is to be a base: from the first message on, those that are not confirmed are kept. After
    /// [`Pipe::accept`] or [`Pipe::meet`].
    pub fn keep(&mut self) {
        self.kept.begin(self.peer_receives.into(), self.peer_size.min(self.size));
    }

    /// There is none, after all.
    pub fn keep_nothing(&mut self, sends: &mut Sends) {
        self.kept.end(sends);
    }

    /// How many messages have been received, modulo 65,536.
    pub fn heard(&self) -> u16 {
        self.heard
    }

    /// Whether the other side should have something to say.
    pub fn expects(&self) -> bool {
        self.kept.asks()
    }

    /// Asks the other side to say something.
    pub fn probe(&mut self) -> Result<()> {
        self.send(PROBE, &[])
    }

    /// The other side has said what it takes.
    pub fn meet(&mut self, greeting: Greeting) {
        self.peer_size = greeting.size as usize;
        self.credits = greeting.receives;
        self.peer_receives = greeting.receives;
    }

    /// Ends the connection. Also the answer to the other side's end.
    pub fn disconnect(&self) {
        let _ = self.id.disconnect();
    }

    /// The other side's address, which the connection manager has confirmed.
    pub fn peer_ip(&self) -> Option<IpAddr> {
        self.id.peer_addr().map(|a| a.ip().to_canonical())
    }

    pub(super) fn peer_addr(&self) -> Option<SocketAddr> {
        self.id.peer_addr()
    }

    /// Receives of the other side that are free, and all that it has.
    pub(super) fn credits(&self) -> (u16, u16) {
        (self.credits, self.peer_receives)
    }

    /// Ours.
    pub fn local_ip(&self) -> Option<IpAddr> {
        self.id.local_addr().map(|a| a.ip().to_canonical())
    }

    /// The number of its completion queue on the device.
    pub fn cq(&self) -> usize {
        self.cq
    }

    /// The queue pair's number, for people.
    pub fn qp_num(&self) -> u32 {
        self.id.qp().map_or(0, netacc_verbs::Qp::qp_num)
    }

    /// Bytes that fit into one message.
    pub fn payload(&self) -> usize {
        self.peer_size.min(self.size).saturating_sub(FRAME)
    }

    /// Bytes that fit into a message that goes inline: cheaper, and no buffer is needed.
    pub fn payload_inline(&self) -> usize {
        self.inline.min(self.peer_size).saturating_sub(FRAME)
    }

    /// Whether a message may be sent now. The last credit is kept for [`Kind::Credit`]: with both sides out of credits
    /// none could give the other any.
    pub fn can_send(&self) -> bool {
        self.credits >= 2 && self.under_way.len() < SENDS - 1 && self.kept.has_room()
    }

    /// Whether the other side waits to hear of free receives that no message has told it of, or of anything at all.
    pub fn owes(&self) -> bool {
        (self.owed >= OWED || self.asked) && self.credits >= 1 && self.under_way.len() < SENDS && self.kept.has_room()
    }

    /// Whether everything sent has been received. Every message asks for that once [`Pipe::flush`] was called.
    pub fn is_flushed(&self) -> bool {
        self.under_way.is_empty()
    }

    fn head(&mut self, mut frame: Frame) -> [u8; FRAME] {
        frame.credits = self.owed;
        frame.heard = self.heard;
        (self.owed, self.asked) = (0, false);
        frame.encode()
    }

    /// Sends a message without a buffer: what belongs to it is at most [`Pipe::payload_inline`].
    pub fn send(&mut self, frame: Frame, payload: &[u8]) -> Result<()> {
        self.send_inline(frame, payload, false)
    }

    fn send_inline(&mut self, frame: Frame, payload: &[u8], now: bool) -> Result<()> {
        let head = self.head(frame);
        let mut bytes = [0u8; SHORT];
        let len = FRAME + payload.len();
        let Some(message) = bytes.get_mut(..len) else { return Err(too_long()) };
        for (to, from) in message.iter_mut().zip(head.iter().chain(payload)) {
            *to = *from;
        }
        let wr = SendWr::send_inline(0, message).filter(|_| len <= self.inline).ok_or(too_long())?;
        self.kept.inline(message, !matches!(frame.kind, Kind::Credit | Kind::Probe));
        self.post(wr, None, now)
    }

    /// Sends buffer `n` of `sends`, with `len` bytes after the room for the beginning.
    pub fn send_buffer(&mut self, sends: &Sends, frame: Frame, n: u16, len: usize) -> Result<()> {
        let head = self.head(frame);
        if !sends.head(n, &head) {
            return Err(too_long());
        }
        let sge = sends.sge(n, FRAME + len).ok_or(too_long())?;
        self.kept.buffer(n, FRAME + len);
        self.post(SendWr::send(0, sge), Some(n), false)
    }

    fn post(&mut self, wr: SendWr<'_>, buffer: Option<u16>, now: bool) -> Result<()> {
        self.unsignaled += 1;
        // A buffer is to be free again soon, and the places must not run out without anybody hearing of it.
        let signal = now || buffer.is_some() || self.unsignaled >= SIGNAL_EVERY;
        let completes = if signal { core::mem::take(&mut self.unsignaled) } else { 0 };
        let wr = wr.numbered(u64::from(self.tag) << 32 | u64::from(completes));
        let wr = if signal { wr.signaled() } else { wr };
        self.credits = self.credits.saturating_sub(1);
        self.under_way.push_back(buffer);
        let qp = self.id.qp().ok_or(Error::NoDevice)?;
        qp.post_send(&mut [wr]).map_err(Error::from)?;
        self.show_posted();
        Ok(())
    }

    fn post_receive(&mut self, n: u32) -> Result<()> {
        let sge = self.receives.sge(n as usize * self.size, self.size).ok_or(too_long())?;
        let number = u64::from(self.tag) << 32 | RECEIVE | u64::from(n);
        self.id.qp().ok_or(Error::NoDevice)?.post_recv(&mut [RecvWr::new(number, sge)]).map_err(Error::from)
    }

    /// A work request of ours has completed well; `len` is that of a received message.
    pub fn completed(&mut self, sends: &mut Sends, number: u64, len: usize) -> Option<Completion> {
        let n = number as u32 & (RECEIVE as u32 - 1);
        if number & RECEIVE == 0 {
            for _ in 0..n {
                if let Some(Some(buffer)) = self.under_way.pop_front()
                    && !self.kept.completed(buffer, sends)
                {
                    sends.give_back(buffer);
                }
            }
            self.show_completed(n);
            return Some(Completion::Sent);
        }
        let mut head = [0u8; FRAME];
        let at = n as usize * self.size;
        if !self.receives.read(at, &mut head) {
            return None;
        }
        let frame = Frame::decode(&head).filter(|_| len >= FRAME)?;
        // More than it has would let us send what it has no room for.
        self.credits = self.credits.checked_add(frame.credits).filter(|c| *c <= self.peer_receives)?;
        if !self.kept.confirm(frame.heard, sends) {
            return None;
        }
        self.heard = self.heard.wrapping_add(1);
        self.asked |= frame.kind == Kind::Probe;
        self.show_received();
        let payload = self.receives.as_ptr().wrapping_add(at + FRAME).cast_const();
        Some(Completion::Message(n, frame, payload, len - FRAME))
    }

    /// Copies from the payload of message `n`, from `skip` on; false if there is not so much.
    pub fn copy(&self, n: u32, skip: usize, to: &mut [u8]) -> bool {
        self.receives.read(n as usize * self.size + FRAME + skip, to)
    }

    /// The message is dealt with: its buffer may be used for the next one.
    pub fn repost(&mut self, n: u32) -> Result<()> {
        self.post_receive(n)?;
        self.owed += 1;
        Ok(())
    }

    /// Tells the other side of free receives, by a message of its own.
    pub fn send_credits(&mut self) -> Result<()> {
        self.send(CREDITS, &[])
    }

    /// Has all that is under way complete, for [`Pipe::is_flushed`].
    pub fn flush(&mut self) -> Result<()> {
        if self.unsignaled == 0 || self.credits == 0 || self.under_way.len() >= SENDS {
            return Ok(());
        }
        self.send_inline(CREDITS, &[], true)
    }

    /// It is over: its buffers are free.
    pub fn end(mut self, device: &mut Device) {
        self.id.destroy_qp();
        self.shown.hide();
        self.free_buffers(device);
    }

    fn free_buffers(&mut self, device: &mut Device) {
        self.kept.end(&mut device.sends);
        for buffer in self.under_way.drain(..).flatten() {
            device.sends.give_back(buffer);
        }
        device.cq_has_one_less(self.cq);
    }

    /// The queue pair is over, and what it was to carry goes on by TCP.
    pub fn leave(mut self, device: &mut Device) -> Left {
        self.id.destroy_qp();
        let (again, first) = self.kept.take(&mut device.sends);
        self.free_buffers(device);
        let most = self.peer_size.min(self.size);
        Left { again, first, heard: self.heard, most, size: self.size, shown: core::mem::take(&mut self.shown) }
    }
}

/// What is left of a pipe whose queue pair has failed.
#[derive(Debug)]
pub struct Left {
    /// Messages that the other side has not confirmed, oldest first, and the number of the first, modulo 65,536.
    pub again: VecDeque<Vec<u8>>,
    /// See above.
    pub first: u16,
    /// Messages that were received, modulo 65,536.
    pub heard: u16,
    /// The longest message that the other side takes.
    pub most: usize,
    /// The longest that we take.
    pub size: usize,
    /// Its place on the stats page.
    pub shown: Shown,
}

impl Left {
    /// What our first message by TCP says.
    pub fn resume(&self) -> Frame {
        Frame { kind: Kind::Resume, heard: self.heard, ..CREDITS }
    }

    /// The other side has received `heard` messages: only those after them are left. False: it cannot have.
    pub fn confirm(&mut self, heard: u16) -> bool {
        let news = usize::from(heard.wrapping_sub(self.first));
        if news > self.again.len() {
            return false;
        }
        self.again.drain(..news);
        self.first = heard;
        true
    }
}

fn too_long() -> Error {
    Error::Misuse { verb: "ibv_post_send", why: "longer than a message can be" }
}

/// A queue pair with as much inline room as the device gives.
fn create_qp(id: &mut CmId, device: &Device, cq: &Cq) -> Result<usize> {
    let [most, ..] = INLINE;
    let mut last = Error::NoDevice;
    for max_inline_data in INLINE {
        let cap = ibv_qp_cap {
            max_send_wr: SENDS as u32,
            max_recv_wr: u32::from(RECEIVES),
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data,
        };
        let init = QpInit { send_cq: cq, recv_cq: cq, cap, sq_sig_all: false };
        match id.create_qp(device.pd()?, &init) {
            Ok(qp) => return Ok(qp.cap().max_inline_data.min(most) as usize),
            Err(e) => last = e,
        }
    }
    Err(last)
}
