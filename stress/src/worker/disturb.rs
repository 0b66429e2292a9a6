//! Disturbances: rare calls besides requests, frees and uses of blocks.

use super::{PoolRoute, Worker};
use crate::sizes;
use crate::stage::Device;
use cachalot_core::{Config, DeviceIndex, Host, MIB, PoolId, PoolOptions, Route, RoutePurpose};

/// Temporary settings, added to the settings of the run.
const SETTINGS: [&str; 6] = [
    "max_split_size_mb:64",
    "garbage_collection_threshold:0.5",
    "roundup_power2_divisions:4",
    "expandable_segments:True",
    "expandable_segments:False",
    "large_segment_size_mb:32,max_split_size_mb:128",
];
/// Upper bound for the duration of a limit or a setting, in requests and frees of a thread.
const EPISODE: u64 = 200;
/// Upper bound for the duration without a cache, which is shorter because every request then calls
/// the device.
const UNCACHED: u64 = 20;
/// Time for the allocator's upkeep, in microseconds of the driver's time.
const UPKEEP_US: u64 = 2000;
/// Number of equal blocks that fill a whole device.
const GRABBED: u64 = 8;
/// Number of pools created in a row at most, and the device size whose eighth bounds their blocks.
const POOLS: u32 = 24;
const POOLED: u64 = 4 * MIB;

/// Number of the kinds of disturbances in every run, with tenants, and with ranges.
const KINDS: u32 = 27;
const TENANTS: u32 = 32;
const RANGES: u32 = 20;
/// Number of the kinds of disturbances with `spill`.
const MOVES: u32 = 8;

impl Worker {
    /// Makes a random disturbance.
    pub(super) fn disturb(&mut self) {
        self.counts.disturbances += 1;
        self.end_due_route();
        let shared = self.shared;
        let since = shared.captures.now();
        let subject = &shared.subject;
        let device = self.rng.usize(0..shared.devices.len());
        let (stage, index) = (&shared.devices[device], shared.devices[device].index);
        // Kinds of the options beyond those of every run.
        let (tenants, ranges) = (shared.options.tenants.min(1) * TENANTS, shared.options.ranges.min(1) * RANGES);
        let moves = if stage.spills { MOVES } else { 0 };
        let kind = self.rng.u32(0..KINDS + tenants + ranges + moves);
        let done = match kind {
            0 => subject.empty_cache(index),
            1 => subject.trim(index, self.rng.u64(0..=stage.total_bytes)),
            2 => subject.process_events(index).and_then(|()| self.maintain(index)),
            3..=10 => self.change_settings(kind, device),
            15 => self.query(device),
            _ => {
                self.disturb_with_memory(kind, [tenants, ranges], device);
                Ok(())
            }
        };
        if let Err(error) = done {
            self.failed_releasing("a disturbance", &error, since);
        }
    }

    /// Changes limits, settings or statistics.
    fn change_settings(&mut self, kind: u32, device: usize) -> Result<(), cachalot_core::Error> {
        let subject = &self.shared.subject;
        let &Device { index, total_bytes: total, limit: usual, .. } = &self.shared.devices[device];
        match kind {
            3 => {
                self.undo_settings_after(EPISODE);
                let limit = self.rng.bool().then(|| self.rng.u64(total / 8..=total));
                subject.settings(index).map(|view| view.set_limit(limit.or(usual)))
            }
            4 => {
                self.undo_settings_after(EPISODE);
                let part = 0.25 + self.rng.f64() * 0.75;
                subject.settings(index).unwrap().set_memory_fraction(part / f64::from(self.shared.options.sharers))
            }
            5 | 6 => {
                self.undo_settings_after(EPISODE);
                self.reconfigure();
                Ok(())
            }
            7 => {
                self.restore_caching();
                self.undo_settings_after(UNCACHED);
                // At most one device without a cache per thread, so `restore_caching` restores
                // every cache.
                self.uncached = Some(device);
                subject.settings(index).map(|view| view.set_caching(false))
            }
            8 => subject
                .stats(index)
                .map(|view| view.reset_peaks())
                .and(subject.stats(index).map(|view| view.reset_accumulated())),
            9 => subject.trace(index).unwrap().record(if self.rng.bool() { 256 } else { 0 }),
            _ => subject.settings(index).map(|view| view.set_second_search(self.rng.u32(0..3) > 0)),
        }
    }

