//! Memory parked and woken while other threads free blocks, request memory and empty the cache.

use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{
    Allocator, Config, DevicePtr, Error, Growable, ParkMode, ParkOrder, ParkReport, ParkState, ParkTarget, Remaining,
    StreamId,
};
use cachalot_tests::consistency;
use cachalot_tests::hooked::Hooked;
use cachalot_tests::host::{DEVICE, MIB};
use std::sync::{Arc, OnceLock};

type Interrupted = Allocator<Hooked, parking_lot::RawMutex, Growable>;

/// The policies under which the default pool lies on pages.
const PAGED: [&str; 2] = ["expandable_segments:True", "policy:stitched,slack:0"];
const ONE: StreamId = StreamId(1);
const TWO: StreamId = StreamId(2);
const IDLE: ParkTarget = ParkTarget::Stream(ONE);

fn allocator(config: &str) -> Arc<Interrupted> {
    let device = Hooked::new(SimulatedDevice::new(256 * MIB));
    Arc::new(Interrupted::new([device], &Config::parse(config).unwrap()).unwrap())
}

fn device(allocator: &Interrupted) -> &Hooked {
    allocator.device(DEVICE).unwrap()
}

/// Requests blocks on the stream to be parked, and writes a number to each.
fn numbered(allocator: &Interrupted) -> Vec<(DevicePtr, u64)> {
    let blocks = [30, 40, 50].map(|mib| allocator.malloc(DEVICE, mib * MIB, ONE).unwrap());
    let numbered = blocks.into_iter().zip(7..);
    numbered.inspect(|&(at, number)| assert!(device(allocator).inner.write(at, number))).collect()
}

fn park(allocator: &Interrupted, mode: ParkMode) -> Result<(), Error> {
    allocator.parking(DEVICE).unwrap().park(IDLE, mode, ParkOrder::Device)
}

fn wake(allocator: &Interrupted) -> Result<(), Error> {
    allocator.parking(DEVICE).unwrap().wake(IDLE)
}

fn report(allocator: &Interrupted) -> ParkReport {
    allocator.parking(DEVICE).unwrap().report(IDLE).unwrap()
}

#[test]
fn all_streams_of_the_default_pool_park_and_wake_together() {
    for policy in PAGED {
        let allocator = allocator(policy);
        let mut blocks = numbered(&allocator);
        for (mib, number) in [(1, 90), (60, 91)] {
            let at = allocator.malloc(DEVICE, mib * MIB, TWO).unwrap();
            assert!(device(&allocator).inner.write(at, number));
            blocks.push((at, number));
        }
        let parking = allocator.parking(DEVICE).unwrap();
        parking.park(ParkTarget::Streams, ParkMode::Keep, ParkOrder::Device).unwrap();
        consistency::check(&allocator, DEVICE, None).unwrap();
        let report = parking.report(ParkTarget::Streams).unwrap();
        assert_eq!((report.state, report.mapped), (ParkState::Asleep, 0), "`{policy}`");
        assert!(report.parked >= 181 * MIB, "`{policy}`");
        for stream in [ONE, TWO] {
            assert!(matches!(allocator.malloc(DEVICE, MIB, stream), Err(Error::Parked)), "`{policy}`");
        }
        allocator.free(blocks.remove(0).0).unwrap();
        parking.wake(ParkTarget::Streams).unwrap();
        for &(at, number) in &blocks {
            assert_eq!(device(&allocator).inner.read(at), Some(number), "`{policy}`");
        }
        consistency::check(&allocator, DEVICE, None).unwrap();
        allocator.malloc(DEVICE, MIB, TWO).unwrap();
        // Blocks up to 1 MiB stay.
        parking.park(ParkTarget::LargeOfStreams, ParkMode::Keep, ParkOrder::Device).unwrap();
        assert_eq!(parking.report(ParkTarget::LargeOfStreams).unwrap().mapped, 0, "`{policy}`");
        assert_eq!(device(&allocator).inner.read(blocks[2].0), Some(blocks[2].1), "`{policy}`: a block of 1 MiB");
        let small = allocator.malloc(DEVICE, MIB, TWO).unwrap();
        assert!(matches!(allocator.malloc(DEVICE, 2 * MIB, TWO), Err(Error::Parked)), "`{policy}`");
        parking.wake(ParkTarget::Streams).unwrap();
        for &(at, number) in &blocks {
            assert_eq!(device(&allocator).inner.read(at), Some(number), "`{policy}`");
        }
        allocator.free(small).unwrap();
        consistency::check(&allocator, DEVICE, None).unwrap();
    }
}

