//! A context as the device of an allocator: charged, and with a stream for memory that the host
//! orders.
//!
//! Memory of `cuMemAlloc` belongs to no stream: work on any stream may use it as soon as the call
//! returns. Its blocks belong to [`HOST_STREAM`], on which no work is ever queued, and are free only
//! when all work of the process that could use them is complete.

use crate::charge::{DeviceCharge, taken_by};
use crate::real::Real;
use crate::serve::frees::Frees;
use crate::serve::served::Served;
use cachalot::HOST_STREAM;
use cachalot::core_api::forward::{ForwardHost, ForwardSegments, ForwardStreamOrder, ForwardVirtualMemory, Forwarder};
use cachalot::core_api::{
    CaptureMark, DeviceError, DeviceResult, ErrorKind, Event, PhysicalHandle, PoolId, Segments, StreamOrder,
    VirtualMemory,
};
use cachalot::{DeviceIndex, DevicePtr, StreamId};
use cachalot_cuda::CudaDevice;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// A device of the driver, as the allocator of one context calls it.
#[derive(Debug)]
pub(super) struct ServedDevice {
    cuda: CudaDevice,
    real: &'static Real,
    charge: Arc<DeviceCharge>,
    frees: Arc<Frees>,
    /// Bytes charged for the context: segments and pages.
    charged: AtomicU64,
    /// Sizes of the pages, by handle.
    pages: Mutex<HashMap<PhysicalHandle, u64>>,
    /// The frees that the allocator knows as complete.
    frontier: AtomicU64,
    /// The allocator's context, once the allocator is made.
    owner: OnceLock<Weak<Served>>,
}

impl ServedDevice {
    /// Returns the device of a context, not owned by any allocator yet.
    pub(super) fn new(cuda: CudaDevice, real: &'static Real, charge: Arc<DeviceCharge>, frees: Arc<Frees>) -> Self {
        Self {
            cuda,
            real,
            charge,
            frees,
            charged: AtomicU64::new(0),
            pages: Mutex::default(),
            frontier: AtomicU64::new(0),
            owner: OnceLock::new(),
        }
    }

    /// Returns the device of the driver.
    pub(super) fn cuda(&self) -> &CudaDevice {
        &self.cuda
    }

    /// Names the context whose allocator the device belongs to.
    pub(super) fn set_owner(&self, owner: Weak<Served>) {
        // Called once, when the allocator is made.
        let _ = self.owner.set(owner);
    }

    /// Gives back what is charged for the context. Called when the context is gone, and its memory
    /// with it.
    pub(super) fn forget_charges(&self) {
        self.charge.give_back(self.charged.swap(0, Ordering::Relaxed));
    }

    /// Tells the allocator which frees are complete. Returns whether the allocator did not know.
    pub(super) fn advance(&self, reached: u64) -> bool {
        if self.frontier.fetch_max(reached, Ordering::AcqRel) >= reached {
            return false;
        }
        let Some(owner) = self.owner() else { return false };
        owner.allocator().set_safe_frontier(DeviceIndex(0), reached).is_ok()
    }

    /// Returns the context whose allocator the device belongs to.
    fn owner(&self) -> Option<Arc<Served>> {
        self.owner.get().and_then(Weak::upgrade)
    }

    /// Gives cached memory back to the driver, because other members of the group were refused.
    fn pay(&self) {
        let owed = self.charge.owed();
        if owed == 0 {
            return;
        }
        if let Some(owner) = self.owner() {
            let held = owner.allocator().stats(DeviceIndex(0)).map_or(0, |stats| stats.reserved_bytes().current);
            let keep = u64::try_from(held).unwrap_or(0).saturating_sub(owed);
            // A failure leaves more cached than owed: the next shortage tries again.
            let _ = owner.allocator().trim(DeviceIndex(0), keep);
        }
    }

    /// Makes a call that takes `bytes`, charged before.
    fn charged<T>(&self, bytes: u64, call: impl FnOnce() -> DeviceResult<T>) -> DeviceResult<T> {
        self.charge.reserve(bytes).map_err(|code| DeviceError::new(ErrorKind::OutOfMemory, code.0))?;
        let taken = call();
        if taken.is_ok() {
            self.charged.fetch_add(bytes, Ordering::Relaxed);
        } else {
            self.charge.give_back(bytes);
        }
        taken
    }

    /// Gives back `bytes` that the driver has freed. Nothing if the context's charges were forgotten.
    fn uncharge(&self, bytes: u64) {
        let less = |charged: u64| charged.checked_sub(bytes);
        if self.charged.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
            self.charge.give_back(bytes);
        }
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
        self.charged(taken_by(bytes), || self.cuda.obtain(bytes))
    }

    fn obtain_for(&self, _: PoolId, bytes: u64) -> DeviceResult<DevicePtr> {
        Segments::obtain(self, bytes)
    }

    fn release(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.cuda.release(base, bytes)?;
        self.uncharge(taken_by(bytes));
        Ok(())
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.cuda.virtual_memory().is_some().then_some(self as &dyn VirtualMemory)
    }
}

impl ForwardVirtualMemory for ServedDevice {
    fn create(&self, bytes: u64) -> DeviceResult<PhysicalHandle> {
        let inner = self.cuda.virtual_memory().ok_or(DeviceError::new(ErrorKind::Unsupported, 0))?;
        let handle = self.charged(bytes, || inner.create(bytes))?;
        self.pages.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, bytes);
        Ok(handle)
    }

    fn destroy(&self, handle: PhysicalHandle) -> DeviceResult<()> {
        let inner = self.cuda.virtual_memory().ok_or(DeviceError::new(ErrorKind::Unsupported, 0))?;
        // Taken out before the call: another thread may get the handle at once.
        let bytes = self.pages.lock().unwrap_or_else(PoisonError::into_inner).remove(&handle);
        inner.destroy(handle)?;
        self.uncharge(bytes.unwrap_or(0));
        Ok(())
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
    /// Looks for frees that are complete, when no free block can serve a request.
    fn on_shortage(&self, _: u64) -> bool {
        let reached = self.frees.settle(self.real);
        let advanced = self.advance(reached);
        self.pay();
        advanced
    }
}
