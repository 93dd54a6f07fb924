//! `netacc_bench redis`: the manual's redis-benchmark, on TCP and under NetACC in turn, with the same settings.

use std::ffi::OsStr;
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, io};

use netacc_stats::Counter;
use netacc_tools::bench_wire::{HostFacts, Side};
use netacc_tools::program;
use netacc_tools::text::quote;

use crate::args::{LaunchArgs, RedisArgs};
use crate::child::{Child, on_side, ourselves};
use crate::page::Paths;
use crate::progress::Progress;
use crate::server::end_with_parent;
use crate::timed::{Wire, hear, tell_line, wire};
use crate::{bound, facts};

/// How long redis may take to start.
const START: Duration = Duration::from_secs(20);
/// How long a round may take: even a slow machine answers so many requests a second.
const SLOWEST: u64 = 500;

/// What was found on one side.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) side: Side,
    pub(crate) rounds: Vec<Round>,
    pub(crate) paths: Paths,
}

/// One run of redis-benchmark. Times are milliseconds, as it gives them.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub(crate) struct Round {
    pub(crate) requests_per_second: f64,
    pub(crate) average_ms: f64,
    pub(crate) min_ms: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p95_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
    /// User and system time of server and client.
    pub(crate) cpu_us_per_request: f64,
}

/// Everything.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) host: HostFacts,
    pub(crate) version: String,
    pub(crate) command: String,
    pub(crate) requests: u64,
    pub(crate) threads: u32,
    pub(crate) seconds: f64,
    pub(crate) sides: Vec<Found>,
}

pub(crate) fn run(args: &RedisArgs) -> Result<Report, String> {
    for program in ["redis-server", "redis-benchmark"] {
        program::find(OsStr::new(program)).map_err(|error| {
            format!("{program}: {error}; install redis (Debian: redis-server and redis-tools, others: redis)")
        })?;
    }
    let start = Instant::now();
    let mut servers = [Server::start(Side::Plain)?, Server::start(Side::Netacc)?];
    let version = servers.first_mut().map_or_else(|| Ok(String::new()), Server::version)?;
    let rounds = args.rounds as usize + 1;
    let mut progress = Progress::new(rounds * servers.len());
    let mut found = [Side::Plain, Side::Netacc].map(|side| Found { side, rounds: Vec::new(), paths: Paths::default() });
    for round in 0..rounds {
        for step in 0..servers.len() {
            // Who comes first has no advantage.
            let index = (step + round) % servers.len();
            let (Some(server), Some(found)) = (servers.get_mut(index), found.get_mut(index)) else { continue };
            progress.step(&format!("redis, round {round} of {}, {}", args.rounds, name(server.side)));
            let (values, paths) = server.measure(args)?;
            if round > 0 {
                found.rounds.push(values);
                found.paths.add(&paths);
            }
        }
    }
    Ok(Report {
        host: facts::own(),
        version,
        command: format!("redis-benchmark {}", options(args, None).join(" ")),
        requests: args.requests,
        threads: args.threads,
        seconds: start.elapsed().as_secs_f64(),
        sides: found.into(),
    })
}

pub(crate) fn name(side: Side) -> &'static str {
    match side {
        Side::Plain => "TCP",
        Side::Netacc => "NetACC",
    }
}

/// The manual's options; `port` is left out where they are shown.
fn options(args: &RedisArgs, port: Option<u16>) -> Vec<String> {
    let mut words = vec!["-h".to_owned(), "127.0.0.1".to_owned()];
    words.extend(port.into_iter().flat_map(|port| ["-p".to_owned(), port.to_string()]));
    let numbers = [("-c", u64::from(args.clients)), ("-n", args.requests), ("-r", 10_000)];
    words.extend(numbers.into_iter().flat_map(|(option, value)| [option.to_owned(), value.to_string()]));
    let others = [("--threads", args.threads.to_string()), ("-d", args.size.to_string()), ("-t", args.test.clone())];
    words.extend(others.into_iter().flat_map(|(option, value)| [option.to_owned(), value]));
    words
}

/// A program of redis on a side, which ends with us.
fn start(name: &'static str, side: Side, words: &[String]) -> Result<Child, String> {
    let mut command = ourselves(&["launch", name])?;
    command.args(words);
    on_side(&mut command, side);
    Child::spawn(name, command)
}

/// Becomes the program that is named; only failing comes back.
pub(crate) fn launch(args: &LaunchArgs) -> Result<(), String> {
    end_with_parent()?;
    let Some((name, words)) = args.words.split_first() else { return Err("no program".into()) };
    let file = program::find(OsStr::new(name)).map_err(|error| format!("{name}: {error}"))?;
    Err(format!("{name}: {}", Command::new(file).args(words).exec()))
}

struct Server {
    side: Side,
    port: u16,
    child: Child,
    wire: Wire,
}

impl Server {
    /// With the manual's settings, and nothing written to disk on either side.
    fn start(side: Side) -> Result<Self, String> {
        let mut last = String::new();
        // redis takes a number only; somebody else may take the port before it does.
        for _ in 0..3 {
            let free = bound::listen(Some([127, 0, 0, 1].into()), 0)?;
            let port = free.local_addr().map_err(|error| error.to_string())?.port();
            drop(free);
            let words = [
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--protected-mode",
                "no",
                "--save",
                "",
                "--appendonly",
                "no",
                "--daemonize",
                "no",
                "--loglevel",
                "warning",
                "--logfile",
                "/dev/stderr",
            ]
            .map(ToOwned::to_owned);
            let mut child = start("redis-server", side, &words)?;
            match answers(&mut child, port) {
                Ok(wire) => return Ok(Self { side, port, child, wire }),
                Err(text) => last = text,
            }
        }
        Err(last)
    }

