//! `netacc_ctl`: switches accelerated programs to kernel TCP while they run, and back, has them load their rules anew, and
//! has the library in them replaced.

mod carry_out;
mod find;
mod rules_file;
mod show;
mod upgrade;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::process::ExitCode;

use netacc_stats::ControlCommand;
use netacc_tools::args::ctl::{Action, Args};
use netacc_tools::terminal::{self, Style, print};
use netacc_tools::time;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::carry_out::{Request, carry_out};
use crate::find::{Complaint, Target, find, in_lines};

fn main() -> ExitCode {
    let args: Args = netacc_tools::help::parse();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            note(message);
            ExitCode::FAILURE
        }
    }
}

/// Does what is asked for; whether all of it is done.
fn run(args: &Args) -> Result<bool, String> {
    let began = time::now();
    raise_limit();
    let mut found = find(&args.who()).map_err(|error| format!("/proc cannot be read: {error}"))?;
    if let Some(nobody) = &found.nobody {
        note(nobody);
    }
    // To look at nobody is done when that was said; a request that nobody gets is not carried out.
    let mut done = found.complaints.is_empty() && (found.nobody.is_none() || args.action == Action::Status);
    in_lines(&found.complaints).iter().for_each(note);
    let switch = |command| carry_out(&found.targets, Request::Switch(command), args.wait);
    let complaints = match args.action {
        Action::Off => switch(ControlCommand::Off),
        Action::On => switch(ControlCommand::On),
        Action::Status => Vec::new(),
        Action::Upgrade => {
            let complaints = upgrade::carry_out(&found.targets, args.wait);
            // A process has another page now.
            found.targets = found.targets.iter().filter_map(Target::again).collect();
            complaints
        }
        Action::Reload => {
            let checked = rules_file::check(&found.targets);
            checked.mistakes.iter().for_each(note);
            done = done && checked.mistakes.is_empty();
            let (kept, mut asked): (Vec<_>, Vec<_>) = found.targets.into_iter().partition(|t| checked.forbids(t));
            if asked.is_empty() && !kept.is_empty() {
                return Err("no process was asked to load its rules anew, and all keep those that they have".into());
            }
            in_lines(&checked.notes).iter().for_each(note);
            let mut complaints: Vec<_> = kept.iter().map(|t| t.about(rules_file::NOT_ASKED)).collect();
            complaints.extend(reload(args, began, &mut asked, |target| checked.forbids(target)));
            found.targets = asked.into_iter().chain(kept).collect();
            found.targets.sort_by_key(|target| target.pid);
            complaints
        }
    };
    done = done && complaints.is_empty();
    in_lines(&complaints).iter().for_each(note);
    let reload = (args.action == Action::Reload).then_some(began);
    let seen: Vec<_> = found.targets.iter().filter_map(|target| show::Seen::now(target, reload)).collect();
    let style = Style::of_stdout();
    print(&match args.action {
        _ if args.json => show::json(&seen),
        Action::Status => show::text(&seen, style),
        _ if seen.len() > show::MANY => show::summary(&seen),
        _ => show::text(&seen, style),
    })?;
    Ok(done)
}

/// Permits as many descriptors as the system lets this program have: each process is held by several.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Has processes load their rules anew, and those as well that were forked from them before they heard of it, if the
/// command line means them and `forbids` does not hold for them. They are added to `targets`.
fn reload(args: &Args, began: u64, targets: &mut Vec<Target>, forbids: impl Fn(&Target) -> bool) -> Vec<Complaint> {
    let mut complaints = carry_out(targets, Request::Reload, args.wait);
    // Each round finds the children of the last one at most.
    for _ in 0..ROUNDS {
        let asked: BTreeSet<u32> = targets.iter().map(|target| target.pid).collect();
        let Ok(found) = find(&args.who()) else { break };
        let has_old_rules = |target: &Target| {
            let page = target.page().and_then(|page| page.read().ok());
            page.is_some_and(|page| page.control.rules_loaded_ns < began)
        };
        let fresh = |target: &Target| !asked.contains(&target.pid) && has_old_rules(target) && !forbids(target);
        let more: Vec<Target> = found.targets.into_iter().filter(fresh).collect();
        if more.is_empty() {
            break;
        }
        complaints.extend(carry_out(&more, Request::Reload, args.wait));
        targets.extend(more);
    }
    complaints
}

/// How often processes that were forked meanwhile are looked for.
const ROUNDS: usize = 4;

/// Says something that is not part of the output.
fn note(message: impl Display) {
    terminal::note("netacc_ctl", message);
}
