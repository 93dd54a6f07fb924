//! What people see while they wait: one line on standard error, if that is a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

const BAR: usize = 20;

pub(crate) struct Progress {
    shown: bool,
    start: Instant,
    done: usize,
    total: usize,
}

impl Progress {
    pub(crate) fn new(total: usize) -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self { shown: io::stderr().is_terminal() && !dumb, start: Instant::now(), done: 0, total }
    }

    /// The next step begins.
    pub(crate) fn step(&mut self, what: &str) {
        if self.shown {
            let line = line(self.done, self.total, self.start.elapsed().as_secs_f64(), what);
            // Progress that cannot be shown is no reason to end.
            let _ = write!(io::stderr(), "\r{line}\x1b[K");
        }
        self.done += 1;
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// `[######..............] 1:05 left  round 2 of 5, both ends`, in at most 79 columns.
fn line(done: usize, total: usize, elapsed: f64, what: &str) -> String {
    let total = total.max(1);
    let full = (done * BAR / total).min(BAR);
    let bar = format!("{}{}", "#".repeat(full), ".".repeat(BAR - full));
    let left = match done {
        0 => "     ".into(),
        done => clock(elapsed / done as f64 * total.saturating_sub(done) as f64),
    };
    let line = format!("[{bar}] {left} left  {what}");
    line.chars().take(79).collect()
}

fn clock(seconds: f64) -> String {
    // A few hours at most; beyond any number the cast saturates.
    let whole = seconds.max(0.0) as u64;
    format!("{:>2}:{:02}", whole / 60, whole % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_and_time() {
        assert_eq!(line(0, 10, 0.0, "x"), format!("[{}]       left  x", ".".repeat(20)));
        assert_eq!(line(5, 10, 65.0, "x"), format!("[{}{}]  1:05 left  x", "#".repeat(10), ".".repeat(10)));
        assert_eq!(line(30, 10, 9.0, &"y".repeat(200)).chars().count(), 79);
        assert!(line(1, 0, f64::INFINITY, "").contains('#'));
    }
}
