//! A program at a state: the core on its device, the blocks of the program, and the effect of each
//! letter.

use crate::defects::Defect;
use crate::device::{Device, Plan};
use crate::letter::{Letter, RANGE_PAGES};
use crate::order::Place;
use crate::setting::Setting;
use crate::theorems::{Theorem, Violation};
use cachalot_core::rounding::SMALL_MAX;
use cachalot_core::{
    Allocator, BlockState, Call, Config, DeviceIndex, DevicePtr, Error, Growable, PoolId, PoolOptions, Reservation,
    SnapshotSegment, Storage, StreamId,
};
use cachalot_tests::claims::Marks;
use cachalot_tests::model::Model;

/// The core under test.
pub type Core = Allocator<Device, spin::mutex::SpinMutex<()>, Growable>;

/// The only device.
pub const DEVICE: DeviceIndex = DeviceIndex(0);

/// Bytes of a page of the range.
pub(crate) const PAGE: u64 = 2 << 20;

/// Time for the work put off, in microseconds: enough for all work.
const ALL_WORK_US: u64 = 1_000_000;

/// A block that the program holds.
#[derive(Clone, Debug)]
pub struct Live {
    /// The address.
    pub ptr: DevicePtr,
    /// The requested bytes.
    pub bytes: u64,
    /// The number of the own stream.
    pub stream: u8,
    /// Whether a graph under capture owns the block.
    pub is_captured: bool,
    /// Whether the other stream was announced.
    pub is_recorded: bool,
    /// The place of an announced use.
    pub used: Option<Place>,
    /// Whether the use was announced behind the stream.
    pub is_used_last: bool,
    /// The stream under capture at the last announcement.
    pub announced_in: Option<u8>,
}

/// A block that the program freed while another stream used the block.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The block before the free.
    pub block: Live,
    /// The place that the block waits for.
    pub fence: Place,
    /// Whether a capture put the event off.
    pub is_deferred: bool,
    /// The number of the free among frees and recordings.
    pub turn: u64,
}

/// The effect of a letter.
#[derive(Debug)]
pub struct Step {
    /// The letter.
    pub letter: Letter,
    /// The answer of the core: the address of a new block, else the null address.
    pub answer: Result<DevicePtr, Error>,
    /// The block of the letter, before the call.
    pub block: Option<Live>,
    /// The call that failed by plan.
    pub fired: Option<Call>,
    /// A broken theorem, found during the call.
    pub violation: Option<Violation>,
}

/// A program at a state.
pub struct World {
    /// The core.
    pub core: Core,
    /// The setting.
    pub setting: &'static Setting,
    /// The blocks that the program holds, by address.
    pub live: Vec<Live>,
    /// The freed blocks that wait, in the order of the frees.
    pub waiting: Vec<Waiting>,
    /// The stream under capture.
    pub capture: Option<u8>,
    /// The pool of the captures.
    pub pool: Option<PoolId>,
    /// The elastic range.
    pub range: Option<Reservation>,
    /// For each page of the range, the stream of the commit.
    pub committed: [Option<u8>; RANGE_PAGES],
    /// For each page of the range, the place of the last decommit.
    pub departed: [Option<Place>; RANGE_PAGES],
    /// For each stream, whether its memory is parked or waking.
    pub parked: [bool; 2],
    /// For each parked stream, the expected contents.
    pub contents: [Marks; 2],
    /// Number of streams named so far.
    pub streams: u8,
    /// The streams that have requested memory, the first first, whether of the pool of captures,
    /// and for heaps on pages, whether of the large heap: such a heap keeps its addresses.
    pub asked: Vec<(u8, bool, bool)>,
    /// The addresses freed since the last upkeep, lowest first: upkeep asks whether the work before
    /// is complete.
    pub loose: Vec<DevicePtr>,
    /// The parked streams, in the order of the parks.
    pub rests: Vec<u8>,
    /// Whether the cache is turned off.
    pub is_direct: bool,
    /// The naive model.
    pub model: Option<Model>,
    /// The most bytes that waited so far.
    pub most_waiting: u64,
}

