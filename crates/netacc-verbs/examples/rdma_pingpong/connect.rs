//! Makes the connection, on either side.

use crate::link::{Link, Outcome, RECEIVES, event_error, sleep_on};
use netacc_sys::Errno;
use netacc_verbs::{CmEvent, CmEventType, CmId, ConnParam, EventChannel};
use std::net::SocketAddr;

const MAGIC: [u8; 4] = *b"ping";
const TIMEOUT_MS: u32 = 5000;
const LISTENER: u64 = 1;
const CONNECTION: u64 = 2;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The private data by which each side tells the other, before the first message, how many receives it has posted.
fn hello() -> [u8; 6] {
    let [low, high] = RECEIVES.to_le_bytes();
    let [a, b, c, d] = MAGIC;
    [a, b, c, d, low, high]
}

fn credits(event: &CmEvent) -> Outcome<u16> {
    // On RoCE zeroes follow the bytes that were sent.
    match event.private_data.as_slice() {
        [magic @ .., low, high] if magic == MAGIC => Ok(u16::from_le_bytes([*low, *high])),
        [a, b, c, d, low, high, rest @ ..] if [*a, *b, *c, *d] == MAGIC && rest.iter().all(|r| *r == 0) => {
            Ok(u16::from_le_bytes([*low, *high]))
        }
        other => Err(format!("not one of us: {other:?}")),
    }
}

fn channel() -> Outcome<EventChannel> {
    let events = EventChannel::create().map_err(text)?;
    events.set_nonblocking(true).map_err(text)?;
    Ok(events)
}

fn expect(events: &EventChannel, event_type: CmEventType, cookie: u64) -> Outcome<CmEvent> {
    loop {
        match events.get_event().map_err(text)? {
            Some(event) if event.event_type == event_type && event.cookie == cookie => {
                event.check().map_err(text)?;
                return Ok(event);
            }
            Some(event) => return Err(text(event_error(&event))),
            None => sleep_on(&[events.fd()])?,
        }
    }
}

/// Resolves the address with time-outs that grow, for the reason given at [`CmId::resolve_addr`].
fn resolve_addr(events: &EventChannel, id: &CmId, address: SocketAddr) -> Outcome<()> {
    let mut outcome = Ok(());
    for timeout_ms in [100, 400, 1600, TIMEOUT_MS] {
        id.resolve_addr(None, address, timeout_ms).map_err(text)?;
        outcome = expect(events, CmEventType::ADDR_RESOLVED, CONNECTION).map(drop);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// Makes a queue pair and asks for the connection. siw connects from the TCP port of the same number as the connection
/// manager's, which may be taken; then this tries again from another one.
fn ask(events: &EventChannel, address: SocketAddr) -> Outcome<Link> {
    let mut attempts = 20;
    loop {
        let id = CmId::create(events, CONNECTION).map_err(text)?;
        resolve_addr(events, &id, address)?;
        id.resolve_route(TIMEOUT_MS).map_err(text)?;
        expect(events, CmEventType::ROUTE_RESOLVED, CONNECTION)?;
        let link = Link::new(id, events.clone())?;
        match link.id().connect(&ConnParam { private_data: &hello(), ..ConnParam::default() }) {
            Err(error) if error.is_port_taken() && attempts > 0 => attempts -= 1,
            asked => return asked.map(|()| link).map_err(text),
        }
    }
}

pub fn connect(address: SocketAddr) -> Outcome<Link> {
    let events = channel()?;
    let mut link = ask(&events, address)?;
    let answer = expect(&events, CmEventType::ESTABLISHED, CONNECTION)?;
    link.set_credits(credits(&answer)?);
    println!("connected on {}", link.context().name());
    Ok(link)
}

/// A listener on a port that the kernel chooses. That port is free for RDMA; siw also listens on the TCP port of the
/// same number, which may be taken, so that another one is tried.
fn listen(events: &EventChannel, address: SocketAddr) -> netacc_verbs::Result<CmId> {
    let mut attempts = 20;
    loop {
        let listener = CmId::create(events, LISTENER)?;
        listener.bind_addr(address)?;
        match listener.listen(1) {
            Err(error) if error.errno() == Errno::ADDRINUSE && attempts > 0 => attempts -= 1,
            outcome => return outcome.map(|()| listener),
        }
    }
}

/// Listens, prints the port, and accepts one client.
pub fn accept(address: SocketAddr) -> Outcome<Link> {
    let events = channel()?;
    let listener = listen(&events, address).map_err(text)?;
    println!("port {}", listener.local_addr().ok_or("the listener has no address")?.port());
    let request = expect(&events, CmEventType::CONNECT_REQUEST, LISTENER)?;
    let credits = credits(&request)?;
    let id = request.request.ok_or("a request without an identifier")?;
    id.set_cookie(CONNECTION);
    let mut link = Link::new(id, events)?;
    link.set_credits(credits);
    link.id().accept(&ConnParam { private_data: &hello(), ..ConnParam::default() }).map_err(text)?;
    Ok(link)
}
