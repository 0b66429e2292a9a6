//! The observable state of an allocator, for comparison before and after a failed operation.

use crate::program::Op;
use crate::twins::Twins;
use cachalot_core::simulated::Outstanding;
use cachalot_core::{BlockState, Lock, SnapshotSegment, Storage};
use std::collections::BTreeMap;

/// All state observable from outside.
#[derive(PartialEq, Debug)]
pub struct Seen {
    segments: Vec<SnapshotSegment>,
    stats: BTreeMap<String, i64>,
    outstanding: Outstanding,
}

impl Seen {
    /// Captures the present state.
    ///
    /// # Panics
    /// If the allocator does not know the device.
    pub fn of<R: Lock, S: Storage>(twins: &Twins<R, S>) -> Self {
        let mut stats = BTreeMap::new();
        let all = twins.real().stats(twins.device()).expect("it has the device").totals();
        all.for_each(|key, value| _ = stats.insert(key.to_owned(), value));
        let device = twins.real().device(twins.device()).expect("it has the device");
        Self { segments: twins.real().snapshot(), stats, outstanding: device.outstanding() }
    }

    /// Returns the blocks of the program: address, size, requested size.
    fn held(&self) -> Vec<(u64, u64, u64)> {
        let blocks = self.segments.iter().flat_map(|segment| &segment.blocks);
        let held = blocks.filter(|block| block.state == BlockState::ActiveAllocated);
        held.map(|block| (block.address.0, block.size, block.requested_size)).collect()
    }

    /// Returns the statistics of the program's blocks, present and accumulated.
    fn of_requests(&self) -> Vec<(&String, &i64)> {
        let names = ["allocation.", "allocated_bytes.", "oversize_allocations."];
        self.stats.iter().filter(|(key, _)| names.iter().any(|name| key.starts_with(name))).collect()
    }

    /// Checks that a failed operation changed nothing. Releases of memory and completed frees are
    /// allowed.
    ///
    /// # Errors
    /// A message that names the change.
    pub fn check_unchanged_by(&self, op: &Op, after: &Self) -> Result<(), String> {
        let gives_back = matches!(
            op,
            Op::Malloc { .. }
                | Op::EmptyCache
                | Op::EmptyPool { .. }
                | Op::Trim { .. }
                | Op::StreamDestroyed { .. }
                | Op::ProcessEvents
        );
        if !gives_back && self != after {
            return Err(format!("it failed and changed {self:#?} to {after:#?}"));
        }
        if self.held() != after.held() || self.of_requests() != after.of_requests() {
            return Err("it failed and changed what the program holds".to_owned());
        }
        if self.stats["num_device_alloc"] != after.stats["num_device_alloc"] {
            return Err("it failed and obtained memory".to_owned());
        }
        Ok(())
    }
}
