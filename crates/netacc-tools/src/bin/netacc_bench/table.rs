//! The results as text of at most 80 columns.

use std::fmt::Write;

use netacc_tools::columns::{self, Align};

use crate::args::{Ends, Workload};
use crate::conclusion::Conclusion;
use crate::facts;
use crate::page::Paths;
use crate::ping::Baseline;
use crate::results::{Cell, Metric, Part, Results, title};
use crate::stats::{Summary, percent, rate, time, times};
use crate::worker::Latency;

const WIDTH: usize = 80;

pub(crate) fn text(results: &Results) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "client: {}", facts::line(&results.client));
    let _ = writeln!(out, "server: {} ({}), {}", results.host, results.address, facts::line(&results.server));
    let mut out = fold_lines(&out);
    for part in &results.parts {
        let _ = write!(out, "\n{}\n", title(part.workload, &results.settings));
        out.push_str(&columns(&rows(part, results)));
        notes(part, results, &mut out);
    }
    if let Some(Baseline::Not(why)) = &results.baseline {
        out.push('\n');
        paragraph("", &format!("ICMP echo was not measured: {why}."), 0, &mut out);
    }
    if let Some(conclusion) = Conclusion::of(results) {
        out.push('\n');
        for sentence in conclusion.text() {
            paragraph("", &sentence, 0, &mut out);
        }
    }
    out.push('\n');
    for note in how(results) {
        paragraph("* ", &note, 2, &mut out);
    }
    out
}

fn rows(part: &Part, results: &Results) -> Vec<Vec<String>> {
    let stream = part.workload == Workload::Stream;
    let head: &[&str] = if stream {
        &["", "via", "MB/s", "spread", "CPU us/MB", "client", "server"]
    } else {
        &["", "via", "per s", "spread", "avg", "p50", "p99", "p99.9", "max", "CPU"]
    };
    let mut rows: Vec<Vec<String>> = vec![head.iter().map(|text| (*text).to_owned()).collect()];
    rows.extend(part.cells.iter().map(|cell| row(cell, part.workload, stream)));
    if let (Workload::RoundTrip, Some(baseline @ Baseline::Measured(_))) = (part.workload, &results.baseline) {
        rows.push(ping_row(baseline));
    }
    rows
}

fn row(cell: &Cell, workload: Workload, stream: bool) -> Vec<String> {
    let paths = cell.paths();
    let via = if cell.samples.is_empty() { "-" } else { paths.via() };
    let value = |metric| cell.shown(metric, workload);
    let spread = cell.summary(Metric::Rate, workload).and_then(|summary| summary.spread());
    let mut row = vec![cell.ends.title().into(), via.into(), rate(value(Metric::Rate)), percent(spread)];
    let times: &[Metric] = if stream {
        &[Metric::Cpu, Metric::CpuClient, Metric::CpuServer]
    } else {
        &[Metric::Average, Metric::P50, Metric::P99, Metric::P999, Metric::Max, Metric::Cpu]
    };
    row.extend(times.iter().map(|metric| time(value(*metric))));
    row
}

fn ping_row(baseline: &Baseline) -> Vec<String> {
    let of = |value: fn(&Latency) -> f64| baseline.summary(value);
    let average = of(|latency| latency.average);
    let median = |summary: Option<Summary>| time(summary.map(|summary| summary.median));
    vec![
        "ICMP echo".into(),
        "-".into(),
        rate(average.map(|summary| 1e6 / summary.median)),
        percent(average.and_then(|summary| summary.spread())),
        median(average),
        median(of(|latency| latency.p50 as f64)),
        median(of(|latency| latency.p99 as f64)),
        median(of(|latency| latency.p999 as f64)),
        time(of(|latency| latency.max as f64).map(|summary| summary.max)),
        "-".into(),
    ]
}

/// Text to the left in the first column, everything else to the right.
pub(crate) fn columns(rows: &[Vec<String>]) -> String {
    let lines = columns::lines(rows, |column| if column == 0 { Align::Left } else { Align::Right });
    lines.into_iter().flat_map(|line| [line, "\n".into()]).collect()
}

