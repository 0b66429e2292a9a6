//! Checks that every file with tables in `tests/results/` has its figures beside it as CSV.
//!
//! To rewrite the CSV files: `CACHALOT_WRITE_DOCS=1 cargo test -p cachalot-tests --test
//! results_csv`.

use cachalot_tests::figures::csv;
use cachalot_tests::generated;
use std::ffi::OsStr;
use std::fs;

const RESULTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/results");

#[test]
fn the_figures_are_beside_their_tables() {
    let entries =
        fs::read_dir(RESULTS).expect("the folder is there").map(|entry| entry.expect("it can be read").path());
    let pages: Vec<_> = entries.filter(|path| path.extension() == Some(OsStr::new("md"))).collect();
    assert!(pages.len() >= 8, "{pages:?}");
    for page in pages {
        let Some(figures) = csv(&fs::read_to_string(&page).expect("Markdown is text")) else { continue };
        generated::assert_current(&page.with_extension("csv"), &figures);
    }
}
