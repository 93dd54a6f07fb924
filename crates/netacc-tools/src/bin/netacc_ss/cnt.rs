//! `-s cnt`: the counters.

use netacc_stats::{Counter, Kind, Reason};
use netacc_stats_reader::{Snapshot, Volume};
use netacc_tools::terminal::Style;
use serde_json::{Map, Value, json};

use crate::reasons;
use netacc_tools::table::{Align, Table};

/// Names and values in the order of the page. A gauge that was read between its
/// ups and downs may be below zero.
fn counters(page: &Snapshot) -> impl Iterator<Item = (String, Value)> {
    page.counters.iter().enumerate().map(|(slot, value)| match Counter::ALL.get(slot) {
        Some(counter) if counter.kind() == Kind::Gauge => (counter.name().to_owned(), json!(value.cast_signed())),
        Some(counter) => (counter.name().to_owned(), json!(value)),
        // Counted by a newer library.
        None => (format!("counter_{slot}"), json!(value)),
    })
}

/// A sum over reasons by name.
pub(crate) fn total(counts: &[u64]) -> u64 {
    counts.iter().fold(0, |sum, count| sum.wrapping_add(*count))
}

/// How many system calls the program would have made beyond those that NetACC made for it: messages and epoll_waits
/// without the kernel, less sleeps, doorbells and looks at other descriptors. A lower bound: calls that found nothing
/// are not counted as avoided.
pub(crate) fn avoided(page: &Snapshot) -> u64 {
    let fast = page.moved.shm.plus(page.moved.rdma);
    let calls = fast.msgs_in.wrapping_add(fast.msgs_out).wrapping_add(page.counter(Counter::EpollWaits));
    let made = [Counter::Sleeps, Counter::Doorbells, Counter::KernelPolls].map(|counter| page.counter(counter));
    calls.saturating_sub(total(&made))
}

/// What each transport moved, by the name it has in metrics.
pub(crate) fn moved(page: &Snapshot) -> [(&'static str, Volume); 3] {
    [("tcp", page.moved.tcp), ("shm", page.moved.shm), ("rdma", page.moved.rdma)]
}

/// The names of the four figures of a volume.
pub(crate) fn figures(volume: Volume) -> [(&'static str, u64); 4] {
    [
        ("msgs_in", volume.msgs_in),
        ("bytes_in", volume.bytes_in),
        ("msgs_out", volume.msgs_out),
        ("bytes_out", volume.bytes_out),
    ]
}

/// Appends the counters as a table.
pub(crate) fn text(page: &Snapshot, style: Style, out: &mut String) {
    let mut table = Table::new([("Counter", Align::Left), ("Value", Align::Right)]);
    for (name, value) in counters(page) {
        table.row([name, value.to_string()]);
    }
    table.row(["syscalls_avoided".into(), avoided(page).to_string()]);
    for (transport, volume) in moved(page).into_iter().filter(|(_, volume)| *volume != Volume::default()) {
        for (name, value) in figures(volume) {
            table.row([format!("{transport}.{name}"), value.to_string()]);
        }
    }
    for (what, counts) in [("promotions", &page.promotions), ("demotions", &page.demotions)] {
        for (number, count) in reasons::occurred(counts) {
            table.row([format!("{what}.{}", reasons::name(number)), count.to_string()]);
        }
    }
    for (rule, count) in page.rules() {
        table.row([format!("rules.{}", rule.source), count.to_string()]);
    }
    table.row(["fallbacks".into(), total(&page.fallbacks).to_string()]);
    for (number, count) in reasons::occurred(&page.fallbacks) {
        table.row([format!("fallbacks.{}", reasons::name(number)), count.to_string()]);
    }
    table.write(style, out);
    let shown = reasons::occurred(&page.fallbacks).chain(reasons::occurred(&page.demotions));
    reasons::explain(shown.filter_map(|(number, _)| Reason::from_u32(number)), style, out);
}

fn by_reason(counts: &[u64]) -> Value {
    let reasons: Map<String, Value> =
        reasons::occurred(counts).map(|(number, count)| (reasons::name(number), json!(count))).collect();
    json!({ "total": total(counts), "reasons": reasons })
}

/// The counters by name; what has reasons is an object with its total and the reasons, except that `promotions` and
/// `demotions` are numbers and have their reasons beside them.
pub(crate) fn json(page: &Snapshot) -> Value {
    let mut map: Map<String, Value> = counters(page).collect();
    map.insert("syscalls_avoided".into(), avoided(page).into());
    let volume = |volume| figures(volume).map(|(name, value)| (name.to_owned(), json!(value)));
    let moved: Map<String, Value> =
        moved(page).into_iter().map(|(name, moved)| (name.into(), Map::from_iter(volume(moved)).into())).collect();
    map.insert("moved".into(), moved.into());
    let rules =
        page.rules().map(|(rule, count)| json!({ "rule": rule.value, "source": rule.source, "decided": count }));
    map.insert("rules".into(), rules.collect());
    map.insert("promotion_reasons".into(), by_reason(&page.promotions));
    map.insert("demotion_reasons".into(), by_reason(&page.demotions));
    map.insert("fallbacks".into(), by_reason(&page.fallbacks));
    map.into()
}
