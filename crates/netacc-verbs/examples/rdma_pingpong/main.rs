//! Sends messages there and back over RDMA with the verbs alone: the smallest form of what the RDMA transport does.
//!
//! ```text
//! rdma_pingpong server ADDRESS                     prints "port N" and serves one client
//! rdma_pingpong client ADDRESS PORT [ROUND_TRIPS] [MESSAGES]
//! rdma_pingpong stay ADDRESS PORT [ROUND_TRIPS]    as client, but after an error releases the device and waits for input
//! ```
//!
//! The client sends first, as iWARP demands. After ROUND_TRIPS small messages there and back it sends MESSAGES larger
//! ones, as fast as the server's credits allow. All contents are compared. The first error ends the program with
//! status 1 and a line that says which operation failed.
#![allow(missing_docs, reason = "a program")]

mod connect;
mod link;
mod message;

use link::{Link, Outcome};
use message::{Kind, SMALL};
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["server", address] => address.parse().map_err(|e| bad(address, &e)).and_then(server),
        ["client", address, port, rest @ ..] => client(address, port, rest),
        ["stay", address, port, rest @ ..] => stay(address, port, rest),
        _ => Err("usage: rdma_pingpong server ADDRESS | client ADDRESS PORT [ROUND_TRIPS] [MESSAGES]".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("rdma_pingpong: {why}");
            ExitCode::FAILURE
        }
    }
}

fn bad(argument: &str, why: &dyn Display) -> String {
    format!("{argument}: {why}")
}

fn number(argument: Option<&&str>, default: u32) -> Outcome<u32> {
    argument.map_or(Ok(default), |text| text.parse().map_err(|e| bad(text, &e)))
}

/// Answers each ping and receives the stream, until the client says that it is done.
fn server(address: IpAddr) -> Outcome<()> {
    let mut link = connect::accept(SocketAddr::new(address, 0))?;
    let mut streamed = 0;
    loop {
        let message = link.receive()?;
        match message.kind {
            Kind::Ping => {
                message.check(message.seq)?;
                link.send(Kind::Pong, message.seq, message.payload.len())?;
            }
            Kind::Data => {
                message.check(streamed)?;
                streamed += 1;
            }
            Kind::Done => {
                message.check(streamed)?;
                link.send(Kind::Done, streamed, 0)?;
                // The client ends the connection, so that our answer is not lost by our own disconnecting.
                link.await_end()?;
                println!("served {streamed} messages");
                return Ok(());
            }
            Kind::Pong | Kind::Credits => return Err(format!("a {:?} from the client", message.kind)),
        }
    }
}

fn client(address: &str, port: &str, rest: &[&str]) -> Outcome<()> {
    let address: IpAddr = address.parse().map_err(|e| bad(address, &e))?;
    let port = port.parse().map_err(|e| bad(port, &e))?;
    let (round_trips, messages) = (number(rest.first(), 200)?, number(rest.get(1), 200)?);
    let mut link = connect::connect(SocketAddr::new(address, port))?;
    ping_pong(&mut link, round_trips)?;
    stream(&mut link, messages)?;
    link.disconnect()
}

/// Acts as a process with other work to do: when the connection fails, the process releases the device and goes on.
fn stay(address: &str, port: &str, rest: &[&str]) -> Outcome<()> {
    let outcome = client(address, port, rest);
    netacc_verbs::cm::release_removed_devices().map_err(|e| e.to_string())?;
    println!("let go");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(|e| e.to_string())?;
    outcome
}

fn ping_pong(link: &mut Link, round_trips: u32) -> Outcome<()> {
    let mut times = Vec::new();
    for seq in 0..round_trips {
        let began = Instant::now();
        link.send(Kind::Ping, seq, SMALL)?;
        let answer = link.receive()?;
        times.push(began.elapsed());
        answer.expect(Kind::Pong, seq)?;
    }
    let mean = times.iter().sum::<Duration>() / round_trips.max(1);
    times.sort();
    let median = times.get(times.len() / 2).copied().unwrap_or(Duration::ZERO);
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    println!("round trips {round_trips}, median {:.1} us, mean {:.1} us", us(median), us(mean));
    Ok(())
}

fn stream(link: &mut Link, messages: u32) -> Outcome<()> {
    let began = Instant::now();
    for seq in 0..messages {
        link.send(Kind::Data, seq, link::LARGE)?;
    }
    link.send(Kind::Done, messages, 0)?;
    link.receive()?.expect(Kind::Done, messages)?;
    let bytes = messages as usize * link::LARGE;
    let rate = bytes as f64 / began.elapsed().as_secs_f64() / 1e6;
    println!("messages {messages}, bytes {bytes}, {rate:.1} MB/s");
    println!("waited for credits {} times, sent {} inline", link.waits_for_credit, link.sent_inline);
    Ok(())
}
