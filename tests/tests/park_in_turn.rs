//! A park beside other threads, which act in the middle: they free lent blocks and blocks with
//! further uses, behind work of their own, and ask for the turn of parking.
//!
//! The simulated device refuses to unmap memory in use by unfinished work, and the park fails.

use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{
    Allocator, Config, DevicePtr, Error, Growable, ParkMode, ParkOrder, ParkReport, ParkState, ParkTarget, StreamId,
};
use cachalot_tests::consistency;
use cachalot_tests::hooked::Hooked;
use cachalot_tests::host::{DEVICE, MIB};
use std::sync::{Arc, Mutex};

type Interrupted = Allocator<Hooked, parking_lot::RawMutex, Growable>;

const ONE: StreamId = StreamId(1);
const TWO: StreamId = StreamId(2);
const IDLE: ParkTarget = ParkTarget::Stream(ONE);
const MODES: [ParkMode; 3] = [ParkMode::Keep, ParkMode::Drop, ParkMode::Zero];
const ORDERS: [ParkOrder; 2] = [ParkOrder::Device, ParkOrder::Streams];

fn allocator(config: &str) -> Arc<Interrupted> {
    let device = Hooked::new(SimulatedDevice::new(256 * MIB));
    Arc::new(Interrupted::new([device], &Config::parse(config).unwrap()).unwrap())
}

fn device(allocator: &Interrupted) -> &Hooked {
    allocator.device(DEVICE).unwrap()
}

fn report(allocator: &Interrupted) -> ParkReport {
    allocator.parking(DEVICE).unwrap().report(IDLE).unwrap()
}

fn wake(allocator: &Interrupted) {
    allocator.parking(DEVICE).unwrap().wake(IDLE).unwrap();
}

/// Parks stream 1, and calls `act` at the end of the wait number `at` for a stream, or else at the
/// first wait for copies. Returns whether `act` was called during the park.
fn park_and_act(
    allocator: &Arc<Interrupted>,
    (mode, order): (ParkMode, ParkOrder),
    at: usize,
    act: impl FnOnce(&Interrupted) + Send + 'static,
) -> bool {
    let of = Arc::downgrade(allocator);
    let act = Arc::new(Mutex::new(Some(act)));
    let acted = Arc::clone(&act);
    let now = move || {
        // Taken out of the lock: the act may lead to the hook again.
        let act = act.lock().unwrap().take();
        if let Some(act) = act {
            act(&of.upgrade().unwrap());
        }
    };
    after(allocator, at, Box::new(now.clone()));
    device(allocator).on_finish(now);
    allocator.parking(DEVICE).unwrap().park(IDLE, mode, order).unwrap();
    allocator.check_invariants().unwrap();
    // The hooks that were not called do nothing from here on.
    acted.lock().unwrap().take().is_none()
}

/// Calls `act` after the `at`-th next wait for a stream.
fn after(allocator: &Arc<Interrupted>, at: usize, act: Box<dyn FnOnce() + Send>) {
    let of = Arc::downgrade(allocator);
    device(allocator).on_synchronize(move || match at {
        0 => act(),
        _ => after(&of.upgrade().unwrap(), at - 1, act),
    });
}

/// Requests three blocks on stream 1, frees the middle block, and lends the memory to stream 2.
/// Returns the blocks and the lent block. Stream 1 also has cached memory.
fn with_loan(allocator: &Interrupted) -> ([DevicePtr; 3], DevicePtr) {
    let blocks = [41, 21, 41].map(|mib| allocator.malloc(DEVICE, mib * MIB + 512, ONE).unwrap());
    let cached = allocator.malloc(DEVICE, 30 * MIB, ONE).unwrap();
    allocator.free(blocks[1]).unwrap();
    let lent = allocator.malloc(DEVICE, 20 * MIB, TWO).unwrap();
    assert!((blocks[0]..blocks[2]).contains(&lent), "the block is lent");
    allocator.free(cached).unwrap();
    (blocks, lent)
}

