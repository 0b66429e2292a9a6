//! Courses: random programs of every operation, written down as text with every answer.
//!
//! A *course* is a configuration and a seed. Equal texts at two commits mean equal answers,
//! addresses, statistics, reports, notices and calls to the device. The seed also chooses the
//! abilities of the device, and how often each group of operations is called.
//!
//! ```text
//! course    the program: blocks, streams, caches, settings, plans
//! pools     private pools, routes, captures, tags
//! pages     elastic ranges, parked memory, pins, upkeep
//! notes     the text, or its digest
//! noted     the device: a simulated one, whose notices go into the text
//! ```

mod noted;
mod notes;
mod pages;
mod plans;
mod pools;
mod reads;

use crate::host::{DEVICE, MIB};
use cachalot_core::simulated::{Call, Failure, SimulatedDevice};
use cachalot_core::{
    Allocator, Config, DeviceError, DevicePtr, Error, ErrorKind, Host as _, ParkTarget, PoolId, Reservation, StreamId,
    Tag,
};
use cachalot_policies::Tables;
use noted::Noted;
pub use notes::Notes;
use std::num::NonZeroU64;

/// The allocator of a course.
type Subject = Allocator<Noted, spin::mutex::SpinMutex<()>, Tables>;

/// Number of operations of a course.
const STEPS: u32 = 300;
/// Number of operations between two readings of all statistics and segments.
const STEPS_PER_READING: u32 = 12;

/// Writes a value and how it is shown to people.
macro_rules! note {
    ($course:expr, $($text:tt)+) => {
        $course.notes.write(format_args!($($text)+))
    };
}
use note;

/// A block of the program.
#[derive(Clone, Copy)]
struct Held {
    ptr: DevicePtr,
    bytes: u64,
    stream: StreamId,
    /// Whether a second stream uses the block: no further work is queued then.
    shared: bool,
}

/// A group of operations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    Blocks,
    Work,
    Caches,
    Pools,
    Ranges,
    Parking,
    Pages,
    Settings,
    Plans,
    Phases,
    Reads,
    Faults,
}

impl Group {
    /// Every group, with the largest weight of its operations.
    const ALL: [(Self, u32); 12] = [
        (Self::Blocks, 60),
        (Self::Work, 20),
        (Self::Caches, 6),
        (Self::Pools, 16),
        (Self::Ranges, 8),
        (Self::Parking, 8),
        (Self::Pages, 8),
        (Self::Settings, 3),
        (Self::Plans, 2),
        (Self::Phases, 1),
        (Self::Reads, 8),
        (Self::Faults, 2),
    ];
}

/// A program in progress.
pub struct Course {
    config: Config,
    allocator: Subject,
    random: fastrand::Rng,
    notes: Notes,
    held: Vec<Held>,
    pools: Vec<PoolId>,
    /// Routes begun and not ended: of a capture, with the capturing stream.
    routes: Vec<(PoolId, Option<StreamId>)>,
    ranges: Vec<Reservation>,
    pinned: Vec<DevicePtr>,
    /// The largest count of a free.
    counts: u64,
    /// The number of the latest route that the host decides.
    led: u64,
}

impl Course {
    /// Runs a course, and writes all of it.
    ///
    /// # Panics
    /// If the configuration is refused, or an invariant of the allocator is violated.
    pub fn run(config: &str, seed: u64, notes: Notes) -> Notes {
        let mut random = fastrand::Rng::with_seed(seed);
        let config = cachalot_policies::parse(config).unwrap_or_else(|error| panic!("{config}: {error}"));
        let device = device(&mut random);
        let allocator = Allocator::new([device], &config).expect("one device fits");
        let (held, pools, routes) = (Vec::new(), vec![PoolId::DEFAULT], Vec::new());
        let (ranges, pinned, counts, led) = (Vec::new(), Vec::new(), 0, 0);
        let mut course = Self { config, allocator, random, notes, held, pools, routes, ranges, pinned, counts, led };
        course.whole();
        course.notes
    }

