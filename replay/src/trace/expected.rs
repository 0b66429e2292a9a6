//! The recorded end of a run: settings, statistics, and segments with blocks.

use super::error::describe_io;
use super::{BadInput, open};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// The end of a run, from `NAME.expected.json.gz` or a snapshot.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Expected {
    /// The configuration string; empty for the default configuration.
    pub config: String,
    /// Whether the record does not contain the configuration.
    #[serde(skip)]
    pub config_is_unknown: bool,
    /// The memory limit in bytes, if any.
    pub limit_bytes: Option<u64>,
    /// The error that ended the program, if any.
    pub error: Option<String>,
    /// Every statistic by flattened name. Empty if unknown.
    pub stats: BTreeMap<String, i64>,
    /// The segments by address.
    pub segments: Vec<Segment>,
    /// Statistics that the events determine only approximately: the replayed value may be smaller.
    #[serde(default)]
    pub not_in_the_record: Vec<String>,
    /// Whether only the configuration and the limit are known, because the record was written while
    /// the program ran.
    #[serde(default)]
    pub end_is_unknown: bool,
}

/// A segment, or a run of mapped memory in an expandable segment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// The device's number.
    pub device: u32,
    /// Address of the first byte.
    pub address: u64,
    /// Size in bytes.
    pub total_size: u64,
    /// Bytes of the blocks in use.
    pub allocated_size: u64,
    /// Bytes of the blocks in use or waiting for an event.
    pub active_size: u64,
    /// Requested bytes of the blocks in use or waiting for an event.
    pub requested_size: u64,
    /// The stream's handle.
    pub stream: u64,
    /// `small` or `large`.
    pub segment_type: String,
    /// The private pool, or (0, 0).
    pub segment_pool_id: (u64, u64),
    /// Whether the segment grows by mapping.
    pub is_expandable: bool,
    /// The blocks by address.
    pub blocks: Vec<ExpectedBlock>,
}

impl Segment {
    /// Returns whether the pool is not the default pool.
    pub fn is_private(&self) -> bool {
        cachalot_snapshot::is_private(Some(self.segment_pool_id))
    }
}

/// A block of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectedBlock {
    /// Address of the first byte.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// Requested size at the latest allocation of the block, or of the part from which the block
    /// grew.
    pub requested_size: u64,
    /// Whether the block is in use.
    pub state: BlockState,
}

/// The state of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockState {
    /// Allocated by the program.
    ActiveAllocated,
    /// Freed by the program, but possibly still in use on another stream.
    ActivePendingFree,
    /// Free.
    Inactive,
}

/// Reads `NAME.expected.json.gz` (or `NAME.expected.json`) next to a record, if present.
pub(super) fn beside(record: &Path, name: &str) -> Result<Option<Expected>, BadInput> {
    for ending in ["expected.json.gz", "expected.json"] {
        let file = record.with_file_name(format!("{name}.{ending}"));
        if file.exists() {
            return read(&file).map(Some);
        }
    }
    Ok(None)
}

fn read(file: &Path) -> Result<Expected, BadInput> {
    let mut text = Vec::new();
    open::decompressed(file)?.read_to_end(&mut text).map_err(|error| BadInput::at(file, 1, describe_io(&error)))?;
    Expected::load_bytes(file, &text)
}

impl Expected {
    /// Reads the end of a run from the decompressed bytes of a file.
    ///
    /// # Errors
    /// If the bytes are not JSON of the end of a run.
    pub fn load_bytes(file: &Path, bytes: &[u8]) -> Result<Self, BadInput> {
        serde_json::from_slice(bytes)
            .map_err(|error| BadInput::at(file, error.line() as u64, format!("not the end of a run: {error}")))
    }
}
