//! A differential harness: runs core and model on equal calls and compares both after each call.

use crate::consistency;
use crate::failures;
use crate::model::agreement;
use crate::model::{Model, Purpose, Refusal};
use crate::program::{Op, config, options, route, stream, streams};
use cachalot_core::simulated::{Call, SimulatedDevice};
use cachalot_core::{
    Allocator, BlockState, Config, DeviceIndex, DevicePtr, Error, Forecast, Growable, Lock, PoolId, Route,
    RoutePurpose, Segments, SnapshotSegment, Storage, StreamId,
};
use std::collections::BTreeMap;

/// An allocator, and the model of one of its devices.
pub struct Twins<R: Lock = spin::mutex::SpinMutex<()>, S: Storage = Growable> {
    real: Allocator<SimulatedDevice, R, S>,
    model: Model,
    device: DeviceIndex,
    /// Blocks of the program, with their requested sizes.
    live: Vec<(DevicePtr, u64)>,
    /// Every pool name ever used.
    pools: Vec<PoolId>,
    /// Captures in progress.
    captures: Vec<(PoolId, StreamId)>,
    /// Number of host-decided routes begun so far.
    routes: u64,
    /// Smallest oversize size, while constant.
    oversize: Option<u64>,
    /// Whether only the core runs on, because a table was full or the test asked for the core
    /// alone.
    parted: bool,
    /// Whether the core may defer frees for lack of room for their events.
    limited: bool,
    /// Whether forecasts are checked. Requires that no device call fails.
    foretells: bool,
    /// The last answer of the core, if an error.
    error: Option<Error>,
}

/// Counts the releases of memory to a device.
fn given_back(device: &SimulatedDevice) -> u64 {
    device.calls(Call::Release) + device.calls(Call::Unmap)
}

impl<R: Lock, S: Storage> Twins<R, S> {
    /// Creates core and model over devices of `capacity` bytes, with the configuration of the given
    /// number. The core has a second, unused device in front.
    ///
    /// # Panics
    /// If the core cannot be created.
    pub fn new(capacity: u64, number: u8) -> Self {
        Self::over(capacity, &config(number))
    }

    fn over(capacity: u64, config: &Config) -> Self {
        Self::on(|number| SimulatedDevice::numbered(number, capacity), config)
    }

    fn on(device: impl Fn(u32) -> SimulatedDevice, config: &Config) -> Self {
        let devices = [0, 1].map(&device);
        let real = Allocator::new(devices, config).expect("two devices fit");
        let model = Model::new(device(1), 1, u64::from(S::GROUPS), config);
        Self {
            real,
            model,
            device: DeviceIndex(1),
            live: Vec::new(),
            pools: vec![PoolId::DEFAULT],
            captures: Vec::new(),
            routes: 0,
            oversize: oversize(config),
            parted: false,
            limited: false,
            foretells: false,
            error: None,
        }
    }

    /// Creates core and model over devices that tell which streams are idle.
    ///
    /// # Panics
    /// If the core cannot be created.
    pub fn telling_idle_streams(capacity: u64, number: u8) -> Self {
        let device = |number| SimulatedDevice::numbered(number, capacity).with_idle_streams_told();
        Self::on(device, &config(number))
    }

    /// Creates a core with so few table entries that frees may have to wait for room. The model
    /// takes part until then.
    ///
    /// # Panics
    /// If the core cannot be created.
    pub fn limited(capacity: u64, number: u8) -> Self {
        Self { limited: true, ..Self::new(capacity, number) }
    }

    /// Creates a core without a model.
    ///
    /// # Panics
    /// If the core cannot be created.
    pub fn alone(capacity: u64, number: u8) -> Self {
        Self { parted: true, ..Self::new(capacity, number) }
    }

    /// Creates a core without a model, with any configuration.
    ///
    /// # Panics
    /// If the core cannot be created.
    pub fn alone_with(capacity: u64, config: &Config) -> Self {
        Self { parted: true, ..Self::over(capacity, config) }
    }

    /// Turns on the check of forecasts. No device call may fail in the program.
    #[must_use]
    pub fn with_forecasts(self) -> Self {
        Self { foretells: true, ..self }
    }

    /// Returns the core.
    pub fn real(&self) -> &Allocator<SimulatedDevice, R, S> {
        &self.real
    }

    /// Returns the device in use.
    pub fn device(&self) -> DeviceIndex {
        self.device
    }

