//! A server's measuring process: it does with each data connection what its header says, in one event loop.
//!
//! It receives its parameters and reports its results over its standard streams. Clients are strangers: a connection
//! costs a fixed amount of memory whatever it asks for, and one that breaks the rules is closed.

use std::io::{self, BufRead, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use netacc_tools::bench_wire::Waiting;
use serde::{Deserialize, Serialize};

use crate::args::ListenerArgs;
use crate::conn::{Conn, MOST_AT_ONCE, State};
use crate::waiter::Waiter;
use crate::{bound, cpu, page};

/// The first line that it says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Opened {
    /// The process listens.
    Listens {
        /// The port.
        port: u16,
        /// Why the process has no stats page; of no meaning where it was started without the library.
        obstacle: Option<String>,
    },
    /// The process cannot listen.
    Failed(String),
}

const LISTENER: Token = Token(usize::MAX);
/// Connections at a time.
const MOST: usize = 20_480;
/// Connections that have a thread of their own, at a time.
const MOST_ALONE: usize = 64;
/// Number of times that one connection is served in a row before the others are.
const TURNS: usize = 16;

/// Runs until standard input ends.
pub(crate) fn run(args: &ListenerArgs) -> Result<(), String> {
    bound::raise_descriptors();
    let opened = bound::listen(args.bind, args.port).and_then(|listener| {
        let port = listener.local_addr().map_err(|error| error.to_string())?.port();
        listener.set_nonblocking(true).map_err(|error| error.to_string())?;
        Ok((listener, port))
    });
    let (listener, port) = match opened {
        Ok(opened) => opened,
        Err(text) => return say(&Opened::Failed(text)),
    };
    say(&Opened::Listens { port, obstacle: page::obstacle() })?;
    thread::spawn(answer_marks);
    Loop::new(TcpListener::from_std(listener))
        .and_then(|mut serving| serving.run())
        .map_err(|error| format!("the event loop failed: {error}"))
}

fn say(message: &impl Serialize) -> Result<(), String> {
    let mut out = io::stdout().lock();
    let line = netacc_tools::bench_wire::write(message);
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).map_err(|error| error.to_string())
}

/// Each line on standard input is a question for the CPU time; with the last one the process ends.
fn answer_marks() {
    for line in io::stdin().lock().lines() {
        if line.is_err() || say(&cpu::nanoseconds(cpu::used())).is_err() {
            break;
        }
    }
    std::process::exit(0);
}

struct Loop {
    poll: Poll,
    listener: TcpListener,
    conns: Vec<Option<(TcpStream, Conn)>>,
    free: Vec<usize>,
    /// Those that had something to do when their turns were over.
    again: Vec<usize>,
    /// accept failed, or there were too many: the kernel does not tell again.
    accept_again: bool,
    buffer: Vec<u8>,
    /// How many connections have a thread of their own.
    alone: Arc<AtomicUsize>,
}

impl Loop {
    fn new(mut listener: TcpListener) -> io::Result<Self> {
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let buffer = vec![0; MOST_AT_ONCE];
        let (conns, free, again) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { poll, listener, conns, free, again, accept_again: false, buffer, alone: Arc::default() })
    }

    fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(256);
        loop {
            let wait = match (self.again.is_empty(), self.accept_again) {
                (false, _) => Some(Duration::ZERO),
                (true, true) => Some(Duration::from_millis(50)),
                (true, false) => None,
            };
            match self.poll.poll(&mut events, wait) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            }
            for event in &events {
                if event.token() == LISTENER {
                    self.accept();
                } else {
                    self.serve(event.token().0, event.is_read_closed());
                }
            }
            for index in std::mem::take(&mut self.again) {
                self.serve(index, true);
            }
            if self.accept_again {
                self.accept();
            }
        }
    }

    fn accept(&mut self) {
        self.accept_again = false;
        while self.conns.len() - self.free.len() < MOST {
            match self.listener.accept() {
                Ok((stream, _)) => self.add(stream),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => break,
                },
            }
        }
        self.accept_again = true;
    }

    fn add(&mut self, mut stream: TcpStream) {
        let index = self.free.pop().unwrap_or(self.conns.len());
        let both = Interest::READABLE | Interest::WRITABLE;
        // Without these it is slower, or cannot be served at all and is closed.
        let _ = stream.set_nodelay(true);
        let place = self.poll.registry().register(&mut stream, Token(index), both);
        let entry = place.ok().map(|()| (stream, Conn::new()));
        let usable = entry.is_some();
        match self.conns.get_mut(index) {
            Some(slot) => *slot = entry,
            None => self.conns.push(entry),
        }
        if usable {
            // The first bytes often are here already.
            self.serve(index, false);
        } else {
            self.free.push(index);
        }
    }

    /// `thorough`: read until there is nothing, also where a short read says so.
    fn serve(&mut self, index: usize, thorough: bool) {
        let Some(Some((stream, conn))) = self.conns.get_mut(index) else { return };
        for _ in 0..TURNS {
            if conn.waiting().is_some_and(|waiting| waiting != Waiting::Usual) {
                return self.leave(index);
            }
            match conn.step(&mut Wire(stream), &mut self.buffer, thorough) {
                State::Waits => return,
                State::Goes => {}
                State::Over => {
                    if let Some(slot) = self.conns.get_mut(index) {
                        *slot = None;
                        self.free.push(index);
                    }
                    return;
                }
            }
        }
        self.again.push(index);
    }

    /// Gives a connection that is to be waited for in another way to a thread of its own; of too many it is closed.
    fn leave(&mut self, index: usize) {
        let taken = self.conns.get_mut(index).and_then(Option::take);
        self.free.push(index);
        let Some((mut stream, conn)) = taken else { return };
        // A later event of the loop for it finds no connection.
        let left = self.poll.registry().deregister(&mut stream);
        // The order of the counts of several threads is of no meaning: only this one looks at the sum.
        if left.is_err() || self.alone.load(Relaxed) >= MOST_ALONE {
            return;
        }
        self.alone.fetch_add(1, Relaxed);
        let alone = Arc::clone(&self.alone);
        thread::spawn(move || {
            // A connection that fails is closed, like others.
            let _ = serve_connection(stream.into(), conn);
            alone.fetch_sub(1, Relaxed);
        });
    }
}

/// Serves one connection to its end, and waits for it as its header says.
fn serve_connection(mut stream: std::net::TcpStream, mut conn: Conn) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    let waiter = Waiter::new(conn.waiting().unwrap_or_default(), &stream)?;
    let mut buffer = vec![0; MOST_AT_ONCE];
    loop {
        if !conn.owes() {
            waiter.wait(&stream)?;
        }
        if conn.step(&mut Wire(&mut stream), &mut buffer, false) == State::Over {
            return Ok(());
        }
    }
}

/// A stream whose interrupted calls are made again.
struct Wire<'a, S>(&'a mut S);

impl<S: Read> Read for Wire<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }
}

impl<S: Write> Write for Wire<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where the listeners of a server are: `port` and what follows, or free ones.
pub(crate) fn words(bind: Option<IpAddr>, port: u16) -> Vec<String> {
    let mut words = vec!["listener".to_owned(), "--port".to_owned(), port.to_string()];
    if let Some(address) = bind {
        words.extend(["--bind".to_owned(), address.to_string()]);
    }
    words
}

/// The address of a listener on the host of `control`.
pub(crate) fn beside(mut control: SocketAddr, port: u16) -> SocketAddr {
    control.set_port(port);
    control
}
