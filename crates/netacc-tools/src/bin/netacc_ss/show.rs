//! The metrics of one process, or of each.

use std::io;
use std::rc::Rc;

use netacc_stats_reader::{Error, Snapshot};
use netacc_tools::filter::Filter;
use netacc_tools::terminal::Style;
use netacc_tools::time;
use serde_json::{Map, Value, json};

use crate::args::{Args, Group};
use crate::chosen::Chosen;
use crate::mem::{self, Memory};
use crate::other_end::Processes;
use crate::{cfg, cnt, list, qp, rendezvous, sock};

/// What was seen of a process: its page, and what /proc says beside it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) page: Snapshot,
    /// If it was asked for, and the process was still there.
    pub(crate) memory: Option<Memory>,
    pub(crate) rendezvous: Vec<String>,
    /// The processes that the other ends are looked for among.
    processes: Rc<Processes>,
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
        Ok(Self { page, memory, rendezvous, processes: Rc::default(), now: time::now() })
    }

    /// Of a process that is there no more, whose page was held.
    pub(crate) fn last(page: Snapshot) -> Self {
        Self { page, memory: None, rendezvous: Vec::new(), processes: Rc::default(), now: time::now() }
    }

    /// The same with the sockets that are meant.
    pub(crate) fn filtered(self, filter: Option<&Filter>) -> Self {
        match filter {
            None => self,
            Some(filter) => Self { page: filter.of(&self.page), ..self },
        }
    }

    /// The groups asked for, as an object.
    pub(crate) fn json(&self, groups: &[Group]) -> Value {
        let page = &self.page;
        let mut map = Map::new();
        map.insert("pid".into(), json!(page.pid));
        map.insert("program".into(), json!(page.program));
        map.insert("version".into(), json!(page.library_version));
        map.insert("since".into(), json!(time::utc(page.start_ns)));
        map.insert("state".into(), json!(list::state(page)));
        for group in groups {
            let (name, value) = match group {
                Group::All => continue,
                Group::Cfg => ("cfg", cfg::json(page)),
                Group::Cnt => ("cnt", cnt::json(page)),
                Group::Mem => ("mem", self.memory.as_ref().map(|memory| memory.json(page)).into()),
                Group::Qp => ("qp", qp::json(page, self.now)),
                Group::Sock => ("sock", sock::json(page, &self.rendezvous, &self.processes)),
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
                Group::Sock => sock::text(page, &self.rendezvous, &self.processes, style, &mut out),
            }
        }
        out
    }
}

/// The groups asked for of all accelerated processes of this host. Sockets alone are one table, as ss(8) shows them.
pub(crate) fn all(chosen: &Chosen, args: &Args, style: Style) -> io::Result<String> {
    let listing = list::listed(chosen)?;
    let groups = args.groups();
    let groups = groups.as_slice();
    let any = args.json || list::is_any(&listing);
    // One that has ended meanwhile is not there any more.
    let seen = listing.processes.into_iter().filter_map(|page| Seen::new(page, groups).ok());
    let processes = Rc::<Processes>::default();
    let together = |seen: Seen| Seen { processes: Rc::clone(&processes), ..seen.filtered(args.filter()) };
    let seen: Vec<Seen> = seen.map(together).collect();
    if args.json {
        let each: Value = seen.iter().map(|seen| seen.json(groups)).collect();
        return Ok(format!("{each:#}\n"));
    }
    let mut out = String::new();
    if any && groups == [Group::Sock] {
        sock::text_of_all(&seen, &processes, style, &mut out);
        return Ok(out);
    }
    for seen in &seen {
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(&style.paint("1;36", &format!("{} {}:", seen.page.pid, seen.page.program)));
        out.push('\n');
        out.push_str(&seen.text(groups, style));
    }
    Ok(out)
}