/// Returns the stream with a number.
#[must_use]
pub const fn stream(number: u8) -> StreamId {
    StreamId(number as u64 + 1)
}

/// Returns the number of a stream in the account of the device.
pub(crate) const fn line(number: u8) -> usize {
    number as usize + 1
}

impl World {
    /// Creates the empty state of a setting, with a defect or without.
    ///
    /// # Panics
    /// If the setting is invalid.
    #[must_use]
    pub fn new(setting: &'static Setting, defect: Option<Defect>) -> Self {
        let config = Config::parse(setting.config).expect("the configuration of the setting is valid");
        let core = Core::new([Device::new(setting.capacity, defect)], &config).expect("one device fits");
        core.settings(DEVICE).expect("there is one device").set_second_search(defect != Some(Defect::SingleSearch));
        let alphabet = &setting.alphabet;
        let pool = alphabet
            .captures
            .then(|| core.pools(DEVICE).expect("a pool fits").create(PoolOptions::default()).expect("a pool fits"));
        let bytes = RANGE_PAGES as u64 * PAGE;
        let range =
            alphabet.ranges.then(|| core.ranges(DEVICE).expect("a range fits").reserve(bytes).expect("a range fits"));
        let model = setting.has_model.then(|| {
            let device = cachalot_core::simulated::SimulatedDevice::new(setting.capacity);
            let mut model = Model::new(device, 0, u64::from(<Growable>::GROUPS), &config);
            pool.into_iter().for_each(|pool| model.create_pool(pool, PoolOptions::default()).expect("a pool fits"));
            model
        });
        Self {
            core,
            setting,
            live: Vec::new(),
            waiting: Vec::new(),
            capture: None,
            pool,
            range,
            committed: [None; RANGE_PAGES],
            departed: [None; RANGE_PAGES],
            parked: [false; 2],
            contents: [Marks::default(), Marks::default()],
            streams: 0,
            asked: Vec::new(),
            loose: Vec::new(),
            rests: Vec::new(),
            is_direct: false,
            model,
            most_waiting: 0,
        }
    }

