//! What changed between two looks, per second.

use netacc_stats::{Counter, Kind};
use netacc_stats_reader::{Snapshot, Sock, Volume};
use netacc_tools::filter::Filter;
use netacc_tools::terminal::Style;
use netacc_tools::time;
use serde_json::{Map, Value};

use super::Round;
use crate::args::Group;
use crate::list::Summary;
use crate::show::Seen;
use crate::{cfg, cnt, qp, reasons, sock};
use netacc_tools::table::Align::{Left, Right};
use netacc_tools::table::Table;

/// Which column of the overview the processes are sorted by, largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sort {
    column: usize,
    pub(super) reverse: bool,
}

/// The titles of the overview that it can be sorted by.
const COLUMNS: [&str; 8] =
    ["Pid", "Conns", "Conns/s", "Msgs-In/s", "Bytes-In/s", "Msgs-Out/s", "Bytes-Out/s", "Sleeps/s"];

impl Default for Sort {
    fn default() -> Self {
        Self { column: 0, reverse: true }
    }
}

impl Sort {
    pub(super) fn title(self) -> &'static str {
        COLUMNS.get(self.column).copied().unwrap_or_default()
    }

    /// The next column, or the one before.
    pub(super) fn step(&mut self, forwards: bool) {
        let step = if forwards { 1 } else { COLUMNS.len() - 1 };
        self.column = (self.column + step) % COLUMNS.len();
        // Numbers of processes rise, of all others the largest matters.
        self.reverse = self.column == 0;
    }
}

/// Two looks at one process.
struct Change<'a> {
    before: Option<&'a Snapshot>,
    now: &'a Snapshot,
    seconds: f64,
}

impl<'a> Change<'a> {
    /// A process that was not there before, or began anew, has moved all that it has moved since.
    fn of(before: &'a Round, round: &Round, now: &'a Snapshot) -> Self {
        let same = |page: &&Snapshot| page.pid == now.pid && page.start_ns == now.start_ns;
        let seconds = round.at.duration_since(before.at).as_secs_f64().max(0.001);
        Self { before: before.seen.iter().map(|seen| &seen.page).find(same), now, seconds }
    }

    fn per_second(&self, before: u64, now: u64) -> u64 {
        // Saturating: a page that lies may count backwards.
        (now.saturating_sub(before) as f64 / self.seconds).round() as u64
    }

    fn rate(&self, figure: impl Fn(&Snapshot) -> u64) -> u64 {
        self.per_second(self.before.map_or(0, &figure), figure(self.now))
    }

    fn volumes(&self, before: Volume, now: Volume) -> [u64; 4] {
        [
            self.per_second(before.msgs_in, now.msgs_in),
            self.per_second(before.bytes_in, now.bytes_in),
            self.per_second(before.msgs_out, now.msgs_out),
            self.per_second(before.bytes_out, now.bytes_out),
        ]
    }

    fn moved(&self) -> [u64; 4] {
        self.volumes(self.before.map_or_else(Volume::default, all), all(self.now))
    }

    fn sock(&self, now: &Sock) -> [u64; 4] {
        let same = |sock: &&Sock| sock.fd == now.fd && sock.since_ns == now.since_ns;
        let before = self.before.and_then(|page| page.socks.iter().find(same));
        self.volumes(before.map_or_else(Volume::default, Sock::volume), now.volume())
    }
}

fn all(page: &Snapshot) -> Volume {
    page.moved.tcp.plus(page.moved.shm).plus(page.moved.rdma)
}

/// Connections made and taken.
fn begun(page: &Snapshot) -> u64 {
    use Counter::{AcceptsRdma, AcceptsShm, AcceptsTcp, ConnectsRdma, ConnectsShm, ConnectsTcp};
    let kinds = [ConnectsTcp, ConnectsShm, ConnectsRdma, AcceptsTcp, AcceptsShm, AcceptsRdma];
    cnt::total(&kinds.map(|counter| page.counter(counter)))
}

/// The figures of a line of the overview, in the order of [`COLUMNS`].
fn line(change: &Change<'_>) -> [u64; 8] {
    let open = Summary::of(change.now);
    let [msgs_in, bytes_in, msgs_out, bytes_out] = change.moved();
    let connections = (open.tcp + open.shm + open.rdma) as u64;
    let sleeps = change.rate(|page| page.counter(Counter::Sleeps));
    [change.now.pid.into(), connections, change.rate(begun), msgs_in, bytes_in, msgs_out, bytes_out, sleeps]
}

