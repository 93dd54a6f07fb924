//! A hostile peer at the RDMA port of an accelerated server: it sends messages that NetACC never sends, and prints how
//! the server reacts.
//!
//! ```text
//! rdma_stranger SCENARIO ADDRESS PORT TCP-PORT [NUMBER]
//! ```
//!
//! It prints `refused`, `ended` (the server closed the queue pair), or `open` (the server did nothing within a second;
//! the connection is then kept until standard input ends). Tests check that the reaction is right, and that other
//! clients notice nothing. The program needs RDMA devices; the tests run it in the virtual machine.

use netacc_verbs::sys::ibv_qp_cap;
use netacc_verbs::{CmEventType, CmId, ConnParam, Cq, EventChannel, Mr, Pd, QpInit, RecvWr, SendWr, Transport, Wc};
use netacc_wire::companion::CompanionOffer;
use netacc_wire::frame::{Brief, FRAME, Frame, Kind, UPGRADE, Upgrade, encode_addresses};
use netacc_wire::qp_hello::{QP_HELLO, QpHello};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, String>;

const BUFFER: usize = 20_000;
const RECEIVES: u64 = 32;
const SENDS: u32 = 64;
const TIMEOUT_MS: u32 = 3000;
/// How long the server has to close a connection that violates the protocol.
const QUIET: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(2);

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Whether messages are sent without the solicited mark: a receiver that sleeps then hears of them about a second
/// later.
static UNMARKED: AtomicBool = AtomicBool::new(false);

/// A queue pair with its buffers.
struct Stranger {
    id: CmId,
    events: EventChannel,
    cq: Cq,
    receive: Mr,
    send: Mr,
}

impl Stranger {
    /// Makes a queue pair and asks for the connection. If the local port is taken, it tries again from another one.
    fn ask(address: SocketAddr, private_data: &[u8]) -> Outcome<Stranger> {
        for _ in 0..20 {
            let stranger = Stranger::ready(address)?;
            match stranger.id.connect(&ConnParam { private_data, ..ConnParam::default() }) {
                Err(error) if error.is_port_taken() => {}
                asked => return asked.map(|()| stranger).map_err(text),
            }
        }
        Err("every port at this host is taken".into())
    }

