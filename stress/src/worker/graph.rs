//! Captured graphs: work that allocates, writes, checks and frees while it is recorded, and then runs several times.
//!
//! What a graph used belongs to it until it is destroyed, whether the blocks were freed during the capture or not: its pool
//! has a user, so nobody else may be handed any of it. The host claims it all for as long.

use super::{Worker, overlap};
use crate::block::Block;
use crate::sizes;
use crate::stage::{Device, Line, part};
use crate::verdict::Kind;
use cachalot_core::{DeviceMemory, DevicePtr, DeviceResult, Event, GRAIN, MIB, PoolId, PoolOptions, Route};
use cachalot_cuda::driver::types::{CuCaptureMode, CuGraph, CuGraphExec, CuStream};
use cachalot_kernels::{Findings, Region};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// What a thread captures with, on one device: two streams of its own, and memory for what is found.
pub(super) struct Site {
    /// The stream that captures.
    pub(super) line: Line,
    /// A second one, which joins.
    side: Line,
    fork: Event,
    join: Event,
    result: Region,
    /// What streams that come and go have found.
    pub(super) guests: Region,
    pub(super) reader: CuStream,
    /// The end of a capture failed: it is still under way.
    pub(super) stuck: bool,
}

/// A graph that can be run.
pub(super) struct Graph {
    device: usize,
    captured: CuGraph,
    ready: CuGraphExec,
    pool: PoolId,
    /// Blocks that were not freed while it was captured.
    kept: Vec<Block>,
    /// Every address that it uses, without overlaps.
    ranges: Vec<Range<u64>>,
    /// Where it runs.
    runs_on: Option<Line>,
}

/// At most so many at once.
const GRAPHS: usize = 3;
/// Blocks of a graph.
const BLOCKS: Range<u32> = 2..12;
/// Runs of a graph at once after it was captured; more may follow.
const RUNS: Range<u32> = 0..4;
/// Bytes of what is found in one place.
const FINDINGS: u64 = size_of::<Findings>() as u64;
/// Graphs use small blocks, so that several fit beside everything else.
const LARGEST: u64 = 2 * MIB;

impl Site {
    /// Streams and events of a thread's own, and memory for what is found.
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
    /// Captures a graph, with a pool of its own.
    pub(super) fn capture(&mut self) {
        let place = self.rng.usize(0..self.places.len());
        let device = self.places[place].device;
        if !self.unstick(device) {
            return;
        }
        if self.graphs.len() >= GRAPHS {
            self.settle_graphs();
        }
        let (shared, line) = (self.shared, self.sites[device].line);
        let (stage, index) = (&shared.devices[device], shared.devices[device].index);
        let pool = match shared.subject.create_pool(index, PoolOptions::default()) {
            Ok(pool) => pool,
            Err(error) => return self.failed("create_pool", &error),
        };
        if let Err(error) = shared.subject.begin_capture(index, pool, Route::Stream(line.id)) {
            return self.failed("begin_capture", &error);
        }
        shared.captures.fetch_add(1, Ordering::AcqRel);
        let modes = [CuCaptureMode::GLOBAL, CuCaptureMode::THREAD_LOCAL, CuCaptureMode::RELAXED];
        let begun = stage.begin_capture(line.handle, modes[self.rng.usize(0..modes.len())]);
        let mut graph = Graph {
            device,
            captured: CuGraph::NULL,
            ready: CuGraphExec::NULL,
            pool,
            kept: Vec::new(),
            ranges: Vec::new(),
            runs_on: None,
        };
        let recorded = begun.and_then(|()| self.record(&mut graph));
        // Even if it did not begin: a call that failed may have acted.
        let ended = stage.end_capture(line.handle);
        if ended.is_err() {
            self.sites[device].stuck = stage.cuda.is_capturing(line.id) != Ok(false);
        }
        if let Err(error) = shared.subject.end_capture(index, pool) {
            self.failed("end_capture", &error);
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
            return self.settle_graphs();
        }
        let last = self.graphs.len() - 1;
        for _ in 0..self.rng.u32(RUNS) {
            self.run_graph(last);
        }
    }

    /// Ends a capture whose end failed. False if it fails again.
    pub(super) fn unstick(&mut self, device: usize) -> bool {
        if !self.sites[device].stuck {
            return true;
        }
        let (stage, line) = (&self.shared.devices[device], self.sites[device].line);
        let ended = stage.end_capture(line.handle);
        match stage.cuda.is_capturing(line.id) {
            Ok(capturing) => self.sites[device].stuck = capturing,
            Err(error) => self.device_failed("is_capturing", error),
        }
        if let Ok(graph) = ended
            && let Err(error) = stage.destroy_graph(graph, CuGraphExec::NULL)
        {
            self.device_failed("graph_destroy", error);
        }
        !self.sites[device].stuck
    }

