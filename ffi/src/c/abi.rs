//! The types of `include/cachalot.h`, under the header's own names. The header documents each
//! field.
//!
//! C passes only plain numbers and pointers, so an unknown value from a newer program is no
//! undefined behaviour.

#![allow(non_camel_case_types, reason = "the header's names")]
#![allow(missing_docs, reason = "the header describes every field, and a test compares the two")]

use core::ffi::{c_char, c_int, c_void};

/// A handle of an allocator: a number in the shape of a pointer. Never dereferenced.
#[derive(Debug)]
#[repr(C)]
pub struct cachalot_allocator {
    _opaque: [u8; 0],
}

/// A stack under description. Only the library knows the contents.
#[derive(Debug)]
#[repr(C)]
pub struct cachalot_stack {
    _opaque: [u8; 0],
}

/// The driver's stream. Only the driver knows the contents.
#[derive(Debug)]
#[repr(C)]
pub struct CUstream_st {
    _opaque: [u8; 0],
}

pub type cachalot_stream = *mut CUstream_st;
pub type cachalot_status = i32;
pub type cachalot_route = i32;
pub type cachalot_advice = i32;
pub type cachalot_park_kind = i32;
pub type cachalot_park_mode = i32;
pub type cachalot_park_order = i32;
pub type cachalot_park_state = i32;
pub type cachalot_outcome = i32;
pub type cachalot_bound = i32;
pub type cachalot_stage = i32;
pub type cachalot_tune_stage = i32;
pub type cachalot_action = i32;
pub type cachalot_format = i32;

pub const CACHALOT_SIMULATED: u32 = 0x1;
pub const CACHALOT_NO_CACHING: u32 = 0x2;
pub const CACHALOT_ASK_STREAM_ID: u32 = 0x4;
pub const CACHALOT_PEER_ACCESS: u32 = 0x8;
pub const CACHALOT_ENVIRONMENT: u32 = 0x10;
pub const CACHALOT_OPEN_LATER: u32 = 0x20;
pub const CACHALOT_HOST: u32 = 0x40;
pub const CACHALOT_STREAMS_REPORTED: u32 = 0x80;

pub const CACHALOT_NO_LIMIT: u64 = u64::MAX;

pub const CACHALOT_EXTENT_SEGMENT: u32 = 0x1;

pub const CACHALOT_COLD: cachalot_advice = 1;
pub const CACHALOT_HOT: cachalot_advice = 2;

pub const CACHALOT_BUFFER_FIXED: u32 = 0x1;
pub const CACHALOT_BUFFER_GAP: u32 = 0x2;

pub const CACHALOT_POOL_USE_ON_OOM: u32 = 0x1;
pub const CACHALOT_POOL_NO_SPLIT: u32 = 0x2;

pub const CACHALOT_ROUTE_ALL: cachalot_route = 1;
pub const CACHALOT_ROUTE_STREAM: cachalot_route = 2;
pub const CACHALOT_ROUTE_THREAD: cachalot_route = 3;

pub const CACHALOT_PARK_TAG: cachalot_park_kind = 1;
pub const CACHALOT_PARK_STREAM: cachalot_park_kind = 2;

pub const CACHALOT_PARK_KEEP: cachalot_park_mode = 0;
pub const CACHALOT_PARK_DROP: cachalot_park_mode = 1;
pub const CACHALOT_PARK_ZERO: cachalot_park_mode = 2;

pub const CACHALOT_PARK_AFTER_DEVICE: cachalot_park_order = 0;
pub const CACHALOT_PARK_AFTER_STREAMS: cachalot_park_order = 1;

pub const CACHALOT_AWAKE: cachalot_park_state = 1;
pub const CACHALOT_ASLEEP: cachalot_park_state = 2;
pub const CACHALOT_WAKING: cachalot_park_state = 3;
pub const CACHALOT_LENT: cachalot_park_state = 4;

pub const CACHALOT_WOULD_HIT: cachalot_outcome = 1;
pub const CACHALOT_WOULD_OBTAIN: cachalot_outcome = 2;
pub const CACHALOT_WOULD_EXPAND: cachalot_outcome = 3;
pub const CACHALOT_WOULD_RELEASE: cachalot_outcome = 4;
pub const CACHALOT_WOULD_FAIL: cachalot_outcome = 5;

pub const CACHALOT_BOUND_NONE: cachalot_bound = 0;
pub const CACHALOT_BOUND_LIMIT: cachalot_bound = 1;
pub const CACHALOT_BOUND_FRACTION: cachalot_bound = 2;
pub const CACHALOT_BOUND_DEVICE: cachalot_bound = 3;
pub const CACHALOT_BOUND_OTHER: cachalot_bound = 4;
pub const CACHALOT_BOUND_TAG: cachalot_bound = 5;

