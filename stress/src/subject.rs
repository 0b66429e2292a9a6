//! The allocator under test, with a shell in which a mutant goes wrong.

use crate::mutant::Mutant;
use crate::tap::Tap;
use cachalot_core::{Allocator, DeviceIndex, DevicePtr, Error, Growable, PointerFault, StreamId};
use parking_lot::{Mutex, RawMutex};
use std::collections::BTreeSet;
use std::ops::Deref;

/// The allocator as programs use it.
pub(crate) type Core = Allocator<Tap, RawMutex, Growable>;

/// The allocator under test.
pub(crate) struct Subject {
    core: Core,
    mutant: Option<Mutant>,
    /// [`Mutant::LateErase`]: books of its own, of the blocks that are in use.
    books: Mutex<BTreeSet<u64>>,
}

/// Everything that a mutant does not touch.
impl Deref for Subject {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Subject {
    /// The allocator, or a mutant of it.
    pub(crate) fn new(core: Core, mutant: Option<Mutant>) -> Self {
        Self { core, mutant, books: Mutex::default() }
    }

    /// As [`Allocator::malloc`].
    #[inline]
    pub(crate) fn malloc(&self, device: DeviceIndex, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        match self.mutant {
            Some(Mutant::ShortBlock) => self.core.malloc(device, bytes.div_ceil(2), stream),
            Some(Mutant::LateErase) => {
                let ptr = self.core.malloc(device, bytes, stream)?;
                self.books.lock().insert(ptr.0);
                Ok(ptr)
            }
            _ => self.core.malloc(device, bytes, stream),
        }
    }

    /// As [`Allocator::free`].
    #[inline]
    pub(crate) fn free(&self, ptr: DevicePtr) -> Result<(), Error> {
        if self.mutant == Some(Mutant::LateErase) {
            return self.free_late(ptr, |core| core.free(ptr));
        }
        self.core.free(ptr)
    }

    /// As [`Allocator::free_sized`].
    #[inline]
    pub(crate) fn free_sized(&self, ptr: DevicePtr, bytes: u64) -> Result<(), Error> {
        match self.mutant {
            Some(Mutant::SizeCheck | Mutant::ShortBlock) => self.core.free(ptr),
            Some(Mutant::LateErase) => self.free_late(ptr, |core| core.free_sized(ptr, bytes)),
            _ => self.core.free_sized(ptr, bytes),
        }
    }

    /// Frees first and strikes off the books afterwards: in between, the block may be another thread's.
    fn free_late(&self, ptr: DevicePtr, free: impl Fn(&Core) -> Result<(), Error>) -> Result<(), Error> {
        if ptr != DevicePtr::NULL && !self.books.lock().contains(&ptr.0) {
            return Err(Error::InvalidPointer { ptr, fault: PointerFault::Free });
        }
        free(&self.core)?;
        std::thread::yield_now();
        self.books.lock().remove(&ptr.0);
        Ok(())
    }
}
