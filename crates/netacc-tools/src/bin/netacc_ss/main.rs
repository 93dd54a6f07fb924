//! `netacc_ss`: shows what the accelerated processes of this host are doing.

mod args;
mod cfg;
mod cnt;
mod list;
mod mem;
mod qp;
mod reasons;
mod show;
mod sock;
mod table;
mod time;

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use netacc_stats::reader::Error;

use args::Args;

fn main() -> ExitCode {
    let args = Args::read();
    let output = if args.clear {
        Ok(clear(args.json))
    } else if let Some(pid) = args.pid() {
        show::process(pid, &args.groups(), args.json).map_err(|error| complaint(pid, &error))
    } else {
        list::all(args.json).map_err(|error| format!("/proc cannot be read: {error}"))
    };
    match output.and_then(|text| print(&text)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            note(message);
            ExitCode::FAILURE
        }
    }
}

/// Says something that is not part of the output.
fn note(message: impl Display) {
    // Nobody is left to tell when stderr is gone.
    let _ = writeln!(io::stderr(), "netacc_ss: {message}");
}

/// Writes the output at once; a reader that has seen enough (`| head`) is no failure.
fn print(text: &str) -> Result<(), String> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("the output cannot be written: {error}"))
        }
        _ => Ok(()),
    }
}

fn clear(json: bool) -> String {
    if json {
        return "{\"cleared\":0}\n".into();
    }
    "Nothing to clear: NetACC keeps statistics and connections in unnamed memory (memfd)\n\
     and abstract sockets, which the kernel removes with the last process that uses them.\n"
        .into()
}

/// What is the matter with a process, with its name if it has one.
fn complaint(pid: u32, error: &Error) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    match name.trim_end() {
        "" => format!("process {pid} {error}"),
        name => format!("process {pid} ({}) {error}", name.escape_debug()),
    }
}
