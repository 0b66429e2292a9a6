//! Captured graphs: work allocates, writes, checks and frees during the capture, and then runs
//! several times.
//!
//! All memory used during the capture belongs to the graph until the graph is destroyed, even
//! memory of blocks freed during the capture. The graph's pool has a user, so the allocator may not
//! serve the memory to another request. The run claims the memory in the shadow map for the graph.

use super::{Worker, overlap};
use crate::block::Block;
use crate::sizes;
use crate::stage::{Device, Line, part};
use crate::verdict::Kind;
use cachalot_core::{
    DevicePtr, DeviceResult, Event, GRAIN, MIB, ParkMode, PoolId, PoolOptions, Route, RoutePurpose, StreamOrder, Tag,
};
use cachalot_cuda::driver::types::{CuCaptureMode, CuGraph, CuGraphExec, CuStream};
use cachalot_kernels::{Findings, Region};
use std::ops::Range;

/// A thread's equipment for captures on a device: two streams of its own, and memory for findings.
pub(super) struct Site {
    /// The capturing stream.
    pub(super) line: Line,
    /// A second stream, which joins the capture.
    side: Line,
    fork: Event,
    join: Event,
    result: Region,
    /// Findings of streams created and destroyed within a round.
    pub(super) guests: Region,
    pub(super) reader: CuStream,
    /// Whether the end of a capture failed, and the capture still runs.
    pub(super) stuck: bool,
}

/// A runnable graph.
pub(super) struct Graph {
    pub(super) device: usize,
    captured: CuGraph,
    pub(super) ready: CuGraphExec,
    pool: PoolId,
    /// The tag under which the graph's memory is parked between runs.
    pub(super) tag: Option<Tag>,
    /// The mode of the present park. `None` while the memory is awake.
    pub(super) asleep: Option<ParkMode>,
    /// Blocks not freed during the capture.
    unfreed: Vec<Block>,
    /// All addresses used by the graph, without overlaps.
    ranges: Vec<Range<u64>>,
    /// The stream of the graph's runs.
    pub(super) runs_on: Option<Line>,
}

/// Upper bound for the number of a thread's graphs.
const GRAPHS: usize = 3;
/// Number of a graph's blocks.
const BLOCKS: Range<u32> = 2..12;
/// Number of runs right after the capture; more runs may follow.
const RUNS: Range<u32> = 0..4;
/// Bytes of a set of findings.
const FINDINGS: u64 = size_of::<Findings>() as u64;
/// Steps with a graph per park of the graph's memory.
const NAPS: u32 = 8;
/// Largest block of a graph. Several graphs must fit in addition to all other blocks.
const LARGEST: u64 = 2 * MIB;

impl Site {
    /// Creates the streams and events, and prepares the memory for findings.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn new(device: &'static Device, memory: Region, reader: CuStream) -> DeviceResult<Self> {
        let result = part(memory, 0, FINDINGS);
        let guests = part(memory, FINDINGS, FINDINGS);
        for found in [result, guests] {
            device.kernels.clear(reader, found)?;
        }
        device.synchronize(reader)?;
        let (line, side) = (device.make_line()?, device.make_line()?);
        let (fork, join) = (device.take_event()?, device.take_event()?);
        Ok(Self { line, side, fork, join, result, guests, reader, stuck: false })
    }
}

impl Worker {
    /// Captures a graph with a private pool.
    pub(super) fn capture(&mut self) {
        let place = self.rng.usize(0..self.places.len());
        let device = self.places[place].device;
        if !self.end_stuck_capture(device) {
            return;
        }
        if self.graphs.len() >= GRAPHS {
            // Finish the earlier graphs, so that their memory returns to the allocator.
            self.finish_graphs();
        }
        let (shared, line) = (self.shared, self.sites[device].line);
        let _no_wait = shared.device_waits.read();
        let (stage, index) = (&shared.devices[device], shared.devices[device].index);
        let pool = match shared.subject.pools(index).unwrap().create(PoolOptions::default()) {
            Ok(pool) => pool,
            Err(error) => return self.failed("create_pool", &error),
        };
        let tag = self.tag_graph(device, pool);
        shared.captures.begin();
        if let Err(error) =
            shared.subject.pools(index).unwrap().begin_route(pool, Route::Stream(line.id), RoutePurpose::Capture)
        {
            shared.captures.end();
            return self.failed("begin_capture", &error);
        }
        // Each mode restricts other calls of the driver during the capture.
        let modes = [CuCaptureMode::GLOBAL, CuCaptureMode::THREAD_LOCAL, CuCaptureMode::RELAXED];
        let begun = stage.begin_capture(line.handle, modes[self.rng.usize(0..modes.len())]);
        let mut graph = Graph {
            device,
            captured: CuGraph::NULL,
            ready: CuGraphExec::NULL,
            pool,
            tag,
            asleep: None,
            unfreed: Vec::new(),
            ranges: Vec::new(),
            runs_on: None,
        };
        let recorded = begun.and_then(|()| self.record(&mut graph));
        // End the capture even if its start failed: a call that failed may have taken effect.
        let ended = stage.end_capture(line.handle);
        if ended.is_err() {
            self.sites[device].stuck = stage.cuda.is_capturing(line.id) != Ok(false);
        }
        if let Err(error) = shared.subject.pools(index).unwrap().end_route(pool, RoutePurpose::Capture) {
            self.failed("end_capture", &error);
        }
        if !self.sites[device].stuck {
            shared.captures.end();
        }
        let made = recorded.and(ended).and_then(|captured| {
            graph.captured = captured;
            graph.ready = stage.instantiate(captured)?;
            Ok(())
        });
        match made {
            Ok(()) => self.counts.graphs += 1,
            Err(error) => self.device_failed("capture", error),
        }
        self.graphs.push(graph);
        if made.is_err() {
            // A graph without an instance has no runs. Finishing frees the blocks and the pool.
            return self.finish_graphs();
        }
        let last = self.graphs.len() - 1;
        for _ in 0..self.rng.u32(RUNS) {
            self.run_graph(last);
        }
    }

