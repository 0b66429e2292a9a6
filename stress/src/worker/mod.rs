//! A thread of a run: the thread's blocks, and the choice of the next step.
//!
//! ```text
//!  malloc ─▶ fresh ─ fill ─▶ filled ─ verify ─▶ ready ─▶ free
//!                              │  ▲
//!                              ▼  │  visit: another stream waits, verifies, perhaps writes anew
//! ```
//!
//! `fresh` and `filled` are lists per place: the lane in whose order the contents are known.
//! Kernels are queued for many blocks at once; only requests and frees are made singly.

mod advise;
mod audit;
mod bare_capture;
mod disturb;
mod ending;
mod graph;
mod guest;
mod inspect;
mod move_blocks;
mod nap;
mod park;
mod ranges;
mod refusals;
mod tenants;

pub(crate) use ending::check_lost;

use crate::block::Block;
use crate::captures::Moment;
use crate::checker::Checker;
use crate::shared::Shared;
use crate::stage::{Device, Line, part};
use crate::times::{Counts, Latency};
use crate::verdict::Kind;
use crate::{instrumented, sizes};
use cachalot_core::{DeviceError, DevicePtr, DeviceResult, Error, Event, GRAIN};
use cachalot_cuda::driver::types::CuContext;
use cachalot_kernels::Life;
use fastrand::Rng;
use graph::{Graph, Site};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// A thread's use of a lane.
struct Place {
    device: usize,
    lane: usize,
    checker: Checker,
    /// Blocks requested on the lane, without contents.
    fresh: Vec<Block>,
    /// Blocks written in the order of the lane.
    filled: Vec<Block>,
}

/// A route of the thread's requests into a private pool.
struct PoolRoute {
    device: usize,
    pool: cachalot_core::PoolId,
    /// The count of requests and frees at which the route ends.
    ends_at: u64,
}

/// A thread of a run.
pub(crate) struct Worker {
    shared: &'static Shared,
    number: u32,
    rng: Rng,
    places: Vec<Place>,
    /// Checked blocks, ready for the free.
    ready: Vec<Block>,
    /// Live bytes, by device.
    held: Vec<u64>,
    /// Event for ordering two streams, by device.
    order: Vec<Event>,
    sites: Vec<Site>,
    graphs: Vec<Graph>,
    /// Number of graphs with a tag so far.
    tags: u64,
    route: Option<PoolRoute>,
    /// The device whose cache the thread disabled.
    uncached: Option<usize>,
    /// The count of requests and frees at which the thread's temporary settings end.
    settings_end_at: Option<u64>,
    /// Number of rounds so far. Every second round is quiet: requests and frees only, so calls take
    /// the fast path.
    rounds: u64,
    /// Whether the thread's share is done.
    is_done: bool,
    blocks_made: u64,
    pub(crate) latency: Latency,
    pub(crate) counts: Counts,
}

/// Steps out of a thousand besides requests and frees.
const OTHER_STEPS: u32 = 40;
/// Largest used fraction of a thread's share of the device.
const SHARE: (u64, u64) = (1, 2);
/// Steps between two readings of the clock.
const STEPS_BETWEEN_LOOKS: u64 = 64;
/// Bits of a block's number for the count within a thread.
const BLOCK_BITS: u32 = 40;

