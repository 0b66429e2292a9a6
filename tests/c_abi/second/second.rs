//! A second Rust static library in the program, with its own copy of the standard library, panics
//! included.

use std::collections::HashMap;

/// Counts distinct words. Adds 1 for a panic inside the function.
#[unsafe(no_mangle)]
pub extern "C" fn second_count(limit: u32) -> u32 {
    let mut words = HashMap::new();
    for number in 0..limit {
        *words.entry(format!("{}", number % 10)).or_insert(0) += 1;
    }
    let caught = std::panic::catch_unwind(|| assert!(limit == 0, "the second library's own panic"));
    words.len() as u32 + u32::from(caught.is_err())
}