    /// Returns the blocks of the program.
    pub fn live(&self) -> impl Iterator<Item = DevicePtr> {
        self.live.iter().map(|&(ptr, _)| ptr)
    }

    /// Returns whether the model no longer takes part, because a table of the core was full.
    pub fn has_parted(&self) -> bool {
        self.parted
    }

    fn simulated(&self) -> &SimulatedDevice {
        self.real.device(self.device).expect("it was given")
    }

    fn pool(&self, number: u8) -> PoolId {
        self.pools[usize::from(number) % self.pools.len()]
    }

    /// Runs a whole program, with all checks after every operation.
    ///
    /// # Errors
    /// A message that names the operation and the difference or violated invariant.
    pub fn run(&mut self, program: &[Op]) -> Result<(), String> {
        for (number, op) in program.iter().enumerate() {
            self.step(op).map_err(|why| format!("operation {number}, {op:?}: {why}"))?;
        }
        Ok(())
    }

    /// Runs one operation on both and compares the answers only. Returns the core's answer if an
    /// error.
    ///
    /// # Errors
    /// A message that names the difference.
    pub fn act(&mut self, op: &Op) -> Result<Option<Error>, String> {
        self.error = None;
        self.perform(op)?;
        Ok(self.error)
    }

    /// Runs one operation on both, with all checks.
    ///
    /// # Errors
    /// A message that names the difference or violated invariant.
    pub fn step(&mut self, op: &Op) -> Result<(), String> {
        self.act(op)?;
        self.check()
    }

    /// Compares core and model, and checks the invariants of the core.
    ///
    /// # Errors
    /// A message that names the difference or violated invariant.
    pub fn check(&mut self) -> Result<(), String> {
        self.parted |= self.limited && self.pending(&self.real.snapshot()) > self.pending(&self.model.snapshot());
        if !self.parted {
            self.compare()?;
        }
        consistency::check(&self.real, self.device, self.oversize)
    }

    /// Checks that the program's blocks are exactly the blocks allocated in the core.
    ///
    /// # Errors
    /// A message that names the difference.
    pub fn check_held(&self) -> Result<(), String> {
        let mut live = self.live.clone();
        live.sort_unstable();
        let snapshot = self.real.snapshot();
        let blocks =
            snapshot.iter().filter(|segment| segment.device == self.device).flat_map(|segment| &segment.blocks);
        let held = blocks.filter(|block| block.state == BlockState::ActiveAllocated);
        let held: Vec<_> = held.map(|block| (block.address, block.requested_size)).collect();
        if held == live {
            Ok(())
        } else {
            Err(format!("the core says that the program holds {held:?}, it holds {live:?}"))
        }
    }

    /// Compares the two answers, unless the core ran out of table entries.
    fn judge<T: PartialEq + core::fmt::Debug>(
        &mut self,
        core: &Result<T, Error>,
        model: impl FnOnce(&mut Model) -> Result<T, Refusal>,
    ) -> Result<(), String> {
        self.error = core.as_ref().err().copied();
        self.parted |= matches!(core, Err(Error::TableFull(_)));
        if self.parted {
            return Ok(());
        }
        let model = model(&mut self.model);
        agreement::of_answers(core, &model)
    }

