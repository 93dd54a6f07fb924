//! What a run has found.

use netacc_tools::bench_wire::{HostFacts, Waiting};

use crate::args::{Ends, Workload};
use crate::page::Paths;
use crate::ping::Baseline;
use crate::stats::Summary;
use crate::worker::Measured;

/// One measurement.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) client: Measured,
    pub(crate) server_cpu_ns: u64,
}

/// One cell of the matrix, for one workload.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) ends: Ends,
    /// The first round, which does not count.
    pub(crate) discarded: Option<Sample>,
    pub(crate) samples: Vec<Sample>,
    /// Why there is no more.
    pub(crate) error: Option<String>,
}

/// One workload.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) workload: Workload,
    pub(crate) cells: Vec<Cell>,
}

/// Everything.
#[derive(Debug)]
pub(crate) struct Results {
    pub(crate) settings: Settings,
    pub(crate) client: HostFacts,
    pub(crate) server: HostFacts,
    /// Where the server is, as the user named it, and its address.
    pub(crate) host: String,
    pub(crate) address: String,
    /// Why the server's accelerated process is not.
    pub(crate) server_obstacle: Option<String>,
    pub(crate) started_unix: u64,
    pub(crate) seconds: f64,
    pub(crate) parts: Vec<Part>,
    pub(crate) baseline: Option<Baseline>,
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    pub(crate) seconds: f64,
    pub(crate) rounds: u32,
    pub(crate) size: u32,
    pub(crate) waiting: Waiting,
    pub(crate) block: u32,
    pub(crate) verify: bool,
    pub(crate) clients: u32,
    pub(crate) idle: u32,
    pub(crate) request: u32,
    pub(crate) reply: u32,
    pub(crate) trips: u64,
    pub(crate) per_day: u64,
}

/// A figure of a measurement. Times are microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metric {
    /// Operations a second; of a stream, million bytes a second.
    Rate,
    Average,
    P50,
    P99,
    P999,
    Max,
    /// CPU time for an operation; of a stream, for a million bytes.
    Cpu,
    CpuClient,
    CpuServer,
    /// What it took to open a connection that stays open.
    Open,
}

impl Metric {
    /// Names as they are in the JSON.
    pub(crate) const NAMED: [(Metric, &'static str); 10] = [
        (Metric::Rate, "per_second"),
        (Metric::Average, "average_us"),
        (Metric::P50, "p50_us"),
        (Metric::P99, "p99_us"),
        (Metric::P999, "p99_9_us"),
        (Metric::Max, "max_us"),
        (Metric::Cpu, "cpu_us"),
        (Metric::CpuClient, "cpu_client_us"),
        (Metric::CpuServer, "cpu_server_us"),
        (Metric::Open, "open_us"),
    ];
}

impl Sample {
    pub(crate) fn value(&self, metric: Metric, workload: Workload) -> Option<f64> {
        let client = &self.client;
        let units = match workload {
            Workload::Stream => client.bytes as f64 / 1e6,
            _ => client.operations as f64,
        };
        if units <= 0.0 || client.seconds <= 0.0 {
            return None;
        }
        let time = client.latency;
        let us = |nanoseconds: f64| nanoseconds / 1e3;
        Some(match metric {
            Metric::Rate => units / client.seconds,
            Metric::Average => us(time?.average),
            Metric::P50 => us(time?.p50 as f64),
            Metric::P99 => us(time?.p99 as f64),
            Metric::P999 => us(time?.p999 as f64),
            Metric::Max => us(time?.max as f64),
            Metric::Open => us(client.open_ns?),
            Metric::CpuClient => us(client.cpu_ns as f64) / units,
            Metric::CpuServer => us(self.server_cpu_ns as f64) / units,
            Metric::Cpu => us(client.cpu_ns as f64 + self.server_cpu_ns as f64) / units,
        })
    }
}

impl Cell {
    pub(crate) fn new(ends: Ends) -> Self {
        Self { ends, discarded: None, samples: Vec::new(), error: None }
    }

    /// Over all rounds that count.
    pub(crate) fn summary(&self, metric: Metric, workload: Workload) -> Option<Summary> {
        Summary::of(self.samples.iter().filter_map(|sample| sample.value(metric, workload)))
    }

    /// The figure for a table: the median, but of the longest time the longest.
    pub(crate) fn shown(&self, metric: Metric, workload: Workload) -> Option<f64> {
        let summary = self.summary(metric, workload)?;
        Some(if metric == Metric::Max { summary.max } else { summary.median })
    }

    /// What carried all of its connections.
    pub(crate) fn paths(&self) -> Paths {
        let mut all = Paths::default();
        for sample in &self.samples {
            all.add(&sample.client.paths);
        }
        all
    }
}

impl Part {
    pub(crate) fn cell(&self, ends: Ends) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.ends == ends)
    }
}

impl Results {
    pub(crate) fn part(&self, workload: Workload) -> Option<&Part> {
        self.parts.iter().find(|part| part.workload == workload)
    }

    /// Why a cell is not all on a fast path; `None` if it is, or nothing is known of it.
    pub(crate) fn why_not(&self, cell: &Cell) -> Option<String> {
        let paths = cell.paths();
        if cell.samples.is_empty() || paths.accelerated() {
            return None;
        }
        Some(match cell.ends {
            Ends::Plain => "neither end has NetACC".into(),
            Ends::Client => one_end(paths.obstacle.as_deref()),
            Ends::Server => one_end(self.server_obstacle.as_deref()),
            Ends::Both => self.both(&paths),
        })
    }

    fn both(&self, paths: &Paths) -> String {
        if let Some(why) = &paths.obstacle {
            return format!("at this end {why}");
        }
        if let Some(why) = &self.server_obstacle {
            return format!("at the server's end {why}");
        }
        let mut reasons: Vec<(&String, &u64)> = paths.reasons.iter().collect();
        reasons.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), (*name).clone()));
        match reasons.first() {
            Some((name, _)) => format!("{name}: {}", crate::page::sentence(name).trim_end_matches('.')),
            None => "no reason was given".into(),
        }
    }
}

fn one_end(obstacle: Option<&str>) -> String {
    let text = "NetACC is at one end only";
    obstacle.map_or_else(|| text.to_owned(), |why| format!("{text}, and even there {why}"))
}

/// What operations of a workload are called.
pub(crate) fn title(workload: Workload, settings: &Settings) -> String {
    let bytes = |count: u32| if count == 1 { "1 byte".to_owned() } else { format!("{count} bytes") };
    match workload {
        Workload::RoundTrip => {
            let waiting = match settings.waiting {
                Waiting::Usual => "",
                Waiting::Recv => ", each end waits in recv",
                Waiting::Epoll => ", each end waits in epoll",
                Waiting::Poll => ", each end waits in poll",
                Waiting::Select => ", each end waits in select",
            };
            format!("Round trip, {}{waiting}", bytes(settings.size))
        }
        Workload::Stream => {
            let verify = if settings.verify { ", each byte compared" } else { "" };
            format!("Stream, writes of {}{verify}", bytes(settings.block))
        }
        Workload::Connect => format!("Connections, each with a round trip of {}", bytes(settings.size)),
        Workload::Requests => {
            let clients =
                if settings.clients == 1 { "1 client".into() } else { format!("{} clients", settings.clients) };
            let idle = if settings.idle == 0 { String::new() } else { format!(", {} idle", settings.idle) };
            format!("Requests of {}, answers of {}, {clients}{idle}", bytes(settings.request), bytes(settings.reply))
        }
    }
}
