//! What a snapshot holds. Keys that a version of `PyTorch` lacks are options; those that are not known here are kept as they are.

use crate::other::Other;
use crate::stack::Stack;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A text that is mostly one of a few.
pub type Text = Cow<'static, str>;

/// A snapshot. Its lists may be anything that is written as one; read, they are vectors.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Snapshot<Segments = Vec<Segment>, Traces = Vec<Vec<Event>>> {
    /// Every segment with its blocks, by address.
    pub segments: Segments,
    /// The events of each device, oldest first: one list for every device that a segment can name.
    pub device_traces: Traces,
    /// The settings, since 2.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocator_settings: Option<Settings>,
    /// Marks of profilers, since 2.6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_annotations: Option<Vec<Annotation>>,
    /// As `segments`, of pinned host memory, since 2.10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_segments: Option<Vec<Segment>>,
    /// As the events of one device, of pinned host memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_traces: Option<Vec<Event>>,
    /// Every other key.
    #[serde(flatten)]
    pub other: Other,
}

impl<Segments, Traces> Snapshot<Segments, Traces> {
    /// The same snapshot with other lists of events.
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

/// A segment, or one contiguous mapped part of an expandable one. Sizes are in bytes.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Segment {
    /// Its device; -1 for host memory.
    #[serde(default)]
    pub device: i64,
    /// Its first byte.
    pub address: u64,
    /// Its length, which its blocks' lengths add up to.
    pub total_size: u64,
    /// How much of it the program holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_size: Option<u64>,
    /// How much of it cannot be reused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_size: Option<u64>,
    /// How much the program asked for, of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_size: Option<u64>,
    /// The stream that it is used on.
    #[serde(default)]
    pub stream: i64,
    /// `small` or `large`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment_type: Option<Text>,
    /// Its pool; `(0, 0)` is the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment_pool_id: Option<(u64, u64)>,
    /// Whether it is part of an expandable segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_expandable: Option<bool>,
    /// Where it was obtained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames: Option<Stack>,
    /// Its blocks, by address; they tile it.
    pub blocks: Vec<Block>,
    /// Every other key.
    #[serde(flatten)]
    pub other: Other,
}

/// A block. Sizes are in bytes.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Block {
    /// Its first byte, since 2.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<u64>,
    /// Its length.
    pub size: u64,
    /// What the program asked for when it was last handed out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_size: Option<u64>,
    /// `active_allocated`, `active_pending_free` or `inactive`.
    pub state: Text,
    /// Where it was allocated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames: Option<Stack>,
    /// Every other key.
    #[serde(flatten)]
    pub other: Other,
}

/// An event of a trace. A trace has millions, so what is rare or mostly the same lies in [`Details`].
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Event {
    /// What happened: `alloc`, `free_requested`, `free_completed`, `segment_alloc`, `segment_free`, `segment_map`,
    /// `segment_unmap`, `snapshot`, `oom`, `annotate`.
    pub action: Text,
    /// Where; absent for `oom`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addr: Option<u64>,
    /// How many bytes: of blocks, as requested.
    pub size: i64,
    /// On which stream.
    pub stream: i64,
    /// When, in microseconds since 1970, since 2.1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_us: Option<i64>,
    /// Where in the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames: Option<Stack>,
    /// Everything else; `None` if there is nothing.
    #[serde(flatten)]
    pub details: Option<Arc<Details>>,
}

/// What few events have, or most have alike.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Details {
    /// Of an `oom`, how many bytes the device had free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_free: Option<i64>,
    /// What was being compiled; `N/A` if nothing was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compile_context: Option<Text>,
    /// What the program says of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_metadata: Option<Text>,
    /// In which pool, since 2.12.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool_id: Option<(u64, u64)>,
    /// Every other key.
    #[serde(flatten)]
    pub other: Other,
}

impl Event {
    /// Of an `oom`, how many bytes the device had free.
    pub fn device_free(&self) -> Option<i64> {
        self.details.as_ref()?.device_free
    }

    /// In which pool, since 2.12.
    pub fn pool_id(&self) -> Option<(u64, u64)> {
        self.details.as_ref()?.pool_id
    }
}

/// The settings that were in force.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// The string that they were given as.
    #[serde(rename = "PYTORCH_CUDA_ALLOC_CONF", skip_serializing_if = "Option::is_none")]
    pub string: Option<String>,
    /// Blocks of more bytes are not split; -1 if all are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_split_size: Option<i64>,
    /// Above which part of the limit old segments are given back; 0 if that is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub garbage_collection_threshold: Option<f64>,
    /// Whether segments are expandable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expandable_segments: Option<bool>,
    /// Of pinned host memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned_num_register_threads: Option<i64>,
    /// Whether a lock is given up meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_lock_on_cudamalloc: Option<bool>,
    /// Of pinned host memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned_use_cuda_host_register: Option<bool>,
    /// Whether blocks that other streams used are reused inside a capture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graph_capture_record_stream_reuse: Option<bool>,
    /// Of pinned host memory: larger requests are not rounded, since 2.12.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_round_threshold: Option<i64>,
    /// Of pinned host memory: larger blocks are not cached, since 2.12.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cached_size: Option<i64>,
    /// Into how many steps each power of two is divided, by its MiB: 16 of them, `1` to `32768`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roundup_power2_divisions: Option<BTreeMap<String, i64>>,
    /// Every other key.
    #[serde(flatten)]
    pub other: Other,
}

/// A mark of a profiler.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Annotation {
    /// What it marks.
    pub name: String,
    /// `START` or `END`.
    pub stage: String,
    /// On which device.
    pub device: i64,
    /// When, in microseconds since 1970.
    pub time_us: i64,
    /// Every other key.
    #[serde(flatten)]
    pub other: Other,
}
