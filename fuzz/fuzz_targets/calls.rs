//! Any calls of the C interface.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cachalot_fuzz_harness::calls::run(bytes));
