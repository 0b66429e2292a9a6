//! Operations of the allocator in a build without the feature `paranoid`. Nothing is checked when
//! they start or end.

use crate::arena::Arena;
use crate::arena::platform::Platform;
use crate::units::DeviceIndex;
use core::marker::PhantomData;

/// An operation. Nothing is noted about it.
pub(crate) struct Checked<'a, P: Platform>(PhantomData<&'a Arena<P>>);

impl<'a, P: Platform> Checked<'a, P> {
    #[inline(always)]
    pub(crate) fn begin(
        _operation: &'static str,
        _arenas: impl FnOnce() -> &'a [Arena<P>],
        _device: impl FnOnce() -> Option<DeviceIndex>,
    ) -> Self {
        Self(PhantomData)
    }
}
