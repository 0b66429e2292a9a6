//! Self-freeing blocks and buffers.

use crate::allocator::{Allocator, Block, Buffer, FailedDrop, Range};
use crate::config::Config;
use crate::device::simulated::{Call, Failure, SimulatedDevice};
use crate::device::{DeviceError, ErrorKind};
use crate::error::{Error, PointerFault};
use crate::pool::{PoolId, PoolOptions, Route, RoutePurpose};
use crate::tables::Growable;
use crate::units::{DeviceIndex, DevicePtr, StreamId};

extern crate std;
use std::sync::{Arc, Mutex};
use std::vec::Vec;

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

const DEVICE: DeviceIndex = DeviceIndex(0);
const STREAM: StreamId = StreamId(3);
const OTHER: StreamId = StreamId(4);

fn allocator() -> Simulated {
    Simulated::new([SimulatedDevice::new(1 << 30)], &Config::new()).unwrap()
}

/// The number of live blocks.
fn live(allocator: &Simulated) -> i64 {
    allocator.stats(DEVICE).unwrap().totals().allocations().current
}

#[test]
fn a_drop_frees_once_and_an_empty_block_is_no_block() {
    let allocator = allocator();
    let block = allocator.block(DEVICE, 1000, STREAM).unwrap();
    assert_eq!((block.bytes(), block.stream(), block.device(), live(&allocator)), (1000, STREAM, DEVICE, 1));
    drop(block);
    assert_eq!(live(&allocator), 0);
    let block = allocator.block(DEVICE, 1000, STREAM).unwrap();
    block.free().unwrap();
    let empty = allocator.block(DEVICE, 0, STREAM).unwrap();
    assert_eq!(empty.ptr(), DevicePtr::NULL);
    drop(empty);
    assert_eq!(allocator.stats(DEVICE).unwrap().totals().allocations().freed, 2);
}

#[test]
fn a_raw_address_goes_out_and_comes_back_with_its_stream() {
    let allocator = Arc::new(allocator());
    let ptr = Block::new(Arc::clone(&allocator), DEVICE, 1000, STREAM).unwrap().into_raw();
    assert_eq!((live(&allocator), Arc::strong_count(&allocator)), (1, 1), "the memory stays, the handle goes");
    let inside = Block::from_raw(&*allocator, ptr.offset(8)).unwrap_err();
    let fault = PointerFault::Interior { block: ptr, requested: 1000 };
    assert_eq!(inside, Error::InvalidPointer { ptr: ptr.offset(8), fault });
    let block = Block::from_raw(Arc::clone(&allocator), ptr).unwrap();
    assert_eq!((block.bytes(), block.stream(), block.ptr()), (1000, STREAM, ptr));
    drop(block);
    assert!(Block::from_raw(&*allocator, ptr).is_err());
    assert_eq!((live(&allocator), Arc::strong_count(&allocator)), (0, 1));
}

#[test]
fn a_block_waits_for_announced_streams_and_for_counts() {
    let allocator = allocator();
    let block = allocator.block(DEVICE, 1000, STREAM).unwrap();
    let ptr = block.ptr();
    block.record_stream(OTHER).unwrap();
    drop(block);
    assert_ne!(allocator.block(DEVICE, 1000, STREAM).unwrap().ptr(), ptr);
    let block = allocator.block(DEVICE, 1000, STREAM).unwrap();
    block.free_at(7).unwrap();
    let pending = || allocator.stats(DEVICE).unwrap().totals().active_bytes().current;
    assert_eq!(pending(), 2048);
    allocator.set_safe_frontier(DEVICE, 7).unwrap();
    assert_eq!(pending(), 1024);
}

