//! The functions of `cachalot.h`, counted. A test compares the list with the header.

use crate::finding;
#[allow(clippy::wildcard_imports, reason = "the header's types, of which the list below names most")]
use cachalot::c::abi::*;
use cachalot::c::capi;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::without_provenance_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Greatest number of threads with a known present call.
const MOST_THREADS: usize = 64;

/// The present function of each thread, plus 1; 0 for none.
static PRESENT: [AtomicU32; MOST_THREADS] = [const { AtomicU32::new(0) }; MOST_THREADS];

/// Result of a call: the function and its status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) struct Reply {
    pub(crate) function: Function,
    pub(crate) status: cachalot_status,
}

/// An allocator's handle as a number, usable on every thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Allocator(usize);

/// Converts the handle of a stream for C.
pub(crate) fn stream(handle: u64) -> cachalot_stream {
    without_provenance_mut(handle as usize)
}

/// Converts an address for C.
pub(crate) fn pointer(address: u64) -> *mut c_void {
    without_provenance_mut(address as usize)
}

/// A structure of numbers and pointers, with the size as the first field.
///
/// # Safety
/// The type is `repr(C)`, the first field is a `usize`, and all bytes zero is a valid value.
pub(crate) unsafe trait Structure: Copy {}

/// Declares structures.
macro_rules! structures {
    ($($name:ident)*) => {
        $(
            // SAFETY: `repr(C)` with its size first, and numbers and pointers.
            unsafe impl Structure for $name {}
        )*
    };
}

structures! {
    cachalot_block cachalot_forecast cachalot_fit cachalot_page_statistics cachalot_reclaim_statistics cachalot_snapshot_options cachalot_park_target cachalot_park_options cachalot_park_report
    cachalot_remaining_memory cachalot_statistics cachalot_plan_report cachalot_buffer_plan cachalot_tune_report
    cachalot_device_info cachalot_tag_limits cachalot_tag_report
}

/// Returns a structure with the size set, and all other fields 0.
pub(crate) fn blank<T: Structure>() -> T {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: the first field is a `usize`, as the trait demands.
    unsafe { value.as_mut_ptr().cast::<usize>().write(size_of::<T>()) };
    // SAFETY: all bytes zero is a valid value, as the trait demands.
    unsafe { value.assume_init() }
}

/// An extent of zeroes.
pub(crate) const NO_EXTENT: cachalot_extent =
    cachalot_extent { offset: 0, bytes: 0, memory: 0, memory_offset: 0, memory_bytes: 0, flags: 0, reserved: 0 };

/// Notes the beginning of a call.
fn begin(function: Function) {
    COUNTS[function as usize].fetch_add(1, Ordering::Relaxed);
    if let Some(present) = PRESENT.get(finding::origin().thread as usize) {
        present.store(function as u32 + 1, Ordering::Relaxed);
    }
}

/// Notes the end of a call.
fn end() {
    if let Some(present) = PRESENT.get(finding::origin().thread as usize) {
        present.store(0, Ordering::Relaxed);
    }
}

/// Returns the name of a thread's present function.
pub(crate) fn present(thread: usize) -> &'static str {
    let number = PRESENT[thread].load(Ordering::Relaxed) as usize;
    if number == 0 { "no call" } else { NAMES[number - 1] }
}

/// Returns the names of all functions, with the number of calls so far.
pub(crate) fn counts() -> impl Iterator<Item = (&'static str, u64)> {
    NAMES.iter().zip(&COUNTS).map(|(name, count)| (*name, count.load(Ordering::Relaxed)))
}

/// Returns the message of the calling thread's last failure.
pub(crate) fn last_error() -> String {
    begin(Function::cachalot_last_error);
    // SAFETY: the library returns a text that is valid until the thread's next failure.
    let text = unsafe { CStr::from_ptr(capi::cachalot_last_error()) };
    end();
    text.to_string_lossy().into_owned()
}

/// Returns the name of a status.
pub(crate) fn status_name(status: cachalot_status) -> &'static str {
    begin(Function::cachalot_status_name);
    // SAFETY: the library returns a text that is valid forever.
    let text = unsafe { CStr::from_ptr(capi::cachalot_status_name(status)) };
    end();
    text.to_str().unwrap_or("no text")
}

/// Returns the meaning of a status.
pub(crate) fn status_text(status: cachalot_status) -> &'static str {
    begin(Function::cachalot_status_text);
    // SAFETY: the library returns a text that is valid forever.
    let text = unsafe { CStr::from_ptr(capi::cachalot_status_text(status)) };
    end();
    text.to_str().unwrap_or("no text")
}

