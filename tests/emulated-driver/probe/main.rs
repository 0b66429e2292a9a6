//! Probe.
fn main() {}
