//! `netacc_bench`: what does acceleration bring on the user's own hosts?

mod bound;
mod child;
mod client;
mod conclusion;
mod conn;
mod containers;
mod control;
mod cpu;
mod facts;
mod json;
mod listener;
mod load;
mod page;
mod pattern;
mod ping;
mod progress;
mod redis;
mod redis_server;
mod redis_show;
mod results;
mod server;
mod stats;
mod svg;
mod table;
mod timed;
mod waiter;
mod worker;

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use netacc_tools::terminal::{self, print};

use args::{Args, ClientArgs, Command, RedisArgs};
use netacc_tools::args::bench as args;

/// The status where something could not be measured.
const FAILED: u8 = 1;
/// The status for wrong usage, as clap has it, and for an output that cannot be written.
const USAGE: u8 = 2;

/// What went wrong, and the status that says so.
struct Failure(u8, String);

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self(FAILED, text)
    }
}

fn main() -> ExitCode {
    let done = match netacc_tools::help::parse::<Args>().command {
        Command::Server(args) => server::run(&args).map(|()| true).map_err(Failure::from),
        Command::Client(args) => client(&args),
        Command::Redis(args) => redis(&args),
        Command::Launch(args) => redis::launch(&args).map(|()| true).map_err(Failure::from),
        Command::Listener(args) => listener::run(&args).map(|()| true).map_err(Failure::from),
        Command::Worker => worker::run().map(|()| true).map_err(Failure::from),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILED),
        Err(Failure(status, text)) => {
            note(&text);
            ExitCode::from(status)
        }
    }
}

/// `false` if a part could not be measured.
fn client(args: &ClientArgs) -> Result<bool, Failure> {
    // A chart that cannot be written is better known before a long measurement than after it.
    let mut chart = match &args.svg {
        Some(path) => Some((path, File::create(path).map_err(|error| unwritten(path, &error))?)),
        None => None,
    };
    let results = client::run(args)?;
    if let Some((path, file)) = &mut chart {
        file.write_all(svg::chart(&results).as_bytes()).map_err(|error| unwritten(path, &error))?;
    }
    let text = if args.json { format!("{:#}\n", json::value(&results)) } else { table::text(&results) };
    print(&text).map_err(|text| Failure(USAGE, text))?;
    Ok(results.parts.iter().all(|part| part.cells.iter().all(|cell| cell.error.is_none())))
}

fn redis(args: &RedisArgs) -> Result<bool, Failure> {
    let report = redis::run(args)?;
    let text = if args.json { format!("{:#}\n", redis_show::json(&report)) } else { redis_show::text(&report) };
    print(&text).map(|()| true).map_err(|text| Failure(USAGE, text))
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    Failure(USAGE, format!("{}: {error}", netacc_tools::text::clean(&path.to_string_lossy())))
}

/// Says something that is not part of the output.
fn note(text: &str) {
    terminal::note("netacc_bench", text);
}

/// Says where the server is: those who started it may wait for the line.
fn say(text: &str) -> Result<(), String> {
    print(&format!("netacc_bench: {text}"))
}