    fn perform(&mut self, op: &Op) -> Result<(), String> {
        let device = self.device;
        match *op {
            Op::Malloc { bytes, stream: number } => self.malloc(bytes, stream(number)),
            Op::Free { block } => self.free(block, None),
            Op::FreeSized { block, right } => self.free(block, Some(right)),
            Op::FreeWrong { block, offset } => self.free_wrong(block, offset),
            Op::RecordStream { block, stream: number } => {
                let Some(&(ptr, _)) = self.nth(block) else { return Ok(()) };
                let core = self.real.record_stream(ptr, stream(number));
                self.judge(&core, |model| model.record_stream(ptr, stream(number)))
            }
            Op::BaseOf { block, offset } => self.base_of(block, offset),
            Op::CompleteOne { stream: number } => {
                self.simulated().complete_one(stream(number));
                self.model.device.complete_one(stream(number));
                Ok(())
            }
            Op::Complete { stream: number } => {
                self.simulated().complete(stream(number));
                self.model.device.complete(stream(number));
                Ok(())
            }
            Op::ProcessEvents => {
                let core = self.real.process_events(device);
                self.judge(&core, Model::process_events)
            }
            Op::EmptyCache => {
                let core = self.real.empty_cache(device);
                self.judge(&core, Model::empty_cache)
            }
            Op::Trim { keep_mib } => {
                let core = self.real.trim(device, u64::from(keep_mib) << 20);
                self.judge(&core, |model| model.trim(u64::from(keep_mib) << 20))
            }
            Op::StreamDestroyed { stream: number } => {
                let core = self.real.stream_destroyed(device, stream(number));
                self.judge(&core, |model| model.stream_destroyed(stream(number)))
            }
            Op::Limit { .. } | Op::Fraction { .. } | Op::Configure { .. } | Op::Caching { .. } | Op::Trace { .. } => {
                self.set(op)
            }
            Op::ResetPeaks => {
                self.model.reset_peak_stats();
                self.real.stats(device).map(|stats| stats.reset_peaks()).map_err(|error| error.to_string())
            }
            Op::ResetAccumulated => {
                self.model.reset_accumulated_stats();
                self.real.stats(device).map(|stats| stats.reset_accumulated()).map_err(|error| error.to_string())
            }
            _ => self.act_on_pools(op),
        }
    }

    fn act_on_pools(&mut self, op: &Op) -> Result<(), String> {
        let device = self.device;
        match *op {
            Op::EmptyPool { pool } => {
                let id = self.pool(pool);
                let core = self.real.pools(device).unwrap().empty(id);
                self.judge(&core, |model| model.empty_pool(id))
            }
            Op::CreatePool { use_on_oom, no_split } => {
                let core = self.real.pools(device).unwrap().create(options(use_on_oom, no_split));
                if let Ok(id) = core {
                    self.pools.push(id);
                }
                self.judge(&core, |model| {
                    let id = core.map_err(|error| Refusal::from(&error))?;
                    model.create_pool(id, options(use_on_oom, no_split))?;
                    Ok(id)
                })
            }
            Op::RetainPool { pool, use_on_oom, no_split } => {
                let id = self.pool(pool);
                let core = self.real.pools(device).unwrap().retain(id, options(use_on_oom, no_split));
                self.judge(&core, |model| model.retain_pool(id, options(use_on_oom, no_split)))
            }
            Op::PoolOptions { pool, use_on_oom, no_split } => {
                let id = self.pool(pool);
                let core = self.real.pools(device).unwrap().set_options(id, options(use_on_oom, no_split));
                self.judge(&core, |model| model.set_pool_options(id, options(use_on_oom, no_split)))
            }
            Op::ReleasePool { pool } => {
                let id = self.pool(pool);
                let core = self.real.pools(device).unwrap().release(id);
                self.judge(&core, |model| model.release_pool(id))?;
                let core = self.real.pools(device).unwrap().users(id);
                self.judge(&core, |model| model.pool_users(id))
            }
            Op::Route { pool, stream } => self.begin_route(pool, route(stream)),
            Op::RouteThread { pool, other } => self.begin_route(pool, Route::Thread(u64::from(other))),
            Op::EndRoute { pool } => {
                let id = self.pool(pool);
                let core = self.real.pools(device).unwrap().end_route(id, RoutePurpose::Requests).map(drop);
                self.judge(&core, |model| model.end_route(id, Purpose::Requests).map(|_| ()))
            }
            Op::RouteUnsaid { pool, streams: bits } => {
                let (id, number) = (self.pool(pool), self.routes);
                self.routes += 1;
                self.simulated().set_led(number, streams(bits));
                self.model.device.set_led(number, streams(bits));
                let core =
                    self.real.pools(device).unwrap().begin_route(id, Route::Host(number), RoutePurpose::Undeclared);
                self.judge(&core, |model| model.begin_route(id, Route::Host(number), Purpose::Unsaid))
            }
            Op::EndRouteUnsaid { pool } => {
                let id = self.pool(pool);
                let core = self.real.pools(device).unwrap().end_route(id, RoutePurpose::Undeclared);
                self.judge(&core, |model| model.end_route(id, Purpose::Unsaid))
            }
            _ => self.act_on_captures(op),
        }
    }

