//! The steps of a thread of a world.

use crate::block::Block;
use crate::turns;
use crate::world::{DEVICE, Shared};
use cachalot_core::{
    Advice, Call, DevicePtr, Error, ParkMode, ParkOrder, ParkState, ParkTarget, PoolId, PoolOptions, Reservation,
    Route, RoutePurpose, StreamId, Tag,
};
use fastrand::Rng;
use std::rc::Rc;

/// Blocks of a thread at most.
const BLOCKS: usize = 48;
/// Largest block, in bytes.
const LARGEST: u64 = 48 << 20;
/// Blocks on the way from thread to thread at most.
const EXCHANGED: usize = 16;
/// Pages of an elastic range, and bytes of a page.
const RANGE_PAGES: u64 = 8;
const PAGE: u64 = 2 << 20;
/// Calls to wake the memory of a thread at the end, at most: each is refused while another thread
/// parks or wakes.
const WAKES: u32 = 1_000_000;
/// Unused blocks of a thread at most.
const GUESTS: usize = 6;
/// Calls for planned failures.
const FAILING: [Call; 13] = [
    Call::Obtain,
    Call::Release,
    Call::CreateEvent,
    Call::Record,
    Call::IsComplete,
    Call::OrderBehind,
    Call::Reserve,
    Call::Create,
    Call::CreateAtHost,
    Call::Map,
    Call::SetAccess,
    Call::Unmap,
    Call::Save,
];
/// Settings that come and go.
const SETTINGS: [&str; 4] = [
    "max_split_size_mb:32",
    "garbage_collection_threshold:0.5",
    "roundup_power2_divisions:4",
    "expandable_segments:True",
];

/// An elastic range of a thread.
struct Elastic {
    reservation: Reservation,
    /// For each page, the stream of the commit.
    committed: [Option<StreamId>; RANGE_PAGES as usize],
}

/// A thread's blocks, and the choice of the next step.
pub(crate) struct Program {
    number: u32,
    rng: Rng,
    blocks: Vec<Block>,
    /// The memory parked by the thread: of the thread's own stream, or of a pool with a tag, with a
    /// route for the stream.
    target: ParkTarget,
    /// The mode of the park, while the memory is parked.
    asleep: Option<ParkMode>,
    /// Another pool with the tag of each thread's memory: requested from at any moment of a park.
    guests: Rc<Vec<(Tag, PoolId)>>,
    range: Option<Elastic>,
    /// The pool of the graph under capture on the thread's passing stream.
    capture: Option<PoolId>,
    /// The blocks requested as a guest.
    unused: Vec<DevicePtr>,
}

impl Program {
    pub(crate) fn new(number: u32, target: ParkTarget, guests: Rc<Vec<(Tag, PoolId)>>, seed: u64) -> Self {
        Self {
            number,
            rng: Rng::with_seed(seed),
            blocks: Vec::new(),
            target,
            asleep: None,
            guests,
            range: None,
            capture: None,
            unused: Vec::new(),
        }
    }

    /// Returns the blocks with memory.
    pub(crate) fn awake_blocks(&self) -> impl Iterator<Item = &Block> {
        let sleeps = self.asleep.map(|_| Shared::sleeper(self.number));
        self.blocks.iter().filter(move |block| Some(block.home) != sleeps)
    }

    /// Returns the bytes committed in the thread's range.
    pub(crate) fn committed(&self) -> u64 {
        self.range.iter().flat_map(|range| range.committed.iter().flatten()).count() as u64 * PAGE
    }

    /// Makes a random step.
    pub(crate) fn step(&mut self, shared: &Shared) {
        match self.rng.u32(0..100) {
            0..40 => {
                let stream = self.stream(shared);
                self.request(shared, stream);
            }
            40..66 => self.free_one(shared),
            66..78 => self.share(shared),
            78..86 => self.check_one(shared),
            86..91 => self.exchange(shared),
            91..93 => self.nap(shared),
            93..95 if shared.config.spill().is_some() && self.rng.bool() => self.advise(shared),
            93..95 => self.stretch(shared),
            95 if self.rng.bool() && !self.guests.is_empty() => self.be_guest(shared),
            95 => self.use_pool(shared),
            96 => self.end_stream(shared),
            97 if self.rng.bool() => self.capture(shared),
            97 => self.fail(shared),
            _ => self.disturb(shared),
        }
    }