    /// Makes a queue pair with posted receives, without connecting it.
    fn ready(address: SocketAddr) -> Outcome<Stranger> {
        let events = EventChannel::create().map_err(text)?;
        events.set_nonblocking(true).map_err(text)?;
        let mut id = CmId::create(&events, 1).map_err(text)?;
        id.resolve_addr(None, address, TIMEOUT_MS).map_err(text)?;
        next(&events, CmEventType::ADDR_RESOLVED)?;
        id.resolve_route(TIMEOUT_MS).map_err(text)?;
        next(&events, CmEventType::ROUTE_RESOLVED)?;
        let context = id.context().map_err(text)?;
        let pd = Pd::alloc(&context).map_err(text)?;
        let cq = Cq::create(&context, SENDS + RECEIVES as u32, 1, None, 0).map_err(text)?;
        let cap = ibv_qp_cap {
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        id.create_qp(&pd, &QpInit { send_cq: &cq, recv_cq: &cq, cap, sq_sig_all: true }).map_err(text)?;
        let receive = Mr::register(&pd, BUFFER).map_err(text)?;
        let send = Mr::register(&pd, BUFFER * SENDS as usize).map_err(text)?;
        let stranger = Stranger { id, events, cq, receive, send };
        // All receives share one buffer, since its contents are never read.
        for n in 0..RECEIVES {
            let sge = stranger.receive.sge(0, BUFFER).ok_or("no buffer")?;
            let qp = stranger.id.qp().ok_or("no queue pair")?;
            qp.post_recv(&mut [RecvWr::new(n, sge)]).map_err(text)?;
        }
        Ok(stranger)
    }

    /// Whether the server accepts the connection.
    fn is_let_in(&self) -> Outcome<bool> {
        Ok(self.answer()?.is_some())
    }

    /// The private data with which the server accepts; `None` if it refuses.
    fn answer(&self) -> Outcome<Option<Vec<u8>>> {
        let began = Instant::now();
        loop {
            match self.events.get_event().map_err(text)? {
                Some(event) if event.event_type == CmEventType::ESTABLISHED => {
                    return Ok(Some(event.private_data.as_slice().to_vec()));
                }
                Some(event) if event.event_type.is_failure() => return Ok(None),
                Some(event) => return Err(format!("{} came first", event.event_type)),
                None if began.elapsed() > PATIENCE => return Err("no answer".into()),
                None => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Sends messages, one after the other. A failure is no error here, since the reaction of the server shows it.
    fn say(&self, messages: &[Said]) -> Outcome<()> {
        // iWARP has no solicited messages here.
        let marked = !UNMARKED.load(Ordering::Relaxed)
            && self.id.context().is_ok_and(|context| context.transport() == Transport::Ib);
        for (n, Said { immediate, bytes }) in messages.iter().enumerate().take(SENDS as usize) {
            if !self.send.write(n * BUFFER, bytes) {
                return Err("a message longer than its buffer".into());
            }
            let sge = self.send.sge(n * BUFFER, bytes.len()).ok_or("no buffer")?;
            let qp = self.id.qp().ok_or("no queue pair")?;
            let plain = SendWr::send(1 << 32, sge);
            let request = immediate.map_or(plain, |number| plain.with_imm(number));
            let request = if marked { request.solicited() } else { request };
            if qp.post_send(&mut [request]).is_err() {
                break; // The connection has ended already.
            }
        }
        Ok(())
    }

    /// Whether the server ends the connection within the time.
    fn is_ended(&self) -> Outcome<bool> {
        let began = Instant::now();
        let mut completions = [Wc::default(); 16];
        let patience = if UNMARKED.load(Ordering::Relaxed) { PATIENCE } else { QUIET };
        while began.elapsed() < patience {
            let n = self.cq.poll(&mut completions).map_err(text)?;
            if completions.iter().take(n).any(|wc| wc.check().is_err()) {
                return Ok(true);
            }
            if let Some(event) = self.events.get_event().map_err(text)?
                && event.event_type == CmEventType::DISCONNECTED
            {
                return Ok(true);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(false)
    }
}

fn next(events: &EventChannel, wanted: CmEventType) -> Outcome<()> {
    let began = Instant::now();
    loop {
        match events.get_event().map_err(text)? {
            Some(event) if event.event_type == wanted => return Ok(()),
            Some(event) => return Err(format!("{} instead of {wanted}", event.event_type)),
            None if began.elapsed() > PATIENCE => return Err(format!("no {wanted}")),
            None => std::thread::sleep(PAUSE),
        }
    }
}

/// A frame of data without a byte, whose field `next` announces a following frame, and the bytes `by` that follow
/// instead.
fn followed(next: u16, by: &[u8]) -> Vec<u8> {
    let head =
        Frame { kind: Kind::Data, credits: 0, large: false, conn: 777, generation: 1, window: 0, acked: 0, next };
    [&head.encode(), by].concat()
}

/// A message, with its immediate data if it has any.
struct Said {
    immediate: Option<u32>,
    bytes: Vec<u8>,
}

/// A message whose header is in the immediate data. `news` and `window` can be more than the server ever granted or
/// used.
fn brief(conn: u16, news: u8, window: u32, len: usize) -> Said {
    let heard = news.into();
    let frame =
        Frame { kind: Kind::Data, credits: news, large: false, conn, generation: 0, window, acked: heard, next: 0 };
    Said { immediate: Brief::of(&frame, 0).map(Brief::encode), bytes: vec![0x55; len] }
}

/// The messages of a scenario in which at least one message has immediate data.
fn bad_immediates(scenario: &str, open: &[u8]) -> Option<Vec<Said>> {
    let opens = Said { immediate: None, bytes: message(Kind::Open, 0, 3, 0, open) };
    Some(match scenario {
        "brief-credits-never-granted" => vec![brief(3, 15, 0, 100), brief(3, 15, 0, 100)],
        "brief-window-never-used" => vec![opens, brief(3, 0, 32_767, 100)],
        "brief-longer-than-a-receive" => vec![opens, brief(3, 0, 0, BUFFER)],
        "brief-unknown-connection" => vec![brief(777, 0, 0, 100), brief(4095, 0, 0, 0)],
        "brief-without-a-byte" => vec![opens, brief(3, 0, 0, 0)],
        "brief-after-the-end" => {
            let fin = Said { immediate: None, bytes: message(Kind::Fin, 0, 3, 0, &[]) };
            vec![opens, fin, brief(3, 0, 0, 100)]
        }
        _ => return None,
    })
}

fn message(kind: Kind, credits: u8, conn: u16, window: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes =
        Frame { kind, credits, large: false, conn, generation: 1, window, acked: 0, next: 0 }.encode().to_vec();
    bytes.extend(payload);
    bytes
}

/// The private data that a scenario sends instead of a hello; `None` if it sends a good one.
fn bad_hello(scenario: &str, hello: [u8; QP_HELLO]) -> Option<Vec<u8>> {
    Some(match scenario {
        "nothing" => Vec::new(),
        "garbage" => (0..56).map(|n: u8| n.wrapping_mul(97) ^ 0x5a).collect(),
        "half-a-hello" => hello.into_iter().take(11).collect(),
        // The version follows the four bytes of the magic number.
        "another-version" => hello.into_iter().enumerate().map(|(n, b)| if n == 4 { b ^ 0x40 } else { b }).collect(),
        "no-receives" => QpHello { receives: 0, size: 16_384, companion: CompanionOffer::None }.encode().to_vec(),
        "tiny-receives" => QpHello { receives: 16, size: 20, companion: CompanionOffer::None }.encode().to_vec(),
        _ => return None,
    })
}

/// The messages of a scenario, which follow a good hello.
fn bad_messages(scenario: &str, open: &[u8], asks: &[u8]) -> Option<Vec<Vec<u8>>> {
    let asks = |conn| message(Kind::Upgrade, 0, conn, 0, asks);
    let data = |conn, len| message(Kind::Data, 0, conn, 0, &vec![0x55; len]);
    let opens = message(Kind::Open, 0, 3, 0, open);
    Some(match scenario {
        "empty-message" => vec![vec![]],
        "short-message" => vec![vec![2; FRAME - 1]],
        "unknown-kind" => vec![vec![0xff; FRAME]],
        "followed-by-nothing" => vec![followed(1, &[])],
        "followed-by-half" => vec![followed(1, &[2; FRAME - 1])],
        "followed-by-garbage" => vec![followed(1, &[0xff; FRAME])],
        "followed-beyond-its-end" => vec![followed(u16::MAX, &[0; 100])],
        "credits-never-granted" => vec![message(Kind::Credit, 120, 0, 0, &[])],
        "large-credits-never-granted" => {
            let head = Frame {
                kind: Kind::Credit,
                credits: 16,
                large: true,
                conn: 0,
                generation: 0,
                window: 0,
                acked: 0,
                next: 0,
            };
            vec![head.encode().to_vec()]
        }
        "longer-than-a-receive" => vec![data(3, BUFFER - FRAME)],
        "more-than-credits" => (0..40).map(|n| data(n, 100)).collect(),
        "unknown-connection" => {
            vec![data(777, 100), message(Kind::Fin, 0, 778, 0, &[]), message(Kind::Reset, 0, 9, 0, &[])]
        }
        "window-never-used" => vec![opens, message(Kind::Window, 0, 3, u32::MAX, &[])],
        "garbage-addresses" => vec![message(Kind::Open, 0, 3, 0, &[0xee; 38])],
        "half-addresses" => vec![message(Kind::Open, 0, 3, 0, open.get(..20)?)],
        "asks-with-garbage" => vec![message(Kind::Upgrade, 0, 3, 0, &[0xee; UPGRADE])],
        "asks-by-half" => vec![message(Kind::Upgrade, 0, 3, 0, open)],
        "ready-unasked" => vec![message(Kind::Ready, 0, 3, 0, &[1; 16])],
        "asks-for-nothing" => vec![asks(3), message(Kind::Cancel, 0, 3, 0, &[])],
        "asks-and-talks" => vec![asks(3), data(3, 100)],
        // These ask to upgrade a connection of another program.
        "asks-for-anothers" => vec![asks(3), data(3, 5), asks(4)],
        "opened-twice" => vec![opens.clone(), opens],
        // This is a valid connection from which nothing follows, not even credits.
        "no-credits-back" => vec![opens, message(Kind::Data, 0, 3, 0, &[0, 0, 0, 1, b'x'])],
        _ => return None,
    })
}

fn wait_for_end() {
    let _ = std::io::read_to_string(std::io::stdin());
}

fn flood(address: SocketAddr, hello: &[u8], count: usize) -> Outcome<()> {
    let mut let_in = 0;
    let mut kept = Vec::new();
    for _ in 0..count {
        // A refusal is a valid outcome here.
        if let Ok(stranger) = Stranger::ask(address, hello) {
            kept.push(stranger);
        }
    }
    for stranger in &kept {
        let_in += usize::from(stranger.is_let_in().unwrap_or(false));
    }
    println!("open {let_in} of {count}");
    wait_for_end();
    Ok(())
}

/// Makes queue pairs that send nothing, until standard input ends, and keeps the last `count` of them.
fn flood_on(address: SocketAddr, hello: &[u8], count: usize) -> Outcome<()> {
    let ended = std::thread::spawn(wait_for_end);
    let mut kept = VecDeque::new();
    let mut made = 0usize;
    while !ended.is_finished() {
        kept.extend(Stranger::ask(address, hello).ok());
        if kept.len() > count {
            kept.pop_front();
        }
        made += 1;
        if made.is_multiple_of(count) {
            println!("{made}");
        }
    }
    Ok(())
}

/// Asks for a companion connection and makes `count` connections to its port that send nothing. Prints the port, and
/// how many of the connections the server keeps.
fn companions(address: SocketAddr, count: usize) -> Outcome<()> {
    let hello = QpHello { receives: 16, size: 16_384, companion: CompanionOffer::Wanted }.encode();
    let stranger = Stranger::ask(address, &hello)?;
    let answer = stranger.answer()?.ok_or("a good hello was refused")?;
    let Ok(QpHello { companion: CompanionOffer::At(port, _), .. }) = QpHello::decode(&answer) else {
        return Err("no companion connection is awaited".into());
    };
    println!("port {port}");
    let there = SocketAddr::new(address.ip(), port);
    let mut made = Vec::new();
    for _ in 0..count {
        made.push(TcpStream::connect_timeout(&there, PATIENCE).map_err(text)?);
    }
    std::thread::sleep(QUIET);
    for connection in &made {
        connection.set_nonblocking(true).map_err(text)?;
    }
    let is_open = |mut c: &TcpStream| c.read(&mut [0]).is_err_and(|e| e.kind() == ErrorKind::WouldBlock);
    println!("kept {}", made.iter().filter(|c| is_open(c)).count());
    wait_for_end();
    Ok(())
}

fn run(scenario: &str, address: SocketAddr, tcp_port: u16, count: usize) -> Outcome<()> {
    let hello = QpHello { receives: 16, size: 16_384, companion: CompanionOffer::None }.encode();
    match scenario {
        "flood" => return flood(address, &hello, count),
        "flood-on" => return flood_on(address, &hello, count),
        "companions" => return companions(address, count),
        "gone-at-once" => {
            let _stranger = Stranger::ask(address, &hello)?;
            println!("ended");
            // The process ends as if it were killed: nothing is released.
            std::process::exit(0);
        }
        // The client never takes the acceptance from its connection manager, which therefore never tells the server
        // that the connection is established.
        "never-established" => {
            let _stranger = Stranger::ask(address, &hello)?;
            println!("open");
            wait_for_end();
            return Ok(());
        }
        _ => {}
    }
    if let Some(bytes) = bad_hello(scenario, hello) {
        let stranger = Stranger::ask(address, &bytes)?;
        println!("{}", if stranger.is_let_in()? { "open" } else { "refused" });
        return Ok(());
    }
    let stranger = Stranger::ask(address, &hello)?;
    if !stranger.is_let_in()? {
        return Err("a good hello was refused".into());
    }
    let ours = SocketAddr::new(stranger.id.local_addr().ok_or("no address")?.ip(), 40_000);
    let server = SocketAddr::new(address.ip(), tcp_port);
    let open = encode_addresses(ours, server);
    // NUMBER is the port of another program's connection, which has sent five bytes.
    let another = SocketAddr::new(ours.ip(), u16::try_from(count).unwrap_or(0));
    let asks = Upgrade { client: another, server, sent: 5 }.encode();
    let whole = |bytes| Said { immediate: None, bytes };
    let said = bad_messages(scenario, &open, &asks).map(|all| all.into_iter().map(whole).collect());
    let said: Vec<Said> = said.or_else(|| bad_immediates(scenario, &open)).ok_or(format!("no scenario {scenario}"))?;
    stranger.say(&said)?;
    if stranger.is_ended()? {
        println!("ended");
    } else {
        println!("open");
        wait_for_end();
    }
    Ok(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [scenario, address, port, tcp_port, rest @ ..] = arguments.as_slice() else {
        eprintln!("usage: rdma_stranger SCENARIO ADDRESS PORT TCP-PORT [NUMBER]");
        std::process::exit(2);
    };
    let unmarked = scenario.strip_prefix("unmarked-");
    UNMARKED.store(unmarked.is_some(), Ordering::Relaxed);
    let scenario = unmarked.unwrap_or(scenario);
    let number = |text: &str| text.parse::<usize>().map_err(|e| format!("{text}: {e}"));
    let outcome = address.parse::<IpAddr>().map_err(|e| format!("{address}: {e}")).and_then(|ip| {
        let (port, tcp_port) = (number(port)? as u16, number(tcp_port)? as u16);
        run(scenario, SocketAddr::new(ip, port), tcp_port, rest.first().map_or(Ok(1), |n| number(n))?)
    });
    if let Err(why) = outcome {
        eprintln!("rdma_stranger: {why}");
        std::process::exit(1);
    }
}
