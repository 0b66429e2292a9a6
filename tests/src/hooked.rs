//! A simulated device that listens: to shortages, which it may remedy, and to reports; and that knows its threads.

use crate::consistency::Simulated;
use cachalot_core::device::{DeviceMemory, DeviceResult, Event, MemoryInfo, VirtualMemory};
use cachalot_core::report::OutOfMemory;
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::units::{DevicePtr, StreamId};
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

type Remedy = Box<dyn FnMut(u64) -> bool + Send>;

/// The device.
pub struct Hooked {
    /// What does the work.
    pub inner: SimulatedDevice,
    remedy: Mutex<Option<Remedy>>,
    reports: Mutex<Vec<OutOfMemory>>,
}

impl Hooked {
    /// Over another device.
    pub fn new(inner: SimulatedDevice) -> Self {
        Self { inner, remedy: Mutex::new(None), reports: Mutex::new(Vec::new()) }
    }

    /// Calls `remedy` with the size of every request that no free block can serve; it says whether it freed anything.
    ///
    /// # Panics
    /// If an earlier remedy has.
    pub fn on_shortage(&self, remedy: impl FnMut(u64) -> bool + Send + 'static) {
        *self.remedy.lock().unwrap() = Some(Box::new(remedy));
    }

    /// The reports of the requests that failed.
    ///
    /// # Panics
    /// If the thread of an earlier call has.
    pub fn reports(&self) -> Vec<OutOfMemory> {
        self.reports.lock().unwrap().clone()
    }
}

impl Simulated for Hooked {
    fn simulated(&self) -> &SimulatedDevice {
        &self.inner
    }
}

thread_local! {
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

/// A number for the calling thread; no two threads have the same.
pub fn thread_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    THREAD.with(|thread| {
        if thread.get() == 0 {
            thread.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        thread.get()
    })
}

impl DeviceMemory for Hooked {
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        self.inner.obtain(bytes)
    }

    fn release(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.inner.release(base, bytes)
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        self.inner.memory_info()
    }

    fn create_event(&self) -> DeviceResult<Event> {
        self.inner.create_event()
    }

    fn destroy_event(&self, event: Event) -> DeviceResult<()> {
        self.inner.destroy_event(event)
    }

    fn record(&self, event: Event, stream: StreamId) -> DeviceResult<()> {
        self.inner.record(event, stream)
    }

    fn is_complete(&self, event: Event) -> DeviceResult<bool> {
        self.inner.is_complete(event)
    }

    fn wait(&self, event: Event) -> DeviceResult<()> {
        self.inner.wait(event)
    }

    fn synchronize(&self, stream: StreamId) -> DeviceResult<()> {
        self.inner.synchronize(stream)
    }

    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        self.inner.is_capturing(stream)
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.inner.virtual_memory()
    }

    fn thread_id(&self) -> u64 {
        thread_id()
    }

    fn on_shortage(&self, bytes: u64) -> bool {
        // Taken out meanwhile, so that the remedy may call the allocator, and so this, again.
        let Some(mut remedy) = self.remedy.lock().unwrap().take() else { return false };
        let freed = remedy(bytes);
        self.remedy.lock().unwrap().get_or_insert(remedy);
        freed
    }

    fn on_out_of_memory(&self, report: &OutOfMemory) {
        self.reports.lock().unwrap().push(*report);
    }
}
