//! Any bytes as a snapshot in JSON.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cachalot_fuzz_harness::files::snapshot(bytes));
