//! The data of a snapshot. Keys absent in some version of `PyTorch` are options. Unknown keys are
//! preserved.

use crate::lenient;
use crate::other::Other;
use crate::stack::Stack;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A text, usually a constant.
pub type Text = Cow<'static, str>;

/// A snapshot. Any serializable lists can be written. Reading produces vectors.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(bound(deserialize = "Segments: Deserialize<'de>, Traces: Deserialize<'de> + Default"))]
pub struct Snapshot<Segments = Vec<Segment>, Traces = Vec<Vec<Event>>> {
    /// Every segment with its blocks, by address.
    pub segments: Segments,
    /// The events of each device, oldest first. Every device of a segment has a list. Empty if the
    /// file has no traces.
    #[serde(default)]
    pub device_traces: Traces,
    /// The settings, since 2.1.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient::object")]
    pub allocator_settings: Option<Settings>,
    /// Marks of profilers, since 2.6.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient::list")]
    pub external_annotations: Option<Vec<Annotation>>,
    /// Segments of pinned host memory, since 2.10.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient::list")]
    pub host_segments: Option<Vec<Segment>>,
    /// Events of pinned host memory.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient::list")]
    pub host_traces: Option<Vec<Event>>,
    /// Unknown keys.
    #[serde(flatten)]
    pub other: Other,
}

impl<Segments, Traces> Snapshot<Segments, Traces> {
    /// Replaces the lists of events and keeps all fields besides.
    pub(crate) fn map_traces<T>(self, map: impl FnOnce(Traces) -> T) -> Snapshot<Segments, T> {
        let Self { segments, device_traces, allocator_settings, external_annotations, host_segments, .. } = self;
        let (host_traces, other) = (self.host_traces, self.other);
        let device_traces = map(device_traces);
        Snapshot {
            segments,
            device_traces,
            allocator_settings,
            external_annotations,
            host_segments,
            host_traces,
            other,
        }
    }
}

/// A segment, or a contiguous mapped part of an expandable segment. Sizes are in bytes.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Segment {
    /// The device, or -1 for host memory.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub device: i64,
    /// Address of the first byte.
    #[serde(deserialize_with = "lenient::unsigned")]
    pub address: u64,
    /// Length: the sum of the blocks' lengths.
    #[serde(deserialize_with = "lenient::unsigned")]
    pub total_size: u64,
    /// Bytes in blocks allocated by the program.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient::unsigned_or_none")]
    pub allocated_size: Option<u64>,
    /// Bytes that cannot be reused.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient::unsigned_or_none")]
    pub active_size: Option<u64>,
    /// Bytes requested by the program for the allocated blocks.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient::unsigned_or_none")]
    pub requested_size: Option<u64>,
    /// The stream of the segment.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub stream: i64,
    /// `small` or `large`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment_type: Option<Text>,
    /// The pool. `(0, 0)` is the default pool.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient::pair")]
    pub segment_pool_id: Option<(u64, u64)>,
    /// Whether the segment is part of an expandable segment.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient::or_none")]
    pub is_expandable: Option<bool>,
    /// Bytes that are parked: addresses without memory of the device. Only in cachalot's snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient::unsigned_or_none")]
    pub parked_size: Option<u64>,
    /// Bytes that lie on the host. Only in cachalot's snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient::unsigned_or_none")]
    pub spilled_size: Option<u64>,
    /// Stack of the segment's allocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames: Option<Stack>,
    /// The blocks, by address. The blocks tile the segment.
    pub blocks: Vec<Block>,
    /// Unknown keys.
    #[serde(flatten)]
    pub other: Other,
}

impl Segment {
    /// Returns whether the pool is known, and not the default pool.
    pub fn is_private(&self) -> bool {
        is_private(self.segment_pool_id)
    }
}

/// Returns whether a pool is known, and not the default pool.
pub fn is_private(pool: Option<(u64, u64)>) -> bool {
    pool.is_some_and(|pool| pool != (0, 0))
}

/// A block. Sizes are in bytes.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Block {
    /// Address of the first byte, since 2.1.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient::unsigned_or_none")]
    pub address: Option<u64>,
    /// Length.
    #[serde(deserialize_with = "lenient::unsigned")]
    pub size: u64,
    /// Bytes requested by the program in the latest allocation of the block.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient::unsigned_or_none")]
    pub requested_size: Option<u64>,
    /// Bytes that lie on the host. Only in cachalot's snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient::unsigned_or_none")]
    pub spilled_size: Option<u64>,
    /// `active_allocated`, `active_pending_free` or `inactive`.
    pub state: Text,
    /// Stack of the block's allocation. See [`stack`](Self::stack).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames: Option<Stack>,
    /// The allocations in the block, the latest first, in the place of `frames` in 2.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<Vec<PastAllocation>>,
    /// Unknown keys.
    #[serde(flatten)]
    pub other: Other,
}

