//! Tests of the built library: the needs and the exports of the file.

mod file;
mod header;

use std::collections::BTreeSet;

/// The symbols of the table of exported functions.
fn names() -> BTreeSet<String> {
    let text = include_str!("../src/exports.rs").split_once("\nexports! {\n").expect("the table").1;
    let rows = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let words = rows.flat_map(|row| row.split(|at: char| !at.is_ascii_alphanumeric() && at != '_'));
    words.filter(|word| word.starts_with("cu")).map(str::to_owned).collect()
}
