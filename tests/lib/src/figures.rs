//! Converts the figures in a Markdown file of `tests/results/` to CSV for other programs.
//!
//! Each cell of each table becomes a line: the heading above the table, the number of the table in
//! the file, the number of the row, the header of the column, and the value. The list above the
//! first table comes first, as table 0: machine, date, commit, command.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// Writes a number with commas between thousands.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let apart = |(at, digit): (usize, char)| {
        let comma = at > 0 && (digits.len() - at).is_multiple_of(3);
        [comma.then_some(','), Some(digit)].into_iter().flatten()
    };
    digits.chars().enumerate().flat_map(apart).collect()
}

/// Column headers of the CSV.
const HEADER: [&str; 5] = ["section", "table", "row", "column", "value"];

/// State of the conversion.
#[derive(Default)]
struct Reader {
    /// The latest heading.
    section: String,
    /// Number of tables begun.
    table: usize,
    /// Number of the row in the table; the header is row 0.
    row: usize,
    /// Header cells of the table.
    columns: Vec<String>,
    /// Cells of the present row.
    cells: usize,
    /// Text of the present cell, heading or item.
    text: String,
    /// Lines of the result.
    lines: Vec<[String; 5]>,
}

impl Reader {
    fn push(&mut self, row: usize, column: String, value: String) {
        let section = if self.table == 0 { String::new() } else { self.section.clone() };
        self.lines.push([section, self.table.to_string(), row.to_string(), column, value]);
    }

    /// Takes the text collected for the item, heading or cell that ends here.
    fn take(&mut self) -> String {
        std::mem::take(&mut self.text).trim().to_owned()
    }

    fn read(&mut self, event: Event<'_>) {
        match event {
            Event::Start(Tag::Heading { .. } | Tag::Item | Tag::TableCell | Tag::Paragraph) => self.text.clear(),
            Event::Start(Tag::Table(_)) => self.table += 1,
            Event::Start(Tag::TableHead) => (self.row, self.columns) = (0, Vec::new()),
            Event::Start(Tag::TableRow) => (self.row, self.cells) = (self.row + 1, 0),
            Event::Text(text) | Event::Code(text) => self.text += &text,
            Event::SoftBreak | Event::HardBreak => self.text.push(' '),
            Event::End(TagEnd::Heading(_)) => self.section = self.take(),
            Event::End(TagEnd::Item) if self.table == 0 => {
                let item = self.take();
                let (what, is) = item.split_once(": ").unwrap_or(("note", &item));
                self.push(0, what.to_owned(), is.to_owned());
            }
            Event::End(TagEnd::TableCell) => {
                let cell = self.take();
                if self.row == 0 {
                    self.columns.push(cell);
                } else {
                    self.push(self.row, self.columns[self.cells].clone(), cell);
                    self.cells += 1;
                }
            }
            _ => {}
        }
    }
}

/// Returns the tables of a Markdown text as CSV, or `None` if the text has no table.
///
/// # Panics
/// Never: writing a CSV to memory cannot fail.
pub fn csv(markdown: &str) -> Option<String> {
    let mut reader = Reader::default();
    Parser::new_ext(markdown, Options::ENABLE_TABLES).for_each(|event| reader.read(event));
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(HEADER).expect("memory can be written");
    for line in &reader.lines {
        writer.write_record(line).expect("memory can be written");
    }
    let bytes = writer.into_inner().expect("memory can be written");
    (reader.table > 0).then(|| String::from_utf8(bytes).expect("its fields are text"))
}

#[cfg(test)]
mod tests {
    use super::csv;

    #[test]
    fn every_cell_is_a_line_with_its_heading_and_column() {
        let markdown = "# Title\n\n* date: 2026-11-21\n* quiet\n  machine\n\n## Pair\n\n| size | `ns`, all |\n|---|---|\n\
            | 4 KiB | 1 |\n| 1 MiB | 2 |\n\n* not: listed\n\n| a |\n|---|\n| b |\n";
        let wanted = "section,table,row,column,value\n,0,0,date,2026-11-21\n,0,0,note,quiet machine\n\
            Pair,1,1,size,4 KiB\nPair,1,1,\"ns, all\",1\nPair,1,2,size,1 MiB\nPair,1,2,\"ns, all\",2\nPair,2,1,a,b\n";
        assert_eq!(csv(markdown).as_deref(), Some(wanted));
        assert_eq!(csv("# Title\n\n* date: today\n"), None);
    }
}