    /// Chooses a stream for a request.
    fn stream(&mut self, shared: &Shared) -> StreamId {
        match self.rng.u32(0..6) {
            0 if self.asleep.is_none() => Shared::sleeper(self.number),
            1 => shared.passing(self.number),
            _ => Shared::any_stream(&mut self.rng),
        }
    }

    /// Draws a size: all octaves up to [`LARGEST`], small sizes most often.
    fn size(&mut self) -> u64 {
        let octave = self.rng.u32(0..26).min(self.rng.u32(0..26)).max(self.rng.u32(0..12));
        ((1 << octave) + self.rng.u64(0..1 << octave)).min(LARGEST)
    }

    fn request(&mut self, shared: &Shared, stream: StreamId) {
        if self.blocks.len() >= BLOCKS {
            return self.free_one(shared);
        }
        let bytes = self.size();
        shared.operations.set(shared.operations.get() + 1);
        let ptr = match shared.core.malloc(DEVICE, bytes, stream) {
            Ok(ptr) => ptr,
            Err(error) => {
                shared.refused("a request", &error);
                return (0..4).for_each(|_| self.free_one(shared));
            }
        };
        shared.digest(ptr.0);
        let number = shared.numbers.get() + 1;
        turns::tell(|| format!("block {number}: {bytes} bytes at {ptr} of {stream:?}"));
        shared.numbers.set(number);
        let mut block = Block::new(number, ptr, bytes, stream);
        let device = &shared.device().inner;
        if let Err(what) = shared.claims.borrow_mut().claim(device, block.place()) {
            return shared.find(what);
        }
        let is_captured = self.capture.is_some() && stream == shared.passing(self.number);
        if !is_captured && let Err(what) = device.launch(stream, ptr, bytes) {
            return shared.find(format!("the new block {number} ({bytes} bytes at {ptr} of {stream:?}): {what}"));
        }
        block.mark(device);
        self.blocks.push(block);
    }

    /// Returns the place of a random block with memory.
    fn any_awake(&mut self, shared: &Shared) -> Option<usize> {
        let sleeps = self.asleep.map(|_| Shared::sleeper(self.number));
        let captures = self.capture.map(|_| shared.passing(self.number));
        let is_out =
            |block: &Block| [sleeps, captures].iter().flatten().any(|out| [block.home, block.last].contains(out));
        let awake: Vec<usize> = (0..self.blocks.len()).filter(|&at| !is_out(&self.blocks[at])).collect();
        (!awake.is_empty()).then(|| awake[self.rng.usize(0..awake.len())])
    }

    fn free_one(&mut self, shared: &Shared) {
        if !self.blocks.is_empty() {
            let at = self.rng.usize(0..self.blocks.len());
            self.free(shared, at);
        }
    }

    /// Frees a block, which may be parked.
    fn free(&mut self, shared: &Shared, at: usize) {
        let block = self.blocks.swap_remove(at);
        shared.claims.borrow_mut().give_up(block.place());
        turns::tell(|| format!("free of block {} at {}", block.number, block.ptr));
        shared.operations.set(shared.operations.get() + 1);
        let freed =
            if self.rng.bool() { shared.core.free_sized(block.ptr, block.bytes) } else { shared.core.free(block.ptr) };
        if let Err(error) = freed {
            shared.refused(&format!("the free of block {}", block.number), &error);
            // The block is live. Its memory may be parked.
            if shared.is_sleeper(block.home) {
                return shared.exchange.borrow_mut().push(block);
            }
            if let Err(what) = shared.claims.borrow_mut().claim(&shared.device().inner, block.place()) {
                shared.find(what);
            }
            self.blocks.push(block);
        }
    }

    /// Uses a block on a stream behind its last use. Returns whether the work was queued.
    fn use_on(shared: &Shared, block: &mut Block, stream: StreamId) -> bool {
        let device = shared.device();
        if block.last != stream && device.inner.order(stream, block.last).is_err() {
            return false;
        }
        if let Err(what) = device.inner.launch(stream, block.ptr, block.bytes) {
            let Block { number, ptr, bytes, home, last, .. } = block;
            shared.find(format!(
                "block {number} ({bytes} bytes at {ptr} of {home:?}, last used on {last:?}) on {stream:?}: {what}"
            ));
        }
        block.last = stream;
        turns::tell(|| format!("block {} at {} is used on {stream:?}", block.number, block.ptr));
        true
    }

