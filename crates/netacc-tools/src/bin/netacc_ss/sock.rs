//! `-s sock`: the sockets.

use netacc_stats::State;
use netacc_stats_reader::{Snapshot, Sock};
use netacc_tools::terminal::Style;
use netacc_tools::time;
use serde_json::{Value, json};

use crate::other_end::{OtherEnd, Processes};
use crate::show::Seen;
use crate::{reasons, rendezvous};
use netacc_tools::table::Align::{self, Left, Right};
use netacc_tools::table::Table;

/// A process number, `-` for not known.
pub(crate) fn pid(pid: u32) -> String {
    if pid == 0 { "-".into() } else { pid.to_string() }
}

pub(crate) fn listens(sock: &Sock) -> bool {
    sock.state.get() == Some(State::Listening)
}

fn reason(sock: &Sock) -> String {
    reasons::of(sock).map_or_else(|| "-".into(), |reason| reason.to_string())
}

const COLUMNS: [(&str, Align); 13] = [
    ("Fd", Right),
    ("Transport", Left),
    ("State", Left),
    ("Local Address:Port", Left),
    ("Peer Address:Port", Left),
    ("Peer-Pid", Right),
    (CONTAINER, Left),
    ("Reason", Left),
    ("QP", Right),
    ("Msgs-In", Right),
    ("Bytes-In", Right),
    ("Msgs-Out", Right),
    ("Bytes-Out", Right),
];
/// The title of the column that only connections to other containers have.
const CONTAINER: &str = "Container";
/// Those that a narrow terminal may go without.
const SPARE: [&str; 4] = ["QP", "Peer-Pid", "Msgs-In", "Msgs-Out"];

/// The process number of the other end in our PID namespace, and its container if that is another one.
fn other_end(sock: &Sock, across: Option<&OtherEnd>) -> (u32, Option<String>) {
    let container = across.and_then(|end| end.container.as_ref()).map(ToString::to_string);
    (across.map_or(sock.peer_pid, |end| end.pid), container)
}

fn cells(page: &Snapshot, sock: &Sock, processes: &Processes) -> [String; 13] {
    let across = processes.across(page, sock);
    let (peer, container) = other_end(sock, across.as_ref());
    [
        sock.fd.to_string(),
        sock.transport.to_string(),
        sock.state.to_string(),
        sock.local.to_string(),
        sock.peer.to_string(),
        pid(peer),
        container.unwrap_or_else(|| "-".into()),
        reason(sock),
        if sock.link == 0 { "-".into() } else { sock.link.to_string() },
        sock.msgs_in.to_string(),
        sock.bytes_in.to_string(),
        sock.msgs_out.to_string(),
        sock.bytes_out.to_string(),
    ]
}

/// Appends the sockets of several processes as one table, each with its process, and what the reasons mean.
pub(crate) fn text_of_all(all: &[Seen], processes: &Processes, style: Style, out: &mut String) {
    let [c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12] = COLUMNS;
    let columns = [("Pid", Right), ("Program", Left), c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12];
    let mut table = Table::new(columns).spare(&SPARE).rare(CONTAINER).folds();
    for page in all.iter().map(|seen| &seen.page) {
        for sock in &page.socks {
            let [a, b, c, d, e, f, g, h, i, j, k, l, m] = cells(page, sock, processes);
            table.row([page.pid.to_string(), page.program.clone(), a, b, c, d, e, f, g, h, i, j, k, l, m]);
        }
    }
    table.write(style, out);
    let shown = all.iter().flat_map(|seen| &seen.page.socks).filter_map(reasons::of);
    reasons::explain(shown.filter_map(|reason| reason.get()), style, out);
}

/// Appends the sockets as a table, the listeners once more with where they are found, and what the reasons mean.
pub(crate) fn text(page: &Snapshot, names: &[String], processes: &Processes, style: Style, out: &mut String) {
    let mut table = Table::new(COLUMNS).spare(&SPARE).rare(CONTAINER).folds();
    page.socks.iter().for_each(|sock| table.row(cells(page, sock, processes)));
    table.write(style, out);
    listeners(page, names, style, out);
    let shown = page.socks.iter().filter_map(reasons::of);
    reasons::explain(shown.filter_map(|reason| reason.get()), style, out);
}

fn listeners(page: &Snapshot, names: &[String], style: Style, out: &mut String) {
    if !page.socks.iter().any(listens) {
        return;
    }
    let mut table = Table::new([
        ("Fd", Right),
        ("Listener", Left),
        ("TCP-Port", Right),
        ("RDMA-Port", Right),
        ("Rendezvous", Left),
        ("Reason", Left),
    ])
    .spare(&["Listener", "RDMA-Port", "Rendezvous"]);
    for sock in page.socks.iter().filter(|sock| listens(sock)) {
        table.row([
            sock.fd.to_string(),
            sock.local.to_string(),
            sock.local.port.to_string(),
            page.rdma_port(sock.local.port).map_or_else(|| "-".into(), |port| port.to_string()),
            rendezvous::of(&sock.local, names).unwrap_or("-").to_owned(),
            reason(sock),
        ]);
    }
    out.push('\n');
    table.write(style, out);
}

/// The sockets as a list; what is not known is null.
pub(crate) fn json(page: &Snapshot, names: &[String], processes: &Processes) -> Value {
    page.socks.iter().map(|sock| one(page, sock, names, processes)).collect()
}

fn one(page: &Snapshot, sock: &Sock, names: &[String], processes: &Processes) -> Value {
    let across = processes.across(page, sock);
    let (peer_pid, container) = other_end(sock, across.as_ref());
    let reason = reasons::of(sock);
    let known = |family: u16, text: String| (family != 0).then_some(text);
    let rendezvous = if listens(sock) { rendezvous::of(&sock.local, names) } else { None };
    let rdma_port = if listens(sock) { page.rdma_port(sock.local.port) } else { None };
    json!({
        "fd": sock.fd,
        "transport": sock.transport.to_string(),
        "state": sock.state.to_string(),
        "local": known(sock.local.family, sock.local.to_string()),
        "peer": known(sock.peer.family, sock.peer.to_string()),
        "peer_pid": (peer_pid != 0).then_some(peer_pid),
        "peer_container": container,
        "link": (sock.link != 0).then_some(sock.link),
        "rendezvous": rendezvous,
        "rdma_port": rdma_port,
        "reason": reason.map(|reason| reason.to_string()),
        "reason_text": reason.and_then(|reason| reason.get()).map(|reason| reason.sentence()),
        "since": time::utc(sock.since_ns),
        "msgs_in": sock.msgs_in,
        "bytes_in": sock.bytes_in,
        "msgs_out": sock.msgs_out,
        "bytes_out": sock.bytes_out,
    })
}
