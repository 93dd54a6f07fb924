//! The command line as clap reads it, with a help text that is folded to the width of the terminal.

use std::io::{self, Write};

use clap::error::ErrorKind;
use clap::{Command, Error, Parser};
use unicode_width::UnicodeWidthChar;

use crate::terminal::{Style, note, print};

/// The width of a help text that goes to no terminal: to a pager, a file, or a mail.
const NO_TERMINAL: usize = 100;

/// The status for a help text or a version that cannot be written: that of wrong usage, which says nothing about processes.
const UNWRITTEN: i32 = 2;

/// Reads the command line. Help, version and mistakes end the process here.
#[must_use]
pub fn parse<A: Parser>() -> A {
    let matches = matches(A::command());
    A::from_arg_matches(&matches).unwrap_or_else(|error| refuse(&error))
}

/// Reads the command line by a definition.
pub fn matches(command: Command) -> clap::ArgMatches {
    let name = command.get_name().to_owned();
    command.try_get_matches().unwrap_or_else(|error| {
        if !matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
            refuse(&error);
        }
        // clap folds by itself only with a crate that builds rustix with std, which the preloaded library does not have.
        // It also takes an output that cannot be written for one that was.
        let style = Style::of_stdout();
        let text = folded(&rendered(&error, style), style.width.unwrap_or(NO_TERMINAL));
        if let Err(message) = print(&text) {
            note(&name, message);
            std::process::exit(UNWRITTEN);
        }
        std::process::exit(0);
    })
}

/// Ends the process with what is wrong about the command line.
pub fn refuse(error: &Error) -> ! {
    let style = Style::of_stderr();
    let text = folded(&rendered(error, style), style.width.unwrap_or(usize::MAX));
    // Nobody is left to tell when standard error is gone.
    let _ = io::stderr().write_all(text.as_bytes());
    std::process::exit(error.exit_code())
}

fn rendered(error: &Error, style: Style) -> String {
    if style.colour { error.render().ansi().to_string() } else { error.render().to_string() }
}

/// Folds the lines that are longer than `width`. A line goes on below the column where its description begins, which is
/// behind the last gap of two spaces. Where a narrow terminal leaves too little beside that column, and where there is no
/// gap, the line goes on below its own beginning.
#[must_use]
pub fn folded(text: &str, width: usize) -> String {
    let mut out = String::new();
    for line in text.lines() {
        fold(line, width, &mut out);
        out.push('\n');
    }
    out
}

/// Least columns that a folded description is worth.
const NARROWEST: usize = 20;
/// The column where it begins with fewer.
const BELOW: usize = 2;

fn fold(line: &str, width: usize, out: &mut String) {
    let cells = cells(line);
    let shown: usize = cells.iter().map(|cell| cell.width).sum();
    if shown <= width {
        out.push_str(line);
        return;
    }
    let spaces = cells.iter().take_while(|cell| cell.text == " ").count();
    // A line that begins too far to the right begins near the edge.
    let begin = if spaces + NARROWEST <= width { spaces } else { spaces.min(BELOW) };
    let cells = cells.get(spaces - begin..).unwrap_or_default();
    let indent = Some(indent(cells)).filter(|column| column + NARROWEST <= width).unwrap_or(begin);
    // The beginning as it is, then word by word.
    let mut column = 0;
    let mut rest = cells;
    while let Some((cell, more)) = rest.split_first().filter(|_| column < indent) {
        out.push_str(cell.text);
        column += cell.width;
        rest = more;
    }
    for (number, word) in rest.split(|cell| cell.text == " ").enumerate() {
        let len: usize = word.iter().map(|cell| cell.width).sum();
        if number > 0 && column + 1 + len > width && column > indent {
            // A line does not begin with the rest of a gap.
            if len == 0 {
                continue;
            }
            out.truncate(out.trim_end_matches(' ').len());
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            column = indent;
        } else if number > 0 {
            out.push(' ');
            column += 1;
        }
        word.iter().for_each(|cell| out.push_str(cell.text));
        column += len;
    }
}

/// A letter, or a sequence that colours what follows it and has no width.
struct Cell<'a> {
    text: &'a str,
    width: usize,
}

fn cells(line: &str) -> Vec<Cell<'_>> {
    let mut cells = Vec::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let is_sequence = rest.starts_with("\x1b[");
        let len = match rest.find('m').filter(|_| is_sequence) {
            Some(end) => end + 1,
            None => first.len_utf8(),
        };
        let (text, more) = rest.split_at(len);
        cells.push(Cell { text, width: if is_sequence { 0 } else { first.width().unwrap_or(0) } });
        rest = more;
    }
    cells
}

/// The column where the description of a line begins.
fn indent(cells: &[Cell<'_>]) -> usize {
    let (mut column, mut spaces, mut begin, mut beginning) = (0, 0, 0, true);
    for cell in cells {
        if cell.text == " " {
            spaces += 1;
        } else if cell.width > 0 {
            if beginning || spaces >= 2 {
                begin = column;
            }
            beginning = false;
            spaces = 0;
        }
        column += cell.width;
    }
    begin
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_on_below_their_description() {
        let text = "Usage: x [OPTIONS]\n\n  -a, --all  Shows all of it, and more than that\n  b  c\n";
        let wanted = "Usage: x [OPTIONS]\n\n  -a, --all  Shows all of it, and\n             more than that\n  b  c\n";
        assert_eq!(folded(text, 33), wanted);
        assert_eq!(folded(text, 80), text);
        assert_eq!(folded("  --all    More of it\n", 8), "  --all\n  More\n  of it\n", "no rest of a gap");
        let narrow = "Usage: x\n[OPTIONS]\n\n  -a, --all\n  Shows all of\n  it, and more\n  than that\n  b  c\n";
        assert_eq!(folded(text, 17), narrow, "no room beside the option");
        assert_eq!(
            folded("          far to the right\n", 14),
            "  far to the\n  right\n",
            "no room behind its beginning"
        );
        assert_eq!(folded("  a-long-word b\n", 4), "  a-long-word\n  b\n", "a word is never cut");
    }

    #[test]
    fn colours_have_no_width() {
        let line = "  \x1b[1m-a\x1b[0m  one two three four five six seven";
        let out = folded(line, 30);
        assert_eq!(out, "  \x1b[1m-a\x1b[0m  one two three four five\n      six seven\n");
    }

    #[test]
    fn wide_letters_have_their_width() {
        let out = folded("  -a  数据数据 数据数据 数据数据", 26);
        assert_eq!(out, "  -a  数据数据 数据数据\n      数据数据\n");
    }
}
