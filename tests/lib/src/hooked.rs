//! An instrumented simulated device: calls hooks of the test on shortages, releases, events and
//! pauses, collects reports, and numbers threads.

use crate::consistency::Simulated;
use cachalot_core::forward::{
    ForwardContents, ForwardHost, ForwardSegments, ForwardStreamOrder, ForwardVirtualMemory, Forwarder,
};
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{
    Call, Contents, DevicePtr, DeviceResult, Host, OutOfMemory, Segments, StreamId, StreamOrder, VirtualMemory,
};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

type Remedy = Box<dyn FnMut(u64) -> bool + Send>;
type Sleep = Box<dyn Fn(u64) + Send + Sync>;
type Interruption = Box<dyn FnOnce() + Send>;
type Filter = Box<dyn Fn(u64, StreamId) -> bool + Send + Sync>;

/// The instrumented device.
pub struct Hooked {
    /// The device that serves all calls.
    pub inner: SimulatedDevice,
    remedy: Mutex<Option<Remedy>>,
    interruption: Mutex<Option<Interruption>>,
    recording: Mutex<Option<Interruption>>,
    waiting: Mutex<Option<Interruption>>,
    exporting: Mutex<Option<Interruption>>,
    copying: Mutex<Option<Interruption>>,
    sleep: OnceLock<Sleep>,
    filter: OnceLock<Filter>,
    reports: Mutex<Vec<OutOfMemory>>,
    fallbacks: AtomicU64,
}

impl Hooked {
    /// Instruments a device.
    pub fn new(inner: SimulatedDevice) -> Self {
        Self {
            inner,
            remedy: Mutex::new(None),
            interruption: Mutex::new(None),
            recording: Mutex::new(None),
            waiting: Mutex::new(None),
            exporting: Mutex::new(None),
            copying: Mutex::new(None),
            sleep: OnceLock::new(),
            filter: OnceLock::new(),
            reports: Mutex::new(Vec::new()),
            fallbacks: AtomicU64::new(0),
        }
    }

    /// Calls `remedy` with the size of every request that no free block can serve. `remedy` returns
    /// whether it freed memory.
    ///
    /// # Panics
    /// If an earlier call of the remedy panicked.
    pub fn on_shortage(&self, remedy: impl FnMut(u64) -> bool + Send + 'static) {
        *self.remedy.lock().unwrap() = Some(Box::new(remedy));
    }

    /// Calls `interruption` once, right after the next release of memory. Plays the part of another
    /// thread.
    ///
    /// # Panics
    /// Never: no code of the test runs while the hook is locked.
    pub fn on_release(&self, interruption: impl FnOnce() + Send + 'static) {
        *self.interruption.lock().unwrap() = Some(Box::new(interruption));
    }

    /// Calls `interruption` once, right before the next event is recorded.
    ///
    /// # Panics
    /// Never: no code of the test runs while the hook is locked.
    pub fn on_record(&self, interruption: impl FnOnce() + Send + 'static) {
        *self.recording.lock().unwrap() = Some(Box::new(interruption));
    }

    /// Calls `interruption` once, at the end of the next wait for a stream, or for all streams.
    ///
    /// # Panics
    /// Never: no code of the test runs while the hook is locked.
    pub fn on_synchronize(&self, interruption: impl FnOnce() + Send + 'static) {
        *self.waiting.lock().unwrap() = Some(Box::new(interruption));
    }

    /// Calls `interruption` once, right before the next page is exported.
    ///
    /// # Panics
    /// Never: no code of the test runs while the hook is locked.
    pub fn on_export(&self, interruption: impl FnOnce() + Send + 'static) {
        *self.exporting.lock().unwrap() = Some(Box::new(interruption));
    }

    /// Calls `interruption` once, right before the next wait for copies between the device and the
    /// host.
    ///
    /// # Panics
    /// Never: no code of the test runs while the hook is locked.
    pub fn on_finish(&self, interruption: impl FnOnce() + Send + 'static) {
        *self.copying.lock().unwrap() = Some(Box::new(interruption));
    }

