//! A context as the device of an allocator: charged, and with a stream for memory ordered
//! by the host.
//!
//! Memory of `cuMemAlloc` belongs to no stream: work on any stream may use the memory as soon as the
//! call returns. The blocks belong to [`HOST_STREAM`], a stream without work, and are free only when all
//! work able to use them is complete.

use crate::charge::{DeviceCharge, DriverFigures, taken_by};
use crate::ledger::Kind;
use crate::real::Real;
use crate::record::Record;
use crate::serve::frees::Frees;
use cachalot::HOST_STREAM;
use cachalot::core_api::forward::{ForwardHost, ForwardSegments, ForwardStreamOrder, ForwardVirtualMemory, Forwarder};
use cachalot::core_api::{
    CaptureMark, DeviceError, DeviceResult, ErrorKind, Event, PhysicalHandle, PoolId, Segments, StreamOrder,
    TraceEntry, VirtualMemory,
};
use cachalot::{DevicePtr, StreamId};
use cachalot_cuda::CudaDevice;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// A device of the driver, called by the allocator of a context.
#[derive(Debug)]
pub(super) struct ServedDevice {
    cuda: CudaDevice,
    real: &'static Real,
    charge: Arc<DeviceCharge>,
    frees: Arc<Frees>,
    /// Told of each event. `None`: nothing is recorded.
    record: Option<Arc<Record>>,
    /// Bytes charged for the context: segments by address, and pages by handle.
    charged: Mutex<HashMap<(Kind, u64), u64>>,
    /// The frees known to the allocator as complete.
    frontier: AtomicU64,
    /// The owner of the allocator, once the allocator is made.
    owner: OnceLock<Weak<dyn AllocatorOwner>>,
}

/// The owner of the allocator over a device. The device asks for calls of the allocator.
pub(super) trait AllocatorOwner: Send + Sync {
    /// Frees the blocks waiting for the frees up to `count`. Returns false after a failure.
    fn reach(&self, count: u64) -> bool;

    /// Gives up to `bytes` bytes of cached memory back to the driver.
    fn trim_by(&self, bytes: u64);
}

impl ServedDevice {
    /// Returns the device of a context, not owned by any allocator yet.
    pub(super) fn new(
        cuda: CudaDevice,
        real: &'static Real,
        charge: Arc<DeviceCharge>,
        frees: Arc<Frees>,
        record: Option<Arc<Record>>,
    ) -> Self {
        Self {
            cuda,
            real,
            charge,
            frees,
            record,
            charged: Mutex::default(),
            frontier: AtomicU64::new(0),
            owner: OnceLock::new(),
        }
    }

    /// Returns the device of the driver.
    pub(super) fn cuda(&self) -> &CudaDevice {
        &self.cuda
    }

    /// Returns the charge of the device.
    pub(super) fn charge(&self) -> &DeviceCharge {
        &self.charge
    }

    /// Writes the events recorded so far to the record's file.
    pub(super) fn write_record(&self) {
        if let Some(record) = &self.record {
            record.write();
        }
    }

    /// Names the context whose allocator the device belongs to.
    pub(super) fn set_owner(&self, owner: Weak<dyn AllocatorOwner>) {
        // Called once, when the allocator is made.
        let _ = self.owner.set(owner);
    }

    /// Gives the context's charges back. Called when the context and the context's memory are gone.
    pub(super) fn forget_charges(&self) {
        for ((kind, name), bytes) in self.lock_charged().drain() {
            self.charge.unbook(kind, name);
            self.charge.give_back(bytes);
        }
    }

    /// Books the driver's own memory for the context: the process's bytes on the device, by the driver's
    /// management library, less the bytes in the book. Nothing where the library does not know the
    /// process.
    pub(super) fn book_context(&self) {
        let Some((ledger, own)) = self.charge.ledger().zip(self.cuda.process_use()) else { return };
        let bytes = own.saturating_sub(ledger.view().booked);
        if bytes != 0 && self.charge.reserve(bytes).is_ok() {
            let name = self.cuda.cu_context().0 as u64;
            self.charge.book(Kind::Context, bytes, name);
            self.lock_charged().insert((Kind::Context, name), bytes);
        }
    }

    /// Tells the allocator which frees are complete. Returns whether the allocator did not know.
    pub(super) fn advance(&self, reached: u64) -> bool {
        let is_new = self.frontier.fetch_max(reached, Ordering::AcqRel) < reached;
        // Also if another thread was first: the thread may not have told the allocator yet.
        self.owner().is_some_and(|owner| owner.reach(reached)) && is_new
    }

    /// Returns the owner of the allocator.
    fn owner(&self) -> Option<Arc<dyn AllocatorOwner>> {
        self.owner.get().and_then(Weak::upgrade)
    }

    /// Gives cached memory back to the driver, because other members of the group were refused.
    fn pay(&self) {
        let owed = self.charge.owed();
        if owed != 0
            && let Some(owner) = self.owner()
        {
            owner.trim_by(owed);
        }
    }