    /// Uses a block on another stream, and tells the core.
    fn share(&mut self, shared: &Shared) {
        let Some(at) = self.any_awake(shared) else { return };
        let passes = self.rng.u32(0..4) == 0 && self.capture.is_none();
        let stream = if passes { shared.passing(self.number) } else { Shared::any_stream(&mut self.rng) };
        let is_before = self.rng.bool();
        let block = &mut self.blocks[at];
        if stream == block.home {
            Self::use_on(shared, block, stream);
            return;
        }
        // The stream is announced before its work, or the work so far is.
        if is_before {
            match shared.core.record_stream(block.ptr, stream) {
                Ok(()) => {
                    Self::use_on(shared, block, stream);
                }
                Err(error) => shared.refused("record_stream", &error),
            }
        } else if Self::use_on(shared, block, stream)
            && let Err(error) = shared.core.record_use(block.ptr, stream)
        {
            shared.refused("record_use", &error);
            // The core knows nothing of the work: the program waits for it.
            shared.device().inner.complete(stream);
        }
    }

    /// Compares a block's memory with the block's first memory.
    fn check_one(&mut self, shared: &Shared) {
        let Some(at) = self.any_awake(shared) else { return };
        let block = &self.blocks[at];
        shared.checks.set(shared.checks.get() + 1);
        if let Err(what) = block.check(&shared.claims.borrow(), &shared.device().inner) {
            shared.find(what);
        }
    }

    /// Gives a block to all threads, or takes a given block.
    fn exchange(&mut self, shared: &Shared) {
        let mut exchange = shared.exchange.borrow_mut();
        if self.rng.bool() {
            if exchange.is_empty() {
                return;
            }
            let at = self.rng.usize(0..exchange.len());
            let block = exchange.swap_remove(at);
            drop(exchange);
            let is_loose = shared.is_sleeper(block.home) && block.home != Shared::sleeper(self.number);
            self.blocks.push(block);
            if is_loose {
                self.free(shared, self.blocks.len() - 1);
            }
            return;
        }
        // The stream of a block may end by the word of its thread alone. A block of memory that its
        // thread parks is freed by the thread that takes it, at any moment of the park, and not
        // used.
        let may_go =
            |block: &Block| block.home != shared.passing(self.number) && block.last != shared.passing(self.number);
        if exchange.len() < EXCHANGED
            && let Some(at) = self.blocks.iter().position(may_go)
        {
            exchange.push(self.blocks.swap_remove(at));
        }
    }

    /// Parks the memory of the thread's own stream, or wakes the memory.
    fn nap(&mut self, shared: &Shared) {
        let target = self.target;
        let Ok(parking) = shared.core.parking(DEVICE) else { return };
        let order = if self.rng.bool() { ParkOrder::Device } else { ParkOrder::Streams };
        if let Some(mode) = self.asleep {
            // Parked memory may be parked again, for the pages that stayed, or begin to wake.
            let begun = match self.rng.u32(0..4) {
                0 => parking.park(target, mode, order),
                1 => parking.wake_start(target),
                _ => return self.wake(shared, mode),
            };
            match begun {
                Ok(()) | Err(Error::ParkingRefused(_)) => {}
                Err(error) => shared.refused("a step of a park", &error),
            }
            return;
        }
        let mode = [ParkMode::Keep, ParkMode::Keep, ParkMode::Drop, ParkMode::Zero][self.rng.usize(0..4)];
        turns::tell(|| format!("park of {target:?}, {mode:?}, {order:?}"));
        let home = Shared::sleeper(self.number);
        for block in self.blocks.iter().chain(shared.exchange.borrow().iter()).filter(|block| block.home == home) {
            shared.claims.borrow_mut().give_memory_up(block.place());
        }
        match parking.park(target, mode, order) {
            // Another thread parks or wakes memory at the moment.
            Ok(()) | Err(Error::ParkingRefused(_)) => {}
            Err(error) => shared.refused("a park", &error),
        }
        let is_awake = parking.report(target).is_ok_and(|report| report.state == ParkState::Awake);
        self.asleep = Some(mode);
        if is_awake {
            self.rise(shared, ParkMode::Keep);
        }
    }

