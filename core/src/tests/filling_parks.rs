//! What is written to blocks, in memory that is parked.

use crate::allocator::Allocator;
use crate::arena::paging::parking::{ParkMode, ParkOrder, ParkTarget};
use crate::config::Config;
use crate::device::simulated::SimulatedDevice;
use crate::tables::Growable;
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};

const DEVICE: DeviceIndex = DeviceIndex(0);
const STREAM: StreamId = StreamId(1);
const TARGET: ParkTarget = ParkTarget::Stream(STREAM);
const POLICIES: [&str; 3] = [
    "expandable_segments:True,",
    "expandable_segments:True,decisions:improved,",
    "policy:bfc,expandable_segments:True,",
];

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

fn allocator(config: &[&str]) -> Simulated {
    Simulated::new([SimulatedDevice::new(1 << 30)], &Config::parse(&config.concat()).unwrap()).unwrap()
}

fn device(allocator: &Simulated) -> &SimulatedDevice {
    allocator.device(DEVICE).unwrap()
}

fn park(allocator: &Simulated, mode: ParkMode, order: ParkOrder) {
    allocator.parking(DEVICE).unwrap().park(TARGET, mode, order).unwrap();
    allocator.check_invariants().unwrap();
}

fn wake(allocator: &Simulated) {
    allocator.parking(DEVICE).unwrap().wake(TARGET).unwrap();
    allocator.check_invariants().unwrap();
}

fn settle(allocator: &Simulated) {
    // The first call may record the event behind the free.
    for _ in 0..2 {
        allocator.process_events(DEVICE).unwrap();
        device(allocator).complete(STREAM);
    }
    allocator.process_events(DEVICE).unwrap();
    allocator.check_invariants().unwrap();
}

#[test]
fn a_park_waits_for_the_fills_that_it_has_queued_itself() {
    for policy in POLICIES {
        for (fill, order) in [
            ("zero:on_free", ParkOrder::Device),
            ("pattern:90", ParkOrder::Device),
            ("zero:on_free", ParkOrder::Streams),
        ] {
            let allocator = allocator(&[policy, fill]);
            let [freed, kept] = [40, 1].map(|mib| allocator.malloc(DEVICE, mib * MIB, STREAM).unwrap());
            device(&allocator).launch(STREAM, freed, 40 * MIB).unwrap();
            allocator.free(freed).unwrap();
            // The device refuses to unmap memory in use.
            park(&allocator, ParkMode::Drop, order);
            assert_eq!(allocator.stats(DEVICE).unwrap().leaked_bytes(), 0, "{policy}{fill}");
            assert_eq!(device(&allocator).used(), 0, "{policy}{fill}");
            wake(&allocator);
            allocator.free(kept).unwrap();
            settle(&allocator);
        }
    }
}

#[test]
fn a_block_freed_while_parked_is_filled_at_the_wake() {
    for policy in POLICIES {
        for mode in [ParkMode::Keep, ParkMode::Drop] {
            let allocator = allocator(&[policy, "zero:on_free"]);
            // Two blocks of one page, so that the page wakes.
            let [freed, kept] = [3000; 2].map(|bytes| allocator.malloc(DEVICE, bytes, STREAM).unwrap());
            device(&allocator).overwrite(freed, 7);
            device(&allocator).overwrite(kept, 8);
            park(&allocator, mode, ParkOrder::Device);
            allocator.free(freed).unwrap();
            settle(&allocator);
            wake(&allocator);
            assert_eq!([freed, kept].map(|block| device(&allocator).byte(block)), [0, 8], "{policy}{mode:?}");
            // Frees after the wake fill at once.
            allocator.free(kept).unwrap();
            settle(&allocator);
            assert_eq!(device(&allocator).byte(kept), 0, "{policy}{mode:?}");
        }
    }
}

#[test]
fn a_stream_that_gets_a_pair_of_a_parked_one_fills_its_blocks() {
    let allocator = allocator(&[POLICIES[0], "zero:on_free"]);
    let block = allocator.malloc(DEVICE, 4 * MIB, STREAM).unwrap();
    park(&allocator, ParkMode::Drop, ParkOrder::Device);
    allocator.free(block).unwrap();
    settle(&allocator);
    allocator.stream_destroyed(DEVICE, STREAM).unwrap();
    allocator.empty_cache(DEVICE).unwrap();
    for other in (2..9).map(StreamId) {
        let block = allocator.malloc(DEVICE, 4 * MIB, other).unwrap();
        device(&allocator).overwrite(block, 7);
        allocator.free(block).unwrap();
        device(&allocator).complete(other);
        allocator.process_events(DEVICE).unwrap();
        assert_eq!(device(&allocator).byte(block), 0, "{other:?}");
    }
}

#[test]
fn canaries_are_written_again_where_a_park_has_not_kept_them() {
    for policy in POLICIES {
        for mode in [ParkMode::Keep, ParkMode::Drop, ParkMode::Zero] {
            let allocator = allocator(&[policy, "canary:True"]);
            let blocks = [1000, 4096, 3 * MIB].map(|bytes| allocator.malloc(DEVICE, bytes, STREAM).unwrap());
            let behind: DevicePtr = blocks[1].offset(4096);
            park(&allocator, mode, ParkOrder::Device);
            // What new memory has there.
            if mode != ParkMode::Keep {
                for block in [blocks[0].offset(1000), behind, blocks[2].offset(3 * MIB)] {
                    (0..512).for_each(|offset| device(&allocator).overwrite(block.offset(offset), 0));
                }
            }
            wake(&allocator);
            device(&allocator).overwrite(behind.offset(5), 9);
            for block in blocks {
                allocator.free(block).unwrap();
            }
            settle(&allocator);
            assert_eq!(device(&allocator).take_damage(), [behind.offset(5)], "{policy}{mode:?}");
        }
    }
}
