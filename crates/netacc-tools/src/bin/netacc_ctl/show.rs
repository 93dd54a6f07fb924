//! How far the processes are.

use netacc_stats::{ControlCommand, ControlState, Transport};
use netacc_stats_reader::{Snapshot, Sock};
use netacc_tools::columns::{Align, lines};
use netacc_tools::terminal::Style;
use serde_json::{Value, json};

use crate::before_page;
use crate::find::Target;

/// What there is to see of a process.
#[derive(Debug)]
pub(crate) struct Seen {
    pid: u32,
    program: String,
    state: &'static str,
    left: u32,
    /// Connections on TCP, in shared memory and over RDMA.
    on: [usize; 3],
}

impl Seen {
    /// A process as it is now; `None` if it has ended.
    pub(crate) fn now(target: &Target) -> Option<Self> {
        std::fs::metadata(format!("/proc/{}", target.pid)).ok()?;
        let (state, left, on) = match target.page.as_ref().map(|page| page.read().ok()) {
            None if before_page::is_off(target.pid) => ("off", 0, [0; 3]),
            None => ("on", 0, [0; 3]),
            Some(None) => return None,
            Some(Some(page)) => (in_a_word(&page), page.control.left, count(&page)),
        };
        Some(Self { pid: target.pid, program: target.name.clone(), state, left, on })
    }

    /// The state in words.
    fn state(&self) -> String {
        if self.left > 0 { format!("{}: {} left", self.state, self.left) } else { self.state.into() }
    }
}

fn in_a_word(page: &Snapshot) -> &'static str {
    let control = page.control;
    let asked = u32::from(control.request) != control.done;
    match control.state() {
        Some(ControlState::Off) if asked => "off, asked",
        Some(ControlState::On)
            if asked && ControlCommand::of(control.request) == Some(ControlCommand::Off) && is_plain(page) =>
        {
            "off"
        }
        Some(ControlState::On) if asked => "on, asked",
        Some(state) => state.name(),
        None => "unknown",
    }
}

/// Whether nothing of the process is accelerated. What it makes from here on looks first what is asked for.
pub(crate) fn is_plain(page: &Snapshot) -> bool {
    page.socks.iter().all(|sock| !matches!(sock.transport.get(), Some(Transport::Shm | Transport::Rdma)))
}

fn count(page: &Snapshot) -> [usize; 3] {
    let connected = |sock: &&Sock| sock.state.get() != Some(netacc_stats::State::Listening);
    let on =
        |transport| page.socks.iter().filter(connected).filter(|sock| sock.transport.get() == Some(transport)).count();
    [Transport::Tcp, Transport::Shm, Transport::Rdma].map(on)
}

/// A table with a line for each process; nothing if there is none.
pub(crate) fn text(all: &[Seen], style: Style) -> String {
    if all.is_empty() {
        return String::new();
    }
    let titles = ["Pid", "Program", "State", "Tcp", "Shm", "Rdma"].map(String::from);
    let rows = all.iter().map(|seen| {
        let [tcp, shm, rdma] = seen.on.map(|n| n.to_string());
        [seen.pid.to_string(), seen.program.clone(), seen.state(), tcp, shm, rdma]
    });
    let side = |column| if matches!(column, 1 | 2) { Align::Left } else { Align::Right };
    let lines = lines(std::iter::once(titles).chain(rows), side);
    let painted =
        lines.iter().enumerate().map(|(at, line)| if at == 0 { style.paint("1", line) } else { line.clone() });
    painted.map(|line| line + "\n").collect()
}

/// The same as JSON.
pub(crate) fn json(all: &[Seen]) -> String {
    let each: Value = all
        .iter()
        .map(|seen| {
            let [tcp, shm, rdma] = seen.on;
            json!({
                "pid": seen.pid,
                "program": seen.program,
                "state": seen.state,
                "left": seen.left,
                "connections": { "tcp": tcp, "shm": shm, "rdma": rdma },
            })
        })
        .collect();
    format!("{each:#}\n")
}