    /// Moves a block to the host or back.
    fn advise(&mut self, shared: &Shared) {
        let Some(at) = self.any_awake(shared) else { return };
        let block = &self.blocks[at];
        let advice = if self.rng.bool() { Advice::Cold } else { Advice::Hot };
        turns::tell(|| format!("block {} at {} is {advice:?}", block.number, block.ptr));
        shared.claims.borrow_mut().give_memory_up(block.place());
        let moved = shared.core.pages(DEVICE).and_then(|pages| pages.advise(block.ptr, advice));
        let device = &shared.device().inner;
        let claimed = shared.claims.borrow_mut().claim_memory(device, block.place());
        if let Err(what) = claimed.and_then(|()| block.check_contents(device)) {
            shared.find(format!("after a move: {what}"));
        }
        match moved {
            // Another thread has been parking or waking for long.
            Ok(_) | Err(Error::ParkingRefused(_)) => {}
            Err(error) => shared.refused("a move", &error),
        }
    }

    fn wake(&mut self, shared: &Shared, mode: ParkMode) {
        let target = self.target;
        turns::tell(|| format!("wake of {target:?}"));
        let Ok(parking) = shared.core.parking(DEVICE) else { return };
        match parking.wake(target) {
            Ok(()) => self.rise(shared, mode),
            // Another thread parks or wakes memory at the moment.
            Err(Error::ParkingRefused(_)) => {}
            Err(error) => {
                shared.refused("a wake", &error);
                if parking.report(target).is_ok_and(|report| report.state == ParkState::Awake) {
                    self.rise(shared, mode);
                }
            }
        }
    }

    /// Takes the memory of the woken blocks back.
    fn rise(&mut self, shared: &Shared, mode: ParkMode) {
        self.asleep = None;
        let home = Shared::sleeper(self.number);
        let device = &shared.device().inner;
        let mut exchange = shared.exchange.borrow_mut();
        for block in self.blocks.iter_mut().chain(exchange.iter_mut()).filter(|block| block.home == home) {
            let claimed = shared.claims.borrow_mut().claim_memory(device, block.place());
            let kept = if mode == ParkMode::Keep { block.check_contents(device) } else { Ok(()) };
            if let Err(what) = claimed.and(kept) {
                shared.find(format!("after a park of {mode:?}: {what}"));
            }
            block.mark(device);
            shared.checks.set(shared.checks.get() + 1);
        }
    }

    /// Reserves, grows, shrinks or releases an elastic range.
    fn stretch(&mut self, shared: &Shared) {
        let core = &shared.core;
        let Some(Elastic { reservation, committed }) = &mut self.range else {
            match core.ranges(DEVICE).unwrap().reserve(RANGE_PAGES * PAGE) {
                Ok(reservation) => self.range = Some(Elastic { reservation, committed: [None; RANGE_PAGES as usize] }),
                Err(error) => shared.refused("reserve_range", &error),
            }
            return;
        };
        let page = self.rng.usize(0..RANGE_PAGES as usize);
        let (offset, stream) = (page as u64 * PAGE, Shared::any_stream(&mut self.rng));
        if let Some(user) = committed[page] {
            // The decommit takes effect behind the last work on the page.
            if user != stream && shared.device().inner.order(stream, user).is_err() {
                return;
            }
            match core.ranges(DEVICE).unwrap().decommit(reservation.range, offset, PAGE, stream) {
                Ok(()) => committed[page] = None,
                Err(error) => shared.refused("decommit_range", &error),
            }
            return;
        }
        match core.ranges(DEVICE).unwrap().commit(reservation.range, offset, PAGE, stream) {
            Ok(()) => {
                committed[page] = Some(stream);
                if let Err(what) = shared.device().inner.launch(stream, reservation.base.offset(offset), PAGE) {
                    shared.find(format!("a committed page: {what}"));
                }
            }
            Err(error) => shared.refused("commit_range", &error),
        }
    }

