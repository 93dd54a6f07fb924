//! `-s qp`: the links to other processes, and what runs over them.

use std::collections::BTreeMap;

use netacc_stats::Counter;
use netacc_stats::reader::Snapshot;
use serde_json::{Value, json};

use crate::sock;
use crate::table::Align::{Left, Right};
use crate::table::Table;

/// What the open sockets of one link add up to.
#[derive(Default)]
struct Link {
    transport: String,
    peer_pid: u32,
    sockets: u64,
    bytes_in: u64,
    bytes_out: u64,
}

fn links(page: &Snapshot) -> BTreeMap<u64, Link> {
    let mut links: BTreeMap<u64, Link> = BTreeMap::new();
    for sock in page.socks.iter().filter(|sock| sock.link != 0) {
        let link = links.entry(sock.link).or_default();
        link.transport = sock.transport.to_string();
        link.peer_pid = sock.peer_pid;
        link.sockets += 1;
        link.bytes_in = link.bytes_in.wrapping_add(sock.bytes_in);
        link.bytes_out = link.bytes_out.wrapping_add(sock.bytes_out);
    }
    links
}

/// Names and values of the counters about links.
fn counts(page: &Snapshot) -> [(&'static str, i64); 5] {
    let value = |counter| page.counter(counter).cast_signed();
    let [opened, closed, lost, slots] =
        [Counter::LinksOpened, Counter::LinksClosed, Counter::LinksLost, Counter::SlotsInUse].map(value);
    [
        // The three are read one after the other, so the difference may be off for a moment.
        ("links_open", opened.wrapping_sub(closed).wrapping_sub(lost).max(0)),
        (Counter::LinksOpened.name(), opened),
        (Counter::LinksClosed.name(), closed),
        (Counter::LinksLost.name(), lost),
        (Counter::SlotsInUse.name(), slots),
    ]
}

/// Appends the counters, and the links that carry open sockets.
pub(crate) fn text(page: &Snapshot, out: &mut String) {
    let mut table = Table::new([("Counter", Left), ("Value", Right)]);
    for (name, value) in counts(page) {
        table.row([name.into(), value.to_string()]);
    }
    table.write(out);
    let links = links(page);
    if links.is_empty() {
        return;
    }
    out.push('\n');
    let mut table = Table::new([
        ("Link", Right),
        ("Transport", Left),
        ("Peer-Pid", Right),
        ("Sockets", Right),
        ("Bytes-In", Right),
        ("Bytes-Out", Right),
    ]);
    for (id, link) in links {
        table.row([
            id.to_string(),
            link.transport,
            sock::pid(link.peer_pid),
            link.sockets.to_string(),
            link.bytes_in.to_string(),
            link.bytes_out.to_string(),
        ]);
    }
    table.write(out);
}

/// The same as an object.
pub(crate) fn json(page: &Snapshot) -> Value {
    let links: Vec<Value> = links(page)
        .into_iter()
        .map(|(id, link)| {
            json!({
                "link": id,
                "transport": link.transport,
                "peer_pid": (link.peer_pid != 0).then_some(link.peer_pid),
                "sockets": link.sockets,
                "bytes_in": link.bytes_in,
                "bytes_out": link.bytes_out,
            })
        })
        .collect();
    let mut value: serde_json::Map<String, Value> =
        counts(page).into_iter().map(|(name, count)| (name.to_owned(), json!(count))).collect();
    value.insert("links".into(), links.into());
    value.into()
}
