//! Any bytes as a configuration.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cachalot_fuzz_harness::configs::run(bytes));
