//! Fuzz targets: a function for every input from outside.
//!
//! Each function takes any bytes and panics on a fault of the library: a panic, written data that
//! read back differently, or an invalid plan. Refused bytes are fine, as long as the error message
//! is one line.
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

/// A function of any bytes.
pub type Target = fn(&[u8]);

/// Name and function of every target. The name is also the folder in `fuzz/seeds`.
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
