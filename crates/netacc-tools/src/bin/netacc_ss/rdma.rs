//! What queue pairs have to tell beyond what every link has, and their devices.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use netacc_stats_reader::{QueuePair, Snapshot};
use netacc_tools::terminal::Style;
use serde_json::{Value, json};

use crate::qp::{Row, dash, expiry};
use netacc_tools::table::Align::{Left, Right};
use netacc_tools::table::Table;
use netacc_tools::time;

/// Where the kernel shows its RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";
/// What the counters of devices are called that tell of repeated messages: all that we know of drivers have one of
/// these in their names. A queue pair does not say how often it had to try again; the devices count that for all of
/// theirs.
const RETRIES: [&str; 6] = ["retry", "rnr", "timeout", "duplicate", "out_of_seq", "packet_seq"];

/// Appends a line for each queue pair, and what their devices counted.
pub(crate) fn text(rows: &[Row], now: u64, style: Style, out: &mut String) {
    let mut table = Table::new([
        ("QP", Right),
        ("Device", Left),
        ("Number", Right),
        ("Thread", Right),
        ("By", Left),
        ("Side", Left),
        ("Peer Address:Port", Left),
        ("Conns", Right),
        ("Room", Right),
        ("Ever", Right),
        ("Credits", Right),
        ("Posted", Right),
        ("Completed", Right),
        ("Received", Right),
        ("Age", Right),
        ("Idle", Right),
        ("Expires", Right),
        ("Bytes-In", Right),
        ("Bytes-Out", Right),
    ])
    .spare(&[
        "Number",
        "Thread",
        "Room",
        "Ever",
        "Bytes-In",
        "Bytes-Out",
        "Idle",
        "Side",
        "Received",
        "Completed",
        "Age",
    ]);
    for (row, qp) in rows.iter().filter_map(|row| Some((row, row.qp()?))) {
        table.row([
            row.id.to_string(),
            qp.device.to_string(),
            qp.number.to_string(),
            qp.thread.to_string(),
            row.kind.clone(),
            dash(row.side()),
            qp.peer.to_string(),
            row.connections().to_string(),
            dash(row.room()),
            dash(row.link.map(|link| link.ever)),
            format!("{}/{}", qp.credits, qp.receives),
            qp.posted.to_string(),
            qp.completed.to_string(),
            qp.received.to_string(),
            dash(row.age(now).map(time::span)),
            dash(row.idle(now).map(time::span)),
            expiry(row, now),
            row.bytes_in.to_string(),
            row.bytes_out.to_string(),
        ]);
    }
    table.write(style, out);
    devices_text(rows, style, out);
}

fn devices_text(rows: &[Row], style: Style, out: &mut String) {
    let names: BTreeSet<String> = rows.iter().filter_map(|row| Some(row.qp()?.device.to_string())).collect();
    let mut table = Table::new([("Device", Left), ("Retries of all its queue pairs", Left), ("Count", Right)]);
    for name in &names {
        match retries(Path::new(DEVICES), name) {
            None => table.row([name.clone(), "not known".into(), "-".into()]),
            Some(counts) => {
                let seen: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
                if seen.is_empty() {
                    table.row([name.clone(), "none".into(), "0".into()]);
                }
                for (counter, count) in seen {
                    table.row([name.clone(), counter, count.to_string()]);
                }
            }
        }
    }
    out.push('\n');
    table.write(style, out);
}

/// What only a queue pair has, as an object.
pub(crate) fn json(qp: QueuePair) -> Value {
    json!({
        "device": qp.device.to_string(),
        "number": qp.number,
        "thread": qp.thread,
        "peer": qp.peer.ip().map(|_| qp.peer.to_string()),
        "credits": qp.credits,
        "receives": qp.receives,
        "sends_posted": qp.posted,
        "sends_completed": qp.completed,
        "received": qp.received,
    })
}

/// The devices of a process' queue pairs, each with its counters of retries; null where it has none.
pub(crate) fn devices_json(page: &Snapshot) -> Value {
    devices(page).into_iter().map(|(name, retries)| json!({ "device": name, "retries": retries })).collect()
}

/// The devices that the queue pairs of a page use, with their counters where they can be read.
pub(crate) fn devices(page: &Snapshot) -> BTreeMap<String, Option<BTreeMap<String, u64>>> {
    let named = page.links.iter().filter_map(|link| Some(link.qp?.device.to_string()));
    named.map(|name| (name.clone(), retries(Path::new(DEVICES), &name))).collect()
}

/// The counters of retries of a device, of all its ports; `None` where its driver has none.
fn retries(devices: &Path, name: &str) -> Option<BTreeMap<String, u64>> {
    // The name comes from the process.
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return None;
    }
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for port in fs::read_dir(devices.join(name).join("ports")).ok()?.flatten() {
        let counters = fs::read_dir(port.path().join("hw_counters")).into_iter().flatten().flatten();
        for file in counters {
            let counter = file.file_name().to_string_lossy().into_owned();
            if !RETRIES.iter().any(|word| counter.contains(word)) {
                continue;
            }
            let count = fs::read_to_string(file.path()).ok().and_then(|text| text.trim().parse::<u64>().ok());
            if let Some(count) = count {
                let sum = sums.entry(counter).or_default();
                *sum = sum.wrapping_add(count);
            }
        }
    }
    (!sums.is_empty()).then_some(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_summed_over_ports() {
        let root = std::env::temp_dir().join(format!("netacc-ss-devices-{}", std::process::id()));
        for (port, counter, text) in
            [("1", "rnr_nak_retry_err", "2\n"), ("2", "rnr_nak_retry_err", "3\n"), ("1", "sent_pkts", "9\n")]
        {
            let folder = root.join("mlx5_0/ports").join(port).join("hw_counters");
            fs::create_dir_all(&folder).expect("a folder");
            fs::write(folder.join(counter), text).expect("a counter");
        }
        let found = retries(&root, "mlx5_0").expect("counters");
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [("rnr_nak_retry_err".to_owned(), 5)]);
        for name in ["mlx5_1", "", "..", "a/b"] {
            assert_eq!(retries(&root, name), None, "{name}");
        }
        fs::remove_dir_all(&root).expect("removed");
    }
}
