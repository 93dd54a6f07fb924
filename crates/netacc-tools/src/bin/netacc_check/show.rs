//! The findings as lines of text.

use std::fmt::Write;

use crate::finding::{Finding, Level, Report};

/// How lines are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub(crate) colour: bool,
    /// Lines are folded to so many columns; `None` leaves each finding on one line, for grep.
    pub(crate) width: Option<usize>,
    /// The lowest level that is shown.
    pub(crate) least: Level,
    /// Reasons are shown too.
    pub(crate) reasons: bool,
}

/// Below this a folded text is harder to read than a line that the terminal breaks.
const NARROWEST: usize = 40;

/// All lines, and how many there are of each level.
pub(crate) fn text(report: &Report, style: Style) -> String {
    let shown = || report.findings.iter().filter(|finding| finding.level >= style.least);
    let subject = shown().map(|finding| finding.subject.chars().count()).max().unwrap_or(0);
    let check = shown().map(|finding| finding.check.len()).max().unwrap_or(0);
    let mut out = String::new();
    for finding in shown() {
        line(finding, subject, check, style, &mut out);
    }
    let counts = Level::ALL.map(|level| format!("{} {}", report.count(level), level.name()));
    if style.least == Level::Ok {
        let _ = writeln!(out, "{}", counts.join(", "));
    }
    out
}

fn line(finding: &Finding, subject: usize, check: usize, style: Style, out: &mut String) {
    let name = finding.level.name();
    let (on, off) = match (style.colour, finding.level) {
        (false, _) => ("", ""),
        (true, Level::Ok) => ("\x1b[32m", "\x1b[0m"),
        (true, Level::Note) => ("\x1b[36m", "\x1b[0m"),
        (true, Level::Warn) => ("\x1b[33m", "\x1b[0m"),
        (true, Level::Fail) => ("\x1b[1;31m", "\x1b[0m"),
    };
    let head = format!("{on}{name:<4}{off}  {:<subject$}  {:<check$}  ", finding.subject, finding.check);
    let indent = 4 + 2 + subject + 2 + check + 2;
    paragraph(&head, &finding.text, indent, style.width, out);
    let why = finding.why.as_ref().filter(|_| style.reasons || finding.level > Level::Note);
    if let Some(why) = why {
        paragraph("      why: ", why, 11, style.width, out);
    }
    if let Some(advice) = &finding.advice {
        paragraph("      do:  ", advice, 11, style.width, out);
    }
}

/// Writes `text` behind `head`; further lines are indented to where the first one began.
fn paragraph(head: &str, text: &str, indent: usize, width: Option<usize>, out: &mut String) {
    out.push_str(head);
    let room = width.map(|width| width.saturating_sub(indent)).filter(|room| *room >= NARROWEST);
    let Some(room) = room else {
        out.push_str(text);
        out.push('\n');
        return;
    };
    let mut used = 0;
    for word in text.split(' ') {
        let len = word.chars().count();
        if used > 0 && used + 1 + len > room {
            let _ = write!(out, "\n{:indent$}", "");
            used = 0;
        } else if used > 0 {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += len;
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::default();
        report.add(Level::Ok, "eth0", "driver", "ena").why("because");
        report.add(Level::Warn, "host", "memlock", "too little").why("it is").advice("raise it");
        report
    }

    const PLAIN: Style = Style { colour: false, width: None, least: Level::Ok, reasons: false };

    #[test]
    fn columns_reasons_and_sum() {
        let lines = "ok    eth0  driver   ena\n\
                     warn  host  memlock  too little\n      why: it is\n      do:  raise it\n\
                     1 ok, 0 note, 1 warn, 0 fail\n";
        assert_eq!(text(&report(), PLAIN), lines);
        assert!(text(&report(), Style { reasons: true, ..PLAIN }).contains("      why: because\n"));
    }

    #[test]
    fn quiet_shows_what_is_to_be_done() {
        let quiet = text(&report(), Style { least: Level::Warn, ..PLAIN });
        assert_eq!(quiet, "warn  host  memlock  too little\n      why: it is\n      do:  raise it\n");
    }

    #[test]
    fn folded_lines_keep_to_the_width() {
        let mut report = Report::default();
        report.add(Level::Note, "eth0", "driver", "word ".repeat(40).trim_end()).advice("do ".repeat(60).trim_end());
        let folded = text(&report, Style { width: Some(72), ..PLAIN });
        assert!(folded.lines().all(|line| line.chars().count() <= 72), "{folded}");
        assert!(folded.lines().count() > 5);
        // A terminal too narrow to fold for.
        let narrow = text(&report, Style { width: Some(30), ..PLAIN });
        assert_eq!(narrow.lines().count(), 3);
    }

    #[test]
    fn colours_only_where_asked_for() {
        assert!(!text(&report(), PLAIN).contains('\x1b'));
        let bright = text(&report(), Style { colour: true, ..PLAIN });
        assert!(bright.starts_with("\x1b[32mok  \x1b[0m  eth0  driver   ena\n"), "{bright:?}");
    }
}