pub const CACHALOT_STAGE_WAITING: cachalot_stage = 1;
pub const CACHALOT_STAGE_OBSERVING: cachalot_stage = 2;
pub const CACHALOT_STAGE_PLANNING: cachalot_stage = 3;
pub const CACHALOT_STAGE_READY: cachalot_stage = 4;
pub const CACHALOT_STAGE_SERVING: cachalot_stage = 5;

pub const CACHALOT_TUNE_OFF: cachalot_tune_stage = 1;
pub const CACHALOT_TUNE_RECORDING: cachalot_tune_stage = 2;
pub const CACHALOT_TUNE_SEARCHING: cachalot_tune_stage = 3;
pub const CACHALOT_TUNE_TRIAL: cachalot_tune_stage = 4;

pub const CACHALOT_ACTION_ALLOC: cachalot_action = 1;
pub const CACHALOT_ACTION_FREE_REQUESTED: cachalot_action = 2;
pub const CACHALOT_ACTION_FREE_COMPLETED: cachalot_action = 3;
pub const CACHALOT_ACTION_SEGMENT_ALLOC: cachalot_action = 4;
pub const CACHALOT_ACTION_SEGMENT_FREE: cachalot_action = 5;
pub const CACHALOT_ACTION_SEGMENT_MAP: cachalot_action = 6;
pub const CACHALOT_ACTION_SEGMENT_UNMAP: cachalot_action = 7;
pub const CACHALOT_ACTION_OOM: cachalot_action = 8;
pub const CACHALOT_ACTION_SETTINGS_CHANGED: cachalot_action = 9;
pub const CACHALOT_ACTION_SETTINGS_TAKEN_BACK: cachalot_action = 10;
pub const CACHALOT_ACTION_SPILLED: cachalot_action = 11;

pub const CACHALOT_JSON: cachalot_format = 1;
pub const CACHALOT_PICKLE: cachalot_format = 2;

pub const CACHALOT_WITHOUT_EVENTS: u32 = 0x1;

pub type cachalot_shortage_callback =
    Option<unsafe extern "C" fn(userdata: *mut c_void, device: c_int, bytes: usize) -> c_int>;
pub type cachalot_oom_callback =
    Option<unsafe extern "C" fn(userdata: *mut c_void, report: *const cachalot_oom_report)>;
pub type cachalot_mapping_callback =
    Option<unsafe extern "C" fn(userdata: *mut c_void, device: c_int, address: *mut c_void, bytes: usize)>;
pub type cachalot_statistic_visitor =
    Option<unsafe extern "C" fn(userdata: *mut c_void, key: *const c_char, value: i64) -> c_int>;
pub type cachalot_setting_visitor =
    Option<unsafe extern "C" fn(userdata: *mut c_void, setting: *const cachalot_setting) -> c_int>;
pub type cachalot_trace_visitor =
    Option<unsafe extern "C" fn(userdata: *mut c_void, entry: *const cachalot_trace_entry) -> c_int>;
pub type cachalot_stack_callback =
    Option<unsafe extern "C" fn(userdata: *mut c_void, stack: *mut cachalot_stack, action: cachalot_action)>;
pub type cachalot_writer =
    Option<unsafe extern "C" fn(userdata: *mut c_void, text: *const c_char, bytes: usize) -> c_int>;

pub type cachalot_torch_filter = Option<unsafe extern "C" fn(userdata: *mut c_void, stream: cachalot_stream) -> c_int>;
pub type cachalot_torch_event_callback =
    Option<unsafe extern "C" fn(userdata: *mut c_void, event: *const cachalot_torch_event)>;
pub type cachalot_torch_segment_visitor =
    Option<unsafe extern "C" fn(userdata: *mut c_void, segment: *const cachalot_torch_segment) -> c_int>;
pub type cachalot_torch_pool_visitor = Option<
    unsafe extern "C" fn(userdata: *mut c_void, pool: cachalot_pool, small_bytes: u64, large_bytes: u64) -> c_int,
>;
pub type cachalot_torch_let_go = Option<unsafe extern "C" fn(userdata: *mut c_void)>;
pub type cachalot_torch_supply =
    Option<unsafe extern "C" fn(userdata: *mut c_void, bytes: usize, device: c_int) -> *mut c_void>;
