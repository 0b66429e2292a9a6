//! Any bytes as the end of a run.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cachalot_fuzz_harness::files::end(bytes));