    fn act_on_captures(&mut self, op: &Op) -> Result<(), String> {
        let device = self.device;
        match *op {
            Op::Capture { pool, stream: number } => {
                let id = self.pool(pool);
                let core = self.real.pools(device).unwrap().begin_route(
                    id,
                    Route::Stream(stream(number)),
                    RoutePurpose::Capture,
                );
                if core.is_ok() {
                    self.captures.push((id, stream(number)));
                    self.set_capturing(stream(number), true);
                }
                self.judge(&core, |model| model.begin_route(id, Route::Stream(stream(number)), Purpose::Capture))
            }
            Op::EndCapture { tidily } => {
                let Some((id, stream)) = self.captures.pop() else { return Ok(()) };
                let core = self.real.pools(device).unwrap().end_route(id, RoutePurpose::Capture).map(drop);
                if tidily {
                    self.set_capturing(stream, false);
                }
                self.judge(&core, |model| model.end_route(id, Purpose::Capture).map(|_| ()))
            }
            Op::StopCapturing { stream: number } => {
                if self.captures.iter().all(|&(_, of)| of != stream(number)) {
                    self.set_capturing(stream(number), false);
                }
                Ok(())
            }
            Op::CaptureWork { stream: number } => {
                if self.model.captures(stream(number)) {
                    self.simulated().capture_work(stream(number));
                    self.model.capture_work(stream(number));
                }
                Ok(())
            }
            Op::CaptureWait { stream: number, awaited } => {
                if self.model.captures(stream(awaited)) && stream(number) != stream(awaited) {
                    self.simulated().capture_wait(stream(number), stream(awaited));
                    self.model.capture_wait(stream(number), stream(awaited));
                }
                Ok(())
            }
            _ => unreachable!("every other operation is no pool's"),
        }
    }

    fn set(&mut self, op: &Op) -> Result<(), String> {
        let device = self.device;
        match *op {
            Op::Limit { above_mib } => {
                let limit = above_mib.map(|mib| self.reserved() + (u64::from(mib) << 20));
                self.model.set_limit(limit);
                self.real.settings(device).map(|settings| settings.set_limit(limit)).map_err(|error| error.to_string())
            }
            Op::Fraction { of_64 } => {
                let fraction = f64::from(of_64 % 65) / 64.0;
                let total = self.simulated().memory_info().map_err(|error| error.to_string())?.total;
                self.model.set_limit((fraction < 1.0).then_some((fraction * total as f64).round() as u64));
                self.real.settings(device).unwrap().set_memory_fraction(fraction).map_err(|error| error.to_string())
            }
            Op::Configure { config: number } => {
                let config: Config = config(number);
                if oversize(&config) != self.oversize {
                    // Segments and blocks obtained before were counted by other rules.
                    self.oversize = None;
                }
                self.model.configure(&config);
                self.real.configure(&config);
                Ok(())
            }
            Op::Caching { on } => {
                self.model.set_caching(on);
                self.real.settings(device).map(|settings| settings.set_caching(on)).map_err(|error| error.to_string())
            }
            Op::Trace { capacity } => {
                let core = self.real.trace(device).unwrap().record(usize::from(capacity));
                self.judge(&core, |_| Ok(()))
            }
            _ => unreachable!("every other operation is no setting"),
        }
    }

    fn reserved(&self) -> u64 {
        self.simulated().used()
    }

    fn set_capturing(&mut self, stream: StreamId, capturing: bool) {
        self.simulated().set_capturing(stream, capturing);
        self.model.set_capturing(stream, capturing);
    }

    fn begin_route(&mut self, pool: u8, route: Route) -> Result<(), String> {
        let id = self.pool(pool);
        let core = self.real.pools(self.device).unwrap().begin_route(id, route, RoutePurpose::Requests);
        self.judge(&core, |model| model.begin_route(id, route, Purpose::Requests))
    }

