//! The devices: memory, loss, and use by others.

use crate::backing::pages::Pages;
use crate::values::code::Code;
use crate::values::config::Config;

/// A device.
#[derive(Debug)]
pub(crate) struct Device {
    /// The memory of the device.
    pub(crate) pages: Pages,
    /// Bytes in use by pretended other processes, for `cuMemGetInfo`.
    pub(crate) others_bytes: u64,
    /// Answer to every call for the device after the loss of the device.
    pub(crate) lost: Option<Code>,
    /// The flags of the primary context.
    pub(crate) primary_flags: u32,
    /// Retains of a primary context that a reset has ended.
    pub(crate) reset_retains: u64,
}

impl Device {
    /// Creates a device as configured.
    pub(crate) fn new(config: &Config) -> Self {
        let pages = Pages::new(config.memory_bytes, config.poison);
        Self { pages, others_bytes: 0, lost: None, primary_flags: 0, reset_retains: 0 }
    }

    /// Returns free and total bytes for `cuMemGetInfo`.
    pub(crate) fn info(&self) -> (u64, u64) {
        (self.pages.free().saturating_sub(self.others_bytes), self.pages.total())
    }

    /// Returns whether `bytes` are free, given the pretended use by other processes.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        bytes <= self.info().0
    }
}
