//! Generates the tables of `docs/statistics.md` from the library's statistics.
//!
//! To rewrite the tables:
//! `CACHALOT_WRITE_DOCS=1 cargo test -p cachalot-tests --test house statistics_page`.

use cachalot_core::Statistic;
use cachalot_tests::generated;
use std::fmt::Write as _;
use std::path::Path;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/statistics.md");
const BEGIN: &str = "<!-- The tables are generated: see tests/tests/statistics_page.rs. -->\n";
const END: &str = "<!-- End of the generated tables. -->\n";

/// Builds the tables: one per group.
fn tables() -> String {
    let mut text = String::new();
    for (at, row) in Statistic::ALL.iter().enumerate() {
        if at == 0 || Statistic::ALL[at - 1].group() != row.group() {
            let _ = write!(
                text,
                "\n### `{}`\n\n| name | kind | unit | meaning | metric |\n|---|---|---|---|---|\n",
                row.group()
            );
        }
        let (name, kind, unit, meaning, metric) = (row.name, row.kind.name(), row.unit, row.text, row.metric());
        let _ = writeln!(text, "| `{name}` | {kind} | {unit} | {meaning} | `{metric}` |");
    }
    text + "\n"
}

#[test]
fn the_page_has_the_library_s_statistics() {
    generated::assert_part_current(Path::new(PAGE), BEGIN, END, &tables());
}
