//! The functions of the core by name. The private functions are compiled here from their own files.

#[path = "../../../core/src/heap/bins.rs"]
#[allow(dead_code, clippy::inline_always, reason = "a file of which not every function is asked for")]
pub(crate) mod bins;
#[path = "../../../policies/src/geometric_classes.rs"]
#[allow(dead_code, clippy::inline_always, reason = "a file of which not every function is asked for")]
mod geometric_classes;

use cachalot_core::rounding::{self, Divisions, INTERVALS};
use cachalot_core::{Config, GRAIN, MAX_REQUEST, MIB, UNIT};

pub(crate) use geometric_classes::round_up as class_round_up;

/// Returns the number of the class of a size.
pub(crate) fn class_of(size: u64) -> u64 {
    geometric_classes::class_of(size) as u64
}

/// Returns the largest class of at most a size.
pub(crate) fn class_round_down(bytes: u64) -> u64 {
    geometric_classes::round_down(bytes)
}

/// Returns how many times a class fits.
pub(crate) fn class_divide(bytes: u64, size: u64) -> u64 {
    geometric_classes::divide(bytes, size)
}

/// The constants, by name.
pub(crate) const CONSTANTS: [(&str, u64); 14] = [
    ("UNIT", UNIT),
    ("GRAIN", GRAIN),
    ("MIB", MIB),
    ("MAX_REQUEST", MAX_REQUEST),
    ("SMALL_MAX", rounding::SMALL_MAX),
    ("SMALL_SEGMENT", rounding::SMALL_SEGMENT),
    ("OWN_SEGMENT_MIN", rounding::OWN_SEGMENT_MIN),
    ("LARGE_SEGMENT", rounding::LARGE_SEGMENT),
    ("SEGMENT_STEP", rounding::SEGMENT_STEP),
    ("EXACT_STEP", rounding::EXACT_STEP),
    ("INTERVALS", INTERVALS as u64),
    ("BINS", bins::BINS as u64),
    ("STEPS_LOG2", bins::STEPS_LOG2 as u64),
    ("EXACT", bins::EXACT),
];

/// Returns the divisions with the same number for every interval.
pub(crate) fn divisions(number: u64) -> Option<Divisions> {
    Divisions::new([u32::try_from(number).ok()?; INTERVALS])
}

/// Returns the value of a function, `None` for an unknown name or the wrong numbers.
pub(crate) fn value(name: &str, numbers: &[u64]) -> Option<u64> {
    match (name, numbers) {
        ("round_size", &[bytes, number]) => Some(rounding::round_size(bytes, &divisions(number)?).unwrap_or(u64::MAX)),
        ("segment_size", &[size]) => Some(rounding::segment_size(size, &Config::new())),
        ("bin_of", &[size]) => Some(bins::bin_of(size) as u64),
        ("class_round_up", &[bytes]) => Some(class_round_up(bytes)),
        ("class_round_down", &[bytes]) => Some(class_round_down(bytes)),
        ("class_of", &[size]) => Some(class_of(size)),
        ("class_divide", &[bytes, size]) => Some(class_divide(bytes, size)),
        _ => None,
    }
}
