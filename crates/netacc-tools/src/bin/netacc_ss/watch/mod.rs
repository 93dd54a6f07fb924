//! `-w`: rates per second, again and again.

mod keys;
mod live;
mod rates;
mod screen;

use std::io::{self, IsTerminal};
use std::thread;
use std::time::{Duration, Instant};

use netacc_stats_reader::{self as reader, Error};
use netacc_tools::filter::Filter;
use netacc_tools::terminal::Style;
use netacc_tools::time;
use serde_json::Value;

use crate::args::{Args, Group};
use crate::chosen::Chosen;
use crate::show::Seen;
use crate::{complaint, note};

/// What to watch, and how.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// The only process that is watched; `None` for those that are chosen.
    pid: Option<u32>,
    chosen: Chosen,
    filter: Option<Filter>,
    groups: Vec<Group>,
    interval: Duration,
    /// The number of times that the figures are shown; `None`: until the user ends the tool.
    count: Option<u64>,
    json: bool,
}

impl Order {
    /// An error says that there are several processes where one is needed.
    pub(crate) fn new(args: &Args, chosen: Chosen, interval: Duration) -> Result<Self, String> {
        let pid = chosen.pid();
        if args.names_groups() && pid.is_none() {
            return Err("-s with -w needs a single process; several have that name".into());
        }
        let filter = args.filter().cloned();
        Ok(Self { pid, chosen, filter, groups: args.groups(), interval, count: args.count, json: args.json })
    }
}

/// One look at what is watched.
struct Round {
    at: Instant,
    /// Of one process or of all, by rising number.
    seen: Vec<Seen>,
    /// The process has ended; what is seen is what it left.
    ended: bool,
}

/// Looks, and keeps hold of the page of a process that may end.
#[derive(Default)]
struct Watcher {
    held: Option<reader::Page>,
}

impl Watcher {
    fn look(&mut self, pid: Option<u32>, groups: &[Group], chosen: &Chosen) -> Result<Round, String> {
        let at = Instant::now();
        let Some(pid) = pid else {
            let mut listing = reader::list_processes().map_err(|error| format!("/proc cannot be read: {error}"))?;
            chosen.keep(&mut listing);
            return Ok(Round { at, seen: listing.processes.into_iter().map(Seen::last).collect(), ended: false });
        };
        let found = reader::hold(pid).and_then(|(page, copy)| {
            self.held = Some(page);
            Seen::new(copy, groups)
        });
        match (found, &self.held) {
            (Ok(seen), _) => Ok(Round { at, seen: vec![seen], ended: false }),
            // The kernel keeps the page for us.
            (Err(Error::NoProcess | Error::Exited), Some(page)) => {
                let last = page.read().map_err(|error| complaint::of(pid, &error))?;
                Ok(Round { at, seen: vec![Seen::last(last)], ended: true })
            }
            (Err(error), _) => Err(complaint::of(pid, &error)),
        }
    }

    /// Another process, or all.
    fn forget(&mut self) {
        self.held = None;
    }
}

/// Watches until the end that was asked for, that of the process, or a key or signal.
pub(crate) fn run(order: &Order) -> Result<String, String> {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if io::stdout().is_terminal() && !order.json && !dumb {
        return live::run(order);
    }
    let mut watcher = Watcher::default();
    let mut before = watcher.look(order.pid, &order.groups, &order.chosen)?;
    let mut rounds = 0;
    while order.count.is_none_or(|count| rounds < count) && !before.ended {
        // What looking takes does not shift the rhythm.
        thread::sleep((before.at + order.interval).saturating_duration_since(Instant::now()));
        let now = watcher.look(order.pid, &order.groups, &order.chosen)?;
        rounds += 1;
        if !write(order, &before, &now)? {
            return Ok(String::new());
        }
        before = now;
    }
    if let Some(pid) = order.pid.filter(|_| before.ended) {
        note(format_args!("process {pid} has ended; these were its last figures"));
    }
    Ok(String::new())
}

/// One round; false if nobody reads any more.
fn write(order: &Order, before: &Round, now: &Round) -> Result<bool, String> {
    let text = if order.json {
        format!("{}\n", json(order, before, now))
    } else {
        let table = match order.pid {
            None => rates::overview(before, now, rates::Sort::default(), None, order.filter.as_ref(), Style::default()),
            Some(_) => rates::process(before, now, &order.groups, order.filter.as_ref(), Style::default()),
        };
        format!("{}\n{table}\n", time::utc(time::now()))
    };
    let mut out = io::stdout().lock();
    match io::Write::write_all(&mut out, text.as_bytes()).and_then(|()| io::Write::flush(&mut out)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(format!("the output cannot be written: {error}")),
    }
}

/// One line.
fn json(order: &Order, before: &Round, now: &Round) -> Value {
    let meant =
        now.seen.iter().filter(|seen| order.pid.is_some() || rates::is_meant(&seen.page, order.filter.as_ref()));
    let mut each = meant.map(|seen| {
        let mut value = if order.pid.is_some() {
            seen.clone().filtered(order.filter.as_ref()).json(&order.groups)
        } else {
            seen.json(&[])
        };
        if let Some(map) = value.as_object_mut() {
            map.insert("time".into(), time::utc(seen.now).into());
            map.insert("per_second".into(), rates::json(before, now, seen));
            map.insert("ended".into(), now.ended.into());
        }
        value
    });
    match order.pid {
        Some(_) => each.next().unwrap_or_default(),
        None => each.collect(),
    }
}
