//! Callbacks: calls from the library into the program.

use crate::c::abi::{
    CACHALOT_ACTION_ALLOC, CACHALOT_ACTION_FREE_COMPLETED, CACHALOT_ACTION_FREE_REQUESTED, CACHALOT_ACTION_OOM,
    CACHALOT_ACTION_SEGMENT_ALLOC, CACHALOT_ACTION_SEGMENT_FREE, CACHALOT_ACTION_SEGMENT_MAP,
    CACHALOT_ACTION_SEGMENT_UNMAP, CACHALOT_ACTION_SETTINGS_CHANGED, CACHALOT_ACTION_SETTINGS_TAKEN_BACK,
    CACHALOT_ACTION_SPILLED, cachalot_action, cachalot_mapping_callback, cachalot_oom_callback, cachalot_oom_report,
    cachalot_pool, cachalot_shortage_callback, cachalot_torch_event, cachalot_torch_event_callback,
};
use crate::c::births::Births;
use crate::c::filters::Filters;
use crate::c::last_error;
use crate::c::marshal::Userdata;
use crate::c::status::Host;
use crate::c::supplies::SuppliedPools;
use cachalot_core::{Action, DevicePtr, OutOfMemory, PoolId, TraceEntry};
use core::cell::Cell;
use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicU32, Ordering};
use std::io::Write;
use std::sync::{Mutex, PoisonError, RwLock};

thread_local! {
    /// Whether the thread is inside a callback. Requests made in a callback lead to no other
    /// callbacks.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The callbacks of an allocator.
#[derive(Default)]
pub(crate) struct Callbacks {
    shortage: Mutex<Option<(ShortageFunction, Userdata)>>,
    out_of_memory: Mutex<Option<(OomFunction, Userdata)>>,
    /// Read under a heap's lock, so nothing else may be locked while this is.
    event: RwLock<Option<(EventFunction, Userdata)>>,
    map: Mutex<Option<(MappingFunction, Userdata)>>,
    unmap: Mutex<Option<(MappingFunction, Userdata)>>,
    /// The wording of out-of-memory reports.
    host: Host,
    /// The filters of routes into pools.
    pub(crate) filters: Filters,
    /// The pools whose segments the program supplies.
    pub(crate) supplied: SuppliedPools,
    /// The order of the segments.
    pub(crate) births: Births,
    /// Number of callbacks running, on all threads.
    running: AtomicU32,
}

type ShortageFunction = unsafe extern "C" fn(*mut core::ffi::c_void, c_int, usize) -> c_int;
type MappingFunction = unsafe extern "C" fn(*mut core::ffi::c_void, c_int, *mut core::ffi::c_void, usize);
type OomFunction = unsafe extern "C" fn(*mut core::ffi::c_void, *const cachalot_oom_report);

type EventFunction = unsafe extern "C" fn(*mut core::ffi::c_void, *const cachalot_torch_event);

/// Guard of a running callback. Dropping the guard ends the callback.
pub(crate) struct Running<'a>(&'a AtomicU32);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Guard of a callback in which requests lead to no other callbacks on the thread.
pub(crate) struct Inside<'a> {
    _running: Running<'a>,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        INSIDE.with(|inside| inside.set(false));
    }
}

impl Callbacks {
    /// Creates the callbacks of an allocator for `host`, none of them set.
    pub(crate) fn new(host: Host) -> Self {
        Self { host, ..Self::default() }
    }

    /// Sets the callback that frees memory of the program.
    pub(crate) fn set_shortage(&self, callback: cachalot_shortage_callback, userdata: Userdata) {
        *self.shortage.lock().unwrap_or_else(PoisonError::into_inner) = callback.map(|callback| (callback, userdata));
    }

    /// Sets the callback that receives out-of-memory reports.
    pub(crate) fn set_out_of_memory(&self, callback: cachalot_oom_callback, userdata: Userdata) {
        *self.out_of_memory.lock().unwrap_or_else(PoisonError::into_inner) =
            callback.map(|callback| (callback, userdata));
    }

