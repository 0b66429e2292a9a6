//! The tables of the pages are those of CSV files: below a line `<!-- from FILE -->`, a page has
//! the table of the file. `cachalot_tests::figures` says how a table is shown.
//!
//! To write the tables: `CACHALOT_WRITE_DOCS=1 cargo test -p cachalot-tests --test house results`.

use crate::sources;
use cachalot_tests::figures::{Table, filled};
use cachalot_tests::generated;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Reads the table that a page names, relative to the page.
fn table(page: &Path, file: &str) -> Table {
    let path = page.parent().expect("a page is in a folder").join(file);
    let csv =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {}: {error}", page.display(), path.display()));
    let table = Table::read(&csv).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let names: BTreeSet<&String> = table.header.iter().collect();
    assert_eq!(names.len(), table.header.len(), "{}: a column twice", path.display());
    table
}

#[test]
fn pages_have_the_tables_of_their_csv_files() {
    for (page, text) in sources::texts("", &["md"]).filter(|(_, text)| text.contains("\n<!-- from ")) {
        let page = Path::new(ROOT).join(page);
        generated::assert_current(&page, &filled(&text, |file| table(&page, file).to_string()));
    }
}

#[test]
fn every_table_of_results_has_a_csv_file_and_every_file_a_place() {
    let mut shown = BTreeSet::new();
    for (page, text) in sources::texts("tests/results", &["md"]) {
        let rest = filled(&text, |file| {
            shown.insert(page.with_file_name(file));
            String::new()
        });
        // Every second part between fences is code.
        let prose = rest.split("\n```").step_by(2).flat_map(str::lines);
        let by_hand: Vec<&str> = prose.filter(|line| line.starts_with('|')).collect();
        assert!(by_hand.is_empty(), "{}: tables without a CSV file: {by_hand:#?}", page.display());
    }
    // A line a run, and no page.
    shown.insert(PathBuf::from("tests/results/ledger.csv"));
    let files: BTreeSet<PathBuf> = sources::texts("tests/results", &["csv"]).map(|(path, _)| path).collect();
    assert_eq!(files, shown, "CSV files, and those that a page shows");
}
