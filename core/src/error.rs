//! The errors of the allocator. A call that returns an error has changed nothing observable, unless
//! the documentation of the call says otherwise.

use crate::device::oom::{OutOfMemory, PyTorchSize, Size};
use crate::device::{DeviceError, ErrorKind};
use crate::pool::{PoolId, Tag};
use crate::units::{DeviceIndex, DevicePtr, NO_STREAM, RangeId, StreamId};
use core::fmt;

/// The reason why an operation failed.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum Error {
    /// There is no memory: neither the cache nor the device has enough, even after the allocator
    /// released every cached block that it may release. Requests return this error. The report says
    /// how much memory is in use. The caller can free blocks, raise the memory limit, or request
    /// less.
    OutOfMemory(OutOfMemory),
    /// A segment of this many bytes would exceed the memory limit. Requests return this error
    /// instead of releasing cached memory if
    /// [`throw_on_device_oom`](crate::Config::throw_on_device_oom) is set. The caller can empty the
    /// cache, raise the limit, or free blocks and retry.
    Rejected(u64),
    /// The request, in bytes, is [`MAX_REQUEST`](crate::MAX_REQUEST) or more. The caller must ask
    /// for less; often this means that a size computation has overflowed. A plan with a peak that
    /// high is refused with this error, too.
    TooLarge(u64),
    /// No live block starts at this address or, for a lookup, no live block contains it. Every
    /// operation on a block can return this error. The caller has freed the block twice, has passed
    /// an address inside a block, or the block belongs to another allocator; see [`PointerFault`].
    InvalidPointer {
        /// The address.
        ptr: DevicePtr,
        /// The kind of memory at the address.
        fault: PointerFault,
    },
    /// The size passed to a free is not the requested size. The block remains live, and the caller
    /// may free it with the right size.
    WrongSize {
        /// The address of the block.
        ptr: DevicePtr,
        /// The size passed to the free, in bytes.
        given: u64,
        /// The size requested at allocation, in bytes.
        requested: u64,
    },
    /// No pin starts at this address. [`Pages::unpin`](crate::Pages::unpin) returns this error if
    /// the address was never pinned, or if every pin of it was undone already.
    /// [`Pages::export`](crate::Pages::export) returns it if no pinned memory contains the address.
    NotPinned(DevicePtr),
    /// The pinned memory at this address is in an ordinary segment, which has no handle, or is
    /// memory of the host, which `spill` allows. [`Pages::export`](crate::Pages::export) returns
    /// this error. Pages have handles: the stitched policy and expandable segments place blocks on
    /// them.
    NotExportable(DevicePtr),
    /// The allocator has no device with this number. Every operation that names a device can return
    /// this error; see [`Allocator::new`](crate::Allocator::new).
    UnknownDevice(DeviceIndex),
    /// The device has no private pool with this name, because the pool was never created or has
    /// been released.
    UnknownPool(PoolId),
    /// The device already has a pool with this name. The caller chooses another name for the pool
    /// that it creates.
    PoolExists(PoolId),
    /// A captured graph uses memory of this pool and writes to it at every replay, so the pool's
    /// free memory is kept until nobody uses the pool. Calls that would give this memory back
    /// return this error.
    GraphMemory(PoolId),
    /// No route of this kind leads to the pool. The calls that end a route or a capture return this
    /// error if no call began it.
    NotRouted(PoolId),
    /// The device has no elastic range with this number, because the range was never reserved or
    /// was released.
    UnknownRange(RangeId),
    /// The device has too few addresses left.
    /// [`Ranges::reserve`](crate::Ranges::reserve) returns this error after the
    /// allocator gave back all addresses that it could. The caller can release ranges, empty the
    /// caches of other allocators, or set a smaller `expandable_segments_reserve`.
    OutOfAddresses {
        /// How many bytes of addresses were to be reserved.
        requested: u64,
        /// How many bytes of addresses the allocator has reserved on the device.
        reserved: u64,
    },
    /// This part of an elastic range is refused, for the reason given.
    RangeRefused(&'static str),
    /// No pool of the device has this tag.
    UnknownTag(Tag),
    /// The memory of the request or of the block is parked or lent. Requests, pins, and
    /// [`Allocator::malloc_at`](crate::Allocator::malloc_at) return this error. The caller must
    /// wake or reclaim the memory first.
    Parked,
    /// The limits of a tag are refused, for the reason given.
    LimitsRefused(&'static str),
    /// Memory cannot be parked, woken or tagged, for the reason given.
    ParkingRefused(&'static str),
    /// Memory cannot lie on the host, for the reason given.
    SpillRefused(&'static str),
    /// The host does not have enough memory to save the contents of the memory to be parked.
    /// [`Parking::park`](crate::Parking::park) returns this error. The caller can free memory of
    /// the host, or park without the contents.
    NoHostMemory,
    /// The fraction passed as a memory limit is outside the closed interval from 0 to 1.
    InvalidFraction(f64),
    /// The stream number `u64::MAX` is reserved. The caller must number the stream differently.
    InvalidStream,
    /// The allocator already has its devices. A second call of
    /// [`Allocator::start`](crate::Allocator::start) returns this error.
    AlreadyStarted,
    /// The policy with this name keeps tables on the host's heap, which this build does not use.
    /// Build with the feature `alloc`, or choose another policy.
    PolicyUnavailable(&'static str),
    /// The plan passed by the caller is refused, for the reason given: it is outdated, or it does
    /// not fit the observed requests. Requests are served without it. The caller can make a plan
    /// from the latest observation.
    PlanRefused(&'static str),
    /// The segments passed to [`Allocator::restore`](crate::Allocator::restore), or the block
    /// passed to [`Allocator::malloc_at`](crate::Allocator::malloc_at), are refused, for the reason
    /// given.
    SnapshotRefused(&'static str),
    /// A table of the allocator is full, or the host is out of memory. The string names the table.
    /// With [`Fixed`](crate::Fixed) tables, choose larger capacities.
    TableFull(&'static str),
    /// A call to the device failed. The [`kind`](DeviceError::kind) says whether it makes sense to
    /// retry: after the context is lost, every later call fails.
    Device(DeviceError),
}

/// The kind of memory at an address where no live block starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PointerFault {
    /// No segment of this allocator. The address belongs to another allocator, or the block was
    /// freed and its memory went back to the device.
    Foreign,
    /// Free memory of a segment. The block was freed before, or no block ever started here.
    Free,
    /// A block that was freed before and is pending: it waits for other streams or for the safe
    /// frontier.
    Pending,
    /// The inside of a live block.
    Interior {
        /// The first byte of the block. This is the address to free.
        block: DevicePtr,
        /// The size requested at allocation, in bytes.
        requested: u64,
    },
}

impl Error {
    /// Returns an error for the reserved stream number.
    pub(crate) fn refuse_reserved(stream: StreamId) -> Result<(), Self> {
        if stream == NO_STREAM { Err(Self::InvalidStream) } else { Ok(()) }
    }

    /// Returns the error for an address in no segment.
    pub(crate) fn foreign(ptr: DevicePtr) -> Self {
        Self::InvalidPointer { ptr, fault: PointerFault::Foreign }
    }

    /// Returns whether a device call failed because a stream captures a graph.
    pub(crate) fn is_of_capture(&self) -> bool {
        matches!(self, Self::Device(DeviceError { kind: ErrorKind::NotPermittedInCapture, .. }))
    }

    /// Returns the text of the error in the words of `PyTorch`, for hosts whose users know these
    /// words and search for them. Where `PyTorch` has no words for an error, this is the same text
    /// as that of `Display`.
    pub fn in_words_of_pytorch(&self) -> impl fmt::Display {
        ErrorInPyTorchWords(*self)
    }
}

/// An error, displayed in the words of `PyTorch`.
struct ErrorInPyTorchWords(Error);

impl fmt::Display for ErrorInPyTorchWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Error::OutOfMemory(report) => report.in_words_of_pytorch().fmt(f),
            Error::Rejected(bytes) => write!(
                f,
                "CUDA out of memory. Allocation was preemptively rejected because it would exceed \
                 per_process_memory_fraction limit. Requested size: {}",
                PyTorchSize(bytes)
            ),
            Error::TooLarge(_) => f.write_str("CUDA out of memory. Tried to allocate more than 1EB memory."),
            ref other => other.fmt(f),
        }
    }
}

impl From<DeviceError> for Error {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

impl From<crate::tables::CapacityError> for Error {
    fn from(_: crate::tables::CapacityError) -> Self {
        Self::TableFull("blocks")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory(report) => report.fmt(f),
            Self::Rejected(bytes) => write!(
                f,
                "Device out of memory. A new segment of {} exceeds the memory limit, and \
                 `throw_on_cudamalloc_oom:True` forbids to release cached memory for it.",
                Size(*bytes)
            ),
            Self::TooLarge(bytes) => {
                write!(f, "Device out of memory. Tried to allocate {}, and a request is at most 1 EiB.", Size(*bytes))
            }
            Self::InvalidPointer { ptr, fault } => {
                write!(f, "invalid device pointer: {ptr} ")?;
                fault.explain(f, *ptr)
            }
            Self::WrongSize { ptr, given, requested } => {
                write!(f, "the block at {ptr} was requested with {requested} bytes, not {given}")
            }
            Self::NotPinned(ptr) => {
                write!(
                    f,
                    "no memory at {ptr} is pinned: pin a block first, and unpin it once for each time it was pinned"
                )
            }
            Self::NotExportable(ptr) => write!(
                f,
                "the memory at {ptr} lies in an ordinary segment, or on the host because of `spill`, and cannot be exported: \
                 blocks lie on pages of the device, which can, under `policy:stitched` or with \
                 `expandable_segments:True`, on a device with virtual memory"
            ),
            Self::UnknownDevice(device) => write!(f, "the allocator has no device {}", device.0),
            Self::UnknownPool(pool) => write!(f, "there is no pool {pool}"),
            Self::PoolExists(pool) => write!(f, "there is a pool {pool} already"),
            Self::GraphMemory(pool) => {
                write!(f, "a captured graph has memory of pool {pool}, which stays until the pool has no users")
            }
            Self::NotRouted(pool) => write!(f, "no allocations are being routed to pool {pool}"),
            Self::UnknownRange(range) => write!(f, "there is no elastic range {:#x}, or it was released", range.0),
            Self::OutOfAddresses { requested, reserved } => write!(
                f,
                "out of addresses: the device would not reserve {} of them, and the allocator has reserved {}. Memory is \
                 not what lacks. Release ranges, or set a smaller `expandable_segments_reserve`.",
                Size(*requested),
                Size(*reserved)
            ),
            Self::RangeRefused(why) => write!(f, "the part of the range is refused: {why}"),
            Self::UnknownTag(tag) => write!(f, "no pool has the tag {:#x}", tag.0),
            Self::Parked => f.write_str("the memory is parked: wake it before it is used"),
            Self::ParkingRefused(why) => write!(f, "the memory is not parked or woken: {why}"),
            Self::SpillRefused(why) => write!(f, "the memory does not lie on the host: {why}"),
            Self::LimitsRefused(why) => write!(f, "the limits of the tag are refused: {why}"),
            Self::NoHostMemory => Self::ParkingRefused("the host lacks the memory for the contents").fmt(f),
            Self::InvalidFraction(fraction) => {
                write!(f, "per_process_memory_fraction is invalid: {fraction} is not in [0.0, 1.0]")
            }
            Self::InvalidStream => f.write_str("the stream number 0xffffffffffffffff is reserved"),
            Self::AlreadyStarted => f.write_str("the allocator has its devices, and is started once"),
            Self::PolicyUnavailable(policy) => write!(f, "policy `{policy}` needs the feature `alloc`"),
            Self::PlanRefused(why) => write!(f, "the plan is refused: {why}"),
            Self::SnapshotRefused(why) => write!(f, "the snapshot is refused: {why}"),
            Self::TableFull(table) => write!(f, "the table of {table} is full"),
            Self::Device(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for Error {}

impl PointerFault {
    /// Writes what is at `ptr`, as the end of a sentence.
    fn explain(self, f: &mut fmt::Formatter<'_>, ptr: DevicePtr) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str(
                "lies in no segment of this allocator: it belongs to another allocator, or was freed and its \
                 memory returned to the device",
            ),
            Self::Free => f.write_str("lies in free memory: its block was freed before, or never allocated"),
            Self::Pending => {
                f.write_str("lies in a block that was freed before and still waits for streams or the safe frontier")
            }
            Self::Interior { block, requested } => {
                let offset = ptr.0.saturating_sub(block.0);
                write!(f, "lies {offset} bytes into the live block of {requested} bytes at {block}")
            }
        }
    }
}
