//! A model of the allocator, written from the reference alone. The model scans lists where the core
//! has an index, updates every statistic at once, and allocates from a simulated device of its own.
//! Core and model must give equal results for equal calls.
//!
//! The reference leaves some orders open, such as the order in which streams are polled, or unused
//! pools released. There the model follows the core, so that results are comparable.

pub mod agreement;
mod blocks;
mod expandable;
mod graph;
mod ladder;
mod order;
mod pools;
mod rounding;
mod statistics;

use blocks::{Memory, Owner, State, Use};
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{
    BlockState, Config, DeviceError, DeviceIndex, DevicePtr, PoolKind, Segments, SnapshotBlock, SnapshotSegment,
    StreamId, StreamOrder,
};
use graph::Graph;
use order::{Queue, Waits};
pub use pools::Purpose;
use pools::{Pool, RouteEntry};
use statistics::Statistics;
use std::collections::{BTreeMap, BTreeSet};

/// Expected contents of a report on a shortage. All sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortage {
    /// Size that the program requested.
    pub requested: u64,
    /// Size of the block for the request.
    pub block: u64,
    /// Size of the segment for the block.
    pub segment: u64,
    /// Allocated by the program.
    pub allocated: u64,
    /// Reserved from the device.
    pub reserved: u64,
    /// Freed, with pending events.
    pub pending: u64,
    /// Free in private pools.
    pub private_free: u64,
    /// Largest free block that the request could use, if it were large enough.
    pub largest_free: u64,
    /// Largest other free block.
    pub largest_free_elsewhere: u64,
}

/// The reason why a call failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Neither the cache nor the device has enough memory.
    OutOfMemory(Shortage),
    /// The request exceeds the configured fraction, and no memory may be released for the request.
    Rejected(u64),
    /// The request exceeds the memory of any device.
    TooLarge,
    /// No block begins at the address.
    InvalidPointer,
    /// The block was requested with another size.
    WrongSize,
    /// The pool does not exist.
    UnknownPool,
    /// A captured graph has memory of the pool.
    GraphMemory,
    /// The pool exists already.
    PoolExists,
    /// The route does not exist.
    NotRouted,
    /// A call to the device failed.
    Device(DeviceError),
    /// An error without a counterpart in the model.
    Unexpected,
}

impl From<DeviceError> for Refusal {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

/// The result of a call.
pub type Answer<T> = Result<T, Refusal>;

/// The model of the allocator of one device.
pub struct Model {
    /// The source of all memory.
    pub device: SimulatedDevice,
    number: u32,
    config: Config,
    limit: Option<u64>,
    caching: bool,
    memory: Memory,
    /// The pools by number. Number 0 is the default pool; a vacant number is reused.
    pools: Vec<Option<Pool>>,
    routes: Vec<RouteEntry>,
    /// Number of the groups of streams, whose events are polled one group after the other.
    groups: u64,
    /// The queues of the streams, in the order in which events are polled.
    queues: Vec<Queue>,
    waits: Vec<Waits>,
    /// Addresses of the blocks whose events are recorded after the last capture.
    deferred: Vec<u64>,
    graph: Graph,
    /// Pools and streams reported as ended, without a request since.
    ended: BTreeSet<(usize, StreamId)>,
    statistics: Statistics,
}

#[derive(Clone, Copy)]
struct Request {
    bytes: u64,
    size: u64,
    owner: Owner,
    /// Whether a graph is being captured on the stream.
    capturing: bool,
}

impl Model {
    /// Creates a model of the allocator of device number `number`, with so many groups of streams.
    ///
    /// # Panics
    /// If the simulated device cannot report its memory.
    pub fn new(device: SimulatedDevice, number: u32, groups: u64, config: &Config) -> Self {
        let mut model = Self {
            device,
            number,
            config: config.clone(),
            limit: None,
            caching: true,
            memory: Memory::default(),
            pools: vec![Some(Pool::the_default())],
            routes: Vec::new(),
            groups,
            queues: Vec::new(),
            waits: Vec::new(),
            deferred: Vec::new(),
            graph: Graph::default(),
            ended: BTreeSet::new(),
            statistics: Statistics::new(config.max_split_size()),
        };
        let fraction = config.per_process_memory_fraction();
        if fraction < 1.0 {
            let total = model.device.memory_info().expect("a new device tells").total;
            model.limit = Some((fraction * total as f64).round() as u64);
        }
        model
    }

