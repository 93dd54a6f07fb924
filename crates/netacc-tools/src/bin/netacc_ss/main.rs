//! `netacc_ss`: shows what the accelerated processes of this host are doing.

mod between;
mod cfg;
mod chosen;
mod clear;
mod cnt;
mod complaint;
mod explain;
mod list;
mod mem;
mod metrics;
mod openmetrics;
mod other_end;
mod qp;
mod rdma;
mod reasons;
mod rendezvous;
mod serve;
mod show;
mod sock;
mod watch;

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use netacc_stats_reader::{self as reader, Listing, Snapshot};
use netacc_tools::terminal::{self, Style, print};

use args::{Args, Group};
use chosen::Chosen;
use netacc_tools::args::ss as args;
use show::Seen;

fn main() -> ExitCode {
    match run(&Args::read()).and_then(|text| print(&text)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            note(message);
            ExitCode::FAILURE
        }
    }
}

/// What is to be printed, or what went wrong.
fn run(args: &Args) -> Result<String, String> {
    let no_proc = |error: io::Error| format!("/proc cannot be read: {error}");
    if args.clear {
        return clear::run(args.json, Style::of_stdout()).map_err(no_proc);
    }
    let chosen = Chosen::new(args.whom());
    if let Some(place) = &args.serve {
        return serve::run(place, chosen, args.metrics());
    }
    let style = Style::of_stdout();
    if let Some(question) = args.explain {
        return explain::run(question, args.json, style);
    }
    let chosen = chosen.resolved()?;
    if let Some(interval) = args.watch {
        return watch::run(&watch::Order::new(args, chosen, interval)?);
    }
    match (chosen.pid(), args.openmetrics) {
        (None, false) if args.names_groups() => show::all(&chosen, args, style).map_err(no_proc),
        (None, false) => list::all(&chosen, args.json, style).map_err(no_proc),
        (None, true) => Ok(metrics::text(list::listed(&chosen).map_err(no_proc)?, &args.metrics())),
        (Some(pid), true) => {
            // What else there is to see of it is looked for before the text begins: a failure must be told.
            let page = look(pid, &args.metrics())?.page;
            let listing = Listing { processes: vec![page], ..Listing::default() };
            Ok(metrics::text(listing, &args.metrics()))
        }
        (Some(pid), false) => {
            let groups = args.groups();
            let seen = look(pid, &groups)?.filtered(args.filter());
            Ok(if args.json { format!("{:#}\n", seen.json(&groups)) } else { seen.text(&groups, style) })
        }
    }
}

/// What there is to see of a process now.
fn look(pid: u32, groups: &[Group]) -> Result<Seen, String> {
    let page: Result<Snapshot, _> = reader::open(pid);
    page.and_then(|page| Seen::new(page, groups)).map_err(|error| complaint::of(pid, &error))
}

/// Says something that is not part of the output.
fn note(message: impl Display) {
    terminal::note("netacc_ss", message);
}
