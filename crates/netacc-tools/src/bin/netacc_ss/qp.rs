//! `-s qp`: queue pairs and links to other processes, and what runs over them.

use std::collections::BTreeMap;

use netacc_stats::Counter;
use netacc_stats_reader::{Link, QueuePair, Snapshot};
use netacc_tools::terminal::Style;
use netacc_tools::time;
use serde_json::{Value, json};

use crate::{rdma, sock};
use netacc_tools::table::Align::{Left, Right};
use netacc_tools::table::Table;

/// What is known of one of them, whatever it is made of: [`Link::kind`] names that.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) id: u64,
    pub(crate) kind: String,
    pub(crate) peer_pid: u32,
    /// Of its open sockets, as far as they are shown.
    pub(crate) sockets: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    /// `None`: it came over a fork, or there was no room for its entry; then only its sockets tell of it.
    pub(crate) link: Option<Link>,
}

impl Row {
    /// What only a queue pair has.
    pub(crate) fn qp(&self) -> Option<QueuePair> {
        self.link?.qp
    }

    /// Connections on it now.
    pub(crate) fn connections(&self) -> u64 {
        self.link.map_or(self.sockets, |link| u64::from(link.in_use))
    }

    /// For how long it has had no connection.
    pub(crate) fn idle(&self, now: u64) -> Option<u64> {
        self.link.filter(|link| link.in_use == 0).map(|link| now.saturating_sub(link.idle_ns))
    }

    /// When it ends if it stays idle; `None`: never, or it is in use.
    pub(crate) fn expires(&self, now: u64) -> Option<u64> {
        self.link
            .filter(|link| link.in_use == 0 && link.expires_ns != 0)
            .map(|link| link.expires_ns.saturating_sub(now))
    }

    pub(crate) fn age(&self, now: u64) -> Option<u64> {
        self.link.map(|link| now.saturating_sub(link.opened_ns))
    }

    /// Which end of it the process is.
    pub(crate) fn side(&self) -> Option<&'static str> {
        self.link.map(|link| if link.server { "server" } else { "client" })
    }

    /// The connections that there is room for; `None`: not known, or for the other side to say.
    pub(crate) fn room(&self) -> Option<u32> {
        self.link.map(|link| link.capacity).filter(|room| *room != 0)
    }
}

/// All of them, by number.
pub(crate) fn rows(page: &Snapshot) -> Vec<Row> {
    let row = |link: &Link| Row {
        id: link.id.into(),
        kind: link.kind.to_string(),
        peer_pid: link.peer_pid,
        sockets: 0,
        bytes_in: 0,
        bytes_out: 0,
        link: Some(*link),
    };
    let mut rows: BTreeMap<u64, Row> = page.links.iter().map(|link| (link.id.into(), row(link))).collect();
    for sock in page.socks.iter().filter(|sock| sock.link != 0) {
        let row = rows.entry(sock.link).or_insert_with(|| Row {
            id: sock.link,
            kind: sock.transport.to_string(),
            peer_pid: 0,
            sockets: 0,
            bytes_in: 0,
            bytes_out: 0,
            link: None,
        });
        // The socket's number is newer, since a server may introduce itself after the link was made.
        if sock.peer_pid != 0 {
            row.peer_pid = sock.peer_pid;
        }
        row.sockets += 1;
        row.bytes_in = row.bytes_in.wrapping_add(sock.bytes_in);
        row.bytes_out = row.bytes_out.wrapping_add(sock.bytes_out);
    }
    rows.into_values().collect()
}

/// How many are open.
pub(crate) fn open(page: &Snapshot) -> i64 {
    let [opened, closed, lost] =
        [Counter::LinksOpened, Counter::LinksClosed, Counter::LinksLost].map(|c| page.counter(c).cast_signed());
    // The three are read one after the other, so the difference may be off for a moment.
    opened.wrapping_sub(closed).wrapping_sub(lost).max(0)
}

/// Names and values of the counters about links.
fn counts(page: &Snapshot) -> impl Iterator<Item = (&'static str, i64)> {
    let all = [Counter::LinksOpened, Counter::LinksClosed, Counter::LinksLost, Counter::SlotsInUse];
    let values = all.map(|counter| (counter.name(), page.counter(counter).cast_signed()));
    [("links_open", open(page))].into_iter().chain(values)
}

/// How long until it ends for want of use, in words.
pub(crate) fn expiry(row: &Row, now: u64) -> String {
    match (row.idle(now), row.expires(now)) {
        (None, _) => "-".into(),
        (Some(_), None) => "never".into(),
        (Some(_), Some(left)) => time::span(left),
    }
}

pub(crate) fn dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

/// Appends the counters, and a line for each link.
pub(crate) fn text(page: &Snapshot, now: u64, style: Style, out: &mut String) {
    let mut table = Table::new([("Counter", Left), ("Value", Right)]);
    for (name, value) in counts(page) {
        table.row([name.into(), value.to_string()]);
    }
    table.write(style, out);
    let (pairs, links): (Vec<Row>, Vec<Row>) = rows(page).into_iter().partition(|row| row.qp().is_some());
    if !pairs.is_empty() {
        out.push('\n');
        rdma::text(&pairs, now, style, out);
    }
    if links.is_empty() {
        return;
    }
    out.push('\n');
    let mut table = Table::new([
        ("QP", Right),
        ("Kind", Left),
        ("Side", Left),
        ("Peer-Pid", Right),
        ("Conns", Right),
        ("Room", Right),
        ("Ever", Right),
        ("Age", Right),
        ("Idle", Right),
        ("Expires", Right),
        ("Bytes-In", Right),
        ("Bytes-Out", Right),
    ])
    .spare(&["Room", "Expires", "Side", "Ever"]);
    for row in links {
        let expires = expiry(&row, now);
        table.row([
            row.id.to_string(),
            row.kind.clone(),
            dash(row.side()),
            sock::pid(row.peer_pid),
            row.connections().to_string(),
            dash(row.room()),
            dash(row.link.map(|link| link.ever)),
            dash(row.age(now).map(time::span)),
            dash(row.idle(now).map(time::span)),
            expires,
            row.bytes_in.to_string(),
            row.bytes_out.to_string(),
        ]);
    }
    table.write(style, out);
}

/// The same as an object.
pub(crate) fn json(page: &Snapshot, now: u64) -> Value {
    let links: Vec<Value> = rows(page)
        .into_iter()
        .map(|row| {
            json!({
                "link": row.id,
                "transport": row.kind,
                "side": row.side(),
                "peer_pid": (row.peer_pid != 0).then_some(row.peer_pid),
                "connections": row.connections(),
                "capacity": row.room(),
                "ever": row.link.map(|link| link.ever),
                "since": row.link.map(|link| time::utc(link.opened_ns)),
                "age_seconds": row.age(now).map(time::seconds),
                "idle_seconds": row.idle(now).map(time::seconds),
                "expires_seconds": row.expires(now).map(time::seconds),
                "sockets": row.sockets,
                "bytes_in": row.bytes_in,
                "bytes_out": row.bytes_out,
                "queue_pair": row.qp().map(rdma::json),
            })
        })
        .collect();
    let mut value: serde_json::Map<String, Value> =
        counts(page).map(|(name, count)| (name.to_owned(), json!(count))).collect();
    value.insert("links".into(), links.into());
    value.insert("devices".into(), rdma::devices_json(page));
    value.into()
}
