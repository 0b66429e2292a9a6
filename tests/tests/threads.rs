//! Threads on shared streams: no two blocks overlap, no block is reused while another stream uses
//! the memory, and all statistics add up at the end.

use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{
    Allocator, DeviceIndex, DevicePtr, Error, Fixed, Growable, Lock, PoolOptions, Route, RoutePurpose, Storage,
    StreamId,
};
use cachalot_tests::claims::Ranges;
use cachalot_tests::consistency;
use cachalot_tests::hooked::{Hooked, thread_id};
use cachalot_tests::policies::policies;
use fastrand::Rng;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const DEVICE: DeviceIndex = DeviceIndex(0);
const MIB: u64 = 1 << 20;

/// Number of threads: more than cores, so that some threads wait for locks.
const THREADS: u64 = 4;

/// Streams of the requests of every thread.
const STREAMS: [StreamId; 3] = [StreamId(0), StreamId(7), StreamId(9)];

/// A stream on which blocks are also used. Its work completes all the time.
const SIDE: StreamId = StreamId(100);

/// A stream on which blocks are also used. Its work completes on command only.
const BUSY: StreamId = StreamId(200);

/// Address ranges in use, recorded independently of the allocator.
#[derive(Default)]
struct Shadow(Mutex<Ranges<()>>);

impl Shadow {
    fn take(&self, ptr: DevicePtr, bytes: u64) {
        let taken = self.0.lock().unwrap().claim(ptr.0..ptr.0 + bytes, ());
        assert_eq!(taken, Ok(()), "{bytes} bytes at {ptr} were handed out while in use");
    }

    fn give(&self, ptr: DevicePtr) {
        assert!(self.0.lock().unwrap().give_up(ptr.0).is_some());
    }
}

struct Arena<R: Lock, S: Storage> {
    allocator: Allocator<Hooked, R, S>,
    shadow: Shadow,
    /// Blocks allocated by one thread and to be freed by another.
    left: Mutex<Vec<DevicePtr>>,
    /// Freed blocks in use on [`BUSY`]: not available to any thread.
    busy: Mutex<Vec<DevicePtr>>,
    /// Whether memory may be released during the run. A release waits for every stream.
    wild: bool,
    /// Whether the own stream may wait for the busy one after any use, so that a block is reused
    /// earlier.
    orders: bool,
}