#[test]
fn pages_freed_while_they_are_copied_stay_with_the_park() {
    for policy in PAGED {
        for freed in 0..3 {
            let allocator = allocator(policy);
            let blocks = numbered(&allocator);
            let gone = blocks[freed].0;
            let other = Arc::downgrade(&allocator);
            device(&allocator).on_finish(move || {
                let allocator = other.upgrade().unwrap();
                allocator.free(gone).unwrap();
                allocator.empty_cache(DEVICE).unwrap();
                // More than the rest of the device: free pages of the parked stream would serve,
                // and must not.
                assert!(allocator.malloc(DEVICE, 150 * MIB, TWO).is_err(), "`{policy}`");
                let small = allocator.malloc(DEVICE, 20 * MIB, TWO).unwrap();
                allocator.free(small).unwrap();
            });
            park(&allocator, ParkMode::Keep).unwrap();
            consistency::check(&allocator, DEVICE, None).unwrap();
            assert_eq!(report(&allocator).state, ParkState::Asleep);
            assert_eq!(device(&allocator).inner.kept(), report(&allocator).kept, "`{policy}`: nothing is kept twice");
            wake(&allocator).unwrap();
            consistency::check(&allocator, DEVICE, None).unwrap();
            for (number, (at, value)) in blocks.into_iter().enumerate() {
                if number != freed {
                    assert_eq!(device(&allocator).inner.read(at), Some(value), "`{policy}`");
                    allocator.free(at).unwrap();
                }
            }
            allocator.empty_cache(DEVICE).unwrap();
            assert_eq!((device(&allocator).inner.used(), device(&allocator).inner.kept()), (0, 0), "`{policy}`");
        }
    }
}

#[test]
fn an_emptied_cache_gives_up_the_contents_and_places_of_freed_blocks() {
    for policy in PAGED {
        for mode in [ParkMode::Keep, ParkMode::Drop, ParkMode::Zero] {
            let allocator = allocator(policy);
            let blocks = numbered(&allocator);
            park(&allocator, mode).unwrap();
            let parked = report(&allocator).parked;
            allocator.free(blocks[1].0).unwrap();
            allocator.empty_cache(DEVICE).unwrap();
            consistency::check(&allocator, DEVICE, None).unwrap();
            assert!(report(&allocator).parked <= parked - 20 * MIB, "`{policy}`: {:?}", report(&allocator));
            for at in [blocks[0].0, blocks[2].0] {
                allocator.free(at).unwrap();
            }
            allocator.empty_cache(DEVICE).unwrap();
            assert_eq!((report(&allocator).parked, device(&allocator).inner.kept()), (0, 0), "`{policy}`");
            assert_eq!(device(&allocator).inner.outstanding().reservations, 0, "`{policy}`");
            wake(&allocator).unwrap();
            let again = allocator.malloc(DEVICE, 30 * MIB, ONE).unwrap();
            allocator.free(again).unwrap();
            consistency::check(&allocator, DEVICE, None).unwrap();
        }
    }
}

#[test]
fn blocks_freed_while_they_wake_stay_until_they_are_awake() {
    for policy in PAGED {
        let allocator = allocator(policy);
        let blocks = numbered(&allocator);
        park(&allocator, ParkMode::Keep).unwrap();
        allocator.parking(DEVICE).unwrap().wake_start(IDLE).unwrap();
        allocator.free(blocks[1].0).unwrap();
        allocator.empty_cache(DEVICE).unwrap();
        allocator.check_invariants().unwrap();
        assert_eq!(report(&allocator).state, ParkState::Waking);
        wake(&allocator).unwrap();
        for (at, value) in [blocks[0], blocks[2]] {
            assert_eq!(device(&allocator).inner.read(at), Some(value), "`{policy}`");
            allocator.free(at).unwrap();
        }
        allocator.empty_cache(DEVICE).unwrap();
        assert_eq!((device(&allocator).inner.used(), device(&allocator).inner.kept()), (0, 0), "`{policy}`");
    }
}

