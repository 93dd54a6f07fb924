//! The metrics of one process.

use netacc_stats::reader::{Error, Snapshot};
use netacc_tools::terminal::Style;
use serde_json::{Map, Value, json};

use crate::args::Group;
use crate::mem::{self, Memory};
use crate::{cfg, cnt, qp, rendezvous, sock, time};

/// What was seen of a process: its page, and what /proc says beside it.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) page: Snapshot,
    /// If it was asked for, and the process was still there.
    pub(crate) memory: Option<Memory>,
    rendezvous: Vec<String>,
    /// When: CLOCK_REALTIME in nanoseconds.
    pub(crate) now: u64,
}

impl Seen {
    /// Looks for what the groups need beyond the page.
    pub(crate) fn new(page: Snapshot, groups: &[Group]) -> Result<Self, Error> {
        let pid = page.pid;
        let memory = if groups.contains(&Group::Mem) { Some(mem::read(pid)?) } else { None };
        let listens = groups.contains(&Group::Sock) && page.socks.iter().any(sock::listens);
        let rendezvous = if listens { rendezvous::held(pid) } else { Vec::new() };
        Ok(Self { page, memory, rendezvous, now: time::now() })
    }

    /// Of a process that is there no more, whose page was held.
    pub(crate) fn last(page: Snapshot) -> Self {
        Self { page, memory: None, rendezvous: Vec::new(), now: time::now() }
    }

    /// The groups asked for, as an object.
    pub(crate) fn json(&self, groups: &[Group]) -> Value {
        let page = &self.page;
        let mut map = Map::new();
        map.insert("pid".into(), json!(page.pid));
        map.insert("program".into(), json!(page.program));
        map.insert("version".into(), json!(page.library_version));
        map.insert("since".into(), json!(time::utc(page.start_ns)));
        for group in groups {
            let (name, value) = match group {
                Group::All => continue,
                Group::Cfg => ("cfg", cfg::json(page)),
                Group::Cnt => ("cnt", cnt::json(page)),
                Group::Mem => ("mem", self.memory.as_ref().map(|memory| memory.json(page)).into()),
                Group::Qp => ("qp", qp::json(page, self.now)),
                Group::Sock => ("sock", sock::json(page, &self.rendezvous)),
            };
            map.insert(name.into(), value);
        }
        map.into()
    }

    /// The groups asked for, as tables.
    pub(crate) fn text(&self, groups: &[Group], style: Style) -> String {
        let page = &self.page;
        let mut out = String::new();
        for group in groups {
            if groups.len() > 1 {
                if !out.is_empty() {
                    out.push('\n');
                }
                let title = match group {
                    Group::All => continue,
                    Group::Cfg => "configuration (cfg):",
                    Group::Cnt => "counters (cnt):",
                    Group::Mem => "memory (mem):",
                    Group::Qp => "queue pairs (qp):",
                    Group::Sock => "sockets (sock):",
                };
                out.push_str(&style.paint("36", title));
                out.push('\n');
            }
            match group {
                Group::All => {}
                Group::Cfg => cfg::text(page, style, &mut out),
                Group::Cnt => cnt::text(page, style, &mut out),
                Group::Mem => self.memory.iter().for_each(|memory| memory.text(page, style, &mut out)),
                Group::Qp => qp::text(page, self.now, style, &mut out),
                Group::Sock => sock::text(page, &self.rendezvous, style, &mut out),
            }
        }
        out
    }
}
