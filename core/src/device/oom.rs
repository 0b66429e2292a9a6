//! The out-of-memory report: PyTorch's text, followed by the block needed and the reasons why it
//! could not be allocated.

use crate::device::MemoryInfo;
use crate::units::DeviceIndex;
use core::fmt;

/// The report of a request that failed for lack of memory. All figures are in bytes, at the time of
/// the failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// The requested size.
    pub requested: u64,
    /// The size of the block needed for the request.
    pub block: u64,
    /// The size of the segment the device was to allocate.
    pub segment: u64,
    /// The device.
    pub device: DeviceIndex,
    /// The total and free memory of the device; 0 if the device did not tell.
    pub memory: MemoryInfo,
    /// The device memory in use by this process, if the device tells.
    pub process: Option<u64>,
    /// The limit on memory reserved from the device, if any.
    pub limit: Option<u64>,
    /// Bytes of live blocks.
    pub allocated: u64,
    /// Bytes reserved from the device.
    pub reserved: u64,
    /// Bytes freed by the program, and still waiting for other streams or for the safe frontier.
    pub pending: u64,
    /// Free bytes in private pools.
    pub private_free: u64,
    /// The largest free block of the request's stream and pool.
    pub largest_free: u64,
    /// The largest free block of other streams and pools.
    pub largest_free_elsewhere: u64,
    /// Segments are expandable.
    pub expandable: bool,
    /// The stream is capturing a graph, so nothing could be released.
    pub capturing: bool,
}

/// A size in PyTorch's notation: two decimals of the largest unit exceeded by the size.
pub(crate) struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        match self.0 {
            0..=1024 => write!(f, "{} bytes", self.0),
            1025..=0x10_0000 => write!(f, "{:.2} KiB", bytes / 1024.0),
            0x10_0001..=0x4000_0000 => write!(f, "{:.2} MiB", bytes / 1024.0 / 1024.0),
            _ => write!(f, "{:.2} GiB", bytes / 1024.0 / 1024.0 / 1024.0),
        }
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CUDA out of memory. Tried to allocate {}. GPU {} has a total capacity of {} of which {} is free. ",
            Size(self.segment),
            self.device.0,
            Size(self.memory.total),
            Size(self.memory.free)
        )?;
        if let Some(process) = self.process {
            write!(f, "Including non-PyTorch memory, this process has {} memory in use. ", Size(process))?;
        }
        if let Some(limit) = self.limit {
            write!(f, "{} allowed; ", Size(limit))?;
        }
        write!(f, "Of the allocated memory {} is allocated by PyTorch, ", Size(self.allocated + self.private_free))?;
        if self.private_free > 0 {
            write!(f, "with {} allocated in private pools (e.g., CUDA Graphs), ", Size(self.private_free))?;
        }
        let unallocated = self.reserved.saturating_sub(self.allocated + self.private_free);
        write!(f, "and {} is reserved by PyTorch but unallocated.", Size(unallocated))?;
        if !self.expandable {
            f.write_str(
                " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True \
                 to avoid fragmentation.  See documentation for Memory Management  \
                 (https://pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)",
            )?;
        }
        self.explain(f)
    }
}

impl OutOfMemory {
    /// Writes which block was needed, and why it could not be allocated.
    fn explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "\nThe request of {} needs a block of {}; the largest free block of its stream and pool has {}",
            Size(self.requested),
            Size(self.block),
            Size(self.largest_free)
        )?;
        if self.largest_free >= self.block {
            f.write_str(", which the rules for oversize blocks reserve for larger requests")?;
        }
        f.write_str(".")?;
        if self.largest_free_elsewhere >= self.block {
            write!(
                f,
                " Another stream or pool has a free block of {}, part of a segment that is in use: blocks are not moved between them.",
                Size(self.largest_free_elsewhere)
            )?;
        }
        if self.pending > 0 {
            write!(
                f,
                " {} are freed but still in use on other streams, or ahead of the safe frontier.",
                Size(self.pending)
            )?;
        }
        if self.capturing {
            f.write_str(" Nothing could be released because the stream is capturing a graph.")?;
        }
        match self.limit {
            Some(limit) if self.reserved + self.segment > limit => {
                write!(f, " The memory limit leaves {} to allocate.", Size(limit.saturating_sub(self.reserved)))
            }
            _ => write!(f, " The device would not give {} more.", Size(self.segment)),
        }
    }
}
