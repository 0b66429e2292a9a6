//! Tables for people: at most six columns, fitted to the terminal, or all columns with `--wide`.
//!
//! The first column names the row, and is folded to fit the width. All other columns have
//! figures, which are never folded.
//!
//! ```text
//!   contender                        peak reserved   …
//! ─────────────────────────────────────────────────
//!   caching                              15.73 GiB
//! * caching expandable_segments:True      5.17 GiB       the marked row; coloured on a terminal
//! ```

use anstyle::{AnsiColor, Style};
use comfy_table::{CellAlignment, TableComponent, presets};
use rustix::fs::{FileType, fstat};
use std::io::{stderr, stdout};
use terminal_size::terminal_size_of;

/// Most columns of a table without `--wide`.
const MOST_COLUMNS: usize = 6;

/// Width in columns of text, without a terminal and without `COLUMNS`.
const WIDTH_ELSEWHERE: usize = 100;

/// Least width of the names of rows, in columns of text.
const LEAST_NAME: usize = 12;

/// Prefix of the marked row.
const MARK: &str = "* ";

/// Prefix of all unmarked rows in a table with a mark.
const NO_MARK: &str = "  ";

/// Style of the marked row.
const BEST: Style = AnsiColor::Green.on_default().bold();

/// Style of the titles.
const TITLES: Style = Style::new().bold();

/// Options of every command with a table.
#[derive(clap::Args)]
pub(crate) struct Look {
    /// Show all columns, each row on one line; by default at most 6 columns, fitted to the terminal
    /// (100 columns wide if the output is a file; the variable COLUMNS overrides both)
    #[arg(long, conflicts_with = "json")]
    wide: bool,
}

impl Look {
    /// Returns the greatest width of a line, or `None` for no limit.
    fn width(&self) -> Option<usize> {
        let variable = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).filter(|&width| width > 0);
        let is_pipe = || fstat(stdout()).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo);
        // What reads a pipe, such as `less`, shows the text on the terminal that has the messages.
        let behind_pipe = || if is_pipe() { terminal_size_of(stderr()) } else { None };
        let terminal = || {
            let size = terminal_size_of(stdout()).or_else(behind_pipe);
            size.map_or(WIDTH_ELSEWHERE, |(width, _)| width.0.into())
        };
        (!self.wide).then(|| variable.unwrap_or_else(terminal))
    }

    /// Folds a paragraph between words so that its lines fit. All lines but the first start with
    /// `indent` spaces.
    pub(crate) fn fold(&self, paragraph: &str, indent: usize) -> String {
        let Some(width) = self.width() else { return paragraph.to_owned() };
        let indent = " ".repeat(indent);
        let options = textwrap::Options::new(width).subsequent_indent(&indent).break_words(false);
        textwrap::fill(paragraph, options.word_splitter(textwrap::WordSplitter::NoHyphenation))
    }
}

/// A column. The title may break at spaces, and at soft hyphens (`\u{ad}`).
#[derive(Clone, Copy)]
pub(crate) struct Column {
    title: &'static str,
    shown: When,
}

/// When a column is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    /// If a row has a figure in it, and with `--wide`.
    IfAny,
    /// With `--wide`.
    Wide,
}

/// Creates a column of every table.
pub(crate) const fn column(title: &'static str) -> Column {
    Column { title, shown: When::Always }
}

/// Creates a column for `--wide` only.
pub(crate) const fn extra(title: &'static str) -> Column {
    Column { title, shown: When::Wide }
}

/// Creates a column for tables with a figure in it, and for `--wide`. The most columns of a table
/// do not count it.
pub(crate) const fn if_any(title: &'static str) -> Column {
    Column { title, shown: When::IfAny }
}

/// A table under construction.
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
    marked: Option<usize>,
}

/// The arrangement of a table.
struct Layout {
    /// The numbers of the visible columns.
    shown: Vec<usize>,
    /// The titles of the visible columns.
    titles: Vec<String>,
    /// Most characters in a line of a name.
    room: usize,
}

impl Table {
    /// Creates a table without rows.
    pub(crate) fn new(columns: &[Column]) -> Self {
        let shown = columns.iter().filter(|column| column.shown == When::Always).count();
        debug_assert!(shown <= MOST_COLUMNS, "{shown} columns without --wide");
        let same = columns.iter().enumerate().find(|(at, one)| columns[..*at].iter().any(|two| two.title == one.title));
        debug_assert!(same.is_none(), "two columns are called {}", same.map_or("", |(_, column)| column.title));
        Self { columns: columns.to_vec(), rows: Vec::new(), marked: None }
    }