    /// Serves a request for `bytes` on `stream`, or explains the failure.
    ///
    /// # Errors
    /// [`Refusal::TooLarge`], [`Refusal::OutOfMemory`], and errors of the device.
    pub fn malloc(&mut self, bytes: u64, stream: StreamId) -> Answer<DevicePtr> {
        if bytes == 0 {
            return Ok(DevicePtr::NULL);
        }
        let size = rounding::round(bytes, &self.config).ok_or(Refusal::TooLarge)?;
        let route = self.route(stream);
        let capturing = self.is_capturing() && self.device.is_capturing(stream)?;
        let pool = route.map_or(0, |route| self.routes[route].pool);
        if let Some(route) = route
            && !capturing
            && self.routes[route].purpose == Purpose::Unsaid
        {
            self.routes[route].capture = false;
        }
        let owner = Owner { pool, kind: rounding::kind(size), stream };
        self.ended.remove(&(pool, stream));
        let request = Request { bytes, size, owner, capturing };
        if capturing && owner.pool != 0 {
            self.pool_mut(owner.pool).captured = true;
        }
        if !capturing && self.is_pending() && !(self.gathers() && self.caching) {
            self.process_events()?;
        }
        if capturing {
            self.free_captured(stream);
        }
        if !self.caching {
            let addr = match self.obtain(&request)? {
                Some(addr) => addr,
                None => self.reclaim(&request)?,
            };
            return Ok(DevicePtr(addr));
        }
        if self.keeps_ages() {
            self.pool_mut(owner.pool).searches[owner.kind as usize] += 1;
        }
        let addr = match self.search(&request) {
            Some(addr) => addr,
            None => match self.search_gathered(&request)? {
                Some(addr) => addr,
                None => self.reclaim(&request)?,
            },
        };
        Ok(DevicePtr(addr))
    }

    /// Frees a block. `size`, if given, must equal the requested size.
    ///
    /// # Errors
    /// [`Refusal::InvalidPointer`], [`Refusal::WrongSize`], and errors of the device. The state is
    /// then unchanged.
    pub fn free(&mut self, ptr: DevicePtr, size: Option<u64>) -> Answer<()> {
        if ptr == DevicePtr::NULL {
            return Ok(());
        }
        let (kind, bytes) = self.held(ptr)?;
        let block = self.memory.block(ptr.0);
        if size.is_some_and(|size| size != block.requested) {
            return Err(Refusal::WrongSize);
        }
        let used = !block.uses.is_empty();
        // A graph that is being captured may do other work beside the uses that it has.
        let captured = self.is_capturing() && self.memory.block(ptr.0).uses.iter().any(|of| of.captured);
        let noted = used && self.note_captured_free(ptr.0);
        let gathered = used && self.gathers() && !captured && !noted;
        let deferred = used && !gathered && (self.is_capturing() || self.is_behind_a_capture(ptr.0));
        let due = if gathered { self.gather(ptr.0) } else { None };
        if deferred && !self.is_capturing() && !noted {
            self.fail_behind_a_capture(ptr.0);
        }
        if used && !deferred && !gathered {
            // Events come first: if recording fails, the state is unchanged.
            self.record_events(ptr.0)?;
        }
        self.memory.block_mut(ptr.0).state = State::Pending;
        self.statistics.change("allocation", kind, -1);
        self.statistics.change("allocated_bytes", kind, -bytes.cast_signed());
        if self.is_oversize(bytes) {
            self.statistics.change_oversize("oversize_allocations", -1);
        }
        if deferred {
            self.deferred.push(ptr.0);
        } else {
            self.complete_if_unused(ptr.0);
        }
        if let Some(queue) = due {
            self.advance(queue);
        }
        Ok(())
    }

    /// Records the use of a block on another stream.
    ///
    /// # Errors
    /// [`Refusal::InvalidPointer`], and errors of the device.
    pub fn record_stream(&mut self, ptr: DevicePtr, stream: StreamId) -> Answer<()> {
        if ptr == DevicePtr::NULL {
            return Ok(());
        }
        self.held(ptr)?;
        let captured = self.is_capturing() && self.device.is_capturing(stream)?;
        let (s, b) = self.memory.at(ptr.0);
        let segment = &mut self.memory.segments[s];
        let uses = &mut segment.blocks[b].uses;
        match uses.iter_mut().find(|known| known.stream == stream) {
            Some(known) => known.captured &= captured,
            None if stream != segment.owner.stream => uses.push(Use { stream, captured }),
            None => {}
        }
        Ok(())
    }

