//! Elastic ranges, as programs use them, and the owner of a range.

use super::{Allocator, FailedDrop};
use crate::allocator::block::BlockAllocator;
use crate::arena::paging::ranges::Reservation;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::{DeviceIndex, DevicePtr, RangeId, StreamId};
use core::fmt;
use core::ops::Deref;

view! {
    /// The elastic ranges of a device by their numbers: a view of an [`Allocator`], returned by
    /// [`Allocator::ranges`]. A [`Range`] owns a range, and explains ranges.
    Ranges,
    /// Returns the elastic ranges of `device`.
    ranges
}

impl<D: DeviceMemory, R: Lock, S: Storage> Ranges<'_, D, R, S> {
    /// Reserves addresses for `bytes`, rounded up to whole pages. Uses no device memory.
    ///
    /// Device: called.
    ///
    /// # Errors
    /// * [`Error::RangeRefused`]: `bytes` is 0.
    /// * [`Error::TooLarge`]: `bytes` is 1 EiB or more.
    /// * [`Error::TableFull`], [`Error::Device`]; also if the device has
    ///   no virtual memory.
    pub fn reserve(&self, bytes: u64) -> Result<Reservation, Error> {
        let device = self.begin("reserve_range");
        device.require_ranges()?.reserve_elastic(&device.holdings(), bytes)
    }

    /// Gives memory to a part of a range. Pages of the part that already have memory keep it, with
    /// its contents.
    ///
    /// Device: called, unless all of the part is committed already.
    ///
    /// # Errors
    /// * [`Error::OutOfMemory`], after all cached memory was released. The range is unchanged.
    /// * [`Error::Device`], also if the device failed to remove an earlier mapping of the part:
    ///   these addresses are never used again. Other parts of the range can be committed.
    /// * [`Error::InvalidStream`]: `stream` is the reserved number `u64::MAX`.
    /// * [`Error::Device`] of the kind
    ///   [`NotPermittedInCapture`](crate::ErrorKind::NotPermittedInCapture) while a graph is
    ///   captured, if the part was decommitted and the work before the decommit is incomplete. The
    ///   range is unchanged.
    /// * The errors of every operation on a [`Range`].
    pub fn commit(&self, range: RangeId, offset: u64, bytes: u64, stream: StreamId) -> Result<(), Error> {
        let device = self.begin("commit_range");
        device.require_ranges()?.commit(*device, range, (offset, bytes), stream)
    }

    /// Gives up the memory of a part, after the current work on `stream`. Pages of the part that
    /// have no memory do not change.
    ///
    /// A commit may have mapped the part in physical pages that are longer than a page, but never
    /// longer than the part. The memory of such a longer page is given up once all of it is
    /// decommitted.
    ///
    /// Device: called, unless nothing of the part is committed.
    ///
    /// # Errors
    /// * [`Error::Device`] of the kind
    ///   [`NotPermittedInCapture`](crate::ErrorKind::NotPermittedInCapture) while a graph is
    ///   captured.
    /// * [`Error::InvalidStream`]; the errors of every operation on a [`Range`]. The range is
    ///   unchanged.
    pub fn decommit(&self, range: RangeId, offset: u64, bytes: u64, stream: StreamId) -> Result<(), Error> {
        self.begin("decommit_range").require_ranges()?.decommit(range, offset, bytes, stream)
    }

    /// Releases a range: gives up all of its memory, after the current work of every stream that a
    /// commit or a decommit of the range has named. If there are several such streams, one of them
    /// waits for the others. The addresses are released once this work is complete, without a wait
    /// of the host.
    ///
    /// Device: called.
    ///
    /// # Errors
    /// The errors of [`decommit`](Self::decommit). The program still has the range.
    pub fn release(&self, range: RangeId) -> Result<(), Error> {
        self.begin("release_range").require_ranges()?.release_elastic(range)
    }

    /// Returns the committed bytes of a range.
    ///
    /// # Errors
    /// [`Error::UnknownRange`].
    pub fn committed_bytes(&self, range: RangeId) -> Result<u64, Error> {
        self.on().require_ranges()?.committed_bytes(range)
    }
}

/// The ranges of a device of the allocator `A`.
type RangesOf<'a, A> =
    Ranges<'a, <A as BlockAllocator>::Device, <A as BlockAllocator>::Lock, <A as BlockAllocator>::Storage>;