    fn version(&mut self) -> Result<String, String> {
        tell_line(&mut self.wire, "INFO server\r\n").map_err(|error| format!("redis-server: {error}"))?;
        loop {
            let line = hear(&mut self.wire, START).map_err(|ended| format!("redis-server {ended}"))?;
            if let Some(version) = line.trim_end().strip_prefix("redis_version:") {
                return Ok(netacc_tools::text::clean(version));
            }
        }
    }

    fn measure(&mut self, args: &RedisArgs) -> Result<(Round, Paths), String> {
        let words = [options(args, Some(self.port)), vec!["--csv".to_owned()]].concat();
        let before = (cpu_seconds(self.child.pid())?, self.accepted());
        let client = start("redis-benchmark", self.side, &words)?;
        let patience = Duration::from_secs(60 + args.requests / SLOWEST);
        let (output, client_cpu) = client.outcome(patience, cpu_seconds)?;
        let cpu = cpu_seconds(self.child.pid())? - before.0 + client_cpu;
        let mut round = parse(&output)?;
        round.cpu_us_per_request = cpu * 1e6 / args.requests as f64;
        Ok((round, since(&before.1, &self.accepted())))
    }

    /// What the server has accepted by now, and over what.
    fn accepted(&self) -> Paths {
        if self.side == Side::Plain {
            return Paths::default();
        }
        match netacc_stats::reader::open(self.child.pid()) {
            Ok(page) => Paths {
                shm: page.counter(Counter::AcceptsShm),
                rdma: page.counter(Counter::AcceptsRdma),
                tcp: page.counter(Counter::AcceptsTcp),
                ..Paths::default()
            },
            Err(error) => Paths { obstacle: Some(format!("redis-server {error}")), ..Paths::default() },
        }
    }
}

fn since(before: &Paths, now: &Paths) -> Paths {
    Paths {
        shm: now.shm.saturating_sub(before.shm),
        rdma: now.rdma.saturating_sub(before.rdma),
        tcp: now.tcp.saturating_sub(before.tcp),
        obstacle: now.obstacle.clone(),
        ..Paths::default()
    }
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
        match ping(port) {
            Ok(Some(wire)) => return Ok(wire),
            // It loads, or does not listen yet.
            Ok(None) | Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn ping(port: u16) -> io::Result<Option<Wire>> {
    let mut wire = wire(TcpStream::connect(("127.0.0.1", port))?)?;
    tell_line(&mut wire, "PING\r\n")?;
    Ok(hear(&mut wire, START).is_ok_and(|line| line.trim_end() == "+PONG").then_some(wire))
}

/// User and system time of a process, also of one that has ended and was not waited for.
fn cpu_seconds(pid: u32) -> Result<f64, String> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    // A name may hold anything, spaces and brackets too; fields 14 and 15 are counted from behind it.
    let fields = text.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().skip(11).take(2));
    let ticks: Option<u64> = fields.and_then(|fields| fields.map(|field| field.parse::<u64>().ok()).sum());
    let rate = rustix::param::clock_ticks_per_second().max(1);
    ticks.map(|ticks| ticks as f64 / rate as f64).ok_or_else(|| format!("{path} is not understood"))
}

/// What redis-benchmark --csv prints: names in quotes, then values in quotes.
fn parse(output: &str) -> Result<Round, String> {
    let unexpected = || format!("redis-benchmark printed {}; version 6.2 or newer is needed", quote(output.trim()));
    let mut lines = output.lines().filter(|line| line.starts_with('"'));
    let (Some(names), Some(values), None) = (lines.next(), lines.next(), lines.next()) else {
        return Err(unexpected());
    };
    let fields = |line: &str| line.split(',').map(|field| field.trim_matches('"').to_owned()).collect::<Vec<_>>();
    let (names, values) = (fields(names), fields(values));
    let number = |wanted: &str| {
        let place = names.iter().position(|name| name == wanted)?;
        values.get(place)?.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0)
    };
    let read = || {
        Some(Round {
            requests_per_second: number("rps")?,
            average_ms: number("avg_latency_ms")?,
            min_ms: number("min_latency_ms")?,
            p50_ms: number("p50_latency_ms")?,
            p95_ms: number("p95_latency_ms")?,
            p99_ms: number("p99_latency_ms")?,
            max_ms: number("max_latency_ms")?,
            cpu_us_per_request: 0.0,
        })
    };
    read().ok_or_else(unexpected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAMES: &str = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\
                         \"p99_latency_ms\",\"max_latency_ms\"";

    #[test]
    fn what_redis_benchmark_prints() {
        let output = format!(
            "WARNING: no config\n{NAMES}\n\"SET\",\"767341.94\",\"0.126\",\"0.032\",\"0.127\",\"0.167\",\"0.183\",\"9.583\"\n"
        );
        let round = parse(&output).unwrap();
        assert_eq!((round.requests_per_second, round.p95_ms, round.max_ms), (767_341.94, 0.167, 9.583));
        for wrong in ["", "\"SET\",\"1\"", NAMES, "Could not connect to Redis", &format!("{NAMES}\n\"SET\",\"nan\"")] {
            assert!(parse(wrong).unwrap_err().contains("6.2"), "{wrong}");
        }
    }

    #[test]
    fn own_cpu_time() {
        assert!(cpu_seconds(std::process::id()).unwrap() >= 0.0);
        assert!(cpu_seconds(u32::MAX).unwrap_err().contains("/proc/4294967295/stat"));
    }

    proptest! {
        #[test]
        fn any_output_is_judged(output in "(\"[^\n]{0,40}\n){0,4}") {
            let _ = parse(&output);
            let _ = parse(&format!("{NAMES}\n{output}"));
        }
    }
}
