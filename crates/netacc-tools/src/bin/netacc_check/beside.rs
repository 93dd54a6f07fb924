//! What a server's host has to let in beside the queue pair itself: the datagram that is sent before, and the TCP
//! connection by which connections go on when the queue pair fails, the companion. Both are tried the way the library
//! does it; a program that accepts connections there does not see the companion.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::FromRawFd;
use std::time::{Duration, Instant};

use netacc_sys::raw;
use netacc_transport::rdma::{Completion, Device, QpConn};
use netacc_verbs::Wc;
use netacc_wire::companion::{CompanionOffer, OwnPort, TOKEN, WELCOME, hello, welcome};
use netacc_wire::frame::{Frame, Kind};
use netacc_wire::probe::{NONCE, RDMA_PROBE, RdmaProbe};
use rustix::fd::{AsRawFd, IntoRawFd};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::finding::Level;
use crate::rdma_probe::Verdict;

/// A port that does not answer within this time is filtered.
const FILTERED: Duration = Duration::from_secs(1);
/// The server's program may take this time to accept a connection.
const ACCEPTED: Duration = Duration::from_secs(5);
/// A datagram that is not answered is sent again after this time, this often in all.
const AGAIN: Duration = Duration::from_millis(300);
const TRIES: usize = 3;
/// tcp(7).
const IPPROTO_TCP: i32 = 6;
const TCP_FASTOPEN_CONNECT: i32 = 30;
const TCP_FASTOPEN_NO_COOKIE: i32 = 34;

/// Whether the question that comes before a queue pair is answered at the server's port for RDMA.
pub(crate) fn question(server: SocketAddr) -> Verdict {
    let port = server.port();
    if is_answered(server).unwrap_or(false) {
        let text = format!("UDP port {port} answers: a first connect waits for nothing");
        return Verdict { level: Level::Ok, text, advice: None };
    }
    Verdict {
        level: Level::Warn,
        text: format!("UDP port {port} does not answer: a first connect to this server waits, or goes by TCP"),
        advice: Some(format!("let UDP port {port} in at the server's packet filter or security group")),
    }
}

fn is_answered(server: SocketAddr) -> std::io::Result<bool> {
    let any: SocketAddr = if server.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(AGAIN))?;
    let mut nonce = [0; NONCE];
    if getrandom(&mut nonce, GetRandomFlags::empty()) != Ok(NONCE) {
        return Ok(false);
    }
    for _ in 0..TRIES {
        socket.send(&RdmaProbe::Question(nonce).encode())?;
        let mut said = [0; RDMA_PROBE + 1];
        if let Ok(length) = socket.recv(&mut said)
            && said.get(..length).map(RdmaProbe::decode) == Some(Ok(RdmaProbe::Answer(nonce)))
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a queue pair to `server`, the address that programs connect to, gets its companion; `offered` is what the
/// server has said of it.
pub(crate) fn companion(
    pipe: &mut QpConn,
    device: &mut Device,
    offered: CompanionOffer,
    server: SocketAddr,
) -> Verdict {
    let good = |text: String| Verdict { level: Level::Ok, text, advice: None };
    let CompanionOffer::At(chosen, token) = offered else {
        return Verdict {
            level: Level::Note,
            text: "no TCP connection beside the queue pair: connections end where RDMA fails".into(),
            advice: Some("it is off at the server, by NACC_TCP_BASE or fast connect (-F)".into()),
        };
    };
    let mut there = server;
    there.set_port(chosen);
    if TcpStream::connect_timeout(&there, FILTERED).is_ok_and(|stream| introduce(stream, &token)) {
        return good(format!(
            "a TCP connection comes about beside the queue pair, at port {chosen} of the server's choice: connections go on by \
             TCP where RDMA fails"
        ));
    }
    let why = match ask(pipe, device) {
        Some(OwnPort::Come) => {
            if own_port(server).is_ok_and(|stream| introduce(stream, &token)) {
                return good(format!(
                    "a TCP connection comes about beside the queue pair, at port {} itself: connections go on by TCP where \
                     RDMA fails",
                    server.port()
                ));
            }
            format!("port {} does not answer, or the program does not accept connections there", server.port())
        }
        Some(OwnPort::Shared) => format!("several processes accept connections at port {}", server.port()),
        Some(OwnPort::Blocking) => "the program calls a blocking accept after poll".into(),
        Some(OwnPort::Closed) => format!("the program has not accepted a connection at port {} yet", server.port()),
        None => "the server does not say whether it may come to its own port".into(),
    };
    Verdict {
        level: Level::Warn,
        text: format!(
            "no TCP connection beside the queue pair: connections end where RDMA fails (port {chosen} is filtered; {why})"
        ),
        advice: Some(format!(
            "let TCP port {} in at the server's packet filter or security group; if it is, the server's ports for outgoing \
             connections (net.ipv4.ip_local_port_range) too",
            server.port()
        )),
    }
}

/// Says whose companion it is; whether the server knows it.
fn introduce(mut stream: TcpStream, token: &[u8; TOKEN]) -> bool {
    let mut said = [0; WELCOME];
    stream.write_all(&hello(token)).is_ok()
        && stream.set_read_timeout(Some(ACCEPTED)).is_ok()
        && stream.read_exact(&mut said).is_ok()
        && said == welcome()
}

/// A connection to the port that programs connect to, whose first bytes go with the handshake: the kernel connects when
/// there are some.
fn own_port(server: SocketAddr) -> rustix::io::Result<TcpStream> {
    let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    for option in [TCP_FASTOPEN_NO_COOKIE, TCP_FASTOPEN_CONNECT] {
        let _ = raw::setsockopt_int(socket.as_raw_fd(), IPPROTO_TCP, option, 1);
    }
    set_socket_timeout(&socket, Timeout::Send, Some(FILTERED))?;
    connect(&socket, &server)?;
    #[allow(unsafe_code)]
    // SAFETY: nobody else has the descriptor.
    let socket = unsafe { std::os::fd::OwnedFd::from_raw_fd(socket.into_raw_fd()) };
    Ok(TcpStream::from(socket))
}

/// Asks by the queue pair whether the companion may come to the listener's own port.
fn ask(pipe: &mut QpConn, device: &mut Device) -> Option<OwnPort> {
    let kind = Kind::OwnPort;
    let question = Frame { kind, credits: 0, large: false, conn: 0, generation: 0, window: 0, acked: 0, next: 0 };
    pipe.send(question, &[]).ok()?;
    let began = Instant::now();
    let mut found = [Wc::default()];
    while began.elapsed() < ACCEPTED {
        let count = device.cqs().nth(pipe.cq())?.poll(&mut found).ok()?;
        if count == 0 {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let [wc] = &found;
        wc.check().ok()?;
        if let Completion::Message(n, head) =
            pipe.completed(&mut device.pool, wc.wr_id(), wc.byte_len(), wc.imm_data())?
        {
            pipe.dealt_with(&mut device.pool, n, head.frame).ok()?;
            if head.frame.kind == Kind::OwnPort {
                return OwnPort::of(head.frame.generation);
            }
        }
    }
    None
}
