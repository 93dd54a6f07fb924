//! A trace for debugging: one line for each frame that a queue pair sends or gets, in the file that
//! `NETACC_FABRIC_TRACE` names.
//!
//! A line has the time (seconds of the monotonic clock, which all hosts of a case share), the process, the queue pair,
//! the direction, the kind of the frame, the length of its body and its count, and of a message what NetACC says at its
//! beginning: its kind, the connection, the credits that it brings, and the number of messages that it acknowledges. The file is opened for each line, so
//! that the program finds no additional descriptor open.

use crate::wire::{Frame, IMMEDIATE, Kind};
use netacc_wire::frame;
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
pub fn message(pair: u32, direction: Direction, frame: &Frame, body: &[u8]) {
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
        "{}.{:06} {pid} QP {pair} {arrow} {:?} {} {}{}\n",
        now.tv_sec,
        now.tv_nsec / 1000,
        frame.kind,
        frame.len,
        frame.count,
        said(frame, body)
    );
    let _ = rustix::io::write(&file, line.as_bytes());
}

/// What the head of NetACC's message says.
fn said(frame: &Frame, body: &[u8]) -> String {
    if frame.kind != Kind::Send {
        return String::new();
    }
    let immediate = frame.flags & IMMEDIATE != 0;
    let head = if immediate {
        // The number of messages that it acknowledges is that of its credits more than before.
        Some(frame::Brief::decode(u32::from_be(frame.immediate)).frame(0))
    } else {
        body.first_chunk().and_then(frame::Frame::decode)
    };
    match head {
        Some(head) => format!(
            " {:?} connection {} credits {}{} acknowledges {}{} window {}",
            head.kind,
            head.conn,
            head.credits,
            if head.large { " (long)" } else { "" },
            if immediate { "+" } else { "" },
            head.acked,
            head.window
        ),
        None => " ?".into(),
    }
}
