//! Without a PID: the accelerated processes of this host.

use std::io;

use netacc_stats::reader::{self, Snapshot, Sock};
use netacc_stats::{State, Transport};
use serde_json::{Value, json};

use crate::table::Align::{Left, Right};
use crate::table::Table;
use crate::{note, time};

/// What the open sockets of a process add up to. A listener takes connections of every kind, so it is counted
/// as what it is.
struct Summary {
    listeners: usize,
    tcp: usize,
    shm: usize,
    rdma: usize,
    bytes_in: u64,
    bytes_out: u64,
}

impl Summary {
    fn of(page: &Snapshot) -> Self {
        let listens = |sock: &&Sock| sock.state.get() == Some(State::Listening);
        let connections = || page.socks.iter().filter(|sock| !listens(sock));
        let on = |transport| connections().filter(|sock| sock.transport.get() == Some(transport)).count();
        let sum = |bytes: fn(&Sock) -> u64| page.socks.iter().fold(0u64, |sum, sock| sum.wrapping_add(bytes(sock)));
        Self {
            listeners: page.socks.iter().filter(listens).count(),
            tcp: on(Transport::Tcp),
            shm: on(Transport::Shm),
            rdma: on(Transport::Rdma),
            bytes_in: sum(|sock| sock.bytes_in),
            bytes_out: sum(|sock| sock.bytes_out),
        }
    }
}

/// The list, as text or JSON; what could not be seen is said on stderr.
pub(crate) fn all(json: bool) -> io::Result<String> {
    let listing = reader::list_processes()?;
    for (pid, error) in &listing.unreadable {
        note(format_args!("process {pid} {error}"));
    }
    if listing.hidden > 0 {
        let many = listing.hidden;
        note(format_args!("{many} processes of other users are not shown; root sees all"));
    }
    if json {
        let each: Value = listing.processes.iter().map(one).collect();
        return Ok(format!("{each:#}\n"));
    }
    if listing.processes.is_empty() {
        note("no accelerated process found; start one with 'netacc_run COMMAND'");
        return Ok(String::new());
    }
    Ok(table(&listing.processes))
}

fn table(pages: &[Snapshot]) -> String {
    let mut table = Table::new([
        ("Pid", Right),
        ("Program", Left),
        ("Listen", Right),
        ("Tcp", Right),
        ("Shm", Right),
        ("Rdma", Right),
        ("Bytes-In", Right),
        ("Bytes-Out", Right),
        ("Since", Left),
    ]);
    for page in pages {
        let sum = Summary::of(page);
        table.row([
            page.pid.to_string(),
            page.program.clone(),
            sum.listeners.to_string(),
            sum.tcp.to_string(),
            sum.shm.to_string(),
            sum.rdma.to_string(),
            sum.bytes_in.to_string(),
            sum.bytes_out.to_string(),
            time::utc(page.start_ns),
        ]);
    }
    let mut out = String::new();
    table.write(&mut out);
    out
}

fn one(page: &Snapshot) -> Value {
    let sum = Summary::of(page);
    json!({
        "pid": page.pid,
        "program": page.program,
        "version": page.library_version,
        "since": time::utc(page.start_ns),
        "sockets": { "listen": sum.listeners, "tcp": sum.tcp, "shm": sum.shm, "rdma": sum.rdma },
        "bytes_in": sum.bytes_in,
        "bytes_out": sum.bytes_out,
    })
}