/// An allocation in a block, in snapshots of 2.0.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PastAllocation {
    /// Stack of the allocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames: Option<Stack>,
    /// The address, the requested size, and unknown keys.
    #[serde(flatten)]
    pub other: Other,
}

impl Block {
    /// Returns the stack of the block's allocation, if one was recorded.
    pub fn stack(&self) -> Option<&Stack> {
        let latest = || self.history.as_ref()?.first()?.frames.as_ref();
        self.frames.as_ref().filter(|stack| !stack.is_empty()).or_else(latest).filter(|stack| !stack.is_empty())
    }
}

/// An event of a trace. A trace has millions of events, so rare and repeated values are in
/// [`Details`].
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Event {
    /// The kind: `alloc`, `free_requested`, `free_completed`, `segment_alloc`, `segment_free`,
    /// `segment_map`, `segment_unmap`, `snapshot`, `oom`, `annotate`.
    pub action: Text,
    /// The address. Absent for `oom`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addr: Option<u64>,
    /// The size in bytes. For a block, the requested size.
    pub size: i64,
    /// The stream.
    pub stream: i64,
    /// The time in microseconds since 1970, since 2.1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_us: Option<i64>,
    /// The stack of the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames: Option<Stack>,
    /// All other keys. `None` if the event has none.
    #[serde(flatten)]
    pub details: Option<Arc<Details>>,
}

/// Values of an event that are rare, or equal in most events.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Details {
    /// For an `oom`, the free bytes of the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_free: Option<i64>,
    /// The compilation in progress, or `N/A`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compile_context: Option<Text>,
    /// The program's description of the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_metadata: Option<Text>,
    /// The pool, since 2.12.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool_id: Option<(u64, u64)>,
    /// The bytes of the host that are mapped since the event (`spill`). Only in snapshots of
    /// cachalot, in events of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spilled_size: Option<u64>,
    /// Unknown keys.
    #[serde(flatten)]
    pub other: Other,
}

impl Event {
    /// Returns the bytes of the host that are mapped since the event, if it says so.
    pub fn spilled_size(&self) -> Option<u64> {
        self.details.as_ref()?.spilled_size
    }

    /// Returns the free bytes of the device at an `oom`.
    pub fn device_free(&self) -> Option<i64> {
        self.details.as_ref()?.device_free
    }

    /// Returns the pool, since 2.12.
    pub fn pool_id(&self) -> Option<(u64, u64)> {
        self.details.as_ref()?.pool_id
    }
}

/// The active settings.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// The configuration string.
    #[serde(
        rename = "PYTORCH_CUDA_ALLOC_CONF",
        skip_serializing_if = "Option::is_none",
        deserialize_with = "lenient::or_none"
    )]
    pub string: Option<String>,
    /// Blocks of more bytes are not split. -1 for no limit.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::or_none")]
    pub max_split_size: Option<i64>,
    /// Fraction of the limit above which old segments are released. 0 for never.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::or_none")]
    pub garbage_collection_threshold: Option<f64>,
    /// Whether segments are expandable.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::or_none")]
    pub expandable_segments: Option<bool>,
    /// For pinned host memory: the number of registering threads.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::or_none")]
    pub pinned_num_register_threads: Option<i64>,
    /// Whether the lock is released during `cudaMalloc`.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::or_none")]
    pub release_lock_on_cudamalloc: Option<bool>,
    /// For pinned host memory: whether `cudaHostRegister` is used.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::or_none")]
    pub pinned_use_cuda_host_register: Option<bool>,
    /// Whether a capture reuses blocks after use on other streams.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::or_none")]
    pub graph_capture_record_stream_reuse: Option<bool>,
    /// For pinned host memory: larger requests are not rounded, since 2.12.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::or_none")]
    pub max_round_threshold: Option<i64>,
    /// For pinned host memory: larger blocks are not cached, since 2.12.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::or_none")]
    pub max_cached_size: Option<i64>,
    /// Number of steps between two powers of two, by the lower power in MiB. 16 entries, from `1`
    /// to `32768`.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::whole_or_none")]
    pub roundup_power2_divisions: Option<BTreeMap<String, i64>>,
    /// The most events of a device that the history keeps.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::or_none")]
    pub trace_alloc_max_entries: Option<i64>,
    /// Whether the history of a device is cut: its first events were overwritten.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::or_none")]
    pub trace_alloc_overflowed: Option<bool>,
    /// Unknown keys.
    #[serde(flatten)]
    pub other: Other,
}

/// A mark of a profiler.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Annotation {
    /// The name of the marked range.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub name: String,
    /// `START` or `END`.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub stage: String,
    /// The device.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub device: i64,
    /// The time in microseconds since 1970.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub time_us: i64,
    /// Unknown keys.
    #[serde(flatten)]
    pub other: Other,
}