    fn whole(&mut self) {
        let weights = Group::ALL.map(|(group, most)| match group {
            Group::Blocks => (group, most),
            Group::Plans if self.config.planned().is_some() => (group, 6 * most),
            Group::Phases if self.config.reclaim().is_some() => (group, 6 * most),
            // A third of the groups is left out.
            _ if self.random.u8(..3) == 0 => (group, 0),
            _ => (group, self.random.u32(1..=most)),
        });
        if self.random.bool() {
            note!(self, "trace {:?}", self.allocator.trace(DEVICE).unwrap().record(self.random.usize(1..400)));
        }
        if self.random.bool() {
            note!(self, "report {:?}", self.allocator.trace(DEVICE).map(|trace| trace.report(true)));
        }
        if self.random.u8(..4) == 0 {
            note!(self, "watch {:?}", self.allocator.trace(DEVICE).map(|trace| trace.watch_frees(true)));
        }
        let sum: u32 = weights.iter().map(|(_, weight)| weight).sum();
        for step in 0..STEPS {
            let mut at = self.random.u32(..sum);
            let group = weights.iter().find(|(_, weight)| {
                let is_here = at < *weight;
                at = at.saturating_sub(*weight);
                is_here
            });
            self.step(group.expect("the weights add up").0);
            self.notices();
            if step % STEPS_PER_READING == 0 {
                self.read_all();
            }
        }
        self.check();
        self.end();
        self.check();
    }

    fn check(&self) {
        self.allocator.check_invariants().unwrap_or_else(|violated| panic!("invariant: {violated}"));
    }

    fn step(&mut self, group: Group) {
        match group {
            Group::Blocks => self.blocks(),
            Group::Work => self.work(),
            Group::Caches => self.caches(),
            Group::Pools => self.pools(),
            Group::Ranges => self.ranges(),
            Group::Parking => self.parking(),
            Group::Pages => self.pages(),
            Group::Settings => self.settings(),
            Group::Plans => self.plans(),
            Group::Phases => self.phases(),
            Group::Reads => self.reads(),
            Group::Faults => self.faults(),
        }
    }

    /// Gives everything back, and writes the rest.
    fn end(&mut self) {
        self.device().clear_failures();
        self.restored();
        for (pool, stream) in std::mem::take(&mut self.routes) {
            self.end_route(pool, stream);
        }
        let tags = [1, 2, 3].map(|number| ParkTarget::Tag(Tag(NonZeroU64::new(number).expect("above 0"))));
        let streams = [0, 1, 2, 3].map(|number| ParkTarget::Stream(stream(number)));
        for target in tags.into_iter().chain(streams) {
            note!(self, "wake {:?}", self.allocator.parking(DEVICE).and_then(|parking| parking.wake(target)));
        }
        for ptr in std::mem::take(&mut self.pinned) {
            note!(self, "unpin {:?}", self.allocator.pages(DEVICE).and_then(|pages| pages.unpin(ptr)));
        }
        while let Some(held) = self.held.pop() {
            self.told("free", self.allocator.free(held.ptr));
        }
        for range in std::mem::take(&mut self.ranges) {
            note!(self, "release {:?}", self.allocator.ranges(DEVICE).unwrap().release(range.range));
        }
        for number in 0..4 {
            self.device().complete(stream(number));
        }
        note!(self, "frontier {:?}", self.allocator.set_safe_frontier(DEVICE, self.counts));
        note!(self, "quarantine {:?}", self.allocator.pages(DEVICE).map(|pages| pages.end_quarantine()));
        note!(self, "empty {:?}", self.allocator.empty_cache(DEVICE));
        self.read_all();
        note!(self, "left {:?} {}", self.device().outstanding(), self.device().used());
        self.notices();
    }

    fn device(&self) -> &SimulatedDevice {
        &self.allocator.device(DEVICE).expect("there is one device").inner
    }

    /// Writes the notices since the last call, and the bytes in use.
    fn notices(&mut self) {
        let told = self.allocator.device(DEVICE).expect("there is one device").take();
        note!(self, "{told} {} {}", self.device().used(), self.device().driver_ns());
    }

    /// Writes an answer as a value, and for people.
    fn told<T: std::fmt::Debug>(&mut self, what: &str, answer: Result<T, Error>) -> Option<T> {
        match answer {
            Ok(value) => {
                note!(self, "{what} {value:?}");
                Some(value)
            }
            Err(error) => {
                note!(self, "{what} {error:?} {error}");
                None
            }
        }
    }

