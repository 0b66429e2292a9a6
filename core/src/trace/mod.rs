//! The event trace: the latest events of one device in a bounded ring. Off by default; recording allocates nothing but for stacks.
//!
//! ```text
//! heap ─ its latest events, under its own lock ─┐
//! heap ─ …                                      ├─ when they are [`BUFFERED`], or read ─▶ ring, under the trace's lock
//! heap ─ …                                     ─┘
//! ```
//!
//! So an event costs a look at the clock and a few stores, and no lock of its own. The ring is sorted by time when it is read.

pub(crate) mod call_sites;
pub(crate) mod ring;

use crate::units::{DevicePtr, StreamId};

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Action {
    /// A block was handed out; the size is what was asked for.
    Alloc,
    /// The program gave a block up.
    FreeRequested,
    /// A block became free.
    FreeCompleted,
    /// A segment was obtained from the device.
    SegmentAlloc,
    /// A segment is given back to the device.
    SegmentFree,
    /// A part of an expandable segment was mapped.
    SegmentMap,
    /// A part of an expandable segment is unmapped.
    SegmentUnmap,
    /// A request failed; the address is how many bytes the device has free, the size that of the block.
    OutOfMemory,
}

impl Action {
    /// The name in PyTorch's snapshots.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::OutOfMemory => "oom",
        }
    }
}

/// What the host is asked about when it is asked [where](DeviceMemory::call_site) the program is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallSite {
    /// A request.
    Alloc,
    /// A free.
    Free,
}

/// One event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceEntry {
    /// What happened.
    pub action: Action,
    /// Where in the program, as the host [numbers](DeviceMemory::call_site) its places: of a free that has none, and of what
    /// happens to a segment, where it was allocated. 0 if it is not known.
    pub site: u32,
    /// Where in memory.
    pub addr: DevicePtr,
    /// How many bytes.
    pub size: u64,
    /// On which stream.
    pub stream: StreamId,
    /// When, in microseconds since the Unix epoch, if the device has a clock.
    pub time_us: u64,
}
