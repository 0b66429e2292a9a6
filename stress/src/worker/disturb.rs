//! What is rare: everything but requests, frees and uses.

use super::{Tenant, Worker};
use crate::sizes;
use cachalot_core::{Config, DeviceIndex, DeviceMemory, MIB, PoolId, PoolOptions, Route};

/// Settings that are put in force for a while, added to those of the run.
const SETTINGS: [&str; 6] = [
    "max_split_size_mb:64",
    "garbage_collection_threshold:0.5",
    "roundup_power2_divisions:4",
    "expandable_segments:True",
    "expandable_segments:False",
    "large_segment_size_mb:32,max_split_size_mb:128",
];
/// A limit or a setting is in force for at most so many requests and frees of a thread.
const EPISODE: u64 = 200;
/// So is a cache that is turned off: each of them goes to the device then.
const UNCACHED: u64 = 20;
/// So many large blocks make up a whole device: grabbing as many takes all that is left.
const GRABBED: u64 = 8;
/// Pools that are made one after the other, at most, and the device of which their blocks could be an eighth.
const POOLS: u32 = 24;
const POOLED: u64 = 4 * MIB;

impl Worker {
    /// One disturbance, any.
    pub(super) fn disturb(&mut self) {
        self.counts.disturbances += 1;
        self.end_tenancy_in_time();
        let shared = self.shared;
        let subject = &shared.subject;
        let device = self.rng.usize(0..shared.devices.len());
        let (stage, index) = (&shared.devices[device], shared.devices[device].index);
        let total = stage.total_bytes;
        let done = match self.rng.u32(0..27) {
            0 => subject.empty_cache(index),
            1 => subject.trim(index, self.rng.u64(0..=total)),
            2 => subject.process_events(index),
            3 => {
                self.calm_after(EPISODE);
                let limit = self.rng.bool().then(|| self.rng.u64(total / 8..=total));
                subject.set_limit(index, limit)
            }
            4 => {
                self.calm_after(EPISODE);
                subject.set_memory_fraction(index, 0.25 + self.rng.f64() * 0.75)
            }
            5 | 6 => {
                self.calm_after(EPISODE);
                self.reconfigure();
                Ok(())
            }
            7 => {
                self.restore_caching();
                self.calm_after(UNCACHED);
                self.uncached = Some(device);
                subject.set_caching(index, false)
            }
            8 => subject.reset_peak_stats(index).and(subject.reset_accumulated_stats(index)),
            9 => subject.record_trace(index, if self.rng.bool() { 256 } else { 0 }),
            10 => subject.set_second_search(index, self.rng.u32(0..3) > 0),
            11 | 12 => {
                self.begin_tenancy(device);
                Ok(())
            }
            13 => {
                self.grab(device);
                Ok(())
            }
            14 => {
                let place = self.rng.usize(0..self.places.len());
                self.hold(place);
                Ok(())
            }
            15 => self.look(device),
            16..=18 => {
                self.host_stream();
                Ok(())
            }
            19 | 20 => {
                self.host_thread();
                Ok(())
            }
            21 => {
                self.make_pools(device);
                Ok(())
            }
            22 | 23 => {
                self.capture_alone();
                Ok(())
            }
            _ => {
                self.capture();
                Ok(())
            }
        };
        if let Err(error) = done {
            self.starved("a disturbance", &error);
        }
    }

    /// What was put in force ends after at most so many requests and frees of this thread.
    fn calm_after(&mut self, most: u64) {
        self.calm_at = Some(self.counts.ops + self.rng.u64(1..=most));
    }

    /// Undoes the disturbances that would make the allocator look twice at every request.
    pub(super) fn calm(&mut self) {
        self.calm_at = None;
        self.restore_caching();
        let subject = &self.shared.subject;
        subject.configure(&self.shared.config);
        for stage in self.shared.devices {
            let calls = [
                subject.set_limit(stage.index, None),
                subject.record_trace(stage.index, 0),
                subject.process_events(stage.index),
            ];
            for error in calls.into_iter().filter_map(Result::err) {
                self.failed("calm", &error);
            }
        }
    }

    /// A cache that this thread turned off is turned on again.
    pub(super) fn restore_caching(&mut self) {
        if let Some(device) = self.uncached.take()
            && let Err(error) = self.shared.subject.set_caching(self.shared.devices[device].index, true)
        {
            self.failed("set_caching", &error);
        }
    }