#[test]
fn snapshots_and_reports_say_what_is_parked() {
    for policy in PAGED {
        let allocator = allocator(policy);
        let blocks = numbered(&allocator);
        let parked = |allocator: &Interrupted| allocator.snapshot().iter().map(|segment| segment.parked).sum::<u64>();
        assert_eq!(parked(&allocator), 0);
        park(&allocator, ParkMode::Drop).unwrap();
        assert_eq!(parked(&allocator), report(&allocator).parked, "`{policy}`");
        let Err(Error::OutOfMemory(failed)) = allocator.malloc(DEVICE, 400 * MIB, TWO) else { panic!("it fits") };
        assert_eq!((failed.parked, failed.allocated, failed.reserved), (report(&allocator).parked, 0, 0));
        assert!(failed.to_string().contains(" are parked and take none of the device's memory."), "{failed}");
        let remaining = allocator.parking(DEVICE).unwrap().remaining().unwrap();
        let parked_bytes = report(&allocator).parked;
        assert_eq!(remaining, Remaining { parked: parked_bytes, ..Remaining::default() }, "`{policy}`");
        wake(&allocator).unwrap();
        assert_eq!(parked(&allocator), 0);
        let remaining = allocator.parking(DEVICE).unwrap().remaining().unwrap();
        assert_eq!((remaining.blocks, remaining.parked, remaining.other), (120 * MIB, 0, 0), "`{policy}`");
        assert_eq!(remaining.used, device(&allocator).inner.used());
        blocks.into_iter().for_each(|(at, _)| allocator.free(at).unwrap());
    }
}

#[test]
fn a_request_beside_a_park_gets_one_new_page() {
    let allocator = allocator("policy:stitched,slack:0");
    let blocks = numbered(&allocator);
    let pages_of = |allocator: &Interrupted| {
        let block = allocator.malloc(DEVICE, 32 * MIB, TWO).unwrap();
        let mut pages = 0;
        allocator.pages(DEVICE).unwrap().extents(block, |_| pages += 1).unwrap();
        allocator.free(block).unwrap();
        allocator.empty_cache(DEVICE).unwrap();
        pages
    };
    // Four pages at least otherwise, so that parts can move later.
    assert!(pages_of(&allocator) >= 4);
    let (other, done) = (Arc::downgrade(&allocator), Arc::new(OnceLock::new()));
    let found = Arc::clone(&done);
    device(&allocator).on_finish(move || found.set(pages_of(&other.upgrade().unwrap())).unwrap());
    park(&allocator, ParkMode::Keep).unwrap();
    assert_eq!(done.get(), Some(&1));
    wake(&allocator).unwrap();
    blocks.iter().for_each(|&(at, number)| assert_eq!(device(&allocator).inner.read(at), Some(number)));
}

#[test]
fn blocks_lent_to_another_stream_stay_awake_and_parked_ones_are_not_lent() {
    for mode in [ParkMode::Keep, ParkMode::Drop, ParkMode::Zero] {
        let allocator = allocator("policy:stitched,slack:0");
        // A hole of 20 MiB between live blocks: no page of it can move without unmapping, and it is
        // lent as it is.
        let blocks = [41, 21, 41].map(|mib| allocator.malloc(DEVICE, mib * MIB + 512, ONE).unwrap());
        allocator.free(blocks[1]).unwrap();
        let lent = allocator.malloc(DEVICE, 20 * MIB, TWO).unwrap();
        assert!((blocks[0]..blocks[2]).contains(&lent), "it is lent");
        assert!(device(&allocator).inner.write(lent, 77));
        park(&allocator, mode).unwrap();
        allocator.check_invariants().unwrap();
        assert!(report(&allocator).parked >= 70 * MIB, "{:?}", report(&allocator));
        assert!(device(&allocator).inner.is_accessible(lent, 20 * MIB), "the other stream is not parked");
        assert_eq!(device(&allocator).inner.read(lent), Some(77));
        allocator.free(lent).unwrap();
        let other = allocator.malloc(DEVICE, 20 * MIB, TWO).unwrap();
        assert!(!(blocks[0]..blocks[2]).contains(&other), "a parked heap lends nothing");
        wake(&allocator).unwrap();
        consistency::check(&allocator, DEVICE, None).unwrap();
        for block in [blocks[0], blocks[2], other] {
            allocator.free(block).unwrap();
        }
        allocator.check_invariants().unwrap();
    }
}
