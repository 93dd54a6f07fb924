//! A connected queue pair with credits: messages in, messages out.

use crate::num;
use crate::rdma::bounds::{MOST, SENDS};
use crate::rdma::chain::Chain;
use crate::rdma::credits::{Credits, FIRST, Lack};
use crate::rdma::device::{Awaited, Device};
use crate::rdma::failover::{CREDITS, FailoverState};
use crate::rdma::pool::{Buffer, Pool};
use crate::rdma::qp::create_qp;
use crate::rdma::stats::{QpStats, Shown};
use crate::rdma::unacked::Unacked;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;
use netacc_stats::LinkEntry;
use netacc_verbs::{CmId, ConnParam, Error, RecvWr, Result};
use netacc_wire::companion::CompanionOffer;
use netacc_wire::frame::{Brief, FRAME, Frame, Kind, larger};
use netacc_wire::qp_hello::QpHello;

mod send;

extern crate alloc;

/// Frame of a message that requests an answer.
const PROBE: Frame = Frame { kind: Kind::Probe, ..CREDITS };
/// Bit of a work request's number that is set for a receive.
const RECEIVE: u64 = 1 << 31;

/// A queue pair that carries messages.
#[derive(Debug)]
pub struct QpConn {
    id: CmId,
    /// The buffers of our receives; a work request has its buffer's number.
    receives: Vec<Buffer>,
    /// Size (bytes) of each buffer that is not large.
    size: usize,
    /// The upper half of our work requests' numbers.
    tag: u32,
    /// Length (bytes) of the longest message that the other side takes, except [large](Frame::large) ones.
    peer_size: usize,
    /// Length (bytes) of the longest message that the receive takes for which the last message is.
    takes: usize,
    flow: Credits,
    /// Messages that are to be posted together.
    chain: Chain,
    /// Buffers of the messages that are under way, the oldest first; `None`: the message goes inline.
    in_flight: VecDeque<Option<Buffer>>,
    /// Number of the last posted messages that have no completion of their own.
    unsignaled: u32,
    /// Number of messages that have a completion and have not completed; and of all queue pairs of the device together.
    signaled: u32,
    /// How many of them have completed, modulo 2^32.
    completions: u32,
    awaited: Awaited,
    /// Set once messages could not be posted: none that comes after them may go out.
    stuck: bool,
    /// Number of messages received, modulo 65,536.
    received: u16,
    /// The value of `received` in the last message to the other side, and that in its last message to us.
    ack_sent: u16,
    ack_received: u16,
    /// Number of messages sent, and of those among them that the other side has dealt with, as far as it has told.
    sent: u64,
    acked: u64,
    /// Set if a message may have its head in the immediate data.
    immediate: bool,
    /// Set while the other side waits for a message.
    reply_requested: bool,
    /// The messages sent that are kept for the case that the queue pair fails.
    unacked: Unacked,
    inline: usize,
    cq: usize,
    stats: QpStats,
}

/// What a completion of a queue pair means.
#[derive(Debug)]
pub enum Completion {
    /// A message: its buffer, to be given to [`QpConn::dealt_with`], and its beginning.
    Message(Buffer, Head),
    /// A message was sent; there is room for more.
    Sent,
}

/// The beginning of a message.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// The frame itself.
    pub frame: Frame,
    /// Set if the frame came in the immediate data, and does not carry the connection's generation.
    pub brief: bool,
    /// Offset in its buffer of the bytes that belong to it.
    pub at: usize,
    /// Their address in memory.
    pub start: *const u8,
    /// Number of the bytes that belong to it.
    pub len: usize,
}

impl QpConn {
    /// Makes the queue pair of an identifier that is on `device`, with receives posted. `tag` is the upper half of
    /// the numbers of its work requests.
    pub fn new(mut id: CmId, device: &mut Device, tag: u32) -> Result<QpConn> {
        let size = device.pool.size();
        // One more than at first, so that the first long message need not wait.
        device.pool.ensure(usize::from(FIRST) + 1)?;
        let (cq, at) = device.cq_for_one_more()?;
        let inline = create_qp(&mut id, device, &cq).inspect_err(|_| device.cq_has_one_less(at))?;
        let mut qp_conn = QpConn {
            id,
            receives: Vec::with_capacity(MOST.into()),
            size,
            tag,
            peer_size: 0,
            takes: 0,
            flow: Credits::new(size),
            chain: Chain::default(),
            in_flight: VecDeque::with_capacity(SENDS),
            unsignaled: 0,
            signaled: 0,
            completions: 0,
            awaited: device.awaited(),
            stuck: false,
            received: 0,
            ack_sent: 0,
            ack_received: 0,
            sent: 0,
            acked: 0,
            immediate: device.has_immediate(),
            reply_requested: false,
            unacked: Unacked::default(),
            inline,
            cq: at,
            stats: QpStats::default(),
        };
        for _ in 0..FIRST {
            if let Err(e) = qp_conn.add_receive(&mut device.pool) {
                qp_conn.end(device);
                return Err(e);
            }
        }
        Ok(qp_conn)
    }