impl<R: Lock, S: Storage> Arena<R, S>
where
    Allocator<Hooked, R, S>: Sync,
{
    fn new(config: &str, capacity: u64, wild: bool) -> Self {
        let orders = config.contains("stitched") && !config.contains("completed_pages_only:True");
        let config = cachalot_policies::parse(config).unwrap();
        let allocator = Allocator::new([Hooked::new(SimulatedDevice::new(capacity))], &config).unwrap();
        if wild {
            allocator.settings(DEVICE).unwrap().set_limit(Some(capacity / 4 * 3));
        }
        let (left, busy) = (Mutex::default(), Mutex::default());
        Self { allocator, shadow: Shadow::default(), left, busy, wild, orders }
    }

    fn device(&self) -> &SimulatedDevice {
        &self.allocator.device(DEVICE).unwrap().inner
    }

    fn malloc(&self, random: &mut Rng) -> Option<DevicePtr> {
        let bytes = match random.u64(..10) {
            0..6 => 1 + random.u64(..8192),
            6..8 => 1 + random.u64(..2 * MIB),
            _ => 1 + random.u64(..24 * MIB),
        };
        match self.allocator.malloc(DEVICE, bytes, STREAMS[random.usize(..3)]) {
            Ok(ptr) => {
                self.shadow.take(ptr, bytes);
                Some(ptr)
            }
            Err(Error::OutOfMemory(_) | Error::TableFull(_)) => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn free(&self, ptr: DevicePtr, random: &mut Rng) {
        let noted = |noted: Result<(), Error>| match noted {
            Ok(()) => true,
            Err(Error::TableFull(_)) => false,
            Err(error) => panic!("{error}"),
        };
        let side = match random.u64(..8) {
            0 => noted(self.allocator.record_stream(ptr, SIDE)),
            1 => noted(self.allocator.record_use(ptr, SIDE)),
            _ => false,
        };
        // Not `record_use`, after which the own stream may wait for the busy one and reuse the
        // block.
        let busy = !self.wild && !self.orders && random.u64(..8) == 0 && noted(self.allocator.record_stream(ptr, BUSY));
        if !busy {
            self.shadow.give(ptr);
        }
        loop {
            match self.allocator.free(ptr) {
                Ok(()) => break,
                // There is no room for another event before some are complete.
                Err(Error::TableFull(_)) if side || busy => {
                    self.device().complete(SIDE);
                    self.allocator.process_events(DEVICE).unwrap();
                    if busy {
                        self.shadow.give(ptr);
                        self.shadow.take(ptr, 1);
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
        if busy {
            self.busy.lock().unwrap().push(ptr);
        }
    }

    /// Runs one thread's share of a phase.
    fn work(&self, seed: u64, steps: u32) {
        let mut random = Rng::with_seed(seed);
        let mut own: Vec<DevicePtr> = Vec::new();
        for _ in 0..steps {
            match random.u64(..100) {
                0..50 => own.extend(self.malloc(&mut random)),
                50..85 if !own.is_empty() => {
                    let ptr = own.swap_remove(random.usize(..own.len()));
                    self.free(ptr, &mut random);
                }
                85..90 if !own.is_empty() => self.left.lock().unwrap().extend(own.pop()),
                90..94 => {
                    let ptr = self.left.lock().unwrap().pop();
                    if let Some(ptr) = ptr {
                        self.free(ptr, &mut random);
                    }
                }
                94 => self.allocator.process_events(DEVICE).unwrap(),
                95 => self.look(&own),
                96 if random.u64(..4) == 0 => self.ask(&mut random),
                // Pools whose blocks wait for the busy stream stay: not too many of them.
                97 if self.wild || random.u64(..100) == 0 => self.in_a_pool(&mut random),
                _ => self.give_back(&mut random),
            }
            if own.len() > 60 {
                own.drain(..30).for_each(|ptr| self.free(ptr, &mut random));
            }
        }
        own.into_iter().for_each(|ptr| self.free(ptr, &mut random));
    }

    fn look(&self, own: &[DevicePtr]) {
        for &ptr in own {
            assert_eq!(self.allocator.base_of(ptr).unwrap().base, ptr);
        }
        let stats = self.allocator.stats(DEVICE).unwrap().totals();
        assert!(stats.reserved_bytes().peak >= stats.reserved_bytes().current);
        self.allocator.stats(DEVICE).unwrap().reset_peaks();
    }

    /// Asks whether requests would fit, up to more than there is: the answer waits for pending
    /// frees, in a copy.
    fn ask(&self, random: &mut Rng) {
        let sizes = [1 + random.u64(..24 * MIB), 1 + random.u64(..8192), 400 * MIB, 400 * MIB];
        let rehearsal = self.allocator.forecast(DEVICE).unwrap();
        match rehearsal.would_fit(&sizes, STREAMS[random.usize(..3)]) {
            Ok(fit) => assert!(fit.served <= sizes.len() && (fit.bound.is_some() || fit.served == sizes.len())),
            Err(Error::TableFull(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Allocates and frees a few blocks in a pool of the thread.
    fn in_a_pool(&self, random: &mut Rng) {
        let Ok(pool) = self.allocator.pools(DEVICE).unwrap().create(PoolOptions { use_on_oom: true, no_split: false })
        else {
            return;
        };
        if self
            .allocator
            .pools(DEVICE)
            .unwrap()
            .begin_route(pool, Route::Thread(thread_id()), RoutePurpose::Requests)
            .is_ok()
        {
            let blocks: Vec<_> = (0..3).filter_map(|_| self.malloc(random)).collect();
            self.allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Requests).unwrap();
            self.allocator.pools(DEVICE).unwrap().release(pool).unwrap();
            blocks.into_iter().for_each(|ptr| self.free(ptr, random));
        }
        self.allocator.pools(DEVICE).unwrap().release(pool).unwrap();
    }

    fn give_back(&self, random: &mut Rng) {
        let result = match random.u64(..4) {
            _ if !self.wild => return,
            0 => self.allocator.empty_cache(DEVICE),
            1 => self.allocator.trim(DEVICE, random.u64(..400) * MIB),
            2 => {
                self.allocator.configure(&self.allocator.settings(DEVICE).unwrap().config());
                Ok(())
            }
            _ => {
                let limit = self.allocator.settings(DEVICE).unwrap().limit();
                self.allocator.settings(DEVICE).map(|settings| settings.set_limit(limit))
            }
        };
        assert!(matches!(result, Ok(()) | Err(Error::TableFull(_))), "{result:?}");
    }

    /// Runs one phase: all threads at once, while the device completes the work on [`SIDE`].
    fn phase(&self, number: u64, steps: u32) {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    self.device().complete_one(SIDE);
                    thread::yield_now();
                }
            });
            // Snapshots and copies of fixed tables are made on the stack.
            let spawn = |thread| {
                let work = move || self.work(number * THREADS + thread, steps);
                thread::Builder::new().stack_size(256 << 20).spawn_scoped(scope, work).unwrap()
            };
            let workers: Vec<_> = (0..THREADS).map(spawn).collect();
            let results: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
            done.store(true, Ordering::Relaxed);
            results.into_iter().for_each(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        });
        consistency::check(&self.allocator, DEVICE, None).unwrap();
        for ptr in self.busy.lock().unwrap().drain(..) {
            self.shadow.give(ptr);
        }
        self.device().complete(BUSY);
    }

    /// Frees all remaining blocks, and checks that the device is as new.
    fn finish(&self) {
        let mut random = Rng::with_seed(1);
        let left = std::mem::take(&mut *self.left.lock().unwrap());
        left.into_iter().for_each(|ptr| self.free(ptr, &mut random));
        self.busy.lock().unwrap().clear();
        self.allocator.empty_cache(DEVICE).unwrap();
        consistency::check(&self.allocator, DEVICE, None).unwrap();
        let stats = self.allocator.stats(DEVICE).unwrap().totals();
        for counter in [stats.allocated_bytes(), stats.active_bytes(), stats.requested_bytes(), stats.reserved_bytes()]
        {
            assert_eq!((counter.current, counter.allocated), (0, counter.freed));
        }
        assert_eq!(self.device().used(), 0);
        assert_eq!(self.device().outstanding(), cachalot_core::simulated::Outstanding::default());
    }
}

fn stress<R: Lock, S: Storage>(config: &str, wild: bool, steps: u32)
where
    Allocator<Hooked, R, S>: Sync,
{
    // For longer campaigns: so many times as many steps.
    let times = std::env::var("STRESS_TIMES").map_or(1, |times| times.parse().unwrap());
    let steps = steps * times;
    let run = || {
        // Waiting for memory would be waiting for the busy stream: there is enough of it.
        let capacity = if wild { 512 * MIB } else { 1 << 43 };
        let arena = Box::new(Arena::<R, S>::new(config, capacity, wild));
        for number in 0..3 {
            arena.phase(number, steps);
        }
        arena.finish();
    };
    // Fixed tables are inside the allocator, which is made on the stack.
    thread::scope(|scope| {
        let stress = thread::Builder::new().stack_size(256 << 20).spawn_scoped(scope, run).unwrap();
        stress.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

type Parking = parking_lot::RawMutex;
type Spinning = spin::mutex::SpinMutex<()>;

#[test]
fn calm_with_parking_locks() {
    stress::<Parking, Growable>("", false, 1500);
}

#[test]
fn calm_with_spin_locks() {
    stress::<Spinning, Growable>("", false, 1500);
}

#[test]
fn calm_and_expandable() {
    stress::<Parking, Growable>("expandable_segments:True", false, 1500);
}

#[test]
fn wild_with_parking_locks() {
    stress::<Parking, Growable>("max_split_size_mb:20", true, 1500);
}

#[test]
fn wild_with_spin_locks() {
    stress::<Spinning, Growable>("roundup_power2_divisions:4", true, 1500);
}

#[test]
fn wild_and_expandable() {
    stress::<Parking, Growable>("expandable_segments:True", true, 1500);
}

#[test]
fn wild_with_collection() {
    stress::<Parking, Growable>("garbage_collection_threshold:0.3", true, 1500);
}

#[test]
fn wild_in_fixed_tables() {
    stress::<Spinning, Fixed<1, 32, 256, 512>>("", true, 800);
}

#[test]
fn wild_in_fixed_tables_and_expandable() {
    stress::<Parking, Fixed<1, 32, 256, 512>>("expandable_segments:True", true, 800);
}

#[test]
fn wild_under_every_policy() {
    for policy in policies() {
        stress::<Parking, Growable>(policy, true, 1000);
    }
}

/// Runs every policy but the policy that allocates the whole device at once.
#[test]
fn calm_under_every_policy() {
    for policy in policies().filter(|policy| !policy.contains("allow_growth:False")) {
        stress::<Parking, Growable>(policy, false, 1000);
    }
}
