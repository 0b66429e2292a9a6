//! The event trace: the latest events of one device in a bounded ring. Off by default; recording allocates nothing.

use crate::arena::{Arena, Request, attention};
use crate::device::DeviceMemory;
use crate::heap::Heap;
use crate::report::OutOfMemory;
use crate::storage::{Storage, Table};
use crate::sync::Lock;
use crate::units::{DevicePtr, StreamId};
use lock_api::Mutex;

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

/// One event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceEntry {
    /// What happened.
    pub action: Action,
    /// Where.
    pub addr: DevicePtr,
    /// How many bytes.
    pub size: u64,
    /// On which stream.
    pub stream: StreamId,
    /// When, in microseconds since the Unix epoch, if the device has a clock.
    pub time_us: u64,
}

/// The ring of one device.
pub(crate) struct Trace<R: Lock, S: Storage>(Mutex<R, Ring<S>>);

struct Ring<S: Storage> {
    /// `entries[recorded % len]` is overwritten next.
    entries: S::Table<TraceEntry>,
    recorded: u64,
}

impl<R: Lock, S: Storage> Default for Trace<R, S> {
    fn default() -> Self {
        Self(Mutex::new(Ring { entries: S::Table::<TraceEntry>::default(), recorded: 0 }))
    }
}

impl<R: Lock, S: Storage> Trace<R, S> {
    /// Empties the ring and makes it hold `capacity` entries. False if it cannot.
    pub(crate) fn start(&self, capacity: usize) -> bool {
        let mut entries = S::Table::<TraceEntry>::default();
        if !entries.make_room(capacity) {
            return false;
        }
        let (addr, stream) = (DevicePtr::NULL, StreamId::DEFAULT);
        for _ in 0..capacity {
            entries.add(TraceEntry { action: Action::Alloc, addr, size: 0, stream, time_us: 0 });
        }
        *self.0.lock() = Ring { entries, recorded: 0 };
        true
    }

    fn record(&self, entry: TraceEntry) {
        let mut ring = self.0.lock();
        let len = ring.entries.len() as u64;
        if len > 0 {
            let at = (ring.recorded % len) as usize;
            ring.entries[at] = entry;
            ring.recorded += 1;
        }
    }

    /// Calls `visit` with every entry, oldest first.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&TraceEntry)) {
        let ring = self.0.lock();
        let len = ring.entries.len() as u64;
        for at in ring.recorded.saturating_sub(len)..ring.recorded {
            visit(&ring.entries[(at % len) as usize]);
        }
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    fn record_trace(&self, action: Action, addr: DevicePtr, size: u64, stream: StreamId) {
        self.trace.record(TraceEntry { action, addr, size, stream, time_us: self.memory.now_us() });
    }

    #[inline]
    pub(crate) fn trace_alloc(&self, request: &Request, ptr: DevicePtr) {
        if self.has(attention::TRACE) {
            self.record_trace(Action::Alloc, ptr, request.bytes, request.stream);
        }
    }

    #[inline]
    pub(crate) fn trace_free(&self, heap: &Heap<S>, block: u32, completed: bool) {
        if self.has(attention::TRACE) {
            let action = if completed { Action::FreeCompleted } else { Action::FreeRequested };
            let block = &heap.blocks[block];
            self.record_trace(action, DevicePtr(block.addr), block.requested, heap.stream);
        }
    }

    pub(crate) fn trace_segment(&self, action: Action, stream: StreamId, base: DevicePtr, bytes: u64) {
        if self.has(attention::TRACE) {
            self.record_trace(action, base, bytes, stream);
        }
    }

    pub(crate) fn trace_oom(&self, request: &Request, report: &OutOfMemory) {
        if self.has(attention::TRACE) {
            self.record_trace(Action::OutOfMemory, DevicePtr(report.memory.free), request.size, request.stream);
        }
    }
}
