//! `netacc_bench client`: the matrix, round by round.

use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use netacc_tools::bench_wire::{Side, Waiting};
use netacc_tools::text::quote;

use crate::args::{ClientArgs, Ends, Workload};
use crate::child::{Child, on_side, ourselves};
use crate::containers::{self, Containers};
use crate::control::Server;
use crate::ping::{Baseline, Pinger};
use crate::progress::Progress;
use crate::results::{Cell, Part, Results, Sample, Settings};
use crate::worker::{Latency, Said, Task};
use crate::{facts, note};

/// Time that a measuring process may take beyond the requested duration.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why something was not measured.
enum Trouble {
    /// This cell of the matrix; the others may go on.
    Cell(String),
    /// All that is left: the server is gone.
    All(String),
}

pub(crate) fn run(args: &ClientArgs) -> Result<Results, String> {
    let settings = settings(args);
    let containers = if args.containers { Some(Containers::make()?) } else { None };
    let own_address = if args.containers { containers::SERVER } else { "127.0.0.1" };
    // Started before the clock: a server of our own takes a moment.
    let own = match args.host {
        None => Some(OwnServer::start(args.server_cpu, own_address, containers.as_ref())?),
        Some(_) => None,
    };
    if let Some(containers) = &containers {
        containers.enter()?;
    }
    let (host, port) = match (&own, &args.host) {
        (Some(own), _) => (own_address, own.port),
        (None, Some(host)) => (host.as_str(), args.port),
        (None, None) => return Err("no server".into()),
    };
    let server = Server::reach(host, port)?;
    let workloads = distinct(&args.workloads);
    let ends = distinct(&args.ends);
    let pings = usize::from(!args.no_icmp && workloads.contains(&Workload::RoundTrip));
    let rounds = args.rounds as usize + 1;
    let total = rounds * (ends.len() * workloads.len() + pings);
    let mut results = Results {
        settings: settings.clone(),
        client: facts::own(),
        server: server.welcome.host.clone(),
        host: args
            .host
            .clone()
            .unwrap_or_else(|| if args.containers { "a container of this host" } else { "this host" }.into()),
        address: server.address.to_string(),
        server_obstacle: server.welcome.netacc.obstacle.as_deref().map(netacc_tools::text::clean),
        started_unix: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs(),
        seconds: 0.0,
        parts: Vec::new(),
        baseline: None,
    };
    let start = Instant::now();
    let mut run = Run { settings, on_cpu: args.cpu, server, progress: Progress::new(total) };
    let lost = run.all(&workloads, &ends, pings > 0, &mut results);
    results.seconds = start.elapsed().as_secs_f64();
    let Run { server, progress, .. } = run;
    drop(progress);
    match lost {
        Ok(()) => server.bye(),
        // What was measured until then is worth showing.
        Err(text) if results.parts.iter().any(|part| part.cells.iter().any(|cell| !cell.samples.is_empty())) => {
            note(&text);
            results.parts.iter_mut().flat_map(|part| &mut part.cells).for_each(|cell| {
                cell.error.get_or_insert_with(|| "the server was lost".into());
            });
        }
        Err(text) => return Err(text),
    }
    Ok(results)
}

fn settings(args: &ClientArgs) -> Settings {
    Settings {
        seconds: args.time,
        rounds: args.rounds,
        size: args.size,
        waiting: args.wait.unwrap_or_default(),
        block: args.block,
        verify: args.verify,
        clients: args.clients,
        idle: args.idle,
        request: args.request,
        reply: args.reply,
        trips: args.trips,
        per_day: args.per_day,
    }
}

/// Each once, in the order in which they were named.
fn distinct<T: Copy + PartialEq>(values: &[T]) -> Vec<T> {
    let mut found = Vec::new();
    for value in values {
        if !found.contains(value) {
            found.push(*value);
        }
    }
    found
}

/// A server for this run alone. It ends with the connection, or with us.
struct OwnServer {
    port: u16,
    _child: Child,
}

impl OwnServer {
    fn start(on_cpu: Option<u16>, address: &str, containers: Option<&Containers>) -> Result<Self, String> {
        let mut command: Command = ourselves(&["server", "-B", address, "-p", "0", "--one-off", "--with-parent"])?;
        command.args(on_cpu.map(|number| format!("--cpu={number}")));
        on_side(&mut command, Side::Plain);
        if let Some(containers) = containers {
            command = containers.at_server(&command);
        }
        let mut child = Child::spawn("server on this host", command)?;
        let line = child.hear(PATIENCE)?;
        let port = line.strip_prefix("netacc_bench: listens on port ").and_then(|rest| rest.split(' ').next());
        let port =
            port.and_then(|port| port.parse().ok()).ok_or_else(|| format!("the server said {}", quote(&line)))?;
        Ok(Self { port, _child: child })
    }
}

struct Run {
    settings: Settings,
    on_cpu: Option<u16>,
    server: Server,
    progress: Progress,
}

