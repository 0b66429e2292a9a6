//! Cycles of a block used by two streams, and requests for which no memory is cached. The device
//! has finished all work at once, and the device's calls cost almost nothing. So the count covers
//! the allocator alone.

use cachalot_core::forward::{ForwardHost, ForwardSegments, ForwardStreamOrder, ForwardVirtualMemory, Forwarder};
use cachalot_core::{
    Allocator, Bare, Config, DeviceIndex, DevicePtr, DeviceResult, Event, MemoryInfo, PhysicalHandle, StreamId,
    VirtualMemory,
};
use cachalot_policies::Tables;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};

/// The configurations, and the rows of the table.
pub(crate) const CONFIGS: [&str; 3] = ["policy:caching", "policy:caching,parity:False", "policy:stitched"];

/// The stream of the requests, and the stream that uses their blocks.
const STREAMS: [StreamId; 2] = [StreamId(1 << 20), StreamId(1 << 20 | 256)];
const DEVICE: DeviceIndex = DeviceIndex(0);
/// The memory of the device, in bytes.
const CAPACITY: u64 = 1 << 40;
/// Granularity of the device's virtual memory, in bytes.
const GRANULARITY: u64 = 2 << 20;

/// The device.
#[derive(Default)]
struct Idle {
    /// Bytes of addresses given so far.
    given: AtomicU64,
    /// Number of calls for events and streams.
    calls: AtomicU64,
}

impl Idle {
    fn take(&self, bytes: u64) -> DevicePtr {
        let bytes = bytes.next_multiple_of(GRANULARITY);
        DevicePtr(GRANULARITY + self.given.fetch_add(bytes, Ordering::Relaxed))
    }

    fn count(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }
}

/// The allocator makes no other calls in these cycles.
impl Forwarder for Idle {
    type Inner = Bare;

    fn inner(&self) -> DeviceResult<&Bare> {
        Ok(&Bare)
    }
}

impl ForwardSegments for Idle {
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        Ok(self.take(bytes))
    }

    /// Gives the addresses of the newest segment again.
    fn release(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let begin = base.0 - GRANULARITY;
        let _ = self.given.compare_exchange(begin + bytes, begin, Ordering::Relaxed, Ordering::Relaxed);
        Ok(())
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        Ok(MemoryInfo { free: CAPACITY, total: CAPACITY })
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        Some(self)
    }
}

impl ForwardStreamOrder for Idle {
    fn create_event(&self) -> DeviceResult<Event> {
        Ok(Event(self.count()))
    }

    fn create_order_event(&self) -> DeviceResult<Event> {
        Ok(Event(self.count()))
    }

    fn destroy_event(&self, _: Event) -> DeviceResult<()> {
        Ok(())
    }

    fn record(&self, _: Event, _: StreamId) -> DeviceResult<()> {
        self.count();
        Ok(())
    }

    fn record_announced(&self, _: Event, _: StreamId) -> DeviceResult<()> {
        self.count();
        Ok(())
    }

    fn is_complete(&self, _: Event) -> DeviceResult<bool> {
        self.count();
        Ok(true)
    }

    fn wait(&self, _: Event) -> DeviceResult<()> {
        self.count();
        Ok(())
    }

    fn order_behind(&self, _: StreamId, _: Event) -> DeviceResult<()> {
        self.count();
        Ok(())
    }

    fn can_order(&self, _: StreamId) -> bool {
        true
    }

    fn is_idle(&self, _: StreamId) -> DeviceResult<Option<bool>> {
        self.count();
        Ok(Some(true))
    }

    fn synchronize(&self, _: StreamId) -> DeviceResult<()> {
        self.count();
        Ok(())
    }

    fn is_capturing(&self, _: StreamId) -> DeviceResult<bool> {
        self.count();
        Ok(false)
    }
}

impl ForwardHost for Idle {}

impl ForwardVirtualMemory for Idle {
    fn granularity(&self) -> u64 {
        GRANULARITY
    }

    fn reserve(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        Ok(self.take(bytes))
    }

    fn unreserve(&self, _: DevicePtr, _: u64) -> DeviceResult<()> {
        Ok(())
    }

    fn create(&self, _: u64) -> DeviceResult<PhysicalHandle> {
        Ok(PhysicalHandle(self.take(0).0))
    }

    fn destroy(&self, _: PhysicalHandle) -> DeviceResult<()> {
        Ok(())
    }

    fn map(&self, _: DevicePtr, _: u64, _: PhysicalHandle) -> DeviceResult<()> {
        Ok(())
    }

    fn set_access(&self, _: DevicePtr, _: u64) -> DeviceResult<()> {
        Ok(())
    }
}

type Counted = Allocator<Idle, parking_lot::RawMutex, Tables>;

// Not inlined, as in a program that calls the library from many places.
#[inline(never)]
fn malloc(allocator: &Counted, bytes: u64) -> Result<DevicePtr, cachalot_core::Error> {
    allocator.malloc(DEVICE, bytes, STREAMS[0])
}

#[inline(never)]
fn record_stream(allocator: &Counted, block: DevicePtr) -> Result<(), cachalot_core::Error> {
    allocator.record_stream(block, STREAMS[1])
}

#[inline(never)]
fn free(allocator: &Counted, block: DevicePtr) -> Result<(), cachalot_core::Error> {
    allocator.free(block)
}

/// Makes `cycles` cycles of request, use by a second stream, and free, with blocks of 4 KiB to 1
/// MiB in turn, as in `benches/gpu/streams.cpp`. Returns the number of device calls for events and
/// streams.
///
/// # Errors
/// The errors of the configuration and of the allocator.
pub(crate) fn make(config: &str, cycles: u64) -> Result<u64, Box<dyn Error>> {
    let allocator = Counted::new([Idle::default()], &Config::parse(config)?)?;
    for cycle in 0..cycles {
        let block = malloc(&allocator, 4096 + 65536 * (cycle % 16))?;
        record_stream(&allocator, block)?;
        free(&allocator, std::hint::black_box(block))?;
    }
    let device = allocator.device(DEVICE).ok_or("there is one device")?;
    Ok(device.calls.load(Ordering::Relaxed))
}

/// Makes requests for which no memory is cached: the free block is released to the device before
/// the next request. A live block keeps the tables of its heap.
///
/// # Errors
/// The errors of the allocator.
pub(crate) fn request_cold(bytes: u64, requests: u64) -> Result<(), Box<dyn Error>> {
    let allocator = Counted::new([Idle::default()], &Config::parse(CONFIGS[0])?)?;
    let _live = malloc(&allocator, bytes)?;
    for _ in 0..requests {
        let block = malloc(&allocator, bytes)?;
        free(&allocator, std::hint::black_box(block))?;
        allocator.empty_cache(DEVICE)?;
    }
    Ok(())
}
