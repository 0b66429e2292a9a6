//! Memory of the host under `policy:stitched`, where free pages move between heaps.

use super::*;
use crate::arena::paging::moves::Advice;
use crate::pool::{PoolOptions, Route, RoutePurpose, Tag};
use core::num::NonZeroU64;

const CONFIG: &str = "policy:stitched,spill:1.0";
const OTHER: StreamId = StreamId(2);

/// Returns how many bytes of a block of `bytes` lie on the host.
fn on_host(allocator: &Spilling, block: DevicePtr, bytes: u64) -> u64 {
    device(allocator).bytes_on_host(block, bytes)
}

fn advise(allocator: &Spilling, block: DevicePtr, advice: Advice) -> u64 {
    let moved = allocator.pages(DEVICE).unwrap().advise(block, advice).unwrap();
    allocator.check_invariants().unwrap();
    moved
}

#[test]
fn what_the_device_cannot_serve_lies_on_the_host_up_to_its_limit() {
    let allocator = allocator("policy:stitched,spill:0.5");
    let blocks = pages(&allocator, 7);
    let spilled: u64 = blocks.iter().map(|&block| on_host(&allocator, block, PAGE)).sum();
    assert_eq!((spilled, of_host(&allocator).0), (2 * PAGE, 2 * PAGE));
    // Half of a block would fit, and what was made for it is kept.
    assert_eq!(lack(&allocator), (2 * PAGE, HostLack::Limit, " 40 MiB lie on the host, and `spill` allows no more."));
    assert_eq!(of_host(&allocator), (2 * PAGE, PAGE / 2));
    blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!(of_host(&allocator), (0, 0));
    assert_eq!(device(&allocator).used(), 0);
}

#[test]
fn the_memory_of_a_spilled_pool_lies_on_the_host_from_the_start() {
    let allocator = allocator("policy:stitched,spill:0.5");
    let pool = pools::spilled_pool(&allocator);
    let blocks: Vec<_> = (0..3).map(|_| pools::malloc_in(&allocator, pool, PAGE).unwrap()).collect();
    let spilled: Vec<u64> = blocks.iter().map(|&block| on_host(&allocator, block, PAGE)).collect();
    assert_eq!(spilled, [PAGE, PAGE, PAGE / 2]);
    assert_eq!(on_host(&allocator, allocator.malloc(DEVICE, PAGE, STREAM).unwrap(), PAGE), 0);
}

/// Frees the blocks with these numbers while work uses them, and requests a block of as many bytes
/// on another stream, which no single free block has: pages move there.
fn gather(allocator: &Spilling, blocks: &mut [DevicePtr], freed: &[usize]) -> DevicePtr {
    for &number in freed {
        let block = core::mem::take(&mut blocks[number]);
        device(allocator).launch(STREAM, block, PAGE).unwrap();
        allocator.free(block).unwrap();
    }
    let bytes = freed.len() as u64 * PAGE;
    let before = allocator.pages(DEVICE).unwrap().stats().moved;
    let block = allocator.malloc(DEVICE, bytes, OTHER).unwrap();
    allocator.check_invariants().unwrap();
    assert_eq!(allocator.pages(DEVICE).unwrap().stats().moved, before + bytes);
    block
}

/// Frees all blocks, and asserts that nothing is left.
fn end(allocator: &Spilling, blocks: Vec<DevicePtr>) {
    blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!((of_host(allocator), device(allocator).used()), ((0, 0), 0));
}

#[test]
fn pages_of_the_host_move_to_other_heaps_like_those_of_the_device() {
    let allocator = allocator(CONFIG);
    let mut blocks = pages(&allocator, 7);
    let made = device(&allocator).calls(Call::CreateAtHost);
    // The last of them lies on the host.
    let block = gather(&allocator, &mut blocks, &[1, 3, 5]);
    assert_eq!((on_host(&allocator, block, 3 * PAGE), of_host(&allocator)), (PAGE, (2 * PAGE, 0)));
    assert_eq!(device(&allocator).calls(Call::CreateAtHost), made);
    blocks.push(block);
    end(&allocator, blocks);
}

#[test]
fn a_block_on_pages_that_have_moved_goes_to_the_host_and_back() {
    let allocator = allocator("policy:stitched,slack:0,spill:1.0");
    let mut blocks = pages(&allocator, 3);
    let block = gather(&allocator, &mut blocks, &[0, 2]);
    let halves = [block, DevicePtr(block.0 + PAGE)];
    halves.iter().for_each(|&half| assert!(device(&allocator).write(half, half.0)));
    // The pages are still mapped where the freed blocks were.
    assert_eq!(advise(&allocator, block, Advice::Cold), 2 * PAGE);
    assert_eq!((on_host(&allocator, block, 2 * PAGE), of_host(&allocator)), (2 * PAGE, (2 * PAGE, 0)));
    assert_eq!(advise(&allocator, block, Advice::Hot), 2 * PAGE);
    assert_eq!(of_host(&allocator), (0, 2 * PAGE));
    halves.iter().for_each(|&half| assert_eq!(device(&allocator).read(half), Some(half.0)));
    blocks.push(block);
    end(&allocator, blocks);
}

#[test]
fn a_page_of_the_host_is_destroyed_after_its_last_old_mapping() {
    let allocator = allocator("policy:stitched,spill:0.4,per_process_memory_fraction:0.2");
    let mut blocks = pages(&allocator, 3);
    assert_eq!(of_host(&allocator), (2 * PAGE, 0));
    let block = gather(&allocator, &mut blocks, &[0, 2]);
    allocator.settings(DEVICE).unwrap().set_limit(None);
    assert_eq!(advise(&allocator, block, Advice::Hot), PAGE);
    // The pages that it left are spare, and still mapped where the third block was.
    assert_eq!(of_host(&allocator), (PAGE, PAGE));
    // Those of a block with another length would take their room.
    let pools = allocator.pools(DEVICE).unwrap();
    let pool = pools.create(PoolOptions::default()).unwrap();
    allocator.parking(DEVICE).unwrap().tag_pool(pool, Some(Tag(NonZeroU64::MIN))).unwrap();
    let route = pools.route(pool, Route::All, RoutePurpose::Requests).unwrap();
    let long = allocator.malloc(DEVICE, PAGE, STREAM).unwrap();
    drop(route);
    assert_eq!(advise(&allocator, long, Advice::Cold), 0);
    assert_eq!(of_host(&allocator), (PAGE, PAGE));
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!((advise(&allocator, long, Advice::Cold), of_host(&allocator)), (PAGE, (2 * PAGE, 0)));
    // Those of the program and of the route.
    (0..2).for_each(|_| pools.release(pool).unwrap());
    blocks.extend([block, long]);
    end(&allocator, blocks);
}
