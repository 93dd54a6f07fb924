//! A trace for debugging: one line for each frame that a queue pair sends or gets, in the file that
//! `NETACC_FABRIC_TRACE` names.
//!
//! A line has the time (seconds of the monotonic clock, which all hosts of a case share), the process, the queue pair,
//! the direction, the kind of the frame, the length of its body and its count. The file is opened for each line, so
//! that the program finds no additional descriptor open.

use crate::wire::Frame;
use rustix::fs::{Mode, OFlags};
use rustix::time::{ClockId, clock_gettime};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Whether a frame is sent or received.
#[derive(Clone, Copy, Debug)]
pub enum Direction {
    Out,
    In,
}

/// Writes a line for a frame of queue pair `pair`, if the environment asks for it.
pub fn message(pair: u32, direction: Direction, frame: &Frame) {
    static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let Some(path) = FILE.get_or_init(|| std::env::var_os("NETACC_FABRIC_TRACE").map(PathBuf::from)) else { return };
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(path.as_os_str().as_bytes(), flags, Mode::from_raw_mode(0o666)) else { return };
    let (now, pid) = (clock_gettime(ClockId::Monotonic), std::process::id());
    let arrow = match direction {
        Direction::Out => '>',
        Direction::In => '<',
    };
    let line = format!(
        "{}.{:06} {pid} QP {pair} {arrow} {:?} {} {}\n",
        now.tv_sec,
        now.tv_nsec / 1000,
        frame.kind,
        frame.len,
        frame.count
    );
    let _ = rustix::io::write(&file, line.as_bytes());
}
