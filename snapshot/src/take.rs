//! Takes snapshots of an allocator: the core's data under PyTorch's names.

use crate::file::Format;
use crate::model::{Block, Details, Event, Segment, Settings, Snapshot};
use crate::other::Other;
use crate::stack::Stack;
use crate::stream::Each;
use cachalot_core::rounding::INTERVALS;
use cachalot_core::{
    Action, Allocator, Config, DeviceIndex, DeviceMemory, Lock, PoolId, PoolKind, SnapshotBlock, SnapshotSegment,
    Storage, TraceEntry, TraceExtent,
};
use std::sync::Arc;

/// The state of an allocator, ready to be written.
#[derive(Debug)]
pub struct Taken<F> {
    segments: Vec<SnapshotSegment>,
    /// The events of each device.
    traces: Vec<Vec<TraceEntry>>,
    /// The pools of the events of each device, if they are known.
    pools: Vec<Vec<PoolId>>,
    settings: Settings,
    /// Returns the stack for the number of a call site.
    stack: F,
}

impl<F: Fn(u32) -> Stack> Taken<F> {
    /// Creates a snapshot of given data: the segments by address, the events of each device, and
    /// the stacks. `stack` as in [`of`](Self::of).
    pub fn new(segments: Vec<SnapshotSegment>, traces: Vec<Vec<TraceEntry>>, config: &Config, stack: F) -> Self {
        Self { segments, traces, pools: Vec::new(), settings: settings(config), stack }
    }

    /// Takes a snapshot of an allocator. Reads the heaps one after another, then the traces, so an
    /// exact picture requires that the program pauses. `stack` returns the stack for the number of
    /// a [call site](cachalot_core::Host::call_site). For equal numbers `stack` must return clones
    /// of one stack, and another clone must stay alive.
    pub fn of<D: DeviceMemory, R: Lock, S: Storage>(allocator: &Allocator<D, R, S>, stack: F) -> Self {
        let devices = || (0..allocator.device_count()).map(DeviceIndex);
        let mut taken = Self::without_events(allocator, stack);
        let trace = |device| {
            let mut entries = Vec::new();
            // Cannot fail: the device belongs to the allocator.
            let _ = allocator.trace(device).map(|trace| trace.for_each(|entry| entries.push(*entry)));
            entries
        };
        taken.traces = devices().map(trace).collect();
        let mut extent = TraceExtent::default();
        for one in devices().filter_map(|device| allocator.trace(device).map(|trace| trace.extent()).ok()) {
            extent.capacity = extent.capacity.max(one.capacity);
            extent.dropped += one.dropped;
        }
        taken.with_extent(extent)
    }

    /// Takes a snapshot of an allocator as [`of`](Self::of) does, with empty traces.
    pub fn without_events<D: DeviceMemory, R: Lock, S: Storage>(allocator: &Allocator<D, R, S>, stack: F) -> Self {
        let count = allocator.device_count();
        let settings = (0..count).next().map(|device| allocator.settings(DeviceIndex(device)));
        let config = settings.and_then(Result::ok).map(|settings| settings.config());
        let traces = vec![Vec::new(); count as usize];
        Self::new(allocator.snapshot(), traces, &config.unwrap_or_default(), stack).with_extent(TraceExtent::default())
    }

    /// Joins the snapshots of allocators of one device each, with the device's number. Several may
    /// be of the same device. `None` if there are none.
    pub fn joined(parts: impl IntoIterator<Item = (u32, Self)>) -> Option<Self> {
        parts.into_iter().map(|(device, part)| part.numbered(device)).reduce(|mut all, mut one| {
            all.segments.append(&mut one.segments);
            all.traces.resize(all.traces.len().max(one.traces.len()), Vec::new());
            for (all, mut one) in all.traces.iter_mut().zip(one.traces) {
                all.append(&mut one);
                all.sort_by_key(|entry| entry.time_us);
            }
            let capacity = &mut all.settings.trace_alloc_max_entries;
            *capacity = (*capacity).max(one.settings.trace_alloc_max_entries);
            let overflowed = &mut all.settings.trace_alloc_overflowed;
            *overflowed = (*overflowed).max(one.settings.trace_alloc_overflowed);
            all
        })
    }

    /// Gives the only device a number.
    fn numbered(mut self, device: u32) -> Self {
        self.segments.iter_mut().for_each(|segment| segment.device = DeviceIndex(device));
        let events = std::mem::take(&mut self.traces).into_iter().flatten().collect();
        self.traces.resize(device as usize, Vec::new());
        self.traces.push(events);
        self
    }

    /// Reports how much of the history the events are.
    #[must_use]
    pub fn with_extent(mut self, extent: TraceExtent) -> Self {
        self.settings.trace_alloc_max_entries = Some(signed(extent.capacity));
        self.settings.trace_alloc_overflowed = Some(extent.dropped > 0);
        self
    }

    /// Adds the pool of each event, for each device.
    #[must_use]
    pub fn with_pools(self, pools: Vec<Vec<PoolId>>) -> Self {
        Self { pools, ..self }
    }

