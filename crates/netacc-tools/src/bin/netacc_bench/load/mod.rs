//! What a client does with its connections while it measures.

pub(crate) mod connect;
pub(crate) mod requests;
pub(crate) mod round_trip;
pub(crate) mod stream;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use netacc_tools::bench_wire::{Header, Job};

use crate::conn::{FILLER, STAMP};
use crate::cpu;
use crate::page::{self, Paths};
use crate::waiter::Waiter;
use crate::worker::{Measured, Task, Times};

/// A workload with its connections.
pub(crate) trait Load {
    /// Repeats the measurement for this time.
    fn measure(&mut self, time: Duration) -> Result<Measured, String>;

    /// Gets ready for another time, after the warm-up.
    fn renew(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// How many connections there are, or have been.
    fn connections(&self) -> u64;

    /// What carried them, in a process that was started with the library. All of them are still open.
    fn paths(&mut self, port: u16) -> Result<Paths, String> {
        Ok(page::open_to(port, self.connections()))
    }
}

/// Clock and CPU time from the beginning of a measurement.
struct Watch {
    start: Instant,
    cpu: Duration,
}

impl Watch {
    fn start() -> Self {
        Self { cpu: cpu::used(), start: Instant::now() }
    }

    fn done(&self, times: &Times) -> Measured {
        let seconds = self.start.elapsed().as_secs_f64();
        Measured {
            operations: times.count(),
            bytes: 0,
            seconds,
            cpu_ns: cpu::nanoseconds(cpu::used().saturating_sub(self.cpu)),
            latency: times.latency(),
            open_ns: None,
            paths: Paths::default(),
        }
    }
}

/// A data connection with its header sent.
fn open(task: &Task, job: Job) -> Result<TcpStream, String> {
    let mut stream = TcpStream::connect(task.to).map_err(|error| refused(task, &error))?;
    let header = Header { job, waiting: task.waiting, request: task.request, reply: task.reply }.encode();
    stream.set_nodelay(true).and_then(|()| stream.write_all(&header)).map_err(|error| lost(task, &error))?;
    Ok(stream)
}

fn refused(task: &Task, error: &io::Error) -> String {
    let advice = match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable => {
            "; does a firewall let the server's port and the two behind it through?"
        }
        io::ErrorKind::AddrNotAvailable => {
            "; no local port is free: wait a minute until TIME_WAIT is over, or measure for a shorter time"
        }
        _ => "",
    };
    format!("no data connection to {}: {error}{advice}", task.to)
}

fn lost(task: &Task, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            format!("the server at {} closed a data connection in the middle; see what it says there", task.to)
        }
        _ => format!("the data connection to {} failed: {error}", task.to),
    }
}

/// A request and the place for its answer.
struct Exchange {
    request: Vec<u8>,
    reply: Vec<u8>,
    /// What follows in an answer on the first bytes of its request, as far as it is compared.
    filler: Vec<u8>,
    number: u64,
}

impl Exchange {
    fn new(task: &Task) -> Self {
        let (request, reply) = (task.request as usize, task.reply as usize);
        let repeated = STAMP.min(request).min(reply);
        // Of an answer of any size the comparison takes a small part of the time.
        let filler = vec![FILLER; (reply - repeated).min(4096)];
        Self { request: vec![0x33; request], reply: vec![0; reply], filler, number: 0 }
    }

    /// Makes the request another one than the last.
    fn next(&mut self) -> &[u8] {
        self.number += 1;
        for (place, byte) in self.request.iter_mut().zip(self.number.to_le_bytes()) {
            *place = byte;
        }
        &self.request
    }

    /// Whether the answer is one to this request.
    fn matches(&self) -> bool {
        let repeated = STAMP.min(self.request.len()).min(self.reply.len());
        self.reply.get(..repeated) == self.request.get(..repeated)
            && self.reply.get(repeated..).is_some_and(|rest| rest.starts_with(&self.filler))
    }

    fn once(&mut self, stream: &mut TcpStream, waiter: &Waiter, task: &Task) -> Result<(), String> {
        self.next();
        stream.write_all(&self.request).map_err(|error| lost(task, &error))?;
        waiter.wait(stream).map_err(|error| lost(task, &error))?;
        stream.read_exact(&mut self.reply).map_err(|error| lost(task, &error))?;
        if self.matches() { Ok(()) } else { Err(wrong(task)) }
    }
}

fn wrong(task: &Task) -> String {
    format!("{} answers with other bytes than it was sent; is it a netacc_bench of this version?", task.to)
}
