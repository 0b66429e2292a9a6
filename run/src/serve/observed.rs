//! The memory of an observing process, recorded.
//!
//! The driver's own allocations have no segments. Each is recorded as a segment with a single
//! block, like the memory of an allocator without a cache.

use crate::record::Record;
use cachalot_core::{Action, DevicePtr, StreamId, TraceEntry, UNIT};
use cachalot_cuda::HOST_STREAM;
use cachalot_cuda::driver::types::CuStream;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The record of an observing process.
#[derive(Default, Debug)]
pub(super) struct Observed {
    /// The record, once memory was requested. `None` inside: the file cannot be written.
    record: OnceLock<Option<Arc<Record>>>,
    /// The recorded allocations, by address: bytes and stream.
    live: Mutex<HashMap<u64, (u64, StreamId)>>,
}

impl Observed {
    /// Records `bytes` given by the driver at an address. `None` for the stream: every stream
    /// may use the memory.
    pub(super) fn taken(&self, path: &Path, address: u64, bytes: u64, stream: Option<CuStream>) {
        let Some(record) = self.record.get_or_init(|| Record::begin_or_tell(path, "", None)) else { return };
        let stream = stream.map_or(HOST_STREAM, |stream| StreamId(stream.0 as u64));
        // Under the lock, so that the events of an address stay in order.
        let mut live = self.lock();
        live.insert(address, (bytes, stream));
        for (action, size) in [(Action::SegmentAlloc, segment(bytes)), (Action::Alloc, bytes)] {
            record.event(&entry(action, address, size, stream));
        }
    }

    /// Records the coming free of an address. Nothing for an unrecorded allocation.
    pub(super) fn given(&self, address: u64) {
        let Some(Some(record)) = self.record.get() else { return };
        let mut live = self.lock();
        let Some((bytes, stream)) = live.remove(&address) else { return };
        let sizes =
            [(Action::FreeRequested, bytes), (Action::FreeCompleted, bytes), (Action::SegmentFree, segment(bytes))];
        for (action, size) in sizes {
            record.event(&entry(action, address, size, stream));
        }
    }

    /// Locks the recorded allocations.
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, (u64, StreamId)>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the bytes of the segment in the place of an allocation.
fn segment(bytes: u64) -> u64 {
    bytes.next_multiple_of(UNIT)
}

/// Returns an event without a place and a time.
fn entry(action: Action, address: u64, size: u64, stream: StreamId) -> TraceEntry {
    TraceEntry { action, site: 0, addr: DevicePtr(address), size, stream, time_us: 0 }
}