/// The processes in the order in which the overview has them.
pub(super) fn sorted(before: &Round, now: &Round, sort: Sort, filter: Option<&Filter>) -> Vec<u32> {
    order(before, now, sort, filter).into_iter().map(|(page, _)| page.pid).collect()
}

/// Whether a process has a socket that is meant, or all are meant.
pub(super) fn is_meant(page: &Snapshot, filter: Option<&Filter>) -> bool {
    filter.is_none_or(|filter| page.socks.iter().any(|sock| filter.fits(page, sock)))
}

fn order<'a>(before: &'a Round, now: &'a Round, sort: Sort, filter: Option<&Filter>) -> Vec<(&'a Snapshot, [u64; 8])> {
    let meant = now.seen.iter().map(|seen| &seen.page).filter(|page| is_meant(page, filter));
    let mut lines: Vec<(&Snapshot, [u64; 8])> =
        meant.map(|page| (page, line(&Change::of(before, now, page)))).collect();
    let key = |figures: &[u64; 8]| figures.get(sort.column).copied().unwrap_or(0);
    lines.sort_by(|(_, a), (_, b)| {
        let rising = key(a).cmp(&key(b));
        if sort.reverse { rising } else { rising.reverse() }
    });
    lines
}

/// The processes, a line each; `chosen` is marked.
pub(super) fn overview(
    before: &Round,
    now: &Round,
    sort: Sort,
    chosen: Option<u32>,
    filter: Option<&Filter>,
    style: Style,
) -> String {
    let [pid, conns, begun, msgs_in, bytes_in, msgs_out, bytes_out, sleeps] = COLUMNS;
    let mut table = Table::new([
        (pid, Right),
        ("Program", Left),
        (conns, Right),
        ("Fast", Right),
        (begun, Right),
        (msgs_in, Right),
        (bytes_in, Right),
        (msgs_out, Right),
        (bytes_out, Right),
        (sleeps, Right),
    ])
    .spare(&["Sleeps/s", "Msgs-Out/s", "Msgs-In/s", "Fast"]);
    let lines = order(before, now, sort, filter);
    let is_empty = lines.is_empty();
    for (page, figures) in lines {
        let open = Summary::of(page);
        let [pid, conns, begun, msgs_in, bytes_in, msgs_out, bytes_out, sleeps] = figures.map(|n| n.to_string());
        let mark = if chosen == Some(page.pid) { "> " } else { "" };
        let fast = (open.shm + open.rdma).to_string();
        let pid = format!("{mark}{pid}");
        table.row([pid, page.program.clone(), conns, fast, begun, msgs_in, bytes_in, msgs_out, bytes_out, sleeps]);
    }
    let mut out = String::new();
    if is_empty {
        let such = if filter.is_some() { " with such a socket" } else { "" };
        out.push_str(&format!("no accelerated process{such}\n"));
    } else {
        table.write(style, &mut out);
    }
    out
}

/// The groups of one process.
pub(super) fn process(before: &Round, now: &Round, groups: &[Group], filter: Option<&Filter>, style: Style) -> String {
    let mut out = String::new();
    let Some(seen) = now.seen.first() else { return out };
    let change = Change::of(before, now, &seen.page);
    let earlier = before.seen.first();
    for group in groups {
        if !out.is_empty() {
            out.push('\n');
        }
        match group {
            Group::All => {}
            Group::Cfg => cfg::text(&seen.page, style, &mut out),
            Group::Cnt => counters(&change, style, &mut out),
            Group::Mem => memory(earlier, seen, &change, style, &mut out),
            Group::Qp => links(&change, seen.now, style, &mut out),
            Group::Sock => sockets(&change, filter, style, &mut out),
        }
    }
    out
}

fn counters(change: &Change<'_>, style: Style, out: &mut String) {
    let mut table = Table::new([("Counter", Left), ("Value", Right), ("Per-Second", Right)]);
    for counter in Counter::ALL {
        let value = change.now.counter(*counter);
        let (value, rate) = match counter.kind() {
            Kind::Total => (value.to_string(), change.rate(|page| page.counter(*counter)).to_string()),
            Kind::Gauge => (value.cast_signed().to_string(), "-".into()),
        };
        table.row([counter.name().into(), value, rate]);
    }
    let avoided = change.rate(cnt::avoided).to_string();
    table.row(["syscalls_avoided".into(), cnt::avoided(change.now).to_string(), avoided]);
    let rates = change.moved();
    for ((name, value), rate) in cnt::figures(all(change.now)).into_iter().zip(rates) {
        table.row([name.into(), value.to_string(), rate.to_string()]);
    }
    let total = |page: &Snapshot| cnt::total(&page.fallbacks);
    table.row(["fallbacks".into(), total(change.now).to_string(), change.rate(total).to_string()]);
    table.write(style, out);
}

