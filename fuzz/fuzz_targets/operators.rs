//! Any bytes as a program of operators.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cachalot_fuzz_harness::files::operators(bytes));