    /// Returns the device.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.core.device(DEVICE).expect("there is one device")
    }

    /// Returns whether a program may go on with a letter.
    #[must_use]
    pub fn permits(&self, letter: Letter) -> bool {
        let known = |stream: u8| stream < self.streams;
        let named = |stream: u8| stream <= self.streams;
        let idle = |stream: u8| self.capture != Some(stream);
        match letter {
            Letter::Malloc(_, stream) => named(stream) && self.live.len() < usize::from(self.setting.alphabet.blocks),
            Letter::Free(block) => usize::from(block) < self.live.len(),
            Letter::Record(block) => self.may_use(block, |live| !live.is_recorded),
            Letter::Use(block) => self.may_use(block, |live| live.used.is_none()),
            Letter::Complete(stream) => {
                let line = &self.device().books().order.lines[line(stream)];
                line.done < line.queued
            }
            Letter::Begin(stream) => named(stream) && self.capture.is_none(),
            Letter::End => self.capture.is_some(),
            Letter::Commit(page, stream) => {
                named(stream) && idle(stream) && self.committed[usize::from(page)].is_none()
            }
            Letter::Decommit(page, stream) => {
                known(stream) && idle(stream) && self.committed[usize::from(page)].is_some_and(idle)
            }
            Letter::Park(stream) => known(stream) && !self.parked[usize::from(stream)],
            Letter::Wake(stream) => self.parked[usize::from(stream)],
            Letter::Maintain | Letter::Empty => true,
            Letter::Caching(on) => on == self.is_direct,
            Letter::Fail(_) | Letter::RunOut => self.device().books().plan.is_none(),
        }
    }

    fn may_use(&self, block: u8, is_new: impl Fn(&Live) -> bool) -> bool {
        let of = self.live.get(usize::from(block));
        of.is_some_and(|live| is_new(live) && !self.parked[usize::from(live.stream)])
    }

    /// Makes the call of a letter.
    pub fn apply(&mut self, letter: Letter) -> Step {
        {
            let mut books = self.device().books();
            books.fired = None;
            books.given.clear();
            books.wakes = matches!(letter, Letter::Wake(_));
        }
        let block = match letter {
            Letter::Free(block) | Letter::Record(block) | Letter::Use(block) => self.live.get(usize::from(block)),
            _ => None,
        };
        let block = block.cloned();
        let mut violation = None;
        let answer = self.call(letter, &mut violation);
        let fired = self.device().books().fired;
        Step { letter, answer, block, fired, violation }
    }

    fn call(&mut self, letter: Letter, violation: &mut Option<Violation>) -> Result<DevicePtr, Error> {
        if let Letter::Malloc(size, on) = letter {
            return self.malloc(self.setting.sizes[usize::from(size)], on, violation);
        }
        self.act(letter, violation).map(|()| DevicePtr::NULL)
    }

    fn act(&mut self, letter: Letter, violation: &mut Option<Violation>) -> Result<(), Error> {
        match letter {
            Letter::Malloc(..) => Ok(()),
            Letter::Free(block) => self.free(usize::from(block)),
            Letter::Record(block) => self.share(usize::from(block), true, violation),
            Letter::Use(block) => self.share(usize::from(block), false, violation),
            Letter::Complete(on) => {
                self.device().complete(stream(on));
                Ok(())
            }
            Letter::Begin(on) => self.begin(on),
            Letter::End => self.end_capture(),
            Letter::Commit(page, on) => self.commit(page, on, violation),
            Letter::Decommit(page, on) => self.decommit(page, on),
            Letter::Park(on) => self.park(on),
            Letter::Wake(on) => self.wake(on, violation),
            Letter::Maintain => {
                self.loose.clear();
                self.core.pages(DEVICE)?.maintain(ALL_WORK_US).map(|_| ())
            }
            Letter::Empty => self.core.empty_cache(DEVICE),
            Letter::Caching(on) => {
                self.is_direct = !on;
                self.core.settings(DEVICE).map(|settings| settings.set_caching(on))
            }
            Letter::Fail(after) => {
                self.device().books().plan = Some(Plan { after, is_out_of_memory: false });
                Ok(())
            }
            Letter::RunOut => {
                self.device().books().plan = Some(Plan { after: 0, is_out_of_memory: true });
                Ok(())
            }
        }
    }

    /// Counts a stream as named.
    pub(crate) fn name(&mut self, stream: u8) {
        self.streams = self.streams.max(stream + 1);
    }

    fn malloc(&mut self, bytes: u64, on: u8, violation: &mut Option<Violation>) -> Result<DevicePtr, Error> {
        self.name(on);
        let is_on_pages = ["stitched", "expandable"].iter().any(|kind| self.setting.config.contains(kind));
        let asked = (on, self.capture == Some(on), is_on_pages && bytes > SMALL_MAX);
        if !self.asked.contains(&asked) {
            self.asked.push(asked);
        }
        let ptr = self.core.malloc(DEVICE, bytes, stream(on))?;
        let is_captured = self.capture == Some(on);
        if !is_captured && let Err(why) = self.device().launch(stream(on), ptr, bytes) {
            *violation = Some(Theorem::Order.violated(format!("the new block at {ptr}: {why}")));
        }
        let at = self.live.partition_point(|live| live.ptr < ptr);
        let live = Live {
            ptr,
            bytes,
            stream: on,
            is_captured,
            is_recorded: false,
            used: None,
            is_used_last: false,
            announced_in: None,
        };
        self.live.insert(at, live);
        Ok(ptr)
    }

    fn free(&mut self, block: usize) -> Result<(), Error> {
        // Taken first: an event that the free records covers the block.
        let turn = self.device().books().take_turn();
        self.core.free(self.live[block].ptr)?;
        let live = self.live.remove(block);
        let at = self.loose.partition_point(|loose| *loose < live.ptr);
        self.loose.insert(at, live.ptr);
        let other = line(1 - live.stream);
        let end = self.device().books().order.end(other);
        let fence = if live.is_recorded { Some(end) } else { live.used };
        if let Some(fence) = fence {
            self.waiting.push(Waiting { block: live.clone(), fence, is_deferred: self.capture.is_some(), turn });
        }
        let range = live.ptr..live.ptr.offset(live.bytes);
        self.contents.iter_mut().for_each(|contents| contents.forget(&range));
        Ok(())
    }

    /// Uses a block on the other stream behind its own stream, and tells the core.
    fn share(&mut self, block: usize, by_stream: bool, violation: &mut Option<Violation>) -> Result<(), Error> {
        let Live { ptr, bytes, stream: own, is_captured, .. } = self.live[block];
        let other = 1 - own;
        self.name(other);
        let captures = is_captured || self.capture.is_some();
        if !captures {
            self.device().order(stream(other), stream(own)).map_err(Error::Device)?;
            if let Err(why) = self.device().launch(stream(other), ptr, bytes) {
                *violation = Some(Theorem::Order.violated(format!("the shared block at {ptr}: {why}")));
            }
        }
        let announced = match by_stream {
            true if self.device().has(Defect::ForgottenUse) => Ok(()),
            true => self.core.record_stream(ptr, stream(other)),
            false => self.core.record_use(ptr, stream(other)),
        };
        if announced.is_err() && !captures {
            // The core knows nothing of the work, so the program orders the block's own stream
            // after the work.
            self.device().order(stream(own), stream(other)).map_err(Error::Device)?;
        }
        announced?;
        let end = self.device().books().order.end(line(other));
        let live = &mut self.live[block];
        live.announced_in = self.capture;
        if by_stream {
            live.is_recorded = true;
        } else {
            (live.used, live.is_used_last) = (Some(end), live.is_recorded);
        }
        Ok(())
    }

    /// Returns the segments, after the list of the waiting blocks was brought up to date.
    pub fn settle(&mut self) -> Vec<SnapshotSegment> {
        let snapshot = self.core.snapshot();
        let blocks = || snapshot.iter().flat_map(|segment| &segment.blocks);
        let pending = || blocks().filter(|block| block.state == BlockState::ActivePendingFree);
        self.waiting.retain(|waiting| pending().any(|block| block.address == waiting.block.ptr));
        self.most_waiting = self.most_waiting.max(pending().map(|block| block.size).sum());
        snapshot
    }

    /// Gives everything back: blocks, captures, parked memory, the range, the cache.
    ///
    /// # Errors
    /// The first error of the core.
    pub fn give_back(&mut self) -> Result<(), Error> {
        self.device().clear_failures();
        self.end_capture()?;
        // Frees first: parked memory may not fit beside live memory.
        while !self.live.is_empty() {
            self.free(0)?;
        }
        for on in 0..2 {
            if self.parked[usize::from(on)] {
                self.core.empty_cache(DEVICE)?;
                self.wake(on, &mut None)?;
            }
        }
        (0..2).for_each(|on| self.device().complete(stream(on)));
        if let Some(Reservation { range, .. }) = self.range.take() {
            self.core.ranges(DEVICE)?.release(range)?;
        }
        if let Some(pool) = self.pool.take() {
            self.core.pools(DEVICE)?.release(pool)?;
        }
        self.core.process_events(DEVICE)?;
        self.core.empty_cache(DEVICE)?;
        self.core.pages(DEVICE)?.maintain(ALL_WORK_US)?;
        self.core.empty_cache(DEVICE)
    }
}