/// Returns the driver's code of the calling thread's last failure.
pub(crate) fn last_driver_code() -> u32 {
    begin(Function::cachalot_last_driver_code);
    let code = capi::cachalot_last_driver_code();
    end();
    code
}

/// Returns the version of the library as a number and as a text.
pub(crate) fn version() -> (u32, &'static str) {
    begin(Function::cachalot_version);
    let number = capi::cachalot_version();
    end();
    begin(Function::cachalot_version_string);
    // SAFETY: the library returns a text that is valid forever.
    let text = unsafe { CStr::from_ptr(capi::cachalot_version_string()) };
    end();
    (number, text.to_str().unwrap_or("no text"))
}

/// Adds a frame to a stack, in the callback of `cachalot_on_stack`.
///
/// # Safety
/// `stack` is the callback's stack.
pub(crate) unsafe fn stack_push(stack: *mut cachalot_stack, function: &CStr, line: c_int) {
    begin(Function::cachalot_stack_push);
    // SAFETY: the texts are alive during the call, and the stack is the callback's.
    unsafe { capi::cachalot_stack_push(stack, function.as_ptr(), c"fuzz.c".as_ptr(), line) };
    end();
}

/// Visits all settings. Needs no allocator.
pub(crate) fn visit_settings(visit: cachalot_setting_visitor, userdata: *mut c_void) -> Reply {
    begin(Function::cachalot_visit_settings);
    // SAFETY: the callback fits the user data.
    let status = unsafe { capi::cachalot_visit_settings(visit, userdata) };
    end();
    Reply { function: Function::cachalot_visit_settings, status }
}

/// Plans buffers on one thread, without a search. Needs no allocator.
pub(crate) fn plan(buffers: &[cachalot_buffer], offsets: &mut [u64], out: &mut cachalot_buffer_plan) -> Reply {
    assert_eq!(buffers.len(), offsets.len(), "an offset for each buffer");
    begin(Function::cachalot_plan_buffers);
    // SAFETY: the arrays have one length, and all variables outlive the call.
    let status = unsafe {
        capi::cachalot_plan_buffers(buffers.as_ptr(), buffers.len(), 1, 0, offsets.as_mut_ptr(), &raw mut *out)
    };
    end();
    Reply { function: Function::cachalot_plan_buffers, status }
}

impl Allocator {
    /// Makes an allocator.
    ///
    /// # Errors
    /// The reply of the call.
    pub(crate) fn create(options: &cachalot_options) -> Result<Self, Reply> {
        begin(Function::cachalot_create);
        let mut handle = std::ptr::null_mut();
        // SAFETY: the options and their texts outlive the call, which writes one handle.
        let status = unsafe { capi::cachalot_create(options, &raw mut handle) };
        end();
        let reply = Reply { function: Function::cachalot_create, status };
        if status == 0 { Ok(Self(handle.addr())) } else { Err(reply) }
    }

    /// Destroys the allocator.
    pub(crate) fn destroy(self) -> Reply {
        begin(Function::cachalot_destroy);
        let status = capi::cachalot_destroy(without_provenance_mut(self.0));
        end();
        Reply { function: Function::cachalot_destroy, status }
    }

    /// Returns the handle for C.
    pub(crate) fn handle(self) -> *const cachalot_allocator {
        without_provenance_mut(self.0)
    }
}

/// Declares functions with the allocator as the first argument, functions of a range, and the
/// functions above.
macro_rules! functions {
    (
        methods { $($method:ident = $name:ident($($arg:ident: $type:ty),*);)* }
        ranges { $($range_method:ident = $range_name:ident($($range_arg:ident: $range_type:ty),*);)* }
        above { $($other:ident;)* }
    ) => {
        /// A function of the header.
        #[allow(non_camel_case_types, clippy::enum_variant_names, reason = "the header's names")]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u32)]
        pub(crate) enum Function { $($name,)* $($range_name,)* $($other,)* }

        /// The names of all functions, in the order of [`Function`].
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name),)* $(stringify!($range_name),)* $(stringify!($other),)*];

        impl Allocator {
            $(
                #[doc = concat!("`", stringify!($name), "`.")]
                pub(crate) fn $method(self, $($arg: $type),*) -> Reply {
                    begin(Function::$name);
                    #[allow(unused_unsafe, reason = "some functions take numbers only")]
                    // SAFETY: pointers come from references or are null, and callbacks fit their
                    // user data.
                    let status = unsafe { capi::$name(self.handle(), $($arg),*) };
                    end();
                    Reply { function: Function::$name, status }
                }
            )*
        }

        $(
            #[doc = concat!("`", stringify!($range_name), "`.")]
            pub(crate) fn $range_method($($range_arg: $range_type),*) -> Reply {
                begin(Function::$range_name);
                let status = capi::$range_name($($range_arg),*);
                end();
                Reply { function: Function::$range_name, status }
            }
        )*
    };
}

