//! Models of lock-free sharing between threads, explored by loom: every order of loads and stores
//! allowed by the memory model. `tests/loom.sh` runs them.

use crate::arena::heaps::hints::StreamHints;
use crate::arena::heaps::pair_state::PairState;
use crate::config::rounding::PoolKind;
use crate::stats::{DevicePeaks, HeapCounters, KindCounters, Stat};
use crate::sync::{AtomicU32, empty};
use crate::tables::atomic_map::{AtomicMap, Cells, FixedCells, GrowingCells};
use crate::tables::{Devices, FixedDevices};
use crate::units::StreamId;
use loom::sync::atomic::Ordering::{self, Acquire, Release};
use loom::sync::atomic::{AtomicBool, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// Explores the executions of `run`, with at most three forced switches between threads per
/// execution.
pub(super) fn explore(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    (builder.preemption_bound, builder.max_branches) = (Some(3), 100_000);
    builder.check(run);
}

fn map<C: Cells + 'static>(pairs: &[(u64, u32)]) -> Arc<AtomicMap<C>> {
    let map = AtomicMap::<C>::default();
    for &(key, value) in pairs {
        assert!(map.make_room(1));
        map.insert(key, value);
    }
    Arc::new(map)
}

/// `Allocator::start` while another thread calls the allocator.
#[test]
fn loom_a_device_is_found_once_it_is_started() {
    explore(|| {
        let devices: Arc<FixedDevices<AtomicU32, 2>> = Arc::new(empty!());
        let starter = devices.clone();
        let starts = thread::spawn(move || {
            starter.places().iter().for_each(|device| device.store(7, Ordering::Relaxed));
            starter.publish(2);
        });
        for index in [1, 0] {
            assert!(devices.get(index).is_none_or(|device| device.load(Ordering::Relaxed) == 7));
        }
        assert!(devices.published().iter().all(|device| device.load(Ordering::Relaxed) == 7));
        starts.join().unwrap();
        assert_eq!((devices.published().len(), devices.get(2).is_some()), (2, false));
    });
}

/// A map with a single writer, in a thread of the writer's own; the reader is the caller.
fn write<C: Cells + Send + Sync + 'static>(
    map: &Arc<AtomicMap<C>>,
    writer: impl FnOnce(&AtomicMap<C>) + Send + 'static,
) -> thread::JoinHandle<()> {
    let map = map.clone();
    thread::spawn(move || writer(&map))
}

#[test]
fn loom_what_is_in_the_map_is_found_while_it_grows_twice() {
    explore(|| {
        let map = map::<GrowingCells>(&[(1, 10)]);
        let writer = write(&map, |map| {
            for key in 2..5 {
                assert!(map.make_room(1));
                map.insert(key, 7);
            }
        });
        assert_eq!(map.get(1), Some(10));
        assert!(matches!(map.get(4), None | Some(7)));
        assert_eq!(map.get(1), Some(10));
        writer.join().unwrap();
    });
}

#[test]
fn loom_others_come_and_go_around_a_key() {
    explore(|| {
        // In so few cells every probe meets every key.
        let map = map::<FixedCells<2>>(&[(1, 10), (2, 20)]);
        let writer = write(&map, |map| {
            map.remove(2);
            assert!(map.make_room(1));
            map.insert(3, 30);
        });
        // The answer for a key that goes may be that of the one that takes its cell; callers verify
        // it.
        assert!(matches!(map.get(2), None | Some(20 | 30)));
        assert!(matches!(map.get(3), None | Some(30)));
        assert_eq!(map.get(1), Some(10));
        writer.join().unwrap();
        assert_eq!((map.get(1), map.get(2), map.get(3)), (Some(10), None, Some(30)));
    });
}

#[test]
fn loom_what_is_inserted_before_it_is_told_is_found() {
    explore(|| {
        let map = map::<GrowingCells>(&[(1, 10)]);
        let told = Arc::new(AtomicBool::new(false));
        let tells = told.clone();
        let writer = write(&map, move |map| {
            assert!(map.make_room(1));
            map.insert(2, 20);
            tells.store(true, Release);
        });
        if told.load(Acquire) {
            assert_eq!(map.get(2), Some(20));
        }
        writer.join().unwrap();
    });
}

#[test]
fn loom_a_removed_key_may_come_back_with_another_value() {
    explore(|| {
        let map = map::<GrowingCells>(&[(1, 10)]);
        let writer = write(&map, |map| {
            map.remove(1);
            assert!(map.make_room(1));
            map.insert(1, 11);
        });
        assert!(matches!(map.get(1), None | Some(10 | 11)));
        writer.join().unwrap();
        assert_eq!(map.get(1), Some(11));
    });
}

