//! Checks the tables with a last column `test`: each test that is named there exists.

use super::{sources, test_names};
use std::collections::BTreeSet;
use std::path::Path;

/// Pages with such tables.
const PAGES: [&str; 3] = ["docs/orderings.md", "docs/platforms.md", "tests/results/one_memory.md"];

/// Returns the last cells of the rows of all tables whose last column is `test`.
fn cells(page: &str) -> Vec<&str> {
    let mut is_inside = false;
    let mut found = Vec::new();
    for line in page.lines() {
        let Some(row) = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) else {
            is_inside &= line.starts_with("|-");
            continue;
        };
        let last = row.rsplit(" | ").next().unwrap_or(row);
        if is_inside {
            found.push(last);
        }
        is_inside |= last == "test";
    }
    found
}

#[test]
fn tests_named_in_tables_exist() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let tests: BTreeSet<String> = sources::below("").flat_map(|(_, text)| test_names::tests_of(&text)).collect();
    for page in PAGES {
        let text = std::fs::read_to_string(root.join(page)).expect("a page");
        let cells = cells(&text);
        assert!(cells.len() > 10, "{page}: {} rows", cells.len());
        for cell in cells {
            let names: Vec<_> = cell.split('`').skip(1).step_by(2).collect();
            assert_eq!(names.is_empty(), cell == "–", "{page}: a test, or a dash: {cell}");
            let unknown: Vec<_> = names.iter().filter(|name| !tests.contains(**name)).collect();
            assert!(unknown.is_empty(), "{page} names no test by {unknown:?}");
        }
    }
}

/// Texts of code that asks for an order of memory.
const ORDERS: [&str; 7] = [
    "Ordering::Acquire",
    "Ordering::Release",
    "Ordering::AcqRel",
    "Ordering::SeqCst",
    "(Acquire)",
    "(SeqCst)",
    ", Release)",
];

#[test]
fn every_file_with_an_order_of_memory_has_a_row() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let page = std::fs::read_to_string(root.join("docs/orderings.md")).expect("a page");
    let first = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let named: BTreeSet<&str> = first.flat_map(|cell| cell.trim_matches('`').split("`, `")).collect();
    let files = ["core/src", "run/gate/src"].into_iter().flat_map(sources::below).filter(|(path, text)| {
        let is_test = path.components().any(|part| part.as_os_str() == "tests") || path.ends_with("model.rs");
        let asks = |line: &str| ORDERS.iter().any(|order| line.contains(order));
        !is_test && text.lines().any(|line| !line.trim_start().starts_with("//") && asks(line))
    });
    let files: Vec<String> = files.map(|(path, _)| path.display().to_string()).collect();
    assert!(files.len() > 10);
    assert_eq!(files.iter().map(String::as_str).collect::<BTreeSet<_>>(), named);
}

#[test]
fn the_last_cells_of_tables_of_tests_are_read_and_no_others() {
    let page =
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n| a | test |\n|---|---|\n| 1 | `t`, `u` |\n| 2 | – |\n\nNo.\n| 3 | 4 |\n";
    assert_eq!(cells(page), ["`t`, `u`", "–"]);
}