functions! {
    methods {
    configure = cachalot_configure(config: *const c_char);
    config = cachalot_get_config(device: c_int, buffer: *mut c_char, capacity: usize, length: &mut usize);
    device_count = cachalot_get_device_count(out: &mut c_int);
    device_info = cachalot_get_device_info(device: c_int, out: &mut cachalot_device_info);
    health = cachalot_check_health(device: c_int);
    enable_peer_access = cachalot_enable_peer_access(device: c_int, peer: c_int);
    malloc = cachalot_malloc(device: c_int, bytes: usize, stream: cachalot_stream, out: &mut *mut c_void);
    free = cachalot_free(block: *mut c_void);
    free_sized = cachalot_free_sized(block: *mut c_void, bytes: usize);
    free_at = cachalot_free_at(block: *mut c_void, count: u64);
    set_safe_frontier = cachalot_set_safe_frontier(device: c_int, count: u64);
    record_stream = cachalot_record_stream(block: *mut c_void, stream: cachalot_stream);
    record_use = cachalot_record_use(block: *mut c_void, stream: cachalot_stream);
    stream_destroyed = cachalot_stream_destroyed(device: c_int, stream: cachalot_stream);
    stream_unreported = cachalot_stream_unreported(device: c_int, stream: cachalot_stream);
    stream_trim = cachalot_stream_trim(device: c_int, stream: cachalot_stream, keep_bytes: usize);
    base_of = cachalot_get_block(address: *const c_void, out: &mut cachalot_block);
    explain_address =
        cachalot_explain_address(address: *const c_void, buffer: *mut c_char, capacity: usize, length: &mut usize);
    forecast = cachalot_get_forecast(device: c_int, bytes: usize, stream: cachalot_stream, out: &mut cachalot_forecast);
    would_fit = cachalot_get_fit(device: c_int, sizes: *const usize, count: usize, stream: cachalot_stream, out: &mut cachalot_fit);
    process_events = cachalot_process_events(device: c_int);
    empty_cache = cachalot_empty_cache(device: c_int);
    trim = cachalot_trim(device: c_int, keep_bytes: usize);
    hold_begin = cachalot_hold_begin(device: c_int);
    hold_end = cachalot_hold_end(device: c_int);
    maintain = cachalot_maintain(device: c_int, max_us: u64, more: &mut c_int);
    maintain_every = cachalot_maintain_every(interval_us: u64, max_us: u64);
    reclaim_stats = cachalot_get_reclaim_statistics(device: c_int, out: &mut cachalot_reclaim_statistics);
    page_stats = cachalot_get_page_statistics(device: c_int, out: &mut cachalot_page_statistics);
    extents = cachalot_get_extents(block: *const c_void, extents: *mut cachalot_extent, count: &mut usize);
    pin = cachalot_pin(block: *const c_void);
    unpin = cachalot_unpin(block: *const c_void);
    advise = cachalot_advise(block: *const c_void, advice: cachalot_advice, moved: &mut u64);
    export_fd = cachalot_export_fd(address: *const c_void, fd: &mut c_int);
    set_caching = cachalot_set_caching(device: c_int, on: c_int);
    set_limit = cachalot_set_limit(device: c_int, bytes: u64);
    set_memory_fraction = cachalot_set_memory_fraction(device: c_int, fraction: f64);
    iteration = cachalot_begin_iteration(device: c_int);
    plans_end = cachalot_end_plans(device: c_int);
    planned = cachalot_get_plan_report(device: c_int, out: &mut cachalot_plan_report);
    tuned = cachalot_get_tune_report(device: c_int, out: &mut cachalot_tune_report);
    pool_create = cachalot_pool_create(device: c_int, flags: u32, out: &mut cachalot_pool);
    pool_retain = cachalot_pool_retain(device: c_int, pool: cachalot_pool, flags: u32);
    pool_release = cachalot_pool_release(device: c_int, pool: cachalot_pool);
    pool_users = cachalot_get_pool_users(device: c_int, pool: cachalot_pool, out: &mut u32);
    pool_empty = cachalot_pool_empty(device: c_int, pool: cachalot_pool);
    pool_trim = cachalot_pool_trim(device: c_int, pool: cachalot_pool, keep: usize);
    pool_spill = cachalot_pool_spill(device: c_int, pool: cachalot_pool, on: c_int);
    pool_begin = cachalot_pool_begin(device: c_int, pool: cachalot_pool, route: cachalot_route, stream: cachalot_stream);
    pool_end = cachalot_pool_end(device: c_int, pool: cachalot_pool);
    capture_begin = cachalot_capture_begin(device: c_int, pool: cachalot_pool, route: cachalot_route, stream: cachalot_stream);
    capture_end = cachalot_capture_end(device: c_int, pool: cachalot_pool);
    pool_tag = cachalot_pool_set_tag(device: c_int, pool: cachalot_pool, tag: u64);
    park = cachalot_park(device: c_int, target: &cachalot_park_target, options: *const cachalot_park_options);
    wake = cachalot_wake(device: c_int, target: &cachalot_park_target);
    wake_start = cachalot_wake_start(device: c_int, target: &cachalot_park_target);
    wake_wait = cachalot_wake_wait(device: c_int, target: &cachalot_park_target);
    park_report = cachalot_get_park_report(device: c_int, target: &cachalot_park_target, out: &mut cachalot_park_report);
    remaining = cachalot_get_remaining_memory(device: c_int, out: &mut cachalot_remaining_memory);
    park_elsewhere = cachalot_tag_set_fallback(device: c_int, tag: u64, on: c_int);
    park_retain = cachalot_retain_host_memory(device: c_int, host_bytes: u64);
    tag_limit = cachalot_tag_set_limits(device: c_int, tag: u64, limits: *const cachalot_tag_limits);
    tag_trim = cachalot_tag_trim(device: c_int, tag: u64, keep: usize);
    pool_lend = cachalot_pool_lend(device: c_int, pool: cachalot_pool);
    pool_reclaim = cachalot_pool_reclaim(device: c_int, pool: cachalot_pool, stream: cachalot_stream);
    tag_lend = cachalot_tag_lend(device: c_int, tag: u64);
    tag_reclaim = cachalot_tag_reclaim(device: c_int, tag: u64, stream: cachalot_stream);
    tag_held = cachalot_get_tag_report(device: c_int, tag: u64, out: &mut cachalot_tag_report);
    range_reserve = cachalot_range_reserve(device: c_int, max_bytes: usize, out: *mut cachalot_range);
    stats = cachalot_get_statistics(device: c_int, out: &mut cachalot_statistics);
    stat = cachalot_find_statistic(device: c_int, key: *const c_char, out: &mut i64);
    stats_for_each = cachalot_visit_statistics(device: c_int, visit: cachalot_statistic_visitor, userdata: *mut c_void);
    reset_peaks = cachalot_reset_peaks(device: c_int);
    reset_accumulated = cachalot_reset_accumulated(device: c_int);
    metrics = cachalot_write_metrics(write: cachalot_writer, userdata: *mut c_void);
    on_shortage = cachalot_on_shortage(callback: cachalot_shortage_callback, userdata: *mut c_void);
    on_out_of_memory = cachalot_on_out_of_memory(callback: cachalot_oom_callback, userdata: *mut c_void);
    on_map = cachalot_on_map(callback: cachalot_mapping_callback, userdata: *mut c_void);
    on_unmap = cachalot_on_unmap(callback: cachalot_mapping_callback, userdata: *mut c_void);
    on_stack = cachalot_on_stack(callback: cachalot_stack_callback, userdata: *mut c_void);
    trace_start = cachalot_trace_start(device: c_int, capacity: usize);
    recorder_start = cachalot_recorder_start(options: *const c_char);
    trace_for_each = cachalot_visit_trace(device: c_int, visit: cachalot_trace_visitor, userdata: *mut c_void);
    snapshot = cachalot_snapshot(options: *const cachalot_snapshot_options, write: cachalot_writer, userdata: *mut c_void);
    check = cachalot_check_invariants();
    }
    ranges {
    range_commit = cachalot_range_commit(range: cachalot_range, offset: usize, bytes: usize, stream: cachalot_stream);
    range_decommit = cachalot_range_decommit(range: cachalot_range, offset: usize, bytes: usize, stream: cachalot_stream);
    range_release = cachalot_range_release(range: cachalot_range);
    }
    above {
    cachalot_create;
    cachalot_destroy;
    cachalot_version;
    cachalot_version_string;
    cachalot_status_name;
    cachalot_status_text;
    cachalot_last_error;
    cachalot_last_driver_code;
    cachalot_plan_buffers;
    cachalot_stack_push;
    cachalot_visit_settings;
    }
}

/// The calls of each function so far.
static COUNTS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];
