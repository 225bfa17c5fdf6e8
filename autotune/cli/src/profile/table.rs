//! A table of text.

use core::fmt;

use gridguard::profile::Entry;

use super::words;

/// Rows of cells under heads. A column whose cells are all empty is left out; elsewhere an empty cell
/// is a dash.
pub(super) struct Table {
    columns: Vec<(&'static str, Side)>,
    rows: Vec<Vec<String>>,
}

/// Where the cells of a column line up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

impl Table {
    pub(super) fn new<const N: usize>(columns: [(&'static str, Side); N]) -> Self {
        Self { columns: columns.into(), rows: Vec::new() }
    }

    /// Adds a row of as many cells as there are columns.
    pub(super) fn push<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// A table of entries: what each is about, then `more` columns.
    pub(super) fn of_entries<const N: usize>(more: [(&'static str, Side); N]) -> Self {
        let heads = ["kernel", "variant", "types", "shape", "measured for"];
        let subject = heads.map(|head| (head, Side::Left));
        Self { columns: subject.into_iter().chain(more).collect(), rows: Vec::new() }
    }

    /// Adds an entry with the cells of the columns behind its subject.
    pub(super) fn push_entry<const N: usize>(&mut self, entry: &Entry, more: [String; N]) {
        let key = &entry.key;
        let (kernel, variant, types) =
            (key.kernel.clone(), key.variant.clone(), key.dtypes.clone());
        let subject = [kernel, variant, types, words::shape(&entry.shape), words::purpose(key)];
        self.rows.push(subject.into_iter().chain(more).collect());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// How wide a column is; `None` where there is nothing in it.
    fn width(&self, column: usize, head: &str) -> Option<usize> {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        let widest = cells.map(|cell| cell.chars().count()).max().filter(|widest| *widest > 0)?;
        Some(widest.max(head.chars().count()))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.columns.iter().enumerate();
        let shown: Vec<(usize, &str, Side, usize)> = columns
            .filter_map(|(place, (head, side))| {
                Some((place, *head, *side, self.width(place, head)?))
            })
            .collect();
        let line = |f: &mut fmt::Formatter<'_>, cell: &dyn Fn(usize, &'_ str) -> String| {
            let cells = shown.iter().map(|(place, head, side, width)| {
                let (cell, width) = (cell(*place, head), *width);
                match side {
                    Side::Left => format!("{cell:<width$}"),
                    Side::Right => format!("{cell:>width$}"),
                }
            });
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())
        };
        line(f, &|_, head| head.to_owned())?;
        for row in &self.rows {
            line(f, &|place, _| match row.get(place) {
                Some(cell) if !cell.is_empty() => cell.clone(),
                _ => "-".to_owned(),
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_without_cells_is_left_out_and_a_missing_cell_is_a_dash() {
        let mut table =
            Table::new([("name", Side::Left), ("nothing", Side::Left), ("size", Side::Right)]);
        table.push(["long name".into(), String::new(), "5".into()]);
        table.push(["b".into(), String::new(), String::new()]);
        assert_eq!(table.to_string(), "name       size\nlong name     5\nb             -\n");
    }
}
