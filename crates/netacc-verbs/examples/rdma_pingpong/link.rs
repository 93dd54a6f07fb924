//! One connection with its buffers, credits and completions.

use crate::message::{self, HEADER, Kind, Message};
use netacc_verbs::sys::{IBV_EVENT_DEVICE_FATAL, ibv_qp_cap};
use netacc_verbs::{
    AsyncEventType, CmEvent, CmEventType, CmId, CompChannel, Context, Cq, EventChannel, Mr, Pd, QpInit, RecvWr, SendWr,
    Wc,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use std::collections::VecDeque;

use std::time::Duration;

/// The result of an operation of this program; the error is a sentence for the user.
pub type Outcome<T> = Result<T, String>;

/// The payload of a message of the stream, in bytes.
pub const LARGE: usize = 4000;
const BUFFER: usize = LARGE + HEADER;
/// How many receive buffers each side has, and so how many credits the other one gets.
pub const RECEIVES: u16 = 16;
/// The places in the send queue. One send in `SIGNALED` has a completion; that number must be less than `SENDS`, so
/// that places come back before all are taken.
const SENDS: u64 = 32;
const SIGNALED: u64 = 8;
/// How many bytes are sent inline; every device takes that.
const INLINE: usize = 64;
/// The connection is given up if nothing happens for this time.
const PATIENCE: Duration = Duration::from_secs(20);

/// A busy connection looks for events once in this number of waits.
const BUSY: u64 = 64;

/// Completions of receives and of sends come from one queue and are told apart by this bit of their number.
const SEND: u64 = 1 << 63;

pub struct Link {
    // The identifier is dropped first, since its queue pair uses all other objects.
    id: CmId,
    events: EventChannel,
    context: Context,
    cq: Cq,
    completions: CompChannel,
    receive: Mr,
    send: Mr,
    inbox: VecDeque<Message>,
    /// How many messages the other side has a buffer for.
    credits: u16,
    /// How many buffers were posted again without the other side having been told.
    owed: u16,
    posted: u64,
    completed: u64,
    ended: bool,
    waits: u64,
    pub waits_for_credit: u64,
    pub sent_inline: u64,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Link {
    /// Makes everything that a connection needs and posts all receives. This comes before the connection is asked for
    /// or accepted.
    pub fn new(mut id: CmId, events: EventChannel) -> Outcome<Link> {
        let context = id.context().map_err(text)?;
        netacc_verbs::fd::set_nonblocking(context.async_fd(), true).map_err(text)?;
        let pd = Pd::alloc(&context).map_err(text)?;
        let completions = CompChannel::create(&context).map_err(text)?;
        completions.set_nonblocking(true).map_err(text)?;
        let room = SENDS as u32 + u32::from(RECEIVES);
        let cq = Cq::create(&context, room, 1, Some(&completions), 0).map_err(text)?;
        let cap = ibv_qp_cap {
            max_send_wr: SENDS as u32,
            max_recv_wr: RECEIVES.into(),
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: INLINE as u32,
        };
        let init = QpInit { send_cq: &cq, recv_cq: &cq, cap, sq_sig_all: false };
        id.create_qp(&pd, &init).map_err(text)?;
        let receive = Mr::register(&pd, BUFFER * usize::from(RECEIVES)).map_err(text)?;
        let send = Mr::register(&pd, BUFFER * SENDS as usize).map_err(text)?;
        let link = Link {
            id,
            events,
            context,
            cq,
            completions,
            receive,
            send,
            inbox: VecDeque::new(),
            credits: 0,
            owed: 0,
            posted: 0,
            completed: 0,
            ended: false,
            waits: 0,
            waits_for_credit: 0,
            sent_inline: 0,
        };
        for index in 0..RECEIVES {
            link.post_receive(index.into())?;
        }
        Ok(link)
    }

    pub fn id(&self) -> &CmId {
        &self.id
    }

    pub fn context(&self) -> &Context {
        &self.context
    }

    pub fn set_credits(&mut self, credits: u16) {
        self.credits = credits;
    }

    fn post_receive(&self, index: u64) -> Outcome<()> {
        let sge = self.receive.sge(index as usize * BUFFER, BUFFER).ok_or("no such buffer")?;
        let qp = self.id.qp().ok_or("no queue pair")?;
        qp.post_recv(&mut [RecvWr::new(index, sge)]).map_err(text)
    }

    /// Sends when there is a credit and a place in the queue. The last credit is kept for a message that has nothing
    /// but credits: if both sides spent theirs on data, neither could ever say that it has room again.
    pub fn send(&mut self, kind: Kind, seq: u32, len: usize) -> Outcome<()> {
        if self.credits < 2 {
            self.waits_for_credit += 1;
        }
        while self.credits < 2 || self.posted - self.completed >= SENDS {
            self.wait()?;
        }
        self.post(kind, seq, len)
    }

    fn post(&mut self, kind: Kind, seq: u32, len: usize) -> Outcome<()> {
        let bytes = message::encode(kind, self.owed, seq, len);
        let slot = (self.posted % SENDS) as usize * BUFFER;
        let number = self.posted | SEND;
        let mut request = if bytes.len() <= INLINE {
            self.sent_inline += 1;
            SendWr::send_inline(number, &bytes).ok_or("too long")?
        } else {
            // The buffer is free, because the send that used it last had the same place in the queue and has completed.
            if !self.send.write(slot, &bytes) {
                return Err("a message longer than its buffer".into());
            }
            SendWr::send(number, self.send.sge(slot, bytes.len()).ok_or("no such buffer")?)
        };
        if self.posted % SIGNALED == SIGNALED - 1 {
            request = request.signaled();
        }
        self.id.qp().ok_or("no queue pair")?.post_send(&mut [request]).map_err(text)?;
        self.posted += 1;
        self.credits -= 1;
        self.owed = 0;
        Ok(())
    }

    pub fn receive(&mut self) -> Outcome<Message> {
        loop {
            if let Some(message) = self.inbox.pop_front() {
                return Ok(message);
            }
            self.wait()?;
        }
    }

    /// Takes what has completed; true if anything had.
    fn poll(&mut self) -> Outcome<bool> {
        let mut completions = [Wc::default(); 16];
        let n = self.cq.poll(&mut completions).map_err(text)?;
        for completion in completions.iter().take(n) {
            completion.check().map_err(text)?;
            if completion.wr_id() & SEND != 0 {
                self.completed = (completion.wr_id() & !SEND) + 1;
            } else {
                self.arrived(completion.wr_id(), completion.byte_len())?;
            }
        }
        // Half of the buffers is enough for a message of its own, and early enough for the other side not to run out.
        if self.owed >= RECEIVES / 2 && self.credits > 0 && self.posted - self.completed < SENDS {
            self.post(Kind::Credits, 0, 0)?;
        }
        Ok(n > 0)
    }

    fn arrived(&mut self, index: u64, len: usize) -> Outcome<()> {
        let mut bytes = vec![0; len];
        if !self.receive.read(index as usize * BUFFER, &mut bytes) {
            return Err(format!("a message of {len} bytes"));
        }
        self.post_receive(index)?;
        self.owed += 1;
        let message = Message::decode(&bytes)?;
        self.credits =
            self.credits.checked_add(message.credits).filter(|c| *c <= RECEIVES).ok_or("too many credits")?;
        if message.kind != Kind::Credits {
            self.inbox.push_back(message);
        }
        Ok(())
    }

    /// Waits until something has happened: a completion, or an event that is an error.
    fn wait(&mut self) -> Outcome<()> {
        // A device that is being removed still carries messages, and its removal waits for us. So even a busy
        // connection looks for events.
        self.waits += 1;
        if self.waits.is_multiple_of(BUSY) {
            self.look_for_events()?;
        }
        if self.poll()? {
            return Ok(());
        }
        self.cq.req_notify(false).map_err(text)?;
        // A completion that came before the arming has no event.
        if self.poll()? {
            return Ok(());
        }
        let fds = [self.completions.fd(), self.events.fd(), self.context.async_fd()];
        sleep_on(&fds)?;
        while self.completions.get_cq_event().map_err(text)?.is_some() {}
        // Messages that arrived before the end count, even if the event of the end was seen first.
        if self.poll()? {
            return Ok(());
        }
        self.look_for_events()
    }

    fn look_for_events(&mut self) -> Outcome<()> {
        if let Some(event) = self.events.get_event().map_err(text)? {
            self.event(&event)?;
        }
        match self.context.get_async_event().map_err(text)? {
            Some(event) if event.event_type == AsyncEventType(IBV_EVENT_DEVICE_FATAL) => {
                Err(format!("{}: {}", self.context.name(), event.event_type))
            }
            _ => Ok(()),
        }
    }

    fn event(&mut self, event: &CmEvent) -> Outcome<()> {
        match event.event_type {
            // A server may get a message before the event that the connection is established.
            CmEventType::ESTABLISHED | CmEventType::TIMEWAIT_EXIT => Ok(()),
            CmEventType::DISCONNECTED if self.ended => Ok(()),
            _ => Err(text(event_error(event))),
        }
    }

    pub fn disconnect(mut self) -> Outcome<()> {
        self.ended = true;
        self.id.disconnect().map_err(text)
    }

    /// Waits until the other side has disconnected. Requests that are still posted then fail, as they should.
    pub fn await_end(mut self) -> Outcome<()> {
        loop {
            match self.events.get_event().map_err(text)? {
                Some(event) if event.event_type == CmEventType::DISCONNECTED => return Ok(()),
                Some(event) => self.event(&event)?,
                None => sleep_on(&[self.events.fd()])?,
            }
        }
    }
}

/// The error that stands for an event which ends the connection.
pub fn event_error(event: &CmEvent) -> netacc_verbs::Error {
    netacc_verbs::Error::Cm { event: event.event_type, status: event.status }
}

/// Waits until one of the descriptors is readable.
pub fn sleep_on(fds: &[i32]) -> Outcome<()> {
    // SAFETY: the descriptors belong to objects that the caller holds, so they stay open during the call.
    #[allow(unsafe_code)]
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) }).collect();
    let mut polled: Vec<PollFd<'_>> = borrowed.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let limit = Timespec::try_from(PATIENCE).map_err(text)?;
    match poll(&mut polled, Some(&limit)) {
        Ok(0) => Err(format!("nothing happened for {} s", PATIENCE.as_secs())),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(text(error)),
    }
}
