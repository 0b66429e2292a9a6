//! Graphs: captured with memory of a private pool, replayed, destroyed.

use super::Worker;
use super::block::Block;
use crate::abi;
use crate::contents::{Action, Contents, Job};
use crate::driver::insist;
use crate::finding;
use crate::permitted::Situation;
use crate::places::{Domain, Stream};
use crate::world::{Group, add};
use cachalot::c::abi::{CACHALOT_ROUTE_STREAM, CACHALOT_ROUTE_THREAD, cachalot_pool};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Greatest number of a thread's graphs.
const MOST_GRAPHS: usize = 4;

/// A pool for graphs of a thread. Replays of the graphs run in order.
#[derive(Debug)]
pub(crate) struct GraphPool {
    device: usize,
    name: cachalot_pool,
    domain: Arc<Domain>,
    /// The group, if the pool has a tag.
    group: Option<Arc<Group>>,
    /// The stream of the latest launch.
    last: Mutex<Arc<Stream>>,
}

/// A job of a graph, freed with the graph.
#[derive(Debug)]
struct Kept(*mut Job);

// SAFETY: a job has numbers only, and is owned by the graph.
unsafe impl Send for Kept {}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: the job comes from a box, and its graph has ended with all launches.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// A captured graph.
#[derive(Debug)]
pub(crate) struct Graph {
    executable: u64,
    template: u64,
    pool: Arc<GraphPool>,
    jobs: Vec<Kept>,
    /// Blocks that outlive the capture, with their contents after a replay.
    outputs: Vec<Block>,
}

impl Graph {
    /// Returns the blocks that outlive the capture.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = &Block> {
        self.outputs.iter()
    }
}

/// A capture under way.
struct Capture {
    stream: Arc<Stream>,
    /// The stream of the capture's fork.
    side: Arc<Stream>,
    jobs: Vec<Kept>,
    blocks: Vec<Block>,
}

impl Worker {
    /// Returns the pool of an earlier graph, or a new pool with a tag or without.
    fn graph_pool(&mut self, device: usize) -> Arc<GraphPool> {
        let earlier = self.graphs.iter().map(|graph| &graph.pool).find(|pool| pool.device == device).cloned();
        if let Some(pool) = earlier.filter(|_| self.rng.bool()) {
            return pool;
        }
        let last = Mutex::new(Arc::clone(&self.world.legacy[device]));
        if self.rng.bool() {
            let group = self.new_group(device, 1, Some(self.id));
            self.world.groups.write().push(Arc::clone(&group));
            let name = group.pools.lock()[0];
            return Arc::new(GraphPool { device, name, domain: Arc::clone(&group.domain), group: Some(group), last });
        }
        let mut name = cachalot_pool::default();
        self.world.allocator.pool_create(device as i32, 0, &mut name).judge(self.situation());
        self.place_pool(device, name);
        Arc::new(GraphPool { device, name, domain: Arc::new(Domain::new("graph".to_owned())), group: None, last })
    }

    /// Captures a graph.
    pub(crate) fn capture(&mut self) {
        if self.graphs.len() >= MOST_GRAPHS {
            return self.graph_end();
        }
        let device = self.any_device();
        self.enter(device);
        let pool = self.graph_pool(device);
        let domain = Arc::clone(&pool.domain);
        if let Some(awake) = domain.awake() {
            if let Some(graph) = self.capture_in(&pool) {
                self.graphs.push(graph);
                add(&self.world.tally.graphs);
            }
            drop(awake);
        }
        self.end_pool_without_graphs(&pool);
    }

