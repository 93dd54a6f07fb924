//! Processes that have NetACC loaded and no page yet. Such a process finds the request when it opens its first TCP
//! socket, in a limit that the kernel keeps and does not enforce (see [`OFF_BEFORE_THE_PAGE`]).

use netacc_stats::{ControlCommand, OFF_BEFORE_THE_PAGE};
use netacc_stats_reader::Process;
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// The soft and the hard limit. They are read from /proc, since rustix has no call that only reads the limit of another
/// process.
fn limit(process: &Process) -> Option<(Option<u64>, Option<u64>)> {
    let text = process.text("limits").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max file locks"))?;
    let mut words = line.split_whitespace().map(|word| word.parse().ok());
    Some((words.next()?, words.next()?))
}

/// Whether an operator has switched the process off.
#[must_use]
pub fn is_off(process: &Process) -> bool {
    limit(process).is_some_and(|(soft, _)| soft == Some(OFF_BEFORE_THE_PAGE))
}

/// Sets the mark in the limit, or removes it.
///
/// # Errors
///
/// Text that follows the name of the process.
pub fn mark(process: &Process, command: ControlCommand) -> Result<(), &'static str> {
    const GONE: &str = "has ended";
    let (Some(pid), Some((_, hard))) = (Pid::from_raw(process.pid().cast_signed()), limit(process)) else {
        return Err(GONE);
    };
    if (command == ControlCommand::Off) == is_off(process) {
        return Ok(());
    }
    let soft = if command == ControlCommand::Off { Some(OFF_BEFORE_THE_PAGE) } else { hard };
    let done = prlimit(Some(pid), Resource::Locks, Rlimit { current: soft, maximum: hard });
    // prlimit(2) knows a number only. If the process has ended meanwhile, and its number is another one's already, that one
    // gets back what it had.
    if let Ok(was) = &done
        && !process.exists()
    {
        let _ = prlimit(Some(pid), Resource::Locks, *was);
        return Err(GONE);
    }
    match done {
        Ok(_) => Ok(()),
        Err(Errno::SRCH) => Err(GONE),
        Err(Errno::PERM) => Err("belongs to another user; run netacc_ctl as that user or as root"),
        Err(_) => Err("has not opened a TCP socket yet, and the system lets nothing be said to it (prlimit)"),
    }
}
