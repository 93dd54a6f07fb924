//! The client's end of the control connection.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use netacc_tools::bench_wire::{BenchHello, Ended, Reply, Request, Side, Welcome, parse};
use netacc_tools::text::{clean, quote};

use crate::args::Ends;
use crate::listener::beside;
use crate::timed::{Wire, hear, tell, tell_line, wire};

/// How long a server may take to be reached.
const REACH: Duration = Duration::from_secs(10);
/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the answer to a mark may take, for which the server asks a process of its own.
const MARK: Duration = Duration::from_secs(30);

/// A server that has let us in.
pub(crate) struct Server {
    wire: Wire,
    /// As the user named it.
    name: String,
    /// Where its control port is.
    pub(crate) address: SocketAddr,
    pub(crate) welcome: Welcome,
}

impl Server {
    /// Reaches the server, or says why not and what to do.
    pub(crate) fn reach(host: &str, port: u16) -> Result<Self, String> {
        let name = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let stream = connect(host, port)?;
        let address = stream.peer_addr().map_err(|error| format!("{name}: {error}"))?;
        let mut wire = wire(stream).map_err(|error| format!("{name}: {error}"))?;
        // Until the server has introduced itself, a write that fails says less than the answer that follows.
        let _ = tell_line(&mut wire, &format!("{}\n", BenchHello::own()));
        let line = hear(&mut wire, PATIENCE).map_err(|ended| {
            format!("{name} is no netacc_bench server: it {ended}; start 'netacc_bench server' there, or name its port by -p")
        })?;
        let hello = BenchHello::parse(&line).ok_or_else(|| {
            format!(
                "{name} is no netacc_bench server: it begins with {}; start 'netacc_bench server' there, \
                 or name its port by -p",
                quote(&line)
            )
        })?;
        if let Some(objection) = hello.objection() {
            return Err(format!("the server at {name} {objection}"));
        }
        match answer(&mut wire, &name, PATIENCE)? {
            Reply::Welcome(welcome) => Ok(Self { wire, name, address, welcome }),
            Reply::Busy { with } => {
                Err(format!("the server at {name} measures with {} now; try again later", clean(&with)))
            }
            other => Err(unexpected(&name, &other)),
        }
    }

    /// Where the listener for these ends is.
    pub(crate) fn door(&self, ends: Ends) -> SocketAddr {
        let door = match ends.server() {
            Side::Plain => &self.welcome.plain,
            Side::Netacc => &self.welcome.netacc,
        };
        beside(self.address, door.port)
    }

    /// The CPU time of the listener; `quiet` is how long we may have nothing to say then.
    pub(crate) fn cpu_ns(&mut self, side: Side, quiet: Duration) -> Result<u64, String> {
        let seconds = u32::try_from(quiet.as_secs()).unwrap_or(u32::MAX).saturating_add(1);
        // If the server has ended, its last message describes the cause best.
        let _ = tell(&mut self.wire, &Request::Mark { side, seconds });
        match answer(&mut self.wire, &self.name, MARK)? {
            Reply::Mark { cpu_ns } => Ok(cpu_ns),
            other => Err(unexpected(&self.name, &other)),
        }
    }

    /// Takes leave.
    pub(crate) fn bye(mut self) {
        // It notices the end of the connection too, but would call that an interruption.
        let _ = tell(&mut self.wire, &Request::Bye {});
    }
}

fn connect(host: &str, port: u16) -> Result<TcpStream, String> {
    reach(host, port, "start 'netacc_bench server' there, and let its port and the two behind it through the firewall")
}

/// A connection to a port of a host, by the first of its addresses that answers; `advice` says what to do if none does.
pub(crate) fn reach(host: &str, port: u16, advice: &str) -> Result<TcpStream, String> {
    let addresses = (host, port).to_socket_addrs().map_err(|error| {
        // One colon: a port, where an IPv6 address has two at least.
        let hint = if host.matches(':').count() == 1 { "; a port is given by -p" } else { "" };
        format!("{}: the address of the host is not known: {error}{hint}", clean(host))
    })?;
    let mut last = format!("{}: the host has no address", clean(host));
    for address in addresses {
        match TcpStream::connect_timeout(&address, REACH) {
            Ok(stream) => return Ok(stream),
            Err(error) => {
                last = format!("no connection to {address}: {error}; {advice}");
            }
        }
    }
    Err(last)
}

fn answer(wire: &mut Wire, name: &str, patience: Duration) -> Result<Reply, String> {
    let line = hear(wire, patience).map_err(|ended| {
        let advice = match ended {
            Ended::Closed | Ended::Cut(_) => "; see what it says there",
            Ended::Silent => "; is its host still up?",
            _ => "",
        };
        format!("the server at {name} {ended}{advice}")
    })?;
    match parse(&line) {
        Ok(Reply::Failed { text }) => Err(format!("the server at {name} cannot go on: {}", clean(&text))),
        Ok(reply) => Ok(reply),
        Err(error) => Err(format!("the server at {name} {error}")),
    }
}

fn unexpected(name: &str, reply: &Reply) -> String {
    format!("the server at {name} sent {} out of turn", quote(netacc_tools::bench_wire::write(reply).trim_end()))
}