    /// Captures a graph with memory of a pool.
    fn capture_in(&mut self, pool: &Arc<GraphPool>) -> Option<Graph> {
        let (device, allocator) = (pool.device, self.world.allocator);
        let make = || Stream::make(&self.world.driver, device, 1);
        let mut capture = Capture { stream: make(), side: make(), jobs: Vec::new(), blocks: Vec::new() };
        let handle = capture.stream.handle;
        let route = if self.rng.bool() { CACHALOT_ROUTE_THREAD } else { CACHALOT_ROUTE_STREAM };
        let mode = self.rng.i32(0..3);
        // A park on another thread breaks captures that were not announced.
        let announced_first = self.world.case.threads > 1 || self.world.case.faults || self.rng.bool();
        let begin = || allocator.capture_begin(device as i32, pool.name, route, abi::stream(handle));
        self.world.captures.fetch_add(1, Ordering::Relaxed);
        if announced_first && !begin().judge(self.situation()) {
            self.world.captures.fetch_sub(1, Ordering::Relaxed);
            self.end_capture_streams(&capture.stream, &capture.side, pool);
            return None;
        }
        insist("cuStreamBeginCapture", || self.world.driver.begin_capture(handle, mode));
        if !announced_first {
            begin().judge(self.situation());
        }
        for _ in 0..self.rng.u8(2..12) {
            self.captured_operation(&mut capture, pool);
        }
        // An event of the whole device, recorded by another thread in between, breaks the capture.
        let ends_first = self.rng.bool() && self.world.case.threads == 1;
        let end = || allocator.capture_end(device as i32, pool.name);
        if ends_first {
            end().judge(self.situation());
        }
        let mut graph = 0;
        let code = self.world.driver.end_capture(handle, &mut graph);
        if !ends_first {
            end().judge(self.situation());
        }
        self.world.captures.fetch_sub(1, Ordering::Relaxed);
        self.say(|| format!("captured in {:?}: {code}", pool.name));
        if code != 0 && !self.world.case.faults {
            finding::report("capture", &format!("the end of a capture answers {code}"));
        }
        let Capture { stream, side, jobs, mut blocks } = capture;
        let mut executable = 0;
        if code == 0 {
            insist("cuGraphInstantiate", || self.world.driver.instantiate(&mut executable, graph, 0));
        }
        self.end_capture_streams(&stream, &side, pool);
        let graph = Graph { executable, template: graph, pool: Arc::clone(pool), jobs, outputs: Vec::new() };
        if code != 0 {
            blocks.drain(..).for_each(|block| self.give_up(block, false));
            allocator.pool_release(device as i32, pool.name).judge(self.situation());
            return None;
        }
        Some(Graph { outputs: blocks, ..graph })
    }

    /// Ends the streams of a capture, which have no work.
    fn end_capture_streams(&mut self, stream: &Arc<Stream>, side: &Arc<Stream>, pool: &GraphPool) {
        for ended in [stream, side] {
            self.end_for_good(ended);
        }
        debug_assert_eq!(stream.device, pool.device);
    }

    /// Runs an operation during a capture.
    fn captured_operation(&mut self, capture: &mut Capture, pool: &GraphPool) {
        let index = (!capture.blocks.is_empty()).then(|| self.rng.usize(..capture.blocks.len()));
        match (self.rng.u8(..10), index) {
            (0..4, _) | (_, None) => {
                let bytes = self.any_size().min(8 << 20);
                let stream = Arc::clone(&capture.stream);
                let mut extra = Situation::CAPTURE;
                if self.world.case.tight {
                    extra |= Situation::SHORT;
                }
                if let Some(mut block) = self.request(bytes, &stream, &pool.domain, extra) {
                    self.captured_write(capture, &mut block);
                    capture.blocks.push(block);
                }
            }
            (4..6, Some(index)) => {
                let mut block = capture.blocks.swap_remove(index);
                self.captured_write(capture, &mut block);
                capture.blocks.push(block);
            }
            (6..8, Some(index)) => self.captured_check(capture, index, false),
            (8, Some(index)) => self.captured_check(capture, index, true),
            (_, Some(index)) => {
                self.captured_check(capture, index, false);
                let block = capture.blocks.swap_remove(index);
                let before = self.blocks.len();
                self.give_up(block, false);
                if let Some(kept) = self.blocks.get(before).map(|block| block.address) {
                    // A failed free: the graph's block stays one.
                    let at = self.blocks.iter().position(|block| block.address == kept).unwrap_or(before);
                    capture.blocks.push(self.blocks.swap_remove(at));
                }
            }
        }
    }

