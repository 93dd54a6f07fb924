//! The log file: one write(2) per line, opened and closed each time, so that no descriptor is held and
//! a rotated or deleted file does no harm. Lines are rare.

mod file;
mod rate;

use crate::runtime;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};
use netacc_conf::LogLevel;
use netacc_stats::{Counter, page};
use netacc_sys::raw;
use netacc_transport::shm::strangers::Offence;

pub use rate::Site;

/// A line on the stack; what does not fit is cut.
struct Line {
    buf: [u8; 512],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for b in s.bytes() {
            if let Some(c) = self.buf.get_mut(self.len) {
                // A peer's or file's text must not forge lines.
                *c = if b.is_ascii_control() { b'?' } else { b };
                self.len += 1;
            }
        }
        Ok(())
    }
}

impl Line {
    /// The text with time, process and level before it.
    fn new(level: LogLevel, text: fmt::Arguments<'_>) -> Line {
        let mut l = Line { buf: [0; 512], len: 0 };
        let now = netacc_sys::time::realtime();
        let (seconds, micros) = (now / 1_000_000_000, now / 1000 % 1_000_000);
        let _ = write!(l, "{seconds}.{micros:06} {} {} {text}", raw::getpid(), level.name());
        l.len = l.len.min(l.buf.len() - 1);
        if let Some(c) = l.buf.get_mut(l.len) {
            *c = b'\n';
            l.len += 1;
        }
        l
    }

    fn bytes(&self) -> &[u8] {
        self.buf.get(..self.len).unwrap_or(&[])
    }
}

/// Set when the process may not open files any more.
static ENDED: AtomicBool = AtomicBool::new(false);

/// Stops logging: a filter on system calls is about to be installed, which may kill a process that opens a file.
pub fn end() {
    ENDED.store(true, Ordering::Relaxed);
}

/// Writes a line if `level` is logged. Warnings and worse, which a peer may cause, are limited by a token bucket per
/// `site`.
pub fn line(site: &Site, level: LogLevel, text: fmt::Arguments<'_>) {
    let Some(rt) = runtime::get() else { return };
    if level < rt.conf.log_level || rt.conf.log_path.is_empty() || ENDED.load(Ordering::Relaxed) {
        return;
    }
    if level >= LogLevel::Warn {
        match site.admit(netacc_sys::time::now()) {
            None => return,
            Some(0) => {}
            Some(n) => {
                write(&rt.conf.log_path, level, format_args!("{n} further lines like the next one were left out"))
            }
        }
    }
    write(&rt.conf.log_path, level, text);
}

fn write(path: &str, level: LogLevel, text: fmt::Arguments<'_>) {
    if file::append(path, Line::new(level, text).bytes()) {
        page().count(Counter::LogLines);
    }
}

/// Logs what a peer did that ends its connection.
pub fn offence(o: &Offence) {
    let Offence { pid, uid, slot, what } = o;
    crate::log!(Warn, "peer {pid} of user {uid}: {what} (slot {slot}); its connection is reset");
}

/// Logs at the level named, e.g. `log!(Warn, "...")`.
#[macro_export]
macro_rules! log {
    ($level:ident, $($arg:tt)*) => {{
        static SITE: $crate::log::Site = $crate::log::Site::new();
        $crate::log::line(&SITE, netacc_conf::LogLevel::$level, format_args!($($arg)*))
    }};
}
