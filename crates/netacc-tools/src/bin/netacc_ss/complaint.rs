//! What is the matter with a process, in words.

use std::fmt::Display;
use std::path::Path;

use netacc_stats_reader::Error;
use netacc_tools::program as executable;

/// The name of a process, if it has one.
pub(crate) fn program(pid: u32) -> Option<String> {
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    let name = String::from_utf8_lossy(&name);
    Some(name.trim_end().escape_debug().to_string()).filter(|name| !name.is_empty())
}

/// A process and what `text` says of it.
pub(crate) fn about(pid: u32, text: impl Display) -> String {
    named(pid, program(pid).as_deref(), text)
}

/// The same with the name as it is known.
pub(crate) fn named(pid: u32, name: Option<&str>, text: impl Display) -> String {
    match name {
        None => format!("process {pid} {text}"),
        Some(name) => format!("process {pid} ({name}) {text}"),
    }
}

/// What is known to keep the program of a process from NetACC.
pub(crate) fn obstacle(pid: u32) -> Option<executable::Obstacle> {
    executable::judge(Path::new(&format!("/proc/{pid}/exe"))).obstacle
}

/// Why a process cannot be shown; where its program is known not to take NetACC, that too.
pub(crate) fn of(pid: u32, error: &Error) -> String {
    let text = about(pid, error);
    if !matches!(error, Error::NotAccelerated) {
        return text;
    }
    match obstacle(pid) {
        Some(obstacle) => format!("{}: {obstacle}", about(pid, "cannot be accelerated by NetACC")),
        None => text,
    }
}