    /// Makes a disturbance with its own memory or streams. The kinds from [`KINDS`] on belong to
    /// `tenants`, then to ranges, and then to moves.
    fn disturb_with_memory(&mut self, kind: u32, [tenants, ranges]: [u32; 2], device: usize) {
        match kind {
            11 | 12 => self.begin_route(device),
            13 => self.grab(device),
            14 => {
                let place = self.rng.usize(0..self.places.len());
                self.hold(place);
            }
            16..=18 => self.run_guest_stream(),
            19 | 20 => self.run_guest_thread(),
            21 => self.make_pools(device),
            22 | 23 => self.capture_alone(),
            ..KINDS => self.capture(),
            _ if kind < KINDS + tenants => self.tenant_steps(),
            _ if kind < KINDS + tenants + ranges => self.range_steps(),
            _ => self.advise(device),
        }
    }

    /// Lets the allocator do work put off by requests, for a limited time.
    fn maintain(&self, index: DeviceIndex) -> Result<(), cachalot_core::Error> {
        self.shared.subject.pages(index)?.maintain(UPKEEP_US).map(drop)
    }

    /// Schedules the end of temporary settings after at most `most` requests and frees of the
    /// thread.
    fn undo_settings_after(&mut self, most: u64) {
        self.settings_end_at = Some(self.counts.ops + self.rng.u64(1..=most));
    }

    /// Undoes all disturbances that keep requests off the fast path.
    pub(super) fn undo_settings(&mut self) {
        self.settings_end_at = None;
        self.restore_caching();
        let subject = &self.shared.subject;
        subject.configure(&self.shared.config);
        for stage in self.shared.devices {
            let calls = [
                subject.settings(stage.index).map(|view| view.set_limit(stage.limit)),
                subject.trace(stage.index).unwrap().record(0),
                subject.process_events(stage.index),
            ];
            for error in calls.into_iter().filter_map(Result::err) {
                self.failed("undo_settings", &error);
            }
        }
    }

    /// Enables the cache disabled by the thread.
    pub(super) fn restore_caching(&mut self) {
        if let Some(device) = self.uncached.take()
            && let Err(error) =
                self.shared.subject.settings(self.shared.devices[device].index).map(|view| view.set_caching(true))
        {
            self.failed("set_caching", &error);
        }
    }

    /// Makes queries that change no state.
    fn query(&mut self, device: usize) -> Result<(), cachalot_core::Error> {
        let (subject, stage) = (&self.shared.subject, &self.shared.devices[device]);
        let line = stage.lanes[self.rng.usize(0..stage.lanes.len())].line();
        let bytes = sizes::pick(&mut self.rng, stage.total_bytes);
        let (mut events, mut keys) = (0, 0);
        subject.trace(stage.index)?.for_each(|_| events += 1);
        subject.stats(stage.index)?.totals().for_each(|_, _| keys += 1);
        assert!(keys > 100 && events <= 256, "{keys} statistics, {events} events of the trace");
        subject.forecast(stage.index).unwrap().malloc(bytes, line.id).map(drop)
    }

    /// Sets temporary settings, or restores the settings of the run.
    fn reconfigure(&mut self) {
        let mut config: Config = self.shared.config.clone();
        if self.rng.bool() {
            let setting = SETTINGS[self.rng.usize(0..SETTINGS.len())];
            // Some settings are incompatible with the run's own settings.
            if config.update(setting).is_err() {
                config = self.shared.config.clone();
            }
        }
        self.shared.subject.configure(&config);
    }

