//! Finds the processes that the command line names.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use netacc_stats_reader::{self as reader, Error, Page, Process};
use netacc_tools::args::who::Who;
use netacc_tools::text::clean;

/// How long a process may take after a fork until it has its own page.
const FORKING: Duration = Duration::from_millis(500);

/// How often such a process is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// A process to which a request can be sent.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) pid: u32,
    pub(crate) name: String,
    held: Held,
}

/// How a process is held: its number may be another one's once it has ended.
#[derive(Debug)]
enum Held {
    /// By its statistics page.
    ByPage(Page),
    /// Before its first TCP socket, when it has no page.
    Unused(Process),
}

impl Target {
    /// Its statistics page; `None` before its first TCP socket.
    pub(crate) fn page(&self) -> Option<&Page> {
        match &self.held {
            Held::ByPage(page) => Some(page),
            Held::Unused(_) => None,
        }
    }

    pub(crate) fn process(&self) -> &Process {
        match &self.held {
            Held::ByPage(page) => page.process(),
            Held::Unused(process) => process,
        }
    }

    /// The same process, with the page that it has now.
    pub(crate) fn again(&self) -> Option<Target> {
        let (page, seen) = reader::again(self.process()).ok()?;
        Some(Target { pid: self.pid, name: seen.program, held: Held::ByPage(page) })
    }

    /// The process in a sentence.
    pub(crate) fn called(&self) -> String {
        self.about("").to_string().trim_end().into()
    }

    /// The user of the process; `None` if it has ended. The owner of its folder in /proc would be root's if it has made
    /// itself undumpable (prctl(2)).
    pub(crate) fn user(&self) -> Option<u32> {
        let status = self.process().text("status").ok()?;
        let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        users.split_ascii_whitespace().next()?.parse().ok()
    }

    /// A sentence about the process.
    pub(crate) fn about(&self, text: impl Display) -> Complaint {
        Complaint { process: Some((self.pid, clean(&self.name))), text: text.to_string() }
    }
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// By rising number.
    pub(crate) targets: Vec<Target>,
    /// A sentence for each name or number that stands for no such process.
    pub(crate) complaints: Vec<Complaint>,
    /// A sentence if all processes are meant, and there is none.
    pub(crate) nobody: Option<String>,
}

/// What is wrong with a process, or with a word of the command line.
#[derive(Clone, Debug)]
pub(crate) struct Complaint {
    /// The process and its name; none if there is no such process.
    process: Option<(u32, String)>,
    /// A sentence, or what follows the process in one.
    text: String,
}

impl Display for Complaint {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.process {
            None => f.write_str(&self.text),
            Some((pid, name)) if name.is_empty() => write!(f, "process {pid} {}", self.text),
            Some((pid, name)) => write!(f, "process {pid} ({name}) {}", self.text),
        }
    }
}

/// Most processes that are named one by one when they have the same to complain of.
const NAMED: usize = 8;

/// The complaints as lines. After a request to many processes the same may be said of all: it is said once, with their
/// numbers.
pub(crate) fn in_lines(complaints: &[Complaint]) -> Vec<String> {
    let alike = |text: &str| -> Vec<u32> {
        let same = complaints.iter().filter(|one| one.text == text);
        same.filter_map(|one| one.process.as_ref().map(|(pid, _)| *pid)).collect()
    };
    let mut lines = Vec::new();
    for complaint in complaints {
        let Some((pid, _)) = &complaint.process else {
            lines.push(complaint.to_string());
            continue;
        };
        let others = alike(&complaint.text);
        if others.first() != Some(pid) {
            continue;
        }
        let shown: Vec<String> = others.iter().skip(1).take(NAMED).map(ToString::to_string).collect();
        let more = match others.len() - 1 - shown.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let same = if shown.is_empty() { String::new() } else { format!("; the same with {}{more}", shown.join(", ")) };
        lines.push(format!("{complaint}{same}"));
    }
    lines
}

/// The processes that the command line names, each once.
pub(crate) fn find(whom: &[Who]) -> io::Result<Found> {
    let mut found = BTreeMap::new();
    let mut complaints = Vec::new();
    let mut nobody = None;
    let mut all = None;
    for who in whom {
        match who {
            Who::Pid(pid) => match patiently(*pid) {
                Ok(target) => drop(found.insert(*pid, target)),
                Err(error) => {
                    complaints.push(Complaint { process: Some((*pid, name_of(*pid))), text: in_words(&error) });
                }
            },
            Who::Name(_) | Who::All => {
                if all.is_none() {
                    all = Some(everybody()?);
                }
                let everybody = all.as_ref().map(|(pids, _)| pids.as_slice()).unwrap_or_default();
                let named = |target: &Target| who.means(target.pid, &target.name);
                let meant: Vec<Target> = everybody.iter().filter_map(|pid| target(*pid).ok()).filter(named).collect();
                let hidden = all.as_ref().map_or(0, |(_, hidden)| *hidden);
                let others = match hidden {
                    0 => String::new(),
                    n => format!("; {n} processes of other users cannot be looked into, root can"),
                };
                match who {
                    Who::Name(name) if meant.is_empty() => {
                        let text = format!("no process with NetACC has the name {}{others}", name.escape_debug());
                        complaints.push(Complaint { process: None, text });
                    }
                    Who::All if meant.is_empty() => {
                        nobody =
                            Some(format!("no process has NetACC loaded; start one with 'netacc_run COMMAND'{others}"));
                    }
                    _ => {}
                }
                found.extend(meant.into_iter().map(|target| (target.pid, target)));
            }
        }
    }
    Ok(Found { targets: found.into_values().collect(), complaints, nobody })
}

/// The processes that have NetACC and that we may look into, and the number of those that we may not.
fn everybody() -> io::Result<(Vec<u32>, usize)> {
    let listing = reader::list_processes()?;
    let with_page = listing.processes.iter().map(|page| page.pid);
    Ok((with_page.chain(reader::list_unused()?).collect(), listing.hidden))
}

/// Looks at a process again for a moment if it was forked just now: it makes its page before its program goes on.
fn patiently(pid: u32) -> Result<Target, Error> {
    let until = Instant::now() + FORKING;
    loop {
        match target(pid) {
            Err(Error::Inherited(_) | Error::Starting) if Instant::now() < until => sleep(LOOK),
            found => return found,
        }
    }
}

pub(crate) fn target(pid: u32) -> Result<Target, Error> {
    match reader::hold_of(Process::open(pid)?) {
        Ok((page, seen)) => Ok(Target { pid, name: seen.program, held: Held::ByPage(page) }),
        Err((Error::Unused, process)) => Ok(Target { pid, name: name_of(pid), held: Held::Unused(process) }),
        Err((error, _)) => Err(error),
    }
}

/// Why a process cannot be asked.
fn in_words(error: &Error) -> String {
    match error {
        Error::NoProcess => "does not exist".into(),
        Error::Denied => "belongs to another user or is protected; run netacc_ctl as that user or as root".into(),
        Error::NotAccelerated => "does not have NetACC loaded; nothing of it is accelerated".into(),
        error => error.to_string(),
    }
}

/// The name that the kernel has for a process.
fn name_of(pid: u32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    clean(String::from_utf8_lossy(&name).trim_end_matches('\n'))
}
