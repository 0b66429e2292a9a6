//! Instrumented device: forwards and counts every call of the allocator, and contains the mistakes
//! of mutants.

use crate::mutant::Mutant;
use cachalot_core::simulated::Call;
use cachalot_core::{
    CaptureMark, Contents, Descriptor, DeviceMemory, DevicePtr, DeviceResult, Event, MemoryInfo, PhysicalHandle,
    StreamId, VirtualMemory,
};
use cachalot_cuda::CudaDevice;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names of the calls, in the order of [`Call`].
const NAMES: [&str; Call::ALL.len()] = [
    "obtain",
    "release",
    "memory_info",
    "create_event",
    "destroy_event",
    "record",
    "is_complete",
    "is_idle",
    "wait",
    "order_behind",
    "synchronize",
    "is_capturing",
    "mark_capture",
    "is_behind",
    "reserve",
    "unreserve",
    "create",
    "destroy",
    "map",
    "set_access",
    "unmap",
    "export",
    "synchronize_all",
    "prepare",
    "save",
    "restore",
    "zero",
    "mark",
    "finish",
];

thread_local! {
    /// Number of the thread's calls for device memory; distinguishes cache misses from hits.
    static MEMORY_CALLS: Cell<u64> = const { Cell::new(0) };
}

/// Returns the number of the calling thread's calls for device memory.
pub(crate) fn memory_calls() -> u64 {
    MEMORY_CALLS.get()
}

/// A device with counters for the allocator's calls.
#[derive(Debug)]
pub(crate) struct Instrumented {
    cuda: &'static CudaDevice,
    mutant: Option<Mutant>,
    calls: [AtomicU64; NAMES.len()],
    /// Bytes of failed calls for memory. If a failed call took effect, the memory is
    /// lost.
    refused_bytes: AtomicU64,
}

impl Instrumented {
    /// Instruments `cuda`, with the mistake of `mutant` if given.
    pub(crate) fn new(cuda: &'static CudaDevice, mutant: Option<Mutant>) -> Self {
        Self { cuda, mutant, calls: [const { AtomicU64::new(0) }; NAMES.len()], refused_bytes: AtomicU64::new(0) }
    }

    /// Returns the number of calls by name, without names of unused calls.
    pub(crate) fn calls(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.calls.iter().map(|count| count.load(Ordering::Relaxed));
        NAMES.into_iter().zip(counts).filter(|&(_, count)| count > 0).collect()
    }

    /// Returns the bytes of failed calls that allocate or map memory.
    pub(crate) fn refused_bytes(&self) -> u64 {
        self.refused_bytes.load(Ordering::Relaxed)
    }

    fn count(&self, asked: Call) {
        self.calls[asked as usize].fetch_add(1, Ordering::Relaxed);
        // Only calls that take or map memory tell a miss from a hit.
        if matches!(asked, Call::Obtain | Call::Reserve | Call::Create | Call::Map) {
            MEMORY_CALLS.set(MEMORY_CALLS.get() + 1);
        }
    }

    fn count_refused<T>(&self, bytes: u64, result: DeviceResult<T>) -> DeviceResult<T> {
        if result.is_err() {
            self.refused_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        result
    }
}

impl DeviceMemory for Instrumented {
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        self.count(Call::Obtain);
        self.count_refused(bytes, self.cuda.obtain(bytes))
    }

    fn release(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.count(Call::Release);
        self.cuda.release(base, bytes)
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        self.count(Call::MemoryInfo);
        self.cuda.memory_info()
    }

    fn create_event(&self) -> DeviceResult<Event> {
        self.count(Call::CreateEvent);
        self.cuda.create_event()
    }

    fn destroy_event(&self, event: Event) -> DeviceResult<()> {
        self.count(Call::DestroyEvent);
        self.cuda.destroy_event(event)
    }

    fn record(&self, event: Event, stream: StreamId) -> DeviceResult<()> {
        self.count(Call::Record);
        if self.mutant == Some(Mutant::SkipRecord) {
            return Ok(());
        }
        self.cuda.record(event, stream)
    }

    fn record_announced(&self, event: Event, stream: StreamId) -> DeviceResult<()> {
        self.count(Call::Record);
        if self.mutant == Some(Mutant::SkipRecord) {
            return Ok(());
        }
        self.cuda.record_announced(event, stream)
    }