    /// Asks the other side for the connection.
    pub fn connect(&self, companion: CompanionOffer) -> Result<()> {
        self.id.connect(&ConnParam { private_data: &hello(self.size, companion).encode(), ..ConnParam::default() })
    }

    /// Accepts a connect request that came with the hello `theirs`.
    pub fn accept(&mut self, theirs: QpHello, companion: CompanionOffer) -> Result<()> {
        self.start(theirs);
        self.id.accept(&ConnParam { private_data: &hello(self.size, companion).encode(), ..ConnParam::default() })
    }

    /// Begins to keep unacknowledged messages, since there will be a companion. To be called after [`QpConn::accept`]
    /// or [`QpConn::start`]. False: there is no memory for that.
    #[must_use]
    pub fn keep(&mut self) -> bool {
        // Messages that have a large buffer stay there.
        self.unacked.begin(self.flow.peer_most(), FRAME + larger(self.peer_size).min(self.size))
    }

    /// Stops keeping messages, since there is no companion after all.
    pub fn keep_nothing(&mut self, pool: &mut Pool) {
        self.unacked.end(pool);
    }

    /// Number of signalled requests that have completed, modulo 2^32; `None` while none is outstanding.
    pub fn awaited_completion(&self) -> Option<u32> {
        (self.signaled > 0).then_some(self.completions)
    }

    /// Number of messages that have been received, modulo 65,536.
    pub fn received(&self) -> u16 {
        self.received
    }

    /// Number of messages that have been sent, or wait for [`QpConn::post`].
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether the other side has acknowledged the first `first` messages. That is its claim: only its own connections
    /// may depend on it.
    pub fn has_acked(&self, first: u64) -> bool {
        self.acked >= first
    }

    /// Whether the other side should have something to send.
    pub fn expects(&self) -> bool {
        self.unacked.asks()
    }

    /// Requests an answer of the other side.
    pub fn probe(&mut self) -> Result<()> {
        self.send(PROBE, &[])
    }

    /// Stores the limits of the other side's hello.
    pub fn start(&mut self, hello: QpHello) {
        self.peer_size = hello.size as usize;
        self.flow.start(hello.receives, self.peer_size);
    }

    /// Disconnects the queue pair, also in answer to the other side's disconnect.
    pub fn disconnect(&self) {
        let _ = self.id.disconnect();
    }

    /// The other side's address, which the connection manager has confirmed.
    pub fn peer_ip(&self) -> Option<IpAddr> {
        self.id.peer_addr().map(|a| a.ip().to_canonical())
    }

    /// The address of our end.
    pub fn local_ip(&self) -> Option<IpAddr> {
        self.id.local_addr().map(|a| a.ip().to_canonical())
    }

    /// The number of its completion queue on the device.
    pub fn cq(&self) -> usize {
        self.cq
    }

    /// The queue pair's number, for people to read.
    pub fn qp_num(&self) -> u32 {
        self.id.qp().map_or(0, netacc_verbs::Qp::qp_num)
    }

    /// Shows a queue pair that is connected. `capacity` is how many connections we put on it; 0: that is the other
    /// side's choice. `thread` is the number of the process's thread that it belongs to.
    pub fn show(&mut self, device: &Device, server: bool, capacity: u32, thread: u16) {
        let shown = Shown { server, capacity, thread, device: device.name(), qp_num: self.qp_num() };
        self.stats = QpStats::show(&shown, self.id.peer_addr(), self.flow.credits());
    }

    /// The number of its entry on the stats page, and the entry.
    pub fn entry(&self) -> Option<(u32, &'static LinkEntry)> {
        self.stats.entry()
    }

