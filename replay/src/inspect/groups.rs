//! Groups the blocks that are not free by the place of the allocation.

use super::lines::StackLines;
use super::{EndState, Since, blocks};
use cachalot_snapshot::{Event, Snapshot, Stack};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

/// All blocks allocated in a place of the program.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Group {
    /// The stack.
    #[serde(flatten)]
    pub lines: StackLines,
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of the blocks.
    pub bytes: u64,
    /// Bytes of blocks freed by the program and still in use on other streams.
    pub pending: u64,
    /// Bytes of the largest block.
    pub largest: u64,
    /// Age of the oldest block in events. `None` for an allocation before the first event, and
    /// without recorded events.
    pub oldest_events: Option<u64>,
    /// Age of the oldest block in microseconds. A lower bound for an allocation before the first
    /// event.
    pub oldest_us: Option<i64>,
    /// Bytes of blocks that were allocated before the report's first event.
    #[serde(skip_serializing_if = "is_zero")]
    pub earlier: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

impl Group {
    /// Adds the blocks of another group.
    fn add(&mut self, other: &Self) {
        self.blocks += other.blocks;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.pending = self.pending.saturating_add(other.pending);
        self.largest = self.largest.max(other.largest);
        self.oldest_events = self.oldest_events.zip(other.oldest_events).map(|(one, other)| one.max(other));
        self.oldest_us = self.oldest_us.max(other.oldest_us);
        self.earlier = self.earlier.saturating_add(other.earlier);
    }
}

/// A block in use or pending.
pub(super) struct LiveBlock<'s> {
    pub(super) device: i64,
    pub(super) stack: Option<&'s Stack>,
    pub(super) size: u64,
    pub(super) is_pending: bool,
    /// Age in events, and in microseconds.
    pub(super) events: Option<u64>,
    pub(super) us: Option<i64>,
    /// Whether the block is older than the report's first event.
    pub(super) is_earlier: bool,
}

/// Returns the number of the latest allocation at each address, from the trace of the device.
fn latest(trace: &[Event], addresses: impl Iterator<Item = u64>) -> HashMap<u64, usize> {
    let mut missing: HashSet<u64> = addresses.collect();
    let mut latest = HashMap::new();
    for (number, event) in trace.iter().enumerate().rev() {
        if missing.is_empty() {
            break;
        }
        if event.action == "alloc"
            && let Some(address) = event.addr
            && missing.remove(&address)
        {
            latest.insert(address, number);
        }
    }
    latest
}

/// Returns the blocks of a snapshot that are not free.
pub(super) fn live<'s>(snapshot: &'s Snapshot, since: &Since) -> Vec<LiveBlock<'s>> {
    let of = |device: i64| snapshot.segments.iter().filter(move |segment| segment.device == device);
    let used = |segment| blocks(segment).filter(|(_, block)| EndState::of(block) != EndState::Free);
    let traces: Vec<_> = (0..)
        .zip(&snapshot.device_traces)
        .map(|(device, trace)| (&trace[..], latest(trace, of(device).flat_map(used).map(|(address, _)| address))))
        .collect();
    let mut found = Vec::new();
    for segment in &snapshot.segments {
        let trace = usize::try_from(segment.device).ok().and_then(|device| traces.get(device));
        let first = since.of(segment.device);
        for (address, block) in blocks(segment).filter(|(_, block)| EndState::of(block) != EndState::Free) {
            let recorded = trace.and_then(|(trace, latest)| Some((*latest.get(&address)?, *trace)));
            let event = recorded.map(|(at, trace)| &trace[at]);
            let own = block.stack();
            let ends = trace.and_then(|(trace, _)| Some((trace.first()?, trace.last()?)));
            // A block without an event is older than the first event.
            let us = ends.and_then(|(first, last)| Some(last.time_us?.saturating_sub(event.unwrap_or(first).time_us?)));
            found.push(LiveBlock {
                device: segment.device,
                stack: own.or_else(|| event?.frames.as_ref()),
                size: block.size,
                is_pending: EndState::of(block) == EndState::Pending,
                events: recorded.map(|(at, trace)| (trace.len() - at) as u64),
                us,
                is_earlier: first > 0 && recorded.is_none_or(|(at, _)| at < first),
            });
        }
    }
    found
}

