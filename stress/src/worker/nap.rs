//! Graphs with memory parked between two runs. Each run writes all of the memory before a read, so
//! the contents need not be kept.

use super::Worker;
use super::park::Wake;
use cachalot_core::{ParkMode, ParkOrder, ParkTarget, PoolId, Tag};
use std::num::NonZeroU64;

/// Marks the tags of graphs, in contrast to the tags of tenants.
const GRAPHS: u64 = 1 << 63;
/// Bits of a graph's tag for the number of the graph within a thread.
const GRAPH_BITS: u32 = 32;

impl Worker {
    /// Gives the pool of a graph a tag, if the run parks memory. Returns the tag.
    pub(super) fn tag_graph(&mut self, device: usize, pool: PoolId) -> Option<Tag> {
        if self.shared.options.tenants == 0 || self.rng.bool() {
            return None;
        }
        self.tags += 1;
        let tag = Tag(NonZeroU64::new(GRAPHS | u64::from(self.number) << GRAPH_BITS | self.tags)?);
        let index = self.shared.devices[device].index;
        let tagged = self.shared.subject.parking(index).and_then(|parking| parking.tag_pool(pool, Some(tag)));
        tagged.inspect_err(|error| self.failed("tag_pool", error)).ok().map(|()| tag)
    }

    /// Parks the memory of a graph between two runs.
    pub(super) fn park_graph(&mut self, at: usize) {
        let graph = &self.graphs[at];
        let (Some(tag), None, false) = (graph.tag, graph.asleep, graph.ready.is_null()) else { return };
        let (stage, runs_on) = (&self.shared.devices[graph.device], graph.runs_on);
        let modes = [ParkMode::Keep, ParkMode::Drop, ParkMode::Zero];
        let mode = modes[self.rng.usize(0..modes.len())];
        let order = if self.rng.bool() { ParkOrder::Device } else { ParkOrder::Streams };
        // The allocator does not know on which stream a graph runs.
        if order == ParkOrder::Streams
            && let Some(line) = runs_on
            && let Err(error) = stage.synchronize(line.handle)
        {
            return self.device_failed("synchronize", error);
        }
        if self.park(stage, ParkTarget::Tag(tag), mode, order) {
            self.graphs[at].asleep = Some(mode);
        }
    }

    /// Wakes the memory of a graph, if parked. Returns whether the memory is awake.
    pub(super) fn wake_graph(&mut self, at: usize) -> bool {
        let graph = &self.graphs[at];
        let (Some(tag), Some(_)) = (graph.tag, graph.asleep) else { return true };
        let woken = self.wake(&self.shared.devices[graph.device], ParkTarget::Tag(tag), Wake::Whole);
        if woken {
            self.graphs[at].asleep = None;
        }
        woken
    }
}
