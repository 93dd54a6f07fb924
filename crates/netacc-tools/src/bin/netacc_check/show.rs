//! The findings as lines of text.

use netacc_tools::terminal::{self, paragraph};
use unicode_width::UnicodeWidthStr;

use crate::finding::{Finding, Level, Report};

/// How lines are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    /// Without a width each finding stays on one line, for grep.
    pub(crate) terminal: terminal::Style,
    /// The lowest level that is shown.
    pub(crate) least: Level,
    /// Reasons are shown too.
    pub(crate) reasons: bool,
}

/// All lines, and how many there are of each level.
pub(crate) fn text(report: &Report, style: Style) -> String {
    let shown = || report.findings.iter().filter(|finding| finding.level >= style.least);
    let subject = shown().map(|finding| finding.subject.width()).max().unwrap_or(0);
    let check = shown().map(|finding| finding.check.len()).max().unwrap_or(0);
    let mut out = String::new();
    for finding in shown() {
        line(finding, subject, check, style, &mut out);
    }
    let counts = Level::ALL.map(|level| format!("{} {}", report.count(level), level.name()));
    if style.least == Level::Ok {
        paragraph("", &counts.join(", "), 0, style.terminal.width, &mut out);
    }
    out
}

fn line(finding: &Finding, subject: usize, check: usize, style: Style, out: &mut String) {
    let name = finding.level.name();
    let colour = match finding.level {
        Level::Ok => "32",
        Level::Note => "36",
        Level::Warn => "33",
        Level::Fail => "1;31",
    };
    let level = style.terminal.paint(colour, &format!("{name:<4}"));
    let columns = 4 + 2 + subject + 2 + check;
    if style.terminal.width.is_some_and(|width| columns > width) {
        // Not even what it is about fits on one line.
        paragraph(
            &format!("{level}  "),
            &format!("{} {}", finding.subject, finding.check),
            6,
            style.terminal.width,
            out,
        );
        paragraph("  ", &finding.text, 2, style.terminal.width, out);
    } else {
        // By what a terminal shows: a letter may take two columns.
        let gap = subject - finding.subject.width().min(subject);
        let text = format!("{level}  {}{:gap$}  {:<check$}  ", finding.subject, "", finding.check);
        paragraph(&text, &finding.text, columns + 2, style.terminal.width, out);
    }
    let why = finding.why.as_ref().filter(|_| style.reasons || finding.level > Level::Note);
    if let Some(why) = why {
        paragraph("      why: ", why, 11, style.terminal.width, out);
    }
    if let Some(advice) = &finding.advice {
        paragraph("      do:  ", advice, 11, style.terminal.width, out);
    }
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

    const PLAIN: Style =
        Style { terminal: terminal::Style { colour: false, width: None }, least: Level::Ok, reasons: false };

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
        let wide = |columns| Style { terminal: terminal::Style { colour: false, width: Some(columns) }, ..PLAIN };
        let folded = text(&report, wide(72));
        assert!(folded.lines().all(|line| line.chars().count() <= 72), "{folded}");
        assert!(folded.lines().count() > 5);
        // Where there is no room beside the subject, the text goes on below it.
        let narrow = text(&report, wide(20));
        let long: Vec<&str> = narrow.lines().filter(|line| line.chars().count() > 20).collect();
        assert!(long.is_empty(), "{long:?}");
        assert_eq!(narrow.matches("word").count(), 40, "{narrow}");
        report.add(Level::Ok, "127.0.0.1:7000", "transport", "shared memory");
        let narrow = text(&report, wide(20));
        assert!(narrow.lines().all(|line| line.width() <= 20), "{narrow}");
        assert!(narrow.contains("ok    127.0.0.1:7000\n  transport\n  shared memory\n"), "{narrow}");
    }

    #[test]
    fn letters_of_two_columns_line_up() {
        let mut report = Report::default();
        report.add(Level::Ok, "数据", "program", "a");
        report.add(Level::Ok, "host", "config", "b");
        assert_eq!(
            text(&report, PLAIN),
            "ok    数据  program  a\nok    host  config   b\n2 ok, 0 note, 0 warn, 0 fail\n"
        );
    }

    #[test]
    fn colours_only_where_asked_for() {
        assert!(!text(&report(), PLAIN).contains('\x1b'));
        let bright = text(&report(), Style { terminal: terminal::Style { colour: true, width: None }, ..PLAIN });
        assert!(bright.starts_with("\x1b[32mok  \x1b[0m  eth0  driver   ena\n"), "{bright:?}");
    }
}
