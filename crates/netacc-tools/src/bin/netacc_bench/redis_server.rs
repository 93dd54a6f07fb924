//! The redis-server that `netacc_bench redis` measures with: one of its own on this host, or the user's on another.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{env, fs, process};

use netacc_stats::Counter;

use crate::bound;
use crate::child::Child;
use crate::control::reach;
use crate::page::Paths;
use crate::redis::{Medium, cpu_seconds, start};
use crate::timed::{Wire, hear, tell_line, wire};

/// How long redis may take to start, and to answer.
const START: Duration = Duration::from_secs(20);

/// Where redis-benchmark reaches a server.
#[derive(Debug)]
pub(crate) enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl Address {
    /// The options of redis-benchmark that name it.
    pub(crate) fn options(&self) -> Vec<String> {
        match self {
            Address::Tcp { host, port } => ["-h", host, "-p", &port.to_string()].map(ToOwned::to_owned).to_vec(),
            Address::Unix(path) => vec!["-s".into(), path.to_string_lossy().into_owned()],
        }
    }
}

pub(crate) struct Server {
    pub(crate) medium: Medium,
    pub(crate) address: Address,
    /// The process, where it is ours.
    child: Option<Child>,
    wire: Wire,
}

impl Server {
    /// Starts one on this host with the manual's settings; nothing is written to disk.
    pub(crate) fn start(medium: Medium) -> Result<Self, String> {
        let mut last = String::new();
        // redis takes a number only, and another program may take the port before redis does.
        for _ in 0..3 {
            let free = bound::listen(Some([127, 0, 0, 1].into()), 0)?;
            let port = free.local_addr().map_err(|error| error.to_string())?.port();
            drop(free);
            let host = "127.0.0.1".to_owned();
            let address = match medium {
                Medium::Tcp | Medium::Netacc => Address::Tcp { host, port },
                // redis itself takes an old file of this name away, and refuses to start where it may not.
                Medium::Unix => Address::Unix(env::temp_dir().join(format!("netacc_bench-{}.sock", process::id()))),
            };
            let mut child = start("redis-server", medium.side(), &words(port, &address))?;
            match answers(&mut child, port) {
                Ok(wire) => return Ok(Self { medium, address, child: Some(child), wire }),
                Err(text) => last = text,
            }
        }
        Err(last)
    }

    /// The user's server on another host, which stays as it is.
    pub(crate) fn far(medium: Medium, host: &str, port: u16) -> Result<Self, String> {
        let advice = "start 'netacc_run redis-server --protected-mode no' there";
        let stream = reach(host, port, advice)?;
        let failed =
            |why: String| format!("{host}, port {port}: {why}; is a redis-server there that needs no password?");
        match ping(stream) {
            Ok(Some(wire)) => {
                Ok(Self { medium, address: Address::Tcp { host: host.to_owned(), port }, child: None, wire })
            }
            Ok(None) => Err(failed("no answer to PING".into())),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// The version that redis gives of itself.
    pub(crate) fn version(&mut self) -> Result<String, String> {
        tell_line(&mut self.wire, "INFO server\r\n").map_err(|error| format!("redis-server: {error}"))?;
        loop {
            let line = hear(&mut self.wire, START).map_err(|ended| format!("redis-server {ended}"))?;
            if let Some(version) = line.trim_end().strip_prefix("redis_version:") {
                return Ok(netacc_tools::text::clean(version));
            }
        }
    }

    /// User and system time that it has used; 0 of a server on another host.
    pub(crate) fn cpu_seconds(&self) -> Result<f64, String> {
        self.child.as_ref().map_or(Ok(0.0), |child| cpu_seconds(child.pid()))
    }

    /// What it has accepted so far, and over what; `None` of a server on another host.
    pub(crate) fn accepted(&self) -> Option<Paths> {
        let pid = self.child.as_ref()?.pid();
        Some(match netacc_stats_reader::open(pid) {
            Ok(page) => Paths {
                shm: page.counter(Counter::AcceptsShm),
                rdma: page.counter(Counter::AcceptsRdma),
                tcp: page.counter(Counter::AcceptsTcp),
                ..Paths::default()
            },
            Err(error) => Paths { obstacle: Some(format!("redis-server {error}")), ..Paths::default() },
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process is killed, so it does not take its socket away itself.
        drop(self.child.take());
        if let Address::Unix(path) = &self.address {
            let _ = fs::remove_file(path);
        }
    }
}

/// The arguments of a server that listens on `port` of loopback, and on a UNIX socket if that is its address.
fn words(port: u16, address: &Address) -> Vec<String> {
    let mut words = ["--port", &port.to_string(), "--bind", "127.0.0.1", "--protected-mode", "no", "--save", ""]
        .map(ToOwned::to_owned)
        .to_vec();
    let quiet = ["--appendonly", "no", "--daemonize", "no", "--loglevel", "warning", "--logfile", "/dev/stderr"];
    words.extend(quiet.map(ToOwned::to_owned));
    if let Address::Unix(path) = address {
        words.extend(["--unixsocket", &path.to_string_lossy(), "--unixsocketperm", "700"].map(ToOwned::to_owned));
    }
    words
}

/// Waits until redis answers.
fn answers(child: &mut Child, port: u16) -> Result<Wire, String> {
    let end = Instant::now() + START;
    loop {
        if !child.runs() {
            return Err(child.ended());
        }
        if Instant::now() > end {
            return Err(child.failure(&format!("does not answer for {} seconds", START.as_secs())));
        }
        match TcpStream::connect(("127.0.0.1", port)).and_then(ping) {
            Ok(Some(wire)) => return Ok(wire),
            // It loads, or does not listen yet.
            Ok(None) | Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// The connection if redis answers on it; `None` if something else does, or redis refuses.
fn ping(stream: TcpStream) -> std::io::Result<Option<Wire>> {
    let mut wire = wire(stream)?;
    tell_line(&mut wire, "PING\r\n")?;
    match hear(&mut wire, START) {
        Ok(line) => Ok((line.trim_end() == "+PONG").then_some(wire)),
        Err(ended) => Err(std::io::Error::new(ErrorKind::ConnectionAborted, format!("the server {ended}"))),
    }
}
