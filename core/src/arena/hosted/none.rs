//! Builds without `alloc` take no copies and no snapshots, and retire no segments.

use crate::arena::Arena;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::DevicePtr;

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Returns 0.
    #[expect(clippy::unused_self, reason = "as in builds with `alloc`")]
    pub(crate) fn retired_bytes(&self) -> u64 {
        0
    }

    /// Returns `None`.
    #[expect(clippy::unused_self, reason = "as in builds with `alloc`")]
    pub(crate) fn first_retired(&self) -> Option<DevicePtr> {
        None
    }

    /// Does nothing.
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "as in builds with `alloc`")]
    pub(crate) fn release_retired(&self, _all: bool) -> Result<(), Error> {
        Ok(())
    }
}