/// Two heaps and their peaks, reconciled as in the arena: by the thread that finds the lock free.
/// Each thread owns a heap, as if under the heap's lock.
struct Heaps {
    all_counters: [HeapCounters; 2],
    peaks: DevicePeaks,
    /// The lock of the peaks. The lock's state can be read without the lock.
    locked: AtomicBool,
}

impl Heaps {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            all_counters: Default::default(),
            peaks: DevicePeaks::default(),
            locked: AtomicBool::new(false),
        })
    }

    fn try_lock(&self) -> bool {
        self.locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn under_lock<T>(&self, act: impl FnOnce(&DevicePeaks) -> T) -> T {
        while !self.try_lock() {
            thread::yield_now();
        }
        let done = act(&self.peaks);
        self.locked.store(false, Ordering::Release);
        done
    }

    fn parties(&self) -> impl Iterator<Item = KindCounters<'_>> + Clone {
        self.all_counters.iter().map(|counters| (PoolKind::Small, counters))
    }

    /// Allocates `bytes` in a heap.
    fn allocate(&self, heap: usize, bytes: u64) {
        if self.all_counters[heap].up(Stat::AllocatedBytes, bytes) && self.try_lock() {
            let rising = (PoolKind::Small, &self.all_counters[heap]);
            self.peaks.reconcile(&self.parties(), rising, &self.parties().take(1));
            self.locked.store(false, Ordering::Release);
        }
    }

    /// Frees `bytes` of a heap, with uses by other streams left.
    fn free_with_uses(&self, heap: usize, bytes: u64) {
        self.all_counters[heap].down(Stat::AllocatedBytes, bytes);
        self.all_counters[heap].pend(bytes);
        // `Arena::follow_pending`.
        fence(Ordering::SeqCst);
        let is_locked = self.locked.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        if is_locked || !self.all_counters[heap].covers_pending() {
            self.under_lock(|_| self.all_counters[heap].follow_pending());
        }
    }

    /// The peaks of allocated and of active bytes.
    fn peaks(&self) -> [i64; 2] {
        let stats = self.under_lock(|peaks| peaks.stats(self.parties()));
        [stats.allocated_bytes().peak, stats.active_bytes().peak]
    }
}

#[test]
fn loom_peaks_hold_what_calls_in_turn_add_after_calls_that_overlapped() {
    explore(|| {
        let heaps = Heaps::new();
        let overlapping = heaps.clone();
        let other = thread::spawn(move || overlapping.allocate(1, 1));
        heaps.allocate(0, 1);
        other.join().unwrap();
        // Nobody overlaps any more: the next that asks sees everything.
        for heap in 0..2 {
            heaps.allocate(heap, 1);
        }
        assert_eq!(heaps.peaks(), [4, 4]);
    });
}

#[test]
fn loom_a_block_that_becomes_pending_while_others_settle_still_counts_as_active() {
    explore(|| {
        let heaps = Heaps::new();
        // The first heap has room: it held 100 bytes, and holds 60.
        heaps.allocate(0, 60);
        heaps.allocate(0, 40);
        heaps.all_counters[0].down(Stat::AllocatedBytes, 40);
        let settling = heaps.clone();
        let other = thread::spawn(move || settling.allocate(1, 30));
        // Allocated no longer, but active.
        heaps.free_with_uses(0, 60);
        other.join().unwrap();
        // From here on calls follow one another. What either heap adds is seen once each has been
        // looked at.
        heaps.allocate(0, 1);
        heaps.allocate(1, 1);
        heaps.allocate(0, 50);
        assert_eq!(heaps.peaks()[1], (60 + 1 + 50 + 30 + 1).max(100));
        heaps.all_counters[0].down(Stat::AllocatedBytes, 51);
        heaps.allocate(1, 1);
        assert_eq!(heaps.peaks(), [100, 142]);
    });
}