    /// Sets the callback that is told of each event. After the call, the earlier callback does not
    /// run any more.
    pub(crate) fn set_event(&self, callback: cachalot_torch_event_callback, userdata: Userdata) {
        *self.event.write().unwrap_or_else(PoisonError::into_inner) = callback.map(|callback| (callback, userdata));
    }

    /// Passes an event to the program.
    pub(crate) fn event(&self, device: c_int, entry: &TraceEntry, PoolId(first, second): PoolId) {
        let set = self.event.read().unwrap_or_else(PoisonError::into_inner);
        let Some((callback, userdata)) = *set else { return };
        let event = cachalot_torch_event {
            struct_size: size_of::<cachalot_torch_event>(),
            address: entry.addr.0,
            bytes: entry.size,
            stream_id: entry.stream.0,
            pool: cachalot_pool { first, second },
            action: number_of(entry.action),
            device,
        };
        // SAFETY: the program passed both, for calls from any thread until another callback is set,
        // which waits for this call; the event outlives the call.
        unsafe { callback(userdata.0, &raw const event) };
    }

    /// Sets the callback that learns of mapped pages.
    pub(crate) fn set_map(&self, callback: cachalot_mapping_callback, userdata: Userdata) {
        *self.map.lock().unwrap_or_else(PoisonError::into_inner) = callback.map(|callback| (callback, userdata));
    }

    /// Sets the callback that learns of pages about to be unmapped.
    pub(crate) fn set_unmap(&self, callback: cachalot_mapping_callback, userdata: Userdata) {
        *self.unmap.lock().unwrap_or_else(PoisonError::into_inner) = callback.map(|callback| (callback, userdata));
    }

    /// Tells the program of a mapped page.
    pub(crate) fn mapped(&self, device: c_int, at: DevicePtr, bytes: u64) {
        self.tell_mapping(&self.map, device, at, bytes);
    }

    /// Tells the program of a page about to be unmapped.
    pub(crate) fn unmapping(&self, device: c_int, at: DevicePtr, bytes: u64) {
        self.tell_mapping(&self.unmap, device, at, bytes);
    }

    /// Tells the program of a page. Unlike the other callbacks, this one also runs for requests
    /// made inside a callback: the program would miss a mapping otherwise.
    fn tell_mapping(&self, set: &Mutex<Option<(MappingFunction, Userdata)>>, device: c_int, at: DevicePtr, bytes: u64) {
        let set = *set.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((callback, userdata)) = set else { return };
        let _running = self.enter();
        let address = core::ptr::without_provenance_mut(at.0 as usize);
        // SAFETY: the program passed both, for calls from any thread; no lock is held.
        unsafe { callback(userdata.0, device, address, bytes as usize) };
    }

    /// Returns whether any callback of the allocator is running, on any thread.
    pub(crate) fn are_running(&self) -> bool {
        self.running.load(Ordering::Acquire) > 0
    }

    /// Starts a callback. The allocator cannot be destroyed before the guard is dropped.
    pub(crate) fn enter(&self) -> Running<'_> {
        self.running.fetch_add(1, Ordering::Acquire);
        Running(&self.running)
    }

    /// Starts a callback caused by a request. `None` if the request was made inside a callback.
    pub(crate) fn enter_once(&self) -> Option<Inside<'_>> {
        INSIDE.with(|inside| (!inside.replace(true)).then(|| Inside { _running: self.enter() }))
    }

    /// Asks the program to free memory. Returns the program's answer: true if memory was freed.
    pub(crate) fn ask(&self, device: c_int, bytes: u64) -> bool {
        let set = *self.shortage.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((callback, userdata)) = set else { return false };
        let Some(_inside) = self.enter_once() else { return false };
        // SAFETY: the program passed both, for calls from any thread; no lock is held.
        unsafe { callback(userdata.0, device, bytes as usize) != 0 }
    }

    /// Passes the report of a failing request to the program.
    pub(crate) fn tell(&self, report: &OutOfMemory) {
        let set = *self.out_of_memory.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((callback, userdata)) = set else { return };
        let Some(_inside) = self.enter_once() else { return };
        let mut text = [0; last_error::CAPACITY];
        // A report that is too long is cut. The last byte stays NUL.
        let mut room = &mut text[..last_error::CAPACITY - 1];
        let _ = match self.host {
            Host::Program => write!(room, "{report}"),
            Host::PyTorch => write!(room, "{}", report.in_words_of_pytorch()),
        };
        let report = describe(report, text.as_ptr().cast());
        // SAFETY: the program passed both, for calls from any thread; the report and its text
        // outlive the call; no lock is held.
        unsafe { callback(userdata.0, &raw const report) };
    }
}

