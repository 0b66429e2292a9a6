//! What the fuzzer runs: a function for everything that takes foreign bytes.
//!
//! Each function takes any bytes and panics if the library does what it must not: panics itself, reads
//! back something else than it wrote, or hands out a plan that is none. Bytes that are refused are
//! fine, as long as the complaint is one line.
//!
//! ```text
//! fuzz/fuzz_targets/NAME.rs   libFuzzer, led by coverage ─┐
//!                                                         ├─▶ TARGETS[NAME] ─▶ programs · files · configs · calls
//! tests/seeds.rs              seeds and their mutations  ─┘
//! ```

pub mod calls;
pub mod configs;
pub mod files;
pub mod programs;

/// A function that takes any bytes.
pub type Target = fn(&[u8]);

/// Every target with its name, which is that of its folder in `fuzz/seeds` too.
pub const TARGETS: [(&str, Target); 10] = [
    ("programs", programs::run),
    ("pickles", files::pickle),
    ("snapshots", files::snapshot),
    ("records", files::record),
    ("ends", files::end),
    ("tables", files::table),
    ("operators", files::operators),
    ("costs", files::costs),
    ("configs", configs::run),
    ("calls", calls::run),
];