impl Run {
    fn all(&mut self, workloads: &[Workload], ends: &[Ends], ping: bool, into: &mut Results) -> Result<(), String> {
        for workload in workloads {
            let cells = ends.iter().map(|ends| Cell::new(*ends)).collect();
            into.parts.push(Part { workload: *workload, cells });
            let ping = ping && *workload == Workload::RoundTrip;
            let mut pinger = ping.then(|| Pinger::open(self.server.address.ip()));
            let mut pings = Vec::new();
            for round in 0..=self.settings.rounds {
                if let Some(part) = into.parts.last_mut() {
                    self.round(round, part)?;
                }
                let failed = into.parts.last().is_some_and(|part| part.cells.iter().all(|cell| cell.error.is_some()));
                if failed {
                    break;
                }
                if let Some(Ok(open)) = &mut pinger {
                    self.progress.step(&format!("round {round} of {}, ICMP echo", self.settings.rounds));
                    match open.round(self.time()) {
                        Ok(latency) => pings.extend((round > 0).then_some(latency)),
                        Err(text) => pinger = Some(Err(text)),
                    }
                }
            }
            if let Some(pinger) = pinger {
                into.baseline = Some(baseline(pinger.map(|_| pings)));
            }
        }
        Ok(())
    }

    fn time(&self) -> Duration {
        Duration::from_secs_f64(self.settings.seconds)
    }

    /// Every cell once, beginning with another one each time, so that none has the advantage of being first.
    fn round(&mut self, round: u32, part: &mut Part) -> Result<(), String> {
        let count = part.cells.len();
        for step in 0..count {
            let Some(cell) = part.cells.get_mut((step + round as usize) % count) else { continue };
            let (name, of) = (part.workload.name(), self.settings.rounds);
            self.progress.step(&format!("{name}, round {round} of {of}, {}", cell.ends.title()));
            if cell.error.is_some() {
                continue;
            }
            match self.measure(part.workload, cell.ends) {
                Ok(sample) if round == 0 => cell.discarded = Some(sample),
                Ok(sample) => cell.samples.push(sample),
                Err(Trouble::Cell(text)) => cell.error = Some(text),
                Err(Trouble::All(text)) => return Err(text),
            }
        }
        Ok(())
    }

    fn measure(&mut self, workload: Workload, ends: Ends) -> Result<Sample, Trouble> {
        let time = self.time();
        let task = self.task(workload, ends);
        let mut worker = Child::start("measuring process", &["worker".to_owned()], ends.client(), self.on_cpu)
            .map_err(Trouble::Cell)?;
        let ready = said(&mut worker, &netacc_tools::bench_wire::write(&task), time);
        // Its warm-up is over, and so is that of the listener: from here on only the measurement uses CPU time. And where
        // it failed, this tells whether the whole server is gone.
        let before = self.server.cpu_ns(ends.server(), time * 2 + PATIENCE).map_err(Trouble::All)?;
        if !matches!(ready?, Said::Ready) {
            return Err(Trouble::Cell("the measuring process spoke out of turn".into()));
        }
        let done = said(&mut worker, "go\n", time);
        let after = self.server.cpu_ns(ends.server(), time * 2 + PATIENCE).map_err(Trouble::All)?;
        let client = match done? {
            Said::Done(measured) => measured,
            _ => return Err(Trouble::Cell("the measuring process spoke out of turn".into())),
        };
        worker.finish();
        Ok(Sample { client, server_cpu_ns: after.saturating_sub(before) })
    }

    fn task(&self, workload: Workload, ends: Ends) -> Task {
        let (request, reply) = match workload {
            Workload::RoundTrip | Workload::Connect => (self.settings.size, self.settings.size),
            Workload::Stream => (self.settings.block, 1),
            Workload::Requests => (self.settings.request, self.settings.reply),
        };
        let Settings { clients, idle, verify, seconds, .. } = self.settings;
        let waiting = if workload == Workload::RoundTrip { self.settings.waiting } else { Waiting::Usual };
        let (side, to) = (ends.client(), self.server.door(ends));
        Task { workload, side, to, waiting, request, reply, clients, idle, verify, seconds }
    }
}

/// Sends a line to the measuring process and receives its answer.
fn said(worker: &mut Child, line: &str, time: Duration) -> Result<Said, Trouble> {
    let heard = worker.tell(line).and_then(|()| worker.hear(time * 2 + PATIENCE)).map_err(Trouble::Cell)?;
    match serde_json::from_str(&heard) {
        Ok(Said::Failed(text)) => Err(Trouble::Cell(text)),
        Ok(said) => Ok(said),
        Err(error) => Err(Trouble::Cell(format!("the measuring process said {}: {error}", quote(&heard)))),
    }
}

fn baseline(found: Result<Vec<Latency>, String>) -> Baseline {
    match found {
        Ok(rounds) => Baseline::Measured(rounds),
        Err(text) => Baseline::Not(text),
    }
}

/// A measurement without anything in it, for tests of what is made of results.
#[cfg(test)]
pub(crate) fn measured(average_us: f64, paths: crate::page::Paths) -> crate::worker::Measured {
    let ns = |us: f64| (us * 1e3) as u64;
    let latency = Latency {
        average: average_us * 1e3,
        min: ns(average_us / 2.0),
        p50: ns(average_us),
        p99: ns(average_us * 2.0),
        p999: ns(average_us * 5.0),
        max: ns(average_us * 40.0),
    };
    let operations = (1e6 / average_us) as u64;
    crate::worker::Measured {
        operations,
        bytes: operations * 1000,
        seconds: 1.0,
        cpu_ns: 500_000_000,
        latency: Some(latency),
        open_ns: None,
        paths,
    }
}
