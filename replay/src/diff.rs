//! The difference of two snapshots: the growth of each device, and of each call stack.
//!
//! Blocks belong to one stack if all frames are equal. So the growths of all stacks add up to the
//! growth of allocated and pending memory.

use crate::inspect::{At, Group, StackLines, Sums, held};
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
    /// By stack.
    stacks: BTreeMap<StackLines, Share>,
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
    /// The stack, each frame as `file function` where lines are ignored.
    #[serde(flatten)]
    pub lines: StackLines,
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
        for Group { lines: stack, blocks, bytes, pending, largest, .. } in groups {
            let stack = if lines { stack } else { stack.without_numbers() };
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
    let mut compare = |stack: &StackLines, before: Share, after: Share| {
        if before != after {
            let growth = after.bytes.cast_signed().saturating_sub(before.bytes.cast_signed());
            stacks.push(StackGrowth { lines: stack.clone(), growth, before, after });
        }
    };
    for (stack, share) in &before.stacks {
        compare(stack, *share, after.stacks.remove(stack).unwrap_or_default());
    }
    after.stacks.iter().for_each(|(stack, share)| compare(stack, Share::default(), *share));
    stacks.sort_by(|one, other| (Reverse(one.growth), &one.lines).cmp(&(Reverse(other.growth), &other.lines)));
    Diff { devices: devices.into_values().collect(), stacks }
}
