//! Aligned columns of text.

use comfy_table::{CellAlignment, Table, presets};

/// To which side a column is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Texts.
    Left,
    /// Numbers.
    Right,
}

/// The lines of a table without borders: two spaces between columns, none at line ends. `align` says to which side the
/// column of a number (from 0) is aligned.
pub fn lines<Cells>(rows: impl IntoIterator<Item = Cells>, align: impl Fn(usize) -> Align) -> Vec<String>
where
    Cells: IntoIterator,
    Cells::Item: AsRef<str>,
{
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for row in rows {
        table.add_row(row.into_iter().map(|cell| cell.as_ref().to_owned()).collect::<Vec<_>>());
    }
    for (number, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if number == 0 { 0 } else { 2 }, 0));
        column.set_cell_alignment(match align(number) {
            Align::Left => CellAlignment::Left,
            Align::Right => CellAlignment::Right,
        });
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_a_terminal_shows_them() {
        let rows = [vec!["Name", "Value", "More"], vec!["数据", "10", ""], vec!["", "", ""], vec!["längere", "7"]];
        let sides = [Align::Left, Align::Right, Align::Left];
        let wanted = ["Name     Value  More", "数据        10", "", "längere      7"];
        assert_eq!(lines(rows, |column| sides[column]), wanted);
    }
}