    /// Most bytes that the next message may have.
    pub fn longest(&self) -> usize {
        if self.flow.next_is_large() { larger(self.peer_size) } else { self.peer_size }
    }

    /// Number of bytes that fit into a message that goes inline, which is cheaper, and needs no buffer.
    pub fn payload_inline(&self) -> usize {
        self.inline.min(self.peer_size).saturating_sub(FRAME)
    }

    /// Whether the other side waits for credits that were not announced yet, or for an answer.
    pub fn owes(&self) -> bool {
        (self.flow.owes() || self.reply_requested) && self.can_announce()
    }

    fn can_announce(&self) -> bool {
        self.flow.can_announce() && self.pending() < SENDS && self.can_go_on()
    }

    /// Whether everything sent has been received. After [`QpConn::flush`] every message is signalled.
    pub fn is_flushed(&self) -> bool {
        self.pending() == 0
    }

    fn post_receive(&mut self, pool: &Pool, n: Buffer) -> Result<()> {
        let sge = pool.sge(n, 0, pool.size_of(n)).ok_or(too_long())?;
        let number = u64::from(self.tag) << 32 | RECEIVE | u64::from(n);
        self.id.qp().ok_or(Error::NoDevice)?.post_recv(&mut [RecvWr::new(number, sge)]).map_err(Error::from)
    }

    fn add_receive(&mut self, pool: &mut Pool) -> Result<()> {
        let n = pool.take().ok_or(Error::NoDevice)?;
        self.receives.push(n);
        self.post_receive(pool, n)
    }

    /// Whether the other side keeps running short of receives of ours: [`QpConn::grow`] posts more, or larger ones.
    pub fn wants_to_grow(&self) -> bool {
        self.flow.lacks() != Lack::Nothing
    }

    /// Posts more receives, if there is memory for them, which have to be announced to the other side; or makes free
    /// receives larger. It may register memory, so a handler that has interrupted malloc must not call it.
    pub fn grow(&mut self, pool: &mut Pool) -> Result<()> {
        let lack = self.flow.lacks();
        match lack {
            Lack::Nothing => return Ok(()),
            Lack::Larger(count) if pool.ensure_large(count.into()) => self.flow.enlarge(),
            Lack::More(more) if pool.ensure(more.into()).is_ok() => {
                for _ in 0..more {
                    self.add_receive(pool)?;
                    self.flow.grown();
                }
            }
            _ => self.flow.refused(lack),
        }
        self.announce()
    }

    /// Periodic work: if few messages have come, requests the other side to use up receives that are no longer needed,
    /// or whose memory could then be deregistered. The threads that may call [`QpConn::grow`] may call it.
    pub fn tick(&mut self, pool: &mut Pool) -> Result<()> {
        let quiet = self.flow.tick();
        let large = self.flow.too_large();
        // Large receives stay unless small ones can take their place.
        let costly = self.flow.has_many()
            || (large > 0 && pool.has_or_gets(large.into()))
            || self.receives.iter().any(|n| pool.has_older(*n));
        // The last credit is never used for this: if both sides did that, neither would have a credit left.
        if quiet && costly && self.can_send() {
            let asks = self.flow.asks();
            return self.send(asks, &[]);
        }
        Ok(())
    }

    /// The other side wants to keep `keep` receives. It gets all of them filled, except the one that is kept for
    /// credits, and posts the others anew.
    fn use_up(&mut self, keep: u16) -> Result<()> {
        for _ in 0..self.flow.keep_requested(keep) {
            // The other side will ask again for what is left.
            if self.in_flight.len() + self.chain.len() < SENDS - 1 && self.can_go_on() {
                self.send(CREDITS, &[])?;
            }
        }
        Ok(())
    }

