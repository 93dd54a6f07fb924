//! `-s sock`: the sockets.

use netacc_stats::reader::{Snapshot, Sock};
use serde_json::{Value, json};

use crate::table::Align::{Left, Right};
use crate::table::Table;
use crate::{reasons, time};

/// A process number, `-` for not known.
pub(crate) fn pid(pid: u32) -> String {
    if pid == 0 { "-".into() } else { pid.to_string() }
}

/// Appends the sockets as a table, and what the reasons in it mean.
pub(crate) fn text(page: &Snapshot, out: &mut String) {
    let mut table = Table::new([
        ("Fd", Right),
        ("Transport", Left),
        ("State", Left),
        ("Local Address:Port", Left),
        ("Peer Address:Port", Left),
        ("Peer-Pid", Right),
        ("Reason", Left),
        ("Msgs-In", Right),
        ("Bytes-In", Right),
        ("Msgs-Out", Right),
        ("Bytes-Out", Right),
    ]);
    for sock in &page.socks {
        table.row([
            sock.fd.to_string(),
            sock.transport.to_string(),
            sock.state.to_string(),
            sock.local.to_string(),
            sock.peer.to_string(),
            pid(sock.peer_pid),
            reasons::of(sock).map_or_else(|| "-".into(), |reason| reason.to_string()),
            sock.msgs_in.to_string(),
            sock.bytes_in.to_string(),
            sock.msgs_out.to_string(),
            sock.bytes_out.to_string(),
        ]);
    }
    table.write(out);
    let shown = page.socks.iter().filter_map(reasons::of);
    reasons::explain(shown.filter_map(|reason| reason.get()), out);
}

/// The sockets as a list; what is not known is null.
pub(crate) fn json(page: &Snapshot) -> Value {
    page.socks.iter().map(one).collect()
}

fn one(sock: &Sock) -> Value {
    let reason = reasons::of(sock);
    let known = |family: u16, text: String| (family != 0).then_some(text);
    json!({
        "fd": sock.fd,
        "transport": sock.transport.to_string(),
        "state": sock.state.to_string(),
        "local": known(sock.local.family, sock.local.to_string()),
        "peer": known(sock.peer.family, sock.peer.to_string()),
        "peer_pid": (sock.peer_pid != 0).then_some(sock.peer_pid),
        "link": (sock.link != 0).then_some(sock.link),
        "reason": reason.map(|reason| reason.to_string()),
        "reason_text": reason.and_then(|reason| reason.get()).map(|reason| reason.sentence()),
        "since": time::utc(sock.since_ns),
        "msgs_in": sock.msgs_in,
        "bytes_in": sock.bytes_in,
        "msgs_out": sock.msgs_out,
        "bytes_out": sock.bytes_out,
    })
}