    /// Requests some blocks from a private pool.
    fn use_pool(&mut self, shared: &Shared) {
        let core = &shared.core;
        let options = PoolOptions { use_on_oom: self.rng.bool(), no_split: self.rng.u32(0..4) == 0 };
        let pool = match core.pools(DEVICE).unwrap().create(options) {
            Ok(pool) => pool,
            Err(error) => return shared.refused("create_pool", &error),
        };
        let begun = core.pools(DEVICE).unwrap().begin_route(
            pool,
            Route::Thread(u64::from(self.number) + 1),
            RoutePurpose::Requests,
        );
        if begun.is_ok() {
            for _ in 0..self.rng.u32(1..6) {
                let stream = Shared::any_stream(&mut self.rng);
                self.request(shared, stream);
            }
            let ended = core
                .pools(DEVICE)
                .unwrap()
                .end_route(pool, RoutePurpose::Requests)
                .and_then(|_| core.pools(DEVICE).unwrap().release(pool));
            if let Err(error) = ended {
                shared.refused("the end of a pool's route", &error);
            }
        }
        if let Err(error) = begun.and_then(|()| core.pools(DEVICE).unwrap().release(pool)) {
            shared.refused("release_pool", &error);
        }
    }

    /// Requests a block from a pool with the tag of any thread's memory, which may be parked. The
    /// block is not used, and is freed by any thread.
    fn be_guest(&mut self, shared: &Shared) {
        let core = &shared.core;
        let (tag, pool) = self.guests[self.rng.usize(0..self.guests.len())];
        if let Err(error) = core.parking(DEVICE).and_then(|parking| parking.serve_elsewhere(tag, self.rng.bool())) {
            shared.refused("serve_elsewhere", &error);
        }
        // One route at a time leads into the pool: the end of a route names the pool alone.
        if !shared.visited.borrow_mut().insert(pool) {
            return;
        }
        self.visit(shared, pool);
        shared.visited.borrow_mut().remove(&pool);
        if self.unused.len() > GUESTS {
            self.free_unused(shared);
        }
    }

    /// Requests a block from a pool without another route.
    fn visit(&mut self, shared: &Shared, pool: PoolId) {
        let core = &shared.core;
        if let Err(error) = core.pools(DEVICE).unwrap().begin_route(
            pool,
            Route::Thread(u64::from(self.number) + 1),
            RoutePurpose::Requests,
        ) {
            return shared.refused("a guest's route", &error);
        }
        let (bytes, stream) = (self.size(), Shared::any_stream(&mut self.rng));
        match core.malloc(DEVICE, bytes, stream) {
            Ok(ptr) => {
                turns::tell(|| format!("{bytes} bytes at {ptr} of {stream:?} for a guest"));
                self.unused.push(ptr);
            }
            Err(error) => shared.refused("a guest's request", &error),
        }
        let ended = core
            .pools(DEVICE)
            .unwrap()
            .end_route(pool, RoutePurpose::Requests)
            .and_then(|_| core.pools(DEVICE).unwrap().release(pool));
        if let Err(error) = ended {
            shared.refused("the end of a guest's route", &error);
        }
    }

    /// Frees the blocks requested as a guest.
    fn free_unused(&mut self, shared: &Shared) {
        for ptr in std::mem::take(&mut self.unused) {
            if let Err(error) = shared.core.free(ptr) {
                shared.refused("a guest's free", &error);
                self.unused.push(ptr);
            }
        }
    }

    /// Ends the passing stream of the thread. The work of the stream goes on.
    fn end_stream(&mut self, shared: &Shared) {
        if self.capture.is_some() {
            return;
        }
        let (ended, next) = (shared.passing(self.number), Shared::any_stream(&mut self.rng));
        // The later work on the blocks comes after the work of the stream.
        if shared.device().inner.order(next, ended).is_err() {
            return;
        }
        self.blocks.iter_mut().filter(|block| block.last == ended).for_each(|block| block.last = next);
        turns::tell(|| format!("end of {ended:?}"));
        match shared.core.stream_destroyed(DEVICE, ended) {
            Ok(()) => shared.pass_on(self.number),
            Err(error) => shared.refused("stream_destroyed", &error),
        }
    }

