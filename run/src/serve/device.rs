//! A context as the device of an allocator: charged, and with a stream for memory ordered
//! by the host.
//!
//! Memory of `cuMemAlloc` belongs to no stream: work on any stream may use the memory as soon as
//! the call returns. The blocks belong to [`HOST_STREAM`](cachalot_cuda::HOST_STREAM), a stream
//! without work, and are free only when all work able to use them is complete.

use crate::charge::{DeviceCharge, DriverFigures, Holding, Holdings, taken_by};
use crate::ledger::Kind;
use crate::real::Real;
use crate::record::Record;
use crate::serve::frees::Frees;
use cachalot_core::forward::{ForwardHost, ForwardSegments, ForwardStreamOrder, ForwardVirtualMemory, Forwarder};
use cachalot_core::{
    DeviceError, DevicePtr, DeviceResult, ErrorKind, PhysicalHandle, PoolId, Segments, TraceEntry, VirtualMemory,
};
use cachalot_cuda::driver::types::{CuContext, CuMemHandle};
use cachalot_cuda::{CuResult, CudaDevice, HostStream, tell_of_missing_virtual_memory};
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// Kinds of physical memory, which belongs to no context.
pub(super) const PHYSICAL: [Kind; 2] = [Kind::Pages, Kind::Spilled];

/// A device of the driver, called by the allocator of a context.
#[derive(Debug)]
pub(super) struct ServedDevice {
    cuda: HostStream,
    real: &'static Real,
    charge: Arc<DeviceCharge>,
    frees: Arc<Frees>,
    /// Told of each event. `None`: nothing is recorded.
    record: Option<Arc<Record>>,
    /// The process's memory from the driver, with the segments and pages of the context.
    holdings: Arc<Holdings>,
    /// The frees known to the allocator as complete.
    frontier: AtomicU64,
    /// The owner of the allocator, once the allocator is made.
    owner: OnceLock<Weak<dyn AllocatorOwner>>,
    /// The state that outlives the context.
    outliving: Mutex<Outliving>,
}

/// Memory and addresses of a context's allocator that belong to the device, so that they outlive
/// the context.
#[derive(Default, Debug)]
struct Outliving {
    /// Reserved addresses: the first, and the bytes.
    reserved: BTreeMap<u64, u64>,
    /// Mapped addresses: the first, and the bytes.
    mapped: BTreeMap<u64, u64>,
    /// Handles of physical memory.
    handles: BTreeSet<u64>,
}

/// The owner of the allocator over a device. The device asks for calls of the allocator.
pub(super) trait AllocatorOwner: Send + Sync {
    /// Frees the blocks waiting for the frees up to `count`. Returns false after a failure.
    fn reach(&self, count: u64) -> bool;

    /// Gives up to `bytes` bytes of cached memory back to the driver.
    fn trim_by(&self, bytes: u64);

    /// Returns the freed bytes that wait.
    fn waiting(&self) -> u64;
}

impl ServedDevice {
    /// Returns the device of a context, not owned by any allocator yet.
    pub(super) fn new(
        cuda: CudaDevice,
        real: &'static Real,
        charge: Arc<DeviceCharge>,
        holdings: Arc<Holdings>,
        frees: Arc<Frees>,
        record: Option<Arc<Record>>,
    ) -> Self {
        let (frontier, owner, outliving) = (AtomicU64::new(0), OnceLock::new(), Mutex::default());
        Self { cuda: HostStream(cuda), real, charge, frees, record, holdings, frontier, owner, outliving }
    }

    /// Returns the device of the driver.
    pub(super) fn cuda(&self) -> &CudaDevice {
        &self.cuda.0
    }

    /// Returns the charge of the device.
    pub(super) fn charge(&self) -> &Arc<DeviceCharge> {
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
    pub(super) fn pay(&self) {
        self.give(self.charge.owed());
    }

    /// Gives up to `owed` bytes of cached memory back to the driver.
    pub(super) fn give(&self, owed: u64) {
        if owed != 0
            && let Some(owner) = self.owner()
        {
            // Freed memory within the slack goes back, too.
            self.advance(self.frees.settle(self.real));
            owner.trim_by(owed);
        }
    }

    /// Returns whether a request for `bytes` takes new memory while freed memory waits: the freed
    /// memory is within the slack, and the limit has room. Calls no driver.
    fn lets_frees_wait(&self, bytes: u64) -> bool {
        let fits = |waiting: u64| waiting.saturating_add(bytes) <= self.frees.slack();
        // The sum over the heaps is dearer than the other questions.
        fits(0)
            && self.charge.owed() == 0
            && self.charge.budget().is_none_or(|budget| taken_by(bytes) <= budget.available)
            && self.owner().is_some_and(|owner| fits(owner.waiting()))
    }

    /// Makes a call for `bytes` of memory, charged under the name found by `name` in the answer.
    fn charged<T>(
        &self,
        kind: Kind,
        bytes: u64,
        call: impl FnOnce() -> DeviceResult<T>,
        name: impl FnOnce(&T) -> u64,
    ) -> DeviceResult<T> {
        let refused = |code: CuResult| DeviceError::new(ErrorKind::OutOfMemory, code.0);
        let taken = self.holdings.take(self.holding(kind, bytes), call, name, refused)?;
        // The context is current: only its own threads ask for its segments.
        self.charge.note(|| DriverFigures::of_current(self.real).ok());
        Ok(taken)
    }

    /// Returns memory of the context's, or of the device's in the case of pages.
    fn holding(&self, kind: Kind, bytes: u64) -> Holding {
        let context = if PHYSICAL.contains(&kind) { CuContext::NULL } else { self.cuda().cu_context() };
        Holding { charge: Arc::clone(&self.charge), kind, bytes, context }
    }

    /// Gives back what outlives the context, after the context has ended: pages, and the addresses
    /// reserved for them. The charge ends for what the driver takes back. The driver wants no
    /// context for these calls, and none is current (asked of driver 580).
    pub(super) fn end(&self) {
        self.cuda().context_ended();
        let Outliving { reserved, mapped, handles } = core::mem::take(&mut *self.outliving());
        for (at, bytes) in mapped {
            // SAFETY: takes no host pointers; the work that used the addresses has ended with the
            // context.
            let _ = unsafe { self.real.mem_unmap(at, bytes as usize) };
        }
        for handle in handles {
            let release = || {
                // SAFETY: takes no host pointers; the handle is the allocator's own, and nothing is
                // mapped any longer.
                let code = unsafe { self.real.mem_release(CuMemHandle(handle)) };
                if code.is_success() { Ok(()) } else { Err(code) }
            };
            let _ = self.holdings.give(&PHYSICAL, handle, release);
        }
        for (base, bytes) in reserved {
            // SAFETY: takes no host pointers; the range is the allocator's own.
            let _ = unsafe { self.real.mem_address_free(base, bytes as usize) };
        }
    }

    /// Locks what outlives the context.
    fn outliving(&self) -> MutexGuard<'_, Outliving> {
        self.outliving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the virtual memory of the driver's device.
    fn inner_virtual(&self) -> DeviceResult<&dyn VirtualMemory> {
        self.cuda().virtual_memory().ok_or(DeviceError::new(ErrorKind::Unsupported, 0))
    }
}

impl Forwarder for ServedDevice {
    type Inner = HostStream;

