//! Tests of the tables.

use super::*;
use crate::client::measured;
use crate::results::{Sample, Settings};
use netacc_tools::bench_wire::{HostFacts, Waiting};

pub(crate) fn results(workload: Workload, cells: &[(Ends, f64, Paths)]) -> Results {
    let cells = cells
        .iter()
        .map(|(ends, average, paths)| {
            let sample = |factor: f64| Sample { client: measured(average * factor, paths.clone()), server_cpu_ns: 7 };
            Cell { samples: vec![sample(1.0), sample(1.1)], discarded: Some(sample(3.0)), ..Cell::new(*ends) }
        })
        .collect();
    Results {
        settings: Settings {
            seconds: 1.0,
            rounds: 2,
            size: 64,
            waiting: Waiting::Usual,
            block: 131_072,
            verify: false,
            clients: 50,
            idle: 0,
            request: 64,
            reply: 512,
            trips: 100,
            per_day: 1_000_000,
        },
        client: HostFacts { kernel: "6.1".into(), cpu: "A processor".into(), cores: 2, version: "1".into() },
        server: HostFacts { kernel: "6.1\x1b[31m".into(), cpu: "x ".repeat(90), cores: 1, version: "1".into() },
        host: "other".into(),
        address: "10.0.0.2:5220".into(),
        server_obstacle: None,
        started_unix: 0,
        seconds: 9.0,
        parts: vec![Part { workload, cells }],
        baseline: None,
    }
}

fn unfolded(results: &Results) -> String {
    text(results).split_whitespace().collect::<Vec<_>>().join(" ")
}

fn tcp(reason: &str) -> Paths {
    Paths { reasons: [(reason.to_owned(), 2)].into(), ..Paths::plain(2) }
}

fn shm() -> Paths {
    Paths { shm: 2, ..Paths::default() }
}

#[test]
fn eighty_columns_whatever_was_measured() {
    for workload in [Workload::RoundTrip, Workload::Stream, Workload::Connect, Workload::Requests] {
        for scale in [0.001, 1.0, 99_999.6, 5e8] {
            let mixed = Paths { shm: 1, ..tcp("other-host") };
            let mut results = results(
                workload,
                &[
                    (Ends::Plain, 20.0 * scale, Paths::plain(1)),
                    (Ends::Client, 21.0 * scale, tcp("peer-plain")),
                    (Ends::Server, 0.01, Paths::plain(1)),
                    (Ends::Both, scale, mixed),
                ],
            );
            results.baseline = Some(Baseline::Not("no ".repeat(60)));
            let text = text(&results);
            let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
            assert!(wide.is_empty(), "{wide:#?}");
            assert!(!text.contains('\x1b'), "a foreign name moves no cursor");
        }
    }
}

#[test]
fn what_was_not_accelerated_is_said() {
    let cells = [
        (Ends::Plain, 20.0, Paths::plain(1)),
        (Ends::Client, 20.0, tcp("peer-plain")),
        (Ends::Server, 20.0, Paths::plain(1)),
        (Ends::Both, 20.0, tcp("other-host")),
    ];
    let told = unfolded(&results(Workload::RoundTrip, &cells));
    for said in [
        "client only, server only: not accelerated: NetACC is at one end only.",
        "both ends: not accelerated: other-host: The other end is on another host",
        "Nothing to be gained was found",
    ] {
        assert!(told.contains(said), "{said}: {told}");
    }
    let mut lame = results(Workload::RoundTrip, &[(Ends::Both, 20.0, tcp("peer-plain"))]);
    lame.server_obstacle = Some("there is no library".into());
    assert!(text(&lame).contains("not accelerated: at the server's end there is no library."));
}

#[test]
fn a_loss_is_told_as_one() {
    let cells = [(Ends::Plain, 2.0, Paths::plain(1)), (Ends::Both, 20.0, shm())];
    let told = unfolded(&self::results(Workload::RoundTrip, &cells));
    assert!(told.contains("0.10 times the round trips, 10.0 times longer at p99, 10.0 times more CPU."), "{told}");
}

#[test]
fn gains_are_ratios_of_the_medians() {
    let cells = [(Ends::Plain, 20.0, Paths::plain(1)), (Ends::Both, 2.0, shm())];
    let results = results(Workload::RoundTrip, &cells);
    let told = unfolded(&results);
    assert!(told.contains("10.0 times the round trips, 10.0 times shorter at p99, 10.0 times less CPU."), "{told}");
    assert!(!told.contains("not accelerated:"), "{told}");
    assert!(told.contains("gets 1.89 ms shorter"), "{told}");
    let json = crate::json::value(&results);
    let both = &json["workloads"][0]["ends"][1];
    assert_eq!(
        (both["name"].as_str(), both["via"].as_str(), both["accelerated"].as_bool()),
        (Some("both"), Some("shm"), Some(true))
    );
    assert_eq!(both["rounds"].as_array().map(Vec::len), Some(3), "with the one that does not count");
    assert_eq!(both["rounds"][0]["counts"], false);
    assert_eq!(both["metrics"]["average_us"]["min"], 2.0);
}