    /// Begins the capture of a graph on the thread's passing stream, a single capture at a time in
    /// the world, or ends the capture.
    fn capture(&mut self, shared: &Shared) {
        let (core, stream) = (&shared.core, shared.passing(self.number));
        if let Some(pool) = self.capture.take() {
            turns::tell(|| format!("end of the capture on {stream:?}"));
            shared.device().inner.set_capturing(stream, false);
            let ended = core
                .pools(DEVICE)
                .unwrap()
                .end_route(pool, RoutePurpose::Capture)
                .and_then(|_| core.pools(DEVICE).unwrap().release(pool));
            if let Err(error) = ended.and_then(|()| core.pools(DEVICE).unwrap().release(pool)) {
                shared.refused("the end of a capture", &error);
            }
            return shared.captures.set(false);
        }
        if shared.captures.replace(true) {
            return;
        }
        let begun = core.pools(DEVICE).unwrap().create(PoolOptions::default()).and_then(|pool| {
            core.pools(DEVICE)?.begin_route(pool, Route::Stream(stream), RoutePurpose::Capture)?;
            Ok(pool)
        });
        match begun {
            Ok(pool) => {
                turns::tell(|| format!("capture on {stream:?}"));
                shared.device().inner.set_capturing(stream, true);
                self.capture = Some(pool);
            }
            Err(error) => {
                shared.captures.set(false);
                shared.refused("begin_capture", &error);
            }
        }
    }

    /// Lets a later call to the device fail.
    fn fail(&mut self, shared: &Shared) {
        if shared.rules.faults {
            let call = FAILING[self.rng.usize(0..FAILING.len())];
            shared.device().fail(call, self.rng.u64(0..4));
            shared.faults.set(shared.faults.get() + 1);
        }
    }

    /// Makes a rare call of the core.
    fn disturb(&mut self, shared: &Shared) {
        let core = &shared.core;
        let (what, done) = match self.rng.u32(0..7) {
            0 => ("empty_cache", core.empty_cache(DEVICE)),
            1 => ("trim", core.trim(DEVICE, self.rng.u64(0..256 << 20))),
            2 => ("process_events", core.process_events(DEVICE)),
            3 => ("maintain", core.pages(DEVICE).and_then(|pages| pages.maintain(2000)).map(drop)),
            4 => {
                let limit = self.rng.bool().then(|| self.rng.u64(128 << 20..512 << 20));
                ("set_limit", core.settings(DEVICE).map(|settings| settings.set_limit(limit)))
            }
            5 => {
                let mut config = shared.config.clone();
                // Some settings are incompatible with those of the world.
                let setting = SETTINGS[self.rng.usize(0..SETTINGS.len())];
                if self.rng.bool() && config.update(setting).is_err() {
                    config = shared.config.clone();
                }
                core.configure(&config);
                ("configure", Ok(()))
            }
            _ => ("destroy_idle_events", core.destroy_idle_events(DEVICE)),
        };
        if let Err(error) = done {
            shared.refused(what, &error);
        }
    }

    /// Ends the capture of the thread, if any. Much is refused while another thread captures.
    pub(crate) fn end_capture(&mut self, shared: &Shared) {
        shared.device().inner.clear_failures();
        if self.capture.is_some() {
            self.capture(shared);
        }
    }

    /// Frees all blocks of the thread, and gives everything back.
    pub(crate) fn end(&mut self, shared: &Shared) {
        if let Err(error) = shared.core.settings(DEVICE).map(|settings| settings.set_limit(None)) {
            shared.refused("set_limit", &error);
        }
        let left = std::mem::take(&mut *shared.exchange.borrow_mut());
        self.blocks.extend(left);
        // Parked memory is freed asleep, or wakes beside the memory of the other threads.
        while !self.blocks.is_empty() && !shared.has_finding() {
            self.free_one(shared);
        }
        while !self.unused.is_empty() && !shared.has_finding() {
            self.free_unused(shared);
        }
        for _ in 0..WAKES {
            let Some(mode) = self.asleep.filter(|_| !shared.has_finding()) else { break };
            self.wake(shared, mode);
            turns::pass();
        }
        if self.asleep.is_some() {
            shared.find("parked memory does not wake beside nothing else");
        }
        if let Some(Elastic { reservation, .. }) = self.range.take()
            && let Err(error) = shared.core.ranges(DEVICE).unwrap().release(reservation.range)
        {
            shared.refused("release_range", &error);
        }
    }
}
