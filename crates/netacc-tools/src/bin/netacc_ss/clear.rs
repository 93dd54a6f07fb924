//! `-c`: removes what ended processes have left.
//!
//! That is their sockets in the host directory (`NACC_HOST_DIR`). A page is unnamed memory that the kernel frees with
//! the last process that holds it; if another process still holds the page of an ended one, it is told whose that is,
//! and left alone.

use netacc_conf::Config;
use netacc_stats_reader::{self as reader, Leftover};
use netacc_tools::terminal::{Style, paragraph};
use netacc_tools::{conf_file, environment};
use netacc_transport::shm::host_access::{self, Unfit};
use netacc_transport::shm::host_dir::{self, Cleared};
use serde_json::{Value, json};

use crate::complaint::program;

/// What there was to clear, as text or JSON.
pub(crate) fn run(json: bool, style: Style) -> std::io::Result<String> {
    let held = reader::leftovers()?;
    let dir = directory();
    let cleared = clear(&dir);
    if json {
        let each: Value = held.iter().map(one).collect();
        let removed = cleared.as_ref().map_or(0, |cleared| cleared.removed);
        return Ok(format!("{:#}\n", json!({ "cleared": removed, "held": each })));
    }
    let mut out = String::new();
    let mut say = |text: &str| paragraph("", text, 0, style.width, &mut out);
    match &cleared {
        Ok(Cleared { removed: 1, .. }) => say(&format!("Removed 1 socket of an ended process from {dir}.")),
        Ok(Cleared { removed, .. }) if *removed > 0 => {
            say(&format!("Removed {removed} sockets of ended processes from {dir}."));
        }
        _ => say("Nothing to clear: NetACC keeps statistics and connections in unnamed memory (memfd) and abstract \
                  sockets, which the kernel removes with the last process that uses them."),
    }
    match cleared {
        Ok(Cleared { left, .. }) if left > 0 => {
            say(&format!("{left} sockets of ended processes in {dir} belong to other users and stay."));
        }
        Err(Some(why)) => say(&format!("{dir} is not used: {why}.")),
        _ => {}
    }
    for Leftover { owner, program: of, holder } in held {
        let name = program(holder).map_or_else(String::new, |name| format!(" ({name})"));
        say(&format!("The page of ended process {owner} ({of}) is held by process {holder}{name}, and ends with it."));
    }
    Ok(out)
}

/// The host directory of the environment or the configuration file.
fn directory() -> String {
    let mut config = Config::default();
    let mut ignored = Vec::new();
    if let Ok(text) = conf_file::read(netacc_conf::DEFAULT_PATH.as_ref()) {
        config.apply_file(netacc_conf::DEFAULT_PATH, &text, &mut ignored);
    }
    if let Some(value) = environment::var_os("NACC_HOST_DIR") {
        config.apply_env("NACC_HOST_DIR", value.as_encoded_bytes(), &mut ignored);
    }
    config.host_dir
}

/// Removes the dead sockets of the directory. `Err`: it is not used, and why unless it is absent.
fn clear(dir: &str) -> Result<Cleared, Option<Unfit>> {
    match host_access::check(dir) {
        Ok(_) => host_dir::clear(dir).map_err(|_| None),
        Err(Unfit::Absent) => Err(None),
        Err(why) => Err(Some(why)),
    }
}

fn one(left: &Leftover) -> Value {
    json!({ "pid": left.owner, "program": left.program, "held_by": left.holder })
}