/// Converts an action to C. An action unknown to this version becomes 0.
pub(crate) fn number_of(action: Action) -> cachalot_action {
    match action {
        Action::Alloc => CACHALOT_ACTION_ALLOC,
        Action::FreeRequested => CACHALOT_ACTION_FREE_REQUESTED,
        Action::FreeCompleted => CACHALOT_ACTION_FREE_COMPLETED,
        Action::SegmentAlloc => CACHALOT_ACTION_SEGMENT_ALLOC,
        Action::SegmentFree => CACHALOT_ACTION_SEGMENT_FREE,
        Action::SegmentMap => CACHALOT_ACTION_SEGMENT_MAP,
        Action::SegmentUnmap => CACHALOT_ACTION_SEGMENT_UNMAP,
        Action::OutOfMemory => CACHALOT_ACTION_OOM,
        Action::SettingsChanged => CACHALOT_ACTION_SETTINGS_CHANGED,
        Action::SettingsTakenBack => CACHALOT_ACTION_SETTINGS_TAKEN_BACK,
        Action::Spilled => CACHALOT_ACTION_SPILLED,
        _ => 0,
    }
}

/// Converts a report to the C structure.
fn describe(report: &OutOfMemory, text: *const c_char) -> cachalot_oom_report {
    let own = report.tags.own;
    cachalot_oom_report {
        struct_size: size_of::<cachalot_oom_report>(),
        text,
        requested_bytes: report.requested as usize,
        block_bytes: report.block as usize,
        segment_bytes: report.segment as usize,
        device_total_bytes: report.memory.total,
        device_free_bytes: report.memory.free,
        process_bytes: report.process.unwrap_or(0),
        limit_bytes: report.limit.unwrap_or(crate::c::abi::CACHALOT_NO_LIMIT),
        allocated_bytes: report.allocated,
        reserved_bytes: report.reserved,
        pending_bytes: report.pending,
        private_free_bytes: report.private_free,
        largest_free_bytes: report.largest_free,
        largest_free_elsewhere_bytes: report.largest_free_elsewhere,
        device: report.device.0 as c_int,
        capturing: c_int::from(report.capturing),
        spare_bytes: report.spare,
        pinned_bytes: report.pinned,
        parked_bytes: report.parked,
        tag: own.map_or(0, |own| own.tag.0.get()),
        tag_bytes: own.map_or(0, |own| own.charge),
        tag_max_bytes: own.map_or(0, |own| if own.max == u64::MAX { 0 } else { own.max }),
        tag_refused: report.held_to_max.into(),
        reserved: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_have_the_numbers_of_the_header() {
        let numbered = [
            (Action::Alloc, CACHALOT_ACTION_ALLOC),
            (Action::FreeRequested, CACHALOT_ACTION_FREE_REQUESTED),
            (Action::FreeCompleted, CACHALOT_ACTION_FREE_COMPLETED),
            (Action::SegmentAlloc, CACHALOT_ACTION_SEGMENT_ALLOC),
            (Action::SegmentFree, CACHALOT_ACTION_SEGMENT_FREE),
            (Action::SegmentMap, CACHALOT_ACTION_SEGMENT_MAP),
            (Action::SegmentUnmap, CACHALOT_ACTION_SEGMENT_UNMAP),
            (Action::OutOfMemory, CACHALOT_ACTION_OOM),
            (Action::SettingsChanged, CACHALOT_ACTION_SETTINGS_CHANGED),
            (Action::SettingsTakenBack, CACHALOT_ACTION_SETTINGS_TAKEN_BACK),
            (Action::Spilled, CACHALOT_ACTION_SPILLED),
        ];
        for (action, number) in numbered {
            assert_eq!(number_of(action), number, "{action:?}");
        }
    }
}
