//! A typed buffer: a block for a number of values of one type.

use super::Allocator;
use super::block::{Block, BlockAllocator};
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::{DeviceIndex, DevicePtr, GRAIN, StreamId};
use core::fmt;
use core::marker::PhantomData;
use core::ops::Deref;

impl<D: DeviceMemory, R: Lock, S: Storage> Allocator<D, R, S> {
    /// Allocates a buffer for `len` values of type `T` that borrows the allocator. [`Buffer::new`]
    /// creates a buffer that owns a share of the allocator.
    ///
    /// # Errors
    /// The errors of [`malloc`](Self::malloc).
    pub fn buffer<T>(&self, device: DeviceIndex, len: usize, stream: StreamId) -> Result<Buffer<T, &Self>, Error> {
        Buffer::new(self, device, len, stream)
    }
}

/// An owned buffer for values of type `T` in device memory. Dropping it frees the memory.
///
/// The contents are on the device: the host neither reads nor drops a `T`, and a new buffer is not
/// initialised. The handle `H`, and the order of the free, are the same as for [`Block`].
///
/// ```
/// use cachalot_core::simulated::SimulatedDevice;
/// use cachalot_core::{Allocator, Config, DeviceIndex, Growable, StreamId};
///
/// type Simulated = Allocator<SimulatedDevice, spin::Mutex<()>, Growable>;
/// let allocator = Simulated::new([SimulatedDevice::new(1 << 30)], &Config::new())?;
/// let buffer = allocator.buffer::<f32>(DeviceIndex(0), 1000, StreamId::DEFAULT)?;
/// assert_eq!((buffer.len(), buffer.block().bytes()), (1000, 4000));
/// # Ok::<(), cachalot_core::Error>(())
/// ```
#[must_use = "a buffer that is not kept is freed at once"]
pub struct Buffer<T, H: Deref<Target: BlockAllocator>> {
    block: Block<H>,
    /// The number of values; `len · size_of::<T>() ≤ block.bytes()`.
    len: usize,
    /// A buffer contains no `T` on the host, so it may go to any thread, whatever `T` is.
    values: PhantomData<fn() -> T>,
}

impl<T, H: Deref<Target: BlockAllocator>> Buffer<T, H> {
    /// The size of a value in bytes. Types that are too large for a block fail to compile.
    const VALUE_BYTES: usize = {
        assert!(size_of::<T>() > 0, "a buffer's type has a size");
        assert!(align_of::<T>() as u64 <= GRAIN, "blocks are aligned to 256 bytes");
        size_of::<T>()
    };

    /// Allocates a buffer for `len` values.
    ///
    /// # Errors
    /// The errors of [`Allocator::malloc`].
    pub fn new(allocator: H, device: DeviceIndex, len: usize, stream: StreamId) -> Result<Self, Error> {
        // If the product exceeds 64 bits, it is too large as well: the allocator refuses
        // `u64::MAX`.
        let bytes = (len as u64).saturating_mul(Self::VALUE_BYTES as u64);
        let block = Block::new(allocator, device, bytes, stream)?;
        Ok(Self { block, len, values: PhantomData })
    }

    /// Turns a block into a buffer for as many values as it has room for.
    pub fn from_block(block: Block<H>) -> Self {
        let len = block.bytes() as usize / Self::VALUE_BYTES;
        Self { block, len, values: PhantomData }
    }

    /// Returns the untyped block.
    pub fn into_block(self) -> Block<H> {
        self.block
    }

    /// Returns the block, which knows the size, device and stream.
    pub fn block(&self) -> &Block<H> {
        &self.block
    }

    /// Returns the address of the first value, or the null address if the buffer is empty.
    pub fn ptr(&self) -> DevicePtr {
        self.block.ptr()
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the buffer has no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Announces that work queued on `stream` uses the buffer; see [`Allocator::record_stream`].
    ///
    /// # Errors
    /// The errors of [`Allocator::record_stream`].
    pub fn record_stream(&self, stream: StreamId) -> Result<(), Error> {
        self.block.record_stream(stream)
    }
}

impl<T, H: Deref<Target: BlockAllocator>> fmt::Debug for Buffer<T, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("block", &self.block).field("len", &self.len).finish()
    }
}