pub type cachalot_torch_take_back =
    Option<unsafe extern "C" fn(userdata: *mut c_void, segment: *mut c_void, bytes: usize, device: c_int)>;

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C)]
pub struct cachalot_pool {
    pub first: u64,
    pub second: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct cachalot_range {
    pub allocator: *const cachalot_allocator,
    pub number: u64,
    pub base: *mut c_void,
    pub bytes: usize,
    pub page_bytes: usize,
    pub device: c_int,
    pub reserved: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct cachalot_options {
    pub struct_size: usize,
    pub flags: u32,
    pub device_count: u32,
    pub devices: *const c_int,
    pub contexts: *const *mut c_void,
    pub config: *const c_char,
    pub limit_bytes: u64,
    pub simulated_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct cachalot_block {
    pub struct_size: usize,
    pub base: *mut c_void,
    pub bytes: usize,
    pub requested_bytes: usize,
    pub stream_id: u64,
    pub segment_base: *mut c_void,
    pub segment_bytes: usize,
    pub device: c_int,
    pub reserved: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct cachalot_forecast {
    pub struct_size: usize,
    pub address: *mut c_void,
    pub bytes: usize,
    pub outcome: cachalot_outcome,
    pub reserved: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C)]
pub struct cachalot_fit {
    pub struct_size: usize,
    pub served: usize,
    pub new_bytes: u64,
    pub reserved_bytes: u64,
    pub device_free_bytes: u64,
    pub bound: cachalot_bound,
    pub reserved: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C)]
pub struct cachalot_calls {
    pub calls: u64,
    pub us: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct cachalot_page_statistics {
    pub struct_size: usize,
    pub mapped_bytes: u64,
    pub spare_bytes: u64,
    pub stale_bytes: u64,
    pub pinned_bytes: u64,
    pub moved_bytes: u64,
    pub reserve: cachalot_calls,
    pub unreserve: cachalot_calls,
    pub create: cachalot_calls,
    pub destroy: cachalot_calls,
    pub map: cachalot_calls,
    pub set_access: cachalot_calls,
    pub unmap: cachalot_calls,
    pub export_fd: cachalot_calls,
    pub stalls: u64,
    pub longest_stall_us: u64,
    pub consolidated_bytes: u64,
    pub parked_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C)]
pub struct cachalot_reclaim_statistics {
    pub struct_size: usize,
    pub looks: u64,
    pub given_back_bytes: u64,
    pub given_back_units: u64,
    pub obtained_again_bytes: u64,
    pub obtained_again_units: u64,
    pub too_early_units: u64,
    pub driver_us: u64,
    pub observed_units: u64,
    pub idle_bytes: u64,
    pub needed_soon_bytes: u64,
    pub busy_bytes: u64,
    pub unpaid_bytes: u64,
    pub budget_us: u64,
    pub caution: u64,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct cachalot_setting {
    pub struct_size: usize,
    pub key: *const c_char,
    pub policies: *const c_char,
    pub values: *const c_char,
    pub default_value: *const c_char,
    pub example: *const c_char,
    pub effect: *const c_char,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct cachalot_park_target {
    pub struct_size: usize,
    pub tag: u64,
    pub stream: cachalot_stream,
    pub kind: cachalot_park_kind,
    pub reserved: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct cachalot_park_options {
    pub struct_size: usize,
    pub mode: cachalot_park_mode,
    pub order: cachalot_park_order,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct cachalot_park_report {
    pub struct_size: usize,
    pub mapped_bytes: u64,
    pub parked_bytes: u64,
    pub kept_bytes: u64,
    pub pinned_bytes: u64,
    pub ordinary_bytes: u64,
    pub host_bytes: u64,
    pub idle_host_bytes: u64,
    pub state: cachalot_park_state,
    pub reserved: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct cachalot_remaining_memory {
    pub struct_size: usize,
    pub used_bytes: u64,
    pub block_bytes: u64,
    pub pending_bytes: u64,
    pub cached_bytes: u64,
    pub spare_bytes: u64,
    pub leaked_bytes: u64,
    pub other_bytes: u64,
    pub pinned_bytes: u64,
    pub parked_bytes: u64,
    pub spilled_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct cachalot_tag_limits {
    pub struct_size: usize,
    pub max_bytes: u64,
    pub low_bytes: u64,
    pub weight: u32,
    pub clear: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct cachalot_tag_report {
    pub struct_size: usize,
    pub charge_bytes: u64,
    pub live_bytes: u64,
    pub cached_bytes: u64,
    pub max_bytes: u64,
    pub low_bytes: u64,
    pub refusals: u64,
    pub given_bytes: u64,
    pub weight: u32,
    pub clear: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct cachalot_extent {
    pub offset: u64,
    pub bytes: u64,
    pub memory: u64,
    pub memory_offset: u64,
    pub memory_bytes: u64,
    pub flags: u32,
    pub reserved: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C)]
pub struct cachalot_counter {
    pub current: i64,
    pub peak: i64,
    pub allocated: i64,
    pub freed: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct cachalot_statistics {
    pub struct_size: usize,
    pub allocations: cachalot_counter,
    pub allocated_bytes: cachalot_counter,
    pub active_blocks: cachalot_counter,
    pub active_bytes: cachalot_counter,
    pub requested_bytes: cachalot_counter,
    pub inactive_split_bytes: cachalot_counter,
    pub segments: cachalot_counter,
    pub reserved_bytes: cachalot_counter,
    pub device_allocs: u64,
    pub device_frees: u64,
    pub alloc_retries: u64,
    pub ooms: u64,
    pub leaked_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct cachalot_plan_report {
    pub struct_size: usize,
    pub announced: u64,
    pub plans: u64,
    pub given_up: u64,
    pub no_memory: u64,
    pub peak_bytes: u64,
    pub lower_bound_bytes: u64,
    pub segment_bytes: u64,
    pub served: u64,
    pub lasting: u64,
    pub extra: u64,
    pub missing: u64,
    pub reordered: u64,
    pub occupied: u64,
    pub stage: cachalot_stage,
    pub reserved: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct cachalot_buffer {
    pub start: u64,
    pub end: u64,
    pub bytes: u64,
    pub alignment: u64,
    pub offset: u64,
    pub flags: u32,
    pub reserved: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct cachalot_buffer_plan {
    pub struct_size: usize,
    pub peak_bytes: u64,
    pub lower_bound_bytes: u64,
    pub optimal: i32,
    pub reserved: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct cachalot_tune_report {
    pub struct_size: usize,
    pub windows: u64,
    pub searches: u64,
    pub candidates: u64,
    pub without_gain: u64,
    pub switches: u64,
    pub held: u64,
    pub taken_back: u64,
    pub search_us: u64,
    pub before_bytes: u64,
    pub predicted_bytes: u64,
    pub after_bytes: u64,
    pub given_back_bytes: u64,
    pub retired_bytes: u64,
    pub stage: cachalot_tune_stage,
    pub tuned: i32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct cachalot_oom_report {
    pub struct_size: usize,
    pub text: *const c_char,
    pub requested_bytes: usize,
    pub block_bytes: usize,
    pub segment_bytes: usize,
    pub device_total_bytes: u64,
    pub device_free_bytes: u64,
    pub process_bytes: u64,
    pub limit_bytes: u64,
    pub allocated_bytes: u64,
    pub reserved_bytes: u64,
    pub pending_bytes: u64,
    pub private_free_bytes: u64,
    pub largest_free_bytes: u64,
    pub largest_free_elsewhere_bytes: u64,
    pub device: c_int,
    pub capturing: c_int,
    pub spare_bytes: u64,
    pub pinned_bytes: u64,
    pub parked_bytes: u64,
    pub tag: u64,
    pub tag_bytes: u64,
    pub tag_max_bytes: u64,
    pub tag_refused: u32,
    pub reserved: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct cachalot_trace_entry {
    pub struct_size: usize,
    pub address: u64,
    pub bytes: u64,
    pub stream_id: u64,
    pub time_us: u64,
    pub action: cachalot_action,
    pub reserved: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct cachalot_snapshot_options {
    pub struct_size: usize,
    pub path: *const c_char,
    pub format: cachalot_format,
    pub flags: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct cachalot_device_info {
    pub struct_size: usize,
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub process_bytes: u64,
    pub reserved_bytes: u64,
    pub limit_bytes: u64,
    pub leaked_bytes: u64,
    pub ordinal: c_int,
    pub simulated: c_int,
    pub virtual_memory: c_int,
    pub reserved: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct cachalot_torch_event {
    pub struct_size: usize,
    pub address: u64,
    pub bytes: u64,
    pub stream_id: u64,
    pub pool: cachalot_pool,
    pub action: cachalot_action,
    pub device: c_int,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct cachalot_torch_block {
    pub base: *mut c_void,
    pub bytes: usize,
    pub requested_bytes: usize,
    pub allocated: c_int,
    pub active: c_int,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct cachalot_torch_segment {
    pub struct_size: usize,
    pub base: *mut c_void,
    pub bytes: usize,
    pub stream_id: u64,
    pub pool: cachalot_pool,
    pub blocks: *const cachalot_torch_block,
    pub block_count: usize,
    pub device: c_int,
    pub large: c_int,
    pub expandable: c_int,
    pub number: u32,
}