    /// Calls `sleep` with the length of every pause in microseconds, before the simulated clock
    /// advances. Can be set once.
    ///
    /// # Panics
    /// If set before.
    pub fn on_pause(&self, sleep: impl Fn(u64) + Send + Sync + 'static) {
        assert!(self.sleep.set(Box::new(sleep)).is_ok(), "it is set once");
    }

    /// Calls `filter` to decide which requests the host's routes accept. Can be set once.
    ///
    /// # Panics
    /// If set before.
    pub fn on_leads(&self, filter: impl Fn(u64, StreamId) -> bool + Send + Sync + 'static) {
        assert!(self.filter.set(Box::new(filter)).is_ok(), "it is set once");
    }

    /// Returns how often the allocator has reported that the device lacks virtual memory.
    pub fn fallbacks(&self) -> u64 {
        self.fallbacks.load(Ordering::Relaxed)
    }

    /// Returns the reports of all failed requests.
    ///
    /// # Panics
    /// If a thread panicked during an earlier call.
    pub fn reports(&self) -> Vec<OutOfMemory> {
        self.reports.lock().unwrap().clone()
    }
}

/// Calls a hook that was set, and removes it. The hook is not locked while it runs, so it may set
/// hooks.
fn call_once(hook: &Mutex<Option<Interruption>>) {
    let interruption = hook.lock().unwrap().take();
    if let Some(interruption) = interruption {
        interruption();
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

/// Returns a number for the calling thread, different for every thread.
pub fn thread_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    THREAD.with(|thread| {
        if thread.get() == 0 {
            thread.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        thread.get()
    })
}

impl Forwarder for Hooked {
    type Inner = SimulatedDevice;

    fn inner(&self) -> DeviceResult<&SimulatedDevice> {
        Ok(&self.inner)
    }

    fn before(&self, _: &'static str, call: Option<Call>) {
        match call {
            Some(Call::Record) => call_once(&self.recording),
            Some(Call::Export) => call_once(&self.exporting),
            Some(Call::Finish) => call_once(&self.copying),
            _ => {}
        }
    }
}

impl ForwardSegments for Hooked {
    fn release(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let released = self.inner.release(base, bytes);
        call_once(&self.interruption);
        released
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.inner.virtual_memory().map(|_| self as &dyn VirtualMemory)
    }

    fn contents(&self) -> Option<&dyn Contents> {
        self.inner.contents().map(|_| self as &dyn Contents)
    }
}

impl ForwardStreamOrder for Hooked {
    fn synchronize(&self, stream: StreamId) -> DeviceResult<()> {
        let waited = self.inner.synchronize(stream);
        call_once(&self.waiting);
        waited
    }

    fn synchronize_all(&self) -> DeviceResult<()> {
        let waited = self.inner.synchronize_all();
        call_once(&self.waiting);
        waited
    }
}

impl ForwardVirtualMemory for Hooked {}
impl ForwardContents for Hooked {}

impl ForwardHost for Hooked {
    fn leads(&self, route: u64, stream: StreamId) -> bool {
        self.filter.get().map_or_else(|| self.inner.leads(route, stream), |filter| filter(route, stream))
    }

    fn thread_id(&self) -> u64 {
        thread_id()
    }

    fn on_shortage(&self, bytes: u64) -> bool {
        // Taken out of the lock first: the remedy may call the allocator, and so this function,
        // again.
        let Some(mut remedy) = self.remedy.lock().unwrap().take() else { return false };
        let freed = remedy(bytes);
        self.remedy.lock().unwrap().get_or_insert(remedy);
        freed
    }

    fn pause(&self, us: u64) -> bool {
        if let Some(sleep) = self.sleep.get() {
            sleep(us);
        }
        self.inner.pause(us)
    }

    fn on_missing_virtual_memory(&self) {
        self.fallbacks.fetch_add(1, Ordering::Relaxed);
    }

    fn on_out_of_memory(&self, report: &OutOfMemory) {
        self.reports.lock().unwrap().push(*report);
    }
}
