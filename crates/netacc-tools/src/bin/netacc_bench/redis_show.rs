//! What `netacc_bench redis` prints.

use serde_json::{Map, Value, json};

use crate::facts;
use crate::page::{Paths, sentence};
use crate::redis::{Found, Medium, Report, Round};
use crate::stats::{Summary, percent, rate, times};
use crate::table::{columns, paragraph};

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

fn found(report: &Report, medium: Medium) -> Option<&Found> {
    report.sides.iter().find(|found| found.medium == medium)
}

/// Whether what is called NetACC was.
fn accelerated(report: &Report) -> bool {
    found(report, Medium::Netacc).is_some_and(|found| found.paths.accelerated())
}

pub(crate) fn text(report: &Report) -> String {
    let mut out = String::new();
    paragraph("", &format!("{}, redis {}", facts::line(&report.host), report.version), 4, &mut out);
    if let Some(far) = &report.far {
        paragraph("", &format!("redis-server: {}", netacc_tools::text::clean(far)), 4, &mut out);
    }
    paragraph("", &report.command, 4, &mut out);
    out.push('\n');
    let head = ["", "requests/s", "spread", "avg", "min", "p50", "p95", "p99", "max", "CPU"];
    let mut rows = vec![head.map(ToOwned::to_owned).to_vec()];
    rows.extend(report.sides.iter().map(row));
    rows.extend(ratios(report));
    out.push_str(&columns(&rows));
    if !accelerated(report) {
        out.push('\n');
        let why = found(report, Medium::Netacc).map_or_else(String::new, |found| why_not(&found.paths));
        paragraph("", &format!("NetACC: NOT ACCELERATED: {why}"), 2, &mut out);
    }
    out.push('\n');
    for note in notes(report) {
        paragraph("* ", &note, 2, &mut out);
    }
    out
}

fn row(found: &Found) -> Vec<String> {
    let mut row = vec![found.medium.name().to_owned()];
    for (place, (_, of)) in FIGURES.into_iter().enumerate() {
        let summary = summary(found, of);
        match place {
            0 => {
                row.push(rate(summary.map(|summary| summary.median)));
                row.push(percent(summary.and_then(|summary| summary.spread())));
            }
            7 => row.push(summary.map_or_else(|| "-".into(), |summary| microseconds(summary.median))),
            _ => row.push(summary.map_or_else(|| "-".into(), |summary| milliseconds(summary.median))),
        }
    }
    row
}

/// In at most five characters: the table has 80 columns, however slow the machine is.
fn milliseconds(value: f64) -> String {
    match value {
        value if value < 9.9995 => format!("{value:.3}"),
        value if value < 99.995 => format!("{value:.2}"),
        value if value < 9999.5 => format!("{value:.0}"),
        value => format!("{:.0}s", value / 1e3),
    }
}

fn microseconds(value: f64) -> String {
    if value < 99.995 { format!("{value:.2}") } else { format!("{value:.0}") }
}

/// Why connections that should have been accelerated were not, in a sentence.
fn why_not(paths: &Paths) -> String {
    match (&paths.obstacle, paths.reasons.keys().next()) {
        (Some(obstacle), _) => format!("{obstacle}."),
        (None, Some(reason)) => format!("{reason}: {}", sentence(reason)),
        (None, None) => "the connections are TCP's.".into(),
    }
}

/// How many times better NetACC is than each of the others.
fn ratios(report: &Report) -> Vec<Vec<String>> {
    let netacc = found(report, Medium::Netacc);
    let others = report.sides.iter().filter(|found| found.medium != Medium::Netacc);
    others.filter_map(|other| ratio_to(other, netacc?)).collect()
}

fn ratio_to(other: &Found, netacc: &Found) -> Option<Vec<String>> {
    let mut row = vec![format!("to {}", other.medium.name())];
    for (place, (_, of)) in FIGURES.into_iter().enumerate() {
        let (other, netacc) = (summary(other, of)?.median, summary(netacc, of)?.median);
        let (good, bad) = if place == 0 { (netacc, other) } else { (other, netacc) };
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
        format!(
            "times in ms, CPU: us of user and system time of {} for one request; to: how many times better NetACC is",
            if report.far.is_some() { "the client" } else { "server and client" }
        ),
        format!(
            "{}, all of them in turn, after one that does not count; spread: half the way from the lowest to the \
             highest round",
            if rounds == 1 { "one round".into() } else { format!("medians of {rounds} rounds") }
        ),
        match &report.far {
            Some(_) => "one server, with the settings that it was started with".to_owned(),
            None => "all servers: --protected-mode no --save '' --appendonly no; both ends are on this host".to_owned(),
        },
    ];
    notes.extend(coarse(report));
    if accelerated(report) {
        let paths = found(report, Medium::Netacc).map_or_else(Paths::default, |found| found.paths.clone());
        let (fast, all) = (paths.shm + paths.rdma, paths.shm + paths.rdma + paths.tcp);
        let whose = if report.far.is_some() { "client" } else { "server" };
        notes.push(format!(
            "accelerated, as the {whose}'s stats page says: {fast} of {all} connections, {}",
            paths.via()
        ));
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
            "name": found.medium.name(), "accelerated": paths.accelerated(), "why_not": paths.obstacle,
            "reasons": paths.reasons,
            "connections": { "shm": paths.shm, "rdma": paths.rdma, "tcp": paths.tcp },
            "metrics": metrics, "rounds": found.rounds,
        })
    };
    json!({
        "version": 1, "netacc_bench": env!("CARGO_PKG_VERSION"), "seconds": report.seconds, "host": report.host,
        "server": report.far,
        "redis": report.version, "command": report.command, "sides": report.sides.iter().map(side).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let side = |medium, scale, paths| Found { medium, rounds: vec![round(scale), round(scale * 1.1)], paths };
        Report {
            host: HostFacts { kernel: "6".into(), cpu: "x".into(), cores: 2, version: "1".into() },
            version: "7.0.15".into(),
            command: "redis-benchmark -h 127.0.0.1".into(),
            far: None,
            requests: 1_000_000,
            threads: 4,
            seconds: 3.0,
            sides: vec![
                side(Medium::Tcp, 1.0, Paths::default()),
                side(Medium::Unix, 0.5, Paths::default()),
                side(Medium::Netacc, 0.001, netacc),
            ],
        }
    }

    #[test]
    fn the_table_fits() {
        let shm = Paths { shm: 200, ..Paths::default() };
        let told = text(&report(shm));
        assert!(told.lines().all(|line| line.chars().count() <= 80), "{told}");
        assert!(told.contains("sees only every 0.25 s"), "{told}");
        assert!(told.contains("200 of 200 connections") && !told.contains("NOT ACCELERATED"), "{told}");
        let ratio = told.lines().find(|line| line.starts_with("to TCP")).unwrap();
        assert!(ratio.contains("1,000") && ratio.contains(" - "), "{told}");
    }

    #[test]
    fn what_was_not_accelerated_is_said() {
        let tcp = Paths { tcp: 5, shm: 5, ..Paths::default() };
        assert!(text(&report(tcp.clone())).contains("NOT ACCELERATED: the connections are TCP's."));
        assert_eq!(json(&report(tcp))["sides"][2]["accelerated"], false);
    }
}
