//! A block that frees itself: the owner of device memory in Rust programs.

use super::Allocator;
use crate::arena::allocation::Allocation;
use crate::device::DeviceMemory;
use crate::error::{Error, PointerFault};
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::{DeviceIndex, DevicePtr, StreamId};
use core::fmt;
use core::mem;
use core::ops::Deref;

mod sealed {
    /// Prevents other crates from implementing [`BlockAllocator`](super::BlockAllocator).
    pub trait SealedAllocator {}
}

/// An allocator as the owners of its memory see it, so that their types need not name devices, lock
/// and tables. Every [`Allocator`] implements it, and nothing else does.
pub trait BlockAllocator: sealed::SealedAllocator {
    /// The devices.
    type Device: DeviceMemory;
    /// The lock of a heap.
    type Lock: Lock;
    /// The tables.
    type Storage: Storage;

    /// Returns the allocator.
    fn as_allocator(&self) -> &Allocator<Self::Device, Self::Lock, Self::Storage>;
}

/// The memory of a [`Block`] that could not be freed on drop. It is still allocated.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct FailedDrop {
    /// The address of the block.
    pub ptr: DevicePtr,
    /// The size requested at allocation, in bytes.
    pub bytes: u64,
    /// The reason why the free failed.
    pub error: Error,
}

impl<D: DeviceMemory, R: Lock, S: Storage> sealed::SealedAllocator for Allocator<D, R, S> {}

impl<D: DeviceMemory, R: Lock, S: Storage> BlockAllocator for Allocator<D, R, S> {
    type Device = D;
    type Lock = R;
    type Storage = S;

