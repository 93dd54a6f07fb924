//! The log file: one write(2) per line, opened and closed each time, so that no descriptor is held and
//! a rotated or deleted file does no harm. Lines are rare.

use crate::runtime;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU64, Ordering};
use netacc_conf::LogLevel;
use netacc_stats::{Counter, page};
use netacc_sys::{private, raw, time};
use netacc_transport::shm::strangers::Offence;
use rustix::fd::AsRawFd;
use rustix::fs::{Mode, OFlags, open};

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

/// Writes a line if `level` is logged.
pub fn line(level: LogLevel, text: fmt::Arguments<'_>) {
    let Some(rt) = runtime::get() else { return };
    if level < rt.conf.log_level || rt.conf.log_path.is_empty() {
        return;
    }
    let mut l = Line { buf: [0; 512], len: 0 };
    let now = netacc_sys::time::realtime();
    let _ =
        write!(l, "{}.{:06} {} {} {}", now / 1_000_000_000, now / 1000 % 1_000_000, raw::getpid(), level.name(), text);
    l.len = l.len.min(l.buf.len() - 1);
    if let Some(c) = l.buf.get_mut(l.len) {
        *c = b'\n';
        l.len += 1;
    }
    // O_NOFOLLOW: the default place is /tmp. O_NONBLOCK: a FIFO there must not stop us.
    let flags =
        OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    if let Ok(fd) = open(rt.conf.log_path.as_str(), flags, Mode::from_raw_mode(0o644)) {
        let _ = raw::write(fd.as_raw_fd(), l.buf.as_ptr(), l.len);
        private::drop_raw(fd);
        page().count(Counter::LogLines);
    }
}

/// When ([`netacc_sys::time::now`]) the next offence of a peer may be logged: a peer must not fill the file.
static NEXT_OFFENCE: AtomicU64 = AtomicU64::new(0);
/// The time (ns) between two such lines.
const OFFENCE_EVERY: u64 = 1_000_000_000;

/// Logs what a peer did that ends its connection, at most once a second.
pub fn offence(o: &Offence) {
    let (now, due) = (time::now(), NEXT_OFFENCE.load(Ordering::Relaxed));
    // Relaxed: of several threads one writes.
    if now >= due
        && NEXT_OFFENCE.compare_exchange(due, now + OFFENCE_EVERY, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    {
        let Offence { pid, uid, slot, what } = o;
        crate::log!(Warn, "peer {pid} of user {uid}: it {what} (slot {slot}); its connection is reset");
    }
}

/// Logs at the level named, e.g. `log!(Warn, "...")`.
#[macro_export]
macro_rules! log {
    ($level:ident, $($arg:tt)*) => {
        $crate::log::line(netacc_conf::LogLevel::$level, format_args!($($arg)*))
    };
}
