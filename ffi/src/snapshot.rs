//! Snapshots as JSON, with the keys of `torch.cuda.memory._snapshot()`.

use crate::host::Host;
use cachalot_core::rounding::PoolKind;
use cachalot_core::snapshot::{SnapshotBlock, SnapshotSegment};
use cachalot_core::trace::{Action, TraceEntry};
use cachalot_core::units::DeviceIndex;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Bytes that are handed to the program at a time.
const PART_BYTES: usize = 64 << 10;

/// Why a snapshot could not be written.
pub(crate) enum Error {
    /// The program asked to stop.
    Stopped,
    /// It could not be written.
    Io(io::Error),
}

/// The whole of it.
#[derive(Serialize)]
struct Snapshot {
    segments: Vec<Segment>,
    device_traces: Vec<Vec<Event>>,
    allocator_settings: Settings,
}

#[derive(Serialize)]
struct Settings {
    #[serde(rename = "PYTORCH_CUDA_ALLOC_CONF")]
    config: String,
}

#[derive(Serialize)]
struct Segment {
    device: u32,
    address: u64,
    total_size: u64,
    allocated_size: u64,
    active_size: u64,
    requested_size: u64,
    stream: u64,
    #[serde(rename = "segment_type")]
    kind: &'static str,
    #[serde(rename = "segment_pool_id")]
    pool: [u64; 2],
    is_expandable: bool,
    /// Stacks are not recorded; readers expect the key.
    frames: [u8; 0],
    blocks: Vec<Block>,
}

#[derive(Serialize)]
struct Block {
    address: u64,
    size: u64,
    requested_size: u64,
    state: &'static str,
    frames: [u8; 0],
}

#[derive(Serialize)]
struct Event {
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    addr: Option<u64>,
    /// In the place of `addr`, for a request that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    device_free: Option<u64>,
    size: u64,
    stream: u64,
    time_us: u64,
    frames: [u8; 0],
}

impl From<&SnapshotBlock> for Block {
    fn from(block: &SnapshotBlock) -> Self {
        Self {
            address: block.address.0,
            size: block.size,
            requested_size: block.requested_size,
            state: block.state.name(),
            frames: [],
        }
    }
}

impl From<&SnapshotSegment> for Segment {
    fn from(segment: &SnapshotSegment) -> Self {
        Self {
            device: segment.device.0,
            address: segment.address.0,
            total_size: segment.total_size,
            allocated_size: segment.allocated_size(),
            active_size: segment.active_size(),
            requested_size: segment.requested_size(),
            stream: segment.stream.0,
            kind: match segment.kind {
                PoolKind::Small => "small",
                PoolKind::Large => "large",
            },
            pool: [segment.pool.0, segment.pool.1],
            is_expandable: segment.is_expandable,
            frames: [],
            blocks: segment.blocks.iter().map(Block::from).collect(),
        }
    }
}

impl From<&TraceEntry> for Event {
    fn from(entry: &TraceEntry) -> Self {
        let failed = entry.action == Action::OutOfMemory;
        Self {
            action: entry.action.name(),
            addr: (!failed).then_some(entry.addr.0),
            device_free: failed.then_some(entry.addr.0),
            size: entry.size,
            stream: entry.stream.0,
            time_us: entry.time_us,
            frames: [],
        }
    }
}

impl Snapshot {
    /// Looks at everything, one heap after the other.
    fn take(host: &Host) -> Self {
        let trace = |device: DeviceIndex| {
            let mut events = Vec::new();
            // The device is the allocator's own.
            let _ = host.allocator.for_each_trace_entry(device, |entry| events.push(Event::from(entry)));
            events
        };
        let config = host.devices().next().and_then(|device| host.allocator.config(device).ok());
        Self {
            segments: host.allocator.snapshot().iter().map(Segment::from).collect(),
            device_traces: host.devices().map(trace).collect(),
            allocator_settings: Settings { config: config.map_or_else(String::new, |config| config.to_string()) },
        }
    }
}

/// Hands what is written to a function of the program, which says whether to go on.
struct Parts<F>(F);

impl<F: FnMut(&[u8]) -> bool> Write for Parts<F> {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        if (self.0)(part) { Ok(part.len()) } else { Err(io::ErrorKind::Other.into()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a snapshot in parts. `write` says whether to go on.
pub(crate) fn write(host: &Host, mut write: impl FnMut(&[u8]) -> bool) -> Result<(), Error> {
    let mut stopped = false;
    let mut parts = Parts(|part: &[u8]| {
        stopped = stopped || !write(part);
        !stopped
    });
    let written = write_to(host, &mut parts);
    if stopped { Err(Error::Stopped) } else { written.map_err(Error::Io) }
}

/// Writes a snapshot to a file, which has that name once it is complete.
pub(crate) fn write_file(host: &Host, path: &Path) -> io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".part");
    let written =
        File::create(&unfinished).and_then(|file| write_to(host, file)).and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        // The first failure is the one to tell.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Writes a snapshot.
fn write_to(host: &Host, to: impl Write) -> io::Result<()> {
    let mut buffered = BufWriter::with_capacity(PART_BYTES, to);
    serde_json::to_writer(&mut buffered, &Snapshot::take(host))?;
    buffered.flush()
}