#[test]
fn a_loan_that_ends_during_a_park_stays_mapped_until_the_park_has_ended() {
    let mut acts = 0;
    for (mode, order, at) in every_park() {
        for is_short in [false, true] {
            let allocator = allocator("policy:stitched,slack:0");
            let (blocks, lent) = with_loan(&allocator);
            let acted = park_and_act(&allocator, (mode, order), at, move |allocator| {
                device(allocator).inner.launch(TWO, lent, 20 * MIB).unwrap();
                allocator.free(lent).unwrap();
                if is_short {
                    // Orders the lender behind the borrower.
                    allocator.settings(DEVICE).unwrap().set_limit(Some(20 * MIB));
                    let _refused = allocator.malloc(DEVICE, 100 * MIB, TWO);
                    allocator.settings(DEVICE).unwrap().set_limit(None);
                }
            });
            acts += u32::from(acted);
            assert_eq!(report(&allocator).state, ParkState::Asleep);
            assert!(device(&allocator).inner.is_accessible(lent, 20 * MIB), "{mode:?} {order:?} {at}");
            assert!(report(&allocator).parked >= 70 * MIB, "{:?}", report(&allocator));
            wake(&allocator);
            if !acted {
                allocator.free(lent).unwrap();
            }
            end(&allocator, &[blocks[0], blocks[2]]);
        }
    }
    assert!(acts > 20, "{acts}");
}

#[test]
fn a_block_with_uses_that_is_freed_during_a_park_is_waited_for() {
    let mut acts = 0;
    for config in ["policy:stitched,slack:0", "expandable_segments:True", "expandable_segments:True,parity:False"] {
        for (mode, order, at) in every_park() {
            for is_short in [false, true] {
                let allocator = allocator(config);
                let used = allocator.malloc(DEVICE, 41 * MIB, ONE).unwrap();
                let cached = allocator.malloc(DEVICE, 30 * MIB, ONE).unwrap();
                allocator.free(cached).unwrap();
                for stream in [TWO, StreamId(3)] {
                    allocator.record_stream(used, stream).unwrap();
                }
                device(&allocator).inner.launch(TWO, used, 20 * MIB).unwrap();
                device(&allocator).inner.launch(StreamId(3), used.offset(20 * MIB), 20 * MIB).unwrap();
                let acted = park_and_act(&allocator, (mode, order), at, move |allocator| {
                    allocator.free(used).unwrap();
                    if is_short {
                        let _refused = allocator.malloc(DEVICE, 240 * MIB, StreamId(4));
                    }
                });
                acts += u32::from(acted);
                assert_eq!(report(&allocator).state, ParkState::Asleep);
                wake(&allocator);
                end(&allocator, if acted { &[] } else { core::slice::from_ref(&used) });
            }
        }
    }
    assert!(acts > 40, "{acts}");
}

#[test]
fn a_stream_without_memory_that_gets_some_during_a_park_stays_awake() {
    for config in ["policy:stitched,slack:0", "expandable_segments:True"] {
        for mode in MODES {
            let allocator = allocator(config);
            let (given, block) = std::sync::mpsc::channel();
            let acted = park_and_act(&allocator, (mode, ParkOrder::Device), 0, move |allocator| {
                let block = allocator.malloc(DEVICE, 41 * MIB, ONE).unwrap();
                device(allocator).inner.launch(ONE, block, 41 * MIB).unwrap();
                given.send(block).unwrap();
            });
            assert!(acted);
            let block = block.recv().unwrap();
            assert_eq!(report(&allocator).state, ParkState::Awake, "`{config}`, {mode:?}");
            assert!(device(&allocator).inner.is_accessible(block, 41 * MIB), "`{config}`, {mode:?}");
            end(&allocator, &[block]);
        }
    }
}

