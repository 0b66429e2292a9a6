//! The straight path, which interfaces of other languages inline, beside the general path. It does
//! all of a request or a free, or declines and has changed nothing.

use crate::allocator::Allocator;
use crate::device::simulated::SimulatedDevice;
use crate::error::Error;
use crate::heap::block::BlockEntry;
use crate::tables::Growable;
use crate::tests::own::parse;
use crate::units::{DeviceIndex, DevicePtr, MIB, NO_STREAM, StreamId};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::vec::Vec;

const DEVICE: DeviceIndex = DeviceIndex(0);
/// Capacity of the device: small, so that some requests release memory first.
const CAPACITY: u64 = 1 << 30;
/// Number of steps of a program.
const STEPS: u64 = 6_000;

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

fn allocator(config: &str) -> Simulated {
    Simulated::new([SimulatedDevice::new(CAPACITY)], &parse(config)).unwrap()
}

/// Returns a digest of all that a request or a free changes: blocks, free and vacant entries, live
/// blocks, counters, and the conditions of the moment.
fn state(allocator: &Simulated) -> u64 {
    let arena = allocator.arena(DEVICE).unwrap();
    let mut hasher = DefaultHasher::new();
    for slot in arena.heaps.slot_numbers().map(|number| arena.heaps.slot(number)) {
        let heap = slot.heap.lock();
        for &BlockEntry {
            addr, size, requested, freed_at, prev, next, chain, before, uses, events, bin, state, ..
        } in heap.blocks.entries()
        {
            ([addr, size, requested, freed_at], [prev, next, chain, before, uses, events], bin, state as u8)
                .hash(&mut hasher);
        }
        heap.blocks.vacant().for_each(|entry| entry.hash(&mut hasher));
        heap.segments().for_each(|(number, segment)| (number, segment.base, segment.first).hash(&mut hasher));
        heap.live.count(heap.blocks.entries()).hash(&mut hasher);
        (heap.clock, heap.high, heap.clean, slot.dirty.is_clean()).hash(&mut hasher);
        std::format!("{:?}", slot.counters).hash(&mut hasher);
    }
    (arena.driver.flags.load(), arena.ledger.reserved()).hash(&mut hasher);
    hasher.finish()
}

/// An allocator that is called by the straight path, and by the general one if that declines.
struct Straight {
    allocator: Simulated,
    /// How many calls the straight path has done.
    done: u32,
}

impl Straight {
    /// Calls `straight`, and `general` if that returns nothing.
    fn call<T>(&mut self, straight: impl Fn(&Simulated) -> Option<T>, general: impl Fn(&Simulated) -> T) -> T {
        let before = state(&self.allocator);
        if let Some(done) = straight(&self.allocator) {
            self.done += 1;
            return done;
        }
        assert_eq!(state(&self.allocator), before, "a declined call has changed something");
        general(&self.allocator)
    }

    fn malloc(&mut self, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        self.call(
            |allocator| allocator.malloc_straight(DEVICE, bytes, stream).map(Ok),
            |allocator| allocator.malloc_anew(DEVICE, bytes, stream),
        )
    }

    fn free(&mut self, ptr: DevicePtr, bytes: Option<u64>) -> Result<(), Error> {
        self.call(
            |allocator| allocator.free_straight(ptr, bytes).then_some(Ok(())),
            |allocator| allocator.free_anew(ptr, bytes),
        )
    }
}

/// Runs one random program through both paths, with a change of the settings now and then, and
/// compares every address, every error, and the statistics. Returns how many calls the straight
/// path has done.
fn agree(config: &str, changes: &[&str]) -> u32 {
    let (general, mut straight) = (allocator(config), Straight { allocator: allocator(config), done: 0 });
    let (mut held, mut number) = (Vec::<(DevicePtr, u64)>::new(), 1_u64);
    for step in 0..STEPS {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = number >> 33;
        match random % 16 {
            0..8 => {
                let bytes = match random >> 4 & 15 {
                    0 => 0,
                    1..10 => 512 + random % 5_000,
                    10 => 600 << 10,
                    11 => u64::MAX - 5,
                    _ => random % (40 * MIB),
                };
                let stream = if (random >> 8).is_multiple_of(64) { NO_STREAM } else { StreamId(random >> 8 & 1) };
                let served = general.malloc_anew(DEVICE, bytes, stream);
                assert_eq!(served, straight.malloc(bytes, stream), "`{config}`, step {step}: {bytes} bytes");
                held.extend(served.ok().filter(|&ptr| ptr != DevicePtr::NULL).map(|ptr| (ptr, bytes)));
            }
            8..15 if !held.is_empty() => {
                let (ptr, bytes) = held.swap_remove(random as usize % held.len());
                if random % 5 == 0 {
                    general.record_stream(ptr, StreamId(2)).unwrap();
                    straight.allocator.record_stream(ptr, StreamId(2)).unwrap();
                }
                let right = (random >> 4 & 1 == 0).then_some(bytes);
                // A wrong size first, which changes nothing, and a second free last.
                for size in [Some(bytes + 1), right, None] {
                    let freed = general.free_anew(ptr, size);
                    assert_eq!(freed, straight.free(ptr, size), "`{config}`, step {step}");
                }
            }
            _ => {
                [&general, &straight.allocator]
                    .iter()
                    .for_each(|one| one.device(DEVICE).unwrap().complete(StreamId(2)));
            }
        }
        if step % 501 == 500 && !changes.is_empty() {
            let mut next = general.settings(DEVICE).unwrap().config();
            next.update(changes[(step / 501) as usize % changes.len()]).unwrap();
            general.configure(&next);
            straight.allocator.configure(&next);
        }
        if step % 64 == 0 {
            assert_eq!(
                general.stats(DEVICE).map(|stats| stats.totals()),
                straight.allocator.stats(DEVICE).map(|stats| stats.totals()),
                "`{config}`, step {step}"
            );
            assert_eq!(
                (general.check_invariants(), straight.allocator.check_invariants()),
                (Ok(()), Ok(())),
                "`{config}`"
            );
        }
    }
    straight.done
}

#[test]
fn the_straight_path_decides_as_the_general_path_under_every_policy() {
    for policy in ["caching", "stitched", "bfc", "first_fit", "small_first_fit"] {
        let done = agree(&std::format!("policy:{policy}"), &[]);
        assert_eq!(done > 500, policy == "caching", "`{policy}`: {done}");
    }
}

#[test]
fn the_straight_path_decides_as_the_general_path_while_settings_change() {
    let pages = ["expandable_segments:True", "expandable_segments:False"];
    agree("policy:caching", &pages);
    agree("expandable_segments:True", &["expandable_segments:False", "garbage_collection_threshold:0.5"]);
    agree("policy:caching", &["roundup_power2_divisions:4", "compact:0.1", "max_split_size_mb:32", pages[0]]);
}
