//! Committed files that a test generates from other files or from the library.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Checks that the file at `path` contains `text`. With `CACHALOT_WRITE_DOCS` in the environment,
/// writes the file first.
///
/// # Panics
/// If the file differs from `text`, or cannot be written.
pub fn assert_current(path: &Path, text: &str) {
    if std::env::var_os("CACHALOT_WRITE_DOCS").is_some() {
        fs::write(path, text).expect("the folder can be written");
    }
    let found = fs::read_to_string(path).unwrap_or_default();
    assert!(found == text, "{} is out of date: run this test with CACHALOT_WRITE_DOCS=1", path.display());
}

/// Checks that `text` stands in the file at `path` between the lines `begin` and `end`. With
/// `CACHALOT_WRITE_DOCS` in the environment, writes the file first. Several tests may write parts
/// of the same file at the same time.
///
/// # Panics
/// If the part differs from `text`, if a line is missing, or if the file cannot be written.
pub fn assert_part_current(path: &Path, begin: &str, end: &str, text: &str) {
    static WRITING: Mutex<()> = Mutex::new(());
    // A test that failed has left the file whole.
    let _alone = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let file = fs::read_to_string(path).expect("the file is there");
    let (before, rest) = file.split_once(begin).unwrap_or_else(|| panic!("{}: no `{begin}`", path.display()));
    let (_, after) = rest.split_once(end).unwrap_or_else(|| panic!("{}: no `{end}`", path.display()));
    assert_current(path, &format!("{before}{begin}{text}{end}{after}"));
}
