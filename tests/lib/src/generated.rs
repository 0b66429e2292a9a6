//! Committed files that a test generates from other files or from the library.

use std::fs;
use std::path::Path;

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
