//! Instrumented device: forwards and counts every call of the allocator, and contains the mistakes
//! of mutants.

use crate::mutant::Mutant;
use cachalot_core::forward::{
    ForwardContents, ForwardHost, ForwardSegments, ForwardStreamOrder, ForwardVirtualMemory, Forwarder,
};
use cachalot_core::{
    Call, Contents, DevicePtr, DeviceResult, Event, PhysicalHandle, Segments, StreamId, StreamOrder, VirtualMemory,
};
use cachalot_cuda::CudaDevice;
use parking_lot::RwLock;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Held while a stream is asked whether it is idle, and alone while a capture starts of which the
/// allocator is not told: the question would break the capture, and the documentation forbids to
/// start one during calls of the allocator.
pub(crate) static QUESTIONS: RwLock<()> = RwLock::new(());

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
    calls: [AtomicU64; Call::ALL.len()],
    /// Bytes of failed calls for memory. If a failed call took effect, the memory is
    /// lost.
    refused_bytes: AtomicU64,
}

impl Instrumented {
    /// Instruments `cuda`, with the mistake of `mutant` if given.
    pub(crate) fn new(cuda: &'static CudaDevice, mutant: Option<Mutant>) -> Self {
        Self { cuda, mutant, calls: [const { AtomicU64::new(0) }; Call::ALL.len()], refused_bytes: AtomicU64::new(0) }
    }

    /// Returns the number of calls by name, without names of unused calls.
    pub(crate) fn calls(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.calls.iter().map(|count| count.load(Ordering::Relaxed));
        Call::ALL.map(Call::name).into_iter().zip(counts).filter(|&(_, count)| count > 0).collect()
    }

    /// Returns the bytes of failed calls that allocate or map memory.
    pub(crate) fn refused_bytes(&self) -> u64 {
        self.refused_bytes.load(Ordering::Relaxed)
    }

    /// Makes a call, unless the device has the mistake of `mutant`, and answers `instead` without a
    /// call.
    fn unless<T>(&self, mutant: Mutant, instead: T, call: impl FnOnce() -> DeviceResult<T>) -> DeviceResult<T> {
        if self.mutant == Some(mutant) { Ok(instead) } else { call() }
    }

    fn count_refused<T>(&self, bytes: u64, result: DeviceResult<T>) -> DeviceResult<T> {
        if result.is_err() {
            self.refused_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        result
    }
}

impl Forwarder for Instrumented {
    type Inner = CudaDevice;

    fn inner(&self) -> DeviceResult<&CudaDevice> {
        Ok(self.cuda)
    }

    fn before(&self, _: &'static str, call: Option<Call>) {
        let Some(call) = call else { return };
        self.calls[call as usize].fetch_add(1, Ordering::Relaxed);
        // Only calls that take or map memory tell a miss from a hit.
        if matches!(call, Call::Obtain | Call::Reserve | Call::Create | Call::Map) {
            MEMORY_CALLS.set(MEMORY_CALLS.get() + 1);
        }
    }
}

impl ForwardSegments for Instrumented {
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        self.count_refused(bytes, self.cuda.obtain(bytes))
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.cuda.virtual_memory().is_some().then_some(self as &dyn VirtualMemory)
    }

    fn contents(&self) -> Option<&dyn Contents> {
        self.cuda.contents().is_some().then_some(self as &dyn Contents)
    }
}

impl ForwardStreamOrder for Instrumented {
    fn record(&self, event: Event, stream: StreamId) -> DeviceResult<()> {
        self.unless(Mutant::SkipRecord, (), || self.cuda.record(event, stream))
    }

    fn record_announced(&self, event: Event, stream: StreamId) -> DeviceResult<()> {
        self.unless(Mutant::SkipRecord, (), || self.cuda.record_announced(event, stream))
    }

    fn is_complete(&self, event: Event) -> DeviceResult<bool> {
        self.unless(Mutant::SkipWait, true, || self.cuda.is_complete(event))
    }

    fn wait(&self, event: Event) -> DeviceResult<()> {
        self.unless(Mutant::SkipWait, (), || self.cuda.wait(event))
    }

    fn order_behind(&self, stream: StreamId, event: Event) -> DeviceResult<()> {
        self.unless(Mutant::SkipWait, (), || self.cuda.order_behind(stream, event))
    }

    fn is_idle(&self, stream: StreamId) -> DeviceResult<Option<bool>> {
        let _no_begin = QUESTIONS.read();
        self.unless(Mutant::SkipWait, Some(true), || self.cuda.is_idle(stream))
    }

    fn synchronize(&self, stream: StreamId) -> DeviceResult<()> {
        self.unless(Mutant::SkipSync, (), || self.cuda.synchronize(stream))
    }
}

impl ForwardVirtualMemory for Instrumented {
    fn create(&self, bytes: u64) -> DeviceResult<PhysicalHandle> {
        self.count_refused(bytes, self.cuda.create(bytes))
    }

    fn create_at_host(&self, bytes: u64) -> DeviceResult<PhysicalHandle> {
        self.count_refused(bytes, self.cuda.create_at_host(bytes))
    }

    fn map(&self, at: DevicePtr, bytes: u64, handle: PhysicalHandle) -> DeviceResult<()> {
        self.count_refused(bytes, self.cuda.map(at, bytes, handle))
    }
}

impl ForwardHost for Instrumented {}
impl ForwardContents for Instrumented {}
