//! The allocator under test, with a wrapper that contains the mistakes of mutants.

use crate::instrumented::Instrumented;
use crate::mutant::Mutant;
use cachalot_core::{Allocator, DeviceIndex, DevicePtr, Error, Growable, PointerFault, StreamId};
use parking_lot::{Mutex, RawMutex};
use std::collections::BTreeSet;
use std::ops::Deref;

/// The allocator in the configuration of ordinary programs.
pub(crate) type Core = Allocator<Instrumented, RawMutex, Growable>;

/// The allocator under test.
pub(crate) struct Subject {
    core: Core,
    mutant: Option<Mutant>,
    /// Table of the live blocks, for [`Mutant::LateErase`] only.
    live: Mutex<BTreeSet<u64>>,
}

/// Gives access to the calls that no mutant changes.
impl Deref for Subject {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Subject {
    /// Wraps an allocator, with the mistake of `mutant` if given.
    pub(crate) fn new(core: Core, mutant: Option<Mutant>) -> Self {
        Self { core, mutant, live: Mutex::default() }
    }

    /// Allocates a block with [`Allocator::malloc`], or with the mutant's mistake.
    #[inline]
    pub(crate) fn malloc(&self, device: DeviceIndex, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        match self.mutant {
            // Half of the bytes: a fill of the whole block then overwrites the neighbour.
            Some(Mutant::ShortBlock) => self.core.malloc(device, bytes.div_ceil(2), stream),
            Some(Mutant::LateErase) => {
                let ptr = self.core.malloc(device, bytes, stream)?;
                self.live.lock().insert(ptr.0);
                Ok(ptr)
            }
            _ => self.core.malloc(device, bytes, stream),
        }
    }

    /// Frees a block with [`Allocator::free`], or with the mutant's mistake.
    #[inline]
    pub(crate) fn free(&self, ptr: DevicePtr) -> Result<(), Error> {
        if self.mutant == Some(Mutant::LateErase) {
            return self.free_before_erase(ptr, |core| core.free(ptr));
        }
        self.core.free(ptr)
    }

    /// Frees a block with [`Allocator::free_sized`], or with the mutant's mistake.
    #[inline]
    pub(crate) fn free_sized(&self, ptr: DevicePtr, bytes: u64) -> Result<(), Error> {
        match self.mutant {
            // A free with the size would detect the short block, and hide the overlap.
            Some(Mutant::SizeCheck | Mutant::ShortBlock) => self.core.free(ptr),
            Some(Mutant::LateErase) => self.free_before_erase(ptr, |core| core.free_sized(ptr, bytes)),
            _ => self.core.free_sized(ptr, bytes),
        }
    }

    /// Frees the block before removing the block from the table of live blocks: in between, another
    /// thread may receive the block.
    fn free_before_erase(&self, ptr: DevicePtr, free: impl Fn(&Core) -> Result<(), Error>) -> Result<(), Error> {
        if ptr != DevicePtr::NULL && !self.live.lock().contains(&ptr.0) {
            return Err(Error::InvalidPointer { ptr, fault: PointerFault::Free });
        }
        free(&self.core)?;
        // Widens the window in which another thread may receive the block.
        std::thread::yield_now();
        self.live.lock().remove(&ptr.0);
        Ok(())
    }
}
