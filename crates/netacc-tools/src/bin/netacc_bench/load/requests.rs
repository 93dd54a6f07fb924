//! Several clients, each of which asks and waits for the answer: one event loop, as the server's.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use netacc_tools::bench_wire::Job;

use super::{Exchange, Load, Watch, lost, open, wrong};
use crate::waiter::Waiter;
use crate::worker::{Measured, Task, Times};

struct Client {
    stream: TcpStream,
    exchange: Exchange,
    /// Bytes of the request that were sent, and of the answer that came.
    sent: usize,
    got: usize,
    since: Instant,
    /// A request is under way.
    asks: bool,
}

pub(crate) struct Requests {
    task: Task,
    poll: Poll,
    clients: Vec<Client>,
    /// Connections that say nothing. They have tokens behind those of the clients.
    idle: Vec<TcpStream>,
    open: Duration,
}

impl Requests {
    pub(crate) fn open(task: &Task) -> Result<Self, String> {
        let poll = Poll::new().map_err(|error| format!("no event loop: {error}"))?;
        let (active, all) = (task.clients as usize, task.clients as usize + task.idle as usize);
        let mut requests =
            Self { task: task.clone(), poll, clients: Vec::new(), idle: Vec::new(), open: Duration::ZERO };
        // The idle connections of 64 KiB messages need not have a place for one each.
        let mut exchange = Exchange::new(task);
        // The clients' connections are spread evenly over all of them.
        let every = all.checked_div(active).unwrap_or(usize::MAX);
        for number in 0..all {
            if number.is_multiple_of(every) && requests.clients.len() < active {
                let stream = requests.connect(&mut exchange, Token(requests.clients.len()))?;
                let exchange = Exchange::new(task);
                requests.clients.push(Client { stream, exchange, sent: 0, got: 0, since: Instant::now(), asks: false });
            } else {
                let stream = requests.connect(&mut exchange, Token(active + requests.idle.len()))?;
                requests.idle.push(stream);
            }
        }
        Ok(requests)
    }

    fn connect(&mut self, exchange: &mut Exchange, token: Token) -> Result<TcpStream, String> {
        let task = &self.task;
        let start = Instant::now();
        let mut stream = open(task, Job::Answer)?;
        self.open += start.elapsed();
        // An answered connection is an accepted one: connecting faster than the server accepts would fill its queue.
        exchange.once(&mut stream, &Waiter::Recv, task)?;
        stream.set_nonblocking(true).map_err(|error| lost(task, &error))?;
        let mut stream = TcpStream::from_std(stream);
        self.poll
            .registry()
            .register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)
            .map_err(|error| lost(task, &error))?;
        Ok(stream)
    }

    /// One event of a client. Until `end` the next request follows an answer.
    fn serve(&mut self, index: usize, times: &mut Times, end: Instant) -> Result<bool, String> {
        let task = &self.task;
        let Some(client) = self.clients.get_mut(index).filter(|client| client.asks) else { return Ok(false) };
        client.go_on().map_err(|error| lost(task, &error))?;
        if client.got < client.exchange.reply.len() {
            return Ok(false);
        }
        if !client.exchange.matches() {
            return Err(wrong(task));
        }
        let now = Instant::now();
        times.add(now.duration_since(client.since));
        client.asks = false;
        if now >= end {
            return Ok(true);
        }
        client.ask(now).map_err(|error| lost(task, &error))?;
        Ok(false)
    }
}

impl Client {
    fn ask(&mut self, now: Instant) -> io::Result<()> {
        self.exchange.next();
        (self.sent, self.got, self.since, self.asks) = (0, 0, now, true);
        self.send()
    }

    fn send(&mut self) -> io::Result<()> {
        while let Some(rest @ [_, ..]) = self.exchange.request.get(self.sent..) {
            match self.stream.write(rest) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends what is left of the request, or reads what there is of the answer.
    fn go_on(&mut self) -> io::Result<()> {
        self.send()?;
        while let Some(rest @ [_, ..]) = self.exchange.reply.get_mut(self.got..) {
            match self.stream.read(rest) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.got += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Load for Requests {
    fn measure(&mut self, time: Duration) -> Result<Measured, String> {
        let mut times = Times::new()?;
        let mut events = Events::with_capacity(1024);
        let watch = Watch::start();
        let end = watch.start + time;
        let task = &self.task;
        for client in &mut self.clients {
            client.ask(Instant::now()).map_err(|error| lost(task, &error))?;
        }
        let mut busy = self.clients.len();
        // Without requests, the cost of idle connections is measured from outside for that time.
        let nobody = busy == 0;
        while busy > 0 || nobody && Instant::now() < end {
            let most = nobody.then(|| end.saturating_duration_since(Instant::now()));
            match self.poll.poll(&mut events, most) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(format!("the event loop failed: {error}")),
                Ok(()) => {}
            }
            for event in &events {
                if self.serve(event.token().0, &mut times, end)? {
                    busy -= 1;
                }
            }
        }
        let open_ns = self.open.as_nanos() as f64 / self.connections().max(1) as f64;
        Ok(Measured { open_ns: Some(open_ns), ..watch.done(&times) })
    }

    fn connections(&self) -> u64 {
        (self.clients.len() + self.idle.len()) as u64
    }
}
