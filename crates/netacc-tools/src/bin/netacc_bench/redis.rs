//! `netacc_bench redis`: the manual's redis-benchmark, on TCP, on a UNIX socket and under NetACC in turn, with the same
//! settings.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use netacc_tools::bench_wire::{HostFacts, Side};
use netacc_tools::program;
use netacc_tools::text::quote;

use crate::args::{LaunchArgs, RedisArgs};
use crate::child::{Child, on_side, ourselves};
use crate::facts;
use crate::page::{Paths, made_by};
use crate::progress::Progress;
use crate::redis_server::{Address, Server};
use crate::server::end_with_parent;

/// Requests a second that even a slow machine answers; it bounds how long a round may take.
const SLOWEST: u64 = 500;

/// Transport of the connections of a row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    Tcp,
    /// What two programs of one host can use instead of TCP where both can be told to.
    Unix,
    Netacc,
}

impl Medium {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Medium::Tcp => "TCP",
            Medium::Unix => "UNIX",
            Medium::Netacc => "NetACC",
        }
    }

    /// Whether the programs are started with the library.
    pub(crate) fn side(self) -> Side {
        if self == Medium::Netacc { Side::Netacc } else { Side::Plain }
    }
}

/// What was measured over one medium.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) medium: Medium,
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
    /// User and system time of server and client; of the client alone where the server is on another host.
    pub(crate) cpu_us_per_request: f64,
}

/// Everything.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) host: HostFacts,
    /// The host of the server, where that is not this one.
    pub(crate) far: Option<String>,
    pub(crate) version: String,
    pub(crate) command: String,
    pub(crate) requests: u64,
    pub(crate) threads: u32,
    pub(crate) seconds: f64,
    pub(crate) sides: Vec<Found>,
}

pub(crate) fn run(args: &RedisArgs) -> Result<Report, String> {
    let programs: &[&str] =
        if args.host.is_some() { &["redis-benchmark"] } else { &["redis-server", "redis-benchmark"] };
    for program in programs {
        program::find(OsStr::new(program)).map_err(|error| {
            format!("{program}: {error}; install redis (Debian: redis-server and redis-tools, others: redis)")
        })?;
    }
    let start = Instant::now();
    let mut servers = match &args.host {
        Some(host) => {
            [Medium::Tcp, Medium::Netacc].map(|medium| Server::far(medium, host, args.port)).into_iter().collect()
        }
        None => {
            [Medium::Tcp, Medium::Unix, Medium::Netacc].map(Server::start).into_iter().collect::<Result<Vec<_>, _>>()
        }
    }?;
    let version = servers.first_mut().map_or_else(|| Ok(String::new()), Server::version)?;
    let rounds = args.rounds as usize + 1;
    let mut progress = Progress::new(rounds * servers.len());
    let mut found: Vec<Found> = servers
        .iter()
        .map(|server| Found { medium: server.medium, rounds: Vec::new(), paths: Paths::default() })
        .collect();
    for round in 0..rounds {
        for step in 0..servers.len() {
            // None of them is always first.
            let index = (step + round) % servers.len();
            let (Some(server), Some(found)) = (servers.get_mut(index), found.get_mut(index)) else { continue };
            progress.step(&format!("redis, round {round} of {}, {}", args.rounds, server.medium.name()));
            let (values, paths) = measure(server, args)?;
            if round > 0 {
                found.rounds.push(values);
                found.paths.add(&paths);
            }
        }
    }
    Ok(Report {
        host: facts::own(),
        far: args.host.clone(),
        version,
        command: format!("redis-benchmark {}", options(args, servers.first().map(|server| &server.address)).join(" ")),
        requests: args.requests,
        threads: args.threads,
        seconds: start.elapsed().as_secs_f64(),
        sides: found,
    })
}

/// The manual's options.
fn options(args: &RedisArgs, address: Option<&Address>) -> Vec<String> {
    let mut words = address.map_or_else(Vec::new, Address::options);
    let numbers = [("-c", u64::from(args.clients)), ("-n", args.requests), ("-r", 10_000)];
    words.extend(numbers.into_iter().flat_map(|(option, value)| [option.to_owned(), value.to_string()]));
    let others = [("--threads", args.threads.to_string()), ("-d", args.size.to_string()), ("-t", args.test.clone())];
    words.extend(others.into_iter().flat_map(|(option, value)| [option.to_owned(), value]));
    words
}

/// One run of redis-benchmark, and what carried its connections.
fn measure(server: &Server, args: &RedisArgs) -> Result<(Round, Paths), String> {
    let words = [options(args, Some(&server.address)), vec!["--csv".to_owned()]].concat();
    let before = (server.cpu_seconds()?, server.accepted());
    let mut seen = Err("ended before its page was read".to_owned());
    // The last page that was read counts: it goes with the process.
    let look = |pid| {
        let page = made_by(pid);
        if seen.is_err() || page.is_ok() {
            seen = page;
        }
    };
    let client = start("redis-benchmark", server.medium.side(), &words)?;
    let patience = Duration::from_secs(60 + args.requests / SLOWEST);
    let (output, client_cpu) = client.outcome(patience, look, cpu_seconds)?;
    let mut round = parse(&output)?;
    round.cpu_us_per_request = (server.cpu_seconds()? - before.0 + client_cpu) * 1e6 / args.requests as f64;
    let paths = match (server.medium, before.1, server.accepted()) {
        (Medium::Tcp | Medium::Unix, ..) => Paths::default(),
        (Medium::Netacc, Some(before), Some(now)) => since(&before, &now),
        // The server is on another host, so only the client can be asked.
        (Medium::Netacc, ..) => {
            seen.unwrap_or_else(|why| Paths { obstacle: Some(format!("redis-benchmark {why}")), ..Paths::default() })
        }
    };
    Ok((round, paths))
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

/// A program of redis on a side, which ends with us.
pub(crate) fn start(name: &'static str, side: Side, words: &[String]) -> Result<Child, String> {
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

/// User and system time of a process, also of one that has ended and was not waited for.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64, String> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read(&path).map_err(|error| format!("{path}: {error}"))?;
    let text = String::from_utf8_lossy(&text);
    // A name may hold any bytes, spaces and brackets too; fields 14 and 15 are counted from behind it.
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