    /// Returns a size: near an edge of the rules, or between them.
    fn bytes(&mut self) -> u64 {
        let random = &mut self.random;
        match random.u8(..24) {
            0..=6 => random.u64(1..4096),
            7..=11 => random.u64(1..MIB),
            12..=15 => random.u64(MIB..10 * MIB),
            16..=18 => random.u64(10 * MIB..40 * MIB),
            19 => random.u64(40 * MIB..200 * MIB),
            20 => [0, 1, u64::MAX, 1 << 60, 1 << 40][random.usize(..5)],
            _ => {
                let edge = [512, 4096, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 24 * MIB, 32 * MIB];
                edge[random.usize(..edge.len())] + random.u64(..1025) - 512
            }
        }
    }

    /// Returns a stream, mostly the first.
    fn stream(&mut self) -> StreamId {
        stream([0, 0, 0, 0, 1, 1, 2, 3][self.random.usize(..8)])
    }

    /// Returns the index of a block, if the program holds one.
    fn any_block(&mut self) -> Option<usize> {
        (!self.held.is_empty()).then(|| self.random.usize(..self.held.len()))
    }

    fn malloc(&mut self, bytes: u64, stream: StreamId) {
        let served = if bytes.is_multiple_of(8) {
            let straight = self.allocator.malloc_straight(DEVICE, bytes, stream);
            straight.map_or_else(|| self.allocator.malloc(DEVICE, bytes, stream), Ok)
        } else {
            self.allocator.malloc(DEVICE, bytes, stream)
        };
        if let Some(ptr) = self.told("malloc", served).filter(|&ptr| ptr != DevicePtr::NULL) {
            self.held.push(Held { ptr, bytes, stream, shared: false });
        }
    }

    fn blocks(&mut self) {
        let Some(block) = self.any_block().filter(|_| self.random.u8(..100) >= 54) else {
            let (bytes, stream) = (self.bytes(), self.stream());
            return self.malloc(bytes, stream);
        };
        let held = self.held[block];
        let freed = match self.random.u8(..40) {
            1 => self.allocator.free_sized(held.ptr, held.bytes + 1),
            2 => self.allocator.free(held.ptr.offset(self.random.u64(1..9) * 256)),
            3 => {
                self.counts += 1;
                self.allocator.free_at(held.ptr, self.counts)
            }
            4 => return self.owned(),
            5 if self.allocator.free_straight(held.ptr, Some(held.bytes)) => Ok(()),
            0 | 5 => self.allocator.free_sized(held.ptr, held.bytes),
            _ => self.allocator.free(held.ptr),
        };
        note!(self, "{} {}", held.ptr, freed.is_ok());
        if self.told("free", freed).is_some() {
            self.held.swap_remove(block);
        }
    }

    /// A block with an owner, which frees it.
    fn owned(&mut self) {
        let (bytes, stream, other) = (self.bytes(), self.stream(), self.stream());
        let count = self.counts + 1;
        let block = match self.allocator.block(DEVICE, bytes, stream) {
            Ok(block) => block,
            Err(error) => return note!(self, "block {error:?}"),
        };
        let told = (block.ptr(), block.bytes(), block.stream(), block.device());
        let used = block.record_stream(other);
        let end = match self.random.u8(..4) {
            0 => block.free().map_err(|(_, error)| error),
            1 => {
                self.counts = count;
                block.free_at(count).map_err(|(_, error)| error)
            }
            2 => {
                let ptr = block.into_raw();
                self.held.push(Held { ptr, bytes, stream, shared: true });
                Ok(())
            }
            _ => {
                drop(block);
                Ok(())
            }
        };
        note!(self, "owned {told:?} {used:?} {end:?}");
    }

    fn work(&mut self) {
        let other = self.stream();
        match (self.random.u8(..16), self.any_block()) {
            (0..=4, Some(block)) => self.launch(block),
            (5..=8, Some(block)) => self.share(block, other),
            (9, Some(block)) => {
                self.held[block].shared = true;
                self.told("record_stream", self.allocator.record_stream(self.held[block].ptr, other));
            }
            (10, Some(block)) => {
                self.told("record_use", self.allocator.record_use(self.held[block].ptr, other));
                self.held[block].shared = true;
            }
            (11, _) => self.device().complete_one(other),
            (12, _) => self.device().complete(other),
            (13, _) => {
                self.told("events", self.allocator.process_events(DEVICE));
            }
            (14, _) => {
                let count = self.random.u64(..=self.counts);
                self.told("frontier", self.allocator.set_safe_frontier(DEVICE, count));
            }
            _ => {
                self.told("idle events", self.allocator.destroy_idle_events(DEVICE));
            }
        }
    }

