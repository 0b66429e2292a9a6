//! Describes the first difference between a record and its replay.

use super::Settings;
use super::compare::First;
use super::follow::Follower;
use crate::trace::{Action, BadInput, Event, Trace};
use cachalot_core::rounding::round_size;
use cachalot_core::{BlockState, PoolKind, SnapshotSegment, TraceEntry};
use std::fmt::Write as _;

/// Number of listed free blocks. Further free blocks are counted.
const LISTED: usize = 24;

/// Returns the text of both decisions in the first differing call, with the considered free blocks.
pub(super) fn describe(trace: &Trace, settings: &Settings, first: &First) -> String {
    let recorded = &trace.events[first.recorded.clone()];
    let place = recorded.first().or(trace.events.last()).map(|event| event.of.place);
    let what = "the first difference".to_owned();
    let mut text = BadInput { file: trace.file.clone(), place, what }.to_string();
    text.push_str("\n  recorded:");
    for event in recorded {
        let _ = write!(text, "\n    {}", in_words(event.action, event.addr, event.size, event.of.stream));
    }
    if recorded.is_empty() {
        text.push_str("\n    nothing: the record ends here");
    }
    text.push_str("\n  replayed:");
    for TraceEntry { action, addr, size, stream, .. } in &first.done {
        let _ = write!(text, "\n    {}", in_words(Action::from(*action), addr.0, *size, stream.0));
    }
    if first.done.is_empty() {
        text.push_str("\n    nothing");
    }
    // The same calls lead to the same state, so the blocks can be had as they were before the call.
    if let Ok(mut before) = Follower::new(trace, settings)
        && before.follow(first.recorded.start).is_ok()
    {
        let segments = before.run.allocator.snapshot();
        match recorded.last().filter(|event| matches!(event.action, Action::Alloc | Action::OutOfMemory)) {
            Some(request) => list_considered(&mut text, &segments, settings, request),
            None => list_releasable(&mut text, &segments),
        }
    }
    text
}

/// Returns an event as a sentence.
fn in_words(action: Action, addr: u64, size: u64, stream: u64) -> String {
    let what = match action {
        Action::Alloc => "hands out",
        Action::FreeRequested => "is asked to free",
        Action::FreeCompleted => "completes the free of",
        Action::SegmentAlloc => "obtains a segment of",
        Action::SegmentFree => "releases the segment of",
        Action::SegmentMap => "maps",
        Action::SegmentUnmap => "unmaps",
        Action::Mark | Action::Other => return "changes no memory".to_owned(),
        Action::OutOfMemory => return format!("runs out of memory for a block of {size} bytes on stream {stream:x}"),
    };
    format!("{what} {size} bytes at {addr:x} on stream {stream:x}")
}

/// A free block with its segment.
struct Free<'s> {
    segment: &'s SnapshotSegment,
    addr: u64,
    size: u64,
}

fn free_blocks(segments: &[SnapshotSegment]) -> impl Iterator<Item = Free<'_>> {
    segments.iter().flat_map(|segment| {
        let free = segment.blocks.iter().filter(|block| block.state == BlockState::Inactive);
        free.map(move |block| Free { segment, addr: block.address.0, size: block.size })
    })
}

fn list_considered(text: &mut String, segments: &[SnapshotSegment], settings: &Settings, request: &Event) {
    let size = match request.action {
        Action::Alloc => round_size(request.size, settings.config.roundup_power2_divisions()),
        _ => Some(request.size),
    };
    let Some(size) = size else { return };
    let kind = PoolKind::of(size);
    let mut blocks: Vec<Free<'_>> = free_blocks(segments)
        .filter(|free| free.segment.stream.0 == request.of.stream && free.segment.kind == kind)
        .collect();
    blocks.sort_by_key(|free| (free.size, free.addr));
    let all = blocks.len();
    blocks.retain(|free| free.size >= size);
    let pool = match kind {
        PoolKind::Small => "small",
        PoolKind::Large => "large",
    };
    let _ = write!(
        text,
        "\n  of the {all} free blocks of stream {:x} in the {pool} pools, {} have the {size} bytes that are needed",
        request.of.stream,
        blocks.len()
    );
    list(text, &blocks);
}

fn list_releasable(text: &mut String, segments: &[SnapshotSegment]) {
    let mut blocks: Vec<Free<'_>> = free_blocks(segments)
        .filter(|free| free.segment.is_expandable || free.size == free.segment.total_size)
        .collect();
    blocks.sort_by_key(|free| (free.segment.stream, free.size, free.addr));
    let _ = write!(text, "\n  {} free blocks could be released", blocks.len());
    list(text, &blocks);
}

fn list(text: &mut String, blocks: &[Free<'_>]) {
    if !blocks.is_empty() {
        text.push(':');
    }
    for Free { segment, addr, size } in blocks.iter().take(LISTED) {
        let (stream, pool) = (segment.stream.0, segment.pool);
        let _ = write!(text, "\n    {size} bytes at {addr:x}, stream {stream:x}, pool {pool}");
        let _ = write!(text, ", in a segment of {} bytes at {:x}", segment.total_size, segment.address.0);
    }
    if blocks.len() > LISTED {
        let _ = write!(text, "\n    and {} more", blocks.len() - LISTED);
    }
}