#[test]
fn a_buffer_counts_values_and_its_type_need_not_be_shared() {
    let allocator = allocator();
    // A raw pointer keeps a `Vec` on its thread, and not a buffer, which has no values on the host.
    let buffer = allocator.buffer::<*const u8>(DEVICE, 100, STREAM).unwrap();
    assert_eq!((buffer.len(), buffer.block().bytes(), buffer.is_empty()), (100, 800, false));
    let ptr = buffer.ptr();
    std::thread::scope(|scope| {
        scope.spawn(|| drop(buffer));
    });
    assert_eq!(live(&allocator), 0);
    let buffer = Buffer::<u64, _>::new(&allocator, DEVICE, 100, STREAM).unwrap();
    buffer.record_stream(STREAM).unwrap();
    let block = buffer.into_block();
    assert_eq!(block.ptr(), ptr);
    assert_eq!(Buffer::<[f32; 3], _>::from_block(block).len(), 66);
    assert!(allocator.buffer::<u8>(DEVICE, 0, STREAM).unwrap().is_empty());
    let huge = allocator.buffer::<u64>(DEVICE, usize::MAX / 2, STREAM).unwrap_err();
    assert_eq!(huge, Error::TooLarge(u64::MAX));
}

#[test]
fn a_buffer_used_by_another_stream_waits_for_its_work() {
    let allocator = allocator();
    let buffer = allocator.buffer::<u64>(DEVICE, 100, STREAM).unwrap();
    let ptr = buffer.ptr();
    buffer.record_stream(OTHER).unwrap();
    drop(buffer);
    assert_ne!(allocator.block(DEVICE, 800, STREAM).unwrap().ptr(), ptr);
    allocator.device(DEVICE).unwrap().complete(OTHER);
    assert_eq!(allocator.block(DEVICE, 800, STREAM).unwrap().ptr(), ptr);
}

#[test]
fn a_use_recorded_by_a_block_lasts_as_long_as_the_work_before_it() {
    let allocator = allocator();
    let block = allocator.block(DEVICE, 800, STREAM).unwrap();
    let ptr = block.ptr();
    block.record_use(OTHER).unwrap();
    drop(block);
    let active = || allocator.stats(DEVICE).unwrap().totals().active_bytes().current;
    assert_eq!(active(), 1024, "the block is pending");
    allocator.device(DEVICE).unwrap().complete(OTHER);
    allocator.process_events(DEVICE).unwrap();
    assert_eq!((active(), allocator.block(DEVICE, 800, STREAM).unwrap().ptr()), (0, ptr));
}

#[test]
fn owners_print_what_they_own() {
    let devices = [SimulatedDevice::new(1 << 30), SimulatedDevice::new(1 << 30)];
    let allocator = Simulated::new(devices, &Config::new()).unwrap();
    let block = allocator.block(DeviceIndex(1), 1000, STREAM).unwrap();
    let printed = std::format!("{block:?}");
    assert!(printed.starts_with("Block {") && printed.contains("bytes: 1000"), "{printed}");
    let buffer = allocator.buffer::<u64>(DEVICE, 100, STREAM).unwrap();
    let printed = std::format!("{buffer:?}");
    assert!(printed.starts_with("Buffer {") && printed.contains("len: 100"), "{printed}");
    let range = Range::reserve(&allocator, DeviceIndex(1), 4 << 20).unwrap();
    assert_eq!(range.device(), DeviceIndex(1));
    let printed = std::format!("{range:?}");
    assert!(printed.starts_with("Range {") && printed.contains("DeviceIndex(1)"), "{printed}");
}

#[test]
fn a_block_names_the_device_of_its_memory() {
    let devices = [SimulatedDevice::new(1 << 30), SimulatedDevice::new(1 << 30)];
    let allocator = Simulated::new(devices, &Config::new()).unwrap();
    let block = allocator.block(DeviceIndex(1), 1000, STREAM).unwrap();
    assert_eq!(block.device(), DeviceIndex(1));
    assert_eq!(live(&allocator), 0, "the first device has no block");
}