    /// Makes a call for `bytes` of memory, reserved before the call and booked afterwards under the name
    /// found by `name` in the answer.
    fn charged<T>(
        &self,
        kind: Kind,
        bytes: u64,
        call: impl FnOnce() -> DeviceResult<T>,
        name: impl FnOnce(&T) -> u64,
    ) -> DeviceResult<T> {
        self.charge.reserve(bytes).map_err(|code| DeviceError::new(ErrorKind::OutOfMemory, code.0))?;
        let taken = call();
        match &taken {
            Ok(taken) => {
                let name = name(taken);
                self.charge.book(kind, bytes, name);
                self.lock_charged().insert((kind, name), bytes);
                // The context is current: only its own threads ask for its segments.
                self.charge.note(|| DriverFigures::of_current(self.real).ok());
            }
            Err(_) => self.charge.give_back(bytes),
        }
        taken
    }

    /// Makes a call to free the memory charged under a name.
    fn uncharged(&self, kind: Kind, name: u64, call: impl FnOnce() -> DeviceResult<()>) -> DeviceResult<()> {
        // Taken out before the call: another thread may get the address at once.
        let bytes = self.lock_charged().remove(&(kind, name));
        let freed = call();
        if let Some(bytes) = bytes {
            if freed.is_ok() {
                self.charge.unbook(kind, name);
                self.charge.give_back(bytes);
            } else {
                // The driver may still hold the memory.
                self.lock_charged().insert((kind, name), bytes);
            }
        }
        freed
    }

    /// Locks the charges.
    fn lock_charged(&self) -> MutexGuard<'_, HashMap<(Kind, u64), u64>> {
        self.charged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Forwarder for ServedDevice {
    type Inner = CudaDevice;

    fn inner(&self) -> DeviceResult<&CudaDevice> {
        Ok(&self.cuda)
    }
}

impl ForwardSegments for ServedDevice {
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        self.charged(Kind::Segment, taken_by(bytes), || self.cuda.obtain(bytes), |base| base.0)
    }

    fn obtain_for(&self, _: PoolId, bytes: u64) -> DeviceResult<DevicePtr> {
        Segments::obtain(self, bytes)
    }

    fn release(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.uncharged(Kind::Segment, base.0, || self.cuda.release(base, bytes))
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.cuda.virtual_memory().is_some().then_some(self as &dyn VirtualMemory)
    }
}

impl ForwardVirtualMemory for ServedDevice {
    fn create(&self, bytes: u64) -> DeviceResult<PhysicalHandle> {
        let inner = self.cuda.virtual_memory().ok_or(DeviceError::new(ErrorKind::Unsupported, 0))?;
        self.charged(Kind::Pages, bytes, || inner.create(bytes), |handle| handle.0)
    }

    fn destroy(&self, handle: PhysicalHandle) -> DeviceResult<()> {
        let inner = self.cuda.virtual_memory().ok_or(DeviceError::new(ErrorKind::Unsupported, 0))?;
        self.uncharged(Kind::Pages, handle.0, || inner.destroy(handle))
    }
}

impl ForwardStreamOrder for ServedDevice {
    /// Records `event` as [`CudaDevice`] does. On [`HOST_STREAM`], the event keeps its earlier state,
    /// which is complete: the allocator never records an event in use.
    fn record(&self, event: Event, stream: StreamId) -> DeviceResult<()> {
        if stream == HOST_STREAM { self.cuda.health() } else { self.cuda.record(event, stream) }
    }

    fn record_announced(&self, event: Event, stream: StreamId) -> DeviceResult<()> {
        if stream == HOST_STREAM { self.cuda.health() } else { self.cuda.record_announced(event, stream) }
    }

    /// Orders later work on `stream` behind `event`. The host is ordered by waiting.
    fn order_behind(&self, stream: StreamId, event: Event) -> DeviceResult<()> {
        if stream == HOST_STREAM { self.cuda.wait(event) } else { self.cuda.order_behind(stream, event) }
    }

    fn can_order(&self, stream: StreamId) -> bool {
        stream != HOST_STREAM
    }

    fn reports_end(&self, stream: StreamId) -> bool {
        stream == HOST_STREAM || self.cuda.reports_end(stream)
    }

    fn synchronize(&self, stream: StreamId) -> DeviceResult<()> {
        if stream == HOST_STREAM { self.cuda.health() } else { self.cuda.synchronize(stream) }
    }

    fn is_idle(&self, stream: StreamId) -> DeviceResult<Option<bool>> {
        if stream == HOST_STREAM { self.cuda.health().map(|()| Some(true)) } else { self.cuda.is_idle(stream) }
    }

    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        if stream == HOST_STREAM { self.cuda.health().map(|()| false) } else { self.cuda.is_capturing(stream) }
    }

    /// Marks nothing: no block of a captured stream is served here.
    fn mark_capture(&self, _: StreamId, _: Option<CaptureMark>) -> DeviceResult<Option<CaptureMark>> {
        Ok(None)
    }
}

impl ForwardHost for ServedDevice {
    /// Records an event, under the lock of the event's heap.
    fn on_event(&self, entry: &TraceEntry, _: PoolId) {
        if let Some(record) = &self.record {
            record.event(entry);
        }
    }

    /// Looks for complete frees, when no free block can serve a request.
    fn on_shortage(&self, _: u64) -> bool {
        let reached = self.frees.settle(self.real);
        let advanced = self.advance(reached);
        self.pay();
        advanced
    }
}
