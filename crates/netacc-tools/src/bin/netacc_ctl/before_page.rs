//! Processes that have NetACC loaded and no page yet. Such a process finds the request when it opens its first TCP
//! socket, in a limit that the kernel keeps and does not enforce (see [`OFF_BEFORE_THE_PAGE`]).

use netacc_stats::{ControlCommand, OFF_BEFORE_THE_PAGE};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

fn process(pid: u32) -> Option<Pid> {
    Pid::from_raw(pid.cast_signed())
}

/// The soft and the hard limit. They are read from /proc, since rustix has no call that only reads the limit of another
/// process.
fn limit(pid: u32) -> Option<(Option<u64>, Option<u64>)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max file locks"))?;
    let mut words = line.split_whitespace().map(|word| word.parse().ok());
    Some((words.next()?, words.next()?))
}

/// Whether an operator has switched the process off.
pub(crate) fn is_off(pid: u32) -> bool {
    limit(pid).is_some_and(|(soft, _)| soft == Some(OFF_BEFORE_THE_PAGE))
}

/// Sets the mark in the limit, or removes it.
pub(crate) fn mark(pid: u32, command: ControlCommand) -> Result<(), &'static str> {
    const GONE: &str = "has ended";
    let (Some(process), Some((_, hard))) = (process(pid), limit(pid)) else { return Err(GONE) };
    if (command == ControlCommand::Off) == is_off(pid) {
        return Ok(());
    }
    let soft = if command == ControlCommand::Off { Some(OFF_BEFORE_THE_PAGE) } else { hard };
    match prlimit(Some(process), Resource::Locks, Rlimit { current: soft, maximum: hard }) {
        Ok(_) => Ok(()),
        Err(Errno::SRCH) => Err(GONE),
        Err(Errno::PERM) => Err("belongs to another user; run netacc_ctl as that user or as root"),
        Err(_) => Err("has not opened a TCP socket yet, and the system lets nothing be said to it (prlimit)"),
    }
}