/// What the rows mean: how much better, and what was not accelerated, and why.
fn notes(part: &Part, results: &Results, out: &mut String) {
    if let Some(text) = gain(part) {
        paragraph("  ", &text, 2, out);
    }
    // Several cells for one reason are one note.
    let mut plain: Vec<(Vec<&str>, String)> = Vec::new();
    for cell in part.cells.iter().filter(|cell| cell.ends != Ends::Plain) {
        if let Some(why) = results.why_not(cell) {
            let text = format!("{}: {why}", what_was(&cell.paths()));
            match plain.iter_mut().find(|(_, other)| *other == text) {
                Some((cells, _)) => cells.push(cell.ends.title()),
                None => plain.push((vec![cell.ends.title()], text)),
            }
        }
    }
    for (cells, text) in plain {
        paragraph("  ", &format!("{}: {text}.", cells.join(", ")), 2, out);
    }
    for cell in &part.cells {
        if let Some(error) = &cell.error {
            paragraph("  ", &format!("{}: FAILED: {error}", cell.ends.title()), 2, out);
        }
    }
}

fn what_was(paths: &Paths) -> String {
    if paths.via() == "mixed" {
        let all = paths.shm + paths.rdma + paths.tcp;
        return format!("{} of {all} connections were not accelerated", paths.tcp);
    }
    "not accelerated".into()
}

/// Both ends accelerated against none.
pub(crate) fn gain(part: &Part) -> Option<String> {
    let (plain, both) = (part.cell(Ends::Plain)?, part.cell(Ends::Both)?);
    let pair = |metric| {
        let (plain, both) = (plain.shown(metric, part.workload)?, both.shown(metric, part.workload)?);
        (plain > 0.0 && both > 0.0).then_some((plain, both))
    };
    // What should be small: how many times less, or more.
    let saved = |metric, less: &str, more: &str| {
        let (plain, both) = pair(metric)?;
        Some(if both <= plain {
            format!("{} times {less}", times(plain / both))
        } else {
            format!("{} times {more}", times(both / plain))
        })
    };
    let rate = pair(Metric::Rate).map(|(plain, both)| times(both / plain))?;
    let cpu = saved(Metric::Cpu, "less CPU", "more CPU")?;
    Some(match part.workload {
        Workload::Stream => {
            format!("both ends against both plain: {rate} times the bytes a second, {cpu} for each.")
        }
        workload => {
            let what = match workload {
                Workload::Connect => "the connections",
                Workload::Requests => "the requests",
                _ => "the round trips",
            };
            let p99 = saved(Metric::P99, "shorter", "longer")?;
            format!("both ends against both plain: {rate} times {what}, {p99} at p99, {cpu}.")
        }
    })
}

/// How it was measured.
fn how(results: &Results) -> Vec<String> {
    let settings = &results.settings;
    let rounds =
        if settings.rounds == 1 { "one round".into() } else { format!("medians of {} rounds", settings.rounds) };
    let times = "times in us (ms, s where it says so); CPU: user and system time of both measuring processes for one \
                 operation; what the kernel does in interrupts is not in it";
    let medians = format!(
        "{rounds} of {} s, the cells in turn, after one that does not count; max: of all rounds; spread: half \
         the way from the lowest to the highest round",
        settings.seconds
    );
    vec![
        times.into(),
        medians,
        "via: what carried the connections, as the stats page of the client's process says".into(),
    ]
}

fn fold_lines(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        paragraph("", line, 8, &mut out);
    }
    out
}

/// Folds a text; further lines are indented.
pub(crate) fn paragraph(head: &str, text: &str, indent: usize, out: &mut String) {
    out.push_str(head);
    let mut used = head.chars().count();
    let mut fresh = true;
    for word in text.split(' ') {
        let length = word.chars().count();
        if !fresh && used + 1 + length > WIDTH {
            let _ = write!(out, "\n{:indent$}", "");
            (used, fresh) = (indent, true);
        }
        if !fresh {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += length;
        fresh = false;
    }
    out.push('\n');
}

#[cfg(test)]
#[path = "table_tests.rs"]
pub(crate) mod tests;
