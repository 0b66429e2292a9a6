//! The difference of two snapshots: the growth of each device, and of each call stack.
//!
//! Blocks belong to one stack if all frames are equal, or for a reader, if all that he sees are. So
//! the growths of all stacks add up to the growth of allocated and pending memory.

use crate::inspect::{At, By, Group, Since, StackLines, Sums, held};
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
    stacks: BTreeMap<StackKey, HeldStack>,
}

/// The lines that the blocks of a stack have in common, and whether they are from before the first
/// event.
type StackKey = (Vec<String>, bool);

/// Ages of the oldest block in events and in microseconds, as in [`Group`].
pub type Ages = (Option<u64>, Option<i64>);

/// The blocks of a stack, or of several that look the same.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HeldStack {
    lines: StackLines,
    share: Share,
    oldest: Ages,
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
    /// Ages of the oldest block, which say why there is no stack.
    #[serde(skip)]
    pub oldest: Ages,
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
    /// Returns what a snapshot holds at a time, with peaks from its first events on, by the stacks
    /// or the places of its blocks. Without `lines`, stacks that differ in line numbers only are
    /// one stack.
    pub fn of(snapshot: &Snapshot, since: &Since, at: At, lines: bool, by: By) -> Self {
        let (devices, groups) = held(snapshot, since, at, by);
        let mut stacks = BTreeMap::<StackKey, HeldStack>::new();
        for Group { lines: stack, blocks, bytes, pending, largest, oldest_events, oldest_us, .. } in groups {
            let stack = if lines { stack } else { stack.without_numbers() };
            let place = match by {
                By::Stack => (stack.stack.clone(), false),
                By::Place { frames } => {
                    let shown = stack.shown.iter().take(frames).cloned().collect();
                    (shown, stack.stack.is_empty() && oldest_events.is_none())
                }
            };
            let none = HeldStack { lines: stack.clone(), share: Share::default(), oldest: (oldest_events, oldest_us) };
            let held = stacks.entry(place).or_insert(none);
            // The groups have no order, and the result has.
            held.lines = held.lines.clone().min(stack);
            let share = &mut held.share;
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
    let mut compare = |held: &HeldStack, before: Share, after: Share| {
        if before != after {
            let growth = after.bytes.cast_signed().saturating_sub(before.bytes.cast_signed());
            let (lines, oldest) = (held.lines.clone(), held.oldest);
            stacks.push(StackGrowth { lines, growth, before, after, oldest });
        }
    };
    for (place, held) in &before.stacks {
        let after = after.stacks.remove(place).map_or_else(Share::default, |after| after.share);
        compare(held, held.share, after);
    }
    after.stacks.values().for_each(|held| compare(held, Share::default(), held.share));
    stacks.sort_by(|one, other| (Reverse(one.growth), &one.lines).cmp(&(Reverse(other.growth), &other.lines)));
    Diff { devices: devices.into_values().collect(), stacks }
}
