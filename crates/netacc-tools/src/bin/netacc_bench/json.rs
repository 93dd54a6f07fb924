//! The results for programs. Names stay; further ones may come.

use serde_json::{Map, Value, json};

use crate::args::Workload;
use crate::conclusion::Conclusion;
use crate::ping::Baseline;
use crate::results::{Cell, Metric, Part, Results, Sample};

pub(crate) fn value(results: &Results) -> Value {
    let settings = &results.settings;
    json!({
        "version": 1,
        "netacc_bench": env!("CARGO_PKG_VERSION"),
        "started_unix": results.started_unix,
        "seconds": results.seconds,
        "client": results.client,
        "server": {
            "host": results.host, "address": results.address, "facts": results.server,
            "obstacle": results.server_obstacle,
        },
        "settings": {
            "seconds": settings.seconds, "rounds": settings.rounds, "discarded_rounds": 1, "size": settings.size,
            "wait": settings.waiting, "block": settings.block, "verify": settings.verify, "clients": settings.clients,
            "idle": settings.idle, "request": settings.request, "reply": settings.reply,
        },
        "workloads": results.parts.iter().map(|part| workload(part, results)).collect::<Vec<Value>>(),
        "icmp_echo": results.baseline.as_ref().map(icmp),
        "conclusion": Conclusion::of(results).map(|conclusion| conclusion.json()),
    })
}

fn workload(part: &Part, results: &Results) -> Value {
    let per = if part.workload == Workload::Stream { "million bytes" } else { "operation" };
    let cells: Vec<Value> = part.cells.iter().map(|one| cell(one, part.workload, results)).collect();
    json!({ "name": part.workload.name(), "per": per, "ends": cells })
}

fn cell(cell: &Cell, workload: Workload, results: &Results) -> Value {
    let paths = cell.paths();
    let metrics: Map<String, Value> = Metric::NAMED
        .into_iter()
        .filter_map(|(metric, name)| {
            let summary = cell.summary(metric, workload)?;
            let (median, min, max, spread) = (summary.median, summary.min, summary.max, summary.spread());
            Some((name.into(), json!({ "median": median, "min": min, "max": max, "spread": spread })))
        })
        .collect();
    let counted = cell.samples.iter().zip(1_u32..).map(|(sample, round)| (round, sample));
    let rounds: Vec<Value> =
        cell.discarded.iter().map(|sample| (0, sample)).chain(counted).map(|(n, s)| round(n, s, workload)).collect();
    json!({
        "name": cell.ends.name(), "client": cell.ends.client(), "server": cell.ends.server(),
        "accelerated": paths.accelerated(), "via": paths.via().to_lowercase(), "why_not": results.why_not(cell),
        "connections": { "shm": paths.shm, "rdma": paths.rdma, "tcp": paths.tcp, "reasons": paths.reasons },
        "error": cell.error, "metrics": metrics, "rounds": rounds,
    })
}

fn round(number: u32, sample: &Sample, workload: Workload) -> Value {
    let mut values: Map<String, Value> = Metric::NAMED
        .into_iter()
        .filter_map(|(metric, name)| Some((name.into(), json!(sample.value(metric, workload)?))))
        .collect();
    values.insert("round".into(), json!(number));
    values.insert("counts".into(), json!(number > 0));
    values.insert("operations".into(), json!(sample.client.operations));
    values.insert("seconds".into(), json!(sample.client.seconds));
    let paths = &sample.client.paths;
    values.insert("connections".into(), json!({ "shm": paths.shm, "rdma": paths.rdma, "tcp": paths.tcp }));
    values.into()
}

fn icmp(baseline: &Baseline) -> Value {
    let median = |of: fn(&crate::worker::Latency) -> f64| baseline.summary(of).map(|summary| summary.median);
    let average = baseline.summary(|latency| latency.average);
    match baseline {
        Baseline::Not(why) => json!({ "measured": false, "why_not": why }),
        Baseline::Measured(_) => json!({
            "measured": true, "average_us": average, "spread": average.and_then(|summary| summary.spread()),
            "p50_us": median(|l| l.p50 as f64), "p99_us": median(|l| l.p99 as f64),
            "p99_9_us": median(|l| l.p999 as f64),
            "max_us": baseline.summary(|l| l.max as f64).map(|summary| summary.max),
        }),
    }
}
