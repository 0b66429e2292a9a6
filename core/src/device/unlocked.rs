//! A device that panics when it is called while the calling thread holds a lock of the core: under the feature `paranoid`.
//!
//! Six methods are exempt, because they call no driver: `virtual_memory` and `granularity` (asked while a heap's rules
//! change), `thread_id` (while a request is routed), `ticks` and `on_event` (for each event of a heap) and `time_us` (for each
//! event that is read).

use crate::device::oom::OutOfMemory;
use crate::device::{
    CaptureMark, Contents, CopyMark, Descriptor, DeviceMemory, DeviceResult, Event, MemoryInfo, PhysicalHandle, Saved,
    VirtualMemory,
};
use crate::pool::PoolId;
use crate::sync::assert_no_lock_held;
use crate::trace::{CallSite, TraceEntry};
use crate::units::{DevicePtr, StreamId};
use core::borrow::Borrow;

/// A device, called only while the calling thread holds no lock of the core.
pub(crate) struct Unlocked<D>(D);

impl<D> From<D> for Unlocked<D> {
    fn from(device: D) -> Self {
        Self(device)
    }
}

impl<D> Borrow<D> for Unlocked<D> {
    fn borrow(&self) -> &D {
        &self.0
    }
}

impl<D: DeviceMemory> Unlocked<D> {
    /// The device, to be called by `method`.
    fn on(&self, method: &str) -> &D {
        assert_no_lock_held(method);
        &self.0
    }

    /// The device's virtual memory, to be called by `method`.
    fn virtual_on(&self, method: &str) -> &dyn VirtualMemory {
        self.on(method).virtual_memory().expect("a device does not lose its virtual memory")
    }
}

impl<D: DeviceMemory> Unlocked<D> {
    /// The device's memory for contents, to be called by `method`.
    fn contents_on(&self, method: &str) -> &dyn Contents {
        self.on(method).contents().expect("a device does not lose its memory for contents")
    }
}

impl<D: DeviceMemory> Contents for Unlocked<D> {
    fn prepare(&self, bytes: u64, largest: u64) -> DeviceResult<()> {
        self.contents_on("prepare").prepare(bytes, largest)
    }

    fn end_saves(&self) {
        self.contents_on("end_saves").end_saves();
    }

    fn save(&self, at: DevicePtr, bytes: u64) -> DeviceResult<Saved> {
        self.contents_on("save").save(at, bytes)
    }

    fn restore(&self, saved: Saved, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.contents_on("restore").restore(saved, at, bytes)
    }

    fn zero(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.contents_on("zero").zero(at, bytes)
    }

    fn mark(&self) -> DeviceResult<CopyMark> {
        self.contents_on("mark").mark()
    }

    fn finish(&self, mark: CopyMark) -> DeviceResult<()> {
        self.contents_on("finish").finish(mark)
    }

    fn forget(&self, saved: Saved) {
        self.contents_on("forget").forget(saved);
    }
}

