//! Any bytes as a pickled snapshot.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cachalot_fuzz_harness::files::pickle(bytes));
