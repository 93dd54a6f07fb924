//! What a terminal at standard output or standard error is like, and text folded to its width.

use std::ffi::CStr;
use std::fmt::{Display, Write as _};
use std::io::{self, IsTerminal, Write as _};

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Least columns beside a head that a folded text is worth. With fewer the text goes on below the head.
const NARROWEST: usize = 20;
/// The column where it then begins.
const BELOW: usize = 2;

/// How output is written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// With colours.
    pub colour: bool,
    /// Most columns of a line; `None` leaves lines whole, for other programs.
    pub width: Option<usize>,
}

impl Style {
    /// What suits standard output.
    #[must_use]
    pub fn of_stdout() -> Self {
        let terminal = io::stdout().is_terminal();
        Self { colour: terminal && colours_welcome(), width: terminal.then(columns).flatten() }
    }

    /// What suits standard error.
    #[must_use]
    pub fn of_stderr() -> Self {
        let terminal = io::stderr().is_terminal();
        Self {
            colour: terminal && colours_welcome(),
            width: terminal.then(|| again(c"/proc/self/fd/2")).flatten().and_then(|terminal| columns_of(&terminal)),
        }
    }

    /// `text` between the escape sequence `on` and its end, if colours are wanted.
    #[must_use]
    pub fn paint(&self, on: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{on}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Whether the environment has nothing against colours (<https://no-color.org>: set and not empty).
#[must_use]
pub fn colours_welcome() -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    !unwanted && !dumb
}

/// The terminal at standard output, opened once more: a description of our own, whose modes of reading are not shared
/// with other programs.
#[must_use]
pub fn open_stdout() -> Option<OwnedFd> {
    again(c"/proc/self/fd/1")
}

fn again(descriptor: &CStr) -> Option<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(descriptor, flags, Mode::empty()).ok()
}

/// How wide the terminal at standard output is.
#[must_use]
pub fn columns() -> Option<usize> {
    columns_of(&open_stdout()?)
}

fn columns_of(terminal: &OwnedFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(terminal).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Writes the output at once; a reader that has seen enough (`| head`) is no failure.
///
/// # Errors
///
/// A sentence for the user.
pub fn print(text: &str) -> Result<(), String> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("the output cannot be written: {error}"))
        }
        _ => Ok(()),
    }
}

/// Writes to standard error what is not part of the output of `tool`. A terminal there gets folded lines.
pub fn note(tool: &str, message: impl Display) {
    let mut text = String::new();
    paragraph(&format!("{tool}: "), &message.to_string(), tool.len() + 2, Style::of_stderr().width, &mut text);
    // Nobody is left to tell when standard error is gone.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Writes `text` behind `head`, which takes `indent` columns; further lines begin where the first one did, or near the edge of
/// a narrow terminal.
pub fn paragraph(head: &str, text: &str, indent: usize, width: Option<usize>, out: &mut String) {
    out.push_str(head);
    let Some(width) = width else {
        out.push_str(text);
        out.push('\n');
        return;
    };
    let begin = if indent + NARROWEST <= width { indent } else { indent.min(BELOW) };
    let mut column = indent;
    for (number, word) in text.split(' ').enumerate() {
        let len = word.width();
        if column + usize::from(number > 0) + len > width && column > begin {
            out.truncate(out.trim_end_matches(' ').len());
            let _ = write!(out, "\n{:begin$}", "");
            column = begin;
        } else if number > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += len;
    }
    out.push('\n');
}

/// The beginning of a line that is not wider than `width`. Sequences that colour it have no width, and all of them stay.
#[must_use]
pub fn cut(line: &str, width: usize) -> String {
    let (mut out, mut column, mut in_sequence) = (String::new(), 0, false);
    for letter in line.chars() {
        in_sequence |= letter == '\x1b';
        if in_sequence {
            out.push(letter);
            in_sequence = letter != 'm';
            continue;
        }
        column += letter.width().unwrap_or(0);
        if column <= width {
            out.push(letter);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folded_lines_keep_to_the_width_and_hold_all_words() {
        let text = "a word ".repeat(30);
        let mut out = String::new();
        paragraph("head: ", text.trim_end(), 6, Some(60), &mut out);
        assert!(out.lines().count() > 3 && out.lines().all(|line| line.chars().count() <= 60), "{out}");
        assert!(out.lines().skip(1).all(|line| line.starts_with("      ")), "{out}");
        assert_eq!(out.split_whitespace().count(), 61);
        for width in 8..=45 {
            let mut narrow = String::new();
            paragraph("head: ", text.trim_end(), 6, Some(width), &mut narrow);
            assert!(narrow.lines().all(|line| line.width() <= width), "{width}: {narrow}");
            assert_eq!(narrow.split_whitespace().count(), 61, "{width}: {narrow}");
        }
        let mut wide = String::new();
        paragraph("", "名前 名前 名前", 0, Some(24), &mut wide);
        assert_eq!(wide, "名前 名前 名前\n");
        wide.clear();
        paragraph("", &["名前"; 8].join(" "), 0, Some(24), &mut wide);
        assert!(wide.lines().all(|line| line.width() <= 24), "letters of two columns: {wide}");
        let mut whole = String::new();
        paragraph("head: ", text.trim_end(), 6, None, &mut whole);
        assert_eq!(whole.lines().count(), 1, "other programs get lines whole");
    }

    #[test]
    fn a_line_is_cut_to_the_width() {
        assert_eq!(cut("\x1b[1mredis-server\x1b[0m  12", 7), "\x1b[1mredis-s\x1b[0m");
        assert_eq!(cut("数据数据", 5), "数据", "half a letter is none");
        assert_eq!(cut("whole", 5), "whole");
    }

    #[test]
    fn colours_only_where_asked_for() {
        let plain = Style::default();
        assert_eq!(plain.paint("1", "x"), "x");
        assert_eq!(Style { colour: true, ..plain }.paint("1", "x"), "\x1b[1mx\x1b[0m");
    }
}