/// Which blocks are of one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// Those whose stacks have the same frames.
    Stack,
    /// Those whose stacks look the same to a reader, who sees the first `frames` of
    /// [`StackLines::shown`]. The group has the stack with the most bytes. Without a stack, blocks
    /// from before the first event are another group.
    Place {
        /// The number of frames that a reader sees.
        frames: usize,
    },
}

/// The length of the lists in a report, and what is in one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lists {
    /// The most groups, and the most segments, in a list.
    pub most: usize,
    /// The groups.
    pub by: By,
}

/// Returns the groups in no order.
pub(super) fn group(found: &[LiveBlock<'_>], by: By) -> Vec<Group> {
    let none = Stack::default();
    let mut groups = HashMap::<(&Stack, bool), Group>::new();
    for live in found {
        let stack = live.stack.unwrap_or(&none);
        let is_before = by != By::Stack && stack.is_empty() && live.events.is_none();
        let group = groups.entry((stack, is_before)).or_insert_with(|| Group {
            lines: StackLines::of(stack),
            blocks: 0,
            bytes: 0,
            pending: 0,
            largest: 0,
            oldest_events: Some(0),
            oldest_us: live.us,
            earlier: 0,
        });
        group.blocks += 1;
        group.bytes = group.bytes.saturating_add(live.size);
        group.pending = group.pending.saturating_add(if live.is_pending { live.size } else { 0 });
        group.largest = group.largest.max(live.size);
        group.oldest_events = group.oldest_events.zip(live.events).map(|(one, other)| one.max(other));
        group.oldest_us = group.oldest_us.max(live.us);
        group.earlier = group.earlier.saturating_add(if live.is_earlier { live.size } else { 0 });
    }
    let mut groups: Vec<Group> = groups.into_values().collect();
    if let By::Place { frames } = by {
        sort_by_bytes(&mut groups);
        groups = merged(groups, frames);
    }
    groups
}

/// Merges groups whose first lines for a reader are equal into the first of them.
fn merged(groups: Vec<Group>, frames: usize) -> Vec<Group> {
    let mut places = HashMap::<(Vec<String>, bool), usize>::new();
    let mut merged: Vec<Group> = Vec::new();
    for group in groups {
        let shown: Vec<String> = group.lines.shown.iter().take(frames).cloned().collect();
        let is_before = group.lines.stack.is_empty() && group.oldest_events.is_none();
        let place = *places.entry((shown, is_before)).or_insert(merged.len());
        match merged.get_mut(place) {
            Some(first) => first.add(&group),
            None => merged.push(group),
        }
    }
    merged
}

fn sort_by_bytes(groups: &mut [Group]) {
    groups.sort_by(|one, other| (Reverse(one.bytes), &one.lines).cmp(&(Reverse(other.bytes), &other.lines)));
}

/// Returns the groups with the most bytes.
pub(super) fn largest(found: &[LiveBlock<'_>], lists: Lists) -> Vec<Group> {
    let mut groups = group(found, lists.by);
    sort_by_bytes(&mut groups);
    groups.truncate(lists.most);
    groups
}

/// Returns the groups with the oldest blocks. Empty without recorded events.
pub(super) fn oldest(snapshot: &Snapshot, found: &[LiveBlock<'_>], lists: Lists) -> Vec<Group> {
    if snapshot.device_traces.iter().all(Vec::is_empty) {
        return Vec::new();
    }
    let mut groups = group(found, lists.by);
    let age = |group: &Group| (group.oldest_events.is_some(), Reverse(group.oldest_us), Reverse(group.oldest_events));
    let key = |group: &Group| (age(group), Reverse(group.bytes));
    groups.sort_by(|one, other| (key(one), &one.lines).cmp(&(key(other), &other.lines)));
    groups.truncate(lists.most);
    groups
}
