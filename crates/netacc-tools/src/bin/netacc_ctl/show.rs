//! How far the processes are.

use std::collections::BTreeMap;

use netacc_stats::{ControlCommand, ControlState, Reloaded, Transport};
use netacc_stats_reader::{Snapshot, Sock};
use netacc_tools::before_page;
use netacc_tools::table::Align::{Left, Right};
use netacc_tools::table::Table;
use netacc_tools::terminal::Style;
use netacc_tools::time;
use serde_json::{Value, json};

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
    /// Its rules; `None` before its first socket, and for an older library.
    rules: Option<Rules>,
}

/// The rules of a process.
#[derive(Clone, Copy, Debug)]
struct Rules {
    count: usize,
    loaded_ns: u64,
    /// Whether they were loaded anew by this call; `None` if that was not asked for.
    reloaded: Option<bool>,
}

impl Rules {
    fn of(page: &Snapshot, reload: Option<u64>) -> Option<Self> {
        let loaded_ns = page.control.rules_loaded_ns;
        let loaded = |began| loaded_ns >= began && page.control.reloaded() == Some(Reloaded::Loaded);
        (loaded_ns != 0).then(|| Self { count: page.rules().count(), loaded_ns, reloaded: reload.map(loaded) })
    }

    fn text(self) -> String {
        let what = match self.reloaded {
            None => "",
            Some(true) => ", reloaded",
            Some(false) => ", kept",
        };
        format!("{}{what}", self.count)
    }

    fn json(self) -> Value {
        let mut value = json!({ "count": self.count, "loaded": time::utc(self.loaded_ns) });
        if let (Some(reloaded), Some(map)) = (self.reloaded, value.as_object_mut()) {
            map.insert("reloaded".into(), reloaded.into());
        }
        value
    }
}

impl Seen {
    /// A process as it is now; `None` if it has ended. `reload`: when it was asked to load its rules anew, if it was.
    pub(crate) fn now(target: &Target, reload: Option<u64>) -> Option<Self> {
        target.process().text("stat").ok()?;
        let (state, left, on, rules) = match target.page().map(|page| page.read().ok()) {
            None if before_page::is_off(target.process()) => ("off", 0, [0; 3], None),
            None => ("on", 0, [0; 3], None),
            Some(None) => return None,
            Some(Some(page)) => (in_a_word(&page), page.control.left, count(&page), Rules::of(&page, reload)),
        };
        Some(Self { pid: target.pid, program: target.name.clone(), state, left, on, rules })
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

/// A table with a row for each process; nothing if there is none.
pub(crate) fn text(all: &[Seen], style: Style) -> String {
    if all.is_empty() {
        return String::new();
    }
    let columns = [
        ("Pid", Right),
        ("Program", Left),
        ("State", Left),
        ("Tcp", Right),
        ("Shm", Right),
        ("Rdma", Right),
        ("Rules", Left),
        ("Loaded", Left),
    ];
    let mut table = Table::new(columns).spare(&["Loaded"]).folds();
    for seen in all {
        let [tcp, shm, rdma] = seen.on.map(|n| n.to_string());
        let dash = || "-".to_owned();
        let rules = seen.rules.map_or_else(dash, Rules::text);
        let loaded = seen.rules.map_or_else(dash, |rules| time::utc(rules.loaded_ns));
        table.row([seen.pid.to_string(), seen.program.clone(), seen.state(), tcp, shm, rdma, rules, loaded]);
    }
    let mut out = String::new();
    table.write(style, &mut out);
    out
}

/// Most processes of which each has a line after a request.
pub(crate) const MANY: usize = 20;

/// How many processes are in which state, and what their connections use: a few lines for any number of processes.
pub(crate) fn summary(all: &[Seen]) -> String {
    let mut states: BTreeMap<&str, usize> = BTreeMap::new();
    all.iter().for_each(|seen| *states.entry(seen.state).or_default() += 1);
    let states: Vec<String> = states.into_iter().map(|(state, count)| format!("{count} {state}")).collect();
    let [tcp, shm, rdma] = all.iter().fold([0; 3], |[tcp, shm, rdma], seen| {
        let [its_tcp, its_shm, its_rdma] = seen.on;
        [tcp + its_tcp, shm + its_shm, rdma + its_rdma]
    });
    let reloaded =
        |wanted| all.iter().filter(|seen| seen.rules.and_then(|rules| rules.reloaded) == Some(wanted)).count();
    let rules = match (reloaded(true), reloaded(false)) {
        (0, 0) => String::new(),
        (loaded, kept) => format!("rules: {loaded} reloaded, {kept} kept\n"),
    };
    format!(
        "{} processes: {}\nconnections: {tcp} tcp, {shm} shm, {rdma} rdma\n{rules}'netacc_ctl status' has a line for each\n",
        all.len(),
        states.join(", ")
    )
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
                "rules": seen.rules.map(Rules::json),
            })
        })
        .collect();
    format!("{each:#}\n")
}