    /// Ends a capture whose end has failed before. Returns false if the end fails again.
    pub(super) fn end_stuck_capture(&mut self, device: usize) -> bool {
        if !self.sites[device].stuck {
            return true;
        }
        let (stage, line) = (&self.shared.devices[device], self.sites[device].line);
        let ended = stage.end_capture(line.handle);
        match stage.cuda.is_capturing(line.id) {
            Ok(capturing) => self.sites[device].stuck = capturing,
            Err(error) => self.device_failed("is_capturing", error),
        }
        if !self.sites[device].stuck {
            self.shared.captures.end();
        }
        if let Ok(graph) = ended
            && let Err(error) = stage.destroy_graph(graph, CuGraphExec::NULL)
        {
            self.device_failed("graph_destroy", error);
        }
        !self.sites[device].stuck
    }

    /// Queues the work of a graph during the capture.
    fn record(&mut self, graph: &mut Graph) -> DeviceResult<()> {
        let Site { line, side, fork, join, result, .. } = self.sites[graph.device];
        let stage = &self.shared.devices[graph.device];
        let largest = self.shared.options.max_bytes(stage.total_bytes).min(LARGEST);
        for _ in 0..self.rng.u32(BLOCKS) {
            let bytes = sizes::pick(&mut self.rng, largest);
            let Some(block) = self.obtain(graph.device, line, bytes, false) else { continue };
            self.claim_for(graph, &block);
            let (ptr, region, life) = (block.ptr, block.region(), block.life);
            // Store the block before any call can fail.
            graph.unfreed.push(block);
            stage.kernels.fill(line.handle, region, life)?;
            // The joined capture orders the second stream's use, so the announcement is optional.
            let announced = self.rng.bool() || self.shared.subject.record_stream(ptr, side.id).is_ok();
            if announced && self.rng.bool() {
                stage.record(fork, line.handle)?;
                stage.wait_for(side.handle, fork)?;
                stage.kernels.verify(side.handle, region, life, result)?;
                stage.record(join, side.handle)?;
                stage.wait_for(line.handle, join)?;
            }
            stage.kernels.verify(line.handle, region, life, result)?;
            if self.rng.bool() {
                let at = self.rng.usize(0..graph.unfreed.len());
                let block = graph.unfreed.swap_remove(at);
                if let Err(block) = self.free_block(block) {
                    graph.unfreed.push(block);
                }
            }
        }
        Ok(())
    }

    /// Claims a block's memory for a graph. The graph may have used the memory before, but not for
    /// a live block.
    fn claim_for(&self, graph: &mut Graph, block: &Block) {
        if let Some(other) = graph.unfreed.iter().find(|other| overlap(other, block)) {
            let text = format!("blocks {:#x} and {:#x} of one graph", other.life.block, block.life.block);
            self.shared.verdict.report(Kind::Overlap, text);
        }
        let whole = block.ptr.0..(block.ptr.0 + block.bytes).next_multiple_of(GRAIN);
        for part in without(whole, &graph.ranges) {
            self.claim(DevicePtr(part.start), part.end - part.start, block.life.block);
            graph.ranges.push(part);
        }
    }

    /// Runs a random graph again, or parks the graph's memory until the next run.
    pub(super) fn replay(&mut self) {
        if !self.graphs.is_empty() {
            let at = self.rng.usize(0..self.graphs.len());
            if self.graphs[at].tag.is_some() && self.rng.u32(0..NAPS) == 0 {
                self.park_graph(at);
            } else {
                self.run_graph(at);
            }
        }
    }

