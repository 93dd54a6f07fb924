//! The log: each line is one write(2) to a file that is opened and closed for it, so that no descriptor is
//! held and a rotated or deleted file does no harm. Lines are rare.

#![cfg_attr(not(test), no_std)]

mod file;
mod rate;

use core::fmt::{self, Write};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use netacc_conf::Config;
use netacc_stats::{Counter, page};
use netacc_sys::raw;

pub use netacc_conf::LogLevel;
pub use rate::Site;

/// A line on the stack; text that does not fit is cut.
struct Line {
    buf: [u8; 512],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for b in s.bytes() {
            if let Some(c) = self.buf.get_mut(self.len) {
                // Text of a peer or a file must not forge lines.
                *c = if b.is_ascii_control() { b'?' } else { b };
                self.len += 1;
            }
        }
        Ok(())
    }
}

impl Line {
    /// A line of the time, the process, the level and the text.
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

/// The configuration, which names the log; while it is null, nothing is logged.
static CONFIG: AtomicPtr<Config> = AtomicPtr::new(ptr::null_mut());

/// Begins to log as the configuration says.
pub fn begin(conf: &'static Config) {
    // Release: a thread that sees the pointer sees the configuration behind it.
    CONFIG.store(ptr::from_ref(conf).cast_mut(), Ordering::Release);
}

#[allow(unsafe_code)]
fn configuration() -> Option<&'static Config> {
    // SAFETY: the pointer is null or comes from the `&'static Config` that `begin` was given.
    unsafe { CONFIG.load(Ordering::Acquire).as_ref() }
}

/// Whether logging has stopped because the process may soon be killed for opening a file.
static ENDED: AtomicBool = AtomicBool::new(false);

/// Stops logging: a filter on system calls is about to be installed, which may kill a process that opens a file.
pub fn end() {
    ENDED.store(true, Ordering::Relaxed);
}

/// Writes a line if `level` is logged. Warnings and errors, which a peer may cause, are limited by a token bucket per
/// `site`.
pub fn line(site: &Site, level: LogLevel, text: fmt::Arguments<'_>) {
    let Some(conf) = configuration() else { return };
    if level < conf.log_level || conf.log_path.is_empty() || ENDED.load(Ordering::Relaxed) {
        return;
    }
    if level >= LogLevel::Warn {
        match site.admit(netacc_sys::time::now()) {
            None => return page().count(Counter::LogLinesDropped),
            Some(0) => {}
            Some(n) => write(&conf.log_path, level, format_args!("{n} more lines like the next one were left out")),
        }
    }
    write(&conf.log_path, level, text);
}

fn write(path: &str, level: LogLevel, text: fmt::Arguments<'_>) {
    let is_written = file::append(path, Line::new(level, text).bytes());
    page().count(if is_written { Counter::LogLines } else { Counter::LogLinesDropped });
}

/// Logs at the named level, for example `log!(Warn, "...")`.
#[macro_export]
macro_rules! log {
    ($level:ident, $($arg:tt)*) => {{
        static SITE: $crate::Site = $crate::Site::new();
        $crate::line(&SITE, $crate::LogLevel::$level, format_args!($($arg)*))
    }};
}
