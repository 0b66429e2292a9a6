//! Operations of the allocator in a build without the feature `paranoid`: nothing is checked when they begin or end.

use crate::arena::Arena;
use crate::device::DeviceMemory;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::DeviceIndex;
use core::marker::PhantomData;

/// An operation, of which nothing is noted.
pub(crate) struct Checked<'a, D: DeviceMemory, R: Lock, S: Storage>(PhantomData<&'a Arena<D, R, S>>);

impl<'a, D: DeviceMemory, R: Lock, S: Storage> Checked<'a, D, R, S> {
    #[inline(always)]
    pub(crate) fn begin(
        _operation: &'static str,
        _arenas: &'a [Arena<D, R, S>],
        _device: impl FnOnce() -> Option<DeviceIndex>,
    ) -> Self {
        Self(PhantomData)
    }
}
