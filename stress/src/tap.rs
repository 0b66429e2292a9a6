//! The device as the allocator sees it: passes every call on, counts it, and is where a mutant device goes wrong.

use crate::mutant::Mutant;
use cachalot_core::simulated::Call;
use cachalot_core::{
    DeviceMemory, DevicePtr, DeviceResult, Event, MemoryInfo, PhysicalHandle, StreamId, VirtualMemory,
};
use cachalot_cuda::CudaDevice;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// The names of the calls, in their order.
const NAMES: [&str; Call::ALL.len()] = [
    "obtain",
    "release",
    "memory_info",
    "create_event",
    "destroy_event",
    "record",
    "is_complete",
    "wait",
    "synchronize",
    "is_capturing",
    "reserve",
    "unreserve",
    "create",
    "destroy",
    "map",
    "set_access",
    "unmap",
];

thread_local! {
    /// How often this thread asked a device for memory: what tells a miss from a hit.
    static FETCHED: Cell<u64> = const { Cell::new(0) };
}

/// How often the calling thread asked a device for memory so far.
pub(crate) fn fetched() -> u64 {
    FETCHED.get()
}

/// A device with an ear on it.
#[derive(Debug)]
pub(crate) struct Tap {
    cuda: &'static CudaDevice,
    mutant: Option<Mutant>,
    calls: [AtomicU64; NAMES.len()],
    /// Bytes of calls for memory that failed: should they have acted all the same, nobody has the memory.
    refused_bytes: AtomicU64,
}

impl Tap {
    /// Listens to `cuda`; gets it wrong as `mutant` says.
    pub(crate) fn new(cuda: &'static CudaDevice, mutant: Option<Mutant>) -> Self {
        Self { cuda, mutant, calls: [const { AtomicU64::new(0) }; NAMES.len()], refused_bytes: AtomicU64::new(0) }
    }

    /// How often each was asked, of those that were.
    pub(crate) fn calls(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.calls.iter().map(|count| count.load(Ordering::Relaxed));
        NAMES.into_iter().zip(counts).filter(|&(_, count)| count > 0).collect()
    }

    /// Bytes of calls for memory, or to map it, that failed.
    pub(crate) fn refused_bytes(&self) -> u64 {
        self.refused_bytes.load(Ordering::Relaxed)
    }

    fn count(&self, asked: Call) {
        self.calls[asked as usize].fetch_add(1, Ordering::Relaxed);
        if matches!(asked, Call::Obtain | Call::Reserve | Call::Create) {
            FETCHED.set(FETCHED.get() + 1);
        }
    }

    fn noting<T>(&self, bytes: u64, result: DeviceResult<T>) -> DeviceResult<T> {
        if result.is_err() {
            self.refused_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        result
    }
}

impl DeviceMemory for Tap {
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        self.count(Call::Obtain);
        self.noting(bytes, self.cuda.obtain(bytes))
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

    fn synchronize(&self, stream: StreamId) -> DeviceResult<()> {
        self.count(Call::Synchronize);
        if self.mutant == Some(Mutant::SkipSync) {
            return Ok(());
        }
        self.cuda.synchronize(stream)
    }

    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        self.count(Call::IsCapturing);
        self.cuda.is_capturing(stream)
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

impl VirtualMemory for Tap {
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
        self.noting(bytes, self.cuda.create(bytes))
    }

    fn destroy(&self, handle: PhysicalHandle) -> DeviceResult<()> {
        self.count(Call::Destroy);
        self.cuda.destroy(handle)
    }

    fn map(&self, at: DevicePtr, bytes: u64, handle: PhysicalHandle) -> DeviceResult<()> {
        self.count(Call::Map);
        self.noting(bytes, self.cuda.map(at, bytes, handle))
    }

    fn set_access(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.count(Call::SetAccess);
        self.cuda.set_access(at, bytes)
    }

    fn unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.count(Call::Unmap);
        self.cuda.unmap(at, bytes)
    }
}