#[test]
fn a_failed_drop_goes_to_the_hook_and_the_block_can_be_taken_over() {
    static FAILED: Mutex<Vec<FailedDrop>> = Mutex::new(Vec::new());
    let allocator = allocator();
    let error = DeviceError::new(ErrorKind::Other, 999);
    let device = allocator.device(DEVICE).unwrap();
    let used_elsewhere = || {
        let block = allocator.block(DEVICE, 1000, STREAM).unwrap();
        block.record_stream(OTHER).unwrap();
        block
    };
    allocator.on_failed_drop(Some(|failed| FAILED.lock().unwrap().push(*failed)));
    let block = used_elsewhere();
    let ptr = block.ptr();
    let next = |call| device.calls(call) + 1;
    device.fail(Failure { call: Call::Record, nth: next(Call::Record), persistent: false, error });
    drop(block);
    let failed = FAILED.lock().unwrap().pop().expect("the hook was called");
    assert_eq!((failed.ptr, failed.bytes, failed.error), (ptr, 1000, Error::Device(error)));
    assert_eq!(live(&allocator), 1);
    let block = Block::from_raw(&allocator, ptr).unwrap();
    // A free returns the error, and the block with it.
    device.fail(Failure { call: Call::Record, nth: next(Call::Record), persistent: false, error });
    let (block, refused) = block.free().unwrap_err();
    assert_eq!(refused, Error::Device(error));
    drop(block);
    assert_eq!((live(&allocator), FAILED.lock().unwrap().len()), (0, 0));
    // Without a hook the error is lost, and nothing else.
    allocator.on_failed_drop(None);
    let block = used_elsewhere();
    device.fail(Failure { call: Call::Record, nth: next(Call::Record), persistent: false, error });
    drop(block);
    assert_eq!((live(&allocator), FAILED.lock().unwrap().len()), (1, 0));
}

/// The pool of a request made now, told by the segments.
fn pool_of_a_request(allocator: &Simulated) -> PoolId {
    let ptr = allocator.malloc(DEVICE, 30 << 20, STREAM).unwrap();
    let segments = allocator.snapshot();
    let pool = segments.iter().find(|segment| segment.address == ptr).unwrap().pool;
    allocator.free(ptr).unwrap();
    pool
}

#[test]
fn scopes_of_routes_end_in_any_order_each_its_own() {
    let allocator = allocator();
    let pools = allocator.pools(DEVICE).unwrap();
    let [one, two] = [(); 2].map(|()| pools.create(PoolOptions::default()).unwrap());
    // The first begun leads the requests of another stream: its end must not end the second.
    let first = pools.route(one, Route::Stream(OTHER), RoutePurpose::Requests).unwrap();
    let second = pools.route(one, Route::Stream(STREAM), RoutePurpose::Requests).unwrap();
    let third = pools.route(two, Route::All, RoutePurpose::Requests).unwrap();
    assert_eq!((pool_of_a_request(&allocator), third.pool()), (two, two));
    drop(third);
    assert_eq!(pool_of_a_request(&allocator), one);
    drop(first);
    assert_eq!(pool_of_a_request(&allocator), one);
    assert_eq!(second.end(), Ok(()));
    assert_eq!(pool_of_a_request(&allocator), PoolId::DEFAULT);
    assert_eq!(pools.users(one), Ok(3), "the creator and two routes");
    assert_eq!(pools.end_route(one, RoutePurpose::Requests), Err(Error::NotRouted(one)));
}

#[test]
fn a_scope_of_a_capture_ends_with_the_stream_or_with_the_pool() {
    let allocator = allocator();
    let pools = allocator.pools(DEVICE).unwrap();
    let pool = pools.create(PoolOptions::default()).unwrap();
    let capture = || pools.route(pool, Route::Stream(STREAM), RoutePurpose::Capture).unwrap();

    let scope = capture();
    assert!(pools.are_capturing());
    allocator.stream_destroyed(DEVICE, STREAM).unwrap();
    assert!(!pools.are_capturing());
    assert_eq!(scope.end(), Ok(()));

    // Without a user of the pool there is no graph: the capture has ended, and the end says so.
    let (dropped, ended) = (capture(), capture());
    for _ in 0..pools.users(pool).unwrap() {
        pools.release(pool).unwrap();
    }
    assert!(!pools.are_capturing());
    drop(dropped);
    assert_eq!(ended.end(), Err(Error::UnknownPool(pool)));
    allocator.check_invariants().unwrap();
}