fn memory(earlier: Option<&Seen>, seen: &Seen, change: &Change<'_>, style: Style, out: &mut String) {
    let Some(memory) = &seen.memory else { return };
    let before = earlier.and_then(|seen| seen.memory.as_ref());
    let mut table = Table::new([("Memory", Left), ("Size-KiB", Right), ("Rss-KiB", Right), ("Growth-KiB/s", Right)]);
    for (name, used) in memory.by_name().into_iter().chain([("total", memory.total())]) {
        let rss = match before {
            None => used.rss,
            Some(before) if name == "total" => before.total().rss,
            Some(before) => before.by_name().get(name).map_or(0, |used| used.rss),
        };
        let growth = (used.rss as f64 - rss as f64) / change.seconds;
        table.row([name.into(), used.size.to_string(), used.rss.to_string(), format!("{growth:.0}")]);
    }
    table.write(style, out);
}

fn links(change: &Change<'_>, now: u64, style: Style, out: &mut String) {
    let mut table = Table::new([
        ("QP", Right),
        ("Kind", Left),
        ("Peer-Pid", Right),
        ("Conns", Right),
        ("Conns/s", Right),
        ("Age", Right),
        ("Bytes-In/s", Right),
        ("Bytes-Out/s", Right),
    ])
    .spare(&["Age"]);
    for row in qp::rows(change.now) {
        let ever = |page: &Snapshot| {
            let link = page.links.iter().find(|link| u64::from(link.id) == row.id);
            link.map_or(0, |link| link.ever.into())
        };
        let mut volumes = [0; 4];
        for sock in change.now.socks.iter().filter(|sock| sock.link == row.id) {
            for (sum, rate) in volumes.iter_mut().zip(change.sock(sock)) {
                *sum += rate;
            }
        }
        let [_, bytes_in, _, bytes_out] = volumes.map(|rate| rate.to_string());
        table.row([
            row.id.to_string(),
            row.kind.clone(),
            sock::pid(row.peer_pid),
            row.connections().to_string(),
            change.rate(ever).to_string(),
            row.link.map_or_else(|| "-".into(), |link| time::span(now.saturating_sub(link.opened_ns))),
            bytes_in,
            bytes_out,
        ]);
    }
    table.write(style, out);
}

fn sockets(change: &Change<'_>, filter: Option<&Filter>, style: Style, out: &mut String) {
    let mut table = Table::new([
        ("Fd", Right),
        ("Transport", Left),
        ("Local Address:Port", Left),
        ("Peer Address:Port", Left),
        ("Peer-Pid", Right),
        ("Reason", Left),
        ("Msgs-In/s", Right),
        ("Bytes-In/s", Right),
        ("Msgs-Out/s", Right),
        ("Bytes-Out/s", Right),
    ])
    .spare(&["Peer-Pid", "Msgs-In/s", "Msgs-Out/s"])
    .folds();
    let is_meant = |sock: &&Sock| !sock::listens(sock) && filter.is_none_or(|filter| filter.fits(change.now, sock));
    for sock in change.now.socks.iter().filter(is_meant) {
        let [msgs_in, bytes_in, msgs_out, bytes_out] = change.sock(sock).map(|rate| rate.to_string());
        table.row([
            sock.fd.to_string(),
            sock.transport.to_string(),
            sock.local.to_string(),
            sock.peer.to_string(),
            sock::pid(sock.peer_pid),
            reasons::of(sock).map_or_else(|| "-".into(), |reason| reason.to_string()),
            msgs_in,
            bytes_in,
            msgs_out,
            bytes_out,
        ]);
    }
    table.write(style, out);
}

/// The rates of a process by name.
pub(super) fn json(before: &Round, round: &Round, seen: &Seen) -> Value {
    let change = Change::of(before, round, &seen.page);
    let totals = Counter::ALL.iter().filter(|counter| counter.kind() == Kind::Total);
    let mut map: Map<String, Value> =
        totals.map(|counter| (counter.name().to_owned(), change.rate(|page| page.counter(*counter)).into())).collect();
    for ((name, _), rate) in cnt::figures(Volume::default()).into_iter().zip(change.moved()) {
        map.insert(name.into(), rate.into());
    }
    map.into()
}