/// The freeing thread finds the threshold low enough and the lock free, and changes nothing. The
/// settling thread must then see the pending block: the new thresholds leave room for the block.
/// Each of the two threads needs a fence for this order. The freeing thread also needs a second
/// fence, to see the thresholds of a thread after the unlock. Without any of the three fences, the
/// model fails.
#[test]
fn loom_a_block_made_pending_without_the_lock_is_seen_when_thresholds_are_set() {
    explore(|| {
        let heaps = Heaps::new();
        // The first heap has room for 60 pending bytes: it had so many before.
        heaps.allocate(0, 160);
        heaps.free_with_uses(0, 60);
        heaps.all_counters[0].unpend(60);
        let settling = heaps.clone();
        let other = thread::spawn(move || settling.allocate(1, 30));
        heaps.free_with_uses(0, 60);
        other.join().unwrap();
        // From here on calls follow one another. The first looks at what the other thread may have
        // left.
        heaps.allocate(1, 1);
        heaps.allocate(0, 70);
        heaps.all_counters[0].down(Stat::AllocatedBytes, 70);
        assert_eq!(heaps.peaks()[1], (40 + 60 + 70) + (30 + 1));
    });
}

#[test]
fn loom_a_pending_block_that_is_allocated_again_while_others_settle_counts_once() {
    explore(|| {
        let heaps = Heaps::new();
        heaps.allocate(0, 60);
        heaps.free_with_uses(0, 60);
        let settling = heaps.clone();
        let other = thread::spawn(move || settling.allocate(1, 30));
        heaps.all_counters[0].unpend(60);
        heaps.allocate(0, 60);
        other.join().unwrap();
        assert_eq!(heaps.peaks(), [90, 90]);
    });
}

#[test]
fn loom_what_was_pending_once_does_not_send_every_request_to_settle() {
    explore(|| {
        let heaps = Heaps::new();
        heaps.allocate(0, 100);
        heaps.free_with_uses(0, 100);
        heaps.all_counters[0].unpend(100);
        // The first notices that nothing is pending any more.
        heaps.allocate(0, 60);
        heaps.all_counters[0].down(Stat::AllocatedBytes, 60);
        assert!(!heaps.all_counters[0].up(Stat::AllocatedBytes, 60), "the lease is enough");
    });
}

/// Pairs of heaps like in `heaps.rs`: the map, the states of the pairs and a registry. A heap
/// consists of the heap's stream and the number of segments.
struct Pairs {
    streams: AtomicMap<FixedCells<2>>,
    registry: Mutex<()>,
    pairs: [PairState; 2],
    heaps: [Mutex<(u64, u32)>; 2],
}

const NO_STREAM: u64 = 99;

impl Pairs {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            streams: AtomicMap::default(),
            registry: Mutex::new(()),
            pairs: empty!(),
            heaps: [Mutex::new((NO_STREAM, 0)), Mutex::new((NO_STREAM, 0))],
        })
    }

    /// `Arena::use_pair`: finds the pair of a stream without a lock, or makes a pair under the
    /// registry's lock.
    fn use_pair(&self, stream: u64) -> usize {
        loop {
            if let Some(pair) = self.streams.get(stream) {
                let pair = pair as usize;
                if self.pairs[pair].enter() && self.heaps[pair].lock().unwrap().0 == stream {
                    return pair;
                }
                self.leave(pair);
                thread::yield_now();
                continue;
            }
            let _registry = self.registry.lock().unwrap();
            if let Some(pair) = self.streams.get(stream) {
                let pair = pair as usize;
                assert!(self.pairs[pair].enter(), "what the map leads to is open while the registry is locked");
                return pair;
            }
            let vacant = |pair: &usize| self.heaps[*pair].lock().unwrap().0 == NO_STREAM;
            let Some(pair) = (0..2).find(vacant) else { continue };
            *self.heaps[pair].lock().unwrap() = (stream, 0);
            self.pairs[pair].open();
            assert!(self.streams.make_room(1));
            self.streams.insert(stream, pair as u32);
            return pair;
        }
    }

    /// The end of `PairUse`.
    fn leave(&self, pair: usize) {
        if self.pairs[pair].leave() {
            self.vacate_if_empty(pair);
        }
    }

    fn vacate_if_empty(&self, pair: usize) {
        let _registry = self.registry.lock().unwrap();
        let mut heap = self.heaps[pair].lock().unwrap();
        if heap.0 != NO_STREAM && heap.1 == 0 && self.pairs[pair].close() {
            self.streams.remove(heap.0);
            heap.0 = NO_STREAM;
        }
    }

    /// A request without a free block: obtains a segment with no lock held, and adds the segment to
    /// the heap.
    fn request(&self, stream: u64) {
        let pair = self.use_pair(stream);
        self.pairs[pair].set_leaving(false);
        thread::yield_now();
        {
            let mut heap = self.heaps[pair].lock().unwrap();
            assert_eq!(heap.0, stream, "a pair in use keeps its stream");
            heap.1 += 1;
        }
        self.leave(pair);
    }

    /// `stream_destroyed`: releases the cached memory of the stream. The pair is vacant once the
    /// last call with the pair has ended.
    fn end(&self, stream: u64) {
        let pair = {
            let _registry = self.registry.lock().unwrap();
            let Some(pair) = self.streams.get(stream) else { return };
            let pair = pair as usize;
            assert!(self.pairs[pair].enter());
            self.pairs[pair].set_leaving(true);
            pair
        };
        self.heaps[pair].lock().unwrap().1 = 0;
        self.leave(pair);
    }

    /// A sweep, or a release of the whole cache by another thread.
    fn release_all(&self) {
        for pair in 0..2 {
            if self.pairs[pair].enter() {
                self.heaps[pair].lock().unwrap().1 = 0;
            }
            self.leave(pair);
            self.vacate_if_empty(pair);
        }
    }
}

