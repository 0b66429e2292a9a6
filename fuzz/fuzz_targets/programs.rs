//! Any program on the core and on a naive model of the core.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cachalot_fuzz_harness::programs::run(bytes));
