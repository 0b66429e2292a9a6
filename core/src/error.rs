//! What can go wrong, as values. A call that fails has changed nothing that can be observed.

use crate::device::DeviceError;
use crate::device::oom::{OutOfMemory, Size};
use crate::pool::PoolId;
use crate::units::{DeviceIndex, DevicePtr};
use core::fmt;

/// Why an operation failed.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum Error {
    /// Neither the cache nor the device has the memory, after everything that could be given back was.
    OutOfMemory(OutOfMemory),
    /// So many bytes would have been obtained from the device, which is more than the configured fraction leaves, and the
    /// configuration says to fail rather than release anything.
    Rejected(u64),
    /// The request, in bytes, is larger than any device could serve.
    TooLarge(u64),
    /// No block that the program holds begins (or, for a lookup, lies) at this address.
    InvalidPointer(DevicePtr),
    /// The size given with a free, in bytes, is not the size that was asked for.
    WrongSize {
        /// The block.
        ptr: DevicePtr,
        /// What the caller says it asked for.
        given: u64,
        /// What it did ask for.
        requested: u64,
    },
    /// The allocator has no such device.
    UnknownDevice(DeviceIndex),
    /// The device has no such pool, or it was released.
    UnknownPool(PoolId),
    /// A pool with this name exists already.
    PoolExists(PoolId),
    /// The pool is not being allocated to, or is captured into already.
    NotRouted(PoolId),
    /// A fraction outside the closed interval from 0 to 1.
    InvalidFraction(f64),
    /// The number is not that of a stream: it is reserved.
    InvalidStream,
    /// The policy keeps tables on the host's heap, and this build has none (the feature `alloc`).
    PolicyUnavailable(&'static str),
    /// Plans that were brought are not taken, for this reason.
    PlanRefused(&'static str),
    /// A table of the allocator is full; its name says which.
    TableFull(&'static str),
    /// A call to the device failed.
    Device(DeviceError),
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
                "CUDA out of memory. Allocation was preemptively rejected because it would exceed \
                 per_process_memory_fraction limit. Requested size: {}",
                Size(*bytes)
            ),
            Self::TooLarge(_) => f.write_str("CUDA out of memory. Tried to allocate more than 1EB memory."),
            Self::InvalidPointer(ptr) => write!(f, "invalid device pointer: {ptr}"),
            Self::WrongSize { ptr, given, requested } => {
                write!(f, "the block at {ptr} was requested with {requested} bytes, not {given}")
            }
            Self::UnknownDevice(device) => write!(f, "the allocator has no device {}", device.0),
            Self::UnknownPool(pool) => write!(f, "there is no pool {pool}"),
            Self::PoolExists(pool) => write!(f, "there is a pool {pool} already"),
            Self::NotRouted(pool) => write!(f, "no allocations are being routed to pool {pool}"),
            Self::InvalidFraction(fraction) => {
                write!(f, "per_process_memory_fraction is invalid: {fraction} is not in [0.0, 1.0]")
            }
            Self::InvalidStream => f.write_str("the stream number 0xffffffffffffffff is reserved"),
            Self::PolicyUnavailable(policy) => write!(f, "policy `{policy}` needs the feature `alloc`"),
            Self::PlanRefused(why) => write!(f, "the plan is refused: {why}"),
            Self::TableFull(table) => write!(f, "the table of {table} is full"),
            Self::Device(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for Error {}