    fn as_allocator(&self) -> &Self {
        self
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Allocator<D, R, S> {
    /// Allocates a block that is freed on drop and borrows the allocator. [`Block::new`] creates a
    /// block that owns a share of the allocator.
    ///
    /// # Errors
    /// The errors of [`malloc`](Self::malloc).
    pub fn block(&self, device: DeviceIndex, bytes: u64, stream: StreamId) -> Result<Block<&Self>, Error> {
        Block::new(self, device, bytes, stream)
    }

    /// Sets the function that is called when a [`Block`] could not be freed on drop. `None` removes
    /// it.
    ///
    /// A drop cannot return an error. Frees fail only if there is no host memory, and for errors of
    /// the device: see [`free`](Self::free). Without a hook the error is lost; the block remains
    /// allocated and counts in the [statistics](Self::stats). The hook may take over the block with
    /// [`Block::from_raw`]. It must not panic, because a panic inside a drop may end the process.
    pub fn on_failed_drop(&self, hook: Option<fn(&FailedDrop)>) {
        *self.failed_drop.lock() = hook;
    }

    /// Passes a block to the hook of [`on_failed_drop`](Self::on_failed_drop).
    pub(super) fn report_failed_drop(&self, failed: &FailedDrop) {
        // Copy the hook first, because it may call the allocator, and set another hook.
        let hook = *self.failed_drop.lock();
        if let Some(hook) = hook {
            hook(failed);
        }
    }
}

/// An owned block of device memory. Dropping it frees the memory.
///
/// `H` is a handle of the allocator: `&Allocator`, or `Arc<Allocator>` for blocks that outlive a
/// scope or are used on several threads. The memory is on the device, so a block does not
/// dereference: programs pass [`ptr`](Self::ptr) to kernels and copies.
///
/// The free is ordered after the work queued on the block's [`stream`](Self::stream), as described
/// in [`Allocator::free`]. Drop the block once its last use is queued; there is no need to wait.
///
/// ```
/// use cachalot_core::simulated::SimulatedDevice;
/// use cachalot_core::{Allocator, Block, Config, DeviceIndex, Growable, StreamId};
/// use std::sync::Arc;
///
/// type Simulated = Allocator<SimulatedDevice, spin::Mutex<()>, Growable>;
/// let allocator = Arc::new(Simulated::new([SimulatedDevice::new(1 << 30)], &Config::new())?);
/// let block = Block::new(Arc::clone(&allocator), DeviceIndex(0), 4096, StreamId::DEFAULT)?;
/// let elsewhere = std::thread::spawn(move || block.ptr());
/// elsewhere.join().unwrap();
/// assert_eq!(allocator.stats(DeviceIndex(0))?.totals().allocations().current, 0);
/// # Ok::<(), cachalot_core::Error>(())
/// ```
#[must_use = "a block that is not kept is freed at once"]
pub struct Block<H: Deref<Target: BlockAllocator>> {
    allocator: H,
    device: DeviceIndex,
    stream: StreamId,
    /// The null address ⟺ the block has no bytes, or was given up.
    ptr: DevicePtr,
    bytes: u64,
}

impl<H: Deref<Target: BlockAllocator>> Block<H> {
    /// Allocates a block of at least `bytes` bytes.
    ///
    /// # Errors
    /// The errors of [`Allocator::malloc`].
    pub fn new(allocator: H, device: DeviceIndex, bytes: u64, stream: StreamId) -> Result<Self, Error> {
        let ptr = allocator.as_allocator().malloc(device, bytes, stream)?;
        Ok(Self { allocator, device, stream, ptr, bytes })
    }

    /// Takes over the live block that starts at `ptr`. This is the counterpart of
    /// [`into_raw`](Self::into_raw) and of [`Allocator::malloc`].
    ///
    /// The block must not have an owner yet. A block with two owners is freed twice, and the
    /// [hook](Allocator::on_failed_drop) gets [`Error::InvalidPointer`], unless the address was
    /// allocated again in between.
    ///
    /// # Errors
    /// [`Error::InvalidPointer`]: no live block starts at `ptr`.
    pub fn from_raw(allocator: H, ptr: DevicePtr) -> Result<Self, Error> {
        let Allocation { base, requested, stream, device, .. } = allocator.as_allocator().base_of(ptr)?;
        if base != ptr {
            return Err(Error::InvalidPointer { ptr, fault: PointerFault::Interior { block: base, requested } });
        }
        Ok(Self { allocator, device, stream, ptr, bytes: requested })
    }

    /// Gives up the block without freeing it, and returns the address. To free the memory later,
    /// call [`from_raw`](Self::from_raw) and drop the block, or call [`Allocator::free`]. The null
    /// address of an empty block need not be freed.
    #[must_use = "the memory is lost without its address"]
    pub fn into_raw(mut self) -> DevicePtr {
        // Dropping a block without an address drops the handle, and frees nothing.
        mem::replace(&mut self.ptr, DevicePtr::NULL)
    }

    /// Returns the address of the first byte, or the null address if the block is empty.
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Returns the requested size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the own stream. The block is freed after the work on it.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Returns the device of the block.
    pub fn device(&self) -> DeviceIndex {
        self.device
    }

    /// Returns the handle of the allocator.
    pub fn allocator(&self) -> &H {
        &self.allocator
    }

    /// Announces that work queued on `stream` uses the block; see [`Allocator::record_stream`].
    ///
    /// # Errors
    /// The errors of [`Allocator::record_stream`].
    pub fn record_stream(&self, stream: StreamId) -> Result<(), Error> {
        self.allocator.as_allocator().record_stream(self.ptr, stream)
    }

    /// Announces that the work queued on `stream` so far uses the block; see
    /// [`Allocator::record_use`].
    ///
    /// # Errors
    /// The errors of [`Allocator::record_use`].
    pub fn record_use(&self, stream: StreamId) -> Result<(), Error> {
        self.allocator.as_allocator().record_use(self.ptr, stream)
    }

    /// Frees the block as a drop does, and returns the error if there is one.
    ///
    /// # Errors
    /// The errors of [`Allocator::free`], with the block, which still owns the memory.
    pub fn free(self) -> Result<(), (Self, Error)> {
        let freed = self.allocator.as_allocator().free(self.ptr);
        self.freed(freed)
    }

    /// Frees the block once the safe frontier has reached `count`; see [`Allocator::free_at`].
    ///
    /// # Errors
    /// The errors of [`Allocator::free_at`], with the block, which still owns the memory.
    pub fn free_at(self, count: u64) -> Result<(), (Self, Error)> {
        let freed = self.allocator.as_allocator().free_at(self.ptr, count);
        self.freed(freed)
    }

    /// Gives up the block if the memory was freed.
    fn freed(mut self, freed: Result<(), Error>) -> Result<(), (Self, Error)> {
        match freed {
            Ok(()) => {
                self.ptr = DevicePtr::NULL;
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }
}

impl<H: Deref<Target: BlockAllocator>> Drop for Block<H> {
    fn drop(&mut self) {
        // Skip the null address, because the allocator would do nothing.
        if self.ptr != DevicePtr::NULL
            && let Err(error) = self.allocator.as_allocator().free(self.ptr)
        {
            self.allocator.as_allocator().report_failed_drop(&FailedDrop { ptr: self.ptr, bytes: self.bytes, error });
        }
    }
}

impl<H: Deref<Target: BlockAllocator>> fmt::Debug for Block<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("ptr", &self.ptr)
            .field("bytes", &self.bytes)
            .field("stream", &self.stream)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}