    /// Queues work on the stream of a block, and writes to the block.
    fn launch(&mut self, block: usize) {
        let Held { ptr, bytes, stream, shared } = self.held[block];
        if self.random.u8(..8) == 0 {
            // As a kernel with a defect would write.
            self.device().overwrite(ptr.offset(bytes), 1);
        }
        if !shared {
            let launched = self.device().launch(stream, ptr, bytes);
            note!(self, "launch {launched:?} {}", self.device().write(ptr, bytes));
        }
    }

    /// Lets another stream use a block, after the work of its own stream.
    fn share(&mut self, block: usize, other: StreamId) {
        let Held { ptr, bytes, stream, shared } = self.held[block];
        if shared || stream == other {
            return;
        }
        if self.device().order(other, stream).is_err() {
            return;
        }
        let launched = self.device().launch(other, ptr, bytes);
        let is_use = self.random.bool();
        let answer =
            if is_use { self.allocator.record_use(ptr, other) } else { self.allocator.record_stream(ptr, other) };
        note!(self, "share {launched:?} {answer:?}");
        self.held[block].shared = true;
    }

    fn caches(&mut self) {
        let stream = self.stream();
        let allocator = &self.allocator;
        let answer = match self.random.u8(..12) {
            0 => allocator.empty_cache(DEVICE),
            1 | 2 => allocator.trim(DEVICE, self.random.u64(..200) * MIB),
            3 => allocator.stream_destroyed(DEVICE, stream),
            4 => allocator.settings(DEVICE).map(|settings| settings.set_caching(self.random.u8(..4) > 0)),
            5 => allocator.settings(DEVICE).map(|settings| settings.set_second_search(self.random.bool())),
            6 | 7 => {
                let above = self.device().used() + self.random.u64(..64) * MIB;
                allocator
                    .settings(DEVICE)
                    .map(|settings| settings.set_limit(Some(above).filter(|_| self.random.bool())))
            }
            8 => allocator.settings(DEVICE).unwrap().set_memory_fraction(f64::from(self.random.u32(..=40)) / 32.0),
            _ => {
                let us = 1 << self.random.u32(..26);
                note!(self, "pause {}", self.device().pause(us));
                return;
            }
        };
        self.told("cache", answer);
    }

    /// Makes a coming call to the device fail, or makes all calls work again.
    fn faults(&mut self) {
        if self.random.bool() {
            return self.device().clear_failures();
        }
        let call = CALLS[self.random.usize(..CALLS.len())];
        let kind = if self.random.bool() { ErrorKind::OutOfMemory } else { ErrorKind::Other };
        let nth = self.device().calls(call) + self.random.u64(1..4);
        let persistent = self.random.u8(..8) == 0;
        self.device().fail(Failure { call, nth, persistent, error: DeviceError::new(kind, 77) });
    }
}

/// The calls of a course: no block moves, so the last one is missing.
const CALLS: [Call; Call::ALL.len() - 1] = *Call::ALL.first_chunk().expect("it is shorter");

/// Returns the stream of a number.
fn stream(number: usize) -> StreamId {
    StreamId([0, 7, 0x7f3a_0000_5540, u64::MAX - 1][number])
}

/// Returns one of three tags.
fn tag(random: &mut fastrand::Rng) -> Tag {
    Tag(NonZeroU64::new(random.u64(1..4)).expect("above 0"))
}

/// Returns a device: small, so that programs run out of memory, and with or without the rarer
/// abilities.
fn device(random: &mut fastrand::Rng) -> Noted {
    let mut device = SimulatedDevice::new(random.u64(64..320) * MIB).with_exports().with_host_memory(48 * MIB);
    match random.u8(..8) {
        0 => device = device.with_work_done_at_once(),
        1 | 2 => device = device.with_idle_streams_told(),
        3 => device = device.without_virtual_memory(),
        _ => {}
    }
    Noted::new(device)
}