    fn run_graph(&mut self, at: usize) {
        let Graph { device, ready, runs_on, .. } = self.graphs[at];
        if ready.is_null() || !self.wake_graph(at) {
            return;
        }
        let stage = &self.shared.devices[device];
        // All runs of a graph use one stream: concurrent runs would share the graph's memory. A
        // stream that is no longer a lane's was waited for when replaced.
        let line = runs_on.filter(|&line| is_lane(stage, line));
        let line = line.unwrap_or_else(|| stage.lanes[self.rng.usize(0..stage.lanes.len())].line());
        self.graphs[at].runs_on = Some(line);
        match stage.replay(ready, line.handle) {
            Ok(()) => self.counts.replays += 1,
            Err(error) => self.device_failed("graph_launch", error),
        }
    }

    /// Waits for all runs of the graphs, reports the findings, and destroys the graphs. Keeps a
    /// graph if any step fails.
    pub(super) fn finish_graphs(&mut self) {
        for graph in std::mem::take(&mut self.graphs) {
            if let Some(left) = self.finish_graph(graph) {
                self.graphs.push(left);
            }
        }
    }

    /// Ends the captures whose end has failed before. Returns false if a capture still runs.
    pub(super) fn end_captures(&mut self) -> bool {
        (0..self.sites.len()).all(|device| self.end_stuck_capture(device))
    }

    fn finish_graph(&mut self, mut graph: Graph) -> Option<Graph> {
        let stage = &self.shared.devices[graph.device];
        if let Some(line) = graph.runs_on {
            if let Err(error) = self.wait_and_read(&graph, line) {
                self.device_failed("graph", error);
                return Some(graph);
            }
            graph.runs_on = None;
        }
        if !graph.captured.is_null() {
            // Ignore a failure beyond the report: the graph is lost to the driver and never run
            // again.
            if let Err(error) = stage.destroy_graph(graph.captured, graph.ready) {
                self.device_failed("graph_destroy", error);
            }
            (graph.captured, graph.ready) = (CuGraph::NULL, CuGraphExec::NULL);
        }
        for block in std::mem::take(&mut graph.unfreed) {
            if let Err(block) = self.free_block(block) {
                graph.unfreed.push(block);
            }
        }
        // The claim must last until every block of the graph is free.
        if !graph.unfreed.is_empty() {
            return Some(graph);
        }
        for range in graph.ranges {
            if !self.shared.shadow.unclaim(DevicePtr(range.start), range.end - range.start) {
                self.shared
                    .verdict
                    .report(Kind::Books, format!("a graph's memory at {:#x} lost its claim", range.start));
            }
        }
        // Release twice: once for the creation, once for the graph.
        for _ in 0..2 {
            if let Err(error) = self.shared.subject.pools(stage.index).unwrap().release(graph.pool) {
                self.failed("release_pool", &error);
            }
        }
        None
    }

    fn wait_and_read(&self, graph: &Graph, line: Line) -> DeviceResult<()> {
        let stage = &self.shared.devices[graph.device];
        let site = &self.sites[graph.device];
        // A stream that is no longer a lane's was waited for when replaced.
        if is_lane(stage, line) {
            stage.synchronize(line.handle)?;
        }
        let found = stage.read(site.reader, site.result, 1)?[0];
        if found != Findings::NONE {
            let text = format!("{found:?} in runs of a graph that uses {:x?}", graph.ranges);
            self.shared.verdict.report(Kind::Content, text);
        }
        Ok(())
    }
}

/// Returns whether a lane of the device has this stream.
fn is_lane(stage: &Device, line: Line) -> bool {
    stage.lanes.iter().any(|lane| lane.line() == line)
}

/// Returns the parts of a range outside all ranges of `taken`.
fn without(whole: Range<u64>, taken: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = vec![whole];
    for range in taken {
        left = left
            .into_iter()
            .flat_map(|part| {
                let before = part.start..part.end.min(range.start);
                let after = part.start.max(range.end)..part.end;
                [before, after].into_iter().filter(|part| !part.is_empty())
            })
            .collect();
    }
    left
}

#[cfg(test)]
mod tests {
    use super::without;

    #[test]
    fn taken_ranges_are_cut_out() {
        let left = |taken: &[_]| without(10..20, taken).into_iter().map(|part| (part.start, part.end)).collect();
        let (whole, parts): (Vec<_>, Vec<_>) = (left(&[0..10, 20..30]), left(&[12..14, 16..30]));
        assert_eq!(left(&[]), whole);
        assert_eq!((whole, parts), (vec![(10, 20)], vec![(10, 12), (14, 16)]));
        assert!(without(10..20, &[5..15, 15..20]).is_empty());
    }
}
