//! Tables of figures: read from CSV, written as CSV, and shown in Markdown.
//!
//! The CSV files in `tests/results/PAGE/` are the source of the tables in `tests/results/PAGE.md`.
//! A cell is a number without separators, or a text, which may have Markdown's backticks. How a
//! table is shown follows from the file alone:
//!
//! * A number has commas between thousands, and the sign − if it is negative. The figures of a
//!   column `seed` or `commit` are names, and stay as they are.
//! * Columns `NAME from` and `NAME to` after a column `NAME` are shown in its cells: 5 (4–7).
//! * A column of numbers is aligned right.
//! * A table with the columns `what` and `is` is a list: the head of a page.

use std::fmt;

/// Writes a number with commas between thousands.
pub fn grouped(number: u64) -> String {
    separated(&number.to_string())
}

/// Puts commas between thousands into digits.
fn separated(digits: &str) -> String {
    let apart = |(at, digit): (usize, char)| {
        let comma = at > 0 && (digits.len() - at).is_multiple_of(3);
        [comma.then_some(','), Some(digit)].into_iter().flatten()
    };
    digits.chars().enumerate().flat_map(apart).collect()
}

/// Returns a row as a line of CSV, without its end.
///
/// # Panics
/// Never: memory can be written.
pub fn line<T: AsRef<[u8]>>(row: &[T]) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(row).expect("memory can be written");
    let bytes = writer.into_inner().expect("memory can be written");
    String::from_utf8(bytes).expect("the cells are text").trim_end_matches('\n').to_owned()
}

/// Columns whose digits are names.
const NAMES: [&str; 2] = ["seed", "commit"];

/// The header of a list.
const LIST: [&str; 2] = ["what", "is"];

/// A table: the header, and the rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// The headings of the columns.
    pub header: Vec<String>,
    /// The cells, by row.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns a table without rows.
    pub fn new<T: Into<String>>(header: impl IntoIterator<Item = T>) -> Self {
        Self { header: header.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Returns a list without lines.
    pub fn list() -> Self {
        Self::new(LIST)
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If the row has another number of cells than the header.
    pub fn add_row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let row: Vec<String> = cells.into_iter().map(Into::into).collect();
        assert_eq!(row.len(), self.header.len(), "{row:?} in a table of {:?}", self.header);
        self.rows.push(row);
    }

    /// Reads a table from CSV.
    ///
    /// # Errors
    /// The errors of the CSV, such as a row with another number of cells than the header.
    pub fn read(csv: &str) -> Result<Self, csv::Error> {
        let mut reader = csv::Reader::from_reader(csv.as_bytes());
        let mut table = Self::new(reader.headers()?);
        for row in reader.records() {
            table.add_row(&row?);
        }
        Ok(table)
    }

    /// Returns the table as CSV.
    pub fn csv(&self) -> String {
        std::iter::once(&self.header).chain(&self.rows).map(|row| line(row) + "\n").collect()
    }

    /// Returns the cells of a column, none if there is no such column.
    pub fn column(&self, name: &str) -> impl Iterator<Item = &str> {
        let at = self.header.iter().position(|header| header == name);
        self.rows.iter().filter_map(move |row| at.map(|at| row[at].as_str()))
    }

    /// Returns whether the two columns after a column are its range.
    fn has_range(&self, at: usize) -> bool {
        let name = &self.header[at];
        self.header.get(at + 1..at + 3).is_some_and(|next| *next == [format!("{name} from"), format!("{name} to")])
    }

    /// Returns whether a column has numbers alone.
    fn is_of_figures(&self, at: usize) -> bool {
        let mut cells = self.rows.iter().map(|row| row[at].as_str()).filter(|cell| !["", "–", "—"].contains(cell));
        let first = cells.next();
        first.into_iter().chain(cells).all(|cell| cell.parse::<f64>().is_ok()) && first.is_some()
    }

    /// Returns a cell as it is shown.
    fn shown(&self, row: usize, at: usize) -> String {
        let cell = &self.rows[row][at];
        if NAMES.contains(&self.header[at].as_str()) || cell.parse::<f64>().is_err() {
            return cell.replace('|', "\\|");
        }
        let digits = cell.trim_start_matches(['-', '+']);
        let sign = if cell.starts_with('-') { "−" } else { &cell[..cell.len() - digits.len()] };
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        format!("{sign}{}{}", separated(&digits[..end]), &digits[end..])
    }

    /// Returns a row as it is shown, each cell with its range.
    fn shown_row(&self, row: usize, columns: &[usize]) -> String {
        let cell = |&at: &usize| {
            let figure = self.shown(row, at);
            if self.has_range(at) && !self.rows[row][at + 1].is_empty() {
                format!("{figure} ({}–{})", self.shown(row, at + 1), self.shown(row, at + 2))
            } else {
                figure
            }
        };
        format!("| {} |", columns.iter().map(cell).collect::<Vec<_>>().join(" | "))
    }
}

/// The table in Markdown.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.header == LIST {
            return self.rows.iter().try_for_each(|row| writeln!(f, "* {}: {}", row[0], row[1]));
        }
        let is_end = |at: usize| (1..3).any(|back| at >= back && self.has_range(at - back));
        let columns: Vec<usize> = (0..self.header.len()).filter(|&at| !is_end(at)).collect();
        let of = |cell: fn(&Self, usize) -> &str| columns.iter().map(move |&at| cell(self, at));
        writeln!(f, "| {} |", of(|table, at| &table.header[at]).collect::<Vec<_>>().join(" | "))?;
        let line = of(|table, at| if table.is_of_figures(at) { "--:" } else { "---" });
        writeln!(f, "|{}|", line.collect::<Vec<_>>().join("|"))?;
        (0..self.rows.len()).try_for_each(|row| writeln!(f, "{}", self.shown_row(row, &columns)))
    }
}

