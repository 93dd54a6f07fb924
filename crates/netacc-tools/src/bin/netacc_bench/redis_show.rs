//! What `netacc_bench redis` prints.

use serde_json::{Map, Value, json};

use crate::facts;
use crate::redis::{Found, Report, Round, name};
use crate::stats::{Summary, percent, rate, times};
use crate::table::{columns, paragraph};
use netacc_tools::bench_wire::Side;

type Figure = (&'static str, fn(&Round) -> f64);

const FIGURES: [Figure; 8] = [
    ("requests_per_second", |round| round.requests_per_second),
    ("average_ms", |round| round.average_ms),
    ("min_ms", |round| round.min_ms),
    ("p50_ms", |round| round.p50_ms),
    ("p95_ms", |round| round.p95_ms),
    ("p99_ms", |round| round.p99_ms),
    ("max_ms", |round| round.max_ms),
    ("cpu_us_per_request", |round| round.cpu_us_per_request),
];

fn summary(found: &Found, of: fn(&Round) -> f64) -> Option<Summary> {
    Summary::of(found.rounds.iter().map(of))
}

/// Whether what is called NetACC was.
fn accelerated(report: &Report) -> bool {
    report.sides.iter().any(|found| found.side == Side::Netacc && found.paths.accelerated())
}

pub(crate) fn text(report: &Report) -> String {
    let mut out = String::new();
    paragraph("", &format!("{}, redis {}", facts::line(&report.host), report.version), 4, &mut out);
    paragraph("", &report.command, 4, &mut out);
    out.push('\n');
    let head = ["", "requests/s", "spread", "avg", "min", "p50", "p95", "p99", "max", "CPU"];
    let mut rows = vec![head.map(ToOwned::to_owned).to_vec()];
    rows.extend(report.sides.iter().map(row));
    rows.extend(ratios(report));
    out.push_str(&columns(&rows));
    if !accelerated(report) {
        out.push('\n');
        let why = report.sides.iter().find_map(|found| found.paths.obstacle.clone());
        let why = why.unwrap_or_else(|| "redis-server accepted connections by TCP".into());
        paragraph("", &format!("NetACC: NOT ACCELERATED: {why}."), 2, &mut out);
    }
    out.push('\n');
    for note in notes(report) {
        paragraph("* ", &note, 2, &mut out);
    }
    out
}

fn row(found: &Found) -> Vec<String> {
    let mut row = vec![name(found.side).to_owned()];
    for (place, (_, of)) in FIGURES.into_iter().enumerate() {
        let summary = summary(found, of);
        match place {
            0 => {
                row.push(rate(summary.map(|summary| summary.median)));
                row.push(percent(summary.and_then(|summary| summary.spread())));
            }
            7 => row.push(summary.map_or_else(|| "-".into(), |summary| format!("{:.2}", summary.median))),
            _ => row.push(summary.map_or_else(|| "-".into(), |summary| milliseconds(summary.median))),
        }
    }
    row
}

/// As redis-benchmark writes them, in at most six characters.
fn milliseconds(value: f64) -> String {
    match value {
        value if value < 99.9995 => format!("{value:.3}"),
        value if value < 9999.5 => format!("{value:.0}"),
        value => format!("{:.0}s", value / 1e3),
    }
}

/// How many times better NetACC is.
fn ratios(report: &Report) -> Option<Vec<String>> {
    let [tcp, netacc] = report.sides.as_slice() else { return None };
    let mut row = vec!["times".to_owned()];
    for (place, (_, of)) in FIGURES.into_iter().enumerate() {
        let (tcp, netacc) = (summary(tcp, of)?.median, summary(netacc, of)?.median);
        let (good, bad) = if place == 0 { (netacc, tcp) } else { (tcp, netacc) };
        row.push(if bad > 0.0 { times(good / bad) } else { "-".into() });
        if place == 0 {
            row.push(String::new());
        }
    }
    Some(row)
}

fn notes(report: &Report) -> Vec<String> {
    let rounds = report.sides.first().map_or(0, |found| found.rounds.len());
    let mut notes = vec![
        "times in ms, CPU: us of user and system time of server and client for one request; times: how many times \
         better NetACC is"
            .to_owned(),
        format!(
            "{}, TCP and NetACC in turn, after one that does not count; spread: half the way from the lowest to the \
             highest round",
            if rounds == 1 { "one round".into() } else { format!("medians of {rounds} rounds") }
        ),
        "both servers: --protected-mode no --save '' --appendonly no; both ends are on this host".to_owned(),
    ];
    notes.extend(coarse(report));
    if accelerated(report) {
        let paths = report.sides.iter().filter(|found| found.side == Side::Netacc).map(|found| &found.paths);
        let (fast, all) = paths.fold((0, 0), |(fast, all), p| (fast + p.shm + p.rdma, all + p.shm + p.rdma + p.tcp));
        notes.push(format!("accelerated, as the server's stats page says: {fast} of {all} connections"));
    }
    notes
}

/// redis-benchmark with threads looks four times a second whether it has finished: too coarse for a short run.
fn coarse(report: &Report) -> Option<String> {
    const LOOKS: f64 = 0.25;
    if report.threads < 2 {
        return None;
    }
    let fastest = report.sides.iter().filter_map(|found| summary(found, FIGURES.first()?.1)).map(|s| s.max);
    let shortest = report.requests as f64 / fastest.fold(f64::MIN_POSITIVE, f64::max);
    (shortest < 10.0 * LOOKS).then(|| {
        format!(
            "redis-benchmark with threads sees only every {LOOKS} s that it has finished, and a round took {shortest:.2} s: \
             that rate may be up to {:.0} % too low; more requests (-n) make it exact",
            (LOOKS / shortest * 100.0).min(100.0)
        )
    })
}

pub(crate) fn json(report: &Report) -> Value {
    let side = |found: &Found| {
        let metrics: Map<String, Value> = FIGURES
            .into_iter()
            .filter_map(|(name, of)| {
                let summary = summary(found, of)?;
                let (median, min, max) = (summary.median, summary.min, summary.max);
                Some((name.into(), json!({ "median": median, "min": min, "max": max, "spread": summary.spread() })))
            })
            .collect();
        let paths = &found.paths;
        json!({
            "name": name(found.side), "accelerated": paths.accelerated(), "why_not": paths.obstacle,
            "connections": { "shm": paths.shm, "rdma": paths.rdma, "tcp": paths.tcp },
            "metrics": metrics, "rounds": found.rounds,
        })
    };
    json!({
        "version": 1, "netacc_bench": env!("CARGO_PKG_VERSION"), "seconds": report.seconds, "host": report.host,
        "redis": report.version, "command": report.command, "sides": report.sides.iter().map(side).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Paths;
    use netacc_tools::bench_wire::HostFacts;

    fn report(netacc: Paths) -> Report {
        let round = |scale: f64| Round {
            requests_per_second: 333_000.0 / scale,
            average_ms: 0.292 * scale,
            min_ms: 0.0,
            p50_ms: 0.287 * scale,
            p95_ms: 0.4 * scale,
            p99_ms: 0.447 * scale,
            max_ms: 25_000.0 * scale,
            cpu_us_per_request: 17.0 * scale,
        };
        let side = |side, scale, paths| Found { side, rounds: vec![round(scale), round(scale * 1.1)], paths };
        Report {
            host: HostFacts { kernel: "6".into(), cpu: "x".into(), cores: 2, version: "1".into() },
            version: "7.0.15".into(),
            command: "redis-benchmark -h 127.0.0.1".into(),
            requests: 1_000_000,
            threads: 4,
            seconds: 3.0,
            sides: vec![side(Side::Plain, 1.0, Paths::default()), side(Side::Netacc, 0.001, netacc)],
        }
    }

    #[test]
    fn the_table_fits() {
        let shm = Paths { shm: 200, ..Paths::default() };
        let told = text(&report(shm));
        assert!(told.lines().all(|line| line.chars().count() <= 80), "{told}");
        assert!(told.contains("sees only every 0.25 s"), "{told}");
        assert!(told.contains("200 of 200 connections") && !told.contains("NOT ACCELERATED"), "{told}");
        let ratio = told.lines().find(|line| line.starts_with("times")).unwrap();
        assert!(ratio.contains("1,000") && ratio.contains(" - "), "{told}");
    }

    #[test]
    fn what_was_not_accelerated_is_said() {
        let tcp = Paths { tcp: 5, shm: 5, ..Paths::default() };
        assert!(text(&report(tcp.clone())).contains("NOT ACCELERATED: redis-server accepted connections by TCP"));
        assert_eq!(json(&report(tcp))["sides"][1]["accelerated"], false);
    }
}