#[test]
fn a_block_that_a_capture_keeps_from_its_free_during_a_park_is_parked() {
    let mut acts = 0;
    for config in ["policy:stitched,slack:0", "expandable_segments:True"] {
        // By streams, the first wait is for the heap of small blocks. A capture of stream 2 then
        // refuses the park.
        for (mode, order, at) in every_park().filter(|&(_, order, at)| order == ParkOrder::Device || at > 0) {
            let allocator = allocator(config);
            let [used, other] = [41, 30].map(|mib| allocator.malloc(DEVICE, mib * MIB, ONE).unwrap());
            allocator.record_stream(used, TWO).unwrap();
            device(&allocator).inner.launch(TWO, used, 20 * MIB).unwrap();
            let acted = park_and_act(&allocator, (mode, order), at, move |allocator| {
                // The allocator is not told of the capture. No event can be recorded for the block
                // now.
                device(allocator).inner.set_capturing(TWO, true);
                allocator.free(used).unwrap();
            });
            acts += u32::from(acted);
            assert_eq!(report(&allocator).state, ParkState::Asleep);
            assert_eq!(report(&allocator).mapped, 0, "{config} {mode:?} {order:?} {at}");
            device(&allocator).inner.set_capturing(TWO, false);
            wake(&allocator);
            end(&allocator, &[other, used][..2 - usize::from(acted)]);
        }
    }
    assert!(acts > 10, "{acts}");
}

#[test]
fn a_page_that_is_unpinned_during_a_park_stays_until_the_next_park() {
    let mut acts = 0;
    for config in ["policy:stitched,slack:0", "expandable_segments:True"] {
        for (mode, order, at) in every_park() {
            let allocator = allocator(config);
            let [pinned, other] = [40, 30].map(|mib| allocator.malloc(DEVICE, mib * MIB, ONE).unwrap());
            allocator.pages(DEVICE).unwrap().pin(pinned).unwrap();
            let acted = park_and_act(&allocator, (mode, order), at, move |allocator| {
                allocator.pages(DEVICE).unwrap().unpin(pinned).unwrap();
            });
            acts += u32::from(acted);
            assert_eq!(report(&allocator).state, ParkState::Asleep);
            assert!(device(&allocator).inner.is_accessible(pinned, 40 * MIB), "{config} {mode:?} {order:?} {at}");
            if acted {
                allocator.parking(DEVICE).unwrap().park(IDLE, mode, order).unwrap();
                assert_eq!(report(&allocator).mapped, 0, "{config} {mode:?} {order:?} {at}");
            }
            wake(&allocator);
            if !acted {
                allocator.pages(DEVICE).unwrap().unpin(pinned).unwrap();
            }
            end(&allocator, &[pinned, other]);
        }
    }
    assert!(acts > 20, "{acts}");
}

#[test]
fn a_park_or_wake_beside_a_park_is_refused_as_often_as_it_is_asked() {
    let allocator = allocator("policy:stitched,slack:0");
    let block = allocator.malloc(DEVICE, 41 * MIB, ONE).unwrap();
    let other = allocator.malloc(DEVICE, 41 * MIB, TWO).unwrap();
    let acted = park_and_act(&allocator, (ParkMode::Keep, ParkOrder::Device), 0, move |allocator| {
        let parking = allocator.parking(DEVICE).unwrap();
        for _ in 0..3 {
            let parked = parking.park(ParkTarget::Stream(TWO), ParkMode::Drop, ParkOrder::Device);
            assert!(matches!(parked, Err(Error::ParkingRefused(_))), "{parked:?}");
            let woken = parking.wake(IDLE);
            assert!(matches!(woken, Err(Error::ParkingRefused(_))), "{woken:?}");
        }
    });
    assert!(acted);
    wake(&allocator);
    end(&allocator, &[block, other]);
}

/// Every mode and order of a park, and the number of a wait.
fn every_park() -> impl Iterator<Item = (ParkMode, ParkOrder, usize)> {
    let parks = MODES.into_iter().flat_map(|mode| ORDERS.map(|order| (mode, order)));
    parks.flat_map(|(mode, order)| (0..6).map(move |at| (mode, order, at)))
}

/// Frees the blocks, lets all work end, and checks for memory left.
fn end(allocator: &Interrupted, blocks: &[DevicePtr]) {
    consistency::check(allocator, DEVICE, None).unwrap();
    blocks.iter().for_each(|&block| allocator.free(block).unwrap());
    (1..5).for_each(|stream| device(allocator).inner.complete(StreamId(stream)));
    allocator.empty_cache(DEVICE).unwrap();
    allocator.check_invariants().unwrap();
    assert_eq!((device(allocator).inner.used(), device(allocator).inner.kept()), (0, 0));
}