/// Writes the tables of a page anew. `table` returns the text for a line `<!-- from FILE -->`, and
/// replaces the table or the list below the line.
pub fn filled(page: &str, mut table: impl FnMut(&str) -> String) -> String {
    let mut lines = page.lines().peekable();
    let mut out = Vec::new();
    while let Some(line) = lines.next() {
        out.push(line.to_owned());
        let Some(file) = line.strip_prefix("<!-- from ").and_then(|rest| rest.strip_suffix(" -->")) else { continue };
        out.extend([String::new(), table(file).trim_end().to_owned()]);
        while lines.next_if(|line| line.is_empty()).is_some() {}
        let is_old = |line: &&str| line.starts_with("| ") || line.starts_with("|-") || line.starts_with("* ");
        while lines.next_if(is_old).is_some() {}
        while lines.next_if(|line| line.is_empty()).is_some() {}
        out.extend(lines.peek().map(|_| String::new()));
    }
    out.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::{Table, filled};

    #[test]
    fn numbers_ranges_and_names_are_shown_by_their_columns() {
        let csv = "block,ns,ns from,ns to,\"change, %\",seed\n\"`a`, 4 KiB\",1234.5,1000,20000,-0.5,123456\nb | c,7,,,+0.0,–\n";
        let shown = "| block | ns | change, % | seed |\n|---|--:|--:|--:|\n\
            | `a`, 4 KiB | 1,234.5 (1,000–20,000) | −0.5 | 123456 |\n| b \\| c | 7 | +0.0 | – |\n";
        let table = Table::read(csv).expect("a table");
        assert_eq!((table.to_string().as_str(), table.csv().as_str()), (shown, csv));
        assert_eq!(table.column("ns to").collect::<Vec<_>>(), ["20000", ""]);
        assert_eq!(table.column("none").count(), 0);
    }

    #[test]
    fn a_table_of_what_is_is_a_list() {
        let head = Table::read("what,is\ndate,2026-11-21\nmachine,\"A, B\"\n").expect("a table");
        assert_eq!(head.to_string(), "* date: 2026-11-21\n* machine: A, B\n");
    }

    #[test]
    fn a_page_gets_the_tables_below_its_lines() {
        let new = |file: &str| if file == "x/head.csv" { "* a: b\n".to_owned() } else { "| new |\n|---|\n".to_owned() };
        let page = "# X\n\n<!-- from x/head.csv -->\nText\n<!-- from x/y.csv -->\n\n| old |\n|---|\n| 1 |\n\n* item\n";
        let wanted =
            "# X\n\n<!-- from x/head.csv -->\n\n* a: b\n\nText\n<!-- from x/y.csv -->\n\n| new |\n|---|\n\n* item\n";
        assert_eq!(filled(page, new), wanted);
        assert_eq!(filled(wanted, new), wanted, "a page that is current stays");
    }
}
