//! Without a PID: the accelerated processes of this host.

use std::collections::BTreeMap;
use std::io;

use netacc_stats::{ControlState, Transport};
use netacc_stats_reader::{self as reader, Listing, Snapshot, Sock};
use netacc_tools::terminal::Style;
use netacc_tools::time;
use serde_json::{Value, json};

use crate::chosen::Chosen;
use crate::{complaint, note, sock};
use netacc_tools::table::Align::{Left, Right};
use netacc_tools::table::Table;

/// The open sockets of a process, and what it moved since it began. A listener takes connections of every kind, so it
/// is counted as what it is.
pub(crate) struct Summary {
    pub(crate) listeners: usize,
    pub(crate) tcp: usize,
    pub(crate) shm: usize,
    pub(crate) rdma: usize,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
}

impl Summary {
    pub(crate) fn of(page: &Snapshot) -> Self {
        let listens = |sock: &&Sock| sock::listens(sock);
        let connections = || page.socks.iter().filter(|sock| !listens(sock));
        let on = |transport| connections().filter(|sock| sock.transport.get() == Some(transport)).count();
        let moved = page.moved.tcp.plus(page.moved.shm).plus(page.moved.rdma);
        Self {
            listeners: page.socks.iter().filter(listens).count(),
            tcp: on(Transport::Tcp),
            shm: on(Transport::Shm),
            rdma: on(Transport::Rdma),
            bytes_in: moved.bytes_in,
            bytes_out: moved.bytes_out,
        }
    }
}

/// The list, as text or JSON.
pub(crate) fn all(chosen: &Chosen, json: bool, style: Style) -> io::Result<String> {
    let listing = listed(chosen)?;
    if json {
        let each: Value = listing.processes.iter().map(one).collect();
        return Ok(format!("{each:#}\n"));
    }
    let mut out = String::new();
    if is_any(&listing) {
        table(&listing.processes, style, &mut out);
    }
    Ok(out)
}

/// Whether there is an accelerated process; that there is none is said on stderr.
pub(crate) fn is_any(listing: &Listing) -> bool {
    let any = !listing.processes.is_empty();
    if !any {
        note("no accelerated process found; start one with 'netacc_run COMMAND'");
    }
    any
}

/// The accelerated processes that are meant; what could not be seen is said on stderr.
pub(crate) fn listed(chosen: &Chosen) -> io::Result<Listing> {
    let mut listing = reader::list_processes()?;
    chosen.keep(&mut listing);
    // After an upgrade many processes may have the same to tell.
    let mut alike: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (pid, error) in &listing.unreadable {
        alike.entry(error.to_string()).or_default().push(*pid);
    }
    for (text, pids) in alike {
        let Some((first, others)) = pids.split_first() else { continue };
        let list: Vec<String> = others.iter().map(ToString::to_string).collect();
        let more = if list.is_empty() { String::new() } else { format!("; the same with {}", list.join(", ")) };
        note(format_args!("{}{more}", complaint::about(*first, text)));
    }
    if listing.hidden > 0 {
        let many = listing.hidden;
        note(format_args!("{many} processes of other users are not shown; root sees all"));
    }
    Ok(listing)
}

fn table(pages: &[Snapshot], style: Style, out: &mut String) {
    let mut table = Table::new([
        ("Pid", Right),
        ("Program", Left),
        ("State", Left),
        ("Listen", Right),
        ("Tcp", Right),
        ("Shm", Right),
        ("Rdma", Right),
        ("Bytes-In", Right),
        ("Bytes-Out", Right),
        ("Since", Left),
    ])
    .spare(&["Since", "Rdma", "Listen", "State"])
    .folds();
    for page in pages {
        let sum = Summary::of(page);
        table.row([
            page.pid.to_string(),
            page.program.clone(),
            state(page).into(),
            sum.listeners.to_string(),
            sum.tcp.to_string(),
            sum.shm.to_string(),
            sum.rdma.to_string(),
            sum.bytes_in.to_string(),
            sum.bytes_out.to_string(),
            time::utc(page.start_ns),
        ]);
    }
    table.write(style, out);
}

/// What an operator has made of the process (netacc_ctl).
pub(crate) fn state(page: &Snapshot) -> &'static str {
    page.control.state().map_or("?", ControlState::name)
}

fn one(page: &Snapshot) -> Value {
    let sum = Summary::of(page);
    json!({
        "pid": page.pid,
        "program": page.program,
        "version": page.library_version,
        "since": time::utc(page.start_ns),
        "state": state(page),
        "sockets": { "listen": sum.listeners, "tcp": sum.tcp, "shm": sum.shm, "rdma": sum.rdma },
        "bytes_in": sum.bytes_in,
        "bytes_out": sum.bytes_out,
    })
}