    fn is_complete(&self, event: Event) -> DeviceResult<bool> {
        self.count(Call::IsComplete);
        if self.mutant == Some(Mutant::SkipWait) {
            return Ok(true);
        }
        self.cuda.is_complete(event)
    }

    fn wait(&self, event: Event) -> DeviceResult<()> {
        self.count(Call::Wait);
        if self.mutant == Some(Mutant::SkipWait) {
            return Ok(());
        }
        self.cuda.wait(event)
    }

    fn order_behind(&self, stream: StreamId, event: Event) -> DeviceResult<()> {
        self.count(Call::OrderBehind);
        if self.mutant == Some(Mutant::SkipWait) {
            return Ok(());
        }
        self.cuda.order_behind(stream, event)
    }

    fn reports_end(&self, stream: StreamId) -> bool {
        self.cuda.reports_end(stream)
    }

    fn synchronize(&self, stream: StreamId) -> DeviceResult<()> {
        self.count(Call::Synchronize);
        if self.mutant == Some(Mutant::SkipSync) {
            return Ok(());
        }
        self.cuda.synchronize(stream)
    }

    fn synchronize_all(&self) -> DeviceResult<()> {
        self.count(Call::SynchronizeAll);
        self.cuda.synchronize_all()
    }

    /// Contents are copied uncounted.
    fn contents(&self) -> Option<&dyn Contents> {
        self.cuda.contents()
    }

    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        self.count(Call::IsCapturing);
        self.cuda.is_capturing(stream)
    }

    fn is_idle(&self, stream: StreamId) -> DeviceResult<Option<bool>> {
        self.count(Call::IsIdle);
        if self.mutant == Some(Mutant::SkipWait) {
            return Ok(Some(true));
        }
        self.cuda.is_idle(stream)
    }

    fn mark_capture(&self, stream: StreamId, mark: Option<CaptureMark>) -> DeviceResult<Option<CaptureMark>> {
        self.count(Call::MarkCapture);
        self.cuda.mark_capture(stream, mark)
    }

    fn is_behind(&self, stream: StreamId, mark: CaptureMark) -> DeviceResult<bool> {
        self.count(Call::IsBehind);
        self.cuda.is_behind(stream, mark)
    }

    fn remove_mark(&self, mark: CaptureMark) {
        self.cuda.remove_mark(mark);
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.cuda.virtual_memory().is_some().then_some(self as &dyn VirtualMemory)
    }

    fn process_use(&self) -> Option<u64> {
        self.cuda.process_use()
    }

    fn thread_id(&self) -> u64 {
        self.cuda.thread_id()
    }

    fn ticks(&self) -> u64 {
        self.cuda.ticks()
    }

    fn time_us(&self, ticks: u64) -> u64 {
        self.cuda.time_us(ticks)
    }
}

impl VirtualMemory for Instrumented {
    fn granularity(&self) -> u64 {
        self.cuda.granularity()
    }

    fn reserve(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        self.count(Call::Reserve);
        self.cuda.reserve(bytes)
    }

    fn unreserve(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.count(Call::Unreserve);
        self.cuda.unreserve(base, bytes)
    }

    fn create(&self, bytes: u64) -> DeviceResult<PhysicalHandle> {
        self.count(Call::Create);
        self.count_refused(bytes, self.cuda.create(bytes))
    }

    fn destroy(&self, handle: PhysicalHandle) -> DeviceResult<()> {
        self.count(Call::Destroy);
        self.cuda.destroy(handle)
    }

    fn begin_mapping(&self) {
        self.cuda.begin_mapping();
    }

    fn end_mapping(&self) {
        self.cuda.end_mapping();
    }

    fn map(&self, at: DevicePtr, bytes: u64, handle: PhysicalHandle) -> DeviceResult<()> {
        self.count(Call::Map);
        self.count_refused(bytes, self.cuda.map(at, bytes, handle))
    }

    fn set_access(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.count(Call::SetAccess);
        self.cuda.set_access(at, bytes)
    }

    fn unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.count(Call::Unmap);
        self.cuda.unmap(at, bytes)
    }

    fn export(&self, handle: PhysicalHandle) -> DeviceResult<Descriptor> {
        self.count(Call::Export);
        self.cuda.export(handle)
    }
}