    /// Adds a row: the name, then a figure for each additional column. Missing figures stay empty.
    pub(crate) fn row(&mut self, mut cells: Vec<String>) {
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    /// Marks a row, counted from 0, as the best.
    pub(crate) fn mark(&mut self, row: usize) {
        self.marked = Some(row);
    }

    /// Returns whether the table has no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the styled lines of the table. [`print`](super::print) omits unwanted styles.
    pub(crate) fn render(&self, look: &Look) -> String {
        let layout = self.layout(look.width());
        let mut table = comfy_table::Table::new();
        table.load_preset(presets::NOTHING);
        table.set_style(TableComponent::HeaderLines, '─').set_style(TableComponent::MiddleHeaderIntersections, '─');
        let mut titles = layout.titles.clone();
        titles[0].insert_str(0, self.mark_of(None));
        let heights = titles.iter().map(|title| title.lines().count());
        let mut styles = vec![TITLES; heights.max().unwrap_or(1)];
        styles.push(Style::new());
        table.set_header(titles);
        for (number, row) in self.rows.iter().enumerate() {
            let name = fold(&row[0], layout.room);
            let style = if self.marked == Some(number) { BEST } else { Style::new() };
            styles.extend(name.iter().map(|_| style));
            // The mark is before the first line of the name. Other lines start with as many
            // spaces.
            let marks = std::iter::once(self.mark_of(Some(number))).chain(std::iter::repeat(self.mark_of(None)));
            let name: Vec<String> = marks.zip(name).map(|(mark, line)| format!("{mark}{line}")).collect();
            let figures = layout.shown[1..].iter().map(|&at| row[at].clone());
            table.add_row(std::iter::once(name.join("\n")).chain(figures));
        }
        for (at, column) in table.column_iter_mut().enumerate() {
            // With the empty line of the preset, columns are two characters apart. The ends of a
            // line have no padding.
            column.set_padding((u16::from(at > 0), 0));
            if at > 0 {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let lines = table.lines().zip(styles);
        lines.map(|(line, style)| format!("{style}{}{style:#}", line.trim_end())).collect::<Vec<_>>().join("\n")
    }

    /// Returns the prefix of a row, or of the titles for `None`. All prefixes of a table have equal
    /// width, which is 0 without a marked row.
    fn mark_of(&self, row: Option<usize>) -> &'static str {
        match self.marked {
            None => "",
            marked if row.is_some() && marked == row => MARK,
            Some(_) => NO_MARK,
        }
    }

    /// Returns the visible columns, the form of the titles, and the width of the names.
    fn layout(&self, width: Option<usize>) -> Layout {
        let has_figure = |at: usize| self.rows.iter().any(|row| !row[at].is_empty());
        let is_shown = |&at: &usize| match self.columns[at].shown {
            When::Always => true,
            When::IfAny => width.is_none() || has_figure(at),
            When::Wide => width.is_none(),
        };
        let shown: Vec<usize> = (0..self.columns.len()).filter(is_shown).collect();
        let titles = |folds: bool| shown.iter().map(|&at| title(self.columns[at].title, folds)).collect::<Vec<_>>();
        let room = |titles: &[String]| {
            let figures = shown.iter().zip(titles).skip(1).map(|(&at, title)| 2 + self.widest(at, title));
            let taken = figures.sum::<usize>() + self.mark_of(None).len();
            width.map_or(usize::MAX, |width| width.saturating_sub(taken))
        };
        // Titles are folded only if names would otherwise be folded.
        let whole = titles(false);
        let titles = if room(&whole) < self.widest(0, &whole[0]) { titles(true) } else { whole };
        Layout { room: room(&titles).max(LEAST_NAME), shown, titles }
    }

    /// Returns the width of the widest cell of a column.
    fn widest(&self, column: usize, title: &str) -> usize {
        let cells = self.rows.iter().map(|row| row[column].as_str());
        cells.chain(title.lines()).map(|text| text.chars().count()).max().unwrap_or(0)
    }
}

/// Returns a title for printing: on one line, or folded at the last space and at all soft hyphens.
fn title(title: &str, folds: bool) -> String {
    if !folds {
        return title.replace('\u{ad}', "");
    }
    let title = title.replace('\u{ad}', "-\n");
    title.rsplit_once(' ').map_or(title.clone(), |(first, last)| format!("{first}\n{last}"))
}

/// Folds a name into lines of at most `room` characters: at the last space, otherwise after the
/// last comma or slash, otherwise after the last other punctuation, otherwise anywhere.
fn fold(name: &str, room: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest: Vec<char> = name.chars().collect();
    while rest.len() > room {
        let space = rest[..=room].iter().rposition(|&character| character == ' ').filter(|&at| at > 0);
        let behind =
            |marks: &str| rest[..room].iter().rposition(|&character| marks.contains(character)).map(|at| at + 1);
        let at = space.or_else(|| behind(",/")).or_else(|| behind(":;_-.")).unwrap_or(room);
        let mut line: String = rest.drain(..at).collect();
        line.truncate(line.trim_end().len());
        lines.push(line);
        if rest.first() == Some(&' ') {
            rest.remove(0);
        }
    }
    lines.push(rest.into_iter().collect());
    lines
}

#[cfg(test)]
mod tests {
    use super::{fold, title};

    #[test]
    fn a_name_is_folded_at_spaces_then_behind_punctuation_then_anywhere() {
        assert_eq!(fold("caching", 12), ["caching"]);
        assert_eq!(fold("caching expandable_segments:True", 24), ["caching", "expandable_segments:True"]);
        assert_eq!(fold("caching expandable_segments:True", 20), ["caching", "expandable_segments:", "True"]);
        assert_eq!(fold("tests/traces/mlp_seed.csv", 18), ["tests/traces/", "mlp_seed.csv"]);
        assert_eq!(fold("a,b,c,d,e", 4), ["a,b,", "c,d,", "e"]);
        assert_eq!(fold("abcdefgh", 3), ["abc", "def", "gh"]);
        assert_eq!(fold("größer als", 6), ["größer", "als"]);
    }

    #[test]
    fn a_title_breaks_once_at_a_space_or_at_soft_hyphens() {
        assert_eq!(title("peak reserved", true), "peak\nreserved");
        assert_eq!(title("to the first", true), "to the\nfirst");
        assert_eq!(title("utili\u{ad}sation", true), "utili-\nsation");
        assert_eq!(title("utili\u{ad}sation", false), "utilisation");
        assert_eq!(title("peak reserved", false), "peak reserved");
    }
}