    fn malloc(&mut self, bytes: u64, stream: StreamId) -> Result<(), String> {
        let waiting = if self.parted { self.pending(&self.real.snapshot()) > 0 } else { self.model.is_pending() };
        let forecast = self.real.forecast(self.device).unwrap().malloc(bytes, stream);
        let before = failures::calls(self.simulated());
        let of_core = given_back(self.simulated());
        let core = self.real.malloc(self.device, bytes, stream);
        let full = matches!(core, Err(Error::TableFull(_)));
        if !waiting && (self.foretells || !self.parted) && !full && bytes > 0 {
            self.check_forecast(&forecast, &core, &before)?;
        }
        if let Ok(ptr) = core
            && ptr != DevicePtr::NULL
        {
            if let Some((other, _)) = self.live.iter().find(|(other, _)| *other == ptr) {
                return Err(format!("{other} was handed out twice"));
            }
            self.live.push((ptr, bytes));
        }
        let judged = self.judge(&core, |model| model.malloc(bytes, stream));
        // A table was full, and the cache of an idle stream made room. The model's tables grow: it
        // keeps that cache, or releases it for another reason, which it counts as a retry, or in
        // another order, after which a range is reused at another place.
        let gave_back = self.limited && given_back(self.simulated()) > of_core;
        let differ =
            || self.real.snapshot() != self.model.snapshot() || self.simulated().vacant() != self.model.device.vacant();
        let made_room = gave_back && (judged.is_err() || differ() || self.model_retried_alone());
        self.parted |= made_room;
        if made_room { Ok(()) } else { judged }
    }

    /// Returns whether the model released its cache for a request that the core served without a
    /// release.
    fn model_retried_alone(&self) -> bool {
        let key = "num_alloc_retries";
        let core = self.real.stats(self.device).map(|stats| stats.totals()).ok().and_then(|stats| stats.get(key));
        core < self.model.statistics().get(key).copied()
    }

    /// Checks that a forecast came true.
    fn check_forecast(
        &self,
        forecast: &Result<Forecast, Error>,
        core: &Result<DevicePtr, Error>,
        before: &BTreeMap<Call, u64>,
    ) -> Result<(), String> {
        let made = |call: Call| self.simulated().calls(call) > before[&call];
        // A request asks whether the device has finished with free memory, and a forecast does not.
        let polled = self.real.settings(self.device).map(|settings| settings.config()).is_ok_and(|config| {
            let compact = config.compact().is_some() && made(Call::Release);
            let short = matches!(forecast, Ok(Forecast::OutOfMemory | Forecast::Release(_)));
            let stitched = config.policy_name() == "stitched" && short && made(Call::IsComplete);
            compact || stitched
        });
        if polled && core.is_ok() {
            return Ok(());
        }
        let right = match forecast {
            Ok(Forecast::Hit(ptr)) => *core == Ok(*ptr) && !made(Call::Obtain) && !made(Call::Release),
            Ok(Forecast::Obtain(_)) => made(Call::Obtain),
            Ok(Forecast::Expand) => made(Call::Reserve) || made(Call::Create) || core.is_ok(),
            Ok(Forecast::Release(_)) => made(Call::Release) || made(Call::Unmap),
            Ok(Forecast::OutOfMemory) => matches!(core, Err(Error::OutOfMemory(_) | Error::Rejected(_))),
            Err(error) => core.as_ref().err() == Some(error),
        };
        if right { Ok(()) } else { Err(format!("{forecast:?} was foretold, {core:?} came of it")) }
    }

    fn nth(&self, block: u8) -> Option<&(DevicePtr, u64)> {
        self.live.get(usize::from(block).checked_rem(self.live.len())?)
    }

    /// Frees a block; on demand with its size, or with a wrong size.
    fn free(&mut self, block: u8, sized: Option<bool>) -> Result<(), String> {
        let Some(&(ptr, bytes)) = self.nth(block) else { return Ok(()) };
        let size = sized.map(|right| if right { bytes } else { bytes + 1 });
        let core = match size {
            Some(size) => self.real.free_sized(ptr, size),
            None => self.real.free(ptr),
        };
        if core.is_ok() {
            self.live.retain(|&(other, _)| other != ptr);
        }
        self.judge(&core, |model| model.free(ptr, size))
    }

    fn free_wrong(&mut self, block: u8, offset: u16) -> Result<(), String> {
        let Some(&(ptr, _)) = self.nth(block) else { return Ok(()) };
        let wrong = ptr.offset(u64::from(offset));
        if self.live.iter().any(|&(other, _)| other == wrong) {
            return Ok(());
        }
        let core = self.real.free(wrong);
        self.judge(&core, |model| model.free(wrong, None))
    }

    fn base_of(&mut self, block: u8, offset: u32) -> Result<(), String> {
        let Some(&(ptr, _)) = self.nth(block) else { return Ok(()) };
        let ptr = ptr.offset(u64::from(offset));
        let core = self.real.base_of(ptr).map(|found| (found.base, found.size, found.requested));
        self.judge(&core, |model| model.base_of(ptr))
    }

