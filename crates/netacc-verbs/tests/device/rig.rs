//! Two ends of a connection over the device under test.

use netacc_sys::Errno;
use netacc_verbs::sys::ibv_qp_cap;
use netacc_verbs::{
    CmEvent, CmEventType, CmId, CompChannel, ConnParam, Context, Cq, EventChannel, Mr, Pd, Qp, QpInit, RecvWr, Result,
    SendWr, Transport, Wc,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use std::net::{IpAddr, SocketAddr};

pub const LISTENER: u64 = 10;
pub const CLIENT: u64 = 11;
pub const SERVER: u64 = 12;
pub const RECEIVES: u64 = 4;
pub const SENDS: u32 = 8;
pub const BUFFER: usize = 256;
/// The time-out of every wait, which only turns a hang into a failure.
const LIMIT: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

pub fn address() -> IpAddr {
    std::env::var("NETACC_RDMA_ADDRESS").expect("NETACC_RDMA_ADDRESS is an address of the device").parse().unwrap()
}

/// Waits until the descriptor is readable.
#[allow(unsafe_code)]
pub fn await_readable(fd: i32, what: &str) {
    // SAFETY: the caller holds the object that the descriptor belongs to, so it stays open during the call.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    assert_eq!(poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&LIMIT)), Ok(1), "nothing: {what}");
}

pub fn channel() -> EventChannel {
    let events = EventChannel::create().unwrap();
    events.set_nonblocking(true).unwrap();
    events
}

pub fn next_event(events: &EventChannel) -> CmEvent {
    loop {
        if let Some(event) = events.get_event().unwrap() {
            return event;
        }
        await_readable(events.fd(), "a connection event");
    }
}

pub fn expect(events: &EventChannel, event_type: CmEventType, cookie: u64) -> CmEvent {
    let event = next_event(events);
    assert_eq!((event.event_type, event.cookie), (event_type, cookie), "{event:?}");
    event
}

/// Calls `attempt` until its port is free, at most 20 times. The kernel chooses a port that is free for RDMA; siw also
/// listens on the TCP port of the same number, which may be taken, if only by a connection in TIME_WAIT.
pub fn until_port_is_free<T>(attempt: impl Fn() -> Result<T>) -> T {
    let mut outcomes = (0..20).map(|_| attempt());
    let settled = outcomes.find(|o| !o.as_ref().is_err_and(|e| e.errno() == Errno::ADDRINUSE));
    settled.expect("a free port").unwrap()
}

/// A listener on a port that the kernel has chosen, and its address.
pub fn listener(events: &EventChannel) -> (CmId, SocketAddr) {
    until_port_is_free(|| {
        let id = CmId::create(events, LISTENER)?;
        id.bind_addr(SocketAddr::new(address(), 0))?;
        id.listen(8)?;
        let bound = id.local_addr().unwrap();
        assert_ne!(bound.port(), 0);
        Ok((id, bound))
    })
}

/// An identifier that has resolved the address and the route.
pub fn resolved(events: &EventChannel, to: SocketAddr) -> CmId {
    let id = CmId::create(events, CLIENT).unwrap();
    id.resolve_addr(None, to, 2000).unwrap();
    expect(events, CmEventType::ADDR_RESOLVED, CLIENT).check().unwrap();
    id.resolve_route(2000).unwrap();
    expect(events, CmEventType::ROUTE_RESOLVED, CLIENT).check().unwrap();
    id
}

/// The context that identifiers on the device under test share.
pub fn context() -> Context {
    let id = CmId::create(&channel(), 0).unwrap();
    id.bind_addr(SocketAddr::new(address(), 0)).unwrap();
    id.context().unwrap()
}

pub struct End {
    pub id: CmId,
    pub mr: Mr,
    pub cq: Cq,
    pub completions: CompChannel,
    pub pd: Pd,
    pub context: Context,
}

impl End {
    /// Gives the identifier a queue pair and posts receives, numbered from 0.
    pub fn new(mut id: CmId) -> End {
        let context = id.context().unwrap();
        let pd = Pd::alloc(&context).unwrap();
        let completions = CompChannel::create(&context).unwrap();
        completions.set_nonblocking(true).unwrap();
        let cq = Cq::create(&context, 32, id.cookie(), Some(&completions), 0).unwrap();
        let mr = Mr::register(&pd, BUFFER * 2 * RECEIVES as usize).unwrap();
        id.create_qp(&pd, &QpInit { send_cq: &cq, recv_cq: &cq, cap: cap(), sq_sig_all: true }).unwrap();
        let end = End { id, mr, cq, completions, pd, context };
        for index in 0..RECEIVES {
            end.post_receive(index);
        }
        end
    }

    pub fn qp(&self) -> &Qp {
        self.id.qp().unwrap()
    }

    pub fn post_receive(&self, index: u64) {
        let sge = self.mr.sge(index as usize * BUFFER, BUFFER).unwrap();
        self.qp().post_recv(&mut [RecvWr::new(index, sge)]).unwrap();
    }

    pub fn received(&self, index: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        assert!(self.mr.read(index as usize * BUFFER, &mut data));
        data
    }

    pub fn send(&self, wr_id: u64, data: &[u8]) {
        self.qp().post_send(&mut [SendWr::send_inline(wr_id, data).unwrap()]).unwrap();
    }

    /// Waits for the next completion, sleeping on the channel.
    pub fn completion(&self) -> Wc {
        loop {
            let mut found = [Wc::default()];
            if self.cq.poll(&mut found).unwrap() == 1 {
                return found[0];
            }
            self.cq.req_notify(false).unwrap();
            if self.cq.poll(&mut found).unwrap() == 1 {
                return found[0];
            }
            await_readable(self.completions.fd(), "a completion");
            while let Some(cookie) = self.completions.get_cq_event().unwrap() {
                assert_eq!(cookie, self.id.cookie());
            }
        }
    }

    /// The next event of this end.
    pub fn expect(&self, event_type: CmEventType) -> CmEvent {
        expect(self.id.channel(), event_type, self.id.cookie())
    }

    /// Answers a disconnect: on InfiniBand the other side waits for that, and our own receives are not flushed without
    /// it. On iWARP both have happened already, so the call may fail.
    pub fn end(&self) {
        let answered = self.id.disconnect();
        assert!(answered.is_ok() || is_iwarp(&self.context), "{answered:?}");
    }

    /// Waits until the connection manager reports the disconnect, and answers it.
    pub fn hear_the_end(&self) {
        self.expect(CmEventType::DISCONNECTED);
        self.end();
    }

    /// Sends one message to the other end and checks that it arrives intact.
    pub fn say(&self, to: &End, wr_id: u64, data: &[u8]) {
        self.send(wr_id, data);
        let sent = self.completion();
        sent.check().unwrap();
        assert_eq!((sent.wr_id(), sent.is_recv()), (wr_id, false));
        let got = to.completion();
        got.check().unwrap();
        assert!(got.is_recv());
        assert_eq!(got.byte_len(), data.len());
        assert_eq!(to.received(got.wr_id(), data.len()), data);
        to.post_receive(got.wr_id());
    }
}

pub fn cap() -> ibv_qp_cap {
    let (max_send_wr, max_recv_wr) = (SENDS, RECEIVES as u32);
    ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 64 }
}

