//! A thread of the program: chooses operations and does them.

pub(crate) mod block;
mod graphs;
mod inspect;
mod loans;
mod memory;
mod mistakes;
pub(crate) mod parking;
mod pins;
mod pools;
mod ranges;
mod rehearse;
mod streams;
mod upkeep;

use crate::driver::insist;
use crate::finding::{self, Origin};
use crate::permitted::Situation;
use crate::places::{Kind, Stream};
use crate::world::World;
use block::Block;
use fastrand::Rng;
use graphs::Graph;
pub(crate) use inspect::collect;
use pins::Pin;
use ranges::Reserved;
use std::cell::Cell;
use std::sync::Arc;

/// A thread of the program.
pub(crate) struct Worker {
    pub(crate) world: &'static World,
    pub(crate) id: u32,
    rng: Rng,
    /// The next operation.
    next: u64,
    /// The device whose context is current.
    device: Cell<usize>,
    /// An event of each device, used again for every order of two streams.
    pub(crate) events: Vec<u64>,
    /// The thread's own default stream of each device, in the present phase.
    own: Vec<Arc<Stream>>,
    /// Blocks of the thread.
    pub(crate) blocks: Vec<Block>,
    ranges: Vec<Reserved>,
    graphs: Vec<Graph>,
    pins: Vec<Pin>,
    /// Private pools without a tag, each with a single user.
    pools: Vec<pools::Pool>,
}