    /// Counts the blocks of the device that are freed and still pending.
    fn pending(&self, snapshot: &[SnapshotSegment]) -> usize {
        let segments = snapshot.iter().filter(|segment| segment.device == self.device);
        let blocks = segments.flat_map(|segment| &segment.blocks);
        blocks.filter(|block| block.state == BlockState::ActivePendingFree).count()
    }

    /// Compares the observable state of core and model.
    fn compare(&self) -> Result<(), String> {
        agreement::of_segments(&self.real.snapshot(), &self.model.snapshot())?;
        let stats = self.real.stats(self.device).map_err(|error| error.to_string())?.totals();
        let mut expected = self.model.statistics();
        let mut wrong = None;
        stats.for_each(|key, value| {
            let model = expected.remove(key);
            if model != Some(value) && wrong.is_none() {
                wrong = Some(format!("{key} is {value} in the core, {model:?} in the model"));
            }
        });
        if let Some((key, value)) = expected.pop_first() {
            wrong = wrong.or(Some(format!("{key} is {value} in the model and missing in the core")));
        }
        let (mut core, model) = (self.simulated().outstanding(), self.model.device.outstanding());
        // The core keeps the handle of each mapping, and the model destroys it at once.
        if core.handles != core.mappings {
            wrong = wrong.or(Some(format!("a handle is not mapped, or twice: {core:?}")));
        }
        core.handles = model.handles;
        if core != model {
            wrong = wrong.or(Some(format!("the core holds {core:?} of its device, the model {model:?}")));
        }
        wrong.map_or(Ok(()), Err)
    }

    /// Ends the program: frees all blocks, releases all memory, and checks that the device is as
    /// new.
    ///
    /// # Errors
    /// A message that names the remains.
    pub fn finish(mut self) -> Result<(), String> {
        self.give_everything_back()?;
        let (left, used) = (self.simulated().outstanding(), self.simulated().used());
        let marks = self.simulated().capture_marks();
        if used == 0 && marks == 0 && left == cachalot_core::simulated::Outstanding::default() {
            return Ok(());
        }
        Err(format!("after everything was freed the device still holds {left:?}, {marks} marks, {used} bytes"))
    }

    /// Frees all blocks, ends all captures and routes, and empties the cache.
    ///
    /// # Errors
    /// A message that names the difference, the violated invariant, or the block that cannot be
    /// freed.
    ///
    /// # Panics
    /// Never: the device is there.
    pub fn give_everything_back(&mut self) -> Result<(), String> {
        while !self.captures.is_empty() {
            self.step(&Op::EndCapture { tidily: true })?;
        }
        for number in 0..crate::program::STREAMS {
            self.step(&Op::StopCapturing { stream: number })?;
        }
        // Some of these may pass for captures, which keep blocks from being freed.
        for pool in 0..self.pools.len() as u8 {
            while self.act(&Op::EndRouteUnsaid { pool })?.is_none() {}
        }
        for held in (1..=self.live.len()).rev() {
            self.act(&Op::Free { block: 0 })?;
            if matches!(self.error, Some(Error::TableFull(_))) {
                // No more events fit: some must be complete first.
                (0..crate::program::STREAMS).try_for_each(|stream| self.step(&Op::Complete { stream }))?;
                self.step(&Op::ProcessEvents)?;
                self.step(&Op::Free { block: 0 })?;
            }
            if self.live.len() == held {
                return Err(format!("{:?} cannot be freed: {:?}", self.live[0], self.error));
            }
        }
        self.check()?;
        for pool in 1..self.pools.len() as u8 {
            while self.real.pools(self.device).unwrap().end_route(self.pool(pool), RoutePurpose::Requests).is_ok() {
                self.judge(&Ok(()), |_| Ok(()))?;
                if !self.parted {
                    self.model
                        .end_route(self.pools[usize::from(pool)], Purpose::Requests)
                        .map_err(|why| format!("{why:?}"))?;
                }
            }
            while self.real.pools(self.device).unwrap().users(self.pool(pool)).is_ok_and(|users| users > 0) {
                self.step(&Op::ReleasePool { pool })?;
            }
        }
        self.step(&Op::EmptyCache)
    }
}

/// Returns the smallest oversize size under a configuration, on a device with virtual memory.
fn oversize(config: &Config) -> Option<u64> {
    config.max_split_size().filter(|_| config.parity() || !config.expandable_segments())
}
