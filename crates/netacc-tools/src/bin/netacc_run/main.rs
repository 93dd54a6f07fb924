//! `netacc_run [OPTIONS] COMMAND`: runs a command with NetACC preloaded.

mod launch;
mod settings;

use std::process::ExitCode;

use netacc_tools::args::run as args;
use netacc_tools::terminal::note;

/// The status for a wrong option, value or configuration file.
const USAGE: u8 = 2;
/// The status, as shells have it, for a command that is there but cannot be run.
const NOT_EXECUTABLE: u8 = 126;
/// The status, as shells have it, for a command that is not there.
const NOT_FOUND: u8 = 127;

fn main() -> ExitCode {
    let args = args::parse();
    let settings = match settings::check(&args) {
        Ok(settings) => settings,
        Err(message) => {
            say(&message);
            return ExitCode::from(USAGE);
        }
    };
    for warning in &settings.warnings {
        say(warning);
    }
    let failure = launch::launch(&args.command, &settings);
    say(&failure.message);
    ExitCode::from(failure.status)
}

/// Says something to the user. It goes to standard error, for standard output belongs to the command.
fn say(message: &str) {
    note("netacc_run", message);
}
