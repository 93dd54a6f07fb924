//! `-s cnt`: the counters.

use netacc_stats::reader::Snapshot;
use netacc_stats::{Counter, Kind, Reason};
use serde_json::{Map, Value, json};

use crate::reasons;
use crate::table::{Align, Table};

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

/// The reasons that occurred: number, name, how often.
fn fallbacks(page: &Snapshot) -> impl Iterator<Item = (Option<Reason>, String, u64)> {
    page.fallbacks.iter().zip(0u32..).filter(|(count, _)| **count != 0).map(|(count, number)| {
        let reason = Reason::from_u32(number);
        let name = reason.map_or_else(|| format!("?{number}"), |reason| reason.name().to_owned());
        (reason, name, *count)
    })
}

fn total(page: &Snapshot) -> u64 {
    page.fallbacks.iter().fold(0, |sum, count| sum.wrapping_add(*count))
}

/// Appends the counters as a table.
pub(crate) fn text(page: &Snapshot, out: &mut String) {
    let mut table = Table::new([("Counter", Align::Left), ("Value", Align::Right)]);
    for (name, value) in counters(page) {
        table.row([name, value.to_string()]);
    }
    table.row(["fallbacks".into(), total(page).to_string()]);
    for (_, name, count) in fallbacks(page) {
        table.row([format!("fallbacks.{name}"), count.to_string()]);
    }
    table.write(out);
    reasons::explain(fallbacks(page).filter_map(|(reason, ..)| reason), out);
}

/// The counters by name; `fallbacks` is an object with its total and the reasons.
pub(crate) fn json(page: &Snapshot) -> Value {
    let mut map: Map<String, Value> = counters(page).collect();
    let reasons: Map<String, Value> = fallbacks(page).map(|(_, name, count)| (name, json!(count))).collect();
    map.insert("fallbacks".into(), json!({ "total": total(page), "reasons": reasons }));
    map.into()
}