    /// The work of a graph, while it is captured.
    fn record(&mut self, graph: &mut Graph) -> DeviceResult<()> {
        let Site { line, side, fork, join, result, .. } = self.sites[graph.device];
        let stage = &self.shared.devices[graph.device];
        let largest = self.shared.options.max_bytes(stage.total_bytes).min(LARGEST);
        for _ in 0..self.rng.u32(BLOCKS) {
            let bytes = sizes::pick(&mut self.rng, largest);
            let Some(block) = self.obtain(graph.device, line, bytes, false) else { continue };
            self.claim_for(graph, &block);
            let (ptr, region, life) = (block.ptr, block.region(), block.life);
            // The graph's before anything can fail.
            graph.kept.push(block);
            stage.kernels.fill(line.handle, region, life)?;
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
                let at = self.rng.usize(0..graph.kept.len());
                let block = graph.kept.swap_remove(at);
                if let Err(block) = self.give_back(block) {
                    graph.kept.push(block);
                }
            }
        }
        Ok(())
    }

    /// Notes on the host that a graph uses a block's memory. It may have used it before, but not for a block that it holds.
    fn claim_for(&self, graph: &mut Graph, block: &Block) {
        if let Some(other) = graph.kept.iter().find(|other| overlap(other, block)) {
            let text = format!("blocks {:#x} and {:#x} of one graph", other.life.block, block.life.block);
            self.shared.verdict.report(Kind::Overlap, text);
        }
        let whole = block.ptr.0..(block.ptr.0 + block.bytes).next_multiple_of(GRAIN);
        for piece in without(whole, &graph.ranges) {
            self.claim(DevicePtr(piece.start), piece.end - piece.start, block.life.block);
            graph.ranges.push(piece);
        }
    }

    /// Runs one of the graphs once more.
    pub(super) fn replay(&mut self) {
        if !self.graphs.is_empty() {
            let at = self.rng.usize(0..self.graphs.len());
            self.run_graph(at);
        }
    }

    fn run_graph(&mut self, at: usize) {
        let Graph { device, ready, runs_on, .. } = self.graphs[at];
        if ready.is_null() {
            return;
        }
        let stage = &self.shared.devices[device];
        let line = runs_on.unwrap_or_else(|| stage.lanes[self.rng.usize(0..stage.lanes.len())].line());
        self.graphs[at].runs_on = Some(line);
        match stage.replay(ready, line.handle) {
            Ok(()) => self.counts.replays += 1,
            Err(error) => self.device_failed("graph_launch", error),
        }
    }

    /// Waits for the graphs' runs, sees what they found, and destroys them. Those for which that fails stay.
    pub(super) fn settle_graphs(&mut self) {
        for graph in std::mem::take(&mut self.graphs) {
            if let Some(left) = self.settle_graph(graph) {
                self.graphs.push(left);
            }
        }
    }

    /// Ends the captures whose end failed before. False if one is still under way.
    pub(super) fn end_captures(&mut self) -> bool {
        (0..self.sites.len()).all(|device| self.unstick(device))
    }

    fn settle_graph(&mut self, mut graph: Graph) -> Option<Graph> {
        let stage = &self.shared.devices[graph.device];
        if let Some(line) = graph.runs_on {
            if let Err(error) = self.wait_and_read(&graph, line) {
                self.device_failed("graph", error);
                return Some(graph);
            }
            graph.runs_on = None;
        }
        if !graph.captured.is_null() {
            // What fails here is lost to the driver, and is never run again.
            if let Err(error) = stage.destroy_graph(graph.captured, graph.ready) {
                self.device_failed("graph_destroy", error);
            }
            (graph.captured, graph.ready) = (CuGraph::NULL, CuGraphExec::NULL);
        }
        for block in std::mem::take(&mut graph.kept) {
            if let Err(block) = self.give_back(block) {
                graph.kept.push(block);
            }
        }
        if !graph.kept.is_empty() {
            return Some(graph);
        }
        for range in graph.ranges {
            if !self.shared.shadow.give_up(DevicePtr(range.start), range.end - range.start) {
                self.shared
                    .verdict
                    .report(Kind::Books, format!("a graph's memory at {:#x} lost its claim", range.start));
            }
        }
        // Once for its maker, once for the graph.
        for _ in 0..2 {
            if let Err(error) = self.shared.subject.release_pool(stage.index, graph.pool) {
                self.failed("release_pool", &error);
            }
        }
        None
    }

    fn wait_and_read(&self, graph: &Graph, line: Line) -> DeviceResult<()> {
        let stage = &self.shared.devices[graph.device];
        let site = &self.sites[graph.device];
        // A stream that another one has replaced was waited for then.
        if stage.lanes.iter().any(|lane| lane.line() == line) {
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

/// The parts of a range that none of `taken` covers.
fn without(whole: Range<u64>, taken: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = vec![whole];
    for range in taken {
        left = left
            .into_iter()
            .flat_map(|part| {
                let before = part.start..part.end.min(range.start);
                let after = part.start.max(range.end)..part.end;
                [before, after].into_iter().filter(|piece| !piece.is_empty())
            })
            .collect();
    }
    left
}

#[cfg(test)]
mod tests {
    use super::without;

    #[test]
    fn what_is_taken_is_cut_out() {
        let left = |taken: &[_]| without(10..20, taken).into_iter().map(|piece| (piece.start, piece.end)).collect();
        let (whole, pieces): (Vec<_>, Vec<_>) = (left(&[0..10, 20..30]), left(&[12..14, 16..30]));
        assert_eq!(left(&[]), whole);
        assert_eq!((whole, pieces), (vec![(10, 20)], vec![(10, 12), (14, 16)]));
        assert!(without(10..20, &[5..15, 15..20]).is_empty());
    }
}
