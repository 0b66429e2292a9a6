//! The event trace: the latest events of a device, in a ring of bounded size. It is off by default.
//! Once the ring is full, recording allocates nothing, except for call sites; with tables of fixed
//! size it never does.
//!
//! ```text
//! heap ─ chunk, filled under the heap's lock ─┐                      ┌─▶ ring of chunks, under the trace's lock
//! heap ─ chunk                                ├─ handed in when full ┤
//! heap ─ chunk                               ─┘                      └── the oldest chunk, to be filled next
//! ```
//!
//! An event costs a few stores under a lock that the heap holds anyway, and the reading of the
//! clock. Where the clock is expensive to read, [`EventTimes::Numbered`] reads it for few events.
//! Chunks change hands by their addresses: nothing is copied, so threads seldom wait for the ring.
//! Only a reader copies records, of chunks that are not full. It merges the chunks by time.

pub(crate) mod call_sites;
pub(crate) mod chunk;
pub(crate) mod record;
pub(crate) mod ring;

use crate::units::{DevicePtr, StreamId};

/// The kind of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Action {
    /// A block was allocated. The size is the requested size.
    Alloc,
    /// The program freed a block, which may still be in use on other streams.
    FreeRequested,
    /// A block became free.
    FreeCompleted,
    /// A segment was allocated from the device.
    SegmentAlloc,
    /// A segment is released to the device.
    SegmentFree,
    /// A part of an expandable segment was mapped.
    SegmentMap,
    /// A part of an expandable segment is unmapped.
    SegmentUnmap,
    /// A request failed. The address field contains the number of free bytes on the device, and the
    /// size is that of the block that the request needed.
    OutOfMemory,
    /// Other settings became active (`tune:auto`). The size is the peak of reserved memory, in
    /// bytes, that the search predicts for the requests of the window.
    SettingsChanged,
    /// Settings were taken back (`tune:auto`). The size is the peak of reserved memory, in bytes,
    /// that was measured with them.
    SettingsTakenBack,
    /// Memory went to the host or came back (`spill`). The size is the number of bytes of the host
    /// that are mapped now.
    Spilled,
}

impl Action {
    /// Returns the action's name in PyTorch's snapshots.
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
            // Readers of PyTorch's snapshots know this name for events that are not about memory.
            Self::SettingsChanged | Self::SettingsTakenBack | Self::Spilled => "user_defined",
        }
    }
}

/// The kind of call during which [`Host::call_site`](crate::Host::call_site) is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallSite {
    /// A request.
    Alloc,
    /// A free.
    Free,
}

/// How much of a device's history is in the trace.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TraceExtent {
    /// The most events that a reader gets; 0 if no trace is recorded.
    pub capacity: u64,
    /// How many events since the start of the recording are no longer available. If this is above
    /// 0, the first events of the history are missing.
    pub dropped: u64,
}

/// How the events of a trace get their times.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum EventTimes {
    /// The clock is read for each event.
    #[default]
    Exact,
    /// The clock is read for segments, failed requests and changed settings, and for every 32nd
    /// event of a heap: of the small or the large blocks of a stream and pool. (With tables of
    /// fixed size it is read for each.) Other events have the time of the latest reading. On some
    /// virtual machines a reading takes longer than everything else that a trace does.
    ///
    /// The events of a heap have their order, and so have those of an address: memory passes from
    /// one heap to another by events of segments. Of the events of different heaps between two
    /// readings, up to 32 of each, and of those within a few microseconds, those of one heap may
    /// come before or after those of the other.
    Numbered,
}

/// An event of the trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceEntry {
    /// The kind of the event.
    pub action: Action,
    /// The call site, as numbered by [`Host::call_site`](crate::Host::call_site); 0 if it is
    /// unknown. For a segment, and for a free without a call site, this is the call site of the
    /// allocation.
    pub site: u32,
    /// The address of the block or segment.
    pub addr: DevicePtr,
    /// The size in bytes.
    pub size: u64,
    /// The stream.
    pub stream: StreamId,
    /// The time in microseconds since the Unix epoch; 0 if the device has no clock.
    pub time_us: u64,
}
