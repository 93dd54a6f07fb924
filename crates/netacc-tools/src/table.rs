//! A table that a terminal has room for.

use unicode_width::UnicodeWidthStr;

pub use crate::columns::Align;

use crate::columns;
use crate::terminal::{Style, paragraph};

/// Numbers from here on are shortened where a terminal is too narrow for them.
const LONG: u64 = 100_000;

/// A table of `N` columns with a line of titles.
#[derive(Debug)]
pub struct Table<const N: usize> {
    align: [Align; N],
    rows: Vec<[String; N]>,
    /// Titles of columns that a narrow terminal may go without, the first to go first.
    spare: &'static [&'static str],
    /// The title of a column that is left out where none of its cells says anything.
    rare: &'static str,
    /// Whether a narrow terminal gets several lines for each row, rather than too few columns.
    folds: bool,
}

/// Spaces before the further lines of a row.
const INDENT: usize = 4;

impl<const N: usize> Table<N> {
    /// A table with titles only.
    #[must_use]
    pub fn new(columns: [(&str, Align); N]) -> Self {
        let align = columns.map(|(_, align)| align);
        Self { align, rows: vec![columns.map(|(title, _)| title.to_owned())], spare: &[], rare: "", folds: false }
    }

    /// Names columns that a narrow terminal may go without, the first to go first.
    #[must_use]
    pub fn spare(mut self, titles: &'static [&'static str]) -> Self {
        self.spare = titles;
        self
    }

    /// Names a column that is left out, without a word, where all of its cells are `-`.
    #[must_use]
    pub fn rare(mut self, title: &'static str) -> Self {
        self.rare = title;
        self
    }

    /// Where a terminal has no room even without the columns that may be missing, each row has several lines, as few as
    /// possible.
    #[must_use]
    pub fn folds(mut self) -> Self {
        self.folds = true;
        self
    }

    /// Adds a line.
    pub fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells);
    }

    /// Appends the table to `out`, two spaces between columns, none at line ends.
    ///
    /// On a terminal that is too narrow long numbers are shortened; if that is not enough, columns are left out,
    /// and a last line says which, or the rows are folded.
    pub fn write(mut self, style: Style, out: &mut String) {
        let whole: [bool; N] = std::array::from_fn(|column| self.says_something(column));
        let mut shown = whole;
        let mut missing: Vec<&str> = Vec::new();
        let mut left_out: Vec<&str> = Vec::new();
        let mut parts = vec![whole];
        if let Some(limit) = style.width {
            if width(&self.widths(), &shown) > limit {
                self.shorten();
            }
            let widths = self.widths();
            parts = self.parts(&widths, &whole, limit);
            for title in self.spare {
                if width(&widths, &shown) <= limit {
                    break;
                }
                let titles = self.rows.first().into_iter().flatten();
                for (_, shown) in titles.zip(&mut shown).filter(|(found, shown)| found == title && **shown) {
                    *shown = false;
                    left_out.push(title);
                }
                // A column is missing only where the rows become shorter by that.
                let fewer = self.parts(&widths, &shown, limit);
                if fewer.len() < parts.len() || !self.folds {
                    parts = fewer;
                    missing.clone_from(&left_out);
                }
            }
        }
        self.put(&parts, style, out);
        if !missing.is_empty() {
            let list = missing.join(", ");
            paragraph("", &format!("({list}: in a wider terminal or a pipe)"), 0, style.width, out);
        }
    }

    /// The columns of each line of a row: a single line, unless rows are folded.
    fn parts(&self, widths: &[usize; N], shown: &[bool; N], limit: usize) -> Vec<[bool; N]> {
        if self.folds { folded(widths, shown, limit) } else { vec![*shown] }
    }

    /// Appends the rows, each with a line for each of these sets of columns.
    fn put(&self, parts: &[[bool; N]], style: Style, out: &mut String) {
        let mut lines: Vec<_> = parts.iter().map(|shown| self.lines(shown).into_iter()).collect();
        for row in 0..self.rows.len() {
            for (part, lines) in lines.iter_mut().enumerate() {
                let indent = if part == 0 { 0 } else { INDENT };
                let line = format!("{:indent$}{}", "", lines.next().unwrap_or_default());
                let line = line.trim_end();
                out.push_str(&if row == 0 { style.paint("1", line) } else { line.to_owned() });
                out.push('\n');
            }
        }
    }

    fn says_something(&self, column: usize) -> bool {
        let mut cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.next().is_none_or(|title| title != self.rare) || cells.any(|cell| cell != "-")
    }

    /// The width of each column.
    fn widths(&self) -> [usize; N] {
        let mut widths = [0; N];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.width().max(*width);
            }
        }
        widths
    }

    fn shorten(&mut self) {
        for row in self.rows.iter_mut().skip(1) {
            for (cell, align) in row.iter_mut().zip(self.align) {
                if align == Align::Right
                    && let Some(number) = cell.parse().ok().filter(|number| *number >= LONG)
                {
                    *cell = short(number);
                }
            }
        }
    }

    /// The titles and rows, without the columns that are left out.
    fn lines(&self, shown: &[bool; N]) -> Vec<String> {
        let sides: Vec<Align> = visible(&self.align, shown).copied().collect();
        let side = |column: usize| sides.get(column).copied().unwrap_or(Align::Left);
        columns::lines(self.rows.iter().map(|row| visible(row, shown)), side)
    }
}

