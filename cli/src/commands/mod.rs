//! One file for each command, and what they share.

pub(crate) mod bytes;
pub(crate) mod progress;
pub(crate) mod replay;

/// The exit status when what was to be shown does not hold.
pub(crate) const DIFFERENT: u8 = 1;

/// The exit status for input that cannot be used; clap exits with the same for a wrong command line.
pub(crate) const BAD_INPUT: u8 = 2;
