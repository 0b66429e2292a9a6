//! Any bytes as a table of buffers.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cachalot_fuzz_harness::files::table(bytes));
