//! Extents and pins: the memory under blocks, and the pins holding the memory in place.

use crate::allocator::{Allocator, Pages};
use crate::arena::paging::extents::{Extent, Physical};
use crate::config::Config;
use crate::device::simulated::{AddressSpace, Call, SimulatedDevice};
use crate::device::{DeviceError, ErrorKind};
use crate::error::{Error, PointerFault};
use crate::pool::{PoolOptions, Route, RoutePurpose};
use crate::tables::Growable;
use crate::tests::own::parse;
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
use std::collections::BTreeSet;
use std::string::ToString;
use std::sync::Arc;
use std::vec::Vec;

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

const DEVICE: DeviceIndex = DeviceIndex(0);
const STREAM: StreamId = StreamId(0);

fn allocator(config: &str) -> Simulated {
    Simulated::new([SimulatedDevice::new(1 << 30)], &parse(config)).unwrap()
}

fn pages(allocator: &Simulated) -> Pages<'_, SimulatedDevice, spin::mutex::SpinMutex<()>, Growable> {
    allocator.pages(DEVICE).unwrap()
}

fn malloc(allocator: &Simulated, mib: u64) -> DevicePtr {
    allocator.malloc(DEVICE, mib * MIB, STREAM).unwrap()
}

fn used(allocator: &Simulated) -> u64 {
    allocator.device(DEVICE).unwrap().used()
}

fn extents(allocator: &Simulated, ptr: DevicePtr) -> Vec<Extent> {
    let mut all = Vec::new();
    pages(allocator).extents(ptr, |extent| all.push(extent)).unwrap();
    all
}

/// The numbers of the pages under a block.
fn page_numbers(allocator: &Simulated, ptr: DevicePtr) -> BTreeSet<u32> {
    let number = |extent: Extent| match extent.memory {
        Physical::Page(number) => number,
        Physical::Segment(base) => panic!("a segment at {base}"),
    };
    extents(allocator, ptr).into_iter().map(number).collect()
}

#[test]
fn the_extents_of_blocks_cover_them_page_by_page() {
    for config in ["expandable_segments:True", "policy:stitched"] {
        let allocator = allocator(config);
        // Sizes that do not end where pages do, so that blocks share pages.
        let blocks: Vec<_> = [3, 5, 21, 2, 45, 1].map(|mib| malloc(&allocator, mib)).into();
        let mut places = BTreeSet::new();
        for &block in &blocks {
            let mut end = 0;
            for Extent { offset, bytes, memory, within, memory_bytes } in extents(&allocator, block) {
                assert_eq!(offset, end, "{config}: no gap");
                assert!(bytes > 0 && within + bytes <= memory_bytes);
                end += bytes;
                let Physical::Page(page) = memory else { panic!("{config}: not a page") };
                // A page begins at one address, whichever block is asked.
                places.insert((page, block.0 + offset - within));
            }
            assert_eq!(end, allocator.base_of(block).unwrap().size, "{config}");
        }
        let numbers: BTreeSet<_> = places.iter().map(|(page, _)| page).collect();
        let addresses: BTreeSet<_> = places.iter().map(|(_, at)| at).collect();
        assert_eq!((numbers.len(), addresses.len()), (places.len(), places.len()), "{config}");
        assert!(places.len() > 3, "{config}: several pages");
    }
}

#[test]
fn a_block_of_an_ordinary_segment_is_one_extent() {
    for config in ["", "policy:small_first_fit", "policy:first_fit"] {
        let allocator = allocator(config);
        let blocks = [(); 3].map(|()| allocator.malloc(DEVICE, 5000, STREAM).unwrap());
        for block in blocks {
            let described = allocator.base_of(block).unwrap();
            let expected = Extent {
                offset: 0,
                bytes: described.size,
                memory: Physical::Segment(described.segment),
                within: block.0 - described.segment.0,
                memory_bytes: described.segment_bytes,
            };
            assert_eq!(extents(&allocator, block), [expected], "{config}");
        }
    }
}