    /// Handles a work request of ours that has completed well; `len` and `immediate` are those of a received message.
    pub fn completed(
        &mut self,
        pool: &mut Pool,
        number: u64,
        len: usize,
        immediate: Option<u32>,
    ) -> Option<Completion> {
        let n = num::low_half(number) & const { num::low_half(RECEIVE - 1) };
        if number & RECEIVE == 0 {
            for _ in 0..n {
                if let Some(Some(buffer)) = self.in_flight.pop_front() {
                    self.unacked.completed(buffer, pool);
                }
            }
            self.stats.completed(n);
            self.completions = self.completions.wrapping_add(1);
            self.await_fewer(1);
            return Some(Completion::Sent);
        }
        let (frame, at) = match immediate {
            Some(number) => (Brief::decode(number).frame(self.ack_received), 0),
            None => {
                let mut head = [0u8; FRAME];
                if !pool.read(n, 0, &mut head) {
                    return None;
                }
                (Frame::decode(&head)?, FRAME)
            }
        };
        if len < at || len > pool.size_of(n) {
            return None;
        }
        let news = frame.acked.wrapping_sub(self.ack_received);
        self.acked = self.acked.saturating_add(news.into());
        self.ack_received = frame.acked;
        // More credits than it has receives would let us send what it has no room for.
        if !self.flow.came(&frame, len) || !self.unacked.confirm(frame.acked, pool) {
            return None;
        }
        self.received = self.received.wrapping_add(1);
        self.reply_requested |= frame.kind == Kind::Probe;
        self.stats.received(self.flow.credits());
        let head = Head { frame, brief: immediate.is_some(), at, start: pool.at(n, at)?, len: len - at };
        Some(Completion::Message(n, head))
    }

    /// To be called when the message `frame` in buffer `n` is dealt with: the buffer may be used for the next one, and
    /// the credits that the other side waits for are announced.
    pub fn dealt_with(&mut self, pool: &mut Pool, n: Buffer, frame: Frame) -> Result<()> {
        self.repost(pool, n)?;
        if frame.kind == Kind::Credit && frame.conn != 0 {
            self.use_up(frame.conn)?;
        }
        self.announce()
    }

    fn repost(&mut self, pool: &mut Pool, n: Buffer) -> Result<()> {
        let place = self.receives.iter().position(|r| *r == n).ok_or(Error::NoDevice)?;
        if self.flow.freed(pool.is_large(n)) {
            let n = pool.exchange(n, self.flow.is_enlarged());
            if let Some(place) = self.receives.get_mut(place) {
                *place = n;
            }
            self.flow.reposted(pool.is_large(n));
            return self.post_receive(pool, n);
        }
        self.receives.swap_remove(place);
        pool.put(n);
        Ok(())
    }

    /// Announces the credits that the other side waits for, by a separate message; or by two, if large receives and
    /// others are free: with only some of them it might still be unable to send anything.
    fn announce(&mut self) -> Result<()> {
        while self.owes() {
            self.send(CREDITS, &[])?;
        }
        Ok(())
    }

    /// Makes all messages in flight complete, for [`QpConn::is_flushed`].
    pub fn flush(&mut self) -> Result<()> {
        if self.unsignaled == 0 || !self.can_announce() {
            return Ok(());
        }
        self.send_short(CREDITS, &[], true)
    }

    /// Ends the queue pair and frees its buffers.
    pub fn end(mut self, device: &mut Device) {
        self.id.destroy_qp();
        self.stats.hide();
        self.free_buffers(device);
    }

    fn free_buffers(&mut self, device: &mut Device) {
        self.await_fewer(self.signaled);
        self.unacked.end(&mut device.pool);
        for buffer in self.in_flight.drain(..).flatten().chain(self.chain.buffers()) {
            device.pool.sent(buffer);
        }
        for buffer in self.receives.drain(..) {
            device.pool.put(buffer);
        }
        device.cq_has_one_less(self.cq);
    }

    /// Ends the queue pair; its messages go on by TCP.
    pub fn into_failover(mut self, device: &mut Device) -> FailoverState {
        self.id.destroy_qp();
        // Messages that could not be posted any more go out by TCP.
        for message in self.chain.take() {
            let _ = self.book(&message);
        }
        let (again, first) = self.unacked.take(&mut device.pool);
        self.free_buffers(device);
        // By TCP all messages have their beginning before their bytes, which a message that was all bytes had not.
        let (most, size) = (FRAME + self.peer_size.min(self.size), FRAME + larger(self.size));
        FailoverState {
            retransmit: again,
            first,
            received: self.received,
            most,
            size,
            stats: core::mem::take(&mut self.stats),
        }
    }
}

/// The hello of a side that takes messages of `size` bytes.
pub fn hello(size: usize, companion: CompanionOffer) -> QpHello {
    QpHello { receives: FIRST, size: num::small(size), companion }
}

fn too_long() -> Error {
    Error::Misuse { verb: "ibv_post_send", why: "longer than a message can be" }
}