pub struct Pair {
    pub client: End,
    pub server: End,
}

/// A client that has asked for a connection, and the result of that call. If the TCP port of the same number as the
/// connection manager's is taken, it asks from another one.
pub fn ask(to: SocketAddr, param: &ConnParam<'_>) -> (End, Result<()>) {
    for _ in 0..20 {
        let client = End::new(resolved(&channel(), to));
        match client.id.connect(param) {
            Err(error) if error.is_port_taken() => {}
            asked => return (client, asked),
        }
    }
    panic!("every port is taken");
}

/// A client whose connect request is under way.
pub fn asking(to: SocketAddr, private_data: &[u8]) -> End {
    let (client, asked) = ask(to, &ConnParam { private_data, ..ConnParam::default() });
    asked.unwrap();
    client
}

pub fn pair() -> Pair {
    let events = channel();
    let (_listener, to) = listener(&events);
    let client = asking(to, b"may I?");
    let request = expect(&events, CmEventType::CONNECT_REQUEST, LISTENER);
    assert_eq!(trimmed(&request), b"may I?");
    let id = request.request.unwrap();
    id.set_cookie(SERVER);
    let server = End::new(id);
    server.id.accept(&ConnParam { private_data: b"you may", ..ConnParam::default() }).unwrap();
    assert_eq!(trimmed(&client.expect(CmEventType::ESTABLISHED)), b"you may");
    let pair = Pair { client, server };
    // The connecting side sends first, as iWARP demands.
    pair.client.say(&pair.server, 0, b"first");
    // InfiniBand's connection manager may report the connection to the server only now.
    pair.server.expect(CmEventType::ESTABLISHED);
    pair
}

/// The private data without the zeroes with which RoCE fills its field.
pub fn trimmed(event: &CmEvent) -> &[u8] {
    let data = event.private_data.as_slice();
    let end = data.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
    &data[..end]
}

pub fn is_iwarp(context: &Context) -> bool {
    context.transport() == Transport::Iwarp
}