    /// Routes the thread's requests into a private pool for a while.
    fn begin_route(&mut self, device: usize) {
        if self.route.is_some() {
            return;
        }
        let (subject, stage) = (&self.shared.subject, &self.shared.devices[device]);
        let options = PoolOptions { use_on_oom: self.rng.bool(), no_split: self.rng.u32(0..4) == 0 };
        let pool = match subject.pools(stage.index).unwrap().create(options) {
            Ok(pool) => pool,
            Err(error) => return self.failed("create_pool", &error),
        };
        // A route by stream also captures the requests of other threads on the stream.
        let route = if self.rng.bool() {
            Route::Thread(stage.cuda.thread_id())
        } else {
            Route::Stream(stage.lanes[self.rng.usize(0..stage.lanes.len())].line().id)
        };
        if let Err(error) = subject.pools(stage.index).unwrap().begin_route(pool, route, RoutePurpose::Requests) {
            return self.failed("begin_allocate_to_pool", &error);
        }
        self.counts.pools += 1;
        let ends_at = self.counts.ops + self.rng.u64(1..=4 * self.shared.options.disturb);
        self.route = Some(PoolRoute { device, pool, ends_at });
    }

    fn end_due_route(&mut self) {
        if self.route.as_ref().is_some_and(|route| route.ends_at <= self.counts.ops) {
            self.end_route();
        }
    }

    /// Ends the route into the private pool. Live blocks of the pool stay valid.
    pub(super) fn end_route(&mut self) {
        let Some(PoolRoute { device, pool, .. }) = self.route.take() else { return };
        let (subject, index) = (&self.shared.subject, self.shared.devices[device].index);
        self.release_routed_pool(index, pool);
        let since = self.shared.captures.now();
        if self.rng.bool()
            && let Err(error) = subject.empty_cache(index)
        {
            self.failed_releasing("empty_cache", &error, since);
        }
    }

    /// Creates and releases many pools. Each pool has a block, freed before or after the release.
    fn make_pools(&mut self, device: usize) {
        let (shared, index) = (self.shared, self.shared.devices[device].index);
        let place =
            (0..self.places.len()).find(|&at| self.places[at].device == device).expect("every device has a lane");
        let line = self.line(place);
        for _ in 0..self.rng.u32(1..=POOLS) {
            let pool = match shared.subject.pools(index).unwrap().create(PoolOptions::default()) {
                Ok(pool) => pool,
                Err(error) => return self.failed("create_pool", &error),
            };
            let route = Route::Thread(shared.devices[device].cuda.thread_id());
            if let Err(error) = shared.subject.pools(index).unwrap().begin_route(pool, route, RoutePurpose::Requests) {
                return self.failed("begin_allocate_to_pool", &error);
            }
            self.counts.pools += 1;
            let bytes = sizes::pick(&mut self.rng, shared.options.max_bytes(POOLED));
            let block = self.obtain(device, line, bytes, true);
            self.release_routed_pool(index, pool);
            self.places[place].fresh.extend(block);
        }
        self.fill(place);
    }

    /// Ends a route into a pool, and releases the pool twice: once for the creation, once for the
    /// route.
    fn release_routed_pool(&mut self, index: DeviceIndex, pool: PoolId) {
        let subject = &self.shared.subject;
        let ended = subject.pools(index).unwrap().end_route(pool, RoutePurpose::Requests);
        let released =
            ended.and(subject.pools(index).unwrap().release(pool)).and(subject.pools(index).unwrap().release(pool));
        if let Err(error) = released {
            self.failed("the end of a pool", &error);
        }
    }

    /// Requests large blocks until the device is full, and frees the blocks unused.
    fn grab(&mut self, device: usize) {
        let stage = &self.shared.devices[device];
        let line = stage.lanes[self.rng.usize(0..stage.lanes.len())].line();
        let bytes = stage.total_bytes / GRABBED;
        // The last requests tend to fail, which makes the allocator release caches and search
        // again.
        let grabbed: Vec<_> = (0..GRABBED).map_while(|_| self.obtain(device, line, bytes, true)).collect();
        for block in grabbed {
            if let Err(block) = self.free_block(block) {
                self.ready.push(block);
            }
        }
    }
}