    /// Questions that change nothing.
    fn look(&mut self, device: usize) -> Result<(), cachalot_core::Error> {
        let (subject, stage) = (&self.shared.subject, &self.shared.devices[device]);
        let line = stage.lanes[self.rng.usize(0..stage.lanes.len())].line();
        let bytes = sizes::pick(&mut self.rng, stage.total_bytes);
        let (mut events, mut keys) = (0, 0);
        subject.for_each_trace_entry(stage.index, |_| events += 1)?;
        subject.stats(stage.index)?.for_each(|_, _| keys += 1);
        assert!(keys > 100 && events <= 256, "{keys} statistics, {events} events of the trace");
        subject.forecast(stage.index, bytes, line.id).map(drop)
    }

    /// Other settings, or those of the run again.
    fn reconfigure(&mut self) {
        let mut config: Config = self.shared.config.clone();
        if self.rng.bool() {
            let setting = SETTINGS[self.rng.usize(0..SETTINGS.len())];
            // One that the run's own settings exclude is left out.
            if config.update(setting).is_err() {
                config = self.shared.config.clone();
            }
        }
        self.shared.subject.configure(&config);
    }

    /// Leads this thread's requests into a pool of its own for a while.
    fn begin_tenancy(&mut self, device: usize) {
        if self.tenant.is_some() {
            return;
        }
        let (subject, stage) = (&self.shared.subject, &self.shared.devices[device]);
        let options = PoolOptions { use_on_oom: self.rng.bool(), no_split: self.rng.u32(0..4) == 0 };
        let pool = match subject.create_pool(stage.index, options) {
            Ok(pool) => pool,
            Err(error) => return self.failed("create_pool", &error),
        };
        let route = if self.rng.bool() {
            Route::Thread(stage.cuda.thread_id())
        } else {
            Route::Stream(stage.lanes[self.rng.usize(0..stage.lanes.len())].line().id)
        };
        if let Err(error) = subject.begin_allocate_to_pool(stage.index, pool, route) {
            return self.failed("begin_allocate_to_pool", &error);
        }
        self.counts.pools += 1;
        let ends_at = self.counts.ops + self.rng.u64(1..=4 * self.shared.options.disturb);
        self.tenant = Some(Tenant { device, pool, ends_at });
    }

    fn end_tenancy_in_time(&mut self) {
        if self.tenant.as_ref().is_some_and(|tenant| tenant.ends_at <= self.counts.ops) {
            self.end_tenancy();
        }
    }

    /// Ends the tenancy. Blocks of the pool that are still held stay valid.
    pub(super) fn end_tenancy(&mut self) {
        let Some(Tenant { device, pool, .. }) = self.tenant.take() else { return };
        let (subject, index) = (&self.shared.subject, self.shared.devices[device].index);
        self.tenant_leaves(index, pool);
        if self.rng.bool()
            && let Err(error) = subject.empty_cache(index)
        {
            self.starved("empty_cache", &error);
        }
    }

    /// Makes many pools and releases them, each with a block that is freed before or after that.
    fn make_pools(&mut self, device: usize) {
        let (shared, index) = (self.shared, self.shared.devices[device].index);
        let place =
            (0..self.places.len()).find(|&at| self.places[at].device == device).expect("every device has a lane");
        let line = self.line(place);
        for _ in 0..self.rng.u32(1..=POOLS) {
            let pool = match shared.subject.create_pool(index, PoolOptions::default()) {
                Ok(pool) => pool,
                Err(error) => return self.failed("create_pool", &error),
            };
            let route = Route::Thread(shared.devices[device].cuda.thread_id());
            if let Err(error) = shared.subject.begin_allocate_to_pool(index, pool, route) {
                return self.failed("begin_allocate_to_pool", &error);
            }
            self.counts.pools += 1;
            let bytes = sizes::pick(&mut self.rng, shared.options.max_bytes(POOLED));
            let block = self.obtain(device, line, bytes, true);
            self.tenant_leaves(index, pool);
            self.places[place].fresh.extend(block);
        }
        self.fill(place);
    }

    /// Ends a route into a pool and gives the pool up: once for its maker, once for the route.
    fn tenant_leaves(&mut self, index: DeviceIndex, pool: PoolId) {
        let subject = &self.shared.subject;
        let ended = subject.end_allocate_to_pool(index, pool);
        let released = ended.and(subject.release_pool(index, pool)).and(subject.release_pool(index, pool));
        if let Err(error) = released {
            self.failed("the end of a pool", &error);
        }
    }

    /// Grabs large blocks until the device has no more, and frees them again, unused.
    fn grab(&mut self, device: usize) {
        let stage = &self.shared.devices[device];
        let line = stage.lanes[self.rng.usize(0..stage.lanes.len())].line();
        let bytes = stage.total_bytes / GRABBED;
        let grabbed: Vec<_> = (0..GRABBED).map_while(|_| self.obtain(device, line, bytes, true)).collect();
        for block in grabbed {
            if let Err(block) = self.give_back(block) {
                self.ready.push(block);
            }
        }
    }
}