#[test]
fn pinned_memory_outlives_its_block_and_the_rest_is_released() {
    for config in
        ["", "expandable_segments:True", "policy:stitched", "policy:bfc", "policy:small_first_fit", "policy:direct"]
    {
        let allocator = allocator(config);
        let blocks = [(); 3].map(|()| malloc(&allocator, 20));
        let middle = blocks[1];
        pages(&allocator).pin(middle).unwrap();
        pages(&allocator).pin(middle).unwrap();
        for block in blocks {
            allocator.free(block).unwrap();
        }
        for pins_left in [2, 1] {
            allocator.empty_cache(DEVICE).unwrap();
            allocator.check_invariants().unwrap();
            assert!(allocator.device(DEVICE).unwrap().is_accessible(middle, 20 * MIB), "{config}");
            if config != "policy:bfc" {
                assert_eq!(used(&allocator), 20 * MIB, "{config}: the pages on both sides are released");
            }
            if pages(&allocator).stats().mapped > 0 {
                assert_eq!(pages(&allocator).stats().pinned, 20 * MIB, "{config}");
            }
            pages(&allocator).unpin(middle).unwrap_or_else(|error| panic!("{config}: {error}, {pins_left} left"));
        }
        assert_eq!(pages(&allocator).stats().pinned, 0);
        assert_eq!(pages(&allocator).unpin(middle), Err(Error::NotPinned(middle)), "{config}");
        allocator.empty_cache(DEVICE).unwrap();
        assert_eq!(used(&allocator), 0, "{config}");
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn pinned_pages_do_not_move() {
    for pinned in [false, true] {
        let allocator = allocator("policy:stitched");
        let hole = malloc(&allocator, 64);
        let _between = malloc(&allocator, 64);
        let under = page_numbers(&allocator, hole);
        if pinned {
            pages(&allocator).pin(hole).unwrap();
        }
        allocator.free(hole).unwrap();
        let longer = malloc(&allocator, 80);
        let moved = !page_numbers(&allocator, longer).is_disjoint(&under);
        assert_eq!((moved, pages(&allocator).stats().moved > 0), (!pinned, !pinned));
        if pinned {
            // Not one page has moved: the next block of the same size finds them where they were.
            assert_eq!(malloc(&allocator, 64), hole);
            assert_eq!(page_numbers(&allocator, hole), under);
            pages(&allocator).unpin(hole).unwrap();
        }
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn a_pin_of_a_pool_outlives_the_pool() {
    for config in ["", "expandable_segments:True", "policy:stitched"] {
        let allocator = allocator(config);
        let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
        allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(STREAM), RoutePurpose::Requests).unwrap();
        let block = malloc(&allocator, 20);
        allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Requests).unwrap();
        pages(&allocator).pin(block).unwrap();
        allocator.free(block).unwrap();
        // The pool has two users: its creator and the route.
        for _user in 0..2 {
            allocator.pools(DEVICE).unwrap().release(pool).unwrap();
        }
        allocator.empty_cache(DEVICE).unwrap();
        assert_eq!(used(&allocator), 20 * MIB, "{config}");
        pages(&allocator).unpin(block).unwrap();
        allocator.empty_cache(DEVICE).unwrap();
        assert_eq!(used(&allocator), 0, "{config}");
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn addresses_that_are_no_block_of_the_device_are_refused() {
    let config = Config::parse("policy:stitched").unwrap();
    let space = Arc::new(AddressSpace::new(1 << 50..1 << 51));
    let devices = [(); 2].map(|()| SimulatedDevice::within(Arc::clone(&space), 1 << 30));
    let allocator = Simulated::new(devices, &config).unwrap();
    let block = malloc(&allocator, 4);
    let inside = DevicePtr(block.0 + 512);
    let fault = PointerFault::Interior { block, requested: 4 * MIB };
    let here = pages(&allocator);
    assert_eq!(here.pin(inside), Err(Error::InvalidPointer { ptr: inside, fault }));
    assert_eq!(here.extents(inside, |_| ()), Err(Error::InvalidPointer { ptr: inside, fault }));
    let elsewhere = allocator.pages(DeviceIndex(1)).unwrap();
    assert_eq!(elsewhere.pin(block), Err(Error::foreign(block)));
    here.pin(block).unwrap();
    assert_eq!(elsewhere.unpin(block), Err(Error::NotPinned(block)));
    assert_eq!(here.unpin(inside), Err(Error::NotPinned(inside)));
    allocator.free(block).unwrap();
    assert!(here.pin(block).is_err(), "freed");
    assert_eq!([here.pin(DevicePtr::NULL), here.unpin(DevicePtr::NULL)], [Ok(()), Ok(())]);
    here.extents(DevicePtr::NULL, |_| panic!("no bytes")).unwrap();
}

/// An allocator on a device with exports: the descriptor of a page is the number of the handle.
fn exporting(config: &str) -> Simulated {
    Simulated::new([SimulatedDevice::new(1 << 30).with_exports()], &parse(config)).unwrap()
}

#[test]
fn every_page_under_pinned_memory_is_exported_by_any_of_its_bytes() {
    for config in ["expandable_segments:True", "policy:stitched"] {
        let allocator = exporting(config);
        let [block, _other] = [(); 2].map(|()| malloc(&allocator, 45));
        let pages = pages(&allocator);
        assert_eq!(pages.export(block), Err(Error::NotPinned(block)), "{config}");
        pages.pin(block).unwrap();
        let handles = allocator.device(DEVICE).unwrap().physical(block, 45 * MIB).unwrap();
        let mut exported = Vec::new();
        for Extent { offset, bytes, .. } in extents(&allocator, block) {
            let [first, last] = [offset, offset + bytes - 1].map(|at| pages.export(block.offset(at)).unwrap().0);
            assert_eq!(first, last, "{config}: one page");
            exported.push(first);
        }
        assert!(exported.len() > 1, "{config}: several pages");
        assert_eq!(exported, handles.iter().map(|(handle, _)| handle.0 as i32).collect::<Vec<_>>(), "{config}");
        let behind = block.offset(allocator.base_of(block).unwrap().size);
        assert_eq!(pages.export(behind), Err(Error::NotPinned(behind)), "{config}: another block");
        assert_eq!(pages.stats().calls.export.calls, 2 * exported.len() as u64);
        // The pin, and not the block, keeps the pages.
        allocator.free(block).unwrap();
        assert_eq!(pages.export(block).unwrap().0, exported[0], "{config}");
        pages.unpin(block).unwrap();
        assert_eq!(pages.export(block), Err(Error::NotPinned(block)), "{config}");
        assert_eq!(pages.stats().pinned, 0);
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn memory_that_cannot_be_exported_is_refused() {
    for config in ["", "policy:small_first_fit", "policy:direct"] {
        let allocator = exporting(config);
        let block = malloc(&allocator, 20);
        pages(&allocator).pin(block).unwrap();
        let refused = pages(&allocator).export(block);
        assert_eq!(refused, Err(Error::NotExportable(block)), "{config}");
        assert!(refused.unwrap_err().to_string().contains("ordinary segment"));
        assert_eq!(allocator.device(DEVICE).unwrap().calls(Call::Export), 0, "{config}");
    }
    let allocator = allocator("policy:stitched");
    let block = malloc(&allocator, 20);
    pages(&allocator).pin(block).unwrap();
    let unsupported = DeviceError::new(ErrorKind::Unsupported, 0);
    assert_eq!(pages(&allocator).export(block), Err(Error::Device(unsupported)));
    assert_eq!(pages(&allocator).stats().pinned, 20 * MIB, "the program's own pin");
    assert_eq!(pages(&allocator).export(DevicePtr::NULL), Err(Error::NotPinned(DevicePtr::NULL)));
}
