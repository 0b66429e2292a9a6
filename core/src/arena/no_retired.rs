//! Builds without `alloc` retire no segments.

use crate::arena::Arena;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::DevicePtr;

/// The retired segments of one device: none.
pub(crate) struct RetiredSegments<'a, D, R: Lock, S: Storage>(
    #[expect(dead_code, reason = "as in builds with `alloc`")] pub &'a Arena<D, R, S>,
);

impl<D: DeviceMemory, R: Lock, S: Storage> RetiredSegments<'_, D, R, S> {
    /// Returns 0.
    #[expect(clippy::unused_self, reason = "as in builds with `alloc`")]
    pub(crate) fn bytes(&self) -> u64 {
        0
    }

    /// Returns `None`.
    #[expect(clippy::unused_self, reason = "as in builds with `alloc`")]
    pub(crate) fn first(&self) -> Option<DevicePtr> {
        None
    }

    /// Does nothing.
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "as in builds with `alloc`")]
    pub(crate) fn release(&self, _all: bool) -> Result<(), Error> {
        Ok(())
    }
}
