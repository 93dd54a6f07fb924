//! A client's measuring process: one measurement, and it ends.
//!
//! By lines over its standard streams: it is told what to do, makes its connections and warms up, says `ready`, is told
//! to go, measures, says what it found, and closes its connections when it is told to end. So the server's CPU time is
//! read before and after with nothing but the measurement between.

use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::time::Duration;

use hdrhistogram::Histogram;
use netacc_tools::bench_wire::{Side, Waiting};
use serde::{Deserialize, Serialize};

use crate::args::Workload;
use crate::load::{Load, connect::Connect, requests::Requests, round_trip::RoundTrip, stream::Stream};
use crate::page::Paths;

/// What to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) workload: Workload,
    pub(crate) side: Side,
    pub(crate) to: SocketAddr,
    pub(crate) waiting: Waiting,
    pub(crate) request: u32,
    pub(crate) reply: u32,
    pub(crate) clients: u32,
    pub(crate) idle: u32,
    pub(crate) verify: bool,
    pub(crate) seconds: f64,
}

/// What it says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Said {
    Ready,
    Done(Measured),
    Failed(String),
}

/// What was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Round trips, connections or requests; of a stream, writes.
    pub(crate) operations: u64,
    /// Bytes that the server confirmed, of a stream.
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) cpu_ns: u64,
    pub(crate) latency: Option<Latency>,
    /// What it took to open one of the connections that were open all the time, on average.
    pub(crate) open_ns: Option<f64>,
    pub(crate) paths: Paths,
}

/// Times of single operations, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) average: f64,
    pub(crate) min: u64,
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
}

/// Times of operations, to three digits.
pub(crate) struct Times {
    histogram: Histogram<u64>,
    sum: u128,
}

impl Times {
    pub(crate) fn new() -> Result<Self, String> {
        // It grows with what it sees; a minute is room enough to begin with.
        let mut histogram = Histogram::new_with_max(60_000_000_000, 3).map_err(|error| error.to_string())?;
        histogram.auto(true);
        Ok(Self { histogram, sum: 0 })
    }

    pub(crate) fn add(&mut self, time: Duration) {
        let nanoseconds = crate::cpu::nanoseconds(time);
        if self.histogram.record(nanoseconds).is_err() {
            self.histogram.saturating_record(nanoseconds);
        }
        self.sum += u128::from(nanoseconds);
    }

    pub(crate) fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// `None` if there was no operation at all.
    pub(crate) fn latency(&self) -> Option<Latency> {
        let count = self.count();
        (count > 0).then(|| Latency {
            average: self.sum as f64 / count as f64,
            min: self.histogram.min(),
            p50: self.histogram.value_at_quantile(0.5),
            p99: self.histogram.value_at_quantile(0.99),
            p999: self.histogram.value_at_quantile(0.999),
            max: self.histogram.max(),
        })
    }
}

/// Runs; everything is said on standard output.
pub(crate) fn run() -> Result<(), String> {
    // While it measures it does not hear that nobody is left to tell.
    crate::server::end_with_parent()?;
    let mut lines = io::stdin().lock().lines();
    let mut next = || lines.next().and_then(Result::ok);
    let task = next().ok_or("no task")?;
    let task: Task = serde_json::from_str(&task).map_err(|error| format!("the task: {error}"))?;
    crate::bound::raise_descriptors();
    let mut load = match prepare(&task) {
        Ok(load) => load,
        Err(text) => return say(&Said::Failed(text)),
    };
    say(&Said::Ready)?;
    if next().is_none() {
        return Ok(());
    }
    let measured = load.measure(Duration::from_secs_f64(task.seconds)).and_then(|measured| {
        let paths = match task.side {
            Side::Plain => Paths::plain(load.connections()),
            Side::Netacc => load.paths(task.to.port())?,
        };
        Ok(Measured { paths, ..measured })
    });
    say(&measured.map_or_else(Said::Failed, Said::Done))?;
    next();
    Ok(())
}

fn prepare(task: &Task) -> Result<Box<dyn Load>, String> {
    // As long as the caches and the wait policy of both ends need to settle.
    let warm_up = Duration::from_secs_f64((task.seconds / 10.0).clamp(0.01, 1.0));
    let mut load: Box<dyn Load> = match task.workload {
        Workload::RoundTrip => Box::new(RoundTrip::open(task)?),
        Workload::Stream => Box::new(Stream::open(task)?),
        Workload::Connect => Box::new(Connect::open(task)),
        Workload::Requests => Box::new(Requests::open(task)?),
    };
    load.measure(warm_up)?;
    load.renew()?;
    Ok(load)
}

fn say(said: &Said) -> Result<(), String> {
    let mut out = io::stdout().lock();
    let line = netacc_tools::bench_wire::write(said);
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_summed_up() {
        let mut times = Times::new().unwrap();
        assert!(times.latency().is_none());
        for microseconds in 1..=1000 {
            times.add(Duration::from_micros(microseconds));
        }
        let latency = times.latency().unwrap();
        assert_eq!((times.count(), latency.average), (1000, 500_500.0));
        for (found, exact) in [(latency.p50, 500e3), (latency.p99, 990e3), (latency.p999, 999e3), (latency.max, 1e6)] {
            assert!((found as f64 / exact - 1.0).abs() < 0.001, "{found} {exact}");
        }
        // Longer than foreseen is no failure.
        times.add(Duration::from_secs(4000));
        assert!(times.latency().unwrap().max >= 4_000_000_000_000);
    }
}