impl Worker {
    /// Creates a thread's part, with separate device memory and streams.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn new(shared: &'static Shared, number: u32) -> DeviceResult<Self> {
        let options = &shared.options;
        let mut places = Vec::new();
        let (mut order, mut sites) = (Vec::new(), Vec::new());
        for (at, device) in shared.devices.iter().enumerate() {
            let each = Checker::bytes(options.batch);
            let memory = device.own_memory((device.lanes.len() as u64 + 1) * each)?;
            shared.own.lock().push((at, memory.address().0, memory.bytes()));
            let reader = device.make_line()?.handle;
            for lane in 0..device.lanes.len() {
                let checker = Checker::new(device, part(memory, lane as u64 * each, each), options.batch, reader)?;
                places.push(Place { device: at, lane, checker, fresh: Vec::new(), filled: Vec::new() });
            }
            order.push(device.make_order_event()?);
            let results = part(memory, device.lanes.len() as u64 * each, each);
            sites.push(Site::new(device, results, reader)?);
        }
        // Threads choose differently, but each thread's choices do not depend on the other threads.
        let seed = options.seed() ^ u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Ok(Self {
            shared,
            number,
            rng: Rng::with_seed(seed),
            places,
            ready: Vec::new(),
            held: vec![0; shared.devices.len()],
            order,
            sites,
            graphs: Vec::new(),
            tags: 0,
            route: None,
            uncached: None,
            settings_end_at: None,
            rounds: 0,
            is_done: false,
            blocks_made: 0,
            latency: Latency::default(),
            counts: Counts::default(),
        })
    }

    /// Works until the run ends, then frees all blocks.
    pub(crate) fn run(&mut self) {
        self.enter_context();
        while !self.shared.is_ending() {
            self.round();
            self.meet();
        }
        self.end();
    }

    /// Makes a context current in every second thread, and no context in the remaining threads.
    fn enter_context(&self) {
        let first = &self.shared.devices[0];
        let context = if self.number.is_multiple_of(2) { first.cuda.cu_context() } else { CuContext::NULL };
        Device::make_current(first.cuda.driver(), context);
    }

    /// Makes steps until the threads meet.
    fn round(&mut self) {
        let shared = self.shared;
        // All threads make equal shares of the run's requests and frees.
        let quota = shared.options.ops.map_or(u64::MAX, |ops| ops.div_ceil(u64::from(shared.options.threads)));
        let before = self.counts.ops;
        let mut steps = 0_u64;
        while self.counts.ops < quota && self.counts.ops - before < shared.options.round {
            // A run without a time limit must be repeatable.
            let look = steps.is_multiple_of(STEPS_BETWEEN_LOOKS);
            if look && (shared.is_stopped() || shared.is_time_over()) {
                return;
            }
            steps += 1;
            self.step();
        }
        // Counted once per thread: `Shared::decide_end` compares the sum with the number of
        // threads.
        if self.counts.ops >= quota && !self.is_done {
            self.is_done = true;
            shared.done.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Makes a random step.
    fn step(&mut self) {
        let disturbed = self.rng.u64(0..self.shared.options.disturb) == 0;
        let quiet = self.is_quiet();
        if self.settings_end_at.is_some_and(|at| at <= self.counts.ops) {
            self.undo_settings();
        }
        if disturbed && !quiet {
            self.disturb();
        }
        if self.rng.u32(0..1000) < OTHER_STEPS {
            return self.other_step();
        }
        // A visit takes a quarter of a batch, so about a fifth of all blocks is used by another
        // stream.
        if !quiet && self.rng.u32(0..self.shared.options.batch.max(8)) < 2 {
            self.visit();
        }
        let target = u64::from(self.shared.options.blocks);
        let held = self.places.iter().map(|place| place.fresh.len() + place.filled.len()).sum::<usize>();
        let more = (held + self.ready.len()) as u64 <= target;
        // Drifts towards the target, and swings around the target.
        let request = self.rng.u32(0..100) < if more { 55 } else { 45 };
        let before = self.counts.ops;
        if request || !self.free_one() {
            self.request_one();
        }
        // Count the step in any case: the run must end even if no call succeeds.
        self.counts.ops = self.counts.ops.max(before + 1);
    }

    /// Makes a step besides requests and frees.
    fn other_step(&mut self) {
        match self.rng.u32(0..10) {
            0 | 1 => self.exchange(),
            2..=4 => self.inspect(),
            _ => self.replay(),
        }
    }

    /// Returns whether the present round consists of requests and frees only.
    fn is_quiet(&self) -> bool {
        self.rounds % 2 == 1
    }

    fn line(&self, place: usize) -> Line {
        let Place { device, lane, .. } = self.places[place];
        self.shared.devices[device].lanes[lane].line()
    }

    /// Requests a block on a random lane, for a later fill together with other blocks.
    fn request_one(&mut self) {
        let place = self.rng.usize(0..self.places.len());
        let device = self.places[place].device;
        let total = self.shared.devices[device].total_bytes;
        let bytes = sizes::pick(&mut self.rng, self.shared.options.max_bytes(total));
        // The bound leaves memory for the caches. A thread without live blocks may exceed the
        // bound, or no thread would ever request the largest sizes.
        let share = total / u64::from(self.shared.options.threads) / SHARE.1 * SHARE.0;
        if self.held[device] + bytes > share && self.held[device] > 0 {
            self.free_one();
            return;
        }
        match self.obtain(device, self.line(place), bytes, true) {
            Some(block) => {
                self.places[place].fresh.push(block);
                if self.places[place].fresh.len() >= self.shared.options.batch as usize {
                    self.fill(place);
                }
            }
            None => self.free_several(),
        }
    }

    /// Requests a block from the allocator. Returns `None` if the request failed.
    fn obtain(&mut self, device: usize, on: Line, bytes: u64, claimed: bool) -> Option<Block> {
        let since = self.shared.captures.now();
        let obtained = self.try_obtain(device, on, bytes, claimed);
        obtained.inspect_err(|error| self.failed_releasing("malloc", error, since)).ok()
    }

    /// Requests a block from the allocator.
    ///
    /// # Errors
    /// The allocator's, not yet judged.
    fn try_obtain(&mut self, device: usize, on: Line, bytes: u64, claimed: bool) -> Result<Block, Error> {
        let (shared, home) = (self.shared, on.id);
        self.counts.ops += 1;
        // A request without a device call for memory is a hit. The counter is per thread, so other
        // threads do not disturb the comparison.
        let calls_before = instrumented::memory_calls();
        let begin = Instant::now();
        let answer = shared.subject.malloc(shared.devices[device].index, bytes, home);
        let took = begin.elapsed();
        let ptr = answer?;
        let hit = instrumented::memory_calls() == calls_before;
        if hit {
            self.latency.malloc_hit.add(took);
        } else {
            self.latency.malloc_miss.add(took);
        }
        shared.live.fetch_add(1, Ordering::AcqRel);
        self.counts.mallocs += 1;
        self.counts.digest(ptr.0, bytes);
        self.held[device] += bytes;
        self.blocks_made += 1;
        // Unique within the run: the thread's number in the high bits, the thread's count in the
        // low bits.
        let number = (u64::from(self.number) << BLOCK_BITS) + self.blocks_made;
        if claimed {
            self.claim(ptr, bytes, number);
        }
        let life = Life { block: number, generation: 0 };
        Ok(Block { ptr, bytes, device, home, life, written: false, visits: Vec::new(), claimed })
    }

    /// Marks memory as in use in the shadow map.
    fn claim(&self, ptr: DevicePtr, bytes: u64, block: u64) {
        use crate::shadow::Conflict;
        let (kind, text) = match self.shared.shadow.claim(ptr, bytes) {
            Ok(()) => return,
            Err(Conflict::NotABlock) => (Kind::Books, "cannot be a block's address".to_owned()),
            Err(Conflict::InUse(at)) => (Kind::Overlap, format!("the memory at {at} is in use")),
            Err(Conflict::StillVisited(other)) => {
                (Kind::Pending, format!("a stream still uses block {other:#x}, which was there"))
            }
        };
        self.shared.verdict.report(kind, format!("block {block:#x}, {bytes} bytes at {ptr}: {text}"));
    }

    /// Frees a block. If the free fails, returns the block, which stays live.
    fn free_block(&mut self, mut block: Block) -> Result<(), Block> {
        let shared = self.shared;
        let (ptr, bytes) = (block.ptr, block.bytes);
        let visited = !block.visits.is_empty();
        // Unclaim before the free. As soon as the free takes effect, another thread may receive and
        // claim the memory.
        if block.claimed && !shared.shadow.unclaim(ptr, bytes) {
            shared.verdict.report(Kind::Books, format!("block {:#x} at {ptr} lost its claim", block.life.block));
        }
        // Under the stitched policy the block may serve its own stream while visits go on: later
        // work of the stream waits for them on the device. Their kernels check the contents, which
        // an earlier write would spoil.
        let pends = visited && shared.config.policy_name() != "stitched";
        if pends {
            // Register the visits before the free, for a new claim to find them.
            shared.shadow.pend(ptr, bytes, block.life.block, std::mem::take(&mut block.visits));
        }
        self.counts.ops += 1;
        let sized = self.rng.bool();
        let begin = Instant::now();
        let answer = if sized { shared.subject.free_sized(ptr, bytes) } else { shared.subject.free(ptr) };
        let took = begin.elapsed();
        match answer {
            Ok(()) => {
                if visited {
                    self.latency.free_visited.add(took);
                } else {
                    self.latency.free.add(took);
                }
                shared.live.fetch_sub(1, Ordering::AcqRel);
                self.counts.frees += 1;
                self.held[block.device] -= bytes;
                Ok(())
            }
            Err(error) => {
                self.failed(&format!("free of block {:#x} at {ptr}", block.life.block), &error);
                // The block is live again, so restore the visits and the claim.
                if pends {
                    block.visits = shared.shadow.unpend(ptr);
                }
                if block.claimed {
                    self.claim(ptr, bytes, block.life.block);
                }
                Err(block)
            }
        }
    }

    /// Frees a checked block; checks blocks first if none is ready. Returns false if no block is
    /// left.
    fn free_one(&mut self) -> bool {
        if self.ready.is_empty() {
            self.retire();
        }
        if self.ready.is_empty() {
            return false;
        }
        let at = self.rng.usize(0..self.ready.len());
        let block = self.ready.swap_remove(at);
        if let Err(block) = self.free_block(block) {
            self.ready.push(block);
        }
        true
    }

    /// Frees several blocks after a lack of memory.
    fn free_several(&mut self) {
        for _ in 0..8 {
            if !self.free_one() {
                return;
            }
        }
    }

    /// Records a call refused by the allocator.
    fn failed(&mut self, what: &str, error: &Error) {
        match error {
            Error::OutOfMemory(_) | Error::Rejected(_) => self.counts.ooms += 1,
            Error::Device(error) => self.device_failed(what, *error),
            other => self.shared.refused(what, other),
        }
    }

    /// Records a failed call that started at `since` and may have needed a release of memory to the
    /// device.
    fn failed_releasing(&mut self, what: &str, error: &Error, since: Moment) {
        if self.shared.is_due_to_capture(error, since) {
            self.counts.captured += 1;
        } else {
            self.failed(what, error);
        }
    }

    /// Records a call refused by the device.
    fn device_failed(&mut self, what: &str, error: DeviceError) {
        self.counts.errors += 1;
        self.shared.device_failed(what, error);
    }
}

/// Returns whether two blocks share memory.
fn overlap(a: &Block, b: &Block) -> bool {
    let end = |block: &Block| (block.ptr.0 + block.bytes).next_multiple_of(GRAIN);
    a.ptr.0 < end(b) && b.ptr.0 < end(a)
}