    /// Returns the snapshot, ready to be written once. The entries are built during the write.
    pub fn snapshot(
        &self,
    ) -> Snapshot<Each<impl Iterator<Item = Segment>>, Each<impl Iterator<Item: serde::Serialize>>> {
        let traces = self.traces.iter().enumerate().map(|(device, entries)| {
            let pools = self.pools.get(device).into_iter().flatten().map(Some).chain(std::iter::repeat(None));
            Each::new(entries.iter().zip(pools).map(|(entry, pool)| event(entry, pool, &self.stack)))
        });
        Snapshot {
            segments: Each::new(self.segments.iter().map(|part| segment(part, &self.stack))),
            device_traces: Each::new(traces),
            allocator_settings: Some(self.settings.clone()),
            external_annotations: Some(Vec::new()),
            host_segments: None,
            host_traces: None,
            other: Other::new(),
        }
    }

    /// Writes the snapshot, in parts of up to 64 KiB.
    ///
    /// # Errors
    /// The errors of the writer.
    pub fn write(&self, to: impl std::io::Write, format: Format) -> std::io::Result<()> {
        crate::file::write(to, format, &self.snapshot())
    }

    /// Writes the snapshot to a file through [`cachalot_atomic_file::write`].
    ///
    /// # Errors
    /// The errors of the file system. After a failure a regular file has the previous contents.
    pub fn write_file(&self, path: &std::path::Path, format: Format) -> std::io::Result<()> {
        crate::file::write_file(path, format, &self.snapshot())
    }
}

/// Converts the number of a stream or an address to PyTorch's signed form.
fn signed(number: u64) -> i64 {
    number.cast_signed()
}

/// Returns bytes that are written only if there are some, because PyTorch's snapshots never have
/// them.
fn some(bytes: u64) -> Option<u64> {
    (bytes > 0).then_some(bytes)
}

fn segment(segment: &SnapshotSegment, stack: &impl Fn(u32) -> Stack) -> Segment {
    Segment {
        device: segment.device.0.into(),
        address: segment.address.0,
        total_size: segment.total_size,
        allocated_size: Some(segment.allocated_size()),
        active_size: Some(segment.active_size()),
        requested_size: Some(segment.requested_size()),
        stream: signed(segment.stream.0),
        segment_type: Some(
            match segment.kind {
                PoolKind::Small => "small",
                PoolKind::Large => "large",
            }
            .into(),
        ),
        segment_pool_id: Some((segment.pool.0, segment.pool.1)),
        is_expandable: Some(segment.is_expandable),
        parked_size: some(segment.parked),
        spilled_size: some(segment.spilled),
        frames: Some(stack(segment.site)),
        blocks: segment.blocks.iter().map(|part| block(part, stack)).collect(),
        other: Other::new(),
    }
}

fn block(block: &SnapshotBlock, stack: &impl Fn(u32) -> Stack) -> Block {
    Block {
        address: Some(block.address.0),
        size: block.size,
        requested_size: Some(block.requested_size),
        spilled_size: some(block.spilled),
        state: block.state.name().into(),
        frames: Some(stack(block.site)),
        history: None,
        other: Other::new(),
    }
}

fn event(entry: &TraceEntry, pool: Option<&PoolId>, stack: &impl Fn(u32) -> Stack) -> Event {
    let failed = entry.action == Action::OutOfMemory;
    Event {
        action: entry.action.name().into(),
        addr: (!failed).then_some(entry.addr.0),
        size: signed(entry.size),
        stream: signed(entry.stream.0),
        time_us: Some(signed(entry.time_us)),
        frames: Some(stack(entry.site)),
        details: Some(Arc::new(Details {
            device_free: failed.then_some(signed(entry.addr.0)),
            compile_context: Some("N/A".into()),
            user_metadata: Some("".into()),
            pool_id: pool.map(|pool| (pool.0, pool.1)),
            spilled_size: (entry.action == Action::Spilled).then_some(entry.size),
            ..Details::default()
        })),
    }
}

/// Converts the settings to PyTorch's names (`torch/csrc/cuda/Module.cpp`, 2.15). No limit becomes
/// -1, because PyTorch writes a size with all bits set as -1.
fn settings(config: &Config) -> Settings {
    let bytes = |mib: u64| mib << 20;
    let or_no_limit = |bytes: Option<u64>| Some(bytes.map_or(-1, signed));
    let divisions = config.roundup_power2_divisions().intervals();
    let divisions = (0..INTERVALS).map(|interval| ((1_u64 << interval).to_string(), divisions[interval].into()));
    Settings {
        string: Some(config.to_string()),
        max_split_size: or_no_limit(config.max_split_size()),
        garbage_collection_threshold: Some(config.garbage_collection_threshold().unwrap_or(0.0)),
        expandable_segments: Some(config.expandable_segments()),
        pinned_num_register_threads: Some(config.passed_on("pinned_num_register_threads").map_or(1, signed)),
        release_lock_on_cudamalloc: Some(config.passed_on("release_lock_on_cudamalloc").is_some()),
        pinned_use_cuda_host_register: Some(config.passed_on("pinned_use_cuda_host_register").is_some()),
        graph_capture_record_stream_reuse: Some(config.graph_capture_record_stream_reuse()),
        max_round_threshold: or_no_limit(config.passed_on("pinned_max_round_threshold_mb").map(bytes)),
        max_cached_size: or_no_limit(config.passed_on("pinned_max_cached_size_mb").map(bytes)),
        roundup_power2_divisions: Some(divisions.collect()),
        trace_alloc_max_entries: None,
        trace_alloc_overflowed: None,
        other: Other::new(),
    }
}
