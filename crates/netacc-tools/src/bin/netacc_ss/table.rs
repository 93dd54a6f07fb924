//! Aligned columns.

/// To which side a column is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Texts.
    Left,
    /// Numbers.
    Right,
}

/// A table of `N` columns with a line of titles.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    align: [Align; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    /// A table with titles only.
    pub(crate) fn new(columns: [(&str, Align); N]) -> Self {
        Self { align: columns.map(|(_, align)| align), rows: vec![columns.map(|(title, _)| title.to_owned())] }
    }

    /// Adds a line.
    pub(crate) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells);
    }

    /// Appends the table to `out`, two spaces between columns, none at line ends.
    pub(crate) fn write(&self, out: &mut String) {
        let mut widths = [0; N];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, width), align) in row.iter().zip(widths).zip(self.align) {
                if !line.is_empty() {
                    line.push_str("  ");
                }
                match align {
                    Align::Left => line.push_str(&format!("{cell:<width$}")),
                    Align::Right => line.push_str(&format!("{cell:>width$}")),
                }
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new([("Name", Align::Left), ("Value", Align::Right), ("", Align::Left)]);
        table.row(["a".into(), "10".into(), String::new()]);
        table.row(["längere".into(), "1000000".into(), "x".into()]);
        let mut out = String::new();
        table.write(&mut out);
        assert_eq!(out, "Name       Value\na             10\nlängere  1000000  x\n");
    }
}
