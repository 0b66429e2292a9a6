//! A setup that fails: no driver, device or kernels, or an invalid configuration.

/// Reason why a run did not start.
pub(crate) type SetupError = Box<dyn std::error::Error>;

/// Exit status after a failed setup: no driver, device or kernels, or an invalid
/// configuration.
pub(crate) const NOT_BEGUN: u8 = 2;