/// An operation: the weight and the method.
type Operation = (u32, &'static str, fn(&mut Worker));

/// The operations.
const OPERATIONS: &[Operation] = &[
    (240, "malloc", Worker::malloc),
    (170, "free", Worker::free),
    (40, "free_sized", Worker::free_sized),
    (60, "write", Worker::write),
    (60, "check", Worker::check),
    (90, "use_elsewhere", Worker::use_elsewhere),
    (60, "offer", Worker::offer),
    (60, "take", Worker::take),
    (6, "describe", Worker::describe),
    (12, "make_stream", Worker::make_stream),
    (10, "end_stream", Worker::end_stream),
    (4, "synchronize", Worker::synchronize),
    (14, "pool_requests", Worker::pool_requests),
    (4, "pool_make", Worker::pool_make),
    (3, "pool_end", Worker::pool_end),
    (4, "group_make", Worker::group_make),
    (30, "group_requests", Worker::group_requests),
    (2, "group_end", Worker::group_end),
    (16, "park", Worker::park),
    (24, "wake", Worker::wake),
    (8, "lend", Worker::lend),
    (4, "park_settings", Worker::park_settings),
    (10, "range_reserve", Worker::range_reserve),
    (30, "range_commit", Worker::range_commit),
    (20, "range_decommit", Worker::range_decommit),
    (30, "range_use", Worker::range_use),
    (6, "range_release", Worker::range_release),
    (10, "pin", Worker::pin),
    (10, "unpin", Worker::unpin),
    (20, "advise", Worker::advise),
    (8, "capture", Worker::capture),
    (20, "replay", Worker::replay),
    (6, "graph_end", Worker::graph_end),
    (10, "process_events", Worker::process_events),
    (2, "empty_cache", Worker::empty_cache),
    (4, "trim", Worker::trim),
    (6, "maintain", Worker::maintain),
    (2, "limit", Worker::limit),
    (2, "configure", Worker::configure),
    (2, "set_caching", Worker::set_caching),
    (4, "iteration", Worker::iteration),
    (4, "statistics", Worker::statistics),
    (1, "texts", Worker::texts),
    (1, "trace", Worker::trace),
    (12, "forecast", Worker::forecast),
    (2, "would_fit", Worker::would_fit),
    (8, "mistake", Worker::mistake),
];

impl Worker {
    /// Returns a thread with no blocks.
    pub(crate) fn new(world: &'static World, id: u32) -> Self {
        Self {
            world,
            id,
            rng: Rng::with_seed(0),
            next: 0,
            device: Cell::new(usize::MAX),
            events: Vec::new(),
            own: Vec::new(),
            blocks: Vec::new(),
            ranges: Vec::new(),
            graphs: Vec::new(),
            pins: Vec::new(),
            pools: Vec::new(),
        }
    }

    /// Makes a device's context the calling thread's.
    pub(crate) fn enter(&self, device: usize) {
        if self.device.get() != device {
            let context = self.world.contexts[device];
            insist("cuCtxSetCurrent", || self.world.driver.set_current(context));
            self.device.set(device);
        }
    }

    /// Prepares the calling thread: a new thread, or the thread of the phase before.
    pub(crate) fn begin(&mut self) {
        finding::set_origin(Origin { thread: self.id, op: self.next });
        self.device.set(usize::MAX);
        let mut relaxed = 2;
        insist("cuThreadExchangeStreamCaptureMode", || self.world.driver.capture_mode(&mut relaxed));
        let devices = self.world.case.devices as usize;
        for device in 0..devices {
            self.enter(device);
            if self.events.len() <= device {
                let mut event = 0;
                insist("cuEventCreate", || self.world.driver.event_create(&mut event, 2));
                self.events.push(event);
            }
        }
        self.own = (0..devices).map(|device| Stream::new(2, device, Kind::OfThread(self.id))).collect();
    }

    /// Does the operations of a phase on the calling thread.
    pub(crate) fn run(&mut self, ops: u64) {
        let total: u32 = OPERATIONS.iter().map(|(weight, ..)| weight).sum();
        for _ in 0..ops {
            let op = self.next;
            self.next += 1;
            finding::set_origin(Origin { thread: self.id, op });
            crate::watch::note(self.id, op);
            if self.world.case.skips(op) {
                continue;
            }
            self.rng = Rng::with_seed(crate::mix(self.world.case.seed, u64::from(self.id) + 16, op));
            let mut choice = self.rng.u32(..total);
            let chosen = OPERATIONS.iter().find(|(weight, ..)| {
                let found = choice < *weight;
                choice = choice.wrapping_sub(*weight);
                found
            });
            let Some((_, name, act)) = chosen else { continue };
            if self.world.case.leaves_out(name) {
                continue;
            }
            if self.world.trace {
                println!("{}:{op} {name}", self.id);
            }
            act(self);
        }
    }

    /// Ends the phase on the calling thread: announces the end of the thread's own default streams.
    pub(crate) fn pause(&mut self) {
        for device in 0..self.own.len() {
            self.end_own_stream(device);
        }
    }

    /// Returns how many operations the thread has done.
    pub(crate) fn done(&self) -> u64 {
        self.next
    }

    /// Returns the blocks of the thread and of the thread's graphs.
    pub(crate) fn all_blocks(&self) -> impl Iterator<Item = &Block> {
        self.blocks.iter().chain(self.graphs.iter().flat_map(Graph::outputs))
    }

    /// Returns how many ranges the thread has on a device, and their committed bytes.
    pub(crate) fn ranges_of(&self, device: usize) -> (i64, i64) {
        let own = self.ranges.iter().filter(|reserved| reserved.is_on(device));
        own.fold((0, 0), |(count, bytes), reserved| (count + 1, bytes + reserved.committed_bytes() as i64))
    }

    /// Returns the first and the last address of each range.
    pub(crate) fn range_addresses(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ranges.iter().map(Reserved::addresses)
    }

    /// Checks and frees every block, and releases everything else of the thread.
    pub(crate) fn give_all_back(&mut self) {
        self.rng = Rng::with_seed(0);
        self.end_graphs();
        for mut block in std::mem::take(&mut self.blocks) {
            let stream = self.stream_for(&block);
            self.touch(&mut block, &stream, false);
            self.give_up(block, false);
        }
        self.release_ranges();
        self.unpin_all();
        self.release_pools();
        self.pause();
    }

    /// Returns the situation of a call.
    pub(crate) fn situation(&self) -> Situation {
        self.world.situation()
    }

    /// Prints a line about an operation, for a trace.
    pub(crate) fn say(&self, text: impl FnOnce() -> String) {
        if self.world.trace {
            println!("    {}", text());
        }
    }

    /// Returns a random device.
    pub(crate) fn any_device(&mut self) -> usize {
        self.rng.usize(..self.world.case.devices as usize)
    }

    /// Returns a random stream.
    pub(crate) fn any_stream(&mut self) -> Arc<Stream> {
        let device = self.any_device();
        self.any_stream_of(device)
    }

    /// Returns a random stream of a device.
    pub(crate) fn any_stream_of(&mut self, device: usize) -> Arc<Stream> {
        match self.rng.u8(..20) {
            0 => return Arc::clone(&self.world.legacy[device]),
            1 => return Arc::clone(&self.own[device]),
            _ => {}
        }
        let streams = self.world.streams.read();
        let found: Vec<_> = streams.iter().filter(|stream| stream.device == device).collect();
        match found.len() {
            0 => Arc::clone(&self.world.legacy[device]),
            count => Arc::clone(found[self.rng.usize(..count)]),
        }
    }

    /// Returns the index of a random block.
    pub(crate) fn any_block(&mut self) -> Option<usize> {
        (!self.blocks.is_empty()).then(|| self.rng.usize(..self.blocks.len()))
    }
}
