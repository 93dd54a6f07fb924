//! `-c`: removes the pages of processes that have ended.
//!
//! There are none: a page is unnamed memory that the kernel frees with the last process that holds it. What can be
//! left is a page of an ended process that another one still holds; it is told whose that is, and left alone.

use netacc_stats_reader::{self as reader, Leftover};
use serde_json::{Value, json};

use crate::complaint::program;

/// What there was to clear, as text or JSON.
pub(crate) fn run(json: bool) -> std::io::Result<String> {
    let held = reader::leftovers()?;
    if json {
        let each: Value = held.iter().map(one).collect();
        return Ok(format!("{:#}\n", json!({ "cleared": 0, "held": each })));
    }
    let mut out = String::from(
        "Nothing to clear: NetACC keeps statistics and connections in unnamed memory (memfd)\n\
         and abstract sockets, which the kernel removes with the last process that uses them.\n",
    );
    for Leftover { owner, program: of, holder } in held {
        let name = program(holder).map_or_else(String::new, |name| format!(" ({name})"));
        out.push_str(&format!(
            "The page of ended process {owner} ({of}) is held by process {holder}{name}, and ends with it.\n"
        ));
    }
    Ok(out)
}

fn one(left: &Leftover) -> Value {
    json!({ "pid": left.owner, "program": left.program, "held_by": left.holder })
}
