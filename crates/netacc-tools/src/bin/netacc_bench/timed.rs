//! A control connection on which nothing may take longer than it should.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use netacc_tools::bench_wire::{Ended, Lines, write};
use serde::Serialize;

/// A stream whose reads all end by one moment, however slowly the bytes drip.
pub(crate) struct Timed {
    stream: TcpStream,
    until: Instant,
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buffer)
    }
}

pub(crate) type Wire = Lines<Timed>;

/// How long a peer may take to read what we write; it is a few lines, so it never waits in good order.
const WRITE: Duration = Duration::from_secs(10);

pub(crate) fn wire(stream: TcpStream) -> io::Result<Wire> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(WRITE))?;
    Ok(Lines::new(Timed { stream, until: Instant::now() }))
}

/// The next line, within `patience`.
pub(crate) fn hear(wire: &mut Wire, patience: Duration) -> Result<String, Ended> {
    wire.inner().until = Instant::now() + patience;
    wire.next_line()
}

/// Sends a text as it is.
pub(crate) fn tell_line(wire: &mut Wire, line: &str) -> io::Result<()> {
    wire.inner().stream.write_all(line.as_bytes())
}

/// Sends a message.
pub(crate) fn tell(wire: &mut Wire, message: &impl Serialize) -> io::Result<()> {
    tell_line(wire, &write(message))
}