    fn inner(&self) -> DeviceResult<&HostStream> {
        Ok(&self.cuda)
    }
}

impl ForwardSegments for ServedDevice {
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        self.charged(Kind::Segment, taken_by(bytes), || self.cuda().obtain(bytes), |base| base.0)
    }

    fn obtain_for(&self, _: PoolId, bytes: u64) -> DeviceResult<DevicePtr> {
        Segments::obtain(self, bytes)
    }

    fn release(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.holdings.give(&[Kind::Segment], base.0, || self.cuda().release(base, bytes)).map(drop)
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.cuda().virtual_memory().is_some().then_some(self as &dyn VirtualMemory)
    }
}

impl ForwardVirtualMemory for ServedDevice {
    fn reserve(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let base = self.inner_virtual()?.reserve(bytes)?;
        self.outliving().reserved.insert(base.0, bytes);
        Ok(base)
    }

    fn unreserve(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        // Taken out before the call, here and below: another thread may get the addresses at once.
        let known = self.outliving().reserved.remove(&base.0);
        let result = self.inner_virtual()?.unreserve(base, bytes);
        if let (Err(_), Some(known)) = (&result, known) {
            self.outliving().reserved.insert(base.0, known);
        }
        result
    }

    fn create(&self, bytes: u64) -> DeviceResult<PhysicalHandle> {
        let inner = self.inner_virtual()?;
        let handle = self.charged(Kind::Pages, bytes, || inner.create(bytes), |handle| handle.0)?;
        self.outliving().handles.insert(handle.0);
        Ok(handle)
    }

    /// Creates memory of the host, for which no limit of the device is charged.
    fn create_at_host(&self, bytes: u64) -> DeviceResult<PhysicalHandle> {
        let inner = self.inner_virtual()?;
        let handle = self.charged(Kind::Spilled, bytes, || inner.create_at_host(bytes), |handle| handle.0)?;
        self.outliving().handles.insert(handle.0);
        Ok(handle)
    }

    fn destroy(&self, handle: PhysicalHandle) -> DeviceResult<()> {
        let inner = self.inner_virtual()?;
        self.outliving().handles.remove(&handle.0);
        let result = self.holdings.give(&PHYSICAL, handle.0, || inner.destroy(handle));
        if result.is_err() {
            self.outliving().handles.insert(handle.0);
        }
        result.map(drop)
    }

    fn map(&self, at: DevicePtr, bytes: u64, handle: PhysicalHandle) -> DeviceResult<()> {
        self.inner_virtual()?.map(at, bytes, handle)?;
        self.outliving().mapped.insert(at.0, bytes);
        Ok(())
    }

    fn unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let taken: Vec<_> = {
            let mut outliving = self.outliving();
            let inside = outliving.mapped.range(at.0..at.0.saturating_add(bytes)).map(|(&from, _)| from);
            let inside: Vec<u64> = inside.collect();
            inside.into_iter().filter_map(|from| outliving.mapped.remove_entry(&from)).collect()
        };
        let result = self.inner_virtual()?.unmap(at, bytes);
        if result.is_err() {
            self.outliving().mapped.extend(taken);
        }
        result
    }
}

impl ForwardStreamOrder for ServedDevice {}

impl ForwardHost for ServedDevice {
    /// Records an event, under the lock of the event's heap.
    fn on_event(&self, entry: &TraceEntry, _: PoolId) {
        if let Some(record) = &self.record {
            record.event(entry);
        }
    }

    /// Looks for complete frees, when no free block can serve a request, unless the frees may wait.
    fn on_shortage(&self, bytes: u64) -> bool {
        if self.lets_frees_wait(bytes) {
            return false;
        }
        let reached = self.frees.settle(self.real);
        let advanced = self.advance(reached);
        self.pay();
        advanced
    }
    fn on_missing_virtual_memory(&self) {
        tell_of_missing_virtual_memory(self.cuda().ordinal());
    }
}