    /// Writes to a block within the graph.
    fn captured_write(&self, capture: &mut Capture, block: &mut Block) {
        let tag = self.world.tags.fetch_add(1, Ordering::Relaxed);
        block.contents = Contents::Tag(tag);
        let job = self.submit(&capture.stream, block.address, block.bytes, Action::Write(tag), true);
        capture.jobs.push(Kept(job));
    }

    /// Checks a block within the graph, on the stream of the capture or on a fork with an immediate
    /// join.
    fn captured_check(&self, capture: &mut Capture, index: usize, fork: bool) {
        let block = &capture.blocks[index];
        let (stream, side, driver) = (&capture.stream, &capture.side, &self.world.driver);
        let on = if fork { side } else { stream };
        let event = self.events[stream.device];
        let join = |from: &Stream, to: &Stream| {
            insist("cuEventRecord", || driver.event_record(event, from.handle));
            insist("cuStreamWaitEvent", || driver.stream_wait(to.handle, event, 0));
        };
        if fork {
            join(stream, side);
        }
        let job = self.submit(on, block.address, block.bytes, Action::Check(block.contents), true);
        if fork {
            let reply = self.world.allocator.record_stream(abi::pointer(block.address), abi::stream(side.handle));
            reply.judge(self.situation());
            join(side, stream);
        }
        capture.jobs.push(Kept(job));
    }

    /// Replays a graph on a stream, and checks the outputs.
    pub(crate) fn replay(&mut self) {
        if self.graphs.is_empty() {
            return;
        }
        let index = self.rng.usize(..self.graphs.len());
        let pool = Arc::clone(&self.graphs[index].pool);
        let stream = self.any_stream_of(pool.device);
        let Some(_awake) = pool.domain.awake() else { return };
        let Some(_alive) = stream.alive() else { return };
        let mut last = pool.last.lock();
        if !self.order(&stream, &last) {
            return;
        }
        *last = Arc::clone(&stream);
        self.enter(pool.device);
        let graph = &self.graphs[index];
        insist("cuGraphLaunch", || self.world.driver.graph_launch(graph.executable, stream.handle));
        for block in &graph.outputs {
            self.submit(&stream, block.address, block.bytes, Action::Check(block.contents), false);
        }
        self.say(|| format!("replay on {:#x}", stream.handle));
        add(&self.world.tally.replays);
    }

    /// Ends a graph.
    pub(crate) fn graph_end(&mut self) {
        if !self.graphs.is_empty() {
            let index = self.rng.usize(..self.graphs.len());
            let graph = self.graphs.swap_remove(index);
            self.end_graph(graph);
        }
    }

    /// Ends every graph of the thread.
    pub(crate) fn end_graphs(&mut self) {
        while !self.graphs.is_empty() {
            self.graph_end();
        }
    }

    /// Ends a graph after the end of all launches, and frees the outputs.
    fn end_graph(&mut self, graph: Graph) {
        let Graph { executable, template, pool, jobs, outputs } = graph;
        let last = Arc::clone(&pool.last.lock());
        // The work of a launch is behind that of the stream, or of its end.
        self.wait_for(&last);
        insist("cuGraphExecDestroy", || self.world.driver.executable_destroy(executable));
        insist("cuGraphDestroy", || self.world.driver.graph_destroy(template));
        drop(jobs);
        for block in outputs {
            self.give_up(block, false);
        }
        self.world.allocator.pool_release(pool.device as i32, pool.name).judge(self.situation());
        self.end_pool_without_graphs(&pool);
    }

    /// Releases a pool without graphs.
    fn end_pool_without_graphs(&mut self, pool: &GraphPool) {
        if self.graphs.iter().any(|graph| graph.pool.name == pool.name && graph.pool.device == pool.device) {
            return;
        }
        match &pool.group {
            Some(group) => self.end_group(group),
            None => {
                self.world.allocator.pool_release(pool.device as i32, pool.name).judge(self.situation());
            }
        }
    }
}