    /// Returns the address, size and requested size of the allocated block that contains `ptr`.
    ///
    /// # Errors
    /// [`Refusal::InvalidPointer`] if no allocated block contains `ptr`.
    pub fn base_of(&self, ptr: DevicePtr) -> Answer<(DevicePtr, u64, u64)> {
        let (s, b) = self.memory.find(ptr.0).ok_or(Refusal::InvalidPointer)?;
        let block = &self.memory.segments[s].blocks[b];
        let held = block.state == State::Allocated;
        held.then_some((DevicePtr(block.addr), block.size, block.requested)).ok_or(Refusal::InvalidPointer)
    }

    /// Returns the kind and size of the allocated block that begins at `ptr`.
    fn held(&self, ptr: DevicePtr) -> Answer<(PoolKind, u64)> {
        let (s, b) = self.memory.find(ptr.0).ok_or(Refusal::InvalidPointer)?;
        let segment = &self.memory.segments[s];
        let block = &segment.blocks[b];
        let held = block.addr == ptr.0 && block.state == State::Allocated;
        held.then_some((segment.owner.kind, block.size)).ok_or(Refusal::InvalidPointer)
    }

    /// Finds the free block for a request of `size`, or `None` if no free block fits.
    fn candidate(&self, owner: Owner, size: u64) -> Option<u64> {
        let mut list = self.memory.free_list_of(owner);
        list.retain(|block| block.size >= size);
        let expandable = |i: usize| self.memory.is_expandable(list[i].addr);
        let growable = |i: usize| {
            let (s, b) = self.memory.at(list[i].addr);
            self.memory.segments[s].growable(b)
        };
        let mut i = 0;
        if list.is_empty() {
            return None;
        }
        if expandable(i) && self.expands() {
            while expandable(i) && i + 1 < list.len() && growable(i + 1) < growable(i) {
                i += 1;
            }
        } else if expandable(i) {
            i = (0..list.len()).find(|&i| !expandable(i))?;
        }
        let block = list[i].size;
        if let Some(max) = self.max_split() {
            let wasted = size >= max && block >= size + self.config.max_non_split_rounding();
            if (size < max && block >= max) || wasted {
                return None;
            }
        }
        Some(list[i].addr)
    }

    fn search(&mut self, request: &Request) -> Option<u64> {
        let addr = self.candidate(request.owner, request.size)?;
        self.hand_out(addr, request);
        Some(addr)
    }

    /// Allocates the front of a block, or all of it. The block is in no list at the call.
    fn hand_out(&mut self, addr: u64, request: &Request) {
        let (s, b) = self.memory.at(addr);
        let owner = self.memory.segments[s].owner;
        let (whole, was_split) = (self.memory.segments[s].blocks[b].size, self.memory.segments[s].is_split());
        let ordinary = !self.memory.segments[s].is_expandable();
        let kind = owner.kind;
        if self.should_split(owner, whole, request.size) {
            let born = self.pool(owner.pool).searches[kind as usize];
            let segment = &mut self.memory.segments[s];
            segment.split(b, request.size);
            segment.blocks[b + 1].state = State::Free;
            segment.blocks[b + 1].born = born;
            if ordinary && was_split {
                self.statistics.change("inactive_split_bytes", kind, -request.size.cast_signed());
            } else if ordinary {
                self.statistics.change("inactive_split", kind, 1);
                self.statistics.change("inactive_split_bytes", kind, (whole - request.size).cast_signed());
            }
        } else if ordinary && was_split {
            self.statistics.change("inactive_split", kind, -1);
            self.statistics.change("inactive_split_bytes", kind, -whole.cast_signed());
        }
        let block = &mut self.memory.segments[s].blocks[b];
        (block.state, block.requested) = (State::Allocated, request.bytes);
        let size = block.size;
        for (name, amount) in [
            ("allocation", 1),
            ("allocated_bytes", size),
            ("active", 1),
            ("active_bytes", size),
            ("requested_bytes", request.bytes),
        ] {
            self.statistics.change(name, kind, amount.cast_signed());
        }
        if self.is_oversize(size) {
            self.statistics.change_oversize("oversize_allocations", 1);
        }
    }

    fn should_split(&self, owner: Owner, block: u64, size: u64) -> bool {
        let remaining = block - size;
        if self.pool(owner.pool).options.no_split {
            false
        } else if owner.kind == PoolKind::Small || self.expands() {
            remaining >= 512
        } else {
            remaining > 1 << 20 && !self.is_oversize(size)
        }
    }

