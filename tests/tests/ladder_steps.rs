//! Generates the list of a request's steps in `docs/concepts.md` from the library.
//!
//! To rewrite the list:
//! `CACHALOT_WRITE_DOCS=1 cargo test -p cachalot-tests --test house ladder_steps`.

use crate::wrapping::wrapped_markdown;
use cachalot_core::Growable;
use cachalot_core::ladder::steps;
use cachalot_core::simulated::SimulatedDevice;
use cachalot_tests::generated;
use std::path::Path;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/concepts.md");
const BEGIN: &str = "<!-- The list is generated: see tests/tests/ladder_steps.rs. -->\n";
const END: &str = "<!-- End of the generated list. -->\n";

/// Builds the list: a numbered line for each step.
fn list() -> String {
    let line = |(number, text, waits): (usize, &str, bool)| {
        let capture = if waits { " Not during a capture." } else { "" };
        format!("{number}. {text}{capture}\n")
    };
    let steps = steps::<SimulatedDevice, parking_lot::RawMutex, Growable>();
    let lines: String = (1..).zip(steps).map(|(number, step)| line((number, step.text, step.waits))).collect();
    wrapped_markdown(&lines)
}

#[test]
fn the_page_has_the_library_s_steps() {
    generated::assert_part_current(Path::new(PAGE), BEGIN, END, &format!("\n{}\n", list()));
}