/// An owned elastic range. Dropping it releases the range.
///
/// An *elastic range* is a range of addresses without memory, for a table or a cache that grows in
/// place. The program commits, uses and decommits parts of it. The memory comes from the pages of
/// the allocator, under every policy, and counts against the common limit: pages that other ranges
/// gave up or, under [`Policy::Stitched`](crate::config::Policy), that blocks gave up serve the
/// range, and the other way round.
///
/// Offsets and sizes of parts must be multiples of [`Reservation::page_bytes`], which is 2 MiB on
/// today's GPUs. All other values are refused, as `cuMemMap` refuses them.
///
/// # Stream order
/// Work queued on the stream of a commit, after the commit, may use the part. Work on other streams
/// must be ordered after the commit. A decommit takes effect after the work queued so far on its
/// stream, and work of other streams on the part must come before that work. From then on, the
/// memory serves later requests, after the work before the decommit; the contents are lost.
///
/// The host does not wait for the device, with two exceptions. A commit waits rather than run out
/// of memory. And a commit of addresses that were decommitted waits for unfinished work from before
/// the decommit, if the old page is already used elsewhere.
///
/// # Captures
/// While the program captures a graph, nothing can be decommitted or released, and a commit only
/// gets memory that no unfinished work uses.
///
/// # Errors of every operation on a range
/// * [`Error::UnknownDevice`].
/// * [`Error::UnknownRange`]: the range was released, or belongs to another allocator.
/// * [`Error::RangeRefused`]: the part is not made of whole pages within the range.
/// * [`Error::TableFull`], [`Error::Device`]; a device error of the kind
///   [`Unsupported`](crate::ErrorKind::Unsupported) if the device has no virtual memory.
///
/// # Owner
/// `H` is a handle of the allocator: `&Allocator`, or `Arc<Allocator>`. If the release fails on
/// drop, the [hook](Allocator::on_failed_drop) of blocks is called with the base of the range.
///
/// ```
/// use cachalot_core::simulated::SimulatedDevice;
/// use cachalot_core::{Allocator, Config, DeviceIndex, Growable, Range, StreamId};
///
/// type Simulated = Allocator<SimulatedDevice, spin::Mutex<()>, Growable>;
/// let allocator = Simulated::new([SimulatedDevice::new(1 << 30)], &Config::new())?;
/// let table = Range::reserve(&allocator, DeviceIndex(0), 1 << 40)?;
/// table.commit(0, 64 << 20, StreamId::DEFAULT)?;
/// assert_eq!(table.committed_bytes()?, 64 << 20);
/// table.decommit(32 << 20, 32 << 20, StreamId::DEFAULT)?;
/// assert_eq!(table.committed_bytes()?, 32 << 20);
/// # Ok::<(), cachalot_core::Error>(())
/// ```
#[must_use = "a range that is not kept is released at once"]
pub struct Range<H: Deref<Target: BlockAllocator>> {
    allocator: H,
    device: DeviceIndex,
    reserved: Reservation,
    /// Whether the range was released, so that a drop has nothing to do.
    is_released: bool,
}

impl<H: Deref<Target: BlockAllocator>> Range<H> {
    /// Reserves addresses for `bytes`, rounded up to whole pages.
    ///
    /// # Errors
    /// The errors of [`Ranges::reserve`].
    pub fn reserve(allocator: H, device: DeviceIndex, bytes: u64) -> Result<Self, Error> {
        let reserved = allocator.as_allocator().ranges(device)?.reserve(bytes)?;
        Ok(Self { allocator, device, reserved, is_released: false })
    }

    /// Returns the address of the first byte.
    pub fn base(&self) -> DevicePtr {
        self.reserved.base
    }

    /// Returns the reserved bytes.
    pub fn bytes(&self) -> u64 {
        self.reserved.bytes
    }

    /// Returns the size of a page in bytes. Offsets and sizes of parts are multiples of it.
    pub fn page_bytes(&self) -> u64 {
        self.reserved.page_bytes
    }

    /// Returns the device of the range.
    pub fn device(&self) -> DeviceIndex {
        self.device
    }

    /// Returns the committed bytes.
    ///
    /// # Errors
    /// The errors of [`Ranges::committed_bytes`].
    pub fn committed_bytes(&self) -> Result<u64, Error> {
        self.ranges()?.committed_bytes(self.reserved.range)
    }

    /// Gives memory to a part; see [`Ranges::commit`].
    ///
    /// # Errors
    /// The errors of [`Ranges::commit`].
    pub fn commit(&self, offset: u64, bytes: u64, stream: StreamId) -> Result<(), Error> {
        self.ranges()?.commit(self.reserved.range, offset, bytes, stream)
    }

    /// Gives up the memory of a part; see [`Ranges::decommit`].
    ///
    /// # Errors
    /// The errors of [`Ranges::decommit`].
    pub fn decommit(&self, offset: u64, bytes: u64, stream: StreamId) -> Result<(), Error> {
        self.ranges()?.decommit(self.reserved.range, offset, bytes, stream)
    }

    /// Releases the range as a drop does, and returns the error if there is one.
    ///
    /// # Errors
    /// The errors of [`Ranges::release`], with the range, which the program still has.
    pub fn release(mut self) -> Result<(), (Self, Error)> {
        match self.release_range() {
            Ok(()) => {
                self.is_released = true;
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }
}

impl<H: Deref<Target: BlockAllocator>> Range<H> {
    /// Returns the ranges of the device.
    fn ranges(&self) -> Result<RangesOf<'_, H::Target>, Error> {
        self.allocator.as_allocator().ranges(self.device)
    }

    fn release_range(&self) -> Result<(), Error> {
        self.ranges()?.release(self.reserved.range)
    }
}

impl<H: Deref<Target: BlockAllocator>> Drop for Range<H> {
    fn drop(&mut self) {
        if !self.is_released
            && let Err(error) = self.release_range()
        {
            let Reservation { base, bytes, .. } = self.reserved;
            self.allocator.as_allocator().report_failed_drop(&FailedDrop { ptr: base, bytes, error });
        }
    }
}

impl<H: Deref<Target: BlockAllocator>> fmt::Debug for Range<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Range").field("reserved", &self.reserved).field("device", &self.device).finish_non_exhaustive()
    }
}
