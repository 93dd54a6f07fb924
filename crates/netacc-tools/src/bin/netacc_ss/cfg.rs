//! `-s cfg`: the configuration in effect.

use netacc_stats_reader::Snapshot;
use netacc_tools::terminal::Style;
use serde_json::{Value, json};

use netacc_tools::table::{Align, Table};

/// Appends the configuration as a table.
pub(crate) fn text(page: &Snapshot, style: Style, out: &mut String) {
    let mut table = Table::new([("Key", Align::Left), ("Value", Align::Left), ("Source", Align::Left)]);
    for line in &page.cfg {
        let value = if line.value.is_empty() { "\"\"" } else { &line.value };
        table.row([line.key.clone(), value.to_owned(), line.source.clone()]);
    }
    table.write(style, out);
}

/// The configuration as a list.
pub(crate) fn json(page: &Snapshot) -> Value {
    let lines = page.cfg.iter();
    lines.map(|line| json!({ "key": line.key, "value": line.value, "source": line.source })).collect()
}