#[test]
fn loom_a_stream_that_lives_is_served_while_another_ends_and_a_third_takes_its_pair() {
    explore(|| {
        let pairs = Pairs::new();
        pairs.request(1);
        let ending = pairs.clone();
        let other = thread::spawn(move || {
            ending.end(1);
            ending.request(3);
        });
        pairs.request(2);
        other.join().unwrap();
        assert_eq!(pairs.streams.get(1), None);
        assert!(pairs.streams.get(2).is_some() && pairs.streams.get(3).is_some());
    });
}

#[test]
fn loom_a_request_is_served_while_everything_is_released() {
    explore(|| {
        let pairs = Pairs::new();
        pairs.request(1);
        let releasing = pairs.clone();
        let other = thread::spawn(move || releasing.release_all());
        pairs.request(1);
        pairs.request(2);
        other.join().unwrap();
    });
}

#[test]
fn loom_the_last_call_that_uses_a_pair_of_an_ended_stream_makes_it_vacant() {
    explore(|| {
        let pairs = Pairs::new();
        pairs.request(1);
        let releasing = pairs.clone();
        let other = thread::spawn(move || releasing.release_all());
        pairs.end(1);
        other.join().unwrap();
        assert_eq!(pairs.streams.get(1), None);
        assert!(pairs.heaps.iter().all(|heap| heap.lock().unwrap().0 == NO_STREAM));
    });
}

#[test]
fn loom_a_refused_thread_leaves_the_turn_to_the_thread_that_has_it() {
    explore(|| {
        let turn = Arc::new(crate::sync::Turn::default());
        let holders = Arc::new(loom::sync::atomic::AtomicU32::new(0));
        let take = |turn: Arc<crate::sync::Turn>, holders: Arc<loom::sync::atomic::AtomicU32>| {
            for _ in 0..2 {
                if let Some(_taken) = turn.try_take() {
                    assert_eq!(holders.fetch_add(1, Ordering::Relaxed), 0, "two threads have the turn");
                    holders.fetch_sub(1, Ordering::Relaxed);
                }
            }
        };
        let other = thread::spawn({
            let (turn, holders) = (turn.clone(), holders.clone());
            move || take(turn, holders)
        });
        take(turn.clone(), holders);
        other.join().unwrap();
        assert!(turn.try_take().is_some(), "the turn is free again");
    });
}

/// Streams share hints, so that a hint may lead to the heap of another stream, or to one that
/// another thread is giving to a stream.
#[test]
fn loom_a_hint_leads_to_the_heap_of_the_stream_or_to_a_refusal() {
    explore(|| {
        let hints: Arc<StreamHints> = Arc::new(empty!());
        let serves = Arc::new([1, NO_STREAM, NO_STREAM].map(|stream| Mutex::new(StreamId(stream))));
        let maker = {
            let (hints, serves) = (hints.clone(), serves.clone());
            thread::spawn(move || {
                for (pair, stream) in [(1, StreamId(2)), (2, StreamId(3))] {
                    *serves[pair as usize].lock().unwrap() = stream;
                    hints.set(stream, pair);
                }
            })
        };
        let is_served = |stream| *serves[hints.slot(stream, PoolKind::Small) as usize / 2].lock().unwrap() == stream;
        // Whatever the hints say, only the heap of the stream serves it: the lock was held.
        let _either = is_served(StreamId(2));
        let _either = is_served(StreamId(1));
        maker.join().unwrap();
        assert!(is_served(StreamId(3)), "the last stream that got a pair is found");
    });
}
