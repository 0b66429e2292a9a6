//! Copies the sizes in `docs/install.md` from `tests/results/sizes.md`, which
//! `scripts/release/sizes.sh` measures.
//!
//! To rewrite the table: `CACHALOT_WRITE_DOCS=1 cargo test -p cachalot-tests --test house sizes`.

use cachalot_tests::generated;
use std::path::Path;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/install.md");
const MEASURED: &str = include_str!("../results/sizes.md");
const BEGIN: &str = "<!-- The sizes are measured: see tests/tests/sizes_page.rs. -->\n";
const END: &str = "<!-- End of the sizes. -->\n";

#[test]
fn the_page_has_the_measured_sizes() {
    let table = MEASURED.lines().filter(|line| line.starts_with('|')).collect::<Vec<_>>().join("\n");
    assert!(!table.is_empty(), "no table of sizes");
    generated::assert_part_current(Path::new(PAGE), BEGIN, END, &format!("\n{table}\n\n"));
}