/// The width of a line with these columns.
fn width<const N: usize>(widths: &[usize; N], shown: &[bool; N]) -> usize {
    visible(widths, shown).map(|width| width + 2).sum::<usize>().saturating_sub(2)
}

/// The columns of each line of a row, so that no line is wider than `limit` unless a single column is.
fn folded<const N: usize>(widths: &[usize; N], whole: &[bool; N], limit: usize) -> Vec<[bool; N]> {
    let mut parts: Vec<[bool; N]> = Vec::new();
    let mut part = [false; N];
    for column in (0..N).filter(|column| whole.get(*column) == Some(&true)) {
        let mut longer = part;
        longer.iter_mut().skip(column).take(1).for_each(|shown| *shown = true);
        let indent = if parts.is_empty() { 0 } else { INDENT };
        if indent + width(widths, &longer) > limit && part.contains(&true) {
            parts.push(part);
            part = [false; N];
            part.iter_mut().skip(column).take(1).for_each(|shown| *shown = true);
        } else {
            part = longer;
        }
    }
    parts.push(part);
    parts
}

/// Those of a row that are shown.
fn visible<'a, T, const N: usize>(row: &'a [T; N], shown: &[bool; N]) -> impl Iterator<Item = &'a T> {
    row.iter().zip(*shown).filter_map(|(cell, shown)| shown.then_some(cell))
}

/// A number in four digits or less: `107.7M`.
#[must_use]
pub fn short(number: u64) -> String {
    let mut scaled = number as f64;
    for unit in ["", "k", "M", "G", "T", "P"] {
        if scaled < 999.5 {
            let digits = usize::from(!unit.is_empty() && scaled < 99.95);
            return format!("{scaled:.digits$}{unit}");
        }
        scaled /= 1000.0;
    }
    format!("{scaled:.0}E")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table<3> {
        let mut table = Table::new([("Name", Align::Left), ("Value", Align::Right), ("More", Align::Left)]);
        table.row(["a".into(), "10".into(), String::new()]);
        table.row(["längere".into(), "1000000".into(), "x".into()]);
        table
    }

    fn written(table: Table<3>, style: Style) -> String {
        let mut out = String::new();
        table.write(style, &mut out);
        out
    }

    #[test]
    fn columns_line_up() {
        let wide = "Name       Value  More\na             10\nlängere  1000000  x\n";
        assert_eq!(written(table(), Style::default()), wide);
        assert_eq!(written(table(), Style { width: Some(22), colour: false }), wide);
        let bright = written(table(), Style { width: None, colour: true });
        assert!(bright.starts_with("\x1b[1mName       Value  More\x1b[0m\n"), "{bright:?}");
    }

    #[test]
    fn a_narrow_terminal_gets_less_and_is_told() {
        let shortened = written(table(), Style { width: Some(21), colour: false });
        assert_eq!(shortened, "Name     Value  More\na           10\nlängere   1.0M  x\n");
        let less = written(table().spare(&["More"]), Style { width: Some(15), colour: false });
        assert_eq!(less, "Name     Value\na           10\nlängere   1.0M\n(More: in a\nwider terminal\nor a pipe)\n");
    }

    #[test]
    fn rows_are_folded_where_nothing_may_be_missing() {
        let folded = written(table().folds(), Style { width: Some(15), colour: false });
        assert_eq!(folded, "Name     Value\n    More\na           10\n\nlängere   1.0M\n    x\n");
        let spared = written(table().spare(&["More"]).folds(), Style { width: Some(15), colour: false });
        assert!(spared.contains("(More: in a\nwider terminal\nor a pipe)"), "{spared}");
        for columns in 1..40 {
            let text = written(table().folds(), Style { width: Some(columns), colour: false });
            assert!(text.contains("längere") && text.contains('x'), "{columns}: {text}");
        }
    }

    #[test]
    fn a_rare_column_that_says_nothing_is_left_out() {
        let row = |more: &str| ["a".to_owned(), "1".to_owned(), more.to_owned()];
        let mut table =
            Table::new([("Name", Align::Left), ("Value", Align::Right), ("More", Align::Left)]).rare("More");
        table.row(row("-"));
        assert_eq!(written(table, Style::default()), "Name  Value\na         1\n");
        let mut table =
            Table::new([("Name", Align::Left), ("Value", Align::Right), ("More", Align::Left)]).rare("More");
        table.row(row("-"));
        table.row(row("x"));
        assert_eq!(written(table, Style::default()), "Name  Value  More\na         1  -\na         1  x\n");
    }

    #[test]
    fn short_numbers() {
        let cases = [(0, "0"), (999, "999"), (1000, "1.0k"), (99_949, "99.9k"), (99_950, "100k"), (999_499, "999k")];
        for (number, text) in cases.into_iter().chain([(999_500, "1.0M"), (u64::MAX, "18E")]) {
            assert_eq!(short(number), text);
        }
    }
}