impl<D: DeviceMemory> DeviceMemory for Unlocked<D> {
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        self.on("obtain").obtain(bytes)
    }

    fn release(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.on("release").release(base, bytes)
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        self.on("memory_info").memory_info()
    }

    fn create_event(&self) -> DeviceResult<Event> {
        self.on("create_event").create_event()
    }

    fn destroy_event(&self, event: Event) -> DeviceResult<()> {
        self.on("destroy_event").destroy_event(event)
    }

    fn record(&self, event: Event, stream: StreamId) -> DeviceResult<()> {
        self.on("record").record(event, stream)
    }

    fn record_announced(&self, event: Event, stream: StreamId) -> DeviceResult<()> {
        self.on("record_announced").record_announced(event, stream)
    }

    fn is_complete(&self, event: Event) -> DeviceResult<bool> {
        self.on("is_complete").is_complete(event)
    }

    fn wait(&self, event: Event) -> DeviceResult<()> {
        self.on("wait").wait(event)
    }

    fn can_order(&self, stream: StreamId) -> bool {
        self.0.can_order(stream)
    }

    fn reports_end(&self, stream: StreamId) -> bool {
        self.0.reports_end(stream)
    }

    fn order_behind(&self, stream: StreamId, event: Event) -> DeviceResult<()> {
        self.on("order_behind").order_behind(stream, event)
    }

    fn synchronize(&self, stream: StreamId) -> DeviceResult<()> {
        self.on("synchronize").synchronize(stream)
    }

    fn synchronize_all(&self) -> DeviceResult<()> {
        self.on("synchronize_all").synchronize_all()
    }

    fn contents(&self) -> Option<&dyn Contents> {
        self.0.contents().map(|_| self as &dyn Contents)
    }

    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        self.on("is_capturing").is_capturing(stream)
    }

    fn is_idle(&self, stream: StreamId) -> DeviceResult<Option<bool>> {
        self.on("is_idle").is_idle(stream)
    }

    fn mark_capture(&self, stream: StreamId, mark: Option<CaptureMark>) -> DeviceResult<Option<CaptureMark>> {
        self.on("mark_capture").mark_capture(stream, mark)
    }

    fn is_behind(&self, stream: StreamId, mark: CaptureMark) -> DeviceResult<bool> {
        self.on("is_behind").is_behind(stream, mark)
    }

    fn remove_mark(&self, mark: CaptureMark) {
        self.on("remove_mark").remove_mark(mark);
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.0.virtual_memory().map(|_| self as &dyn VirtualMemory)
    }

    fn process_use(&self) -> Option<u64> {
        self.on("process_use").process_use()
    }

    fn thread_id(&self) -> u64 {
        self.0.thread_id()
    }

    fn leads(&self, route: u64, stream: StreamId) -> bool {
        self.on("leads").leads(route, stream)
    }

    fn supplies(&self, pool: PoolId) -> bool {
        self.on("supplies").supplies(pool)
    }

    fn obtain_for(&self, pool: PoolId, bytes: u64) -> DeviceResult<DevicePtr> {
        self.on("obtain_for").obtain_for(pool, bytes)
    }

    fn on_shortage(&self, bytes: u64) -> bool {
        self.on("on_shortage").on_shortage(bytes)
    }

    fn on_out_of_memory(&self, report: &OutOfMemory) {
        self.on("on_out_of_memory").on_out_of_memory(report);
    }

    fn on_map(&self, at: DevicePtr, bytes: u64) {
        self.on("on_map").on_map(at, bytes);
    }

    fn on_unmap(&self, at: DevicePtr, bytes: u64) {
        self.on("on_unmap").on_unmap(at, bytes);
    }

    fn on_missing_virtual_memory(&self) {
        self.on("on_missing_virtual_memory").on_missing_virtual_memory();
    }

    fn pause(&self, us: u64) -> bool {
        self.on("pause").pause(us)
    }

    fn ticks(&self) -> u64 {
        self.0.ticks()
    }

    fn time_us(&self, ticks: u64) -> u64 {
        self.0.time_us(ticks)
    }

    fn on_event(&self, entry: &TraceEntry, pool: PoolId) {
        self.0.on_event(entry, pool);
    }

    fn call_site(&self, site: CallSite) -> u32 {
        self.on("call_site").call_site(site)
    }
}

impl<D: DeviceMemory> VirtualMemory for Unlocked<D> {
    fn granularity(&self) -> u64 {
        self.0.virtual_memory().map_or(0, VirtualMemory::granularity)
    }

    fn reserve(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        self.virtual_on("reserve").reserve(bytes)
    }

    fn unreserve(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.virtual_on("unreserve").unreserve(base, bytes)
    }

    fn create(&self, bytes: u64) -> DeviceResult<PhysicalHandle> {
        self.virtual_on("create").create(bytes)
    }

    fn destroy(&self, handle: PhysicalHandle) -> DeviceResult<()> {
        self.virtual_on("destroy").destroy(handle)
    }

    fn export(&self, handle: PhysicalHandle) -> DeviceResult<Descriptor> {
        self.virtual_on("export").export(handle)
    }

    fn begin_mapping(&self) {
        self.virtual_on("begin_mapping").begin_mapping();
    }

    fn end_mapping(&self) {
        self.virtual_on("end_mapping").end_mapping();
    }

    fn map(&self, at: DevicePtr, bytes: u64, handle: PhysicalHandle) -> DeviceResult<()> {
        self.virtual_on("map").map(at, bytes, handle)
    }

    fn set_access(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.virtual_on("set_access").set_access(at, bytes)
    }

    fn unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.virtual_on("unmap").unmap(at, bytes)
    }
}
