//! `netacc_ctl`: switches accelerated programs to kernel TCP while they run, and back.

mod before_page;
mod carry_out;
mod find;
mod show;

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use netacc_stats::ControlCommand;
use netacc_tools::args::ctl::{Action, Args};
use netacc_tools::terminal::{Style, print};

fn main() -> ExitCode {
    let args = Args::parse();
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
    let found = find::find(&args.who()).map_err(|error| format!("/proc cannot be read: {error}"))?;
    let mut done = found.complaints.is_empty();
    found.complaints.iter().for_each(note);
    let command = match args.action {
        Action::Off => Some(ControlCommand::Off),
        Action::On => Some(ControlCommand::On),
        Action::Status => None,
    };
    if let Some(command) = command {
        for complaint in carry_out::carry_out(&found.targets, command, args.wait) {
            done = false;
            note(complaint);
        }
    }
    let seen: Vec<_> = found.targets.iter().filter_map(show::Seen::now).collect();
    print(&if args.json { show::json(&seen) } else { show::text(&seen, Style::of_stdout()) })?;
    Ok(done)
}

/// Says something that is not part of the output.
fn note(message: impl Display) {
    // Nobody is left to tell when stderr is gone.
    let _ = writeln!(io::stderr(), "netacc_ctl: {message}");
}
