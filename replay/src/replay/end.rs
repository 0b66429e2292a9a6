//! Compares the end of a replay with the end of the recorded run.

use super::Simulated;
use crate::program::DEVICE;
use crate::trace::{BlockState, Expected, ExpectedBlock, Segment};
use cachalot_core::{BlockState as State, Error, PoolKind, SnapshotSegment};
use std::collections::BTreeMap;

/// A statistic whose replayed value differs from the recorded value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatDifference {
    /// The flattened name.
    pub name: String,
    /// Value in the recorded run.
    pub recorded: i64,
    /// Value in the replay. `None` without a statistic of the name.
    pub replayed: Option<i64>,
}

/// Returns every statistic of a replay.
pub(super) fn stats(allocator: &Simulated) -> Result<BTreeMap<String, i64>, Error> {
    let mut stats = BTreeMap::new();
    allocator.stats(DEVICE)?.totals().for_each(|name, value| {
        stats.insert(name.to_owned(), value);
    });
    Ok(stats)
}

/// Returns the statistics that differ.
pub(super) fn compare_stats(expected: &Expected, stats: &BTreeMap<String, i64>) -> Vec<StatDifference> {
    let differs = |(name, &recorded): (&String, &i64)| {
        let replayed = stats.get(name).copied();
        let agrees = if expected.not_in_the_record.contains(name) {
            // Calls without an event are missing from the replay.
            replayed.is_some_and(|replayed| replayed <= recorded)
        } else {
            replayed == Some(recorded)
        };
        (!agrees).then(|| StatDifference { name: name.clone(), recorded, replayed })
    };
    expected.stats.iter().filter_map(differs).collect()
}

/// Returns the segments of a replay, in the record's terms.
pub(super) fn segments(allocator: &Simulated) -> Vec<Segment> {
    allocator.snapshot().iter().map(segment).collect()
}

fn segment(segment: &SnapshotSegment) -> Segment {
    let kind = match segment.kind {
        PoolKind::Small => "small",
        PoolKind::Large => "large",
    };
    Segment {
        device: segment.device.0,
        address: segment.address.0,
        total_size: segment.total_size,
        allocated_size: segment.allocated_size(),
        active_size: segment.active_size(),
        requested_size: segment.requested_size(),
        stream: segment.stream.0,
        segment_type: kind.to_owned(),
        segment_pool_id: (segment.pool.0, segment.pool.1),
        is_expandable: segment.is_expandable,
        blocks: segment
            .blocks
            .iter()
            .map(|block| ExpectedBlock {
                address: block.address.0,
                size: block.size,
                requested_size: block.requested_size,
                state: match block.state {
                    State::ActiveAllocated => BlockState::ActiveAllocated,
                    State::ActivePendingFree => BlockState::ActivePendingFree,
                    State::Inactive => BlockState::Inactive,
                },
            })
            .collect(),
    }
}

/// Agreement of the segments at the end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SegmentComparison {
    /// Number of compared segments and blocks of the record.
    pub(super) checked: u64,
    /// Number of differing segments and blocks. A segment or block on only one side counts as a
    /// difference.
    pub(super) mismatches: u64,
    /// Text of the first difference, with both sides.
    pub(super) first: Option<String>,
}

/// Compares segments by address, and then the blocks of each segment.
pub(super) fn compare_segments(recorded: &[Segment], replayed: &[Segment]) -> SegmentComparison {
    let mut comparison = SegmentComparison::default();
    for recorded in recorded {
        comparison.checked += 1 + recorded.blocks.len() as u64;
        let replayed = replayed.iter().find(|replayed| replayed.address == recorded.address);
        comparison.segment(Some(recorded), replayed);
    }
    for replayed in replayed {
        if !recorded.iter().any(|recorded| recorded.address == replayed.address) {
            comparison.segment(None, Some(replayed));
        }
    }
    comparison
}

impl SegmentComparison {
    fn segment(&mut self, recorded: Option<&Segment>, replayed: Option<&Segment>) {
        let heads = (recorded.map(head), replayed.map(head));
        if heads.0 != heads.1 {
            self.note(format!("the segment\n  recorded: {}\n  replayed: {}", or_none(heads.0), or_none(heads.1)));
        }
        let by_address = |segment: Option<&Segment>| -> BTreeMap<u64, ExpectedBlock> {
            segment.iter().flat_map(|segment| &segment.blocks).map(|block| (block.address, block.clone())).collect()
        };
        let (recorded, mut replayed) = (by_address(recorded), by_address(replayed));
        for (address, block) in &recorded {
            let other = replayed.remove(address);
            if other.as_ref() != Some(block) {
                let (one, other) = (describe(block), other.as_ref().map(describe));
                self.note(format!("the block at {address:x}\n  recorded: {one}\n  replayed: {}", or_none(other)));
            }
        }
        for (address, block) in &replayed {
            self.note(format!("the block at {address:x}\n  recorded: none\n  replayed: {}", describe(block)));
        }
    }

    fn note(&mut self, difference: String) {
        self.mismatches += 1;
        self.first.get_or_insert(difference);
    }
}

fn or_none(text: Option<String>) -> String {
    text.unwrap_or_else(|| "none".to_owned())
}

/// Describes a segment without its blocks.
fn head(segment: &Segment) -> String {
    format!(
        "{} bytes at {:x}, {}{}, stream {:x}, pool ({}, {}): {} allocated, {} active, {} requested",
        segment.total_size,
        segment.address,
        segment.segment_type,
        if segment.is_expandable { ", expandable" } else { "" },
        segment.stream,
        segment.segment_pool_id.0,
        segment.segment_pool_id.1,
        segment.allocated_size,
        segment.active_size,
        segment.requested_size,
    )
}

fn describe(block: &ExpectedBlock) -> String {
    let state = match block.state {
        BlockState::ActiveAllocated => "allocated",
        BlockState::ActivePendingFree => "pending",
        BlockState::Inactive => "free",
    };
    format!("{} bytes, {state}, {} requested", block.size, block.requested_size)
}
