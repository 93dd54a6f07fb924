//! `netacc_check`: is this host, a program or a peer ready for acceleration, and what is to be done?

mod beside;
mod drivers;
mod facts;
mod finding;
mod host;
mod interface;
mod neighbour;
mod peer;
mod program;
mod rdma_probe;
mod rules;
mod show;
mod sockets;

use std::process::ExitCode;

use netacc_tools::terminal::{self, note, print};

use args::{Args, Colour};
use drivers::Drivers;
use facts::{live, record};
use finding::{Level, Report};
use netacc_tools::args::check as args;
use netacc_tools::text::clean;
use peer::Target;
use show::Style;

/// The status where something is to be done.
const TO_DO: u8 = 1;
/// The status for a wrong option, or a file that was named and cannot be used.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let args: Args = netacc_tools::help::parse();
    let done = if args.record {
        record::write(&live::host(args.config.as_deref())).map(|text| (text, Level::Ok))
    } else {
        check(&args)
    };
    let done = done.and_then(|(text, worst)| print(&text).map(|()| worst));
    match done {
        Ok(worst) if worst >= args.fail_on && !args.record => ExitCode::from(TO_DO),
        Ok(_) => ExitCode::SUCCESS,
        Err(message) => {
            for line in message.lines() {
                note("netacc_check", line);
            }
            ExitCode::from(USAGE)
        }
    }
}

/// What is to be printed, and the worst that was found.
fn check(args: &Args) -> Result<(String, Level), String> {
    let mut report = Report::default();
    let config = args.config.as_deref();
    if let Some(path) = config {
        netacc_tools::conf_file::read(path)
            .map_err(|error| format!("-f: {}: {error}", clean(&path.to_string_lossy())))?;
    }
    match args.words.as_slice() {
        [program, place] if args.rules => {
            let config = host::configuration(&live::configuration(config), &mut report);
            rules::judge(program, &place.to_string_lossy(), config, &mut report)?;
        }
        _ if args.rules => return Err("--rules takes PROGRAM HOST:PORT, or PROGRAM :PORT".into()),
        [] => {
            let drivers = Drivers::load(args.drivers.as_deref())?;
            let facts = match &args.facts {
                Some(path) => record::read(path)?,
                None => live::host(config),
            };
            host::judge(&facts, &drivers, args.interface.as_deref(), args.all, &mut report);
        }
        [word, rest @ ..] => match word.to_str().filter(|_| rest.is_empty()).and_then(Target::parse) {
            // A program may have a colon in its name.
            Some(target) if netacc_tools::program::find(word).is_err() => {
                let config = host::configuration(&live::configuration(config), &mut report);
                peer::judge(&target?, &config, &live::host(None), &mut report);
            }
            None if Target::parse(&word.to_string_lossy()).is_some() && netacc_tools::program::find(word).is_err() => {
                let word = clean(&word.to_string_lossy());
                return Err(format!("{word}: nothing may follow HOST:PORT; options come before it"));
            }
            _ => {
                program::judge(word, &mut report);
                host::configuration(&live::configuration(config), &mut report);
            }
        },
    }
    let text = if args.json { format!("{:#}\n", report.json()) } else { show::text(&report, style(args)) };
    Ok((text, report.worst()))
}

fn style(args: &Args) -> Style {
    let mut terminal = terminal::Style::of_stdout();
    match args.color {
        Colour::Always => terminal.colour = true,
        Colour::Never => terminal.colour = false,
        Colour::Auto => {}
    }
    let least = if args.quiet { Level::Warn } else { Level::Ok };
    Style { terminal, least, reasons: args.verbose }
}
