//! The difference of two snapshots: the growth of each device, and of each call stack.
//!
//! Blocks belong to one stack if all frames are equal. So the growths of all stacks add up to the
//! growth of allocated and pending memory.

use crate::inspect::{At, Group, Sums, held};
use cachalot_snapshot::Snapshot;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The blocks of a stack that are not free.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of the blocks.
    pub bytes: u64,
    /// Bytes of blocks freed by the program and still in use on other streams.
    pub pending: u64,
    /// Bytes of the largest block.
    pub largest: u64,
}

/// The memory of a snapshot at a time: the part of a snapshot that a difference needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldMemory {
    devices: BTreeMap<i64, Sums>,
    /// By stack, the innermost frame first.
    stacks: BTreeMap<Vec<String>, Share>,
}

/// The growth of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DeviceGrowth {
    /// Number of the device, or -1 for pinned host memory.
    pub device: i64,
    /// The first snapshot. Zero for a missing device.
    pub before: Sums,
    /// The second snapshot. Zero for a missing device.
    pub after: Sums,
}

/// The growth of a stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StackGrowth {
    /// The stack, the innermost frame first, each frame as `file:line function`, or as
    /// `file function` without lines. Empty for blocks without a recorded stack.
    pub stack: Vec<String>,
    /// Bytes of the second snapshot less bytes of the first snapshot.
    pub growth: i64,
    /// The first snapshot.
    pub before: Share,
    /// The second snapshot.
    pub after: Share,
}

/// The difference of two snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diff {
    /// The devices of either snapshot, by number.
    pub devices: Vec<DeviceGrowth>,
    /// The changed stacks: the most growth first, the most shrinkage last.
    pub stacks: Vec<StackGrowth>,
}

impl HeldMemory {
    /// Returns what a snapshot holds at a time. Without `lines`, stacks that differ in line numbers
    /// only are one stack.
    pub fn of(snapshot: &Snapshot, at: At, lines: bool) -> Self {
        let (devices, groups) = held(snapshot, at);
        let mut stacks = BTreeMap::<_, Share>::new();
        for Group { stack, blocks, bytes, pending, largest, .. } in groups {
            let stack = if lines { stack } else { stack.iter().map(|frame| without_line(frame)).collect() };
            let share = stacks.entry(stack).or_default();
            share.blocks += blocks;
            share.bytes = share.bytes.saturating_add(bytes);
            share.pending = share.pending.saturating_add(pending);
            share.largest = share.largest.max(largest);
        }
        Self { devices: devices.into_iter().collect(), stacks }
    }

    /// Returns whether there is no device.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }
}

/// Returns a frame `file:line function` without the line.
fn without_line(frame: &str) -> String {
    let is_line = |rest: &str| {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        (digits > 0 && rest[digits..].starts_with(' ')).then_some(digits)
    };
    let found = frame.match_indices(':').find_map(|(at, _)| Some((at, is_line(&frame[at + 1..])?)));
    found.map_or_else(|| frame.to_owned(), |(at, digits)| format!("{}{}", &frame[..at], &frame[at + 1 + digits..]))
}

/// Returns the difference of two snapshots.
pub fn diff(before: &HeldMemory, mut after: HeldMemory) -> Diff {
    let mut devices: BTreeMap<i64, DeviceGrowth> = BTreeMap::new();
    for (&device, &before) in &before.devices {
        devices.insert(device, DeviceGrowth { device, before, after: Sums::default() });
    }
    for (&device, &sums) in &after.devices {
        let none = DeviceGrowth { device, before: Sums::default(), after: sums };
        devices.entry(device).or_insert(none).after = sums;
    }
    let mut stacks = Vec::new();
    let mut compare = |stack: &[String], before: Share, after: Share| {
        if before != after {
            let growth = after.bytes.cast_signed().saturating_sub(before.bytes.cast_signed());
            stacks.push(StackGrowth { stack: stack.to_vec(), growth, before, after });
        }
    };
    for (stack, share) in &before.stacks {
        compare(stack, *share, after.stacks.remove(stack).unwrap_or_default());
    }
    after.stacks.iter().for_each(|(stack, share)| compare(stack, Share::default(), *share));
    stacks.sort_by(|one, other| (Reverse(one.growth), &one.stack).cmp(&(Reverse(other.growth), &other.stack)));
    Diff { devices: devices.into_values().collect(), stacks }
}

#[cfg(test)]
mod tests {
    use super::without_line;

    #[test]
    fn a_frame_loses_its_line_and_nothing_else() {
        assert_eq!(without_line("a/b.py:12 step"), "a/b.py step");
        assert_eq!(without_line("x.cpp:0 at::native::empty(long, 3)"), "x.cpp at::native::empty(long, 3)");
        assert_eq!(without_line("?? at::empty"), "?? at::empty");
        assert_eq!(without_line("c:/d e.py:7 <lambda>"), "c:/d e.py <lambda>");
    }
}