    /// Frees a block without pending uses, merged with its free neighbours.
    fn complete_if_unused(&mut self, addr: u64) {
        let (s, b) = self.memory.at(addr);
        let segment = &mut self.memory.segments[s];
        let block = &segment.blocks[b];
        if block.events > 0 || !block.uses.is_empty() {
            return;
        }
        let (owner, size, requested) = (segment.owner, block.size, block.requested);
        let (b, merged, absorbed) = segment.merge(b, State::Free);
        let split = segment.is_split();
        let ordinary = !segment.is_expandable();
        let block = &mut segment.blocks[b];
        block.state = State::Free;
        let whole = block.size;
        let born = self.pool(owner.pool).searches[owner.kind as usize];
        self.memory.segments[s].blocks[b].born = born;
        self.statistics.change("active", owner.kind, -1);
        self.statistics.change("active_bytes", owner.kind, -size.cast_signed());
        self.statistics.change("requested_bytes", owner.kind, -requested.cast_signed());
        if ordinary {
            let (count, bytes) = if split { (1, whole.cast_signed()) } else { (0, 0) };
            self.statistics.change("inactive_split", owner.kind, count - merged);
            self.statistics.change("inactive_split_bytes", owner.kind, bytes - absorbed.cast_signed());
        }
        // A private pool in use keeps its memory even without a cache: a captured graph may use it.
        if !self.caching && self.releasable_pools().contains(&owner.pool) {
            self.release_ordinary(|of| of == owner);
            self.forget_unused_pools();
        }
    }

    fn is_oversize(&self, size: u64) -> bool {
        self.max_split().is_some_and(|max| size >= max)
    }

    /// Returns the size from which blocks are oversize, if any are.
    pub(super) fn max_split(&self) -> Option<u64> {
        self.config.max_split_size().filter(|_| self.config.parity() || !self.expands())
    }

    /// Returns whether new segments are expandable, so that every remainder is split off.
    fn expands(&self) -> bool {
        self.config.expandable_segments() && self.device.virtual_memory().is_some()
    }

    fn keeps_ages(&self) -> bool {
        self.limit.is_some() && self.config.garbage_collection_threshold().is_some()
    }

    /// Returns the bytes reserved from the device.
    pub fn reserved(&self) -> u64 {
        let blocks = self.memory.segments.iter().flat_map(|segment| &segment.blocks);
        blocks.filter(|block| block.state != State::Unmapped).map(|block| block.size).sum()
    }

    /// Returns whether any free waits for events, or for the end of a capture.
    pub fn is_pending(&self) -> bool {
        !self.deferred.is_empty() || self.queues.iter().any(|queue| !queue.waits.is_empty())
    }

    /// Limits the reserved bytes.
    pub fn set_limit(&mut self, limit: Option<u64>) {
        self.limit = limit;
    }

    /// Changes the configuration.
    pub fn configure(&mut self, config: &Config) {
        self.config = config.clone();
    }

    /// Turns the cache on or off.
    pub fn set_caching(&mut self, caching: bool) {
        self.caching = caching;
    }

    /// Resets every peak to the present value.
    pub fn reset_peak_stats(&mut self) {
        self.statistics.reset_peaks();
    }

    /// Resets every accumulated statistic to 0.
    pub fn reset_accumulated_stats(&mut self) {
        self.statistics.reset_accumulated();
    }

    /// Returns every statistic by its flattened name.
    pub fn statistics(&self) -> BTreeMap<String, i64> {
        self.statistics.flattened()
    }

    /// Returns every segment and block in the order of addresses.
    pub fn snapshot(&self) -> Vec<SnapshotSegment> {
        let mut parts = Vec::new();
        for segment in &self.memory.segments {
            for run in segment.blocks.split(|block| block.state == State::Unmapped).filter(|run| !run.is_empty()) {
                let blocks = run.iter().map(|block| SnapshotBlock {
                    address: DevicePtr(block.addr),
                    size: block.size,
                    spilled: 0,
                    requested_size: block.requested,
                    state: match block.state {
                        State::Allocated => BlockState::ActiveAllocated,
                        State::Pending => BlockState::ActivePendingFree,
                        State::Free | State::Unmapped => BlockState::Inactive,
                    },
                    site: 0,
                });
                parts.push(SnapshotSegment {
                    device: DeviceIndex(self.number),
                    address: DevicePtr(run[0].addr),
                    total_size: run.iter().map(|block| block.size).sum(),
                    parked: 0,
                    spilled: 0,
                    stream: segment.owner.stream,
                    kind: segment.owner.kind,
                    pool: self.pool(segment.owner.pool).id,
                    is_expandable: segment.is_expandable(),
                    site: 0,
                    blocks: blocks.collect(),
                });
            }
        }
        parts.sort_by_key(|part| part.address);
        parts
    }
}
